"""The pool of processes: every call is answered once, and what one of them does to its process is no other's matter."""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel.errors import BadArgument, Closed
from filewheel.scheduling.outcome import Outcome, Retry
from filewheel.scheduling.runners.pool import ProcessPool, Recycle, Result
from tests.scheduling import pool_targets
from tests.support import REPO, eventually, open_files, some

TARGETS = "tests.scheduling.pool_targets"
WAIT_S = 120
"""For what happens at once: on a machine under load it may take long."""


class Answers:
    """What became of calls, by the names that the test gave them."""

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool
        self.of: dict[object, list[Result]] = {}
        self.threads: set[str] = set()
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()

    def submit(
        self, function: str, request: bytes = b"", *, name: object = None, timeout_s: float | None = None
    ) -> None:
        target = function if ":" in function else f"{TARGETS}:{function}"

        def done(result: Result) -> None:
            self.of.setdefault(name, []).append(result)
            self.threads.add(threading.current_thread().name)
            self._queue.put(None)

        self.pool.submit(target, request, timeout_s=timeout_s, done=done)

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            self._queue.get(timeout=WAIT_S)

    def call(self, function: str, request: bytes = b"", *, timeout_s: float | None = None) -> Result:
        name = object()
        self.submit(function, request, name=name, timeout_s=timeout_s)
        self.wait()
        (result,) = self.of[name]
        return result


@pytest.fixture
def make() -> Iterator[Callable[..., Answers]]:
    """Makes pools, and closes them when the test ends."""
    pools = []

    def pool(processes: int = 1, recycle: Recycle | None = None) -> Answers:
        pools.append(ProcessPool(processes, recycle=recycle))
        return Answers(pools[-1])

    yield pool
    for each in pools:
        each.close(timeout_s=0)
    assert pids() == []


def pids() -> list[int]:
    """The processes of the pools of this program."""
    return [child.pid or 0 for child in multiprocessing.active_children()]


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def end(*pids: int) -> None:
    """End what a failed test would leave behind."""
    for pid in pids:
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)


def failure_of(result: Result) -> Outcome:
    """The exception of a call that raised one."""
    assert result.outcome == "raised"
    assert result.failure is not None
    return result.failure


def begun(path: Path) -> int:
    """Wait until `until_told` has begun, and return its pid."""
    file = path.with_suffix(".begun")
    eventually(file.exists, WAIT_S)
    return int(file.read_text())


def go(path: Path) -> None:
    path.with_suffix(".go").touch()


def test_a_function_that_returns_bytes_answers_with_them(make: Callable[..., Answers]) -> None:
    answers = make()
    assert answers.call("echo", b"\0\xff") == Result("returned", b"\0\xff")
    assert answers.call("Namespace.upper", b"abc").value == b"ABC"
    assert answers.threads == {"filewheel-pool"}


def test_the_parent_gets_a_thread_for_each_process_and_a_process_one(make: Callable[..., Answers]) -> None:
    before = set(threading.enumerate())
    answers = make(2)
    assert not set(threading.enumerate()) - before
    assert answers.call("threads").value == b"MainThread"
    assert len(set(threading.enumerate()) - before) == 2


def test_an_exception_arrives_as_the_names_of_its_classes_its_text_and_its_traceback(
    make: Callable[..., Answers],
) -> None:
    failure = failure_of(make().call("fail", b"no such address"))
    assert failure.ancestry == {
        f"{TARGETS}.Trouble",
        "builtins.ValueError",
        "builtins.Exception",
        "builtins.BaseException",
    }
    assert failure.error == "Trouble: no such address"
    assert "pool_targets.py" in failure.trace
    assert "child.py" not in failure.trace
    assert Retry(never=(pool_targets.Trouble,)).forbids(failure.ancestry)
    assert Retry(never=(KeyError, ValueError)).forbids(failure.ancestry)
    assert not Retry(never=(KeyError, OSError)).forbids(failure.ancestry)


def test_errors_that_cannot_be_shown_are_shown_as_far_as_they_can_be(make: Callable[..., Answers]) -> None:
    answers = make()
    assert "Unspeakable: (its text cannot be had)" in failure_of(answers.call("fail_unspeakable")).error
    assert "\\udcff" in failure_of(answers.call("fail_surrogate")).error
    long = failure_of(answers.call("fail_long"))
    assert len(long.error) == 4_000
    assert len(long.trace) <= 8_000
    assert "in fail_long" in long.trace  # the long text leaves room for the place
    deep = failure_of(answers.call("fail_deep"))
    assert "builtins.RecursionError" in deep.ancestry
    assert len(deep.trace) <= 8_000


def test_what_is_not_bytes_is_an_error_of_the_function(make: Callable[..., Answers]) -> None:
    assert "TypeError" in (text := failure_of(make().call("not_bytes")).error)
    assert "returned a str" in text


def test_a_module_that_cannot_be_imported_fails_each_call_and_keeps_the_process(make: Callable[..., Answers]) -> None:
    answers = make()
    first = answers.call("pid").value
    for _ in range(2):
        missing = failure_of(answers.call("no_such_module_here:f"))
        assert "builtins.ImportError" in missing.ancestry
        assert "no_such_module_here" in missing.error
    nameless = failure_of(answers.call("no_such_function"))
    assert "builtins.AttributeError" in nameless.ancestry
    assert "no_such_function" in nameless.error
    assert "builtins.TypeError" in failure_of(answers.call("__file__")).ancestry
    assert answers.call("pid").value == first


def test_sys_exit_in_a_function_is_an_exception_and_keeps_the_process(make: Callable[..., Answers]) -> None:
    answers = make()
    first = answers.call("pid").value
    assert failure_of(answers.call("sys_exit")).error == "SystemExit: 4"
    assert answers.call("pid").value == first


def test_a_process_ends_after_its_number_of_calls_and_another_goes_on(make: Callable[..., Answers]) -> None:
    answers = make(recycle=Recycle(calls=3))
    for n in range(10):
        answers.submit("pid", name=n)
    answers.wait(10)
    served = [answers.of[n][0].value for n in range(10)]
    assert [served.count(pid) for pid in dict.fromkeys(served)] == [3, 3, 3, 1]


def test_a_leak_ends_with_the_process_that_has_it(make: Callable[..., Answers]) -> None:
    answers = make(recycle=Recycle(memory_bytes=200 << 20))
    served = [answers.call("leak", b"%d" % (40 << 20)).value for _ in range(12)]
    counts = [served.count(pid) for pid in dict.fromkeys(served)]
    assert len(counts) >= 3
    assert max(counts) <= 5


def test_a_recycled_pool_of_two_answers_each_call_once(make: Callable[..., Answers]) -> None:
    answers = make(2, recycle=Recycle(calls=1))
    for n in range(12):
        answers.submit("echo", b"%d" % n, name=n)
    answers.wait(12)
    assert {n: [r.value for r in found] for n, found in answers.of.items()} == {n: [b"%d" % n] for n in range(12)}


@pytest.mark.parametrize("wrong", [{"calls": 0}, {"calls": 1.5}, {"memory_bytes": -1}, {"memory_bytes": True}])
def test_a_recycle_of_nothing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        Recycle(**wrong)


def test_a_process_that_ends_during_a_call_fails_that_call_with_its_exit_code(
    make: Callable[..., Answers],
) -> None:
    answers = make()
    first = answers.call("pid").value
    result = answers.call("hard_exit")
    assert (result.outcome, result.exit_status) == ("died", "3")
    assert "exit code 3" in result.message
    result = answers.call("wild_pointer")
    assert (result.outcome, result.exit_status) == ("died", "SIGSEGV")
    assert answers.call("pid").value not in (first, b"")


def test_a_segmentation_fault_leaves_the_calls_beside_it_alone(make: Callable[..., Answers], tmp_path: Path) -> None:
    answers = make(4)
    for name in "abc":
        answers.submit("until_told", bytes(tmp_path / name), name=name)
    running = {name: begun(tmp_path / name) for name in "abc"}
    result = answers.call("segfault")
    assert (result.outcome, result.exit_status) == ("died", "SIGSEGV")
    assert answers.call("echo", b"next").value == b"next"
    assert not [name for name in "abc" if gone(running[name])]
    for name in "abc":
        go(tmp_path / name)
    answers.wait(3)
    assert [answers.of[name] for name in "abc"] == [[Result("returned", b"told")]] * 3


def test_a_call_over_its_time_is_killed_and_the_next_one_works(make: Callable[..., Answers], tmp_path: Path) -> None:
    answers = make(2)
    answers.submit("until_told", bytes(tmp_path / "other"), name="other")
    other = begun(tmp_path / "other")
    result = answers.call("until_told", bytes(tmp_path / "slow"), timeout_s=0.2)
    assert (result.outcome, result.exit_status) == ("timed_out", "SIGTERM")
    assert "longer than 0.2 s" in result.message
    assert not gone(other)
    assert answers.call("echo", b"x", timeout_s=100).value == b"x"
    go(tmp_path / "other")
    answers.wait()
    assert answers.of["other"][0].value == b"told"


def test_a_call_over_its_time_that_ignores_being_asked_is_gone_when_its_result_is_told(
    make: Callable[..., Answers], tmp_path: Path
) -> None:
    answers = make()
    answers.call("echo")
    result = answers.call("forever_deaf", bytes(tmp_path / "deaf"), timeout_s=0.5)
    assert (result.outcome, result.exit_status) == ("timed_out", "SIGKILL")
    assert gone(begun(tmp_path / "deaf"))


def test_16_mib_travel_both_ways_in_all_processes_at_once(make: Callable[..., Answers]) -> None:
    answers = make(2)
    requests = {n: random.Random(n).randbytes(16 << 20) for n in range(3)}
    for n, request in requests.items():
        answers.submit("echo", request, name=n)
    answers.wait(3)
    for n, request in requests.items():
        (result,) = answers.of[n]
        assert result.value == request


@pytest.mark.parametrize("garbage", [b"\n", b"garbage" * 1000, b"\0" * 16, b"\xff" * 40])
def test_garbage_that_a_function_writes_to_the_pipe_is_skipped(make: Callable[..., Answers], garbage: bytes) -> None:
    answers = make()
    assert answers.call("garbage", garbage).value == b"written"
    assert answers.call("echo", b"after").value == b"after"


def test_a_function_that_closes_the_pipe_fails_and_the_next_call_works(make: Callable[..., Answers]) -> None:
    answers = make()
    result = answers.call("close_everything")
    assert result.outcome == "died"
    assert "lost the pipe" in result.message
    assert answers.call("echo", b"after").value == b"after"


def test_a_program_left_behind_with_the_pipes_open_does_not_hide_the_end_of_its_process(
    make: Callable[..., Answers], tmp_path: Path
) -> None:
    answers = make()
    try:
        result = answers.call("leave_grandchild", bytes(tmp_path / "pid"))
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert (result.outcome, result.exit_status) == ("died", "9")


def test_a_function_may_start_processes_of_its_own(make: Callable[..., Answers]) -> None:
    answers = make()
    assert answers.call("use_multiprocessing").value == b"0"
    assert answers.call("run_program").value == b"out\n"


def test_an_idle_process_killed_from_outside_is_replaced_and_no_call_fails(make: Callable[..., Answers]) -> None:
    answers = make(2)
    answers.call("echo")
    for _ in range(3):
        old = eventually(lambda: len(pids()) == 2 and pids(), WAIT_S)
        for pid in old:
            os.kill(pid, signal.SIGKILL)
        # At once: the pool may not know yet.
        assert answers.call("echo", b"x").value == b"x"
        assert eventually(lambda old=old: len(pids()) == 2 and not {*pids()} & {*old}, WAIT_S)


def test_hundreds_of_calls_amid_random_kills_are_each_answered_once(make: Callable[..., Answers]) -> None:
    answers = make(2)
    rng = random.Random(5)
    killed: list[int] = []
    for n in range(400):
        answers.submit("echo_and_pid", b"%d" % n, name=n)
        if n < 20:
            continue
        answers.wait()  # twenty at a time
        if rng.random() < 0.03:
            # Those that have answered: kills of processes that just start would rightly fail the calls.
            values = [result.value for results in [*answers.of.values()] for result in results if result.value]
            up = {int(value.split()[1]) for value in values} & {*pids()} - {*killed}
            for pid in sorted(up)[: rng.randrange(1, 3)]:
                killed.append(pid)
                os.kill(pid, signal.SIGKILL)
    answers.wait(20)
    answers.pool.close(timeout_s=WAIT_S)
    assert sorted(answers.of) == list(range(400))
    died = 0
    for n, results in answers.of.items():
        (result,) = results
        died += result.outcome == "died"
        assert result.value.startswith(b"%d " % n) or result.exit_status == "SIGKILL", result
    assert len(killed) > 3
    assert died <= len(killed)


def test_close_lets_running_calls_end_and_refuses_what_was_queued(make: Callable[..., Answers], tmp_path: Path) -> None:
    answers = make(1)
    answers.submit("until_told", bytes(tmp_path / "a"), name="running")
    begun(tmp_path / "a")
    answers.submit("echo", name="queued")
    closing = threading.Thread(target=answers.pool.close, kwargs={"timeout_s": WAIT_S})
    closing.start()
    answers.wait()
    assert answers.of["queued"][0].outcome == "closed"
    go(tmp_path / "a")
    closing.join()
    assert answers.of["running"] == [Result("returned", b"told")]
    with pytest.raises(Closed):
        answers.submit("echo")


def test_close_kills_what_runs_too_long(make: Callable[..., Answers], tmp_path: Path) -> None:
    answers = make(2)
    answers.submit("forever_deaf", bytes(tmp_path / "a"), name="deaf")
    answers.submit("until_told", bytes(tmp_path / "b"), name="long")
    running = [begun(tmp_path / "a"), begun(tmp_path / "b")]
    answers.pool.close(timeout_s=0.1)
    assert all(map(gone, running))
    assert [answers.of[name][0].outcome for name in ("deaf", "long")] == ["closed", "closed"]


def test_close_of_a_pool_that_was_never_used_and_close_again_do_nothing(make: Callable[..., Answers]) -> None:
    answers = make()
    answers.pool.close(timeout_s=0)
    answers.pool.close(timeout_s=0)
    with pytest.raises(Closed):
        answers.submit("echo")


def test_close_gives_back_every_descriptor_and_thread(make: Callable[..., Answers]) -> None:
    make().call("echo")  # multiprocessing keeps one descriptor of its own
    before, threads = open_files(), set(threading.enumerate())
    answers = make(2)
    for _ in range(4):
        answers.call("echo")
    answers.call("hard_exit")
    answers.pool.close(timeout_s=WAIT_S)
    assert open_files() == before
    assert not set(threading.enumerate()) - threads


def test_a_caller_whose_done_raises_is_logged_and_others_are_told(
    make: Callable[..., Answers], caplog: pytest.LogCaptureFixture
) -> None:
    answers = make()

    def done(result: Result) -> None:
        raise SystemExit("a caller's defect")

    answers.pool.submit(f"{TARGETS}:echo", b"", timeout_s=None, done=done)
    assert answers.call("echo", b"x").value == b"x"
    assert "a caller's defect" in caplog.text


def test_a_begin_that_raises_closes_the_pool_and_the_call_was_not_made(
    make: Callable[..., Answers], caplog: pytest.LogCaptureFixture
) -> None:
    answers = make(2)
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()

    def begin() -> bool:
        raise RuntimeError("a defect of the caller's")

    answers.pool.submit(f"{TARGETS}:echo", b"", timeout_s=None, done=results.put, begin=begin)
    assert results.get(timeout=WAIT_S).outcome == "closed"
    eventually(lambda: pids() == [], WAIT_S)
    with pytest.raises(Closed):
        answers.submit("echo")
    assert "a defect of the caller's" in caplog.text


# Scripts: what depends on how a program was started, and on how it ends.

SCRIPT = """
import logging, multiprocessing, os, queue, sys
from filewheel.scheduling.runners.pool import ProcessPool

class Trouble(Exception):
    pass

def double(request):
    return request * 2

def fail(request):
    raise Trouble("of the script")

def block(request):
    from tests.scheduling.pool_targets import until_told
    print("block", flush=True)
    return until_told(request)

def pids():
    return [child.pid for child in multiprocessing.active_children()]

results = queue.SimpleQueue()

class Told(logging.Handler):
    def emit(self, record):
        if record.levelno >= logging.CRITICAL:
            results.put(record.getMessage())

def listen():
    # puts what the log says, if it is critical, among the results
    logging.getLogger("filewheel").addHandler(Told())
    logging.getLogger("filewheel").addHandler(logging.StreamHandler())
"""


def script(tmp_path: Path, body: str, *args: object, **options: Any) -> subprocess.Popen[str]:
    """Start a script that has handlers of its own."""
    path = tmp_path / "app.py"
    path.write_text(SCRIPT + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, path, *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": ""},
        cwd=tmp_path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_functions_and_exceptions_of_the_script_that_was_started_are_found(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            pool = ProcessPool(1)
            for name in ("double", "fail"):
                pool.submit(f"__main__:{name}", b"ab", timeout_s=None, done=results.put)
            print(results.get().value)
            result = results.get()
            print(result.failure.error, "__main__.Trouble" in result.failure.ancestry)
            pool.close(timeout_s=5)
        """,
    )
    out, err = process.communicate(timeout=WAIT_S)
    assert (out.splitlines(), err) == (["b'abab'", "Trouble: of the script True"], "")


def test_a_script_without_a_main_block_is_told_so(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        pool = ProcessPool(1)
        listen()
        pool.submit("__main__:double", b"ab", timeout_s=None, done=results.put)
        print(results.get(), flush=True)
        pool.close(timeout_s=5)
        """,
    )
    out, err = process.communicate(timeout=WAIT_S)
    assert 'if __name__ == "__main__":' in out
    assert "BadArgument: a process that this script has started imports the script" in err


@pytest.mark.parametrize(
    ("trouble", "says"),
    some(
        [
            ("raise ValueError('no database')", "exit code 1"),
            ("os._exit(11)", "exit code 11"),
            ("os.kill(os.getpid(), 9)", "SIGKILL"),
            ("import no_such_module_here", "exit code 1"),
        ],
        one_of=2,
    ),
)
def test_calls_wait_while_no_process_becomes_ready_and_the_log_says_why(
    tmp_path: Path, trouble: str, says: str
) -> None:
    process = script(
        tmp_path,
        f"""
        if __name__ == "__mp_main__":
            {trouble}
        if __name__ == "__main__":
            pool = ProcessPool(2)
            listen()
            for _ in range(2):
                pool.submit("__main__:double", b"ab", timeout_s=None, done=results.put)
            print(results.get())
            pool.close(timeout_s=5)
            while True:
                result = results.get()
                if not isinstance(result, str):
                    print(result.outcome)
                    break
        """,
    )
    out, err = process.communicate(timeout=WAIT_S)
    why, outcome = out.splitlines()
    assert why.startswith("processes end before they have a call, ")
    assert "in a row" in why
    assert says in why
    assert outcome == "closed"  # its message is offered again, as the same attempt
    starts = [line for line in err.splitlines() if "the next starts in" in line]
    assert 3 <= len(starts) < 10
    assert "the next starts in 0.2 s" in starts[1]


def test_once_what_kept_processes_from_starting_is_repaired_the_calls_that_waited_are_made(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__mp_main__" and not os.path.exists("repaired"):
            os._exit(12)
        if __name__ == "__main__":
            pool = ProcessPool(1)
            listen()
            pool.submit("__main__:double", b"ab", timeout_s=None, done=results.put)
            assert isinstance(results.get(), str)
            open("repaired", "w").close()
            while isinstance(result := results.get(), str):
                pass
            print(result.value)
            pool.close(timeout_s=5)
        """,
    )
    out, _ = process.communicate(timeout=WAIT_S)
    assert out.splitlines() == ["b'abab'"]


def test_what_functions_print_appears_on_the_programs_own_output(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            pool = ProcessPool(1)
            pool.submit("tests.scheduling.pool_targets:shout", b"hello", timeout_s=None, done=results.put)
            results.get()
            os.kill(pids()[0], 9)
            pool.close(timeout_s=5)
        """,
    )
    out, err = process.communicate(timeout=WAIT_S)
    assert (out, err) == ("hello\n", "")


def test_a_program_that_ends_without_closing_its_pool_ends_all_the_same(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            pool = ProcessPool(2)
            pool.submit("__main__:double", b"", timeout_s=None, done=results.put)
            pool.submit("__main__:block", sys.argv[1].encode(), timeout_s=None, done=results.put)
            results.get()
            print(*pids())
        """,
        tmp_path / "a",
    )
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, err) == (0, "")
    assert all(gone(int(pid)) for line in out.splitlines() if line != "block" for pid in line.split())


def test_no_process_outlives_a_parent_that_is_killed_whatever_it_does(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            pool = ProcessPool(3)
            pool.submit("__main__:double", b"", timeout_s=None, done=results.put)
            results.get()
            targets = "tests.scheduling.pool_targets"
            pool.submit(f"{targets}:forever_deaf", sys.argv[1].encode(), timeout_s=None, done=results.put)
            pool.submit(f"{targets}:until_told", sys.argv[2].encode(), timeout_s=None, done=results.put)
            # A forked process holds the pipes open.
            child = os.fork()
            if child == 0:
                import time
                time.sleep(600)
            while len(pids()) < 3:
                pass
            print(child, *pids(), flush=True)
            results.get()
        """,
        tmp_path / "deaf",
        tmp_path / "long",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    child, *pids = map(int, process.stdout.readline().split())
    try:
        begun(tmp_path / "deaf")
        begun(tmp_path / "long")
        assert len(pids) == 3
        process.kill()
        process.wait()
        eventually(lambda: all(map(gone, pids)), WAIT_S)
        assert not gone(child)
    finally:
        end(child, *pids)
    process.stdout.close()
    process.stderr.close()


def test_a_process_that_holds_the_interpreters_lock_ends_with_a_killed_parent(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            pool = ProcessPool(1)
            pool.submit(
                "tests.scheduling.pool_targets:forever_in_c", sys.argv[1].encode(), timeout_s=None, done=results.put
            )
            results.get()
        """,
        tmp_path / "c",
    )
    pid = begun(tmp_path / "c")
    go(tmp_path / "c")
    # In C: the processor time grows, and no thread of it gets to run Python.
    ticks = lambda: int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])  # noqa: E731
    start = ticks()
    eventually(lambda: ticks() > start + 20, WAIT_S)
    process.kill()
    try:
        eventually(lambda: gone(pid), WAIT_S)
    finally:
        end(pid)
        process.communicate()


def test_a_forked_child_can_neither_use_the_pool_nor_close_it(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        from filewheel import Forked

        if __name__ == "__main__":
            pool = ProcessPool(1)
            pool.submit("__main__:double", b"a", timeout_s=None, done=results.put)
            results.get()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    pool.close(timeout_s=0)
                    pool.submit("__main__:double", b"b", timeout_s=None, done=results.put)
                except Forked:
                    code = 42
                finally:
                    os._exit(code)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            pool.submit("__main__:double", b"c", timeout_s=None, done=results.put)
            print(results.get().value)
            pool.close(timeout_s=5)
        """,
    )
    out, _ = process.communicate(timeout=WAIT_S)
    assert out.splitlines() == ["42", "b'cc'"]


def test_ctrl_c_on_a_terminal_reaches_the_parent_only(tmp_path: Path) -> None:
    process = script(
        tmp_path,
        """
        if __name__ == "__main__":
            import signal
            interrupts = queue.SimpleQueue()
            signal.signal(signal.SIGINT, lambda *_: interrupts.put(None))
            pool = ProcessPool(2)
            pool.submit("__main__:double", b"ab", timeout_s=None, done=results.put)
            while len(pids()) < 2:
                pass
            os.killpg(0, signal.SIGINT)  # while they start
            interrupts.get()
            print(results.get().value)
            pool.submit("__main__:block", sys.argv[1].encode(), timeout_s=None, done=results.put)
            print(results.get().value)
            pool.close(timeout_s=5)
        """,
        tmp_path / "a",
        start_new_session=True,
    )
    begun(tmp_path / "a")
    os.killpg(process.pid, signal.SIGINT)  # while one runs
    go(tmp_path / "a")
    out, err = process.communicate(timeout=WAIT_S)
    assert (sorted(out.splitlines()), err) == (["b'abab'", "b'told'", "block"], "")
