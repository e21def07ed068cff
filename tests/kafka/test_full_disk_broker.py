"""A node whose disk fills up, on a real broker: what went out makes room, and everything arrives."""

from __future__ import annotations

from pathlib import Path

from tests.kafka.live import WAIT_S, Live
from tests.support import eventually


def test_a_full_disk_frees_itself_once_its_records_went_out(kafka: str, small_disk: Path) -> None:
    live = Live(kafka)
    names = [b"%05d" % n for n in range(45_000)]
    with live.node(small_disk) as service:
        live.put(*(name.ljust(1000) for name in names), after_ms=25_000)
        eventually(lambda: "disk_full" in [p.kind for p in service.health().problems], timeout_s=WAIT_S)
        eventually(lambda: service.status()[0].ingested == len(names), timeout_s=WAIT_S * 2)
        eventually(lambda: len(live.delivered()) >= len(names), timeout_s=WAIT_S * 2)
        assert sorted(value.strip() for value in live.delivered()) == names
        eventually(lambda: service.health().problems == [], timeout_s=WAIT_S)
