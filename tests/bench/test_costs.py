"""The small costs can be measured; how large they are is nobody's test."""

from __future__ import annotations

from pathlib import Path

from tests.bench.costs import costs


def test_every_small_cost_has_a_figure_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = dict(costs(str(tmp_path), 3))
    assert len(found) == 9
    assert all(us > 0 for us in found.values())
    assert not list(tmp_path.iterdir())
