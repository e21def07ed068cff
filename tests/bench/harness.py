"""The rounds: every peer does every workload in turn, each in a fresh process and directory, and then again.

The order of the peers moves on by one each round, so that none always follows the same one. Invariant: a cell that
fails or is missing says so and leaves the others alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import filewheel
from tests.bench.cell import Metric
from tests.bench.result import Run
from tests.bench.workloads import Entry

TOP = Path(filewheel.__file__).parent.parent
CELL_S_MAX = 3600


@dataclass(frozen=True)
class Plan:
    """What to run."""

    workloads: Sequence[Entry]
    peers: Sequence[str]
    """Only these; empty for all."""
    rounds: int
    seconds: float
    scale: float
    seed: int


def run_plan(plan: Plan, place: str, directory: Path, run: Run, tell: Callable[[str], None]) -> None:
    """Run a plan in a directory of one place, adding to `run`; a fresh process for each cell."""
    for entry in plan.workloads:
        peers = [p for p in entry.peers if not plan.peers or p in plan.peers]
        for number in range(plan.rounds):
            turn = number % len(peers) if peers else 0
            for peer in peers[turn:] + peers[:turn]:
                cells = run.at(place, entry.name, peer)
                if cells.missing:
                    continue
                start = time.monotonic()
                found = run_child(plan, entry.name, peer, directory / "cell", number)
                if isinstance(found, str):
                    cells.missing = found
                    tell(f"{place} {entry.name} {peer}: {found}")
                else:
                    cells.add(number, found)
                    shown = ", ".join(f"{m.name} {m.value:,.4g} {m.unit}" for m in found[:6])
                    tell(f"{place} {entry.name} {peer} {number + 1}/{plan.rounds}: {shown}  [{time.monotonic() - start:.1f} s]")


def run_child(plan: Plan, workload: str, peer: str, directory: Path, number: int) -> list[Metric] | str:
    """Run one cell in a process of its own; return its metrics, or why there are none."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    os.sync()  # what the one before left to be written is not this one's work
    order = {
        "peer": peer, "workload": workload, "directory": str(directory), "seconds": plan.seconds,
        "scale": plan.scale, "seed": plan.seed + number,
    }  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.child", json.dumps(order)],
            cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True, timeout=CELL_S_MAX,
        )  # fmt: skip
        if done.returncode:
            return "failed: " + (done.stderr.strip().splitlines() or ["?"])[-1]
        said = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return f"not done after {CELL_S_MAX} s"
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return str(said["missing"]) if "missing" in said else [Metric(**m) for m in said["metrics"]]
