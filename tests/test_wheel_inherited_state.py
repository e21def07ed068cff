"""What a process gets from its parent: standard streams, signals, limits, a working directory, an environment.

A row of the table in docs/operations.md has a test here, or where its comment says.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncWheel, Keeper, Scheduler, Wheel
from tests.cli.support import Fw, environment, finish, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually, some

LINES = 200
BODY = "x" * 4000


# -- standard streams that are closed --------------------------------------------------------------------------

CLOSED = """
import os, sys, threading, time
for fd in range(3):
    os.close(fd)
import filewheel
from filewheel import AsyncWheel, Keeper, Scheduler, Wheel

def look():
    held = set()
    for fd in range(3):
        try:
            held.add((fd, os.readlink(f"/proc/self/fd/{fd}")))
        except OSError:
            pass
    return held

def check(what):
    held = look()
    if held:
        time.sleep(0.05)  # another thread opens a file for a moment, and moves it up
    held &= look()
    if held:
        with open(sys.argv[2], "a") as file:
            file.write(f"{what}: {held}\\n")

path = sys.argv[1]
wheel = Wheel(path)
check("open")
wheel.enqueue(b"first", key="k", delay=3600)
check("enqueue")
wheel.reschedule(wheel.enqueue(b"second", delay=60), delay=70)
list(wheel.list())
check("list")
wheel.pause(topic="x")
keeper = Keeper(path)
check("keeper")
keeper.wait(0.01)
wheel.enqueue(b"now", topic="t")
keeper.ack(keeper.claim())
check("ack")
standby = threading.Thread(target=lambda: Keeper(path).close())
standby.start()
keeper.close()
standby.join()
check("close")
for fd in range(3):
    try:
        os.write(fd, b"a warning of a library")
    except OSError:
        continue
    check(f"written to {fd}")
wheel.close()
"""


def test_no_file_of_a_wheel_has_the_number_of_a_standard_stream_that_was_closed(
    wheel_dir: Path, tmp_path: Path
) -> None:
    said = tmp_path / "said"
    command = [sys.executable, "-c", CLOSED, str(wheel_dir), str(said)]
    assert subprocess.run(command, cwd=REPO, env=environment(), check=False, timeout=120).returncode == 0
    assert not said.exists(), said.read_text()
    with Wheel(wheel_dir) as wheel:
        assert sorted(m.payload for m in wheel.list()) == [b"first", b"second"]


POOL = """
import os, sys, time
import filewheel

scheduler = filewheel.Scheduler(sys.argv[1], processes=1)

@scheduler.on("job", where="process")
def job(n):
    with open(sys.argv[2], "a") as file:
        file.write(f"{n}\\n")

if __name__ == "__main__":
    for fd in range(3):
        os.close(fd)
    scheduler.start()
    for n in range(3):
        job.after(0, n)
    while len(open(sys.argv[2]).read().splitlines()) < 3:
        time.sleep(0.01)
    scheduler.stop()
"""


def test_processes_of_a_pool_work_below_a_parent_without_standard_streams(wheel_dir: Path, tmp_path: Path) -> None:
    program, done = tmp_path / "program.py", tmp_path / "done"
    program.write_text(POOL)
    done.touch()
    command = [sys.executable, str(program), str(wheel_dir), str(done)]
    assert subprocess.run(command, cwd=tmp_path, env=environment(), check=False, timeout=120).returncode == 0
    assert sorted(done.read_text().split()) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "verb", [["enqueue", "--in", "1h", "x"], ["run", "--once", "--", "sh", "-c", "echo out; echo err >&2"], ["verify"]]
)
def test_each_verb_works_without_standard_streams(fw: Fw, verb: list[str]) -> None:
    fw.enqueue("--in", "0", "x")
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "cli", "-C", str(fw.wheel), *verb]
    assert subprocess.run(command, cwd=REPO, env=environment(), check=False, timeout=120).returncode == 0


# -- streams that do not wait ----------------------------------------------------------------------------------


def slowly_read(*args: object, fw: Fw) -> tuple[int, bytes]:
    """Run a verb whose stdout is a full pipe that does not wait, and that is read late."""
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writes, False)
    process = fw.start(*args, stdout=writes)
    try:
        eventually(lambda: _is_full(writes))
    finally:
        os.close(writes)
    with os.fdopen(reads, "rb") as file:
        out = file.read()
    result = finish(process)
    return result.code, out


def _is_full(fd: int) -> bool:
    import select

    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return not poll.poll(0)


@pytest.fixture
def many(fw: Fw) -> Fw:
    with Wheel(fw.wheel, sync="never") as wheel:
        wheel.enqueue_many([BODY.encode()] * LINES)
    return fw


@pytest.mark.parametrize("verb", [["dump"], ["inspect", "list"], ["run", "--once"]])
def test_all_of_the_output_comes_through_a_pipe_that_does_not_wait(many: Fw, verb: list[str]) -> None:
    code, out = slowly_read(*verb, fw=many)
    assert code == 0
    assert len([json.loads(line) for line in out.splitlines()]) == LINES + (verb[0] == "dump")
    with Wheel(many.wheel) as wheel:
        assert wheel.stats().pending == (0 if verb[0] == "run" else LINES)


def test_a_stream_of_which_another_program_took_the_wait_away_meanwhile_is_waited_for(many: Fw) -> None:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    process = many.start("dump", stdout=writes)
    eventually(lambda: _is_full(writes))
    assert os.read(reads, 100)
    os.set_blocking(writes, False)
    eventually(lambda: _is_full(writes))
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        out = file.read()
    assert finish(process).code == 0
    assert out.count(b"\n") == LINES + 1


@pytest.mark.parametrize(
    ("verb", "count"),
    [
        (["enqueue", "--batch"], LINES),
        (["load"], LINES),
        (["enqueue", "--in", "1h", "-"], 1),
        (["schedule", "load", "-", "--source", "s"], 2),
    ],
)
def test_all_of_the_input_is_read_from_a_pipe_that_does_not_wait(
    tmp_path: Path, many: Fw, verb: list[str], count: int
) -> None:
    text = {
        "enqueue": f'{{"in": "1h", "payload": "{BODY}"}}\n' * LINES,
        "load": many("dump").out,
        "schedule": "0 1 * * * true\n" + "#" * 4000 + "\n0 2 * * * true\n",
    }[verb[0]]
    other = Fw(tmp_path / "other")
    other("init")
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    process = other.start(*verb, stdin=reads)
    os.close(reads)
    data = text.encode()
    for part in range(0, len(data), len(data) // 3 + 1):
        eventually(lambda: process.poll() is not None or _is_waiting(process.pid))
        with os.fdopen(os.dup(writes), "wb") as file:
            file.write(data[part : part + len(data) // 3 + 1])
    os.close(writes)
    result = finish(process)
    assert result.code == 0, result
    with Wheel(other.wheel) as wheel:
        assert wheel.stats().pending == count
        if count == 1:
            assert [m.payload for m in wheel.list()] == [data]


def _is_waiting(pid: int) -> bool:
    """Whether a process sleeps, with nothing to do."""
    return _state(pid) == "S"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# -- signals ---------------------------------------------------------------------------------------------------


def ignoring(*numbers: int) -> Callable[[], None]:
    def change() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)

    return change


def blocking(*numbers: int) -> Callable[[], None]:
    return lambda: signal.pthread_sigmask(signal.SIG_BLOCK, numbers) and None


def test_a_command_that_fails_has_failed_though_the_parent_ignored_sigchld(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    options: dict[str, Any] = {"preexec_fn": ignoring(signal.SIGCHLD)}
    fw.process("run", "--once", "--retries", "0", "--", "false", code=3, **options)
    assert len(fw.dead()) == 1


def test_an_exit_code_that_something_else_has_taken_is_no_success(fw: Fw) -> None:
    """As for a program that runs the command inside of itself, and ignores SIGCHLD."""
    fw.enqueue("--in", "0", "x")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        fw("run", "--once", "--retries", "0", "--", "true", code=3)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "its exit code is not known" in fw("inspect", "list", "--dead").out + fw("dead", "list").out


WORKS = """
import time
import filewheel
scheduler = filewheel.Scheduler({path!r})

@scheduler.on("job", where={where!r}, retry=filewheel.Retry(limit=0))
def job(begun, done):
    open(begun, "w").close()
    while not __import__("os").path.exists(done):
        time.sleep(0.01)
"""


@pytest.fixture
def app(wheel_dir: Path, tmp_path: Path) -> Callable[[str], Path]:
    def write(where: str) -> Path:
        (tmp_path / "app.py").write_text(WORKS.format(path=str(wheel_dir), where=where))
        return tmp_path

    return write


def enqueue_job(fw: Fw, begun: Path, done: Path) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.enqueue("job", [str(begun), str(done)])
    scheduler.stop()


@pytest.mark.parametrize("verb", ["run", "run command", "work", "serve", "replicate"])
def test_a_service_ends_in_order_though_its_parent_blocked_the_signal(
    fw: Fw, app: Callable[[str], Path], verb: str
) -> None:
    folder = app("thread")
    options: dict[str, Any] = {"preexec_fn": blocking(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    if verb == "replicate":
        fw("backup", "add", str(fw.wheel.with_name("backup")))
    words = {
        "run": ["run"],
        "run command": ["run", "--", "true"],
        "work": ["work", "app:scheduler"],
        "serve": ["serve", "--listen", "127.0.0.1:0"],
        "replicate": ["replicate"],
    }[verb]
    with stopped(fw.start(*words, cwd=folder, **options)) as process:
        eventually(lambda: process.poll() is not None or _catches(process.pid, signal.SIGTERM))
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, finish(process)


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_job_runs_to_its_end_when_sigterm_goes_to_all_processes_of_the_service(
    fw: Fw, app: Callable[[str], Path], tmp_path: Path, where: str
) -> None:
    """systemd's default does that to a control group, timeout(1) and a shell's `kill 0` to a process group."""
    begun, done = tmp_path / "begun", tmp_path / "done"
    enqueue_job(fw, begun, done)
    with stopped(fw.start("work", "app:scheduler", cwd=app(where), start_new_session=True)) as process:
        eventually(begun.exists)
        os.killpg(process.pid, signal.SIGTERM)
        assert "stopping" in next(line for line in iter(process.stderr.readline, "") if "stopping" in line)  # type: ignore[union-attr]
        done.touch()
        assert process.wait(60) == 0
    assert fw.dead() == fw.pending() == []


def test_a_command_that_sigterm_ended_together_with_run_has_not_failed(fw: Fw, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    fw.enqueue("--in", "0", "x")
    script = f"touch {begun}; exec sleep 60"
    with stopped(fw.start("run", "--retries", "0", "--", "sh", "-c", script)) as process:
        eventually(begun.exists)
        (child,) = _children(process.pid)
        os.kill(int(child), signal.SIGTERM)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 0
    assert fw.dead() == []
    assert [m["attempt"] for m in fw.pending()] == [0]


def _children(pid: int) -> list[str]:
    return [one for task in Path(f"/proc/{pid}/task").iterdir() for one in (task / "children").read_text().split()]


def test_a_command_that_is_ended_by_sigterm_alone_has_failed(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    fw.process("run", "--once", "--retries", "0", "--", "sh", "-c", "kill $$", code=3)
    assert len(fw.dead()) == 1


@pytest.mark.parametrize("verb", [["run"], ["work", "app:scheduler"]])
def test_what_the_parent_ignores_on_purpose_stays_ignored(fw: Fw, app: Callable[[str], Path], verb: list[str]) -> None:
    """A shell without job control ignores SIGINT for what it starts in the background: Ctrl-C is for others."""
    with stopped(fw.start(*verb, cwd=app("thread"), preexec_fn=ignoring(signal.SIGINT))) as process:
        eventually(lambda: _catches(process.pid, signal.SIGTERM))
        assert not _catches(process.pid, signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_a_child_of_work_reload_is_gone_with_a_parent_that_was_killed(fw: Fw, app: Callable[[str], Path]) -> None:
    """It would have the keeper's lock for as long as its calls take to end."""
    begun = fw.wheel.with_name("begun")
    enqueue_job(fw, begun, Path("/nonexistent"))
    with stopped(fw.start("work", "app:scheduler", "--reload", cwd=app("thread"))) as process:
        eventually(begun.exists)
        (child,) = _children(process.pid)
        process.kill()
        eventually(lambda: not Path(f"/proc/{child}").exists() or _state(int(child)) == "Z", 10)
        Keeper(fw.wheel).close()  # it waits for the last thread of the child


# -- the working directory, the umask, limits, the environment ---------------------------------------------------


@pytest.mark.parametrize("verb", [["enqueue", "--in", "1h", "x"], ["run", "--once"], ["run", "--once", "--", "true"]])
def test_a_verb_works_in_a_working_directory_that_was_removed(fw: Fw, tmp_path: Path, verb: list[str]) -> None:
    fw.enqueue("--in", "0", "x")
    gone = tmp_path / "gone"
    gone.mkdir()
    command = ["sh", "-c", f'cd {gone}; rmdir {gone}; exec "$@"', "sh", sys.executable, "-m", "cli"]
    done = subprocess.run([*command, "-C", str(fw.wheel), *verb], env=environment(), check=False, timeout=120)
    assert done.returncode == 0


def test_a_relative_path_in_a_working_directory_that_was_removed_is_said_to_be_missing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    for verb in ("init", "inspect", "run"):
        command = [
            "sh",
            "-c",
            f'mkdir -p {gone}; cd {gone}; rmdir {gone}; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "cli",
        ]
        done = subprocess.run(
            [*command, verb], env=environment(), check=False, timeout=120, capture_output=True, text=True
        )
        assert done.returncode == 10, done
        assert "does not exist" in done.stderr or "no such directory" in done.stderr


REMOVED = """
import os, sys, logging, queue
import filewheel

said = queue.SimpleQueue()

class Told(logging.Handler):
    def emit(self, record):
        said.put(record.getMessage())

def job():
    pass

if __name__ == "__main__":
    logging.getLogger("filewheel").addHandler(Told())
    scheduler = filewheel.Scheduler(sys.argv[1], processes=1)
    scheduler.on("job", where="process", retry=filewheel.Retry(limit=0))(job)
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    scheduler.start()
    scheduler.enqueue("job")
    while "the working directory was removed" not in said.get(timeout=60):
        pass
    os.chdir(sys.argv[2])
    while scheduler.wheel.stats().pending or scheduler.wheel.stats().dead:
        pass
    print(scheduler.metrics.counts("acknowledged"))
    scheduler.stop()
"""


def test_calls_in_processes_wait_while_the_working_directory_is_gone_and_are_made_when_there_is_one(
    wheel_dir: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(REMOVED)
    command = [sys.executable, str(program), str(wheel_dir), str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), check=False, timeout=120, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "{'job': 1}\n"), done


@pytest.mark.parametrize(
    "locale", [{"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}, {"LC_ALL": "en_US.ISO-8859-1"}]
)
def test_a_command_gets_the_topic_in_utf8_whatever_the_locale(fw: Fw, locale: dict[str, str]) -> None:
    with Wheel(fw.wheel) as wheel:
        wheel.enqueue("körper".encode(), topic="größe €", headers={"wo": "日本"})
    script = 'printf "%s|%s|%s" "$FILEWHEEL_TOPIC" "$FILEWHEEL_H_WO" "$(cat)" | od -An -tx1'
    done = fw.process("run", "--once", "--retries", "0", "--", "sh", "-c", script, env=locale)
    assert bytes.fromhex(done.out) == "größe €|日本|körper".encode()


def test_an_environment_with_bytes_that_are_no_text_reaches_the_command_as_it_is(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    command = ["env", b"ODD=\xff\xfe", sys.executable, "-m", "cli", "-C", str(fw.wheel), "run", "--once", "--"]
    script = 'printf "%s" "$ODD" | od -An -tx1'
    done = subprocess.run([*command, "sh", "-c", script], cwd=REPO, env=environment(), check=True, capture_output=True)
    assert done.stdout.split() == [b"ff", b"fe"]


def without_capabilities(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the shell that may open a file only as its mode says, root too."""
    user = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    if user and not shutil.which("setpriv"):
        pytest.skip("root may open every file, and there is no setpriv")
    prelude = f'filewheel() {{ "{sys.executable}" -W error -m cli "$@"; }}\n'
    return subprocess.run(
        [*user, "sh", "-c", prelude + command], cwd=folder, env=environment(PYTHONDONTWRITEBYTECODE="1"),
        check=False, timeout=120, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("umask", some(["777", "277", "000", "077"], one_of=2))
def test_files_of_a_wheel_can_be_opened_again_whatever_the_umask(tmp_path: Path, umask: str) -> None:
    script = f"filewheel init && umask {umask} && filewheel enqueue --in 0 --key k one"
    script += " && filewheel enqueue --in 9d two && filewheel run --once"
    script += " && filewheel enqueue --in 0 three && filewheel run --once && filewheel verify"
    done = without_capabilities(script, tmp_path)
    assert done.returncode == 0, done
    assert done.stdout.count('"payload": "one"') == done.stdout.count('"payload": "three"') == 1
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "wheel").rglob("*")}
    assert modes <= {0o600, 0o700}
    assert_whole(tmp_path / "wheel")


def test_a_umask_under_which_no_directory_can_be_used_leaves_no_half_made_wheel(tmp_path: Path) -> None:
    done = without_capabilities("umask 777; filewheel init", tmp_path)
    assert done.returncode == 1
    assert "access was refused" in done.stderr
    assert os.listdir(tmp_path) == []


def test_without_room_for_another_process_a_command_has_not_begun_and_is_started_when_there_is(
    fw: Fw, monkeypatch: pytest.MonkeyPatch
) -> None:
    import cli.child

    real, refused = subprocess.Popen, [3]

    def popen(*args: Any, **options: Any) -> Any:
        if refused[0]:
            refused[0] -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real(*args, **options)

    fw.enqueue("--in", "0", "x")
    monkeypatch.setattr(cli.child.subprocess, "Popen", popen)
    result = fw("run", "--once", "--retries", "0", "--", "cat", code=1)
    assert "Resource temporarily unavailable" in result.err
    assert fw.pending()[0]["attempt"] == 0
    monkeypatch.setattr("cli.firing._REST_S", 0.01)
    fw("run", "--until-empty", "--retries", "0", "--", "true")
    assert refused == [0]
    assert fw.dead() == fw.pending() == []


@pytest.mark.parametrize(
    "odd",
    [
        {"TMPDIR": "/nonexistent"},
        {"TZ": "Nowhere/At_All"},
        {"COLUMNS": "x", "LINES": "-3"},
        {"PYTHONIOENCODING": "ascii:strict", "PYTHONUNBUFFERED": "1", "PYTHONOPTIMIZE": "2"},
        {"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "LANG": "zz_ZZ.nothing", "LC_ALL": ""},
    ],
    ids=lambda odd: next(iter(odd)),
)
def test_an_odd_environment_changes_nothing(fw: Fw, odd: dict[str, str]) -> None:
    fw.process("enqueue", "--in", "0", "--topic", "größe", "x", env=odd)
    assert fw.process("inspect", "list", env=odd).json[0]["topic"] == "größe"
    assert fw.process("run", "--once", "--", "cat", env=odd).out == "x"


def test_an_empty_environment_is_enough(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    command = ["env", "-i", f"PYTHONPATH={REPO}", sys.executable, "-m", "cli", "-C", str(fw.wheel), "run", "--once"]
    done = subprocess.run([*command, "--", "cat"], cwd=REPO, check=True, capture_output=True)
    assert done.stdout == b"x"


def test_where_no_thread_can_be_started_a_verb_says_so_and_nothing_is_lost(
    fw: Fw, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    fw.enqueue("--in", "0", "x")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for verb in (["run", "--once", "--", "true"], ["run", "--once", "--no-stderr-tail", "--", "true"]):
            assert "ulimit -u" in fw(*verb, code=1).err
    assert fw.pending()[0]["attempt"] == 0
    fw("run", "--once", "--", "true")
    assert fw.pending() == []


def test_a_verb_without_memory_is_no_traceback(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Wheel, "stats", refuse)
    result = fw("stats", code=1)
    assert "out of memory" in result.err


def test_a_large_input_without_room_to_keep_it_says_where_that_is(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    monkeypatch.setattr("cli.input.lines._SPOOL_BYTES", 1000)
    line = json.dumps({"in": "1h", "payload": BODY}) + "\n"
    result = fw("enqueue", "--batch", stdin=line * 3, code=1)
    assert "temporary directory" in result.err
    assert "TMPDIR" in result.err
    assert fw.pending() == []


def test_a_pool_has_a_process_for_each_core_that_the_program_may_use(wheel_dir: Path) -> None:
    program = "import filewheel, sys; print(filewheel.Scheduler(sys.argv[1]).processes)"
    core = min(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-c", program, str(wheel_dir)], cwd=REPO, env=environment(), check=True,
        capture_output=True, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )  # fmt: skip
    assert done.stdout == "1\n"


FORKED = """
import gc, os, sys
from filewheel import Keeper, Wheel

handle = {"wheel": Wheel, "keeper": Keeper}[sys.argv[2]](sys.argv[1])
if sys.argv[2] == "wheel":
    handle.enqueue(b"x", delay=60)
    list(handle.list())
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.closerange(3, 256)  # as a daemon does
own = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
with Wheel(sys.argv[1]) as wheel:
    del handle
    gc.collect()
    for fd in own:
        os.fstat(fd)
    wheel.enqueue(b"y", delay=60)
    assert [m.payload for m in wheel.list()][-1:] == [b"y"]
os._exit(0)
"""


@pytest.mark.parametrize("kind", ["wheel", "keeper"])
def test_a_forked_child_that_has_closed_all_files_keeps_its_own_when_it_collects_a_handle_of_its_parent(
    wheel_dir: Path, kind: str
) -> None:
    command = [sys.executable, "-c", FORKED, str(wheel_dir), kind]
    done = subprocess.run(command, cwd=REPO, env=environment(), check=False, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()


def test_a_pending_alarm_and_a_low_priority_change_nothing_until_the_alarm_ends_it(fw: Fw) -> None:
    """alarm(2) survives exec: it ends a process as a kill does."""

    def change() -> None:
        os.nice(19)
        signal.alarm(300)

    fw.enqueue("--in", "0", "x")
    assert fw.process("run", "--once", "--", "cat", preexec_fn=change, start_new_session=True).out == "x"


def test_descriptors_that_a_parent_left_open_do_not_reach_a_command(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    reads, writes = os.pipe()
    try:
        script = f"test ! -e /proc/self/fd/{writes}"
        fw.process("run", "--once", "--retries", "0", "--", "sh", "-c", script, pass_fds=[writes])
    finally:
        os.close(reads)
        os.close(writes)


def test_a_program_that_is_traced_works(fw: Fw) -> None:
    if not shutil.which("strace"):
        pytest.skip("there is no strace")
    fw.enqueue("--in", "0", "x")
    command = ["strace", "-f", "-o", "/dev/null", sys.executable, "-m", "cli", "-C", str(fw.wheel), "run", "--once"]
    done = subprocess.run([*command, "--", "cat"], cwd=REPO, env=environment(), check=False, capture_output=True)
    if b"Operation not permitted" in done.stderr:
        pytest.skip("this user may trace nothing")
    assert (done.returncode, done.stdout) == (0, b"x")


def test_a_handle_of_a_relative_path_stays_at_its_wheel_when_the_program_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a daemon does, after it opened what it needs."""
    monkeypatch.chdir(tmp_path)
    with Wheel.create("w") as wheel, Keeper("w", wait=False) as keeper:
        made = AsyncWheel("w")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        wheel.enqueue(b"x")
        wheel.pause(topic="t")
        wheel.resume(topic="t")
        assert keeper.ack(keeper.claim()) == 1

        async def enqueue() -> None:
            async with made:
                await made.enqueue(b"y")

        asyncio.run(enqueue())
        assert [m.payload for m in wheel.list()] == [b"y"]
    assert os.listdir() == []
    assert_whole(tmp_path / "w")
