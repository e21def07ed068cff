"""A delay topic on a real broker, what is done to it, and the nodes that serve it, each in threads of this process.

Invariant: it can be imported where confluent-kafka is not installed; the tests that call it are skipped there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filewheel.env import SYSTEM_CLOCK
from filewheel.kafka import DelayService, NodeSettings, Policy, delay_service, make_topics
from tests.kafka.conftest import ANSWER_TIMEOUT_S, make_topic
from tests.kafka.reading import read
from tests.support import eventually

WAIT_S = 90.0
SESSION_S = 6.0


class Live:
    """The topics of one service."""

    def __init__(
        self, bootstrap: str, *, partitions: int = 1, keyed: bool = False, config: Mapping[str, str] | None = None
    ) -> None:
        """Make them. `config` are settings of each client that a test has here."""
        from confluent_kafka.admin import AdminClient

        self.topic = f"t-{uuid.uuid4().hex[:12]}"
        self.target = f"{self.topic}-target"
        self.bootstrap = bootstrap
        self.config = {"bootstrap.servers": bootstrap, **(config or {})}
        self.policy = Policy(self.topic, keyed=keyed)
        self.partitions = partitions
        self.admin = AdminClient(self.config)
        make_topics(self.config, self.policy, partitions=partitions)
        make_topic(self.admin, self.target)

    def put(self, *names: bytes, after_ms: int = 0, partition: int = 0, in_transaction: bool = False) -> None:
        """Produce records to one partition."""
        from confluent_kafka import Producer

        more = {"transactional.id": uuid.uuid4().hex} if in_transaction else {}
        producer = Producer({**self.config, **more})
        due = ("filewheel-due-ms", b"%d" % (SYSTEM_CLOCK.now_us() // 1000 + after_ms))
        if in_transaction:
            producer.init_transactions(ANSWER_TIMEOUT_S)
            producer.begin_transaction()
        for name in names:
            headers = [due, ("scheduler-target-topic", self.target.encode())]
            producer.produce(self.topic, name, partition=partition, headers=headers)
        assert producer.flush(ANSWER_TIMEOUT_S) == 0
        if in_transaction:
            producer.commit_transaction(ANSWER_TIMEOUT_S)

    def delivered(self) -> list[bytes]:
        """Return what a committed reader of the target sees, in the order of its log."""
        login = {key: value for key, value in self.config.items() if key != "bootstrap.servers"}
        return [message.value() for message in read(self.bootstrap, self.target, **login)]

    def wait_for(self, *names: bytes) -> None:
        """Wait until exactly these were delivered, each once."""
        eventually(lambda: len(self.delivered()) >= len(names), timeout_s=WAIT_S)
        assert sorted(self.delivered()) == sorted(names)

    def delete_before(self, offset: int, partition: int = 0) -> None:
        """Let retention delete the records before an offset; -1: all."""
        from confluent_kafka import TopicPartition

        for done in self.admin.delete_records([TopicPartition(self.topic, partition, offset)]).values():
            done.result(ANSWER_TIMEOUT_S)

    def make_anew(self) -> None:
        """Delete the delay topic, and make one of the same name."""
        for done in self.admin.delete_topics([self.topic], operation_timeout=ANSWER_TIMEOUT_S).values():
            done.result(ANSWER_TIMEOUT_S)
        eventually(lambda: self.topic not in self.admin.list_topics(timeout=ANSWER_TIMEOUT_S).topics, timeout_s=WAIT_S)
        make_topic(self.admin, self.topic, self.partitions)

    @contextmanager
    def node(self, data: Path, name: str = "a", **settings: Any) -> Iterator[DelayService]:
        """Run a node until the end of the block, or until it ends with an error, which is raised at the end."""
        service = delay_service(
            self.config, self.policy, data, group=f"filewheel-{self.topic}", node=name,
            settings=NodeSettings(**{"session_s": SESSION_S, **settings}),
        )  # fmt: skip
        failures: list[BaseException] = []

        def run() -> None:
            try:
                service.run()
            except BaseException as exc:
                failures.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield service
        finally:
            service.stop()
            thread.join(WAIT_S)
            assert not thread.is_alive()
        if failures:
            raise failures[0]
