"""The measurement of sets runs, small, and says what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import sets


def test_each_measurement_prints_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "RATES", (200,))
    sets.following(tmp_path / "a", tmp_path / "b", seconds=0.5)
    sets.first_copy(tmp_path / "c", tmp_path / "d", count=20_000)
    said = capsys.readouterr().out
    assert "200 a second: behind " in said
    assert "first copy of 20,000: " in said
