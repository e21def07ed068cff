"""The benchmark of the timers: a small run, and the goals that it judges."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from filewheel.timers import BinaryHeap
from tests.bench.timers.__main__ import PAGE, filled, goal_table, table
from tests.bench.timers.child import burst
from tests.bench.timers.contestants import OfScheme, contestants
from tests.bench.timers.goals import MANY, goals
from tests.bench.timers.measure import Cost, measure
from tests.bench.timers.plot import draw
from tests.support import REPO


def cost(name: str, pending: int, ns: float) -> dict[str, Any]:
    return {"name": name, "pending": pending, "start_ns": ns, "stop_ns": ns, "pair_ns": ns, "tick_ns": None}


def test_a_run_without_figures_meets_no_goal_and_misses_none() -> None:
    found = goals({"costs": [], "memory": {}})
    assert len(found) == 7
    assert {goal.is_met for goal in found} == {None}
    assert goal_table(found).count("not measured") == 7


def test_each_goal_is_met_at_its_bound_and_missed_beyond_it() -> None:
    def run(factor: float) -> list[bool | None]:
        mine = [cost("LoopWheel", n, 100) for n in (10_000, MANY)] + [cost("LoopWheel", 10 * MANY, 150 * factor)]
        others = [cost("asyncio", MANY, 300 / factor), cost("uvloop", MANY, 300 / factor)]
        threads = [cost("threading.Timer", 100, 10_000 / factor)]
        memory = {"LoopWheel": {str(MANY): 200 * factor}, "asyncio": {str(MANY): 200}}
        life = {"LoopWheel": {"count": MANY, "idle_share": 0.001 * factor, "pause_s": 0.05 * factor, "late_s": 0}}
        return [g.is_met for g in goals({"costs": mine + others + threads, "memory": memory, "life": life})]

    assert run(1) == [True] * 7
    assert run(1.01) == [False] * 7


def test_a_contestant_is_measured_in_a_process_of_its_own_and_shown_in_the_table() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.bench.timers", "--only", "LoopWheel,growing", "--most", "1000",
         "--seconds", "0.001", "--no-life"],
        cwd=REPO, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "| LoopWheel |" in run.stdout
    assert "| growing |" in run.stdout
    assert "failed" not in run.stderr


def test_a_table_has_a_place_for_each_size_and_the_threads_at_their_own() -> None:
    costs = [cost("sched", 1000, 5), cost("threading.Timer", 100, 7)]
    memory = {"sched": {"1000": 10.0}, "threading.Timer": {"100": 16000.0}}
    lines = table({"sizes": [1000, 10_000], "costs": costs, "memory": memory}).splitlines()
    assert lines[2:] == ["| sched | 5 |  |  | 10 |", "| threading.Timer | 7 (at 100) |  |  | 16,000 |"]


def test_a_burst_is_measured_to_its_last_timer() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        return await burst(loop, loop, 100)

    pause_s, _ = asyncio.run(main())
    assert pause_s > 0


def test_no_two_contestants_have_one_name() -> None:
    names = [contestant.name for contestant in contestants()]
    assert len(set(names)) == len(names) >= 12


def test_the_page_has_a_place_for_what_is_measured() -> None:
    page = PAGE.read_text()
    once = filled(page, "the table\n")
    assert "the table" in once
    assert filled(once, "the table\n") == once
    assert once.partition("<!--")[0] == page.partition("<!--")[0]


def test_a_contestant_that_cannot_have_so_many_says_how_many_it_had() -> None:
    (threads,) = [c for c in contestants() if c.name == "threading.Timer"]
    threads.most = 3
    assert [cost.pending for cost in measure(threads, [1000], 0.001)] == [3]


def test_a_list_that_is_filled_again_for_each_size_has_that_size() -> None:
    heap = OfScheme("heap", 100, BinaryHeap)
    heap.refills = True
    sizes = []
    for cost in measure(heap, [10, 100], 0.001):
        sizes.append((cost.pending, len(heap.scheme)))
    assert sizes == [(10, 10), (100, 100)]


def test_a_plot_has_a_line_for_each_contestant(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    costs = [Cost(name, n, 1, 1, n * 2.0, 5.0) for name in ("growing", "LoopWheel") for n in (10, 100)]
    draw(costs, tmp_path / "a.svg")
    draw(costs, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert "LoopWheel" in (tmp_path / "a.svg").read_text()
