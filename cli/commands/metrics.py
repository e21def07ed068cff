"""`metrics`: metrics for monitoring: the wheel on disk, its backups, the counters of a scheduler.

The scheduler publishes into the wheel, so no server and no port is needed. The counters of a dead process still count;
its gauges are not shown.
"""

from __future__ import annotations

import os
from typing import Any

from filewheel import FilewheelError
from filewheel.metrics import Published, disk_gauges, overdue_of, read_published, render, summary, together
from filewheel.tools.dump import iso

from .. import times
from ..show.gauges import of_wheel, set_gauges
from ..show.members import find_set, set_fields
from ..show.output import Output
from ..show.text import count
from ..times import US_PER_S
from ..verb import verb


@verb(
    "metrics",
    """
    $ filewheel metrics
    $ filewheel metrics > /tmp/new.prom && mv /tmp/new.prom /tmp/filewheel.prom
    $ filewheel metrics --json
    """,
)
def command(out: Output) -> None:
    """Show metrics in the text format of Prometheus: the wheel on disk, its backups, what its scheduler counted.

    Takes no lock; works with a scheduler running and with none. Only --json makes it JSON, also when piped. Of a
    damaged wheel the gauge filewheel_damaged counts the places, and the exit code is 0: the scrape itself succeeded.
    """
    with out.wheel() as wheel:
        stats = wheel.stats()
        now_us = times.now_us()
        on_disk = disk_gauges(stats, overdue_of(wheel, stats, now_us), now_us)
    published, found_set = _published(out), find_set(out)
    if out.json:
        fields: dict[str, Any] = {"wheel": os.path.abspath(out.dir), "gauges": summary(on_disk)["gauges"]}
        fields["set"] = None if found_set is None else set_fields(found_set)
        out.record(fields | {"published": _fields(published, now_us, stats.keeper_pid)})
    else:
        if found_set is not None:
            on_disk += set_gauges(found_set)
        families = together(on_disk, published, now_us, stats.keeper_pid)
        out.write(render(of_wheel(families, out.dir)).removesuffix("\n"))
    if stats.damaged:
        out.warn(f"{count(stats.damaged, 'place is', 'places are')} damaged; `filewheel verify` names each")


def _published(out: Output) -> Published | None:
    """Return a scheduler's published metrics; an unreadable file must not hide the other metrics."""
    directory = out.directory()
    try:
        return read_published(directory)
    except FilewheelError as exc:
        out.warn(f"no counters of a scheduler: {exc}")
        return None
    finally:
        directory.disk.release()


def _fields(published: Published | None, now_us: int, keeper_pid: int | None) -> dict[str, Any] | None:
    if published is None:
        return None
    return {
        "at": iso(published.at_us),
        "age_s": published.age_us(now_us) / US_PER_S,
        "pid": published.pid,
        "stale": published.is_stale(now_us, keeper_pid),
        **summary(published.current(now_us, keeper_pid)),
    }
