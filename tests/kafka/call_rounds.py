"""Rounds of the scheduler on Kafka, run by hand: a lone broker is killed twice while two workers run failing calls.

    python -m tests.kafka.call_rounds [--rounds 1] [--exactly-once]

Each call fails once and is retried in a day, so each leaves one record in the delay topic. A round ends when all calls
have left theirs: at least once each, or exactly once. Takes about 30 s; not a test of the suite, which kills no broker
for it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import msgpack

from filewheel import ClusterError, Retry
from filewheel.kafka import KafkaScheduler
from tests.kafka.cluster import Cluster
from tests.kafka.conftest import make_topic
from tests.kafka.test_call_broker import committed_values

CALLS = 300
PATIENCE_S = 120.0


def a_worker(bootstrap: str, name: str, ran: Counter[int], *, exactly_once: bool) -> KafkaScheduler:
    """Return a worker whose handler notes its calls, and fails."""
    scheduler = KafkaScheduler(
        bootstrap, topic="delays", calls="calls", exactly_once=exactly_once, name=name, session_s=6, threads=8
    )

    @scheduler.on("work", retry=Retry(delay_s=86_400))
    def work(n: int) -> None:
        time.sleep(random.random() / 20)
        ran[n] += 1
        raise ValueError

    return scheduler


def enqueue(scheduler: KafkaScheduler) -> None:
    """Enqueue all calls, whatever happens to the broker."""
    for n in range(CALLS):
        while True:
            try:
                scheduler.enqueue("work", [n])
                break
            except ClusterError:
                time.sleep(0.1)
        time.sleep(0.01)


def outcomes(bootstrap: str) -> Counter[int]:
    """Return how many retries of each call a committed reader sees."""
    return Counter(msgpack.unpackb(value)[0][0] for value in committed_values(bootstrap, "delays", 2))


def play(folder: Path, *, exactly_once: bool) -> str:
    """Play one round; return its violation, or nothing."""
    from confluent_kafka.admin import AdminClient

    ran: Counter[int] = Counter()
    with Cluster(folder) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        for name, partitions in (("delays", 2), ("calls", 4), ("calls.dead", 1)):
            make_topic(admin, name, partitions)
        workers = [a_worker(cluster.bootstrap, name, ran, exactly_once=exactly_once) for name in ("one", "two")]
        for worker in workers:
            worker.start()
        feeder = threading.Thread(target=enqueue, args=(workers[0],))
        feeder.start()
        for _ in range(2):
            time.sleep(1 + 2 * random.random())
            cluster.kill()
            time.sleep(random.random())
            cluster.start()
        feeder.join()
        fed_s = time.monotonic()
        found = outcomes(cluster.bootstrap)
        while len(found) < CALLS and time.monotonic() < fed_s + PATIENCE_S:
            time.sleep(0.5)
            found = outcomes(cluster.bootstrap)
        took_s = time.monotonic() - fed_s
        for worker in workers:
            worker.stop(5)
    again = sum(count - 1 for count in ran.values())
    doubled = sum(count > 1 for count in found.values())
    print(f"{len(found)} of {CALLS} outcomes {took_s:.1f} s after the last enqueue, {doubled} twice; {again} ran again")
    if len(found) < CALLS:
        return f"{CALLS - len(found)} calls left no outcome"
    return f"{doubled} outcomes exist twice" if exactly_once and doubled else ""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.call_rounds", description="Kill a broker under calls.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--exactly-once", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    wrong = 0
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="filewheel-calls-") as folder:
            violation = play(Path(folder) / "broker", exactly_once=given.exactly_once)
        if violation:
            wrong += 1
            print(f"round {number}: {violation}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
