"""Tells a service manager how a service is: that it is ready, that it is alive, what it does (sd_notify(3)).

systemd passes the name of a socket in NOTIFY_SOCKET, and the time of its watchdog in WATCHDOG_USEC; without them
nothing is sent. A thread sends the signs of life, but only while each loop that fires has come around within half of
that time. So the watchdog ends a keeper that hangs, one whose housekeeper is stuck, and a process that was stopped. A
handler or a command that takes long does not count.
Invariant: a service manager that cannot be reached changes nothing.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Self

log = logging.getLogger("filewheel.notify")

_SOCKET = "NOTIFY_SOCKET"
_WATCHDOG = "WATCHDOG_USEC"
_WATCHDOG_PID = "WATCHDOG_PID"
_PINGS = 4
"""How many signs of life the time of the watchdog has room for."""
_LOOK_S = 0.5
_SEND_S = 1.0
_STATUS_CHARS_MAX = 200


class Service:
    """This process as a service: a context manager. Without a service manager it does nothing."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the variables out of the environment: they are for this process, not for its commands."""
        name = environ.pop(_SOCKET, "")
        watchdog, pid = environ.pop(_WATCHDOG, ""), environ.pop(_WATCHDOG_PID, "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name if name.startswith("/") else ""
        is_ours = pid in ("", str(os.getpid()))
        self._watchdog_s = int(watchdog) / 1e6 if is_ours and watchdog.isdecimal() else 0.0
        self._lock = threading.Lock()
        self._ended = threading.Lock()
        """Free at the end. A lock, because Ctrl-C breaks an event of Python's."""
        self._ended.acquire()
        self._thread: threading.Thread | None = None
        self._beat_s: float | None = None
        self._stalled: Callable[[], float] = lambda: 0.0
        self._status: Callable[[], tuple[bool, str]] = lambda: (False, "")
        self._said = ""
        self._is_ready = False
        self._failed = False

    def __enter__(self) -> Self:
        if self._address:
            self._thread = threading.Thread(target=self._live, name="filewheel-watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.release()
        if self._thread is not None:
            self._thread.join(2 * _SEND_S)  # nothing is said of a service after its end
        self._send("STOPPING=1")

    # -- what the verb reports -----------------------------------------------------------------------------------

    def report(self, status: str, *, ready: bool = True) -> None:
        """Report what the service does now. It is ready once it fires, or stands by."""
        with self._lock:
            lines = []
            if ready and not self._is_ready:
                self._is_ready, lines = True, ["READY=1"]
            text = " ".join(status.split())[:_STATUS_CHARS_MAX]
            if text and text != self._said:
                self._said = text
                lines.append(f"STATUS={text}")
        if lines:
            self._send(*lines)

    def beat(self) -> None:
        """Report that the loop that fires has come around. Call it often: it costs one reading of the clock."""
        self._beat_s = time.monotonic()

    def watch(self, stalled: Callable[[], float], status: Callable[[], tuple[bool, str]] | None = None) -> None:
        """Ask these functions from now on: for how many seconds something has not come around; what to `report`.

        They must take no lock.
        """
        self._stalled = stalled
        if status is not None:
            self._status = status
        self._look()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _live(self) -> None:
        wait_s = min(_LOOK_S, self._watchdog_s / _PINGS) if self._watchdog_s else _LOOK_S
        sent_s, is_late = 0.0, False
        while not self._ended.acquire(timeout=wait_s):
            self._look()
            now_s = time.monotonic()
            if not (self._watchdog_s and self._is_ready) or now_s - sent_s < self._watchdog_s / _PINGS:
                continue
            beat_s = self._beat_s
            stalled_s = max(self._stalled(), 0.0 if beat_s is None else now_s - beat_s)
            if stalled_s < self._watchdog_s / 2:
                sent_s, is_late = now_s, False
                self._send("WATCHDOG=1")
            elif not is_late:
                is_late = True
                log.critical("nothing has come around for %.0f s: the watchdog is not told any more", stalled_s)

    def _look(self) -> None:
        ready, status = self._status()
        self.report(status, ready=ready)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(_SEND_S)
                out.sendto("\n".join(lines).encode(errors="replace"), self._address)
            self._failed = False
        except OSError as exc:
            if not self._failed:
                log.warning("the service manager cannot be told: %s", exc)
            self._failed = True
