"""`work`: a program's scheduler from the shell: what it imports, how it goes on, and how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Scheduler, Wheel
from tests.cli.support import Fw, Result, finish, forked, start, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually

APP = """
import asyncio, os, pathlib, threading
from filewheel import AsyncScheduler, Retry, Scheduler

scheduler = Scheduler("jobs.wheel", threads=2, processes=1)
aio = AsyncScheduler("aio.wheel", stop_s=0.5)
number = 7


class Settings:
    inner = scheduler


@scheduler.on()
def write(name, text=""):
    pathlib.Path(name).write_text(text or name)


@scheduler.on(where="process")
def apart(name):
    pathlib.Path(name).write_text(str(os.getpid()))


@scheduler.on(retry=Retry(limit=1, delay_s=3600))
def fails(times):
    raise ValueError("no such\\x1b[2J user")


crowd_of_3 = threading.Barrier(3)


@scheduler.on()
def crowd(name):
    crowd_of_3.wait(120)
    pathlib.Path(name).touch()


@scheduler.on(rate_per_s=0.001)
def slowly():
    pass


@aio.on()
async def soon(name):
    await asyncio.sleep(0.01)
    pathlib.Path(name).touch()


@aio.on()
async def hangs(name):
    pathlib.Path(name).touch()
    await asyncio.sleep(3600)
"""
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (INFO|WARNING|ERROR) \S")


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def begin(app: Path, *args: object) -> subprocess.Popen[str]:
    return start("work", *args, cwd=app, env={"PYTHONPATH": str(REPO)})


def work(app: Path, *args: object, code: int = 0) -> Result:
    result = finish(start(command=forked("work", *args), cwd=app))
    assert result.code == code, result
    return result


def fire_on(path: Path) -> Scheduler:
    """A scheduler to enqueue through, of no handlers."""
    return Scheduler(path)


# -- once ------------------------------------------------------------------------------------------------------


def test_once_calls_what_is_due_says_nothing_and_leaves_the_rest(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    jobs.enqueue("write", ["a"])
    jobs.enqueue("write", ["b"], {"text": "kw"})
    jobs.enqueue("write", ["c"], delay=3600)
    result = work(app, "app:scheduler", "--once")
    assert (result.out, result.err) == ("", "")
    assert ((app / "a").read_text(), (app / "b").read_text()) == ("a", "kw")
    assert [m.topic for m in jobs.wheel.list()] == ["write"]
    jobs.stop()
    assert_whole(app / "jobs.wheel")


def test_once_with_failures_exits_with_3_and_counts_them(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    jobs.enqueue("fails", [1])
    jobs.enqueue("fails", [])
    jobs.enqueue("write", ["a"])
    result = work(app, "app:scheduler", "--once", "--json", code=3)
    assert result.json == [{"settled": 3, "retried": 2, "dead": 0, "unknown": 0, "deferred": 0, "paused": 0}]
    assert result.error["error"] == "partly"
    logged = result.err.splitlines()[:-1]
    assert all(LINE.match(line) or line.startswith("  ") for line in logged), logged
    assert any("ValueError: no such\\x1b[2J user" in line for line in logged)
    jobs.stop()


def test_once_with_a_call_whose_handler_nobody_has_exits_with_3_and_says_so(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    jobs.enqueue("nobody", [1])
    jobs.enqueue("write", ["a"])
    result = work(app, "app:scheduler", "--once", "--json", code=3)
    assert result.json == [{"settled": 2, "retried": 0, "dead": 0, "unknown": 1, "deferred": 0, "paused": 0}]
    assert "1 done, 0 to be tried again, 0 dead letters, 1 without a handler" in result.error["message"]
    assert [m.topic for m in jobs.wheel.list()] == ["nobody"]
    jobs.stop()


def test_once_with_a_call_that_waits_for_its_rate_exits_with_0_and_counts_it(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    for _ in range(400):
        jobs.enqueue("slowly", sync="never")
    (result,) = work(app, "app:scheduler", "--once", "--json").json
    assert (result["settled"], result["deferred"]) == (1, 399)
    jobs.stop()


def test_once_runs_an_async_scheduler_and_one_in_a_class(app: Path) -> None:
    aio, jobs = fire_on(app / "aio.wheel"), fire_on(app / "jobs.wheel")
    aio.enqueue("soon", ["there"])
    jobs.enqueue("write", ["here"])
    work(app, "app:aio", "--once")
    work(app, "app:Settings.inner", "--once")
    assert (app / "there").exists()
    assert (app / "here").exists()
    aio.stop()
    jobs.stop()


def test_once_beside_a_keeper_is_exit_code_11(app: Path) -> None:
    Wheel.create(app / "jobs.wheel").close()
    with Keeper(app / "jobs.wheel"):
        assert "Error: " in work(app, "app:scheduler", "--once", code=11).err


# -- on and on -------------------------------------------------------------------------------------------------


def test_so_many_threads_as_asked_for_call_at_once(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    for name in "abc":
        jobs.enqueue("crowd", [name])
    with stopped(begin(app, "app:scheduler", "--threads", "3")) as process:
        eventually(lambda: all((app / name).exists() for name in "abc"))
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0
    with pytest.raises(BadArgument, match="threads is a count from 1"):
        jobs.threads = 0
    jobs.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_of_them_one_fires_and_the_other_takes_over(app: Path, number: int) -> None:
    jobs = fire_on(app / "jobs.wheel")
    with stopped(begin(app, "app:scheduler")) as first:
        jobs.enqueue("write", ["by-first"])
        eventually((app / "by-first").exists)
        with stopped(begin(app, "app:scheduler")) as second:
            assert second.stderr is not None
            said = [second.stderr.readline() for _ in range(2)]
            assert f"process {second.pid} starts app:scheduler on {app}/jobs.wheel: write, apart, fails" in said[0]
            assert f"standing by: process {first.pid}" in said[1]
            first.send_signal(number)
            ended = finish(first)
            assert (ended.code, ended.out) == (0, "")
            assert [LINE.match(line) is not None for line in ended.err.splitlines()] == [True] * 3
            assert ended.err.splitlines()[-1].endswith(f"process {first.pid} has stopped")
            jobs.enqueue("apart", ["by-second"])
            eventually(lambda: (app / "by-second").exists() and (app / "by-second").read_text())
            assert (app / "by-second").read_text() != str(second.pid)
            second.send_signal(number)
            ended = finish(second)
            assert ended.code == 0
            assert f"process {second.pid} is the keeper now, and fires" in ended.err
    jobs.stop()


OWNER = """
import pathlib
from filewheel import Scheduler

scheduler = Scheduler("jobs.wheel")
scheduler.every(1, name="tick")(scheduler.on("tick")(lambda: pathlib.Path("ticks").open("a").write("x")))
"""
OTHER = """
from filewheel import Scheduler

scheduler = Scheduler("jobs.wheel")
scheduler.on("other")(lambda: None)
"""


def test_a_schedule_outlives_a_program_that_does_not_declare_it_and_is_late_as_long_as_that_fires(
    tmp_path: Path,
) -> None:
    (tmp_path / "owner.py").write_text(OWNER)
    (tmp_path / "other.py").write_text(OTHER)
    fw = Fw(tmp_path / "jobs.wheel")
    ticks = tmp_path / "ticks"
    with stopped(begin(tmp_path, "owner:scheduler")) as owner:
        eventually(lambda: ticks.exists() and ticks.read_text())
        with stopped(begin(tmp_path, "other:scheduler")) as other:
            assert other.stderr is not None
            eventually(lambda: "standing by" in other.stderr.readline())
            owner.kill()
            eventually(lambda: "the schedule 'tick' waits" in other.stderr.readline())
            before = ticks.read_text()
            with stopped(begin(tmp_path, "owner:scheduler")) as again:
                assert again.stderr is not None
                eventually(lambda: "standing by" in again.stderr.readline())
                (listed,) = fw("schedule", "list").json
                assert "waits for a program that declares it" in listed["waits"]
                assert fw("health", "--max-lag", "0s", code=22).json[0]["kind"] == "late"
                assert ticks.read_text() == before
                other.send_signal(signal.SIGTERM)
                eventually(lambda: len(ticks.read_text()) > len(before))
                again.send_signal(signal.SIGTERM)
                assert finish(again).code == 0
    with Wheel(tmp_path / "jobs.wheel") as wheel:
        (stored,) = wheel.schedules()
    assert_whole(tmp_path / "jobs.wheel")
    assert stored.occurrence.waits is None


def test_ctrl_c_lets_a_call_end_for_the_grace_and_then_cancels_it(app: Path) -> None:
    aio = fire_on(app / "aio.wheel")
    aio.enqueue("hangs", ["begun"])
    with stopped(begin(app, "app:aio")) as process:
        eventually((app / "begun").exists)
        process.send_signal(signal.SIGINT)
        ended = finish(process)
    assert ended.code == 0
    assert "stopping: 1 calls have 0.5 s to end" in ended.err
    assert [m.topic for m in aio.wheel.list()] == ["hangs"]
    aio.stop()


def test_quiet_leaves_only_what_fails(app: Path) -> None:
    jobs = fire_on(app / "jobs.wheel")
    jobs.enqueue("fails", [1])
    jobs.enqueue("write", ["done"], delay=0.1)
    with stopped(begin(app, "-q", "app:scheduler")) as process:
        eventually((app / "done").exists)
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
    (line,) = [line for line in ended.err.splitlines() if not line.startswith("  ")]
    assert " WARNING fails " in line
    jobs.stop()


def test_a_program_that_configures_logging_has_the_lines_its_own_way(app: Path) -> None:
    (app / "own.py").write_text(
        "import logging\nfrom app import scheduler\n"
        "logging.basicConfig(level='INFO', format='OWN %(name)s %(message)s')\n"
    )
    with stopped(begin(app, "own:scheduler")) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("OWN filewheel.work process ")
        assert process.stderr.readline().startswith("OWN filewheel")
        process.send_signal(signal.SIGTERM)
        ended = finish(process)
    assert all(line.startswith("OWN ") for line in ended.err.splitlines()), ended.err


# -- what cannot be run ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [
        ("app", 2, "MODULE:NAME"),
        ("app.py:scheduler", 2, "MODULE:NAME"),
        (":scheduler", 2, "MODULE:NAME"),
        ("app:", 2, "MODULE:NAME"),
        ("nowhere:scheduler", 2, "there is no module 'nowhere'"),
        ("app.sub:scheduler", 2, "there is no module 'app.sub'"),
        ("app:scheduled", 2, "has no 'scheduled'\nTry: app:scheduler, app:aio"),
        ("app:Settings.outer", 2, "has no 'Settings.outer'"),
        ("app:number", 2, "app:number is a int, not a Scheduler\nTry: app:scheduler, app:aio"),
        ("app:write", 2, "is a Handler, not a Scheduler"),
        ("needs:scheduler", 1, "importing needs raised ModuleNotFoundError: No module named 'not_there'"),
        ("raises:scheduler", 1, "raised ZeroDivisionError: division by zero"),
        ("leaves:scheduler", 1, "raised SystemExit: 0"),
        ("wrong:scheduler", 1, "wrong.py:2"),
    ],
)
def test_what_is_no_scheduler_is_said_in_a_line(app: Path, target: str, code: int, said: str) -> None:
    (app / "needs.py").write_text("import not_there\n")
    (app / "raises.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (app / "leaves.py").write_text("raise SystemExit(0)\n")
    (app / "wrong.py").write_text("x = 1\ndef f(:\n")
    result = work(app, target, "--once", code=code)
    assert said in result.err
    assert "Traceback" not in result.err
    if target == "raises:scheduler":
        assert f"({app}/raises.py:2)" in result.err
    assert not (app / "jobs.wheel").exists()


def test_threads_and_once_exclude_each_other(app: Path) -> None:
    assert "one after another" in work(app, "app:scheduler", "--once", "--threads", "2", code=2).err
    work(app, "app:scheduler", "--threads", "0", code=2)


def test_what_is_no_wheel_ends_it_at_once(app: Path) -> None:
    (app / "jobs.wheel").mkdir()
    (app / "jobs.wheel" / "letter.txt").touch()
    for option in ((), ("--once",)):
        result = work(app, "app:scheduler", *option, code=1)
        assert f"Error: {app}/jobs.wheel" in result.err
        assert "Traceback" not in result.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_program_is_still_imported_ends_it_with_0_and_says_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, threading\npathlib.Path('begun').touch()\nthreading.Event().wait(60)\n"
    )
    with stopped(start("work", "slow:scheduler", cwd=tmp_path, env={"PYTHONPATH": str(REPO)})) as process:
        eventually((tmp_path / "begun").exists, 60)
        process.send_signal(number)
        assert finish(process) == Result(0, "", "")
