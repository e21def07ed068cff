"""The topics of a delay service: made with the settings that it needs, and checked where they exist.

The delay topic keeps its records by time only, and has the broker's timestamps: a relative delay then counts from the
arrival. The topic of markers is compacted, with a partition for each of the delay topic. Dead letters are kept.
Invariant: nothing is deleted, and no setting of an existing topic is changed unless `alter` is given.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel.bridges.extra import need
from filewheel.errors import BadArgument, ClusterError, NoBroker
from filewheel.kafka.client.trouble import (
    client,
    client_log,
    cluster_error,
    end_of,
    error_of,
    heard,
    made,
    metadata_of,
)
from filewheel.kafka.levels.naming import Level
from filewheel.kafka.records.options import Policy

ANSWER_S = 30.0
NEW_TOPIC_S = (0.2, 0.5, 1.0, 2.0, 4.0, 8.0)
"""The waits before a topic is asked for again that somebody else has just made."""
LIMIT_S = 60.0
"""How long the client may take for one answer."""
FOREVER = "-1"


@dataclass(frozen=True)
class TopicReport:
    """One topic after `make_topics`."""

    name: str
    partitions: int
    is_new: bool = False
    added: int = 0
    """Partitions that were added to an existing topic."""
    wrong: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Setting → its value, and the value that the service needs."""
    altered: tuple[str, ...] = ()
    """Settings that were changed."""
    kept: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Setting → its value, which does as well, and the value asked for. It stays as it is."""
    replicas: int | None = None
    """Copies of the first partition of a topic that existed."""


def make_topics(
    config: Mapping[str, Any],
    policy: Policy,
    *,
    partitions: int = 12,
    replication: int = -1,
    retention_s: float | None = None,
    alter: bool = False,
) -> list[TopicReport]:
    """Make the delay topic, its topic of markers and its dead-letter topic, or check those that exist.

    On return all three exist, and the topic of markers has a partition for each of the delay topic. `replication` -1 is
    the brokers' default. `retention_s` is how long the delay topic keeps a record; None is for ever. It must be longer
    than the longest delay and the longest outage together. `alter` changes wrong settings.

    Raises BadArgument without confluent-kafka; NoBroker, NotAllowed, ClusterError.
    """
    errors = client().KafkaException
    try:
        cluster = _Cluster(config)
        wanted = _wanted(policy, retention_s)
        first = cluster.topic(policy.topic, partitions, replication, wanted.pop(policy.topic), alter=alter, grows=False)
        return [first] + [
            cluster.topic(
                name, 1 if name == policy.dead_letter_topic else first.partitions, replication, settings, alter=alter
            )
            for name, settings in wanted.items()
        ]
    except errors as exc:
        raise cluster_error(error_of(exc), str(config.get("bootstrap.servers", ""))) from exc


def make_call_topics(
    config: Mapping[str, Any], calls: str, dead: str, *, partitions: int, replication: int, retention_s: float | None
) -> list[TopicReport]:
    """Make the topics of a scheduler, of its calls and of its dead letters, or check those that exist.

    Raises BadArgument without confluent-kafka; NoBroker, NotAllowed, ClusterError.
    """
    kept = {"cleanup.policy": "delete", "retention.ms": FOREVER, "retention.bytes": FOREVER}
    retention = FOREVER if retention_s is None else str(round(retention_s * 1000))
    errors = client().KafkaException
    try:
        cluster = _Cluster(config)
        return [
            cluster.topic(
                calls, partitions, replication, {**kept, "retention.ms": retention}, alter=False, grows=False
            ),
            cluster.topic(dead, 1, replication, kept, alter=False, grows=False),
        ]
    except errors as exc:
        raise cluster_error(error_of(exc), str(config.get("bootstrap.servers", ""))) from exc


def make_level_topics(
    config: Mapping[str, Any],
    topic: str,
    levels: Sequence[Level],
    *,
    partitions: int = 12,
    replication: int = -1,
    retention_s: float | None = None,
    alter: bool = False,
) -> list[TopicReport]:
    """Make a topic for each level and the dead-letter topic, or check those that exist.

    `retention_s` is how long each keeps a record; None is a week, and at least twice the level. Otherwise as
    `make_topics`.

    Raises BadArgument without confluent-kafka; NoBroker, NotAllowed, ClusterError.
    """
    week_ms = 7 * 86_400_000
    wanted = {}
    for level in levels:
        retention_ms = max(week_ms, 2 * level.delay_ms) if retention_s is None else round(retention_s * 1000)
        if retention_ms <= level.delay_ms:
            raise BadArgument(
                f"the retention is {retention_ms / 1000:g} s, and records of the level {level.name} wait longer",
                hint="a retention longer than the longest level and the longest outage together",
            )
        wanted[level.topic(topic)] = {**_DELAY_TOPIC, "retention.ms": str(retention_ms)}
    dead = levels[0].policy(topic).dead_letter_topic
    try:
        cluster = _Cluster(config)
        made = [
            cluster.topic(name, partitions, replication, settings, alter=alter, grows=False)
            for name, settings in wanted.items()
        ]
        return [*made, cluster.topic(dead, 1, replication, _DEAD_LETTERS, alter=alter)]
    except client().KafkaException as exc:
        raise cluster_error(error_of(exc), str(config.get("bootstrap.servers", ""))) from exc


_DELAY_TOPIC = {
    "cleanup.policy": "delete",
    "retention.bytes": FOREVER,
    "message.timestamp.type": "LogAppendTime",
    "unclean.leader.election.enable": "false",
}
_DEAD_LETTERS = {"cleanup.policy": "delete", "retention.ms": FOREVER, "retention.bytes": FOREVER}


def _wanted(policy: Policy, retention_s: float | None) -> dict[str, dict[str, str]]:
    """Return topic → settings that the service needs."""
    retention = FOREVER if retention_s is None else str(round(retention_s * 1000))
    return {
        policy.topic: {**_DELAY_TOPIC, "retention.ms": retention},
        policy.marker_topic: {
            "cleanup.policy": "compact",
            "message.timestamp.type": "LogAppendTime",  # nodes compare their clocks with it
            "unclean.leader.election.enable": "false",
        },
        policy.dead_letter_topic: _DEAD_LETTERS,
    }


class _Cluster:
    """An administrator's client. Its calls raise KafkaException, or ClusterError."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._words: Any = need("confluent_kafka.admin", "kafka")
        self._admin = made(self._words.AdminClient, {**config, "error_cb": heard}, logger=client_log)
        self._address = str(config.get("bootstrap.servers", ""))

    def partitions(self, name: str) -> int:
        """Return the number of partitions of a topic; 0 if there is none."""
        return len(self._layout(name))

    def _layout(self, name: str) -> Mapping[int, Any]:
        """Return the partitions of a topic with their replicas; nothing if there is no such topic."""
        found = metadata_of(self._admin, self._address, ANSWER_S).topics
        partitions: Mapping[int, Any] = found[name].partitions if name in found else {}
        return partitions

    def _replicas(self, name: str) -> int | None:
        return next((len(partition.replicas) for partition in self._layout(name).values()), None)

    def topic(
        self, name: str, partitions: int, replication: int, wanted: dict[str, str], *, alter: bool, grows: bool = True
    ) -> TopicReport:
        """Make one topic, or check it. One that exists gets partitions that it lacks only if it `grows`."""
        present = self.partitions(name)
        if not present and self._create(name, partitions, replication, wanted):
            return TopicReport(name, partitions, is_new=True)
        for wait_s in NEW_TOPIC_S:  # somebody else made it a moment ago, and this broker does not know it yet
            if present:
                break
            time.sleep(wait_s)
            present = self.partitions(name)
        if not present:  # it may have any number of partitions, and must not get more  # mutant: kafka-unknown-enlarged
            raise ClusterError(f"there is a topic {name}, and this broker does not know it yet", hint="call again")
        # An earlier look decides nothing: a broker that did not know the topic yet said that it has none.
        added = max(partitions - present, 0) if grows else 0  # mutant: kafka-topic-grows
        if added:
            new = self._words.NewPartitions(name, partitions)
            _only(self._admin.create_partitions([new], request_timeout=ANSWER_S))
        others = self._others(name, wanted)
        wrong = {key: pair for key, pair in others.items() if not _fits(key, *pair)}
        altered: tuple[str, ...] = ()
        if wrong and alter:
            self._alter(name, {key: needed for key, (_, needed) in wrong.items()})
            altered, wrong = tuple(wrong), {}
        kept = {key: pair for key, pair in others.items() if _fits(key, *pair)}
        return TopicReport(
            name, present + added, added=added, wrong=wrong, altered=altered, kept=kept, replicas=self._replicas(name)
        )

    def _create(self, name: str, partitions: int, replication: int, wanted: dict[str, str]) -> bool:
        """Make a topic; return False if there is one already."""
        settings = dict(wanted)
        if replication >= 3:
            settings["min.insync.replicas"] = "2"
        new = self._words.NewTopic(name, partitions, replication, config=settings)
        try:
            _only(self._admin.create_topics([new], request_timeout=ANSWER_S))
        except client().KafkaException as exc:
            if error_of(exc).name() != "TOPIC_ALREADY_EXISTS":
                raise
            return False
        return True

    def _others(self, name: str, wanted: dict[str, str]) -> dict[str, tuple[str, str]]:
        """Return the settings of an existing topic that differ: each value, and the wanted one."""
        resource = self._words.ConfigResource(self._words.ResourceType.TOPIC, name)
        present = _only(self._admin.describe_configs([resource], request_timeout=ANSWER_S))
        found = {key: str(present[key].value) for key in wanted if key in present}
        return {key: (value, wanted[key]) for key, value in found.items() if value != wanted[key]}

    def _alter(self, name: str, settings: dict[str, str]) -> None:
        words = self._words
        entries = [
            words.ConfigEntry(key, value, incremental_operation=words.AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = words.ConfigResource(words.ResourceType.TOPIC, name, incremental_configs=entries)
        _only(self._admin.incremental_alter_configs([resource], request_timeout=ANSWER_S))


def _fits(key: str, found: str, needed: str) -> bool:
    """Return whether another value is as good as the one that is needed: a longer retention is."""
    return key == "retention.ms" and needed != FOREVER and (found == FOREVER or int(found) >= int(needed))


def _only(futures: Mapping[Any, Any]) -> Any:
    """Return the result of one request."""
    (future,) = futures.values()
    if not end_of(future).wait(LIMIT_S):
        raise NoBroker(f"no answer after {LIMIT_S:g} s", hint="check whether the brokers run")
    return future.result()
