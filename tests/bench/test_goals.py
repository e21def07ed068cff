"""Each goal has a line, and the line says whether it was met."""

from __future__ import annotations

from tests.bench.cell import Metric
from tests.bench.goals import GOALS, goals
from tests.bench.result import Run


def line_of(run: Run, what: str, than: str) -> str:
    return next(line for line in goals(run, "ext4").splitlines() if what in line and than in line)


def test_a_run_that_measured_nothing_says_so_of_every_goal() -> None:
    lines = goals(Run({}), "ext4").splitlines()
    assert len(lines) == len(GOALS) + 2
    assert all("not measured | - |" in line for line in lines[2:])


def test_a_ratio_that_is_reached_is_met_and_one_below_is_not() -> None:
    run = Run({})
    for peer, rate in (("filewheel", 3000.0), ("sqlite", 1000.0), ("sqlite-clustered", 1001.0)):
        run.at("ext4", "threads", peer).add(0, [Metric("rate", rate, "/s")])
        run.at("ext4", "processes", peer).add(
            0, [Metric("rate", min(rate, 3000.0) * (peer != "sqlite-clustered") or 999.0, "/s")]
        )
    assert line_of(run, "8 threads", "best SQLite").endswith("| 3 | **no** |")  # 2.997
    assert line_of(run, "8 processes", "best SQLite").endswith("| 3 | yes |")


def test_a_limit_that_is_kept_is_met_and_one_passed_is_not() -> None:
    run = Run({})
    for name, value in (("one at 10,000", 100.0), ("one at 10,000,000", 110.0), ("open files at 10,000,000", 65.0)):
        run.at("ext4", "growth", "filewheel").add(0, [Metric(name, value, "us", up=False)])
    assert line_of(run, "an enqueue with", "one with").endswith("| 1.1 | yes |")
    assert line_of(run, "open files with", "files").endswith("| 65 | **no** |")
