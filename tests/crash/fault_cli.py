"""Campaign: the command line on a disk that fails: documented exit codes, one line on stderr, and no traceback.

One process a point, armed by its environment (shim.c). A round is one point: every ROUNDS-th of all.
Invariant: what `enqueue` printed and exited 0 with is pending afterwards; whatever failed, a schedule that was there is
there.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cli.failure import MEANING
from filewheel import Wheel
from tests.crash import shim
from tests.crash.campaign import Campaign, Tally
from tests.crash.shim import KINDS, Plan

COMMANDS = {
    "init": (["init"], False),
    "enqueue": (["enqueue", "--in", "60", "hello"], True),
    "schedule": (["schedule", "nightly", "@daily", "hello"], True),
    "run": (["run", "--once", "--raw"], True),
    "verify": (["verify"], True),
}
ROUNDS = 150


class CommandLine:
    """The shim, a prepared wheel, and all points."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._shim = shim.build(top)
        self._prepared = top / "prepared"
        self._prepared.mkdir()
        with Wheel.create(self._prepared / "w") as wheel:
            wheel.enqueue_many([b"due", b"later"], delay=[0, 5000])
            wheel.schedule("hourly", "@hourly", b"due too")
            wheel.reschedule(key="filewheel.every:hourly", delay=0)  # `run` fires it
        self.points = [(name, plan) for name in COMMANDS for plan in shim.plans(self._count(name))]

    def _count(self, name: str) -> dict[str, int]:
        counts = self._top / "counts"
        done, place = self.run(name, Plan(), FILEWHEEL_SHIM_COUNTS=str(counts))
        assert done.returncode == 0, done.stderr
        shutil.rmtree(place)
        return dict(zip(KINDS, map(int, counts.read_text().split()), strict=False))

    def run(self, name: str, plan: Plan, **environment: str) -> tuple[subprocess.CompletedProcess[str], Path]:
        """Run a command on a copy of the wheel; return how it ended, and where that is."""
        words, needs_wheel = COMMANDS[name]
        place = Path(tempfile.mkdtemp(dir=self._top))
        if needs_wheel:
            shutil.copytree(self._prepared / "w", place / "w")
        numbers = ":".join(map(str, plan.numbers))
        variables = {"FILEWHEEL_SHIM_PREFIX": str(place), "FILEWHEEL_SHIM_PLAN": numbers, **environment}
        done = subprocess.run(
            [sys.executable, "-m", "cli", "-C", str(place / "w"), *words],
            env=shim.environment(self._shim) | variables, cwd=shim.SOURCE.parents[2], text=True,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        return done, place

    def play(self, name: str, plan: Plan, tally: Tally) -> None:
        """Play one point and judge it."""
        done, place = self.run(name, plan)
        tally.count("points")
        what = f"{name}, {plan}: exit {done.returncode}"
        if not (plan.kills and done.returncode == -9):
            tally.check(done.returncode in MEANING, f"{what}: not documented; {done.stderr}")
            tally.check(done.returncode == 0 or done.stderr, f"{what}: says nothing")
        tally.check("Traceback" not in done.stderr, f"{what}: {done.stderr}")
        if name == "enqueue" and done.returncode == 0:
            with Wheel(place / "w") as wheel:
                tally.check(wheel.get(done.stdout.split()[0]), f"{what}: {done.stdout} is not pending")
        if COMMANDS[name][1]:
            self._check_schedules(name, done.returncode, place, what, tally)
        shutil.rmtree(place)

    @staticmethod
    def _check_schedules(name: str, code: int, place: Path, what: str, tally: Tally) -> None:
        with Wheel(place / "w") as wheel:
            there = {stored.name for stored in wheel.schedules()}
        expected = {"hourly", "nightly"} if name == "schedule" and code == 0 else {"hourly"}
        tally.check(expected <= there, f"{what}: the schedules are {there}")


@contextlib.contextmanager
def rig() -> Iterator[CommandLine]:
    """Build the shim and count the calls of each command."""
    with tempfile.TemporaryDirectory(prefix="filewheel-fault-cli-") as top:
        yield CommandLine(Path(top))


def play(number: int, tally: Tally, line: CommandLine) -> None:
    """Play every ROUNDS-th point, from the number on."""
    for name, plan in line.points[number % ROUNDS :: ROUNDS]:
        line.play(name, plan, tally)


CAMPAIGN = Campaign(
    name="fault-cli",
    title="the same of the command line, with its exit codes",
    play=play,
    share=0.01,
    targets={"points": 800},
    rig=rig,
    missing=shim.missing,
    rounds=ROUNDS,
    short=1,
)
