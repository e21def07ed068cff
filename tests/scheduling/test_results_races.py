"""Results that are asked for while the call moves on: by a retry, a reschedule, a cancel, an expiry, another process.

Invariant: a call that waits or runs is never reported as not found, whatever happens between two looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import filewheel.tools.absent
from filewheel import CallFailed, NotFound, ResultTimeout, Retry, Scheduler
from tests.support import FakeClock


@pytest.fixture
def moves_between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[object]]:
    """Return what has an act done each time that the present id of a call was found, before it is looked up."""

    def install(act: Callable[[], Any]) -> list[object]:
        real, found = filewheel.tools.absent.moved_to, []

        def moved_to(*args: Any) -> Any:
            found.append(real(*args))
            act()
            return found[-1]

        monkeypatch.setattr(filewheel.tools.absent, "moved_to", moved_to)
        return found

    return install


def test_a_call_that_is_retried_between_two_looks_waits(
    scheduler: Scheduler, clock: FakeClock, moves_between: Callable[[Callable[[], Any]], list[object]]
) -> None:
    runs: list[int] = []

    @scheduler.on(result_for="1h", retry=Retry(limit=5, delay_s=10, factor=1, jitter=0))
    def job() -> str:
        runs.append(1)
        if len(runs) < 4:
            raise ValueError("try again")
        return "done"

    id_ = job.enqueue()
    scheduler.drain()

    def retried() -> None:
        if len(runs) < 3:
            clock.advance(10)
            scheduler.drain()

    found = moves_between(retried)
    with pytest.raises(ResultTimeout):
        scheduler.result(id_)
    assert len(found) == len(set(found)) == 3
    clock.advance(10)
    scheduler.drain()
    assert scheduler.result(id_) == "done"


@pytest.mark.parametrize("ends", ["done", "failed", "cancelled"])
def test_a_call_that_ends_between_two_looks_has_its_end(
    scheduler: Scheduler, clock: FakeClock, ends: str, moves_between: Callable[[Callable[[], Any]], list[object]]
) -> None:
    runs: list[int] = []

    @scheduler.on(result_for="1h", retry=Retry(limit=1, delay_s=10, jitter=0))
    def job() -> str:
        runs.append(1)
        if len(runs) == 1 or ends == "failed":
            raise ValueError("no")
        return "done"

    def end() -> None:
        if ends == "cancelled":
            (waits,) = scheduler.list()
            scheduler.cancel(waits.id)
        clock.advance(10)
        scheduler.drain()

    id_ = job.enqueue()
    scheduler.drain()
    done: list[int] = []
    moves_between(lambda: None if done else (done.append(1), end()))
    if ends == "done":
        assert scheduler.result(id_) == "done"
    elif ends == "failed":
        with pytest.raises(CallFailed, match=r"ValueError: no \(after 2 attempts\)"):
            scheduler.result(id_)
    else:
        with pytest.raises(NotFound):
            scheduler.result(id_)
