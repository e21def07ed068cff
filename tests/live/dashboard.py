"""The dashboard of a wheel, made from the metrics that the code makes: on disk, of backups, of a scheduler.

    python -m tests.live.dashboard > docs/examples/grafana.json

Invariant: each metric has exactly one panel.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from filewheel import Member, MemberStatus, Roster, Scheduler, SetStatus, Stats
from filewheel.live.backups import set_gauges
from filewheel.lookup.overdue import Overdue
from filewheel.message import to_datetime
from filewheel.metrics import disk_gauges, gauge, together
from filewheel.metrics.metrics import EVENTS, PREFIX, TIMES, Metrics
from filewheel.metrics.prometheus import COUNTER, HISTOGRAM, Family
from filewheel.metrics.published import Published
from tests.grafana import Panel, as_json, board, unit_of

SELECT = 'wheel=~"$wheel"'
_NOW_US = 1_800_000_000_000_000
_OF_A_BACKUP = "backup_"


def groups() -> dict[str, list[Family]]:
    """Return all families of metrics, by the row of the dashboard."""
    member = Member("/mnt/b.wheel", "b" * 32, "ship", "current")
    roster = Roster("5" * 32, 1, "primary", "/a.wheel", "a" * 32, (member,))
    status = SetStatus(roster, "/a.wheel", [MemberStatus(member, True, 0, 0, 0.0, True)])
    on_disk = disk_gauges(Stats(next_due=to_datetime(_NOW_US)), Overdue(_NOW_US), _NOW_US)
    metrics = Metrics()
    metrics.reserve(["mail"])
    for event in EVENTS:
        metrics.count(event, "mail")
    for what in TIMES:
        metrics.observe(what, "mail", 1)
    # As a scheduler publishes them, with its gauges.
    signed = [gauge(f"{PREFIX}published_{name}", "", 1) for name in ("timestamp_seconds", "pid")]
    published = Published([*signed, *metrics.families(), *_of_a_scheduler()], _NOW_US, 1)
    apart = [f for f in together([], published, _NOW_US, 1) if not f.name.endswith("published_pid")]
    timed = [f for f in apart if f.kind == HISTOGRAM]
    return {
        "The wheel": on_disk,
        "Handlers": [f for f in apart if f.kind == COUNTER],
        "Times": timed,
        "Backups": set_gauges(status),
        "The scheduler": [f for f in apart if f not in timed and f.kind != COUNTER],
    }


def _of_a_scheduler() -> list[Family]:
    """Return the gauges that a scheduler adds."""
    with tempfile.TemporaryDirectory() as where:
        scheduler = Scheduler(Path(where) / "jobs.wheel")
        names = scheduler.metrics.gauge_names()
        scheduler.stop()
    return [gauge(PREFIX + name, help_, 0) for name, help_ in names.items()]


def panel(family: Family) -> Panel:
    """Return the panel of a family: a rate, a quantile, or the value of each wheel."""
    name = f"{family.name}{{{SELECT}}}"
    title = family.name.removeprefix(PREFIX).removesuffix("_total").replace("_", " ")
    unit = unit_of(family.name, is_counter=family.kind == COUNTER)
    labels = {label for sample in family.samples for label, _ in sample.labels} - {"le"}
    by = "handler" if "handler" in labels else "state" if "state" in labels else ""
    if family.kind == COUNTER:
        return Panel(
            title, family.help, f"sum by ({by or 'wheel'}) (rate({name}[5m]))", f"{{{{{by or 'wheel'}}}}}", unit
        )
    if family.kind == HISTOGRAM:
        rate = f"rate({family.name}_bucket{{{SELECT}}}[5m])"
        within = f"{by}, " if by else ""
        expression = f"histogram_quantile(0.99, sum by ({within}le) ({rate}))"
        return Panel(f"{title}, p99", family.help, expression, f"{{{{{by}}}}}" if by else "p99", unit)
    if family.name.endswith(("due_seconds", "timestamp_seconds")):
        return Panel(f"{title}, from now", family.help, f"{name} - time()", "{{wheel}}", unit)
    if by == "state":
        return Panel(title, family.help, f"{name} == 1", "{{path}} {{state}}", unit)
    return Panel(title, family.help, name, "{{path}}" if "path" in labels else "{{wheel}}", unit)


def dashboard() -> dict[str, Any]:
    """Return the dashboard, as Grafana imports it."""
    panels = {title: [panel(family) for family in families] for title, families in groups().items()}
    return board(
        "filewheel", "filewheel: wheels and their schedulers", ("filewheel",), panels,
        label="wheel", values="label_values(filewheel_pending, wheel)",
    )  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(as_json(dashboard()))
