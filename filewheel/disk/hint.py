"""The hint pipe: a producer wakes the keeper after it wrote a message that is due within a second.

The keeper sleeps at the pipe. A producer opens it for its first hint, and again after the keeper has closed it. A lost
hint costs half a second.
A standby uses the pipe in reverse. The keeper is its only reader, and the kernel notifies writers when the last reader
closes it or dies. So a standby sleeps at the pipe, not at the lock: this sleep can also be ended from inside.
Format: docs/format.md, 13.
Invariant: a hint never blocks and never fails; the keeper's end stays open while a thread sleeps at it.
"""

from __future__ import annotations

import threading

from filewheel.disk.descriptors import Waker
from filewheel.env import Disk, Env
from filewheel.format import layout

STANDBY_S = 1.0
"""How often a standby checks the lock and its set, in addition to the end of the keeper."""
UNHEARD_S = 0.1
"""How often it checks if no keeper has opened the pipe: the keeper is starting, or there are no pipes."""
_RETRY_US = 50_000


class HintSender:
    """A producer's end of the pipe. Thread-safe, also when a signal handler interrupts its own thread.

    Cost of a hint: one write, or nothing without a listener.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._tried_us = 0

    def send(self, now_us: int) -> None:
        """Notify the keeper, if one listens."""
        if self._fd is None and abs(now_us - self._tried_us) < _RETRY_US:
            return
        with self._lock:
            if self._fd is None:
                self._tried_us = now_us
                self._fd = self._disk.open_hint(layout.HINT)
            if self._fd is not None and not self._disk.send_hint(self._fd):
                self._close()

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)


class Hints:
    """The keeper's end of the pipe. Thread-safe, also when a signal handler interrupts its own thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._sleeping = 0
        """The number of threads that wait for a hint."""

    def open(self) -> None:
        """Make the pipe and listen. On a file system without pipes no hint ever comes."""
        self._fd = self._disk.open_hints(layout.HINT)

    def wake(self) -> None:
        """Wake a waiting thread."""
        with self._lock:
            if self._fd is not None:
                self._disk.send_hint(self._fd)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a hint or the time-out; return whether a hint came."""
        with self._lock:
            fd = self._fd
            self._sleeping += 1
        try:
            return self._disk.wait_hint(fd, timeout_s)
        finally:
            with self._lock:
                self._sleeping -= 1
                if fd is not None and self._fd is None and not self._sleeping:
                    self._disk.close(fd)

    def close(self) -> None:
        """Stop listening. The last sleeping thread closes the pipe, because its number may be reused after that."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None and not self._sleeping:  # mutant: pipe-closed-under-a-wait
                self._disk.close(fd)


class StandbySleep:
    """A standby's sleep until the keeper has ended. Thread-safe, also for `end` in a signal handler.

    Holds two descriptors and the pipe during a sleep, and none between sleeps.
    """

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        self._lock = threading.RLock()
        self._waker: Waker | None = None
        self._ended = False

    def wait(self) -> None:
        """Sleep until the keeper may have ended, the next check is due, or `end` was called."""
        try:
            disk = self._env.disk(self._path)
        except OSError:  # the next attempt to open the wheel raises the reason
            disk = None
        bell = None if disk is None else disk.open_hint(layout.HINT)
        if disk is not None:
            disk.release()  # so that its disk can be unmounted during the sleep
        try:
            self._sleep(bell)
        finally:
            if disk is not None and bell is not None:
                disk.close(bell)

    def _sleep(self, bell: int | None) -> None:
        with self._lock:
            if self._ended:
                return
            waker = self._waker = Waker()
        try:
            waker.wait(UNHEARD_S if bell is None else STANDBY_S, bell)
        finally:
            with self._lock:
                self._waker = None
                waker.close()

    def end(self) -> None:
        """End this sleep and all later ones."""
        with self._lock:
            self._ended = True
            if self._waker is not None:
                self._waker.wake()
