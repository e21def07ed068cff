"""`stats`: the wheel in numbers, for people, for scripts, and for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from filewheel import Overdue, Stats
from filewheel.live.stats_fields import stats_fields as stats_fields
from filewheel.metrics import disk_gauges, overdue_of, render
from filewheel.timespec import at_us

from .. import times
from ..failure import check_damage
from ..show.calls import who_fires
from ..show.gauges import of_wheel, set_gauges
from ..show.members import find_set, is_primary, set_fields, set_line
from ..show.output import Column, Output
from ..show.pauses import pause_rows
from ..show.text import away, count, full_time, safe, size
from ..times import US_PER_S
from ..verb import verb

if TYPE_CHECKING:
    from filewheel import SetStatus


@verb(
    "stats",
    """
    $ filewheel stats
    $ filewheel stats --json
    $ filewheel stats --prometheus > /tmp/filewheel.prom
    """,
)
@click.option("--prometheus", is_flag=True, help="The text format that Prometheus scrapes (node exporter: textfile).")
def command(out: Output, prometheus: bool) -> None:
    """Show the counts of the wheel. Takes no lock; works with a keeper running and with none."""
    with out.wheel() as wheel:
        stats = wheel.stats()
        now_us = times.now_us()
        overdue = overdue_of(wheel, stats, now_us) if prometheus or stats.paused else None
        found_set = find_set(out)
        idle = bool(stats.pending) and not stats.keeper_up and not (prometheus or out.wants_json)
        fires = who_fires(wheel) if idle and is_primary(found_set) else ""
    next_us = None if stats.next_due is None else at_us(stats.next_due)
    lag_us = 0 if next_us is None else max(0, now_us - next_us)
    lag_us = lag_us if overdue is None else overdue.lag_us
    if prometheus and overdue is not None:
        families = disk_gauges(stats, overdue, now_us) + (set_gauges(found_set) if found_set else [])
        out.write(render(of_wheel(families, out.dir)).removesuffix("\n"))
    elif out.wants_json:
        fields = stats_fields(stats) | {"lag_s": lag_us / US_PER_S}
        out.record(fields | {"set": set_fields(found_set) if found_set else None})
    else:
        _print_table(out, stats, next_us, now_us, found_set, fires, overdue)
    if not prometheus:  # a successful scrape exits with 0; its gauge has the damage
        check_damage(stats.damaged)


def keeper_text(stats: Stats) -> str:
    """Return the text for the keeper's process."""
    if stats.keeper_pid is None:
        return "another process"
    return f"process {stats.keeper_pid}" + (" of another pid namespace" if stats.keeper_namespace else "")


def _print_table(
    out: Output,
    stats: Stats,
    next_us: int | None,
    now_us: int,
    found_set: SetStatus | None,
    fires: str,
    overdue: Overdue | None,
) -> None:
    due = "-" if next_us is None else f"{full_time(next_us)}, {away(next_us - now_us)}"
    slots, laps = count(stats.slot_files, "slot file"), count(stats.lap_files, "lap file")
    none = f"none running; start {fires}" if fires else "none running"
    if not is_primary(found_set):
        none = "none: this wheel fires nothing"
    rows = [
        ("pending", f"{stats.pending:,}"),
        ("next due", due),
        ("dead letters", f"{stats.dead:,}"),
        ("quarantined", f"{stats.quarantined:,}"),
        ("damaged", f"{count(stats.damaged, 'place')}; `filewheel verify` names each" if stats.damaged else "0"),
        ("journals", f"{size(stats.journal_bytes)} in {count(stats.journal_files, 'file')}"),
        ("slots and laps", f"{size(stats.file_bytes)} in {slots} and {laps}"),
        ("keeper", keeper_text(stats) if stats.keeper_up else none),
    ]
    if overdue is not None and overdue.paused:
        rows.append(("due and paused", f"{overdue.paused:,}"))
    rows += [("paused", text) for text in pause_rows(stats.paused, now_us)]
    if found_set is not None:
        rows.append(("set", set_line(found_set)))
    out.table([Column("WHEEL"), Column(safe(out.dir), most=400)], rows)
