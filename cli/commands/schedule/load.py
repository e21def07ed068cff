"""`schedule load`: a crontab becomes schedules, all of it or none.

Invariant: a file that was loaded and has not changed changes nothing when it is loaded again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import BinaryIO, get_args

import click

from filewheel import MessageId, PlainSchedule, StoredSchedule, Wheel
from filewheel.scheduling.cron import Missed, Zone
from filewheel.tools.dump import iso

from ... import times
from ...failure import Failure
from ...input.crontab import LINE_BYTES_MAX, BadCronLine, CronJob, Crontab, is_system_crontab
from ...input.lines import read_lines, stdin
from ...input.params import DURATION, check_own_zone
from ...input.terms import terms_of
from ...show.calls import when_of
from ...show.output import Column, Output
from ...show.text import count, short_time
from ...times import US_PER_S
from ...verb import verb

VERBS = frozenset({"list", "edit", "load"})
"""Verbs of `schedule`, which are no names."""


@dataclass(frozen=True)
class _Plan:
    """A job, the schedule that it becomes, and what that does."""

    job: CronJob
    schedule: PlainSchedule
    when: str
    next_us: int
    """Its next time if it is started now."""
    does: str


@verb(
    "load",
    """
    $ echo '30 3 * * * ./backup.sh' > jobs.cron
    $ filewheel schedule load jobs.cron --tz Europe/Berlin
    $ filewheel schedule load jobs.cron --tz Europe/Berlin --prune --dry-run
    $ echo '@hourly date' | filewheel schedule load - --source clock
    """,
)
@click.option(
    "--tz",
    metavar="ZONE",
    help="The zone of lines below no CRON_TZ= or TZ=.  [default: UTC if the machine has that]",
)
@click.option("--topic", default="", help="The topic of the messages.")
@click.option(
    "--missed", type=click.Choice(get_args(Missed)), default="once", show_default=True,
    help="Times that passed while nothing ran: run once for all, each, or none that is late.",
)  # fmt: skip
@click.option("--jitter", type=DURATION, default="0", metavar="DUR", help="Each is due later by a random part of this.")
@click.option("--retries", type=click.IntRange(min=0), metavar="N", help="In place of the --retries of `run`.")
@click.option("--timeout", type=DURATION, metavar="DUR", help="In place of the --timeout of `run`.")
@click.option("--source", metavar="NAME", help="A name for the file, which --prune goes by.  [default: its path]")
@click.option("--prune", is_flag=True, help="End schedules that were loaded from this file and are not in it any more.")
@click.option("--dry-run", is_flag=True, help="Show what it would do; change nothing.")
@click.option("--keep-going", is_flag=True, help="Take the good lines although others are wrong (exit code 3).")
@click.argument("file", metavar="FILE")
def load(
    out: Output, tz: str | None, topic: str, missed: Missed, jitter: int, retries: int | None, timeout: int | None,
    source: str | None, prune: bool, dry_run: bool, keep_going: bool, file: str,
) -> None:  # fmt: skip
    """Load a crontab, or `-` for stdin: its jobs become schedules, which `filewheel run -- sh` runs.

    Each line that cannot be taken is reported with the reason; then no line is taken, unless --keep-going. Loading a
    changed file again changes its schedules: a job is known by the comment `# name: NAME` above it, or by its command.
    The variables of the file are exported to the jobs; CRON_TZ and TZ are their zone. --prune changes nothing when the
    input is empty or its last line has no newline: it may be cut short.
    """
    if file == "-" and prune and source is None:
        raise click.UsageError("--prune of stdin needs the --source that it was loaded with before")
    named = source if source is not None else "" if file == "-" else os.path.abspath(file)
    if tz is None:
        check_own_zone()
    zone = Zone(tz).name if tz is not None else "UTC" if not time.daylight and time.timezone == 0 else ""
    with _opened(file) as stream:
        ending = _LastLine(stream)
        found = Crontab(verbs=VERBS, has_users=is_system_crontab(file)).read(read_lines(ending, LINE_BYTES_MAX), zone)
    for note in found.notes:
        out.note(note)
    where = "stdin" if file == "-" else file
    if prune and not (found.jobs or found.problems):
        raise Failure(
            "usage", f"there is no job in {where}, so nothing says what --prune should keep; nothing was changed",
            hint="is it complete? `filewheel unschedule NAME...` ends schedules",
        )  # fmt: skip
    if prune and not ending.last.endswith(b"\n"):
        raise Failure(
            "usage", f"the last line of {where} does not end, so --prune may not see all of it; nothing was changed",
            hint="a newline at its end",
        )  # fmt: skip
    with out.wheel() as wheel:
        terms = terms_of(retries, timeout)
        like = PlainSchedule("-", "@daily", topic=topic, headers=terms, missed=missed, jitter_s=jitter / US_PER_S)
        plans = _plans(wheel, found, named, like)
        for problem in sorted(found.problems, key=lambda one: one.line):
            out.warn(str(problem))
        wrong = len(found.problems)
        if wrong and not keep_going:
            raise Failure(
                "usage", f"{count(wrong, 'line')} of {file} cannot be taken; nothing was changed",
                hint="mend them, or --keep-going takes the others",
            )  # fmt: skip
        gone: list[str] = []
        if prune and named:
            kept = {plan.job.name for plan in plans}
            loaded = (s for s in wheel.schedules() if s.source == named and not s.is_declared)
            gone = [stored.name for stored in loaded if stored.name not in kept]
        if wrong and gone:
            out.warn("nothing is pruned: a line that cannot be taken may be one of these schedules")
            gone = []
        ids: Sequence[MessageId] = []
        if not dry_run:
            ids = wheel.schedule_many([plan.schedule for plan in plans])
            for name in gone:
                wheel.unschedule(name)
        _print(out, plans, gone, None if dry_run else ids)
        if plans and not dry_run and not wheel.has_keeper():
            out.note("no keeper runs: `filewheel run -- sh` fires them")
    if wrong:
        raise Failure("partly", f"{count(wrong, 'line')} of {file} cannot be taken; the others are", hint="mend them")


class _LastLine:
    """A stream that remembers its last line."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.last = b""

    def readline(self, limit: int, /) -> bytes:
        """Return the next line, or the part of it up to a limit; the empty string at the end."""
        line = self._stream.readline(limit)
        self.last = line or self.last
        return line


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield stdin()
        return
    with open(file, "rb") as stream:
        yield stream


def _plans(wheel: Wheel, found: Crontab, source: str, like: PlainSchedule) -> list[_Plan]:
    """Return what each job becomes; a name of somebody else's schedule is one more problem."""
    plans = []
    living = {stored.name: stored for stored in wheel.schedules([job.name for job in found.jobs])}
    for job in found.jobs:
        schedule = PlainSchedule(
            job.name, job.when, job.body, like.topic, like.headers, tz=job.tz, missed=like.missed,
            jitter_s=like.jitter_s, source=source,
        )  # fmt: skip
        there = living.get(job.name)
        if there is not None and (not there.is_plain or there.source != source):
            found.problems.append(_taken(job, there))
            continue
        plant = schedule.plant(wheel.payload_bytes_max)
        same = there is not None and plant.is_that_of(there)
        does = "unchanged" if same else "started" if there is None else "changed"
        definition = plant.definition
        plans.append(_Plan(job, schedule, when_of(definition.recurrence)[0], definition.after(times.now_us()), does))
    return plans


def _taken(job: CronJob, there: StoredSchedule) -> BadCronLine:
    whose = (
        "a program's" if not there.is_plain else f"loaded from {there.source}" if there.source else "not of this file"
    )
    moved = f"`--source {quote(there.source)}` if it is the file of old, " if there.source else ""
    return BadCronLine(
        job.line, job.text, f"there is a schedule {job.name!r} already, which is {whose}",
        f"{moved}`# name: ...` above the line, or `filewheel unschedule {job.name}`",
    )  # fmt: skip


def _print(out: Output, plans: Sequence[_Plan], gone: Sequence[str], ids: Sequence[MessageId] | None) -> None:
    """Print what was done; without the ids of the next occurrences what would be done."""
    now_us = times.now_us()
    would = {"started": "would start", "changed": "would change", "ended": "would end"} if ids is None else {}
    rows = []
    for number, plan in enumerate(plans):
        next_us = plan.next_us if ids is None else ids[number].due_us
        fields = {
            "name": plan.job.name,
            "done": plan.does,
            "line": plan.job.line,
            "when": plan.when,
        }
        if out.wants_json:
            out.record({**fields, "tz": plan.job.tz, "next": iso(next_us), "next_us": next_us})
        rows.append(
            (would.get(plan.does, plan.does), plan.job.name, plan.job.when, plan.job.tz, short_time(next_us, now_us))
        )
    for name in gone:
        if out.wants_json:
            out.record({"name": name, "done": "ended"})
        rows.append((would.get("ended", "ended"), name, "", "", ""))
    if not out.wants_json and rows:
        out.table([Column(""), Column("NAME", 40), Column("WHEN", 30), Column("ZONE", 20), Column.date("NEXT")], rows)
    elif not rows:
        out.note("no jobs")
