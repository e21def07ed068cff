"""Run the user's command for one message: body on stdin, everything else in the environment.

Each command is a separate session. So a Ctrl-C in the terminal reaches only `run`, which lets the command finish; and a
time-out ends the command with its child processes. The body is passed as an unlinked file, not a pipe: a command that
does not read it cannot block.
Invariant: the outcome of a command is a reason, and an empty reason means success.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence

from filewheel import Message, timeout_of
from filewheel.tools.dump import iso

from .show.text import span
from .times import US_PER_S

_GRACE_S = 2.0
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9]")


def environment(message: Message, late_ms: float, wheel: str, base: dict[str, str]) -> dict[str, str]:
    """Return the environment of a command."""
    found = {
        **base,
        "FILEWHEEL": wheel,
        "FILEWHEEL_WHEEL": wheel,
        "FILEWHEEL_ID": str(message.id),
        "FILEWHEEL_DUE": iso(message.due_us),
        "FILEWHEEL_DUE_US": str(message.due_us),
        "FILEWHEEL_LATE_MS": f"{late_ms:.3f}",
        "FILEWHEEL_TOPIC": message.topic,
        "FILEWHEEL_ATTEMPT": str(message.attempt),
    }
    for key, value in message.headers.items():
        found["FILEWHEEL_H_" + _NOT_IN_A_NAME.sub("_", key.upper())] = value
    # An environment cannot hold zero bytes; a topic and a header can.
    return {key: value.replace("\0", "") for key, value in found.items()}


class Commands:
    """Runs the user's command, any number at once. Thread-safe."""

    def __init__(self, argv: Sequence[str], wheel: str, timeout_us: int | None) -> None:
        self._argv = list(argv)
        self._wheel = wheel
        self._timeout_us = timeout_us
        # In a nested run, drop the variables of the outer message.
        self._base = {k: v for k, v in os.environ.items() if not k.startswith("FILEWHEEL_")}
        self._live: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._aborted = False

    def run(self, message: Message, late_ms: float) -> str:
        """Run the command for one message; return why it failed, or "" when it did not.

        A time-out in the message's header counts in place of the command line's.
        """
        limit_s = timeout_of(message, None if self._timeout_us is None else self._timeout_us / US_PER_S)
        try:
            with tempfile.TemporaryFile() as body:
                body.write(message.payload)
                body.seek(0)
                process = self._start(message, late_ms, body.fileno())
        except (OSError, ValueError) as exc:
            return f"cannot be started: {getattr(exc, 'strerror', None) or exc}"
        try:
            return self._reason(process, limit_s)
        finally:
            with self._lock:
                self._live.discard(process)

    def _start(self, message: Message, late_ms: float, stdin: int) -> subprocess.Popen[bytes]:
        env = environment(message, late_ms, self._wheel, self._base)
        with self._lock:
            if self._aborted:
                raise ValueError("aborted")
            process = subprocess.Popen(self._argv, stdin=stdin, env=env, start_new_session=True)
            self._live.add(process)
        return process

    def _reason(self, process: subprocess.Popen[bytes], limit_s: float | None) -> str:
        try:
            code = process.wait(None if limit_s is None else min(limit_s, threading.TIMEOUT_MAX))
        except subprocess.TimeoutExpired:
            _end(process)
            return f"took longer than {span(int((limit_s or 0) * US_PER_S))}"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
            return f"killed by signal {-code}"
        return f"exit code {code}" if code else ""

    def abort(self) -> None:
        """Kill all running commands, and start no more."""
        with self._lock:
            self._aborted = True
            live = list(self._live)
        for process in live:
            _kill(process, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and its child processes: with SIGTERM, then SIGKILL."""
    _kill(process, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    _kill(process, signal.SIGKILL)
    process.wait()


def _kill(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
