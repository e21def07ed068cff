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

    def _wrong(self, *_: Any) -> dict[str, tuple[str, str]]:
        return {}


def test_a_topic_of_another_administrator_is_waited_for_and_keeps_its_partitions(monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "NEW_TOPIC_S", (0.0,) * 3)
    report = Slow(3).topic("calls", 2, 1, {}, alter=False)
    assert (report.partitions, report.added, report.is_new) == (4, 0, False)


def test_a_topic_that_stays_unknown_is_an_error_and_gets_no_partitions(monkeypatch: Any) -> None:
    monkeypatch.setattr(topics, "NEW_TOPIC_S", (0.0,) * 3)
    with pytest.raises(ClusterError, match="does not know it yet.*call again"):
        Slow(100).topic("calls", 12, 1, {}, alter=False)
