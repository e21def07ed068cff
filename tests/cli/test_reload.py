"""`work --processes --stop --reload`: how many, how long, and a program that starts again when it changes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.failure import Failure
from cli.reload import Sources
from filewheel import BadArgument, Scheduler, Wheel
from tests.cli.support import finish, start, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually

APP = """
import os, pathlib, time
from filewheel import Scheduler

scheduler = Scheduler("jobs.wheel", threads=2, processes=1)


@scheduler.on()
def version(name):
    pathlib.Path(name).write_text("VERSION " + str(os.getpid()))


@scheduler.on()
def long(name):
    pathlib.Path(name + ".begun").touch()
    while not pathlib.Path(name + ".go").exists():
        time.sleep(0.01)
    pathlib.Path(name + ".done").touch()


@scheduler.on(where="process")
def apart(name):
    pathlib.Path(name + f".{os.getpid()}").touch()
    while len(list(pathlib.Path().glob(name + ".*"))) < 2:
        time.sleep(0.01)
"""


def write(app: Path, text: str) -> None:
    """Replace the source as an editor does."""
    (app / "app.new").write_text(text)
    (app / "app.new").replace(app / "app.py")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    write(tmp_path, APP.replace("VERSION", "1"))
    return tmp_path


def begin(app: Path, *args: object) -> subprocess.Popen[str]:
    return start("work", "app:scheduler", *args, cwd=app, env={"PYTHONPATH": str(REPO)})


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def said(process: subprocess.Popen[str], words: str) -> str:
    """Return the next line of stderr with these words."""
    assert process.stderr is not None
    return next(line for line in iter(process.stderr.readline, "") if words in line)


def test_so_many_processes_as_asked_for_call_at_once(app: Path) -> None:
    jobs = Scheduler(app / "jobs.wheel")
    for _ in range(2):
        jobs.enqueue("apart", ["p"])
    with stopped(begin(app, "--processes", "2")) as process:
        eventually(lambda: len(list(app.glob("p.*"))) == 2)
        eventually(lambda: jobs.wheel.stats().pending == 0)
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0
    with pytest.raises(BadArgument, match="processes is a count from 1"):
        jobs.processes = 0
    jobs.stop()


def test_running_calls_have_as_long_to_end_as_stop_says_and_are_offered_again(app: Path) -> None:
    jobs = Scheduler(app / "jobs.wheel")
    jobs.enqueue("long", ["a"])
    with stopped(begin(app, "--stop", "100ms")) as process:
        eventually((app / "a.begun").exists)
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert ended.code == 0
    assert "stopping: 1 calls have 0.1 s to end" in ended.err
    assert [m.topic for m in jobs.wheel.list()] == ["long"]
    jobs.stop()
    assert_whole(app / "jobs.wheel")


def test_a_changed_source_lets_running_calls_end_and_the_new_code_runs_in_another_process(app: Path) -> None:
    jobs = Scheduler(app / "jobs.wheel")
    with stopped(begin(app, "--reload", "--threads", "2")) as process:
        jobs.enqueue("version", ["one"])
        eventually(lambda: (app / "one").exists() and (app / "one").read_text())
        number, first = (app / "one").read_text().split()
        assert number == "1"
        jobs.enqueue("long", ["a"])
        eventually((app / "a.begun").exists)
        write(app, APP.replace("VERSION", "2"))
        said(process, "changed: app.py; starting again")
        said(process, "stopping: 1 calls have 30 s to end")
        assert children_of(process.pid) == [int(first)]
        (app / "a.go").touch()
        jobs.enqueue("version", ["two"])
        eventually(lambda: (app / "two").exists() and (app / "two").read_text())
        number, second = (app / "two").read_text().split()
        assert number == "2"
        assert second != first
        assert (app / "a.done").exists()
        assert children_of(process.pid) == [int(second)]
        process.send_signal(signal.SIGINT)
        assert finish(process).code == 0
        assert not runs(int(second))
    assert jobs.wheel.stats().pending == 0
    jobs.stop()
    assert_whole(app / "jobs.wheel")


def test_a_syntax_error_waits_for_the_next_change_and_says_so(app: Path) -> None:
    write(app, "def broken(:\n")
    jobs = Scheduler(app / "jobs.wheel")
    jobs.enqueue("version", ["one"])
    with stopped(begin(app, "--reload")) as process:
        said(process, "SyntaxError")
        said(process, "it ended with exit code 1; it starts again when a source file changes")
        assert children_of(process.pid) == []
        write(app, APP.replace("VERSION", "2"))
        eventually((app / "one").exists)
        write(app, "import not_there\n")
        said(process, "ModuleNotFoundError")
        said(process, "it starts again when a source file changes")
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0
    jobs.stop()


def test_the_program_ends_with_the_process_that_started_it_even_when_that_is_killed(app: Path) -> None:
    Wheel.create(app / "jobs.wheel").close()
    with stopped(begin(app, "--reload")) as process:
        said(process, "is the keeper now")
        (child,) = children_of(process.pid)
        process.kill()
        process.wait()
        eventually(lambda: not runs(child))
    assert_whole(app / "jobs.wheel")


def test_a_signal_reaches_a_running_call_once_and_a_second_one_cuts_it_short(app: Path) -> None:
    jobs = Scheduler(app / "jobs.wheel")
    jobs.enqueue("long", ["a"])
    with stopped(begin(app, "--reload")) as process:
        eventually((app / "a.begun").exists)
        (child,) = children_of(process.pid)
        os.kill(process.pid, signal.SIGINT)
        said(process, "stopping: 1 calls have 30 s to end")
        assert runs(child)
        os.kill(process.pid, signal.SIGINT)
        assert finish(process).code == 0
        eventually(lambda: not runs(child))
    assert [m.topic for m in jobs.wheel.list()] == ["long"]
    jobs.stop()


@pytest.mark.parametrize("args", [["--processes", "2"], ["--stop", "1s"], ["--reload"]])
def test_once_takes_none_of_them(app: Path, args: list[str]) -> None:
    assert "mean nothing" in finish(begin(app, "--once", *args)).err


def test_sources_are_the_python_files_that_are_not_hidden_or_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "a.py",
        "deep/b.py",
        ".hidden/c.py",
        "venv/pyvenv.cfg",
        "venv/lib/d.py",
        "lib/site-packages/e.py",
        "f.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    sources = Sources(str(tmp_path))
    assert len(sources) == 2
    assert sources.changed() == []
    (tmp_path / "deep" / "b.py").write_text("x")
    (tmp_path / "new.py").touch()
    (tmp_path / "a.py").unlink()
    (tmp_path / "f.txt").write_text("x")
    assert sources.changed() == [str(tmp_path / name) for name in ("a.py", "deep/b.py", "new.py")]
    assert sources.changed() == []
    monkeypatch.setattr("cli.reload._FILES_MAX", 1)
    with pytest.raises(Failure, match="Python files"):
        Sources(str(tmp_path))


def test_a_file_that_is_still_written_is_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = Sources(str(tmp_path))
    steps: list[Any] = [lambda: (tmp_path / "a.py").write_text("1\n2\n"), lambda: None]
    monkeypatch.setattr("cli.reload.time.sleep", lambda _: steps.pop(0)())
    (tmp_path / "a.py").write_text("1\n")
    assert sources.changed() == [str(tmp_path / "a.py")]
    assert steps == []
    assert sources.changed() == []


def test_a_change_in_the_second_of_the_last_one_and_of_the_same_length_is_run(app: Path) -> None:
    def dated(version: str, ns: int) -> None:
        (app / "app.new").write_text(APP.replace("VERSION", version))
        os.utime(app / "app.new", ns=(ns, ns))
        (app / "app.new").replace(app / "app.py")

    dated("1", 1_700_000_000 * 10**9)
    jobs = Scheduler(app / "jobs.wheel")
    with stopped(begin(app, "--reload")) as process:
        for number in ("1", "2"):
            jobs.enqueue("version", [f"v{number}"])
            eventually(lambda name=f"v{number}": (app / name).exists() and (app / name).read_text())
            assert (app / f"v{number}").read_text().split()[0] == number
            if number == "1":
                first = children_of(process.pid)
                dated("2", 1_700_000_000 * 10**9 + 5_000_000)
                eventually(lambda before=first: children_of(process.pid) not in ([], before))  # it took no more work
