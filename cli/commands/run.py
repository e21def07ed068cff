"""`run`: become the wheel's keeper, and fire due messages, to stdout or to a command."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from functools import partial

import click

from filewheel import Keeper, Locked, Retry, Wheel

from ..child import Commands
from ..failure import INTERRUPTED, Failure
from ..firing import CommandRunner, GoOn, UntilEmpty, leave_at_once, print_due
from ..input.params import BACKOFF, DURATION
from ..notify import Service
from ..show.calls import is_work, pending_call, refused
from ..show.output import Output
from ..show.text import count
from ..signals import Abort, Quit, Stop
from ..stderr import Tails
from ..times import US_PER_S
from ..verb import verb

_PATIENCE_S = 0.05


@verb(
    "run",
    """
    $ filewheel run --once
    $ filewheel run --until-empty > fired.jsonl
    $ filewheel run --jobs 4 --timeout 30s --until-empty -- sh -c 'cat >> fired'
    $ filewheel run --first 'urgent*' -- ./remind.sh
    """,
)
@click.option(
    "--jobs", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N", help="Commands at once."
)
@click.option(
    "--retries", type=click.IntRange(min=0), default=5, show_default=True, metavar="N",
    help="Tries after the first, before a message becomes a dead letter.",
)  # fmt: skip
@click.option(
    "--backoff", type=BACKOFF, default="1s..5m", show_default=True, metavar="DUR..DUR",
    help="Wait before another try: the first, doubling up to the last.",
)  # fmt: skip
@click.option("--timeout", type=DURATION, metavar="DUR", help="Kill a command that takes longer; it has failed then.")
@click.option(
    "--no-stderr-tail", is_flag=True,
    help="Give a command our own stderr, and store nothing of it. Else the last 4 KiB are kept with each failed try.",
)  # fmt: skip
@click.option(
    "--keep-dead", type=DURATION, metavar="DUR",
    help="Drop dead letters that are older: 30d, say.  [default: they are kept]",
)  # fmt: skip
@click.option(
    "--first", multiple=True, metavar="GLOB",
    help="Fire due messages of these topics before all others. Repeated: those of the first option before the next's.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Fire what is due now, then exit.")
@click.option("--until-empty", is_flag=True, help="Exit when nothing is pending but schedules without an end.")
@click.option(
    "--no-wait", is_flag=True, help="Exit with 11 when another process is the keeper, instead of standing by."
)
@click.option(
    "--on-jump", type=click.Choice(["fire", "hold"]), default="fire", show_default=True,
    help="When the clock jumps ahead by more than an hour: fire what that makes due, or go by the time that passed.",
)  # fmt: skip
@click.option(
    "--history", type=click.IntRange(min=0), default=10_000, show_default=True, metavar="N",
    help="How many ends to keep for `filewheel history`; 0 for none.",
)  # fmt: skip
@click.option("--raw", is_flag=True, help="Fire calls of handlers too, as plain messages.")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND [ARG]...]")
def command(
    out: Output,
    jobs: int,
    retries: int,
    backoff: tuple[int, int],
    timeout: int | None,
    no_stderr_tail: bool,
    keep_dead: int | None,
    first: tuple[str, ...],
    once: bool,
    until_empty: bool,
    no_wait: bool,
    on_jump: str,
    history: int,
    raw: bool,
    argv: tuple[str, ...],
) -> None:
    """Fire messages when they are due.

    Each fires at least once, and none early. Without COMMAND each is written to stdout as a JSON line, and
    acknowledged once stdout is flushed. With COMMAND it is run for each: the body on stdin, the rest in FILEWHEEL_ID,
    _DUE, _DUE_US, _LATE_MS, _TOPIC, _ATTEMPT (0 at first), _WHEEL, and headers as FILEWHEEL_H_<NAME>. Exit code 0
    acknowledges; any other (75, say) is a failure, tried again later and at last kept as a dead letter: `dead list`
    lists those, `inspect ID` shows what each try wrote to stderr, `dead revive` revives them.

    A schedule goes on: its next occurrence is written with the acknowledgement. A failed one is retried before that.
    On a wheel where calls of handlers wait, `run` fires nothing and exits with 2: `filewheel work` fires those. If a
    call arrives later, `run` ends when it comes due, and the call stays. Without COMMAND the same holds for schedules,
    whose bodies are work to be done. With --raw calls are fired as plain messages: acknowledged without being called,
    and their schedules end; the bodies of other schedules are written, and those go on.

    A wheel has one keeper. A second `run` waits as its standby and takes over the moment the first is gone. SIGTERM,
    Ctrl-C and `pause --drain` finish what is in hand and exit with 0; a second signal aborts. With --once or
    --until-empty, exit code 3 says that some messages failed. --once leaves paused messages, --until-empty waits.
    --retries, --backoff and --timeout are for messages that were enqueued without their own.
    Under systemd it reports when it fires or stands by (Type=notify), and signs of life (WatchdogSec=).
    """
    _check_program(argv, for_a_command=jobs > 1 or timeout is not None)
    if not raw:
        _refuse_calls(out, has_command=bool(argv))
    with Service() as service, Stop() as stop:
        try:
            keeper = _open(out, no_wait, on_jump, history, keep_dead, service)
            service.beat()
            with contextlib.closing(keeper), _go_on(out, once, until_empty) as go_on:
                if not argv:
                    stop.wakes(keeper.wake)
                    service.watch(keeper.stalled_s, lambda: (True, "firing"))
                    print_due(keeper, out, stop, go_on, service.beat, raw=raw, first=first)
                    return
                retry = Retry(retries, delay_s=backoff[0] / US_PER_S, delay_max_s=backoff[1] / US_PER_S)
                with _tails(wanted=not no_stderr_tail) as tails:
                    commands = Commands(argv, os.path.abspath(out.dir), timeout, tails=tails)
                    made = partial(CommandRunner, keeper, out, stop, commands, retry, jobs)
                    _run_commands(made(raw=raw, first=first, beat=service.beat), stop, go_on, once, service)
        except Quit:
            return
        except Abort:
            out.warn("aborted; messages in hand fire again")
            leave_at_once(INTERRUPTED)


def _check_program(argv: tuple[str, ...], *, for_a_command: bool) -> None:
    """Raise unless the command can be started; without one, options that are for a command are wrong."""
    if not argv and for_a_command:
        raise click.UsageError("--jobs and --timeout go with a COMMAND")
    if argv and shutil.which(argv[0]) is None:
        there = os.path.isfile(argv[0])
        raise click.UsageError(
            f"{argv[0]!r} is not executable" if there else f"there is no program {argv[0]!r} on the PATH"
        )


def _refuse_calls(out: Output, *, has_command: bool) -> None:
    """Raise before this becomes the keeper: as a standby it would take over from the program with the handlers."""
    with Wheel(out.dir, force=out.force) as wheel:
        call = pending_call(wheel) if has_command else pending_call(wheel, is_work)
    if call is not None:
        raise refused(call)


def _open(out: Output, no_wait: bool, on_jump: str, history: int, keep_dead: int | None, service: Service) -> Keeper:
    """Become the keeper; print a note if it must wait."""

    def make(*, wait: bool) -> Keeper:
        keep_dead_s = None if keep_dead is None else keep_dead / US_PER_S
        return Keeper(
            out.dir,
            wait=wait,
            on_jump=on_jump,
            keep_dead_s=keep_dead_s,
            history=history,
            on_dead_dropped=lambda topics: out.note(f"dropped {count(len(topics), 'old dead letter')}"),
            force=out.force,
        )

    for patience in (True, True, True, False):
        try:
            return make(wait=False)
        except Locked as exc:
            # The holder may be a producer that tidies for a moment.
            if patience:
                time.sleep(_PATIENCE_S)
                continue
            if no_wait:
                raise
            who = f"process {exc.pid}" if exc.pid else "another process"
            out.note(f"{who} is the keeper; standing by until it ends")
            service.report("standing by")
    keeper = make(wait=True)
    out.note(f"process {os.getpid()} is the keeper now")
    return keeper


@contextlib.contextmanager
def _go_on(out: Output, once: bool, until_empty: bool) -> Iterator[GoOn]:
    """Yield the function that decides whether to wait for more messages."""
    if once:
        yield lambda: False
    elif until_empty:
        with Wheel(out.dir, force=out.force) as wheel:
            yield UntilEmpty(wheel)
    else:
        yield lambda: True


@contextlib.contextmanager
def _tails(*, wanted: bool) -> Iterator[Tails | None]:
    """Yield the reader of the commands' stderr, if it is wanted."""
    if not wanted:
        yield None
        return
    with contextlib.closing(Tails()) as tails:
        yield tails


def _run_commands(runner: CommandRunner, stop: Stop, go_on: GoOn, once: bool, service: Service) -> None:
    service.watch(runner.stalled_s, lambda: (True, runner.status()))
    try:
        stop.wakes(runner.wake)
        runner.run(go_on)
    except Abort:
        runner.commands.abort()
        raise
    done, retried, buried, waits = (runner.counts[key] for key in ("done", "retried", "buried", "waits"))
    if stop.asked or runner.is_drained:
        return
    if buried:
        raise Failure(
            "partly", f"{done:,} done, {count(buried, 'dead letter')}",
            hint="`filewheel dead list` lists them",
        )  # fmt: skip
    if waits or (retried and once):
        raise Failure("partly", f"{done:,} done, {retried + waits:,} failed and to be tried again")


command.allow_interspersed_args = False  # options after the command's name belong to the command
