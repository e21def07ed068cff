"""Handlers in processes: what crosses, what ends with the process, and what a program at its top level needs."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Message, MessageId, Scheduler, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.message import ARGS, REASON
from filewheel.scheduling.call import pack_call
from filewheel.scheduling.handler import Handler
from filewheel.scheduling.runners.processes import Processes
from filewheel.scheduling.runners.runner import Call
from filewheel.values import MSGPACK
from tests.conftest import assert_whole
from tests.scheduling import process_targets as targets
from tests.scheduling.runners.test_threads import until
from tests.scheduling.stage import counted, dead_letters, waiting
from tests.support import REPO
from tests.support_wheel import an_id


@pytest.fixture
def live(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    """A scheduler with one process, which has a scheduler of the same wheel."""
    monkeypatch.setenv("FILEWHEEL_TEST_WHEEL", str(wheel_dir))
    made = Scheduler(wheel_dir, processes=1)
    for target in targets.scheduler._handlers:
        terms = target.terms
        made.on(target.name, where="process", retry=terms.retry, timeout_s=terms.timeout_s)(target.function)
    yield made
    made.stop(5)


def lines(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()]


def test_a_handler_runs_in_another_process_with_its_arguments_and_its_job(live: Scheduler, tmp_path: Path) -> None:
    done = until(live, "acknowledged", 2)
    for text in ("a", "b"):
        live.enqueue("write", [str(tmp_path / "out"), text])
    live.start()
    done()
    wrote = lines(tmp_path / "out")
    assert [words[1:] for words in wrote] == [["a", "0"], ["b", "0"]]
    assert str(os.getpid()) not in {words[0] for words in wrote}


def test_a_transaction_crosses_back_and_is_written_with_the_acknowledgement_or_not_at_all(
    live: Scheduler, tmp_path: Path
) -> None:
    done, dead = until(live, "acknowledged", 2), until(live, "dead")
    live.enqueue("chain", [str(tmp_path / "out"), True])
    live.enqueue("chain", [str(tmp_path / "out"), False])
    live.start()
    assert dead()[0].error == "ValueError: after the block"
    done()
    live.stop()
    assert [words[1:] for words in lines(tmp_path / "out")] == [["chained", "0"]]
    assert waiting(live.wheel) == []
    assert live.metrics.counts("enqueued")["write"] == 1


@pytest.mark.parametrize(
    ("how", "says"),
    [("segfault", "SIGSEGV"), ("exit", "3"), ("sys.exit", "SystemExit: bye"), ("interrupt", "KeyboardInterrupt"),
     ("text", r"OSError: no \udcff file")],
)  # fmt: skip
def test_however_a_process_ends_its_call_has_failed_and_the_next_one_runs(
    live: Scheduler, tmp_path: Path, how: str, says: str
) -> None:
    dead, done = until(live, "dead"), until(live, "acknowledged")
    live.enqueue("end", [how])
    live.enqueue("write", [str(tmp_path / "out"), "next"])
    live.start()
    assert says in dead()[0].error
    done()
    live.stop()
    assert len(dead_letters(live)) == 1
    assert says in dead_letters(live)[0].headers[REASON]
    assert len(lines(tmp_path / "out")) == 1


def test_a_process_that_takes_too_long_is_ended(live: Scheduler) -> None:
    timed_out, dead = until(live, "timed_out"), until(live, "dead")
    live.enqueue("hang")
    live.start()
    assert timed_out()[0].error == "TimeoutError: took longer than 0.3 s"
    dead()
    live.stop()
    assert counted(live)["timed_out"] == counted(live)["dead"] == 1


def test_what_became_too_late_before_the_process_began_is_skipped(live: Scheduler, tmp_path: Path) -> None:
    from filewheel import Message
    from filewheel.message import ARGS, DEADLINE
    from filewheel.scheduling.runners.pool import Result
    from filewheel.scheduling.runners.processes import outcomes_of_result, request_of, serve
    from filewheel.scheduling.runners.runner import Call
    from tests.support_wheel import an_id

    handler = live._handlers.get("write")
    assert handler is not None
    call = Call(handler, [Message(an_id(5), b"\x92\x90\x80", "write", {ARGS: "msgpack", DEADLINE: "6"})], 0)
    value = serve(request_of(call, live.path))
    (outcome,) = outcomes_of_result(call, Result("returned", value)) or ()
    assert outcome.is_too_late
    assert "after its deadline" in (outcome.error or "")


def test_when_a_runner_of_processes_is_quiet_what_waits_for_a_process_is_not_begun(tmp_path: Path) -> None:
    ended: queue.SimpleQueue[Call] = queue.SimpleQueue()
    runner = Processes(1, lambda call: True, ended.put, SYSTEM_CLOCK, "unused")

    def start(number: int) -> None:
        payload = pack_call([str(tmp_path), number], {})[0]
        message = Message(MessageId(an_id(5, number)), payload, "hold", {ARGS: MSGPACK})
        runner.start(Call(Handler.plain("hold", targets.hold), [message], SYSTEM_CLOCK.now_us()))

    for number in range(3):
        start(number)
    while not (tmp_path / "began-0").exists():
        time.sleep(0.005)
    runner.quiet()
    start(3)
    (tmp_path / "go-on").touch()
    assert ended.get(timeout=120).outcomes is None
    while runner.busy():
        time.sleep(0.005)
    runner.stop()
    assert sorted(os.listdir(tmp_path)) == ["began-0", "go-on"]
    assert ended.empty()


def test_drain_calls_handlers_of_processes_in_the_calling_one(live: Scheduler, tmp_path: Path) -> None:
    live.enqueue("write", [str(tmp_path / "out"), "a"])
    assert live.drain() == 1
    assert lines(tmp_path / "out") == [[str(os.getpid()), "a", "0"]]


SCRIPT = """
    import os, sys
    from filewheel import Scheduler, current_job

    scheduler = Scheduler(sys.argv[1], processes=1)

    @scheduler.on(where="process")
    def first(n: int) -> None:
        with current_job().transaction():
            second.enqueue(n + 1, os.getpid())

    @scheduler.on()
    def second(n: int, pid: int) -> None:
        print(n, pid != os.getpid(), __name__, flush=True)
        os.kill(os.getpid(), 2)

    if __name__ == "__main__":
        first.enqueue(1)
        scheduler.run(stop_s=20)
        print("stopped")
"""


def test_a_script_that_is_started_may_define_handlers_of_processes(tmp_path: Path) -> None:
    script, wheel_dir = tmp_path / "jobs.py", tmp_path / "jobs.wheel"
    script.write_text(textwrap.dedent(SCRIPT))
    environ = {k: v for k, v in os.environ.items() if k != "FILEWHEEL_TEST_WHEEL"} | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(
        [sys.executable, str(script), str(wheel_dir)], capture_output=True, text=True, timeout=60, env=environ,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "2 True __main__\nstopped\n"), done.stderr
    with Wheel(wheel_dir) as wheel:
        assert waiting(wheel) == []
    assert_whole(wheel_dir)
