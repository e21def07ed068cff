"""The benchmark of the delay service on a real broker: a small cell, and a node with 64 partitions, arrive whole."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.bench.kafka.measures import BY_NAME, cell
from tests.bench.kafka.rig import Rig, now_ms
from tests.bench.kafka.sides import BY_KEY
from tests.conftest import assert_whole

MANY = 64


def test_a_small_cell_on_a_real_broker_arrives_whole(kafka: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path / "broker", kafka)
    with cell(rig, BY_KEY["alo"], tmp_path / "cell", 0.05, 1000) as made:
        metrics = {metric.name: metric.value for metric in BY_NAME["late"].play(made)}
    assert metrics["wrong"] == 0
    assert metrics["p50"] <= metrics["p99"] <= metrics["max"]


def test_a_node_with_64_partitions_fires_each_and_ends_well(kafka: str, tmp_path: Path) -> None:
    rig = Rig(tmp_path / "broker", kafka)
    names = rig.topics(MANY)
    server = BY_KEY["alo"].start(kafka, names, tmp_path, "node")
    try:
        server.wait(lambda now: now["active"] >= MANY)
        soon = now_ms() + 500
        count = rig.produce(names, (soon + n for n in range(5 * MANY)), MANY)
        server.wait(lambda now: now["fired"] >= count)
        server.signal(signal.SIGTERM)
        assert server.process.wait(120) == 0, server.tail()
    finally:
        server.end()
    found = rig.arrived(names, count, MANY)
    assert (found.missing, found.twice, found.early) == (0, 0, 0)
    for partition in (0, MANY - 1):
        assert_whole(tmp_path / "node" / names.delay / str(partition))
    rig.drop(names)
