"""`init`: make a wheel. Its settings are written once and never change."""

from __future__ import annotations

import os

import click

from filewheel import Sync, Wheel

from ..input.params import SIZE, SYNC
from ..show.output import Output
from ..show.text import safe, size
from ..verb import verb


@verb(
    "init",
    """
    $ filewheel init
    $ filewheel -C jobs.wheel init --sync 100ms --payload-max 64KiB
    """,
)
@click.option(
    "--slots", type=int, default=900, show_default=True, metavar="N",
    help="Seconds in a lap: near seconds have a file each, a far lap has one.",
)  # fmt: skip
@click.option(
    "--sync", type=SYNC, default="always", show_default=True, metavar="always|never|DUR",
    help="When an enqueue is flushed: before it returns, when the system likes, or every DUR.",
)  # fmt: skip
@click.option(
    "--payload-max", type=SIZE, default="1MiB", metavar="SIZE",
    help="The largest payload: 64KiB, 1MiB.  [default: 1MiB]",
)  # fmt: skip
def command(out: Output, slots: int, sync: Sync, payload_max: int) -> None:
    """Make a wheel: the directory -C names, or ./wheel.

    With `--sync always`, enqueued messages survive a power cut; `enqueue --sync` overrides this for one call.
    """
    with Wheel.create(out.dir, slots=slots, sync=sync, payload_bytes_max=payload_max, force=out.force) as wheel:
        path = os.path.abspath(wheel.path)
    if out.wants_json:
        out.record({"path": path, "slots": slots, "sync": sync, "payload_bytes_max": payload_max})
    else:
        out.write(f"made {safe(path)}: a lap of {slots} s, sync {sync}, payloads up to {size(payload_max)}")
