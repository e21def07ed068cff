"""What the cluster knows of a delay service: its logs, the group's members, and the offsets with their notes.

Reads only. Owns one administrator's client. A user without the right to see the members gets the rest.
Invariant: nothing is committed, made or changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from filewheel.bridges.extra import need
from filewheel.errors import ClusterError, MissingTopic, NoBroker, NotAllowed
from filewheel.kafka.client.trouble import client, client_log, cluster_error, end_of, error_of, heard, listed, made

ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of the group."""

    client_id: str
    host: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class GroupSnapshot:
    """A delay topic and its group at one moment."""

    ranges: Mapping[int, tuple[int, int] | None]
    """Partition → its first offset and the one after its last; None without an answer of its leader."""
    committed: Mapping[int, tuple[int, str]]
    """Partition → the committed offset and its note."""
    members: tuple[GroupMember, ...] | None
    """None: this user may not see them."""


class GroupView:
    """Looks at one group. Not thread-safe."""

    def __init__(self, config: Mapping[str, Any], group: str, topic: str) -> None:
        """Make the client. Raises BadArgument: no confluent-kafka, or a wrong setting."""
        self._client = client()
        self._words = need("confluent_kafka.admin", "kafka")
        self._admin = made(self._words.AdminClient, {**config, "error_cb": heard}, logger=client_log)
        self._address = str(config.get("bootstrap.servers", ""))
        self._group = group
        self._topic = topic

    def look(self) -> GroupSnapshot:
        """Ask the cluster. Raises NoBroker, MissingTopic, NotAllowed, ClusterError."""
        partitions = self._partitions()
        return GroupSnapshot(self._ranges(partitions), self._committed(), self._members())

    def _partitions(self) -> list[int]:
        found = listed(self._admin, self._topic, self._address, ANSWER_S)
        if self._topic not in found:
            served = [name.removesuffix(".cursor") for name in found if name.endswith(".cursor")]
            close = difflib.get_close_matches(self._topic, served, 1)
            hint = f"--topic {close[0]}" if close else "check the name, and whether your user may see the topic"
            raise MissingTopic(f"there is no topic {self._topic}", hint=hint)
        error = found[self._topic].error
        if error is not None:
            raise cluster_error(error, self._topic)
        return sorted(found[self._topic].partitions)

    def _ranges(self, partitions: list[int]) -> dict[int, tuple[int, int] | None]:
        ends: list[dict[int, int]] = []
        for spec in (self._words.OffsetSpec.earliest(), self._words.OffsetSpec.latest()):
            places = {self._client.TopicPartition(self._topic, p): spec for p in partitions}
            asked = self._admin.list_offsets(
                places, isolation_level=self._client.IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S
            )
            found: dict[int, int] = {}
            for place, future in asked.items():
                try:
                    offset = self._result(future).offset
                except ClusterError:  # no leader just now
                    continue
                if offset >= 0:
                    found[place.partition] = offset
            ends.append(found)
        return {p: (ends[0][p], ends[1][p]) if p in ends[0] and p in ends[1] else None for p in partitions}

    def _committed(self) -> dict[int, tuple[int, str]]:
        asked = self._admin.list_consumer_group_offsets(
            [self._client.ConsumerGroupTopicPartitions(self._group)], request_timeout=ANSWER_S
        )
        try:
            places = self._result(asked[self._group]).topic_partitions or []
        except ClusterError as exc:
            if isinstance(exc, (NoBroker, NotAllowed)):
                raise
            return {}  # there is no such group yet
        return {
            place.partition: (place.offset, place.metadata or "")
            for place in places
            if place.topic == self._topic and place.error is None and place.offset >= 0
        }

    def _members(self) -> tuple[GroupMember, ...] | None:
        asked = self._admin.describe_consumer_groups([self._group], request_timeout=ANSWER_S)
        try:
            found = self._result(asked[self._group])
        except NotAllowed:
            return None
        except NoBroker:
            raise
        except ClusterError:  # a group that never was
            return ()
        return tuple(
            GroupMember(
                member.client_id or "",
                member.host or "",
                frozenset(
                    place.partition for place in member.assignment.topic_partitions if place.topic == self._topic
                ),
            )
            for member in found.members
        )

    def _result(self, future: Any) -> Any:
        """Return an answer; none takes for ever. Raises ClusterError."""
        if not end_of(future).wait(ANSWER_S * 2):
            raise NoBroker(f"{self._address}: no answer after {ANSWER_S * 2:g} s", hint="call again")
        try:
            return future.result()
        except self._client.KafkaException as exc:
            raise cluster_error(error_of(exc), f"group {self._group}") from exc
