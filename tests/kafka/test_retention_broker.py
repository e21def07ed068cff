"""Retention removed records on a real broker while a node was away. More of it in memory: test_retention.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel.kafka.node.owner import PartitionState
from tests.kafka.live import WAIT_S, Live
from tests.support import eventually, some

IN_LOG = pytest.mark.parametrize(
    "in_transaction", some([True, False], one_of=2), ids=lambda once: "transactions" if once else "plain"
)


@IN_LOG
def test_a_node_with_a_wheel_that_is_older_than_the_log_serves_again(
    kafka: str, tmp_path: Path, in_transaction: bool
) -> None:
    live = Live(kafka)
    live.put(b"one", in_transaction=in_transaction)
    with live.node(tmp_path / "a"):
        live.wait_for(b"one")
    live.put(b"two", b"three", in_transaction=in_transaction)
    with live.node(tmp_path / "b", "b"):
        live.wait_for(b"one", b"two", b"three")
    live.delete_before(-1)
    with live.node(tmp_path / "a") as service:
        live.put(b"four", in_transaction=in_transaction)
        live.wait_for(b"one", b"two", b"three", b"four")
        assert service.status()[0].state is PartitionState.ACTIVE
        assert service.health().problems == []


@IN_LOG
def test_on_gap_skip_goes_on_with_the_wheel_of_the_node(kafka: str, tmp_path: Path, in_transaction: bool) -> None:
    live = Live(kafka)
    live.put(b"kept", after_ms=15_000, in_transaction=in_transaction)
    with live.node(tmp_path / "a") as service:
        eventually(lambda: service.status() and service.status()[0].ingested, timeout_s=WAIT_S)
    live.put(b"deleted", b"deleted too", b"left", after_ms=1000, in_transaction=in_transaction)
    live.delete_before(4 if in_transaction else 3)
    with live.node(tmp_path / "a") as service:
        eventually(lambda: service.status() and service.status()[0].state is PartitionState.FAILED, timeout_s=WAIT_S)
    with live.node(tmp_path / "a", on_gap="skip") as service:
        live.wait_for(b"kept", b"left")
        # Offsets are counted. The one of the transaction's marker is among them unless the node had read on to it.
        assert service.status()[0].skipped in ((2, 3) if in_transaction else (2,))


def test_a_standby_with_a_wheel_that_is_older_than_the_log_follows_again(kafka: str, tmp_path: Path) -> None:
    live = Live(kafka)
    live.put(b"one")
    with live.node(tmp_path / "a"):
        live.wait_for(b"one")
    live.put(b"two", b"three")
    with live.node(tmp_path / "b", "b") as owner:
        live.wait_for(b"one", b"two", b"three")
        live.delete_before(-1)
        with live.node(tmp_path / "a", standby="all") as standby:
            live.put(b"four", after_ms=60_000)
            keeper = standby.node.standby
            assert keeper is not None
            eventually(lambda: keeper.positions() == {0: 4}, timeout_s=WAIT_S)
            assert owner.status()[0].ingested == 4
