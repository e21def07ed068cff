"""Changes one folder of the library, operator by operator, and lists the changes that no test of it notices.

    python -m tests.mutation                              # the folder of tonight
    python -m tests.mutation schedules --budget 90m
    python -m tests.mutation schedules/cron.py lookup/front.py

The marks in the code are for the rules of the protocol, and each has a test that fails without it. Everything else is
looked at by mutmut, a folder a night: the one of which most lines changed since the night before, or the next in turn.
mutmut notes which test meets which function, and runs those alone. Texts of errors and of the log are left as they are.
It works on a copy in a temporary directory.
Invariant: each survivor that is listed passed every test of its folder that calls the changed function.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filewheel.message import US_PER_S
from filewheel.timespec import parse_duration
from tests.support import REPO

TESTS = {
    "format": ["tests/format", "tests/native"],
    "disk": ["tests/disk", "tests/test_wheel.py"],
    "journal": ["tests/journal", "tests/test_wheel.py"],
    "laps": ["tests/laps", "tests/test_keeper.py"],
    "keys": ["tests/keys"],
    "lookup": ["tests/lookup", "tests/test_wheel.py"],
    "firing": ["tests/firing", "tests/test_keeper.py", "tests/test_keeper_settle.py"],
    "runs": ["tests/runs"],
    "metrics": ["tests/metrics"],
    "schedules": ["tests/schedules"],
    "scheduling": ["tests/scheduling"],
    "live": ["tests/live"],
    "tools": ["tests/tools"],
    "timers": ["tests/timers"],
    "kafka/records": ["tests/kafka/test_headers.py", "tests/kafka/test_options.py", "tests/kafka/test_envelope.py"],
    "kafka/partition": ["tests/kafka/test_partition.py", "tests/kafka/test_keyed.py", "tests/kafka/test_marker.py"],
}
"""The folders in turn, and the tests that concern each."""
LEFT_OUT = [r"^\s*raise\b", r"\bhint=", r"\blog\.\w+\(", r"\bwarnings\.warn\("]
"""Statements and lines with this are not changed: their words are for people."""
NOT_HERE = ["crash", "processes", "interrupted", "sanitized"]
"""Tests of other processes, or of single lines: they see the copies of a function that mutmut makes."""
COPIED = ["cli", "data", "docs", "README.md", "CHANGELOG.md", "Makefile"]


@dataclass(frozen=True)
class Survivor:
    """A change that every test passed."""

    name: str
    diff: str


def tonight(now: datetime | None = None) -> str:
    """Return the folder that changed most since the night before; without a change, the next in turn."""
    now = datetime.now(UTC) if now is None else now
    command = ["git", "log", "--since=24 hours ago", "--numstat", "--format=", "--", "filewheel"]
    log = subprocess.run(command, cwd=REPO, capture_output=True, text=True).stdout  # no history: the next in turn
    lines: Counter[str] = Counter()
    for added, _, path in (line.split("\t") for line in log.splitlines() if line.count("\t") == 2):
        for folder in TESTS:
            if path.startswith(f"filewheel/{folder}/") and added.isdecimal():
                lines[folder] += int(added)
    return lines.most_common(1)[0][0] if lines else list(TESTS)[now.toordinal() % len(TESTS)]


def copy(where: Path) -> None:
    """Copy what git knows of this tree, and what was compiled."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in [
        *filter(None, names.split("\0")),
        *(str(p.relative_to(REPO)) for p in REPO.glob("filewheel/native/*.so")),
    ]:
        if (REPO / name).is_file():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, where / name)


def configure(where: Path, chosen: Sequence[str]) -> None:
    """Tell mutmut what to change, and which tests to run."""
    files = [f"filewheel/{one}" if one.endswith(".py") else f"filewheel/{one}/*" for one in chosen]
    folders = {one if one in TESTS else next(f for f in TESTS if one.startswith(f"{f}/")) for one in chosen}
    tests = sorted({test for folder in folders for test in TESTS[folder]})
    config = {
        "source_paths": ["filewheel"],
        "only_mutate": files,
        "do_not_mutate_patterns": LEFT_OUT,
        "also_copy": COPIED,
        "pytest_add_cli_args_test_selection": tests,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-n", "0", "-k", " and ".join(f"not {w}" for w in NOT_HERE)],
    }
    with (where / "pyproject.toml").open("a") as file:
        file.write("\n[tool.mutmut]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in config.items()))


def play(where: Path, jobs: int, budget_s: float) -> str:
    """Run mutmut until it has tried all, or the time is up; return the last lines of its log."""
    log = where / "mutmut.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)], cwd=where, stdout=out, stderr=out,
            env={**os.environ, "FILEWHEEL_PURE": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(budget_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return re.sub(r".*\r", "", log.read_text(errors="replace"))[-4000:]


def results(where: Path) -> dict[str, str]:
    """Return what became of each change: killed, survived, no tests, timeout ..."""
    command = [sys.executable, "-m", "mutmut", "results", "--all", "true"]
    text = subprocess.run(command, cwd=where, capture_output=True, text=True).stdout
    found = (line.strip().rpartition(": ") for line in text.splitlines() if ": " in line)
    return {name: status for name, _, status in found}


def survivors(where: Path, found: dict[str, str]) -> Iterator[Survivor]:
    """Return each change that no test noticed, as a diff."""
    for name, status in sorted(found.items()):
        if status == "survived":
            shown = subprocess.run(
                [sys.executable, "-m", "mutmut", "show", name], cwd=where, capture_output=True, text=True
            ).stdout
            yield Survivor(name, "\n".join(line for line in shown.splitlines() if not line.startswith("#")).strip())


def main(arguments: Sequence[str]) -> int:
    """Play a folder, and write its survivors."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.partition("\n")[0])
    parser.add_argument("what", nargs="*", help="folders or files below filewheel/; without one, the folder of tonight")
    parser.add_argument("--budget", type=parse_duration, default="90m", metavar="DUR")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--to", type=Path, default=Path("survivors.txt"))
    given = parser.parse_args(arguments)
    chosen = given.what or [tonight()]
    with tempfile.TemporaryDirectory(prefix="filewheel-mutation-") as directory:
        where = Path(directory)
        copy(where)
        configure(where, chosen)
        print(f"{', '.join(chosen)}: changing, on {given.jobs} cores", flush=True)
        log = play(where, given.jobs, given.budget / US_PER_S)
        found = results(where)
        counts = Counter(found.values())
        if not counts["killed"]:
            print(log, file=sys.stderr)
            print("nothing was tried", file=sys.stderr)
            return 1
        said = ", ".join(f"{number:,} {status}" for status, number in counts.most_common())
        left = list(survivors(where, found))
    blocks = [f"== {one.name}\n{one.diff}\n" for one in left]
    given.to.write_text(f"{', '.join(chosen)}: {said}\n\n" + "\n".join(blocks))
    print(f"{said}; the survivors are in {given.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
