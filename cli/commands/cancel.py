"""`cancel`: cancel messages before they fire, by id or all at once.

To show whether a cancel was in time, the command names each id that is not pending or had begun.
"""

from __future__ import annotations

from itertools import islice

import click

from filewheel import Cancelled, CancelledIds, MessageId, Running, StoredSchedule, Wheel, schedule_of
from filewheel.tools.calls import calls_among
from filewheel.tools.dump import iso

from .. import times
from ..failure import Failure
from ..input.lines import check_filters, chunks, read_ids
from ..lost import key_lost, lost_of, not_pending
from ..show.output import Output
from ..show.runs import run_words, running_of
from ..show.text import count
from ..verb import verb

_CHUNK = 50_000
_NAMED = 20
_WORDS = {Cancelled.BEGUN: "had begun", Cancelled.MAYBE_BEGUN: "may have begun"}


@verb(
    "cancel",
    """
    $ filewheel cancel "$(filewheel enqueue --in 1h hi)"
    $ filewheel inspect list --topic 'mail*' --ids | filewheel cancel -
    $ filewheel cancel --all --topic trial --yes
    $ filewheel enqueue --in 1h --key oven hi && filewheel cancel --key oven
    """,
)
@click.option("--all", "everything", is_flag=True, help="Everything that is pending; asks first.")
@click.option("--key", metavar="KEY", help="The message that has this unique key.")
@click.option("--topic", metavar="GLOB", help="With --all: only what has this topic.")
@click.option("--dead", is_flag=True, help="With --all: the dead letters instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("ids", nargs=-1, metavar="[ID... | -]")
def command(
    out: Output, everything: bool, key: str | None, topic: str | None, dead: bool, yes: bool, ids: tuple[str, ...]
) -> None:
    """Cancel messages before they fire.

    Prints the ids of those that were pending. `-` reads ids from stdin, one a line (or JSON lines with an `id`). Once
    this has returned, none of them begins. A message that had begun goes on to its end, and is not tried again: stderr
    names it, and `filewheel kill` ends it. In --json the outcome of each is "stopped" (in time), "begun", or "maybe
    begun" where the keeper does not know, with `running_since`. A schedule ends with its next occurrence: stderr names
    it, and --json has it as "schedule".

    \b
    Exit codes:
      3  some of the ids were not pending
      4  none of them was
      7  all were, and some had begun
     12  a missing or damaged file may hold one of them
    """
    if everything + (key is not None) + bool(ids) > 1:
        raise click.UsageError("give ids, --key or --all, and only one of them")
    if everything:
        check_filters(topic=topic)
        _cancel_all(out, topic, dead, yes)
        return
    if topic is not None or dead:
        raise click.UsageError("--topic and --dead go with --all")
    if key is not None:
        _cancel_key(out, key)
        return
    wanted = read_ids(ids)
    if not ids:
        raise click.UsageError("which? Give ids, `-` to read them from stdin, --key, or --all")
    if not wanted:
        out.note("no ids on stdin: nothing was cancelled")
    unknown: list[MessageId] = []
    begun: dict[MessageId, Cancelled] = {}
    with out.wheel() as wheel, out.progress("cancelling", len(wanted)) as progress:
        for some in chunks(wanted, _CHUNK):
            found = _cancel(out, wheel, some)
            unknown += [id_ for id_ in some if id_ not in found]
            begun.update(_begun_of(found))
            progress.add(len(some))
        done = "; the cancel is written, and holds in any case"
        running = _running_of(out, wheel, begun)
        lost = lost_of(wheel, unknown, len(wanted), done=done) or only_not_pending(wheel, unknown, len(wanted))
    if unknown:
        _name_begun(out, begun, running)
    tell_unknown(out, unknown, len(wanted), lost)
    _tell_begun(out, begun, running)


def _running_of(out: Output, wheel: Wheel, begun: dict[MessageId, Cancelled]) -> Running:
    """Return what runs, if any of the cancelled messages had begun."""
    return running_of(out, wheel) if begun else Running()


def _begun_of(found: CancelledIds) -> dict[MessageId, Cancelled]:
    return {id_: how for id_, how in found.outcomes.items() if how is not Cancelled.STOPPED}


def _tell_begun(out: Output, begun: dict[MessageId, Cancelled], running: Running) -> None:
    """End with the exit code for cancelled messages that had begun."""
    if not begun:
        return
    if len(begun) == 1:
        ((id_, how),) = begun.items()
        goes_on = "it goes on to its end, and is not tried again"
        raise Failure(
            "begun", f"too late: {id_} {_WORDS[how]} when it was cancelled{_since(running, id_)}: {goes_on}",
            hint=_ends(running, id_),
        )  # fmt: skip
    _name_begun(out, begun, running)
    goes_on = "they go on to their end, and are not tried again"
    raise Failure(
        "begun", f"too late: {len(begun):,} of those cancelled had begun, or may have: {goes_on}",
        hint="`filewheel kill ID` ends one",
    )  # fmt: skip


def _ends(running: Running, id_: MessageId) -> str:
    """Return what ends a message that runs: a kill, unless it runs where nothing can end it."""
    run = running.find(id_)
    if run is not None and run.place is not None and run.place.kind in ("thread", "program"):
        return f"nothing can end a {run.place.kind} from outside, only the end of its process"
    return f"`filewheel kill {id_}` ends it"


def _since(running: Running, id_: MessageId) -> str:
    """Return since when and where a message runs, if that is known."""
    run = running.find(id_)
    return "" if run is None or run.begun_us is None else f", and {run_words(run, times.now_us())}"


def _name_begun(out: Output, begun: dict[MessageId, Cancelled], running: Running) -> None:
    for id_, how in list(begun.items())[:_NAMED]:
        out.warn(f"{id_} {_WORDS[how]}{_since(running, id_)}")
    if len(begun) > _NAMED:
        out.warn(f"... and {len(begun) - _NAMED:,} more")


def _cancel(out: Output, wheel: Wheel, ids: list[MessageId]) -> CancelledIds:
    schedules = _schedules_of(wheel, ids)
    found = wheel.cancel_many(ids)
    running = _running_of(out, wheel, _begun_of(found)) if out.json else Running()
    for id_ in ids:
        if id_ in found:
            if out.json:
                ended = {"schedule": schedules[id_].name} if id_ in schedules else {}
                ended |= _since_fields(running, id_)
                out.record({"id": str(id_), "cancelled": True, "outcome": found.outcome(id_).value, **ended})
            else:
                out.write(str(id_))
    out.flush()
    for id_, ended_one in schedules.items():
        if id_ in found:
            _tell_ended(out, ended_one)
    return found


def _since_fields(running: Running, id_: MessageId) -> dict[str, str]:
    """Return the JSON field of a message that had begun: since when it runs, if that is known."""
    run = running.find(id_)
    return {} if run is None or run.begun_us is None else {"running_since": iso(run.begun_us)}


def _schedules_of(wheel: Wheel, ids: list[MessageId]) -> dict[MessageId, StoredSchedule]:
    """Return those of these ids that are the next occurrence of a schedule. Cost: as `calls_among`."""
    found = {id_: schedule_of(message) for id_, message in calls_among(wheel, ids).items()}
    return {id_: schedule for id_, schedule in found.items() if schedule is not None}


def _tell_ended(out: Output, schedule: StoredSchedule) -> None:
    again = "; the program that declares it starts it again at its next start" if schedule.is_declared else ""
    out.warn(f"the schedule {schedule.name!r} has ended: this was its next occurrence{again}")


def _cancel_key(out: Output, key: str) -> None:
    with out.wheel() as wheel:
        before = wheel.get(key=key)
        schedule = None if before is None else schedule_of(before)
        found = wheel.cancel_many(keys=[key])
        running = _running_of(out, wheel, _begun_of(found))
        if not found:
            raise key_lost(wheel, key) or Failure(
                "not-found", f"no message holds the key {key!r}", hint="`filewheel inspect list` shows keys"
            )
    for id_, how in found.outcomes.items():
        if out.json:
            ended = ({} if schedule is None else {"schedule": schedule.name}) | _since_fields(running, id_)
            out.record({"id": str(id_), "key": key, "cancelled": True, "outcome": how.value, **ended})
        else:
            out.write(str(id_))
    out.flush()
    if schedule is not None:
        _tell_ended(out, schedule)
    _tell_begun(out, _begun_of(found), running)


def _cancel_all(out: Output, topic: str | None, dead: bool, yes: bool) -> None:
    which = f" with topic {topic}" if topic is not None else ""
    noun = "dead letter" if dead else "pending message"
    with out.wheel() as wheel:
        if not yes:
            number = sum(1 for _ in wheel.list(topic=topic, dead=dead))
            if number and not out.ask(f"Cancel {count(number, noun)}{which} in {out.dir}?", yes=False):
                raise Failure("failed", "nothing was cancelled")
        cancelled = 0
        begun: dict[MessageId, Cancelled] = {}
        ids = (message.id for message in wheel.list(topic=topic, dead=dead))
        while some := list(islice(ids, _CHUNK)):
            found = _cancel(out, wheel, some)
            cancelled += len(found)
            begun.update(_begun_of(found))
        running = _running_of(out, wheel, begun)
    stopped = f": {cancelled - len(begun):,} in time" if begun else ""
    out.note(f"cancelled {count(cancelled, noun)}{which}{stopped}")
    _tell_begun(out, begun, running)


def only_not_pending(wheel: Wheel, unknown: list[MessageId], asked: int) -> Failure | None:
    """Return the failure of a single requested id that is not pending: it names the id's end."""
    return not_pending(wheel, unknown[0]) if unknown and asked == 1 else None


def tell_unknown(out: Output, unknown: list[MessageId], asked: int, lost: Failure | None) -> None:
    """Name the ids that are not pending, and end with their exit code; `lost` is from `lost_of`."""
    hint = "`filewheel inspect list` shows what is pending"
    if lost is not None and asked == 1:
        raise lost
    for id_ in unknown[:_NAMED]:
        out.warn(f"{id_} is not pending")
    if len(unknown) > _NAMED:
        out.warn(f"... and {len(unknown) - _NAMED:,} more are not pending")
    if not unknown:
        return
    if lost is not None:
        raise lost
    if len(unknown) == asked:
        raise Failure("not-found", f"none of the {asked:,} is pending: they fired, were cancelled or moved", hint=hint)
    raise Failure("partly", f"{len(unknown):,} of {asked:,} ids are not pending", hint=hint)
