"""Run the user's command for one message: body on stdin, everything else in the environment.

Each command is a separate session. So a Ctrl-C in the terminal reaches only `run`, which lets the command finish; and a
time-out ends the command with its child processes. The body is passed as a file in memory: a command that does not read
it cannot block, as it could with a pipe, and no temporary directory is needed.
The end of what it writes to stderr is kept for the message's history, unless the user forbids it.
Invariant: a command that began has an outcome, which is a reason; an empty reason means success, and is never a guess.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from filewheel import Message, timeout_of
from filewheel.tools.dump import iso

from .show.text import span
from .stderr import StderrTail, Tails
from .times import US_PER_S

_GRACE_S = 2.0
_POLL_MS_MAX = 1 << 30
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9]")


_MFD_NOEXEC_SEAL = 8
"""From Linux 6.3 on, and needed where vm.memfd_noexec is 2."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class NotStarted(Exception):
    """The command was not started: for a reason of this process or of the machine, not of the message."""


def environment(message: Message, late_ms: float, wheel: str, base: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the environment of a command. Like the body, what is added is UTF-8 in every locale."""
    found = {
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
    # An environment cannot hold zero bytes; a topic and a header can. A path may be no UTF-8.
    return base | {
        key.encode(): value.replace("\0", "").encode("utf-8", "surrogateescape") for key, value in found.items()
    }


class CommandEnd(NamedTuple):
    """How a command ended."""

    reason: str = ""
    """Why it failed; empty when it did not."""
    stderr: bytes = b""
    """The end of what a command that failed wrote there."""
    by_stop: bool = False
    """Whether it ended as a program does that is told to stop: by SIGTERM, say."""


class Commands:
    """Runs the user's command, any number at once. Thread-safe."""

    def __init__(self, argv: Sequence[str], wheel: str, timeout_us: int | None, *, tails: Tails | None = None) -> None:
        """Without `tails` a command has our own stderr, and nothing of it is kept."""
        self._tails = tails
        self._argv = list(argv)
        self._wheel = wheel
        self._timeout_us = timeout_us
        # In a nested run, drop the variables of the outer message.
        self._base = {k: v for k, v in os.environb.items() if not k.startswith(b"FILEWHEEL_")}
        self._live: dict[bytes, subprocess.Popen[bytes]] = {}
        """The commands that nobody has reaped, by message."""
        self._killed: set[bytes] = set()
        self._lock = threading.Lock()
        self._aborted = False

    def run(self, message: Message, late_ms: float) -> CommandEnd:
        """Run the command for one message; return how it ended.

        A time-out in the message's header counts in place of the command line's. Raises NotStarted.
        """
        limit_s = timeout_of(message, None if self._timeout_us is None else self._timeout_us / US_PER_S)
        tail: StderrTail | None = None
        try:
            tail = None if self._tails is None else self._tails.add()
            with _in_memory(message.payload) as body:
                process = self._start(message, late_ms, body.fileno(), tail)
        except (OSError, ValueError) as exc:
            raise NotStarted(f"{self._argv[0]}: {getattr(exc, 'strerror', None) or exc}") from exc
        finally:
            if tail is not None:
                os.close(tail.writes)
        try:
            ended = self._wait(message.id, process, limit_s)
            stderr = self._tails.end(tail) if self._tails is not None and tail is not None else b""
            return ended._replace(stderr=stderr) if ended.reason else ended
        finally:
            with self._lock:
                self._live.pop(message.id, None)

    def _start(self, message: Message, late_ms: float, stdin: int, tail: StderrTail | None) -> subprocess.Popen[bytes]:
        env = environment(message, late_ms, self._wheel, self._base)
        stderr = None if tail is None else tail.writes
        with self._lock:
            if self._aborted:
                raise NotStarted("aborted")
            process = subprocess.Popen(self._argv, stdin=stdin, stderr=stderr, env=env, start_new_session=True)
            self._live[message.id] = process
        return process

    def _wait(self, id_: bytes, process: subprocess.Popen[bytes], limit_s: float | None) -> CommandEnd:
        in_time = _ends_in(process, limit_s)
        with self._lock:
            del self._live[id_]
            if id_ in self._killed:
                self._killed.remove(id_)
                _kill(process, signal.SIGKILL)  # its child processes, before its number is free
        if not in_time:
            _end(process)
            return CommandEnd(f"took longer than {span(int((limit_s or 0) * US_PER_S))}")
        code = _code(process)
        if code is None:
            return CommandEnd("its exit code is not known: something else in this process has taken it")
        return CommandEnd(_reason(code), by_stop=code in {one for stop in _STOPS for one in (-stop, 128 + stop)})

    def running(self) -> list[tuple[bytes, int]]:
        """Return the messages whose commands run, and their processes."""
        with self._lock:
            return [(id_, process.pid) for id_, process in self._live.items()]

    def kill(self, id_: bytes) -> bool:
        """Begin to end the command of a message and its child processes; False if it has ended. Does not wait."""
        with self._lock:
            process = self._live.get(id_)
            if process is not None and id_ not in self._killed:
                self._killed.add(id_)
                _kill(process, signal.SIGTERM)
                later = threading.Timer(_GRACE_S, self._kill_hard, [id_])
                later.daemon = True
                try:
                    later.start()
                except RuntimeError:  # no more threads
                    _kill(process, signal.SIGKILL)
        return process is not None

    def _kill_hard(self, id_: bytes) -> None:
        with self._lock:
            if (process := self._live.get(id_)) is not None:
                _kill(process, signal.SIGKILL)

    @property
    def is_aborted(self) -> bool:
        """Whether `abort` was called: a command that failed since may have been killed by it."""
        return self._aborted

    def abort(self) -> None:
        """Kill all running commands, and start no more."""
        with self._lock:
            self._aborted = True
            live = list(self._live.values())
        for process in live:
            _kill(process, signal.SIGKILL)


def _ends_in(process: subprocess.Popen[bytes], limit_s: float | None) -> bool:
    """Wait until a process has ended, without reaping it: until it is reaped no other process has its number."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:  # it has ended, and something else has reaped it
        return True
    except (AttributeError, OSError):  # an older kernel, or no more files: then it is reaped here
        try:
            process.wait(None if limit_s is None else min(limit_s, threading.TIMEOUT_MAX))
        except subprocess.TimeoutExpired:
            return False
        return True
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(None if limit_s is None else min(limit_s * 1000, _POLL_MS_MAX)))
    finally:
        os.close(fd)


def _reason(code: int) -> str:
    """Return why a command failed that ended with this code; "" if it did not."""
    if code >= 0:
        return f"exit code {code}" if code else ""
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def _code(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process that has ended, None if that is lost: `wait` would say 0."""
    if process.returncode is None:
        try:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:  # SIGCHLD is ignored, or a library waits for any child
            process.wait()
            return None
    return process.wait()


def _in_memory(body: bytes) -> BinaryIO:
    """Return a file with this content, at its start. Raises OSError."""
    try:
        fd = os.memfd_create("filewheel", os.MFD_CLOEXEC | _MFD_NOEXEC_SEAL)
    except OSError:
        fd = os.memfd_create("filewheel")
    file = open(fd, "r+b")
    try:
        file.write(body)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


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
