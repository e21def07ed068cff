"""Signals that end a command.

`run`: after the first signal it finishes the messages in hand, the second aborts it. `work`: a signal ends it quietly
during the import of the program; then the scheduler handles the signals. `demo` and `bench`: each signal acts as a
Ctrl-C, so that they clean up.

A handler cannot interrupt a wait that Python resumes (PEP 475), so it calls a function that wakes the wait. While the
command waits to become the keeper no message is claimed, and the first signal ends it at once.
Invariant: at the end the previous handlers are restored.
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
    """A signal came while no message was in hand."""


class Abort(BaseException):
    """A second signal came."""


class Stop:
    """Whether a signal asked this process to end. A context manager, for the main thread."""

    def __init__(self, signals: Iterable[signal.Signals] = _SIGNALS) -> None:
        self.asked = False
        self._signals = signals
        self._wake: Callable[[], object] | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in self._signals:
            before = signal.getsignal(number)
            # nohup(1) and shells without job control ignore some signals for their children; these stay ignored.
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
        """From now on messages may be in hand: call `wake` instead of raising an exception."""
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
    """Leave the block at a SIGINT or SIGTERM without an error, unless code inside handles the signals."""
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
        # Once: a second signal must not interrupt the cleanup after the first.
        if self.asked and not self.raised:
            self.raised = True
            raise KeyboardInterrupt


_interrupts = _Interrupts()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP clean up as a Ctrl-C. For the main thread."""
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
    """Delay an interrupt until the end of a short block. Works within `interruptible`."""
    _interrupts.held = True
    try:
        yield
    finally:
        _interrupts.held = False
        _interrupts.raise_once()
