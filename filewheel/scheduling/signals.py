"""SIGINT and SIGTERM for a program that does nothing but fire: the first asks for the end, the second hurries it.

A signal that the parent made this program ignore stays ignored, as SIGINT does in the background of a script.

Invariant: the program's own handlers are back when the block ends; other threads than the main one handle no signals.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from filewheel.disk.threads import started

log = logging.getLogger("filewheel.scheduling")

_ENDED = 0
_LOOK_S = 0.5


class Running(Protocol):
    """What fires."""

    @property
    def is_alive(self) -> bool: ...
    def hurry(self) -> None: ...


def until_signal(
    asked: queue.SimpleQueue[int], engine: Running, is_ours: Callable[[], bool], stop: Callable[[], None]
) -> None:
    """Return when the engine ended by itself, or after `stop` at a signal. A second signal hurries the engine."""
    while engine.is_alive and not _comes(asked, _LOOK_S):
        pass
    if not is_ours():  # somebody else has stopped it
        return

    def end() -> None:
        try:
            stop()
        finally:
            asked.put(_ENDED)

    ending = threading.Thread(target=end, name="filewheel-stop")
    try:
        started(ending)
    except OSError:
        end()  # no thread: a second signal does not end the wait
    if asked.get() != _ENDED:
        log.warning("second signal: running calls are abandoned, and offered again")
        engine.hurry()
    if ending.ident is not None:
        ending.join()


@contextmanager
def signals() -> Iterator[queue.SimpleQueue[int]]:
    """Queue the numbers of SIGINT and SIGTERM in the main thread; do nothing in another one."""
    # A SimpleQueue is reentrant, an Event is not: a signal may interrupt the main thread inside of it, and a second
    # signal the handler of the first.
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.put(number)

    heeded = [one for one in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, ask) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _comes(asked: queue.SimpleQueue[int], within_s: float) -> bool:
    """Wait for a signal; return whether one came."""
    try:
        asked.get(timeout=within_s)
    except queue.Empty:
        return False
    return True
