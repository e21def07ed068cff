"""How a command is asked to end.

`run`: the first signal lets it finish what is in hand, the second aborts it. `work`: a signal ends it quietly while the
program is imported; then the scheduler takes the signals. `demo` and `bench`, which clean up behind them: any of the
signals is a Ctrl-C.

A handler cannot break into a wait that Python resumes by itself (PEP 475), so it calls a function that wakes
it. While the command waits to become the keeper no message is claimed, and the first signal ends it at once.
Invariant: the handlers that were there before are back when this is left.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Quit(BaseException):
    """Asked to end while nothing was in hand."""


class Abort(BaseException):
    """Asked to end a second time."""


class Stop:
    """Whether this process was asked to end. A context manager, for the main thread."""

    def __init__(self, signals: Iterable[signal.Signals] = _SIGNALS) -> None:
        self.asked = False
        self._signals = signals
        self._wake: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            before = signal.getsignal(number)
            # nohup(1) and shells without job control ignore some for their children: that is to stay so.
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def wakes(self, wake: Callable[[], object]) -> None:
        """From now on something can be in hand: do not end by an exception, but call `wake`."""
        self._wake = wake
        if self.asked:
            raise Quit

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise Abort
        self.asked = True
        if self._wake is None:
            raise Quit
        self._wake()


@contextlib.contextmanager
def quiet_end() -> Iterator[None]:
    """Leave the block at a SIGINT or SIGTERM, without an error, unless something inside takes the signals itself."""
    with contextlib.suppress(Quit), Stop((signal.SIGINT, signal.SIGTERM)):
        yield


@dataclass
class _Interrupts:
    held: bool = False
    asked: bool = False
    raised: bool = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if not self.held:
            self.raise_once()

    def raise_once(self) -> None:
        # Once: what cleans up because of the first must not be cut short by an impatient second.
        if self.asked and not self.raised:
            self.raised = True
            raise KeyboardInterrupt


_interrupts = _Interrupts()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a hang-up clean up as a Ctrl-C does. For the main thread."""
    global _interrupts
    _interrupts = _Interrupts()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    taken = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in taken:
        signal.signal(number, _interrupts.handle)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put an interrupt off until something short is done. Works within `interruptible`."""
    _interrupts.held = True
    try:
        yield
    finally:
        _interrupts.held = False
        _interrupts.raise_once()
