"""`kafka dead`: the last dead letters, with their reasons."""

from __future__ import annotations

import click

from filewheel.kafka import DeadLetter, dead_letters
from filewheel.tools.dump import iso

from ... import times
from ...show.output import Column, Output
from ...show.text import short_time, show_bytes
from ...signals import interruptible
from .cluster import Cluster, kafka_verb
from .inspect import as_text

_US_PER_MS = 1000
_SHOWN_BYTES = 200


@kafka_verb(
    "dead",
    """
    $ filewheel kafka dead -b localhost:9092 -t delays --limit 20
    """,
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="The last so many.")
def dead(out: Output, cluster: Cluster, limit: int) -> None:
    """List the last dead letters of a delay topic, the oldest first, with their reasons.

    They are records of TOPIC.dlt, with all their headers: any Kafka client can send one to the delay topic again.
    """
    with interruptible():
        found = dead_letters(cluster.config, cluster.topic, limit=limit)
    if out.wants_json:
        for one in found:
            out.record(
                {
                    "id": one.origin, "reason": one.reason, "died": iso(one.at_ms * _US_PER_MS), "target": one.target,
                    **as_text("key", one.key), **as_text("payload", one.value),
                    "headers": {n: None if v is None else v.decode("utf-8", "replace") for n, v in one.headers},
                }
            )  # fmt: skip
    elif found:
        columns = [
            Column("ID", 30),
            Column.date("DIED"),
            Column("TARGET", 16),
            Column("REASON", 60),
            Column("VALUE", 100),
        ]
        out.table(columns, [_row(one) for one in found])
    else:
        out.note(f"{cluster.topic}.dlt is empty")
    out.flush()


def _row(one: DeadLetter) -> tuple[str, ...]:
    died = short_time(one.at_ms * _US_PER_MS, times.now_us())
    return one.origin, died, one.target or "-", one.reason, show_bytes((one.value or b"")[:_SHOWN_BYTES])
