"""`kafka cancel`: drops the waiting records with some keys, on a keyed topic."""

from __future__ import annotations

import click

from filewheel.kafka import DelayProducer, check_keyed

from ...show.output import Output
from ...show.text import count
from ...signals import interruptible
from .cluster import Cluster, kafka_verb


@kafka_verb(
    "cancel",
    """
    $ filewheel kafka cancel -b localhost:9092 -t delays order-7
    """,
)
@click.option("--group", metavar="NAME", help="The consumer group of the nodes.  [default: filewheel-TOPIC]")
@click.option("--keyed", is_flag=True, help="Insist that the topic is keyed, where no node has said so yet.")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
def cancel(out: Output, cluster: Cluster, group: str | None, keyed: bool, keys: tuple[str, ...]) -> None:
    """Cancel the records that wait with these keys, and print the id of each cancellation.

    Only where the nodes run with --keyed. A node drops the record once it has read the cancellation; one that is due
    before goes out. A key that no waiting record has changes nothing.
    """
    with interruptible():
        if not keyed:
            check_keyed(cluster.config, cluster.topic, group=group or f"filewheel-{cluster.topic}")
        with DelayProducer(
            cluster.bootstrap, topic=cluster.topic, keyed=True, properties=dict(cluster.properties)
        ) as producer:
            sent = [(key, producer.cancel(key)) for key in keys]
            for key, delivery in sent:
                done = delivery.result()
                if out.json:
                    out.record({"key": key, "id": done.id, "partition": done.partition, "offset": done.offset})
                else:
                    out.write(done.id)
    out.flush()
    out.note(f"sent {count(len(keys), 'cancellation')}")
