"""`kafka status`: the partitions of a delay service, over the whole cluster."""

from __future__ import annotations

import dataclasses

import click

from filewheel.kafka import PartitionReport, service_status

from ...failure import Failure
from ...show.output import Column, Output
from ...show.text import span
from ...signals import interruptible
from .cluster import Cluster, kafka_verb

_US_PER_MS = 1000
_SEEN_S = 7
"""A node leaves a note every five seconds."""


@kafka_verb(
    "status",
    """
    $ filewheel kafka status -b localhost:9092 -t delays
    """,
)
@click.option("--group", metavar="NAME", help="The consumer group of the nodes.  [default: filewheel-TOPIC]")
def status(out: Output, cluster: Cluster, group: str | None) -> None:
    """Show owner, waiting records, lag, lateness and problem of each partition.

    It asks the cluster, and no node: each node leaves a note with the offsets that it commits, every five seconds. LAG
    is how many records of the log were not taken in, LATE how late the earliest record is that has not gone out. A node
    that was killed stays the owner until the session time-out: its state is `not seen for 8 s` then. The exit code is 3
    if a partition has a problem: it has no owner, its owner is silent, or it makes no progress.
    """
    with interruptible():
        reports = service_status(cluster.config, cluster.topic, group=group or f"filewheel-{cluster.topic}")
    if out.wants_json:
        for report in reports:
            out.record(dataclasses.asdict(report))
    else:
        columns = [
            Column("PARTITION", right=True), Column("OWNER", 20), Column("STATE"), Column("WAITING", right=True),
            Column("LAG", right=True), Column("LATE", right=True), Column("STANDBYS", right=True),
        ]  # fmt: skip
        out.table(columns, [_row(report) for report in reports])
        for report in reports:
            if report.problem:
                out.write(f"partition {report.partition}: {report.problem}")
    out.flush()
    bad = sum(bool(report.problem) for report in reports)
    if bad:
        raise Failure(
            "partly", f"{bad} of {len(reports)} partitions have a problem",
            hint="the log of its node says more; docs/kafka.md has a runbook",
        )  # fmt: skip


def _row(report: PartitionReport) -> tuple[str, ...]:
    late = "" if report.late_ms is None else span(report.late_ms * _US_PER_MS) if report.late_ms else "-"
    return (
        str(report.partition), report.owner or "-", _state(report), _number(report.waiting), _number(report.lag),
        late or "-", _number(report.standbys),
    )  # fmt: skip


def _state(report: PartitionReport) -> str:
    if report.seen_s is not None and report.seen_s > _SEEN_S:
        return f"not seen for {report.seen_s:.0f} s"
    return report.state or "-"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
