"""Reads what a topic holds, with a client of its own, so that no file of tests imports another for it.

Invariant: it can be imported where confluent-kafka is not installed; the tests that call it are skipped there.
"""

from __future__ import annotations

import time
from typing import Any

ANSWER_TIMEOUT_S = 30.0


def read(bootstrap: str, topic: str, *, isolation: str = "read_committed", **config: str) -> list[Any]:
    """Return all messages of partition 0, from its start to its end as it is now."""
    import confluent_kafka

    settings = {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": isolation, **config}
    reader = confluent_kafka.Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
    reader.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    give_up = time.monotonic() + ANSWER_TIMEOUT_S
    try:
        while time.monotonic() < give_up:
            message = reader.poll(1.0)
            if message is None:
                continue
            if message.error() is None:
                found.append(message)
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return found
    finally:
        reader.close()
    raise AssertionError(f"{topic} was not read to its end")
