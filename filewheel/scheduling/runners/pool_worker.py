"""The child's side of the pool: read a call, run it, write what became of it, until the pipe ends.

The process is started by `multiprocessing`, which imports the script that was started under another name, so that
handlers defined there can be found. Only these arguments travel by its pickle; calls and results are msgpack.
It must never outlive its parent, also when a C function holds the interpreter's lock for an hour: the kernel is asked
to kill it when the pipe to the parent closes, and a thread watches the parent besides (a process forked from the
parent may hold the pipe open; other systems cannot be asked).
A call is followed by one byte, which is read when the function is begun and not before: what the pipe still holds when
a process has ended tells the parent whether to blame the call, or to give it to another process.
Invariant: what the process writes to its pipe is one "ready" and one answer for each call that it read.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import multiprocessing
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgpack

from filewheel.scheduling.runners.pool_frame import BODY_BYTES_MAX, HEADER_BYTES, BrokenFrame, checked, frame, opened
from filewheel.scheduling.runners.pool_result import MESSAGE_CHARS_MAX, TRACEBACK_CHARS_MAX, name_of

BEGIN = b"\0"  # the byte after a call
PIPE_LOST = 70  # exit code: the pipe to the parent is not what it was

READY, BROKEN, RETURNED, RAISED = "ready", "broken", "returned", "raised"


def serve(requests: Connection, answers: Connection, parent_pid: int, init: str | None) -> None:
    """Answer calls until there are no more. The whole life of a process of the pool."""
    _settle_signals()
    _end_with_parent(parent_pid)
    # A daemon in multiprocessing's sense may not start processes; a handler may want to.
    multiprocessing.current_process().daemon = False
    for end in (requests, answers):
        os.set_inheritable(end.fileno(), False)
    try:
        if init is not None:
            resolve(init)()
    except BaseException as exc:
        _write(answers.fileno(), [BROKEN, *_described(exc)])
        sys.exit(1)
    _write(answers.fileno(), [READY])
    _answer_all(requests.fileno(), answers.fileno())


def preparing() -> bool:
    """Return whether this process is being started by multiprocessing, and just imports the script that started it.

    What the script does outside of its `__main__` block is done again then; it must not be to start all over.
    """
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


def resolve(target: str) -> Callable[..., Any]:
    """Return the function that "module:qualname" names. Raises ImportError, AttributeError, or what the module does."""
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


def _settle_signals() -> None:
    """Leave Ctrl-C to the parent, let SIGTERM end the process, and unblock what the starting thread had blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def _end_with_parent(parent_pid: int) -> None:
    """Arrange that this process ends when its parent does."""
    parent = multiprocessing.parent_process()
    watched = select.poll()
    if parent is not None:
        # multiprocessing keeps this pipe open in the parent and writes nothing to it after the start.
        pipe = parent.sentinel
        watched.register(pipe, select.POLLIN)
        with contextlib.suppress(AttributeError, OSError):  # only Linux can name the signal
            fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore]
            fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    try:
        watched.register(os.pidfd_open(parent_pid), select.POLLIN)
    except ProcessLookupError:
        os._exit(PIPE_LOST)
    except (AttributeError, OSError):
        pass  # an older kernel: the pipe alone
    # Also what happened before the kernel was asked: the thread looks at once.
    threading.Thread(target=_watch, args=(watched,), name="filewheel-parent", daemon=True).start()


def _watch(watched: select.poll) -> None:
    # The handler may close what is not its own; an invalid descriptor ends the process too.
    while not watched.poll():
        pass
    os._exit(PIPE_LOST)


def _answer_all(requests: int, answers: int) -> None:
    known: dict[str, Callable[[bytes], bytes]] = {}
    while (body := _next_call(requests)) is not None:
        number, target, request = msgpack.unpackb(body)
        del body
        if _read(requests, len(BEGIN)) != BEGIN:
            return
        try:
            function = known.get(target)
            if function is None:
                function = known[target] = resolve(target)
            value = function(request)
            if not isinstance(value, bytes) or len(value) > BODY_BYTES_MAX - 64:
                raise TypeError(f"{target!r} returned {_kind_of(value)}; it must return less than 1 GiB of bytes")
            answer = [RETURNED, number, value]
        except BaseException as exc:
            # SystemExit too: a handler that ends itself has failed, the process need not end for it.
            answer = [RAISED, number, *_described(exc)]
        _flush_prints()
        _write(answers, answer)


def _next_call(requests: int) -> bytes | None:
    """Return the next call, or None at the end of the pipe."""
    head = _read(requests, HEADER_BYTES)
    if head is None:
        return None
    try:
        length, body_sum = opened(head)
        body = _read(requests, length)
        return None if body is None else checked(body, body_sum)
    except BrokenFrame:
        os._exit(PIPE_LOST)  # a handler has read what was not its own


def _read(requests: int, size: int) -> bytes | None:
    """Return so many bytes of the pipe, or None when it ends before."""
    data = bytearray(size)
    rest = memoryview(data)
    try:
        while rest:
            got = os.readv(requests, [rest])
            if not got:
                return None
            rest = rest[got:]
    except OSError:
        os._exit(PIPE_LOST)  # a handler closed what was not its own: only a new process is sure to be whole
    return bytes(data)


def _write(answers: int, answer: list[object]) -> None:
    rest = memoryview(frame(msgpack.packb(answer)))
    try:
        while rest:
            rest = rest[os.write(answers, rest) :]
    except OSError:
        os._exit(PIPE_LOST)


def _kind_of(value: object) -> str:
    return f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"


def _described(exc: BaseException) -> tuple[list[str], str, str]:
    """Return the names, the text and the traceback of an exception, whatever its own methods do."""
    names = [name_of(kind) for kind in type(exc).__mro__ if kind is not object]
    try:
        text = str(exc)
    except BaseException as again:
        text = f"<its text raised {type(again).__name__}>"
    try:
        # The first entry is this file.
        inner = exc.__traceback__.tb_next if exc.__traceback__ else None
        trace = "".join(traceback.format_exception(type(exc), exc, inner))
    except BaseException as again:
        trace = f"<its traceback raised {type(again).__name__}>"
    if len(trace) > TRACEBACK_CHARS_MAX:
        trace = "[…]\n" + trace[-TRACEBACK_CHARS_MAX:]
    return [_plain(name) for name in names], _plain(text[:MESSAGE_CHARS_MAX]), _plain(trace)


def _plain(text: str) -> str:
    # A file name that is not Unicode stands in a text as half a surrogate pair, which cannot be packed.
    return text.encode("utf-8", "backslashreplace").decode()


def _flush_prints() -> None:
    """Let what the handler printed appear now: a process that is killed later would take it along."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
