"""`pause`: keep messages from firing, and what fires from starting more, until `resume`."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from typing import Literal, NamedTuple

import click

from filewheel import FilewheelError, Pause, Wheel

from .. import times
from ..failure import Failure
from ..input.params import DURATION
from ..show.output import Output
from ..show.pauses import pause_fields, pause_text, resume_command
from ..show.text import safe
from ..times import US_PER_S
from ..verb import verb

_LOOK_S = 0.05
_EXIT_S = 2.0
"""How long the process of a drained keeper is waited for: a program may live on when its keeper is closed."""

Drain = Literal["drained", "late", "undone"]


class _KeeperProcess(NamedTuple):
    """The keeper's process, if it can be seen from here."""

    pid: int
    fd: int
    """Readable when it has exited, and never for a later process of the same number."""


@verb(
    "pause",
    """
    $ filewheel pause --topic 'mail*' --why 'the mail server is down'
    $ filewheel pause --schedule nightly
    $ filewheel pause --drain --timeout 1m --why 'upgrade'
    $ filewheel pause list
    $ filewheel resume --all
    """,
)
@click.option("--topic", metavar="GLOB", help="Only this topic: a name, or a pattern with * and ?.")
@click.option("--schedule", metavar="NAME", help="Only this schedule.")
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who wonder why nothing fires.")
@click.option("--drain", is_flag=True, help="Let what fires finish and exit; wait until it has.")
@click.option("--timeout", type=DURATION, metavar="DUR", help="With --drain: how long to wait at most.")
@click.argument("verb_", metavar="[list]", required=False, type=click.Choice(["list"]))
def command(
    out: Output, topic: str | None, schedule: str | None, why: str, drain: bool, timeout: int | None, verb_: str | None
) -> None:
    """Pause the wheel, a topic or a schedule, until `filewheel resume`.

    Once this has returned, nothing of it begins, in any process, and a power cut does not undo it. What runs goes on.
    Paused messages keep their due: they fire after the resume, or follow their lateness policy. They can be cancelled,
    and more can be enqueued. `pause list` shows the pauses. Without options it asks on a terminal, since all stops.

    With --drain, the process that fires finishes what runs and exits with 0, and its standbys exit too. A `run` that is
    started later becomes the keeper and fires nothing until the resume. A resume while this waits undoes the drain:
    what has not exited fires on.

    \b
    Exit codes:
      2  too many pauses, or the reason is too long
     11  with --timeout: a process still fires; the wheel stays paused
     12  paused.json is damaged
     14  this wheel is a backup: pause the primary
     17  with --drain: it was resumed before all had ended
    """
    if verb_ is not None:
        if (topic, schedule, why, drain, timeout) != (None, None, "", False, None):
            raise click.UsageError("`pause list` takes no options of a pause")
        _list(out)
        return
    if topic is not None and schedule is not None:
        raise click.UsageError("give --topic or --schedule, not both")
    if drain and (topic is not None or schedule is not None):
        raise click.UsageError("--drain is for the whole wheel")
    if timeout is not None and not drain:
        raise click.UsageError("--timeout goes with --drain")
    if (topic, schedule, why, drain) == (None, None, "", False) and not out.ask(
        f"Pause all of {out.dir}?", yes=not out.can_ask
    ):
        raise Failure("failed", "nothing was paused")
    with out.wheel() as wheel, contextlib.ExitStack() as stack:
        keeper = stack.enter_context(_keeper(wheel)) if drain else None
        made = wheel.pause(topic=topic, schedule=schedule, why=why, drain=drain)
        if schedule is not None and wheel.get(key=f"filewheel.every:{schedule}") is None:
            out.warn(f"no schedule {schedule!r} waits now; the pause holds one that is started later")
        ended = _wait(wheel, made, keeper, timeout) if drain else None
        if out.wants_json:
            out.record(pause_fields(made) | ({} if ended is None else {"drained": ended == "drained"}))
        elif ended != "undone":
            out.write(f"{out.style('paused'.ljust(13), bold=True)}{safe(pause_text(made, times.now_us()))}")
        out.flush()
        if ended == "undone":
            raise Failure(
                "undone", "the wheel was resumed before what fires had ended: it is not drained, and not paused",
                hint="processes that have not exited fire on; `filewheel stats` names the keeper",
            )  # fmt: skip
        if ended == "late":
            raise Failure(
                "locked", "the time is up, and a process still fires what it had begun; the wheel stays paused",
                hint="`filewheel stats` names it; it exits when that has ended",
            )  # fmt: skip
        if keeper is not None and not _has_exited(keeper, 0):
            out.note(f"process {keeper.pid} fires nothing more, and has not exited: it may be a program that does more")
    out.note(f"{resume_command(made)} ends it")


def _list(out: Output) -> None:
    """Print the pauses."""
    with out.wheel() as wheel:
        pauses = wheel.paused()
    for pause in pauses:
        if out.wants_json:
            out.record(pause_fields(pause))
        else:
            out.write(safe(pause_text(pause, times.now_us())))
    if not pauses and not out.wants_json:
        out.note("nothing is paused")


@contextlib.contextmanager
def _keeper(wheel: Wheel) -> Iterator[_KeeperProcess | None]:
    """Yield the process of the keeper; None without one, and if it is in another pid namespace, or this one."""
    with contextlib.ExitStack() as stack:
        found = None
        with contextlib.suppress(FilewheelError, OSError):  # it is waited for as a courtesy
            running = wheel.running()
            pid = running.keeper_pid
            if pid is not None and not running.keeper_namespace and pid != os.getpid():
                fd = os.pidfd_open(pid)
                stack.callback(os.close, fd)
                found = _KeeperProcess(pid, fd)
        yield found


def _wait(wheel: Wheel, made: Pause, keeper: _KeeperProcess | None, timeout_us: int | None) -> Drain:
    """Wait until no process fires that fired before the drain, and a moment for the keeper's process to exit."""
    end = None if timeout_us is None else time.monotonic() + timeout_us / US_PER_S
    while True:
        is_drained = wheel.is_drained()
        now = wheel.paused().wheel
        if now is None or now.since_us != made.since_us:
            return "undone"
        if is_drained:
            break
        if end is not None and time.monotonic() >= end:
            return "late"
        time.sleep(_LOOK_S)
    if keeper is not None:
        _has_exited(keeper, _EXIT_S if end is None else min(_EXIT_S, max(0.0, end - time.monotonic())))
    return "drained"


def _has_exited(process: _KeeperProcess, within_s: float) -> bool:
    poll = select.poll()
    poll.register(process.fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
