"""The side `putback`: no store at all. A record that is not due goes back to the end of the delay topic.

For the benchmark only, to show what it costs: each round of the topic is written again. With a pause: a batch in which
nothing was due is followed by a short sleep. At least once: offsets are committed after the batch was confirmed.
"""

from __future__ import annotations

import sys
import time
from typing import Any

PAUSE_S = 0.1
BATCH = 1000


def main() -> int:
    """Run it: `putback BOOTSTRAP TOPIC`."""
    from confluent_kafka import Consumer, Producer

    bootstrap, topic = sys.argv[1:]
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": f"{topic}.putback", "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20,
    })  # fmt: skip
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1, "enable.idempotence": True})
    consumer.subscribe([topic])
    taken = fired = 0
    said = 0.0
    while True:
        messages = [message for message in consumer.consume(BATCH, 0.02) if message.error() is None]
        now_ms = time.time_ns() // 1_000_000
        due = 0
        for message in messages:
            found: dict[str, Any] = dict(message.headers() or ())
            is_due = int(found["filewheel-due-ms"] or 0) <= now_ms
            due += is_due
            to = found["scheduler-target-topic"].decode() if is_due else topic
            producer.produce(to, message.value(), message.key(), headers=message.headers())
        if messages:
            producer.flush()
            consumer.commit(asynchronous=False)
        taken += len(messages)
        fired += due
        if time.monotonic() > said + 0.05:
            said = time.monotonic()
            print(f"FIGURES taken={taken} fired={fired} active={len(consumer.assignment())}", flush=True)
        if messages and not due:
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    sys.exit(main())
