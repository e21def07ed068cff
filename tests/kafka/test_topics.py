"""The topics that an administrator makes while another one does, too."""

from __future__ import annotations

from typing import Any

import pytest

from filewheel.errors import ClusterError
from filewheel.kafka import topics


class Slow(topics._Cluster):
    """Another administrator made the topic, and this broker tells of it after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def partitions(self, name: str) -> int:
        self.looks -= 1
        return 4 if self.looks < 0 else 0

    def _create(self, *_: Any) -> bool:
        return False

    def _others(self, *_: Any) -> dict[str, tuple[str, str]]:
        return {}

    def _replicas(self, name: str) -> int | None:
        return 1


def test_a_topic_of_another_administrator_is_waited_for_and_keeps_its_partitions(monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "NEW_TOPIC_S", (0.0,) * 3)
    report = Slow(3).topic("calls", 2, 1, {}, alter=False)
    assert (report.partitions, report.added, report.is_new) == (4, 0, False)


def test_a_topic_that_stays_unknown_is_an_error_and_gets_no_partitions(monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "NEW_TOPIC_S", (0.0,) * 3)
    with pytest.raises(ClusterError, match="does not know it yet.*call again"):
        Slow(100).topic("calls", 12, 1, {}, alter=False)


def test_a_topic_that_is_not_to_grow_keeps_its_partitions_whenever_it_becomes_known(monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "NEW_TOPIC_S", (0.0,) * 3)
    monkeypatch.setattr(topics._Cluster, "__init__", lambda self, config: setattr(self, "looks", 0))
    monkeypatch.setattr(topics._Cluster, "_others", lambda *_: {})
    monkeypatch.setattr(topics._Cluster, "_replicas", lambda *_: 1)
    monkeypatch.setattr(topics._Cluster, "_create", lambda *_: False)

    monkeypatch.setattr(topics, "client", lambda: _Words)
    for hidden in range(3):
        left = {"calls": hidden, "dead": hidden}

        def partitions(self: Any, name: str, left: dict[str, int] = left) -> int:
            left[name] -= 1
            return 4 if left[name] < 0 else 0

        monkeypatch.setattr(topics._Cluster, "partitions", partitions)
        made = topics.make_call_topics({}, "calls", "dead", partitions=12, replication=1, retention_s=None)
        assert [(report.partitions, report.added) for report in made] == [(4, 0), (4, 0)]
        left |= {"delays": hidden, "delays.cursor": 0, "delays.dlt": 0}
        made = topics.make_topics({}, topics.Policy("delays"), partitions=12, replication=1)
        assert [(report.partitions, report.added) for report in made] == [(4, 0)] * 3


class Known(Slow):
    """A topic that exists, with other settings and two copies."""

    def __init__(self, found: dict[str, str]) -> None:
        super().__init__(0)
        self.found, self.altered = found, dict[str, str]()

    def _others(self, name: str, wanted: dict[str, str]) -> dict[str, tuple[str, str]]:
        return {key: (self.found[key], value) for key, value in wanted.items() if self.found[key] != value}

    def _replicas(self, name: str) -> int | None:
        return 2

    def _alter(self, name: str, settings: dict[str, str]) -> None:
        self.altered |= settings


def test_a_longer_retention_than_the_one_asked_for_stays_and_is_said() -> None:
    wanted = {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "-1"}
    for alter in (False, True):
        known = Known({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "5"})
        report = known.topic("delays", 4, 3, wanted, alter=alter)
        assert report.kept == {"retention.ms": ("-1", "1000")}
        assert report.replicas == 2
        assert known.altered == ({"retention.bytes": "-1"} if alter else {})
        assert report.altered == (("retention.bytes",) if alter else ())
        assert report.wrong == ({} if alter else {"retention.bytes": ("5", "-1")})


class _Words:
    KafkaException = OSError
