"""The service's own code in random schedules keeps what it promises; `make crash` plays many more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kafka.schedule import play


@pytest.mark.parametrize("seed", range(8))
def test_two_nodes_lose_nothing_and_double_nothing_that_is_promised_once(seed: int, tmp_path: Path) -> None:
    assert play(seed, tmp_path)["records"]
