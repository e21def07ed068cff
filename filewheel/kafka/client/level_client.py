"""The clients of the levels: one member of the group for the topics of all levels, and one producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from filewheel.kafka.client.clients import GroupClients
from filewheel.kafka.client.group import GroupSource, membership
from filewheel.kafka.client.shared_sink import SharedSink
from filewheel.kafka.node.transport import Listener, Place

SESSION_S = 10.0


class ConfluentLevels(GroupClients):
    """A cluster, for the topics of some levels."""

    def __init__(
        self,
        config: Mapping[str, Any],
        topics: Sequence[str],
        dead_letter_topic: str,
        *,
        group: str,
        node: str,
        init: str,
    ) -> None:
        """`init` is the command that makes the topics. Raises BadArgument when confluent-kafka is not installed."""
        needed = dict.fromkeys([*topics, dead_letter_topic], f"`{init}`")
        super().__init__({"client.id": node, **config}, group, needed, list(topics))

    def check(self) -> None:
        """Return when all topics are there. Raises NoBroker, MissingTopic, NotAllowed."""
        self.topics()

    def source(self, listener: Listener[Place]) -> GroupSource[Place]:
        """Join the group."""
        config = {**membership(self._config, self._group, SESSION_S), "queued.max.messages.kbytes": 4096}
        return GroupSource(config, self._read, listener, lambda topic, number: (topic, number), at_once=True)

    def sink(self) -> SharedSink:
        """Return the way out of one partition."""
        return SharedSink(self.producer)
