"""`work`: run a program's scheduler once, or until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import nullcontext

import click

from filewheel import AsyncScheduler, Scheduler
from filewheel.tools import die_with

from ..failure import Failure
from ..input.params import DURATION
from ..input.target import load_scheduler
from ..notify import Service
from ..reload import work_again_and_again
from ..show.logs import log_lines
from ..show.output import Output
from ..show.pauses import names
from ..show.text import count
from ..signals import interruptible, quiet_end
from ..times import US_PER_S
from ..verb import verb

log = logging.getLogger("filewheel.work")

_FAILURES = ("retried", "dead", "unknown")
_NAMES_SHOWN = 20
_STATES = {
    "firing": (True, "firing"),
    "standby": (True, "standing by"),
    "failing": (False, "cannot fire, and tries again: the log has the reason"),
}
"""What the service manager is told: whether it is ready, and the text."""


@verb(
    "work",
    """
    $ filewheel work app:scheduler --once
    $ filewheel work app:scheduler --threads 16 --processes 2 --stop 10s
    $ filewheel work app:scheduler --reload
    """,
    wheel=False,
)
@click.option("--threads", type=click.IntRange(1, 1024), metavar="N", help="Threads of the default pool.  [its own]")
@click.option("--processes", type=click.IntRange(1, 1024), metavar="N", help="Processes of the default pool, likewise.")
@click.option("--stop", type=DURATION, metavar="DUR", help="How long running calls have to end.  [30s, or its stop_s]")
@click.option("--reload", is_flag=True, help="For development: start again when a Python file below here changes.")
@click.option("--child-of", type=int, hidden=True)
@click.option(
    "--keep-dead", type=DURATION, metavar="DUR",
    help="Drop dead letters that are older: 30d, say.  [default: the scheduler's own]",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Call what is due now, one after another, then exit.")
@click.argument("target", metavar="MODULE:NAME")
def command(
    out: Output, threads: int | None, processes: int | None, stop: int | None, reload: bool, child_of: int | None,
    keep_dead: int | None, once: bool, target: str,
) -> None:  # fmt: skip
    """Run a program's scheduler: import it from MODULE, and call its handlers when their messages are due.

    NAME is a Scheduler or an AsyncScheduler. MODULE is looked for in the present directory first. The wheel is the
    scheduler's own, so -C means nothing here.

    One process fires; more of them stand by, and take over the moment it ends. SIGTERM and Ctrl-C let running calls end
    (for --stop, 30 seconds, or an AsyncScheduler's stop_s) and exit with 0, also while MODULE is imported; a second one
    cuts that short. Unfinished calls are offered again.

    It logs to stderr: a line when it starts, stands by, takes over and stops, and one for each failure; with -q only
    those. A program that configures logging itself decides how these lines look.

    Under systemd it reports when it fires or stands by (Type=notify), and signs of life (WatchdogSec=).

    With --reload a change of a Python file below the present directory lets running calls end, and starts the program
    again. A program that cannot be imported waits for the next change.

    --once is for cron and timers. It exits with 3 when a call failed or no handler has its name, and with 11
    when another process fires.
    Time-outs end coroutines only, and handlers for processes are called in this one.
    """
    if once and (threads, processes, stop, reload) != (None, None, None, False):
        raise click.UsageError("--once calls one after another: --threads, --processes, --stop, --reload mean nothing")
    stop_s = None if stop is None else stop / US_PER_S
    if reload:
        spans = {
            name: f"{us / US_PER_S:f}" for name, us in (("--stop", stop), ("--keep-dead", keep_dead)) if us is not None
        }
        counts = {"--threads": threads, "--processes": processes}
        argv = [word for name, value in (spans | counts).items() if value is not None for word in (name, str(value))]
        with log_lines(out, logging.WARNING if out.quiet else logging.INFO):
            sys.exit(work_again_and_again([*(["-q"] if out.quiet else []), "work", target, *argv], stop_s))
    if child_of is not None:
        die_with(child_of)
    with nullcontext() if once else quiet_end():  # an import may take long
        scheduler = load_scheduler(target)
        plain = scheduler.blocking if isinstance(scheduler, AsyncScheduler) else scheduler
        if threads is not None:
            plain.threads = threads
        if keep_dead is not None:
            plain.keep_dead_s = keep_dead / US_PER_S
        if processes is not None:
            plain.processes = processes
        with log_lines(out, logging.WARNING if once or out.quiet else logging.INFO):
            if once:
                _once(out, scheduler, plain)
            else:
                _work(scheduler, plain, target, stop_s)


def _work(scheduler: Scheduler | AsyncScheduler, plain: Scheduler, target: str, stop_s: float | None) -> None:
    names = [handler.name for handler in plain.handlers]
    shown = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
    log.info("process %d starts %s on %s: %s", os.getpid(), target, plain.path, shown or "no handlers")
    plain.on_event(lambda _: log.info("process %d is the keeper now, and fires", os.getpid()), ["took_over"])
    with Service() as service:
        service.watch(plain.stalled_s, lambda: _STATES.get(plain.state, (False, "")))
        if isinstance(scheduler, AsyncScheduler):
            asyncio.run(scheduler.run(stop_s=stop_s))
        elif stop_s is None:
            scheduler.run()
        else:
            scheduler.run(stop_s=stop_s)
    log.info("process %d has stopped", os.getpid())


def _once(out: Output, scheduler: Scheduler | AsyncScheduler, plain: Scheduler) -> None:
    with interruptible():
        try:
            settled = asyncio.run(scheduler.drain()) if isinstance(scheduler, AsyncScheduler) else scheduler.drain()
            due = plain.wheel.overdue()  # still: a rate limit delays these, and others are paused
            pauses = plain.wheel.paused()
        finally:
            plain.stop()
    counts = {kind: sum(plain.metrics.counts(kind).values()) for kind in (*_FAILURES, "deferred")}
    if out.json:  # only on request: a cron job should print nothing
        out.record({"settled": settled, **counts, "deferred": counts["deferred"] + due.count, "paused": due.paused})
    if due.paused:
        out.note(f"{count(due.paused, 'due message')} paused by: {names(pauses)}")
    failed = sum(counts[kind] for kind in _FAILURES)
    if failed:
        done = settled - sum(counts.values())
        unknown = f", {counts['unknown']:,} without a handler" if counts["unknown"] else ""
        raise Failure(
            "partly", f"{done:,} done, {counts['retried']:,} to be tried again, "
            f"{count(counts['dead'], 'dead letter')}{unknown}",
            hint="`filewheel dead list` lists those" if counts["dead"] else None,
        )  # fmt: skip
