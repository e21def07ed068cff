"""Two hundred partitions on one node: what each costs, and that a busy one does not stop the others."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import assert_whole
from tests.kafka.many import EACH, HOT, play

PARTITIONS = 200


def test_two_hundred_partitions_cost_little_each_and_a_hot_one_starves_none(tmp_path: Path) -> None:
    costs = play(tmp_path, PARTITIONS)
    assert costs.fired == HOT + EACH * (PARTITIONS - 1)
    assert costs.starved == 0
    assert costs.memory_kib < 400
    assert costs.files < 9
    assert costs.upkeep < 6  # calls in an idle minute
    for partition in (0, 1, PARTITIONS - 1):
        assert_whole(tmp_path / "delay" / str(partition))
