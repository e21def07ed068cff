"""`kafka dead`: the last dead letters, with their reasons; and their second life."""

from __future__ import annotations

import click

from filewheel.kafka import DeadLetter, dead_letters, revive
from filewheel.tools.dump import iso

from ... import times
from ...show.output import Column, Output
from ...show.text import count, short_time, show_bytes
from ...signals import interruptible
from .cluster import Cluster, kafka_verb
from .inspect import as_text

_US_PER_MS = 1000
_SHOWN_BYTES = 200


@kafka_verb(
    "dead",
    """
    $ filewheel kafka dead -b localhost:9092 -t delays --limit 20
    $ filewheel kafka dead -b localhost:9092 -t delays --revive delays-3-17
    $ filewheel kafka dead -b localhost:9092 -t calls --calls --revive --all
    """,
)
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="The last so many.")
@click.option("--calls", is_flag=True, help="--topic is the topic of calls of a KafkaScheduler: list TOPIC.dead.")
@click.option("--revive", "revives", is_flag=True, help="Send the dead letters with these ids again, or --all.")
@click.option("--all", "everything", is_flag=True, help="All of them.")
@click.argument("ids", nargs=-1, metavar="[ID...]")
def dead(
    out: Output, cluster: Cluster, limit: int, calls: bool, revives: bool, everything: bool, ids: tuple[str, ...]
) -> None:
    """List the last dead letters of a delay topic, the oldest first, with their reasons; or send them again.

    They are records of TOPIC.dlt, with all their headers. As JSON each is an object with `id` (its place in the delay
    topic; of a call its id), `reason`, `died`, `target`, `key`, `payload` (`key_b64`, `payload_b64` where it is no
    text), `headers` (text, or null) and `place` (where it lies). --revive sends it to the delay topic again, or to the
    topic of calls: it waits again if it asks for a delay, and its tries begin anew. A note in TOPIC.dlt says so, and it
    is listed no more. Mend the reason first: a record without a target is a dead letter again.
    """
    if revives == (not ids and not everything) or (ids and everything):
        raise click.UsageError("--revive ID... sends these dead letters again, --revive --all all of them")
    with interruptible():
        if revives:
            found = revive(cluster.config, cluster.topic, ids or None, calls=calls)
        else:
            found = dead_letters(cluster.config, cluster.topic, calls=calls, limit=limit)
    if out.wants_json:
        for one in found:
            out.record(
                {
                    "id": one.origin, "reason": one.reason, "died": iso(one.at_ms * _US_PER_MS), "target": one.target,
                    **as_text("key", one.key), **as_text("payload", one.value),
                    "headers": {n: None if v is None else v.decode("utf-8", "replace") for n, v in one.headers},
                    "place": one.place,
                }
            )  # fmt: skip
    elif found:
        columns = [Column("ID", 30), Column("DIED"), Column("TARGET", 16), Column("REASON", 60), Column("VALUE", 100)]
        out.table(columns, [_row(one) for one in found])
    if revives:
        out.note(f"sent {count(len(found), 'dead letter')} again")
    elif not found:
        out.note(f"{cluster.topic}.{'dead' if calls else 'dlt'} has no dead letters")
    out.flush()


def _row(one: DeadLetter) -> tuple[str, ...]:
    died = short_time(one.at_ms * _US_PER_MS, times.now_us())
    return one.origin, died, one.target or "-", one.reason, show_bytes((one.value or b"")[:_SHOWN_BYTES])
