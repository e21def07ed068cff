"""The measurement of sets runs, small, and says what it measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import heals, sets


def test_each_measurement_prints_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "RATES", (200,))
    sets.following(tmp_path / "a", tmp_path / "b", seconds=0.5)
    sets.first_copy(tmp_path / "c", tmp_path / "d", count=20_000)
    sets.mirrored(tmp_path / "e", tmp_path / "f", seconds=0.2)
    said = capsys.readouterr().out
    assert "200 a second: behind " in said
    assert "first copy of 20,000: " in said
    assert "`cp -a` and `sync -f`: " in said
    assert "mirrored, 8 threads: " in said


def test_heals_are_measured_beside_bare_copies_of_what_they_bring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    heals.main(tmp_path / "here", tmp_path / "there", count=20_000, rounds=1)
    said = capsys.readouterr().out
    assert "first copy: 20,000 messages, " in said
    assert "after three days: 20,000 messages, " in said
    assert "half of its laps lost: " in said
    assert said.count("a bare copy") == 6
