"""A fake clock at a round steady time, threads that report, and what a test waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from filewheel.testing import FakeClock
from tests.support import eventually

PATIENCE_S = 60


def round_clock() -> FakeClock:
    """Return a fake clock whose steady time is 8 s: a multiple of each level's span in Kafka's example."""
    clock = FakeClock()
    clock.advance(7.999999)
    assert clock.steady_us() == 8_000_000
    return clock


def soon(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, also on a machine that is busy."""
    return eventually(condition, PATIENCE_S)


class InThread:
    """A call in a thread of its own; `result()` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as exc:
            self._error = exc

    def result(self) -> Any:
        self._thread.join(PATIENCE_S / 2)
        assert not self._thread.is_alive(), "it waits for ever"
        if self._error is not None:
            raise self._error
        return self._result
