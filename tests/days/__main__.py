"""Plays the tests that can depend on the day on days that are unlike others, in zones from UTC-12 to UTC+14.

    python -m tests.days                         # six days
    python -m tests.days --day leap -n 2 tests/test_cron.py
    python -m tests.days --all                   # every test, but those of a broker or of a day without an end

A test that fails on a Friday evening says nothing about the change that it was run for. Each day begins shortly before
its midnight or its change of the clocks, so that some tests run before it, some after it, and one across it. The clock
is moved by a library that is preloaded (clock.c): of all processes alike, and only the wall clock.
Invariant: the exit code is 0 only if each test passed on each day.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tests.crash.shim import compiler

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Day:
    """A moment at which the tests begin, and the zone of the machine."""

    name: str
    begins: str
    zone: str
    why: str


DAYS = (
    Day("evening", "2026-11-27T23:59:30Z", "UTC", "a Friday, thirty seconds before a Saturday"),
    Day("year", "2026-12-31T11:59:00Z", "Etc/GMT-12", "the last minute of a year; in UTC it is noon"),
    Day("forward", "2027-03-28T00:59:00Z", "Europe/Berlin", "a minute before the clocks skip an hour"),
    Day("saturday", "2027-07-31T09:58:00Z", "Pacific/Kiritimati", "a Saturday the 31st; the earliest zone, UTC+14"),
    Day("back", "2027-11-07T05:59:00Z", "America/New_York", "a minute before an hour comes twice"),
    Day("leap", "2028-02-29T11:58:00Z", "Etc/GMT+12", "two minutes before a 29 February; the latest zone, UTC-12"),
)

SHIFT = "CLOCK_SHIFT_S"
READS = re.compile(
    r"time\.time\(|time_ns|now\(|today|\btz\b|--tz|\bTZ\b|ZoneInfo|[Cc]ron|@(hourly|daily|weekly|monthly|yearly)"
    r"|mon-fri|schedule|--at\b|strftime|\bon_terminal\(|Fw\b|times\."
)
"""What the source of a test has that reads the day, or calls what does."""
NOT_ALL = ("kafka", "bench", "model", "crash", "project/test_dist.py")
"""Not even with --all: a broker has a clock of its own, the model reads none, a campaign takes what it gets."""


def files() -> list[str]:
    """Return the files of tests that can depend on the day."""
    found = (path for path in sorted(TESTS.rglob("test_*.py")) if _counts(path))
    return [str(path) for path in found if READS.search(path.read_text())]


def _counts(path: Path) -> bool:
    name = str(path.relative_to(TESTS))
    return name not in NOT_ALL and name.partition("/")[0] not in NOT_ALL


def build(where: Path) -> Path:
    """Compile the library that moves the clock."""
    made = where / "clock.so"
    source = Path(__file__).with_name("clock.c")
    subprocess.run([compiler() or "cc", "-O1", "-shared", "-fPIC", "-o", made, source, "-ldl"], check=True)
    return made


def environment(day: Day, library: Path) -> dict[str, str]:
    """Return the environment of a process for which this day begins now."""
    shift_s = round(datetime.fromisoformat(day.begins).timestamp() - time.time() + int(os.environ.get(SHIFT, "0")))
    return {**os.environ, "TZ": day.zone, SHIFT: str(shift_s), "LD_PRELOAD": str(library)}


def main(arguments: Sequence[str]) -> int:
    """Play the days, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.days", description=__doc__.partition("\n")[0])
    parser.add_argument("--day", action="append", choices=[day.name for day in DAYS], help="only this one")
    parser.add_argument("--all", action="store_true", help="all tests")
    chosen, rest = parser.parse_known_args(arguments)
    if not any(not one.startswith("-") and Path(one.partition("::")[0]).exists() for one in rest):
        rest += files() if not chosen.all else [str(p) for p in sorted(TESTS.rglob("test_*.py")) if _counts(p)]
    failed = []
    with tempfile.TemporaryDirectory(prefix="filewheel-days-") as directory:
        library = build(Path(directory))
        for day in DAYS:
            if chosen.day and day.name not in chosen.day:
                continue
            print(f"\n== {day.name}: {day.begins} in {day.zone}, {day.why}", flush=True)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rest]
            if subprocess.run(command, env=environment(day, library)).returncode:
                failed.append(day.name)
    print(f"\nfailed on: {', '.join(failed)}" if failed else "\npassed on each day")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
