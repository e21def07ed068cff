"""`replicate`: bring a wheel's backups in step once, or as a service until a signal."""

from __future__ import annotations

import logging
from collections import Counter

import click

from filewheel import LinkReport, Replicator

from ..failure import INTERRUPTED, Failure
from ..firing import leave_at_once
from ..input.params import DURATION
from ..notify import Service
from ..show.following import Teller, Watch
from ..show.logs import log_lines
from ..show.members import CopyProgress, report_fields, roster_of, work_text
from ..show.output import Column, Output
from ..show.text import count
from ..signals import Abort, Quit, Stop, interruptible
from ..times import US_PER_S
from ..verb import verb


@verb(
    "replicate",
    """
    $ filewheel backup add /mnt/disk2/jobs.wheel && filewheel replicate --once
    $ filewheel replicate
    """,
)
@click.option("--once", is_flag=True, help="Bring every backup in step, then exit.")
@click.option(
    "--interval", type=DURATION, default="20ms", show_default=True, metavar="DUR",
    help="How long to wait for more when nothing is new.",
)  # fmt: skip
@click.option(
    "--summary", type=DURATION, default="10s", show_default=True, metavar="DUR",
    help="Piped: how often to print how far all backups are.",
)  # fmt: skip
def command(out: Output, once: bool, interval: int, summary: int) -> None:
    """Keep the backups of a wheel in step, as long as it runs.

    It copies the messages that a backup lacks, follows the primary's journals, and removes from the backups what has
    fired. One runs for each set of wheels, on the primary's machine. On stderr it has a line for each change: a backup
    that is brought up to date, followed, unreachable. Piped, stdout has a JSON line for each change, and a summary
    every 10 seconds.

    SIGTERM and Ctrl-C end it with 0; started again it goes on where it was. --once exits with 3 when a backup could not
    be brought in step.

    Under systemd it reports when it replicates (Type=notify), and signs of life (WatchdogSec=).
    """
    if roster_of(out) is None:
        raise Failure("usage", f"{out.dir} has no backups", hint="`filewheel backup add DIR`")
    if once:
        _once(out, interval)
    else:
        with log_lines(out, logging.WARNING if out.quiet else logging.INFO):
            _serve(out, interval, summary)


def _serve(out: Output, interval_us: int, summary_us: int) -> None:
    teller = Teller(out)
    with Service() as service, Stop() as stop:
        try:
            with (
                Replicator(out.dir, interval_s=interval_us / US_PER_S, on_change=teller.tell) as replicator,
                out.progress("replicating") as progress,
                Watch(out, teller, progress, summary_us / US_PER_S),
            ):
                service.watch(replicator.stalled_s, lambda: (True, _status(replicator)))
                teller.on_error = replicator.stop
                stop.wakes(replicator.stop)
                replicator.run()
            if teller.error is not None:
                raise teller.error
        except Quit:
            return
        except Abort:
            leave_at_once(INTERRUPTED)


def _status(replicator: Replicator) -> str:
    """Return what is done now, for people."""
    states = Counter(report.state for report in replicator.status())
    return "replicating: " + (", ".join(f"{number} {state}" for state, number in sorted(states.items())) or "starting")


def _once(out: Output, interval_us: int) -> None:
    with (
        interruptible(),
        Replicator(out.dir, interval_s=interval_us / US_PER_S) as replicator,
        out.progress("replicating") as progress,
    ):
        reports = replicator.once(CopyProgress(progress))
    _print(out, reports)
    left = [report for report in reports if report.error or report.state != "following"]
    if left:
        told = "; ".join(f"{r.path} {r.state}" + (f" ({r.error})" if r.error else "") for r in left)
        raise Failure(
            "partly", f"{count(len(left), 'backup')} of {len(reports)} not in step: {told}",
            hint="`filewheel backup list` has the command for each",
        )  # fmt: skip
    out.note(f"{count(len(reports), 'backup')} in step")


def _print(out: Output, reports: list[LinkReport]) -> None:
    if out.wants_json:
        for report in reports:
            out.record(report_fields(report))
    elif reports:
        rows = [(r.path, r.mode, r.state, work_text(r)) for r in reports]
        out.table([Column("BACKUP", 60), Column("MODE"), Column("STATE"), Column("DONE", 200)], rows)
    out.flush()
