"""`dead`: the dead letters, listed, revived and dropped, by topic, age and error.

`revive` and `drop` work in portions, each of them a commit whose ids are printed when it is durable: an interrupted
command has done exactly what it printed. A dead letter that dies while the command runs is not touched: one snapshot
serves the question and the action.
Invariant: a dead letter that could not be revived stays, and stderr names it with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import click

from filewheel import FilewheelError, Filter, KeyHeld, Message, MessageId, NotFound, Snapshot, Wheel
from filewheel.tools.dump import iso

from .. import times
from ..failure import USAGE, Failure, check_damage
from ..input.lines import check_filters, chunks, read_ids
from ..input.params import DURATION, When, one_due
from ..lost import lost_of, not_pending
from ..show.output import Output
from ..show.text import away, count, full_time
from ..times import to_datetime
from ..verb import common, due_options, examples, verb
from .inspect_list import LIMIT_ON_TERMINAL, print_lines, print_table

F = TypeVar("F", bound=Callable[..., Any])

_AT_ONCE = 1000
_NAMED = 20


@dataclass(frozen=True)
class Which:
    """The options that choose dead letters."""

    topic: str | None = None
    older_us: int | None = None
    newer_us: int | None = None
    error: str | None = None
    limit: int | None = None

    def __bool__(self) -> bool:
        return self != Which()

    def find(self, snapshot: Snapshot, now_us: int) -> Iterator[Message]:
        """Yield the dead letters that fit; without `--older` also those of a clock that was ahead."""
        after = None if self.newer_us is None else to_datetime(max(0, now_us - self.newer_us))
        before = None if self.older_us is None else to_datetime(max(0, now_us - self.older_us))
        which = Filter.of(after=after, before=before, topic=self.topic, error=self.error, dead=True)
        return islice(snapshot.messages(which), self.limit)


def which_options(limit: str, least: int = 1) -> Callable[[F], F]:
    """Add the options that choose dead letters."""
    options = [
        click.option("--topic", metavar="GLOB", help="Only this topic: a name, or a pattern with * and ?."),
        click.option("--older", "older_us", type=DURATION, metavar="DUR", help="Only what died longer ago: 7d, 12h."),
        click.option("--newer", "newer_us", type=DURATION, metavar="DUR", help="Only what died less long ago."),
        click.option("--error", metavar="TEXT", help="Only where the reason contains this text, in any case."),
        click.option("--limit", type=click.IntRange(least), metavar="N", help=limit),
    ]

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


@click.group(
    "dead",
    invoke_without_command=True,
    subcommand_metavar="list | revive | drop ...",
    epilog=examples(
        """
        $ filewheel dead list --topic 'mail*' --error 'no route'
        $ filewheel dead revive --error 'no route' --newer 1d --yes
        $ filewheel dead drop --older 30d --yes
        """
    ),
)
@common()
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, revive and drop dead letters.

    A message becomes one when its last try has failed, or when it was too late. It keeps its reason and its last tries,
    and waits until it is revived or dropped. `filewheel inspect ID` shows one whole. `run` and `work` drop old ones by
    themselves with --keep-dead.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE)


@verb(
    "list",
    """
    $ filewheel dead list
    $ filewheel dead list --older 7d --topic 'mail*'
    $ filewheel dead list --error timeout --ids
    """,
)
@which_options("At most so many, the oldest first; 0 is all.  [default: 20 on a terminal]", least=0)
@click.option("--ids", "only_ids", is_flag=True, help="Only the ids, one a line, for `revive -` and `drop -`.")
def list_(out: Output, limit: int | None, only_ids: bool, **which: Any) -> None:
    """List dead letters, by the time of their death.

    If a file is damaged, the list has the readable ones, and the exit code is 12.
    """
    now_us = times.now_us()
    chosen = Which(**which)
    if limit is None:
        limit = LIMIT_ON_TERMINAL if out.stdout_is_terminal else 0
    table = not (out.wants_json or only_ids)
    with out.wheel() as wheel, wheel.snapshot() as snapshot:
        found = chosen.find(snapshot, now_us)
        some = islice(found, limit or None)
        shown = print_table(out, some, True, now_us) if table else print_lines(out, some, only_ids)
        if next(found, None) is not None:
            out.note(f"{shown:,} shown, there are more: --limit 0 shows all")
        elif not shown and table:
            out.note("no dead letters that fit" if chosen else "no dead letters")
        places = len(snapshot.problems())
    check_damage(places)


@verb(
    "revive",
    """
    $ filewheel dead revive --topic mail --yes
    $ filewheel dead revive --error 'no route' --limit 10 --in 5m --yes
    $ filewheel dead list --error timeout --ids | filewheel dead revive -
    """,
)
@which_options("At most so many, the oldest first.")
@due_options
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only print the ids.")
@click.argument("ids", nargs=-1, metavar="[ID... | -]")
def revive(
    out: Output,
    in_us: int | None,
    at: When | None,
    everything: bool,
    yes: bool,
    dry_run: bool,
    ids: tuple[str, ...],
    **which: Any,
) -> None:
    """Move dead letters back among the pending messages, due now, or --in or --at a time.

    Each starts again with its first try, under a new id, which is printed. `-` reads ids from stdin. Without ids it
    asks first, or needs --yes. One whose unique key another message has now stays dead, and is named. --dry-run prints
    the ids of the dead letters that fit, and changes nothing.

    \b
    Exit codes:
      3  some were not revived
      4  none of the ids is a dead letter
      5  another message has the key of the only one
    """
    now_us = times.now_us()
    given = one_due(in_us, at, now_us)
    due_us = now_us if given is None else given

    def act(wheel: Wheel, some: list[MessageId]) -> dict[MessageId, FilewheelError]:
        moved, failed = wheel.revive(some, at=to_datetime(due_us))
        for old, new in moved.items():
            if out.json:
                due = {"due": iso(due_us), "due_us": due_us}
                out.record({"id": str(new), "old": str(old), "new": str(new), **due})
            else:
                out.write(str(new))
        return failed

    _change(out, "revive", "revived", _Chosen(ids, Which(**which), everything, yes, dry_run, now_us), act)
    if at is not None and at.is_local:
        out.note(f"due {full_time(due_us)}, {away(due_us - now_us)}")


@verb(
    "drop",
    """
    $ filewheel dead drop --older 30d --yes
    $ filewheel dead drop --topic trial --all --yes
    $ filewheel dead list --error timeout --ids | filewheel dead drop -
    """,
)
@which_options("At most so many, the oldest first.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only print the ids.")
@click.argument("ids", nargs=-1, metavar="[ID... | -]")
def drop(out: Output, everything: bool, yes: bool, dry_run: bool, ids: tuple[str, ...], **which: Any) -> None:
    """Remove dead letters for good, and print their ids.

    `-` reads ids from stdin. Without ids it asks first, or needs --yes. Exit code 3 when some of the ids were no dead
    letters any more, 4 when none was.
    """

    def act(wheel: Wheel, some: list[MessageId]) -> dict[MessageId, FilewheelError]:
        found = wheel.cancel_many(some)
        for id_ in some:
            if id_ in found:
                if out.json:
                    out.record({"id": str(id_), "dropped": True})
                else:
                    out.write(str(id_))
        return {id_: NotFound(f"no dead letter {id_} is there any more") for id_ in some if id_ not in found}

    _change(out, "drop", "dropped", _Chosen(ids, Which(**which), everything, yes, dry_run, times.now_us()), act)


@dataclass(frozen=True)
class _Chosen:
    """What a command is to change."""

    words: tuple[str, ...]
    which: Which
    everything: bool
    yes: bool
    dry_run: bool
    now_us: int


def _change(
    out: Output, verb: str, done: str, chosen: _Chosen, act: Callable[[Wheel, list[MessageId]], dict[Any, Any]]
) -> None:
    """Act on the chosen dead letters in portions; name those that failed, and end with their exit code."""
    if bool(chosen.words) + (bool(chosen.which) or chosen.everything) != 1:
        raise click.UsageError(
            "which? Give ids, `-` to read them from stdin, or --topic, --older, --newer, --error, --all"
        )
    check_filters(topic=chosen.which.topic, error=chosen.which.error)
    failed: dict[MessageId, FilewheelError] = {}
    tried = 0
    if chosen.dry_run:
        act = partial(_print, out)
    with out.wheel() as wheel:
        for some in _portions(out, verb, wheel, chosen):
            dead = [id_ for id_ in some if id_.is_dead]
            failed.update({id_: NotFound("it is no dead letter's id") for id_ in some if not id_.is_dead})
            failed.update(act(wheel, dead) if dead else {})
            out.flush()
            tried += len(some)
        lost = lost_of(wheel, list(failed), tried) if failed and chosen.words else None
        if lost is None and tried == len(failed) == 1 and not (only := next(iter(failed))).is_dead:
            lost = _no_dead_letter(wheel, only)
    letters = count(tried - len(failed), "dead letter")
    out.note(f"{letters} would be {done}" if chosen.dry_run else f"{done} {letters}")
    _end(out, done, tried, failed, lost)


def _print(out: Output, wheel: Wheel, some: list[MessageId]) -> dict[MessageId, FilewheelError]:
    """Print the ids that are dead letters, in place of an act."""
    gone: dict[MessageId, FilewheelError] = {}
    for id_ in some:
        if wheel.get(id_) is None:
            gone[id_] = NotFound(f"no dead letter {id_} is there any more")
        elif out.json:
            out.record({"id": str(id_)})
        else:
            out.write(str(id_))
    return gone


def _portions(out: Output, verb: str, wheel: Wheel, chosen: _Chosen) -> Iterator[list[MessageId]]:
    """Yield the ids to act on; ask before those that the options choose."""
    if chosen.words:
        yield from chunks(read_ids(chosen.words), _AT_ONCE)
        return
    which = chosen.which
    with wheel.snapshot() as snapshot:  # one for the question and the action: the same dead letters
        if not (chosen.yes or chosen.dry_run):
            number = sum(1 for _ in which.find(snapshot, chosen.now_us))
            fit = " that fit" if which else ""
            if number and not out.ask(f"{verb.title()} {count(number, 'dead letter')}{fit} in {out.dir}?", yes=False):
                raise Failure("failed", f"nothing was {verb}{'d' if verb == 'revive' else 'ped'}")
        found = (message.id for message in which.find(snapshot, chosen.now_us))
        while some := list(islice(found, _AT_ONCE)):
            yield some


def _no_dead_letter(wheel: Wheel, id_: MessageId) -> Failure:
    """Return the failure of an id that no dead letter has: the message is pending, or has another id, or has ended."""
    if wheel.get(id_) is None:
        return not_pending(wheel, id_)
    return Failure("not-found", f"{id_} is pending, and no dead letter", hint=f"`filewheel inspect {id_}` shows it")


def _end(out: Output, done: str, tried: int, failed: dict[MessageId, FilewheelError], lost: Failure | None) -> None:
    if tried == len(failed) == 1:
        ((id_, exc),) = failed.items()
        if isinstance(exc, KeyHeld):
            raise exc
        raise lost or Failure(
            "not-found", f"{id_} is no dead letter any more: it was revived or dropped", hint="`filewheel dead list`"
        )
    for id_, exc in list(failed.items())[:_NAMED]:
        out.warn(f"{id_}: {exc.what}")
    if len(failed) > _NAMED:
        out.warn(f"... and {len(failed) - _NAMED:,} more")
    if lost is not None:
        raise lost
    if failed:
        none = len(failed) == tried and not any(isinstance(exc, KeyHeld) for exc in failed.values())
        what = f"{len(failed):,} of {tried:,} dead letters were not {done}"
        raise Failure("not-found" if none else "partly", what, hint="`filewheel dead list`")


command.add_command(list_)
command.add_command(revive)
command.add_command(drop)
