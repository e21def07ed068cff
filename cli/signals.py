"""Signals that end a command.

`run`: after the first signal it finishes the messages in hand, the second aborts it. `work`: a signal ends it quietly
during the import of the program; then the scheduler handles the signals. `demo` and `bench`: each signal acts as a
Ctrl-C, so that they clean up.

A handler cannot interrupt a wait that Python resumes (PEP 475), so it calls a function that wakes the wait. While the
command waits to become the keeper no message is claimed, and the first signal ends it at once.
A late signal, which comes when the handler has done its work, ends the process of a command at once, with the code that
it would have ended with: after `until_exit` no signal restores Python's own handlers, which would end it with 143.
Invariant: without `until_exit`, as in a program that calls a command, the previous handlers are restored at the end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Process:
    """The process of a command, from `until_exit` on."""

    is_ours = False
    code = 0
    """What it ends with, as far as that is known."""


def until_exit() -> None:
    """Keep the handlers that a command installs until the process has exited. Call it first of all."""
    _Process.is_ours = True
    atexit.register(_ignore)  # called last: Python then gives each signal that has a handler its default


def exits_with(code: int) -> None:
    """Let a signal that comes from now on end this process with a code: all that is written has been flushed."""
    _Process.code = code


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_Process.code)


def _ignore() -> None:
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.SIG_IGN)


class Quit(BaseException):
    """A signal came while no message was in hand."""


class Abort(BaseException):
    """A second signal came."""


class Stop:
    """Whether a signal asked this process to end. A context manager, for the main thread."""

    def __init__(self, signals: Iterable[signal.Signals] = _SIGNALS, *, late: int = 130) -> None:
        """`late` is the exit code after a signal that comes behind the block, before the command's own is known."""
        self.asked = False
        self._late = late
        self._is_aborted = False
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
        _Process.code = self._late
        for number, before in self._before.items():
            signal.signal(number, _leave if _Process.is_ours else before)

    def wakes(self, wake: Callable[[], object]) -> None:
        """From now on messages may be in hand: call `wake` instead of raising an exception."""
        self._wake = wake
        if self.asked:
            raise Quit

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_aborted:
            return
        if self.asked:
            self._is_aborted = True
            raise Abort
        self.asked = True
        if self._wake is None:
            raise Quit
        self._wake()


@contextlib.contextmanager
def quiet_end() -> Iterator[None]:
    """Leave the block at a SIGINT or SIGTERM without an error, unless code inside handles the signals."""
    with contextlib.suppress(Quit), Stop((signal.SIGINT, signal.SIGTERM), late=0):
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
