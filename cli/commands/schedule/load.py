"""`schedule load`: a crontab becomes schedules, all of it or none.

Invariant: a file that was loaded and has not changed changes nothing when it is loaded again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, get_args

import click

from filewheel import PlainSchedule, StoredSchedule, Wheel
from filewheel.scheduling.cron import Missed, Zone
from filewheel.tools.dump import iso

from ... import times
from ...failure import Failure
from ...input.crontab import LINE_BYTES_MAX, Crontab, Job, Problem
from ...input.lines import read_lines, stdin
from ...input.params import DURATION
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

    job: Job
    schedule: PlainSchedule
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
    The variables of the file are exported to the jobs; CRON_TZ and TZ are their zone.
    """
    if file == "-" and prune and source is None:
        raise click.UsageError("--prune of stdin needs the --source that it was loaded with before")
    named = source if source is not None else "" if file == "-" else os.path.abspath(file)
    zone = Zone(tz).name if tz is not None else "UTC" if not time.daylight and time.timezone == 0 else ""
    with _opened(file) as stream:
        found = Crontab(verbs=VERBS).read(read_lines(stream, LINE_BYTES_MAX), zone)
    for note in found.notes:
        out.note(note)
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
        gone = [s.name for s in wheel.schedules() if s.source == named and not s.is_declared] if prune and named else []
        gone = [name for name in gone if name not in {plan.job.name for plan in plans}]
        if wrong and gone:
            out.warn("nothing is pruned: a line that cannot be taken may be one of these schedules")
            gone = []
        if not dry_run:
            wheel.schedule_many([plan.schedule for plan in plans])
            for name in gone:
                wheel.unschedule(name)
        _print(out, plans, gone, {s.name: s for s in wheel.schedules()} if not dry_run else {}, dry_run=dry_run)
        if plans and not dry_run and not wheel.has_keeper():
            out.note("no keeper runs: `filewheel run -- sh` fires them")
    if wrong:
        raise Failure("partly", f"{count(wrong, 'line')} of {file} cannot be taken; the others are", hint="mend them")


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
    for job in found.jobs:
        schedule = PlainSchedule(
            job.name, job.when, job.body, like.topic, like.headers, tz=job.tz, missed=like.missed,
            jitter_s=like.jitter_s, source=source,
        )  # fmt: skip
        there = next(iter(wheel.schedules(job.name)), None)
        if there is not None and (not there.is_plain or there.source != source):
            found.problems.append(_taken(job, there))
            continue
        same = there is not None and schedule.plant(wheel.payload_bytes_max).is_that_of(there)
        plans.append(_Plan(job, schedule, "unchanged" if same else "started" if there is None else "changed"))
    return plans


def _taken(job: Job, there: StoredSchedule) -> Problem:
    whose = (
        "a program's" if not there.is_plain else f"loaded from {there.source}" if there.source else "not of this file"
    )
    return Problem(
        job.line, job.text, f"there is a schedule {job.name!r} already, which is {whose}",
        f"`# name: ...` above the line, or `filewheel unschedule {job.name}`",
    )  # fmt: skip


def _print(
    out: Output, plans: Sequence[_Plan], gone: Sequence[str], living: dict[str, StoredSchedule], *, dry_run: bool
) -> None:
    now_us = times.now_us()
    would = {"started": "would start", "changed": "would change", "ended": "would end"} if dry_run else {}
    rows = []
    for plan in plans:
        stored = living.get(plan.job.name)
        definition = plan.schedule.plant(1 << 40).definition
        next_us = definition.after(now_us) if stored is None else stored.occurrence.due_us
        fields = {
            "name": plan.job.name,
            "done": plan.does,
            "line": plan.job.line,
            "when": when_of(definition.recurrence)[0],
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
