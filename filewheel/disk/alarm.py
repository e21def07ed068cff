"""A sleep that another thread can end, for a thread that also waits for the other end of a pipe.

It touches nothing of a wheel, so it stands beside the disk and not in it.
Invariant: a set is never lost: one before the sleep ends that sleep at once.
"""

from __future__ import annotations

import contextlib
import select


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
