"""The forked command of the pages (tests/warm.py) shows what a process of its own shows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import environment
from tests.support import eventually
from tests.warm import program_of, warm

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd: each command is a process of its own")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("warm") / "filewheel"
    with warm() as text:
        path.write_text(text)
        path.chmod(0o755)
        yield path


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["enqueue", "--help"], "", 0),
        (["no-such-verb"], "", 2),
        (["-C", "nowhere", "stats"], "", 10),
        (["-C", "made", "load"], "no line of a dump\n", 2),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)
def test_output_and_exit_code_are_those_of_a_process_of_its_own(
    arguments: list[str], stdin: str, code: int, script: Path, tmp_path: Path
) -> None:
    seen = []
    for name, command in (("forked", [str(script)]), ("own", [sys.executable, "-W", "error", "-m", "cli"])):
        directory = tmp_path / name
        directory.mkdir()
        if "made" in arguments and "init" not in arguments:
            subprocess.run([*command, "-C", "made", "init"], cwd=directory, env=environment(), check=True)
        done = subprocess.run(
            [*command, *arguments], cwd=directory, env=environment(), input=stdin, capture_output=True, text=True
        )
        seen.append((done.returncode, done.stdout.replace(name, "-"), done.stderr.replace(name, "-")))
    assert seen[0] == seen[1]
    assert seen[0][0] == code, seen


def test_a_variable_of_the_call_counts_and_one_of_the_call_before_does_not(script: Path, tmp_path: Path) -> None:
    for _ in range(2):
        made = subprocess.run([script, "init"], cwd=tmp_path, env=environment(FILEWHEEL="named"), capture_output=True)
        assert made.returncode in (0, 1), made
        assert subprocess.run([script, "stats"], cwd=tmp_path, env=environment(), capture_output=True).returncode == 10
    assert os.listdir(tmp_path) == ["named"]


def test_a_script_that_is_killed_takes_its_command_with_it(script: Path, tmp_path: Path) -> None:
    subprocess.run([script, "-C", "jobs", "init"], cwd=tmp_path, env=environment(), check=True)
    get, put = os.pipe()
    waits = subprocess.Popen(
        [script, "-C", "jobs", "enqueue", "--batch", "-"], cwd=tmp_path, env=environment(), stdin=get, pass_fds=[put]
    )
    os.close(get)
    written = os.write(put, b'{"body": "x", "delay": 60}\n' * 2)
    assert written
    eventually(lambda: waits.poll() is None and _readers(put) >= 2)
    waits.send_signal(signal.SIGKILL)
    waits.wait()
    eventually(lambda: _readers(put) == 0)
    os.close(put)


def test_a_program_on_stdin_ends_and_prints_as_with_an_interpreter_of_its_own(script: Path, tmp_path: Path) -> None:
    forked = tmp_path / "python-block"
    forked.write_text(program_of(script.read_text()))
    forked.chmod(0o755)
    program = """
import sys, threading
from filewheel import Scheduler
threading.Thread(target=lambda: (threading.main_thread().join(), print("a thread was waited for"))).start()
print(sys.argv, __name__, sys.modules["__main__"].Scheduler is Scheduler, sys.stdin.read() == "")
if "filewheel" in sys.modules:
    raise SystemExit(7)
"""
    seen = []
    for command in ([forked], [sys.executable, "-W", "error", "-"]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), input=program, capture_output=True, text=True, check=False
        )
        seen.append((done.returncode, sorted(done.stdout.splitlines()), done.stderr))
    assert seen[0] == seen[1]
    assert seen[0][0] == 7


def _readers(put: int) -> int:
    """How many processes read from a pipe."""
    pipe, found = os.readlink(f"/proc/self/fd/{put}"), 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(fd) == pipe for fd in (process / "fd").iterdir() if fd.name == "0"]
        except OSError:
            continue
        found += any(files)
    return found
