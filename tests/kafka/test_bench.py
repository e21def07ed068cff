"""The benchmark of the delay service on a real broker: a small cell arrives whole."""

from __future__ import annotations

from pathlib import Path

from tests.bench.kafka.measures import BY_NAME, cell
from tests.bench.kafka.rig import Rig
from tests.bench.kafka.sides import BY_KEY


def test_a_small_cell_on_a_real_broker_arrives_whole(kafka: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path / "broker", kafka)
    with cell(rig, BY_KEY["alo"], tmp_path / "cell", 0.05, 1000) as made:
        metrics = {metric.name: metric.value for metric in BY_NAME["late"].play(made)}
    assert metrics["wrong"] == 0
    assert metrics["p50"] <= metrics["p99"] <= metrics["max"]
