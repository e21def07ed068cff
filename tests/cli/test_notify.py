"""What a service manager is told: ready, alive, ending. A socket of the test stands for systemd's."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.notify import Service
from filewheel import Keeper, Scheduler, Wheel, add_backup
from tests.cli.support import Fw, environment, finish, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually

WATCHDOG_S = 2.0


class Manager:
    """The socket of a service manager, and what came in."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1) if address.startswith("@") else address)
        self.env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
        self.lines: list[str] = []

    def heard(self, timeout_s: float = 60) -> list[str]:
        """Wait for a datagram, and return its lines; nothing when none came in that time."""
        self.socket.settimeout(timeout_s)
        try:
            lines = self.socket.recv(4096).decode().splitlines()
        except TimeoutError:
            return []
        self.lines += lines
        return lines

    def until(self, line: str) -> None:
        """Wait for a line."""
        while line not in self.lines:
            assert self.heard(), f"{line} never came: {self.lines}"

    def guard(self, process: subprocess.Popen[str]) -> None:
        """Kill the process when no sign of life came in the watchdog's time, as systemd does."""
        while "WATCHDOG=1" in self.heard(WATCHDOG_S):
            pass
        process.send_signal(signal.SIGKILL)

    def pings(self, count: int) -> None:
        """Wait for so many signs of life."""
        while count:
            lines = self.heard()
            assert lines, "no sign of life"
            count -= lines.count("WATCHDOG=1")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


PROGRAM = """
import os, threading, time
from filewheel import Scheduler

scheduler = Scheduler(os.environ["WHEEL"], create=False)


@scheduler.on()
def slow(until):
    while not os.path.exists(until):
        time.sleep(0.01)
"""


def program(tmp_path: Path, wheel: Path, more: str = "") -> dict[str, Any]:
    """Return the options of a process that finds the program as `app:scheduler`."""
    (tmp_path / "app.py").write_text(PROGRAM + textwrap.dedent(more))
    return {"env": {"WHEEL": str(wheel), "PYTHONPATH": f"{REPO}:{tmp_path}"}}


# -- the words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_service_is_ready_once_and_says_what_it_does_and_that_it_ends(tmp_path: Path, kind: str) -> None:
    address = str(tmp_path / "socket") if kind == "path" else f"@filewheel-test-{os.getpid()}"
    manager = Manager(address)
    environ = dict(manager.env) | {"WATCHDOG_PID": str(os.getpid())}
    with Service(environ) as service:
        service.report("opening\nit", ready=False)
        service.report("firing")
        service.report("firing")
        manager.pings(1)
    manager.until("STOPPING=1")
    manager.socket.close()
    told = [line for line in manager.lines if line != "WATCHDOG=1"]
    assert told == ["STATUS=opening it", "READY=1", "STATUS=firing", "STOPPING=1"]
    assert environ == {}, "the variables are not handed on to commands"


@pytest.mark.parametrize(
    "change",
    [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": ""}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "-5"}],
    ids=["the watchdog of another process", "no watchdog", "a watchdog of nothing", "no number"],
)
def test_without_a_watchdog_of_its_own_a_service_sends_no_signs_of_life(
    manager: Manager, change: dict[str, str]
) -> None:
    states = iter([(True, "one"), (True, "two"), (True, "three")])
    with Service({**manager.env, **change}) as service:
        service.watch(lambda: 0.0, lambda: next(states, (True, "end")))
        manager.until("STATUS=end")
    assert "WATCHDOG=1" not in manager.lines


def test_nothing_is_said_after_the_end_though_the_thread_was_about_to_say_it(manager: Manager) -> None:
    looks = threading.Event()
    service = Service(manager.env)

    def status() -> tuple[bool, str]:
        if threading.current_thread() is service._thread:
            looks.set()
            assert service._ended.acquire(timeout=60)
            service._ended.release()
        return True, "late" if looks.is_set() else "firing"

    with service:
        service.watch(lambda: 0.0, status)
        assert looks.wait(60)
    assert service._thread is not None
    assert not service._thread.is_alive()
    manager.until("STOPPING=1")
    told = [line for line in manager.lines if line != "WATCHDOG=1"]
    assert told == ["READY=1", "STATUS=firing", "STATUS=late", "STOPPING=1"]


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "/nonexistent/socket"])
def test_a_manager_that_cannot_be_reached_changes_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with Service({"NOTIFY_SOCKET": address}) as service:
        service.report("firing")
        service.report("on")
    assert len(caplog.records) == (1 if address.startswith("/") else 0)


# -- the verbs ------------------------------------------------------------------------------------------------


def test_run_is_ready_when_it_fires_and_ends_with_the_signal(fw: Fw, manager: Manager) -> None:
    process = fw.start("run", env=manager.env)
    with stopped(process):
        manager.until("READY=1")
        assert manager.lines[:2] == ["READY=1", "STATUS=firing"]
        manager.pings(2)
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        assert finish(process).code == 0


def test_a_standby_is_ready_and_says_so_and_then_that_it_fires(fw: Fw, manager: Manager) -> None:
    keeper = Keeper(fw.wheel)
    process = fw.start("run", env=manager.env)
    with stopped(process):
        manager.until("STATUS=standing by")
        assert manager.lines[:2] == ["READY=1", "STATUS=standing by"]
        manager.pings(2)
        keeper.close()
        manager.until("STATUS=firing")
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0


def test_a_command_gets_no_socket_and_may_take_longer_than_the_watchdog(
    fw: Fw, manager: Manager, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    fw.enqueue("--in", "0", "x")
    command = f"env > {tmp_path}/env; until test -e {done}; do sleep 0.05; done"
    process = fw.start("run", "--", "sh", "-c", command, env=manager.env)
    with stopped(process):
        manager.until("STATUS=firing: 1 command run, 0 done")
        manager.pings(10)  # two and a half times the watchdog
        done.touch()
        manager.until("STATUS=firing: 0 commands run, 1 done")
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0
    told = (tmp_path / "env").read_text()
    assert "NOTIFY_SOCKET" not in told
    assert "WATCHDOG" not in told
    assert fw.pending() == []


def test_work_is_ready_as_the_keeper_and_as_the_standby_and_a_long_handler_does_not_count(
    fw: Fw, manager: Manager, tmp_path: Path
) -> None:
    options = program(tmp_path, fw.wheel)
    done = tmp_path / "done"
    with Scheduler(fw.wheel) as other:
        assert other.wait_until_keeper(60)
        process = fw.start("work", "app:scheduler", env={**options["env"], **manager.env})
        with stopped(process):
            manager.until("STATUS=standing by")
            assert manager.lines[:2] == ["READY=1", "STATUS=standing by"]
            other.stop()
            manager.until("STATUS=firing")
            fw.enqueue("--in", "0", "--topic", "slow", "--args", f'["{done}"]')
            manager.pings(10)
            done.touch()
            eventually(lambda: fw.pending() == [])
            process.send_signal(signal.SIGTERM)
            manager.until("STOPPING=1")
            assert finish(process).code == 0


def test_a_wheel_that_cannot_be_opened_makes_work_not_ready(fw: Fw, manager: Manager, tmp_path: Path) -> None:
    options = program(tmp_path, fw.wheel, "import filewheel.scheduling.engine as e\ne.Keeper = None")
    process = fw.start("work", "app:scheduler", env={**options["env"], **manager.env})
    with stopped(process):
        manager.until("STATUS=cannot fire, and tries again: the log has the reason")
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        finish(process)
    assert "READY=1" not in manager.lines


def test_replicate_is_ready_and_says_how_its_backups_are(fw: Fw, manager: Manager, tmp_path: Path) -> None:
    add_backup(fw.wheel, tmp_path / "backup", mode="ship")
    process = fw.start("replicate", env=manager.env)
    with stopped(process):
        manager.until("STATUS=replicating: 1 following")
        assert "READY=1" in manager.lines
        manager.pings(2)
        process.send_signal(signal.SIGTERM)
        manager.until("STOPPING=1")
        assert finish(process).code == 0
    assert_whole(tmp_path / "backup")


# -- what hangs -----------------------------------------------------------------------------------------------


def hung(code: str, *args: object, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start the command line with a defect: `code` runs first; it may use `hang()`, which returns never."""
    start = """
        import sys, threading
        def hang(*a, **o):
            threading.Event().wait()
        {code}
        from cli.main import main
        sys.argv[1:] = {args}
        main()
    """
    program = textwrap.dedent(start).format(code=code, args=[str(a) for a in args])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        cwd=REPO, env=environment(**env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


DEFECTS: dict[str, tuple[str, Callable[[Fw, Path], list[object]]]] = {
    "the housekeeper of run": (
        "from filewheel.firing.housekeeper import Housekeeper as H; H.step = hang",
        lambda fw, tmp: ["-C", fw.wheel, "run"],
    ),
    "the loop of run": (
        "from filewheel import Keeper as K; K.wait = hang",
        lambda fw, tmp: ["-C", fw.wheel, "run"],
    ),
    "the main thread of run with a command": (
        "from cli.firing import CommandRunner as R; R._count = hang",
        lambda fw, tmp: ["-C", fw.wheel, "run", "--", "true"],
    ),
    "the engine of work": (
        "from filewheel.scheduling.dispatcher import Dispatcher as D; D.wait = hang",
        lambda fw, tmp: ["work", "app:scheduler"],
    ),
    "the housekeeper of work": (
        "from filewheel.firing.housekeeper import Housekeeper as H; H.step = hang",
        lambda fw, tmp: ["work", "app:scheduler"],
    ),
    "the loop of replicate": (
        "from filewheel import Replicator as R; R._turn = hang",
        lambda fw, tmp: ["-C", fw.wheel, "replicate"],
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_when_this_hangs_the_watchdog_is_not_told_any_more(
    fw: Fw, manager: Manager, tmp_path: Path, defect: str
) -> None:
    options = program(tmp_path, fw.wheel)
    fw.enqueue("--in", "0", "--topic", "slow", "--args", '["/"]')
    if "command" in defect:
        fw("cancel", "--all", "--yes")
        fw.enqueue("--in", "0", "x")
    if "replicate" in defect:
        add_backup(fw.wheel, tmp_path / "backup", mode="ship")
    if defect in ("the housekeeper of run", "the loop of run"):
        fw("cancel", "--all", "--yes")
    code, args = DEFECTS[defect]
    process = hung(code, *args(fw, tmp_path), env={**options["env"], **manager.env})
    with stopped(process):
        assert process.stderr is not None
        manager.until("READY=1")
        for line in process.stderr:
            if "the watchdog is not told any more" in line:
                break
        else:
            raise AssertionError("it was told until the end")
        manager.guard(process)
        assert process.wait() == -signal.SIGKILL
    with Wheel(fw.wheel) as wheel:
        assert not wheel.has_keeper()


def test_a_keeper_that_was_stopped_is_ended_by_its_manager_and_the_standby_fires(fw: Fw, manager: Manager) -> None:
    keeper, standby = fw.start("run", env=manager.env), None
    with stopped(keeper):
        manager.until("STATUS=firing")
        standby = fw.start("run")
        with stopped(standby):
            assert standby.stderr is not None
            assert "standing by" in standby.stderr.readline()
            keeper.send_signal(signal.SIGSTOP)
            (id_,) = fw.enqueue("--in", "0", "x")
            manager.guard(keeper)
            assert standby.stdout is not None
            assert id_ in standby.stdout.readline()
            standby.send_signal(signal.SIGTERM)
            assert finish(standby).code == 0
