"""A reader of the target in a process of its own: it says how late it saw each record.

Prints a line when it reads, and one with the result once it has seen every number.
"""

from __future__ import annotations

import json
import sys
import time
import uuid

from tests.bench.kafka.rig import numbers_of
from tests.bench.load import percentile

WAIT_S = 120.0


def main() -> int:
    """Run it."""
    from confluent_kafka import Consumer, TopicPartition

    order = json.loads(sys.argv[1])
    consumer = Consumer({
        "bootstrap.servers": order["bootstrap"], "group.id": uuid.uuid4().hex, "isolation.level": "read_committed",
        "fetch.wait.max.ms": 100, "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.assign([TopicPartition(order["target"], p, 0) for p in range(order["partitions"])])
    consumer.consume(1, 0.5)
    print("reading", flush=True)
    late_ms: list[float] = []
    seen: set[int] = set()
    give_up = time.monotonic() + WAIT_S + order["count"] / 1000
    while len(seen) < order["count"] and time.monotonic() < give_up:
        messages = consumer.consume(1000, 0.002)
        now_us = time.time_ns() // 1000
        for message in messages:
            if message.error() is None:
                due_ms, number = numbers_of(message.value())
                late_ms.append(now_us / 1000 - int(due_ms))
                seen.add(int(number))
    consumer.close()
    wrong = order["count"] - len(seen) + len(late_ms) - len(seen) + sum(late < 0 for late in late_ms)
    found = {"p50": percentile(late_ms, 0.5), "p99": percentile(late_ms, 0.99), "max": max(late_ms), "wrong": wrong}
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
