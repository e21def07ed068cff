"""System calls of the hint pipe: a named pipe through which a writer wakes a sleeping keeper.

A hint has no content, and a lost one costs half a second, so no function here raises an error of the pipe. Each takes
the descriptor of the wheel's directory, or of an end.
Invariant: only a pipe is opened; any other file with its name stays as it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat

from filewheel.disk.descriptors import raised

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def make(root: int, name: str) -> int | None:
    """Make the pipe unless it exists, and open its reading end; None when the file system has no pipes."""
    with contextlib.suppress(FileExistsError):
        try:
            os.mkfifo(name, 0o600, dir_fd=root)
            os.chmod(name, 0o600, dir_fd=root)  # whatever the umask took
        except FileExistsError:
            raise
        except OSError:
            return None  # without hints the keeper reads the journals twice a second
    # Read and write: our own writing end prevents an end-of-file.
    return open_end(root, name, os.O_RDWR)


def open_end(root: int, name: str, flags: int) -> int | None:
    """Open an end of the pipe; None when there is no listener, or on an error."""
    try:
        fd = raised(os.open(name, flags | _FLAGS, dir_fd=root))
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return fd
    os.close(fd)
    return None


def send(fd: int) -> bool:
    """Put one hint into the pipe; False when it has no reader."""
    try:
        os.write(fd, b"!")
    except BlockingIOError:
        return True  # full: the reader has hints
    except OSError:
        return False
    return True


def wait(fd: int | None, timeout_s: float) -> bool:
    """Sleep until a hint or the time-out, and drain the pipe; return whether a hint came."""
    poll = select.poll()  # select() refuses a descriptor above 1,023, which a program with many connections has
    if fd is not None:
        poll.register(fd, select.POLLIN)
    ready = poll.poll(max(timeout_s, 0) * 1000)
    if ready and fd is not None:
        with contextlib.suppress(OSError):
            while len(os.read(fd, 65536)) == 65536:
                pass
    return bool(ready)
