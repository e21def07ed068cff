"""The child's side of the pool: read a call, run it, write the answer, until the pipe ends.

`multiprocessing` starts the process and imports the program's script under another name, so handlers defined there are
found. Only the arguments of `serve` are pickled; calls and answers are bytes in frames. A frame starts with a random
token of this process, so a handler that writes to a foreign descriptor cannot make one by accident.
The process must not outlive its parent, even while a C function holds the interpreter's lock for an hour: the kernel
kills it. Only the parent ends it: a SIGTERM or a Ctrl-C that is sent to all processes of a service leaves a call alone.
Before the first call of a function, the parent lets the process import it, by a frame without a request: an import may
take seconds, and does not belong to the time of the call.
One byte follows a call, and is read just before the function starts: if the process ends with that byte unread, the
parent gives the call to another process instead of failing it.
Invariant: the process writes one frame when it is ready, and one for each frame that it read.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import select
import signal
import struct
import sys
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgpack

from filewheel.disk.forks import die_with
from filewheel.scheduling.runners.runner import failed_by

TOKEN_BYTES = 16
_HEAD = struct.Struct(f"<{TOKEN_BYTES}sQII")  # token, number of the call, length of the body, its checksum
BODY_BYTES_MAX = 1 << 30
BEGIN = b"\0"  # the byte that follows a call
RETURNED, RAISED = b"r", b"f"  # the first byte of an answer
TEXT_CHARS_MAX = 4_000
PIPE_LOST = 70  # exit code: the pipe to the parent has ended or was misused


class BrokenFrame(Exception):
    """A frame that differs from the one that was sent."""


def frame(token: bytes, number: int, body: bytes, tail: bytes = b"") -> bytes:
    """Return a body as a frame, followed by `tail`."""
    return b"".join((_HEAD.pack(token, number, len(body), zlib.crc32(body)), body, tail))


def take(buffer: bytearray, token: bytes) -> tuple[int, bytes] | None:
    """Remove the next whole frame and the bytes before it; return its number and body, or None. Raises BrokenFrame."""
    start = buffer.find(token)
    # Without a token, the last bytes may be the start of one.
    del buffer[: start if start >= 0 else max(0, len(buffer) - len(token) + 1)]
    if start < 0 or len(buffer) < _HEAD.size:
        return None
    _, number, length, body_sum = _HEAD.unpack_from(buffer)
    end = _HEAD.size + length
    if len(buffer) < end and length <= BODY_BYTES_MAX:
        return None
    with memoryview(buffer) as view:
        body = bytes(view[_HEAD.size : end])
    del buffer[:end]
    if zlib.crc32(body) != body_sum:
        raise BrokenFrame(f"a frame of {length} bytes does not match its checksum")
    return number, body


def serve(requests: Connection, answers: Connection, token: bytes, parent_pid: int) -> None:
    """Answer calls until the pipe ends. The main function of a process of the pool."""
    die_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A handler, because a program that the function starts would ignore what is ignored here.
    signal.signal(signal.SIGTERM, functools.partial(_heed, requests.fileno()))
    signal.siginterrupt(signal.SIGTERM, False)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or each program that the function starts would seem to succeed
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the parent's thread had blocked both
    # A daemon of multiprocessing may not start processes; a handler may need to.
    multiprocessing.current_process().daemon = False
    for end in (requests, answers):
        os.set_inheritable(end.fileno(), False)
    _write(answers.fileno(), frame(token, 0, b""))
    try:
        while (call := _next_call(requests.fileno(), token)) is not None:
            number, body = call
            _write(answers.fileno(), frame(token, number, _answer(*msgpack.unpackb(body))))
    except (OSError, BrokenFrame):
        os._exit(PIPE_LOST)  # a handler misused the pipe; a new process replaces this one


def _heed(requests: int, number: int, frame: object) -> None:
    """End at a SIGTERM of the parent, which has closed the pipe; another one is for all processes of a service."""
    pipe = select.poll()
    pipe.register(requests, 0)  # the end is always reported
    if pipe.poll(0):
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def preparing() -> bool:
    """Return whether multiprocessing is starting this process, and is importing the program's script.

    That runs the script's code outside of its `__main__` block, which must not start processes again.
    """
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


@functools.cache
def resolve(target: str) -> Callable[..., Any]:
    """Return the function that "module:qualname" names. Raises ImportError, AttributeError, or the module's error."""
    module, _, qualname = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        if not hasattr(found, part):
            raise AttributeError(
                f"{target!r}: the process finds no {part!r} in {module}; a handler in processes is a function "
                "at the top level of a module, or of the script that was started, outside of its `__main__` block"
            )
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target!r} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _answer(functions: list[str], request: bytes | None) -> bytes:
    """Import these functions, and call the first one unless the request is None; return the answer."""
    try:
        target, value = functions[0], b""
        function, *_ = map(resolve, functions)
        if request is not None:
            value = function(request)
        if not isinstance(value, bytes) or len(value) >= BODY_BYTES_MAX:
            kind = f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
            raise TypeError(f"{target!r} returned {kind}; it must return less than 1 GiB of bytes")
        answer = RETURNED + value
    except BaseException as exc:
        # SystemExit too: the handler has failed, but the process continues.
        text, *others = failed_by(exc).to_plain()
        answer = RAISED + msgpack.packb([str(text)[:TEXT_CHARS_MAX], *others])
    for stream in (sys.stdout, sys.stderr):  # the process may be killed later, and unflushed output would be lost
        with contextlib.suppress(Exception):
            stream.flush()
    return answer


def _next_call(requests: int, token: bytes) -> tuple[int, bytes] | None:
    """Return the number and the body of the next call, or None at the end of the pipe. Raises OSError, BrokenFrame."""
    head = _read(requests, _HEAD.size)
    if head is None:
        return None
    if not head.startswith(token):
        raise BrokenFrame("this is not a frame's head")
    body = _read(requests, _HEAD.unpack(head)[2])
    if body is None or _read(requests, len(BEGIN)) is None:
        return None
    return take(head + body, token)


def _read(requests: int, size: int) -> bytearray | None:
    """Return this many bytes of the pipe, or None when it ends before. Raises OSError."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        got = os.readv(requests, [rest])
        if not got:
            return None
        rest = rest[got:]
    rest.release()
    return data


def _write(answers: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(answers, rest) :]
