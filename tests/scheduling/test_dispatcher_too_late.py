"""What must not be started any more is not, wherever it waited: on disk, in a lane, or for a thread."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from filewheel import Scheduler
from filewheel.scheduling.outcome import Outcome
from tests.conftest import assert_whole
from tests.support_wheel import NOW_S, StillClock


def test_a_job_whose_deadline_passes_while_it_waits_for_a_thread_is_not_started(tmp_path: Path) -> None:
    clock = StillClock()
    scheduler = Scheduler(tmp_path / "w", threads=1, clock=clock)
    may_end = threading.Event()
    told: queue.Queue[tuple[str, str]] = queue.Queue()
    started: list[str] = []

    @scheduler.on("busy")
    def busy() -> None:
        started.append("busy")
        may_end.wait(120)

    @scheduler.on("late")
    def late(name: str) -> None:
        started.append(name)

    scheduler.on_event(lambda event: told.put((event.kind, event.handler)))
    busy.after(0)
    late.options(deadline=NOW_S + 5).enqueue("deadline")
    late.options(skip_late_s=5).enqueue("skip_late_s")
    late.options(skip_late_s=50).enqueue("in time")
    with scheduler:
        while told.get(timeout=120) != ("fired", "late"):
            pass
        for _ in range(2):
            assert told.get(timeout=120) == ("fired", "late")
        clock.wall_us += 10_000_000  # all four are with the only thread, or wait for it
        may_end.set()
        ends = sorted(told.get(timeout=120) for _ in range(4))
    assert ends == [("acknowledged", "busy"), ("acknowledged", "late"), ("skipped", "late"), ("skipped", "late")]
    assert started == ["busy", "in time"]
    reasons = [m.headers["filewheel.reason"] for m in scheduler.wheel.list(dead=True)]
    assert reasons == ["skipped: 5 s after its deadline", "skipped: 10 s late, where 5 s are allowed"]
    scheduler.stop()
    assert_whole(tmp_path / "w")


def test_that_a_job_was_too_late_is_told_across_a_process() -> None:
    failure = Outcome("skipped: 5 s after its deadline", is_too_late=True)
    assert Outcome.of_plain(failure.to_plain()) == failure
