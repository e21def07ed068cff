"""The hint pipe: a producer wakes the keeper after it wrote a message for the next few seconds.

A producer opens the pipe in the wheel's directory for its first hint, and again when the listening keeper has gone. The
keeper sleeps at it. A lost hint costs half a second.
A standby uses the pipe the other way round. The keeper is its only reader, and the kernel tells a writer that the last
reader has gone, however it went: so a standby that must also hear of its own end sleeps at the pipe, not at the lock.
Format: docs/format.md, 13.
Invariant: ringing never waits, and never fails; the keeper's end stays open while a thread sleeps at it.
"""

from __future__ import annotations

import contextlib
import select
import threading

from filewheel.env import Disk, Env
from filewheel.format import layout

STANDBY_S = 1.0
"""How often a standby looks at the lock and at its set, besides the moment in which the keeper goes."""
UNHEARD_S = 0.1
"""How often it does where no keeper has opened the pipe: it is only starting, or there are no pipes."""
_RETRY_US = 50_000


class HintSender:
    """One handle's end of the pipe. Thread-safe, also where a signal handler interrupts its own thread.

    Cost of a hint: one write, or nothing where none listens.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._tried_us = 0

    def send(self, now_us: int) -> None:
        """Tell the keeper, if one listens."""
        if self._fd is None and abs(now_us - self._tried_us) < _RETRY_US:
            return
        with self._lock:
            if self._fd is None:
                self._tried_us = now_us
                self._fd = self._disk.open_hint(layout.HINT)
            if self._fd is not None and not self._disk.send_hint(self._fd):
                self._close()

    def close(self) -> None:
        """Let go of the pipe."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)


class Hints:
    """The keeper's end of the pipe. Thread-safe, also where a signal handler interrupts its own thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.RLock()
        self._fd: int | None = None
        self._sleeping = 0
        """Threads that wait for a hint."""

    def open(self) -> None:
        """Make the pipe, and listen. Where the file system has none, no hint ever comes."""
        self._fd = self._disk.open_hints(layout.HINT)

    def wake(self) -> None:
        """End the sleep of a thread that waits."""
        with self._lock:
            if self._fd is not None:
                self._disk.send_hint(self._fd)

    def wait(self, timeout_s: float) -> bool:
        """Sleep until a hint comes or the time is up; tell whether one came."""
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
        """Let go of the pipe. The last thread that sleeps at it closes it: its number may be another file's then."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None and not self._sleeping:  # mutant: pipe-closed-under-a-wait
                self._disk.close(fd)


class Alarm:
    """A sleep that another thread, or a signal handler, can end. Its two descriptors live as long as the sleep."""

    def __init__(self) -> None:
        """Raises OSError where there is no room for two open files."""
        import socket  # only standbys need it

        self._heard, self._rung = socket.socketpair()
        self._rung.setblocking(False)

    def set(self) -> None:
        """End the sleep, or the next one."""
        with contextlib.suppress(BlockingIOError):
            self._rung.send(b"!")

    def wait(self, timeout_s: float, bell: int | None = None) -> None:
        """Sleep until it rings, the time is up, or the last reader of a pipe has gone, whose writing end `bell` is."""
        poll = select.poll()
        poll.register(self._heard, select.POLLIN)
        if bell is not None:
            poll.register(bell, 0)  # an error is reported unasked
        poll.poll(timeout_s * 1000)

    def close(self) -> None:
        """Let go of it; no thread may set it any more."""
        self._heard.close()
        self._rung.close()


class Vigil:
    """A standby's sleep until the keeper has gone. Thread-safe, also for `end` in a signal handler.

    Holds two descriptors and the pipe while it sleeps, and nothing in between.
    """

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        self._lock = threading.RLock()
        self._alarm: Alarm | None = None
        self._ended = False

    def wait(self) -> None:
        """Sleep until the keeper may have gone, it is time to look anyway, or `end` was called."""
        try:
            disk = self._env.disk(self._path)
        except OSError:  # the next opening of the wheel raises the reason
            disk = None
        bell = None if disk is None else disk.open_hint(layout.HINT)
        if disk is not None:
            disk.release()  # no directory stays open: its disk may be unmounted during the sleep
        try:
            self._sleep(bell)
        finally:
            if disk is not None and bell is not None:
                disk.close(bell)

    def _sleep(self, bell: int | None) -> None:
        with self._lock:
            if self._ended:
                return
            alarm = self._alarm = Alarm()
        try:
            alarm.wait(UNHEARD_S if bell is None else STANDBY_S, bell)  # mutant: standby-blind
        finally:
            with self._lock:
                self._alarm = None
                alarm.close()

    def end(self) -> None:
        """End the sleep, for good."""
        with self._lock:
            self._ended = True
            if self._alarm is not None:
                self._alarm.set()  # mutant: standby-unstoppable
