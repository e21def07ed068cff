"""Functions that the tests of the pool run in its processes."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


class Trouble(ValueError):
    """An error of the handlers' own."""


class Unspeakable(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Namespace:
    """Functions may stand in a class."""

    @staticmethod
    def upper(request: bytes) -> bytes:
        return request.upper()


def echo(request: bytes) -> bytes:
    return request


_LEAKED: list[bytes] = []


def leak(request: bytes) -> bytes:
    _LEAKED.append(os.urandom(int(request)))
    return str(os.getpid()).encode()


def pid(request: bytes) -> bytes:
    return str(os.getpid()).encode()


def echo_and_pid(request: bytes) -> bytes:
    return b"%b %d" % (request, os.getpid())


def fail(request: bytes) -> bytes:
    raise Trouble(request.decode())


def fail_deep(request: bytes) -> bytes:
    return fail_deep(request) + b"x"


def fail_unspeakable(request: bytes) -> bytes:
    raise Unspeakable


def fail_surrogate(request: bytes) -> bytes:
    raise FileNotFoundError("no file \udcff")


def fail_long(request: bytes) -> bytes:
    raise Trouble("x" * 1_000_000)


def not_bytes(request: bytes) -> bytes:
    return "text"  # type: ignore[return-value]


def sys_exit(request: bytes) -> bytes:
    sys.exit(4)


def hard_exit(request: bytes) -> bytes:
    os._exit(3)


def segfault(request: bytes) -> bytes:
    os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(600)
    return b""


def wild_pointer(request: bytes) -> bytes:
    ctypes.string_at(0)
    return b""


def until_told(request: bytes) -> bytes:
    """Make the file NAME.begun with the pid in it, and return once there is NAME.go."""
    name = request.decode()
    half = Path(f"{name}.half")
    half.write_text(str(os.getpid()))
    half.rename(f"{name}.begun")
    while not Path(f"{name}.go").exists():
        time.sleep(0.005)
    return b"told"


def forever_deaf(request: bytes) -> bytes:
    """Take no notice of SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return until_told(request)


def forever_in_c(request: bytes) -> bytes:
    """Hold the interpreter's lock in C for longer than anybody waits."""
    until_told(request)
    re.match(r"(a+)+$", "a" * 60 + "b")
    return b""


def garbage(request: bytes) -> bytes:
    """Write to every descriptor that may be a pipe."""
    for fd in range(3, 64):
        try:
            os.write(fd, request)
        except OSError:
            continue
    return b"written"


def close_everything(request: bytes) -> bytes:
    os.closerange(3, 256)
    return b"closed"


def leave_grandchild(request: bytes) -> bytes:
    """Fork a process that holds every pipe open, then crash; the pid is in the file."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
        os._exit(0)
    Path(request.decode()).write_text(str(child))
    os._exit(9)


def use_multiprocessing(request: bytes) -> bytes:
    import multiprocessing

    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    return str(child.exitcode).encode()


def shout(request: bytes) -> bytes:
    print(request.decode())
    return b""


def threads(request: bytes) -> bytes:
    return " ".join(sorted(thread.name for thread in threading.enumerate())).encode()


def run_program(request: bytes) -> bytes:
    return subprocess.run([sys.executable, "-c", "print('out')"], stdout=subprocess.PIPE, check=True).stdout
