"""The command line: what is chosen, and what is said when nothing can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.__main__ import _chosen, main
from tests.bench.cell import Metric
from tests.bench.result import Run


def test_a_name_is_itself_and_a_beginning_is_all_that_begin_so() -> None:
    assert [e.name for e in _chosen("batch-10,late", "late-100,late-1000")] == ["batch-10", "late-10000"]
    assert [e.name for e in _chosen("batch", "")] == ["batch-10", "batch-100", "batch-1000", "batch-10000"]
    assert len(_chosen("", "growth,replay")) == len(_chosen("", "")) - 2


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--only", "fly"], "no workload 'fly'; there are one,"),
        (["--peers", "oracle"], "no peer 'oracle'; there are bare,"),
    ],
)
def test_what_does_not_exist_is_said_before_anything_runs(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_a_place_that_cannot_be_had_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--only", "one", "--peers", "bare", "--rounds", "1", "--seconds", "0.01", "--dir", str(tmp_path)]
    assert main([*argv, "--places", "ntfs"]) == 1
    assert main([*argv, "--places", "ntfs,plain"]) == 0
    captured = capsys.readouterr()
    assert "ntfs: left out, no file system 'ntfs'" in captured.err
    assert "pwrite + fdatasync" in captured.out


def test_a_run_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run({})
    run.at("plain", "one", "sqlite").add(0, [Metric("rate", 1234, "/s")])
    run.save(tmp_path / "run.json")
    assert main(["--show", str(tmp_path / "run.json")]) == 0
    assert "| SQLite, WAL, FULL | durable | 1,234 |" in capsys.readouterr().out
