"""The small costs can be measured; how large they are is nobody's test."""

from __future__ import annotations

from pathlib import Path

from tests.bench.costs import costs, mirrored


def test_every_small_cost_has_a_figure_and_nothing_is_left_behind(tmp_path: Path) -> None:
    found = dict(costs(str(tmp_path), 3))
    assert len(found) == 9
    assert all(us > 0 for us in found.values())
    assert not list(tmp_path.iterdir())


def test_a_mirrored_copy_has_figures_beside_those_of_one_copy(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    found = dict(mirrored(str(tmp_path / "a"), str(tmp_path / "b"), 3))
    assert len(found) == 6
    assert all(us > 0 for us in found.values())
    assert not [*(tmp_path / "a").iterdir(), *(tmp_path / "b").iterdir()]
