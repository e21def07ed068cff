"""`demo`: in under 20 seconds: enqueue from many processes, fire, crash, take over, and prove the result.

The two plays are in ../demo/.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from ..demo.lost_disk import lose_a_disk
from ..demo.lost_keeper import lose_a_keeper
from ..show.output import Output
from ..signals import interruptible
from ..verb import verb


@verb(
    "demo",
    """
    $ filewheel demo --speed 8
    $ filewheel demo --backups 2 --speed 8
    """,
    wheel=False,
)
@click.option("--speed", type=click.FloatRange(0.5, 8), default=1, metavar="X", help="So many times as fast.")
@click.option(
    "--backups", type=click.IntRange(0, 4), default=0, metavar="N",
    help="Lose a disk instead of a keeper: with a mirror, and from 2 on with shipped backups, too.",
)  # fmt: skip
@click.option("--keep", type=click.Path(), metavar="DIR", help="Keep the wheel and the records in this new directory.")
def command(out: Output, speed: float, backups: int, keep: str | None) -> None:
    """Show in 20 seconds that a crash loses no message.

    On a temporary wheel, ten producer processes enqueue some 200 messages as a shop has them: reminders, payment
    time-outs, webhook retries, ends of trials, cache expiries. A keeper process fires them, is killed with SIGKILL in
    the middle, and its standby takes over. Each keeper records what it fired outside the wheel; from those records the
    demo proves that every message fired, none early, and says how many fired twice and how late they were.

    With --backups a producer enqueues into a wheel that has backups, on directories that stand for other disks. In the
    middle the primary's directory is deleted; a backup is promoted, the rest fires there. Judged by the records of the
    producer and of both keepers: what was confirmed, what fired, lost or twice, and for how long nothing fired.
    """
    with _directory(keep) as where, interruptible():
        if backups:
            lose_a_disk(out, where, backups, speed)
        else:
            lose_a_keeper(out, where, speed)
    if keep is not None:
        wheel = where / ("disk-2/jobs.wheel" if backups else "demo.wheel")
        out.note(f"kept in {where}: `filewheel -C {wheel} inspect`")


@contextlib.contextmanager
def _directory(keep: str | None) -> Iterator[Path]:
    if keep is not None:
        os.mkdir(keep)
        yield Path(keep).resolve()
        return
    where = Path(tempfile.mkdtemp(prefix="filewheel-demo-"))
    try:
        yield where
    finally:
        shutil.rmtree(where, ignore_errors=True)
