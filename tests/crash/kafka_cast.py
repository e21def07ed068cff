"""Who takes part in a round on three brokers: the nodes, a producer that notes what was confirmed, and the readers.

Invariant: no process outlives the round; `Sent` has each record whose fate is known to be "in the delay topic".
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.runner import REPO
from tests.kafka.cluster import spawn

SESSION_S = 3.0
READ_S = 60.0
STOP_S = 60.0


class Node:
    """One node: a data directory, and the process that has it open, if one runs."""

    def __init__(self, order: dict[str, Any], folder: Path, name: str) -> None:
        self._order = {**order, "data": str(folder / name), "node": name, "session_s": SESSION_S}
        self.name = name
        self.data = folder / name
        self.log = folder / f"{name}.log"
        self.clock_us = 0
        self.is_halted = False
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        """Whether its process is there, halted or not."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start a process."""
        assert not self.runs
        order = json.dumps({**self._order, "clock_us": self.clock_us})
        with self.log.open("ab") as out:
            out.write(f"--- started at {time.time():.3f}, clock {self.clock_us} us\n".encode())
        self.process = spawn(
            [sys.executable, "-X", "faulthandler", "-m", "tests.crash.kafka_node", order], self.log, REPO
        )
        self.is_halted = False

    def kill(self) -> None:
        """Kill the process (SIGKILL), halted or not."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def halt(self) -> None:
        """Stop the process where it is (SIGSTOP)."""
        if self.runs and self.process is not None:
            self.process.send_signal(signal.SIGSTOP)
            self.is_halted = True

    def resume(self) -> None:
        """Let a halted process go on: its session may be over, and it may not know."""
        if self.is_halted and self.process is not None:
            self.process.send_signal(signal.SIGCONT)
        self.is_halted = False

    def tell_stacks(self) -> None:
        """Let it write into its log where each of its threads stands."""
        if self.process is not None:
            self.process.send_signal(signal.SIGUSR2)
            time.sleep(1)

    def stop(self) -> int:
        """End it as an operator does (SIGTERM); return its exit code. Raises TimeoutExpired."""
        if self.process is None:
            return 0
        self.resume()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_S)
        self.process = None
        return code


@dataclass
class Sent:
    """What the producer knows of its records."""

    due_ms: dict[int, int] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)


class Load:
    """A producer of delayed records, idempotent; it goes on while brokers die."""

    def __init__(self, bootstrap: str, topic: str, target: str, partitions: int, seed: int) -> None:
        from confluent_kafka import Producer

        self.sent = Sent()
        self._topic, self._target, self._partitions = topic, target, partitions
        self._random = random.Random(seed)
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0,
            "message.timeout.ms": 60_000,
        })  # fmt: skip

    def put(self, longest_ms: int) -> None:
        """Produce one record that waits for at most this long."""
        number = len(self.sent.due_ms)
        due_ms = time.time_ns() // 1_000_000 + self._random.randrange(longest_ms)
        self.sent.due_ms[number] = due_ms
        headers: Any = [("filewheel-due-ms", b"%d" % due_ms), ("scheduler-target-topic", self._target.encode())]

        def answered(error: Any, message: Any) -> None:
            if error is None:
                self.sent.confirmed.add(number)

        partition = number % self._partitions
        self._producer.produce(self._topic, b"%d" % number, None, partition, on_delivery=answered, headers=headers)
        self._producer.poll(0)

    def serve(self, wait_s: float) -> None:
        """Serve answers for this long."""
        self._producer.poll(wait_s)

    def end(self) -> None:
        """Wait for the last answers. What got none may be there or not."""
        self._producer.flush(90)


@dataclass(frozen=True)
class Seen:
    """One record of a topic, as a reader of committed records sees it."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def read_all(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> list[Seen]:
    """Read a topic to its end, as it is now. Raises TimeoutError."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True, "log_level": 0,
        "isolation.level": isolation, "auto.offset.reset": "earliest",
    })  # fmt: skip
    found: list[Seen] = []
    ended: set[int] = set()
    give_up = time.monotonic() + READ_S
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        while len(ended) < partitions:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{topic} was not read to its end in {READ_S:g} s")
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    at = message.timestamp()[1]
                    found.append(Seen(
                        message.partition() or 0, message.offset() or 0, at, message.key(), message.value(),
                        tuple(message.headers() or ()),  # type: ignore[arg-type]
                    ))  # fmt: skip
                elif error.name() == "_PARTITION_EOF":
                    ended.add(message.partition() or 0)
    finally:
        consumer.close()
    return found
