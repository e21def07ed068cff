"""The hint pipe: a named pipe through which a writer wakes a keeper that sleeps.

Hints say nothing but "look": one that is lost costs the keeper half a second, so no error of a pipe leaves this module.
Each function is given the descriptor of the wheel's directory, or of an end.
Invariant: what is opened here is a pipe; anything else that has its name is left alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def make(root: int, name: str) -> int | None:
    """Make the pipe unless it is there, and open it for its reader; None when the file system has none."""
    with contextlib.suppress(FileExistsError):
        try:
            os.mkfifo(name, 0o600, dir_fd=root)
        except FileExistsError:
            raise
        except OSError:
            return None  # without hints the keeper looks twice a second
    # Read and write: with a writer of our own the pipe never reports its end.
    return open_end(root, name, os.O_RDWR)


def open_end(root: int, name: str, flags: int) -> int | None:
    """Open an end of the pipe; None when there is no listener, or on an error."""
    try:
        fd = os.open(name, flags | _FLAGS, dir_fd=root)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            return fd
    os.close(fd)
    return None


def send(fd: int) -> bool:
    """Put one hint into the pipe; False when the listener has gone."""
    try:
        os.write(fd, b"!")
    except BlockingIOError:
        return True  # full of hints already: one more would say nothing new
    except OSError:
        return False
    return True


def wait(fd: int | None, timeout_s: float) -> bool:
    """Sleep until a hint comes or the time is up, and swallow all hints; tell whether one came."""
    if fd is None:
        select.select([], [], [], timeout_s)
        return False
    ready, _, _ = select.select([fd], [], [], timeout_s)
    if ready:
        with contextlib.suppress(OSError):
            while len(os.read(fd, 65536)) == 65536:
                pass
    return bool(ready)
