"""The rounds: every peer does every workload in turn, each in a fresh process and directory, and then again.

The order of the peers moves on by one each round, so that none always follows the same one. Invariant: a cell that
fails or is missing says so and leaves the others alone; whatever a cell started is gone when the next one begins, also
when the run is interrupted.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
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
Tell = Callable[[str], None]


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
    child: str = "tests.bench.child"
    """The module that is a cell's process."""
    cell_s_max: float = CELL_S_MAX


def run_plan(plan: Plan, place: str, directory: Path, run: Run, tell: Tell) -> None:
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
                found = run_child(plan, entry.name, peer, directory / "work" / "cell", number)
                took = f"[{time.monotonic() - start:.1f} s]"
                if isinstance(found, str):
                    cells.missing = found
                    tell(f"{place} {entry.name} {peer}: {found} {took}")
                else:
                    cells.add(number, found)
                    shown = ", ".join(f"{m.name} {m.value:,.4g} {m.unit}" for m in found[:6])
                    tell(f"{place} {entry.name} {peer} {number + 1}/{plan.rounds}: {shown}  {took}")


def run_child(plan: Plan, workload: str, peer: str, directory: Path, number: int) -> list[Metric] | str:
    """Run one cell in a process of its own; return its metrics, or why there are none."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sync_of(directory)  # what the one before left to be written is not this one's work
    order = {
        "peer": peer, "workload": workload, "directory": str(directory), "seconds": plan.seconds,
        "scale": plan.scale, "seed": plan.seed + number,
    }  # fmt: skip
    home = tempfile.mkdtemp(prefix="fwb-")  # short: servers put their sockets there
    child = subprocess.Popen(
        [sys.executable, "-m", plan.child, json.dumps(order)],
        cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP), "TMPDIR": home}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = child.communicate(timeout=plan.cell_s_max)
    except subprocess.TimeoutExpired:
        return f"failed: not done after {plan.cell_s_max:g} s"
    finally:
        end_group(child)
        for path in (directory, home):
            shutil.rmtree(path, ignore_errors=True)
    if child.returncode:
        last = (err.strip().splitlines() or [f"exit {child.returncode}"])[-1]
        return "failed: " + placeless(last, directory, home)
    try:
        said = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return "failed: it said " + repr(placeless(out, directory, home)[-100:])
    return placeless(said["missing"], directory, home) if "missing" in said else [Metric(**m) for m in said["metrics"]]


def placeless(text: str, directory: Path, home: str) -> str:
    """Return what a cell said without the places where it ran: nobody else has them, and they are others each time."""
    text = re.sub(re.escape(str(directory)) + r"(/[\w.-]*\w)?", "the store", text)
    return text.replace(home, "its own directory")


def end_group(child: subprocess.Popen[str]) -> None:
    """End a cell's process and all that it started: they are a session of their own, so Ctrl-C reaches none of them."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    end = time.monotonic() + 5
    while time.monotonic() < end:  # those whose parent is gone are waited for by init; until then they hold the mount
        try:
            os.killpg(child.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def sync_of(directory: Path) -> None:
    """Write back the file system that a directory is on, and no other one: others may have much to write."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(directory, os.O_RDONLY)
    try:
        if not hasattr(libc, "syncfs") or libc.syncfs(fd):
            os.sync()
    finally:
        os.close(fd)
