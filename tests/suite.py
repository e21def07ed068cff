"""Runs the suite as `make test` does: all tests side by side, then alone those that failed.

Some tests kill processes, unplug disks and wait for brokers, on machines that are busy with something else. A test that
fails beside others and then passes alone, twice, does not fail the run: it is named in the output, and in `AGAIN` from
run to run. One that fails again does, and so do more than `AT_MOST` failures, an error of the collection, or anything
else that ended the run. In a new checkout everything is compiled once first: each process of the run would compile all
of it, for 13 seconds. Where no bytecode may be written beside the sources, it is kept in the virtual environment.
Invariant: the exit code is 0 only if each test passed beside the others, or twice alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

AT_MOST = 2
"""So many failed tests are run again; more are no accident."""
AGAIN = Path("again.jsonl")
"""Lists the tests that were run again, by any run of this checkout, and whether they passed."""

ROUNDS = 2
ROOM_BYTES = 4 << 30
"""So much room in memory holds the temporary directories of tests that run; those of tests that passed are removed."""


class Failures:
    """Collects the names of the tests that failed, also those of other processes of the run."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.broken = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.names:
            self.names.append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.broken = self.broken or report.failed


def keep_bytecode(folder: Path) -> None:
    """Keep bytecode in a folder if none may be written beside the sources; also of processes started later."""
    if sys.dont_write_bytecode:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(folder)
        sys.dont_write_bytecode = False


def compile_once(tests: Path) -> None:
    """Compile the tests and what they import, if that was never done here: each core collects a share of the files."""
    compiled = Path(importlib.util.cache_from_source(str(tests.resolve() / "test.py"))).parent
    if sys.dont_write_bytecode or any(compiled.glob("*-pytest-*.pyc")):
        return
    files, cores = sorted(map(str, tests.rglob("test_*.py"))), os.cpu_count() or 1
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    # The run itself reports a file that cannot be collected.
    running = [
        subprocess.Popen([*command, *share], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for n in range(cores)
        if (share := files[n::cores])
    ]
    for one in running:
        one.wait()


@contextlib.contextmanager
def in_memory(folder: Path = Path("/dev/shm")) -> Iterator[list[str]]:
    """Yield the options for temporary directories in memory, where there is room: a flush costs nothing there.

    What a flush does on a disk is tested by the campaigns, on file systems of their own.
    """
    if not os.access(folder, os.W_OK) or shutil.disk_usage(folder).free < ROOM_BYTES:
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="filewheel-tests-", dir=folder, ignore_cleanup_errors=True) as made:
        yield [f"--basetemp={made}/t"]


def run(arguments: list[str]) -> int:
    """Run pytest with `arguments`, then the failed tests alone; return the exit code."""
    failures = Failures()
    with in_memory() as options:
        code = int(pytest.main([*options, *arguments], plugins=[failures]))
    names = failures.names
    if code != pytest.ExitCode.TESTS_FAILED or failures.broken or not 0 < len(names) <= AT_MOST:
        return code
    print(f"\n{len(names)} failed beside the others; now alone, {ROUNDS} times:\n  " + "\n  ".join(names), flush=True)
    for _ in range(ROUNDS):
        code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "0", *names]).returncode
        if code:
            break
    with AGAIN.open("a") as file:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        file.writelines(json.dumps({"at": now, "test": name, "passed": not code}) + "\n" for name in names)
    if code:
        return code
    print("Passed alone, so they depend on the load of the machine. Mend them:\n  " + "\n  ".join(names), flush=True)
    return 0


if __name__ == "__main__":
    if sys.prefix != sys.base_prefix:
        keep_bytecode(Path(sys.prefix) / "bytecode")
    compile_once(Path("tests"))
    sys.exit(run(sys.argv[1:]))
