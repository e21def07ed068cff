"""The life of a scheduler: how it starts to fire, and how it stops, also at SIGINT and SIGTERM.

The embedded scheduler and the one on Kafka have the same: a thread that fires, and the calls that start and stop it. Of
two signals the first asks for the end, the second hurries it. One that the parent made this program ignore stays
ignored, as SIGINT does in the background of a script.
Invariants: one thread fires at a time. The program's own signal handlers are back when `run` ends; other threads than
the main one handle no signals.
"""

from __future__ import annotations

import logging
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Generic, Self, TypeVar

from filewheel.checks import check_number
from filewheel.disk.threads import started
from filewheel.env import Event
from filewheel.errors import BadArgument
from filewheel.metrics.metrics import Metrics
from filewheel.scheduling.arguments import PLAIN, Codec
from filewheel.scheduling.definitions import Definitions
from filewheel.scheduling.job import present_job
from filewheel.scheduling.runners.child import preparing

log = logging.getLogger("filewheel.scheduling")

STOP_S = 30.0
_ENDED = 0
_LOOK_S = 0.5


class FiringThread:
    """A thread that fires until it is asked to stop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stop = Event()
        self._grace_s = 0.0
        self._hurry = Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._live, name=self._name, daemon=True)
        started(self._thread)  # known before it runs: Ctrl-C during the start stops it, and waits for it

    def _live(self) -> None:
        raise NotImplementedError

    def ask_to_stop(self, grace_s: float) -> None:
        """Request a stop, without waiting for the end."""
        self._grace_s = grace_s
        self._stop.set()

    def stop(self, grace_s: float) -> None:
        """Give running calls this time to end, write what they end with, and end."""
        self.ask_to_stop(grace_s)
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def hurry(self) -> None:
        """End the grace time of running calls now."""
        self._hurry.set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raise the error for which the thread has ended for good, if there is one."""


E = TypeVar("E", bound=FiringThread)


class Firing(Definitions, Generic[E]):
    """Definitions that an engine fires."""

    def __init__(self, path: str, metrics: Metrics, pools: Collection[str] = (), codec: Codec = PLAIN) -> None:
        """`path` is what the jobs of this scheduler name as their wheel; the rest is for Definitions."""
        super().__init__(metrics, pools, codec)
        self._path = path
        self._starting = threading.RLock()
        """Reentrant, because a signal handler that interrupts a start may call `stop`."""
        self._engine: E | None = None

    def start(self) -> None:
        """Start firing in the background. Raises BadArgument when it has been started already."""
        raise NotImplementedError

    def _close(self) -> None:
        """Close what the calls of this process were enqueued with."""
        raise NotImplementedError

    def _start(self, new_engine: Callable[[], E]) -> E:
        if preparing():
            raise BadArgument(
                "a process of the pool imports this script, and the script starts the scheduler",
                hint='put that under `if __name__ == "__main__":`',
            )
        with self._starting:  # two threads do not both start, and a stop meets a started engine
            if self._engine is not None and self._engine.is_alive:
                raise BadArgument("this scheduler has been started already")
            self._engine = engine = new_engine()
            engine.start()
            return engine

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Stop firing: running calls have until the timeout to end; after that they are offered again.

        In a handler of this scheduler it returns at once, because that handler is one of the running calls. Outcomes
        that could not be written are logged at ERROR, and their calls run again. An enqueue that is running in another
        thread raises Closed.
        """
        check_number("timeout_s", timeout_s, least=0)
        job, engine = present_job(), self._engine
        if engine is not None and job is not None and job.wheel == self._path:
            engine.ask_to_stop(timeout_s)
            return
        with self._starting:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop(timeout_s)
        self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, stop_s: float, new_engine: Callable[[], E]) -> None:
        check_number("stop_s", stop_s, least=0)
        with signals() as asked:
            engine = self._start(new_engine)
            until_signal(asked, engine, lambda: self._engine is engine, lambda: self.stop(stop_s))
            engine.check()


def until_signal(
    asked: queue.SimpleQueue[int], engine: FiringThread, is_ours: Callable[[], bool], stop: Callable[[], None]
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
