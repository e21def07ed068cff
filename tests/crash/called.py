"""What a call does first and last: it notes that it has begun, and that it has ended.

Handlers in threads, loops and processes use it, and it is the command that `filewheel run` runs for each message, so it
imports nothing that takes time. A call's line says where it ran (its slot: a thread, a task), and how many such calls
can run at once, so that the judge can tell from the lines alone when a call cannot have begun yet.
Invariant: the line of a begin is written before anything else of the call, with one write to a file that only grows.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

FOLDER = "CRASH_MARKS"
"""The environment variable that has the folder of the marks; OWNER that with the process of the keeper."""
OWNER = "CRASH_OWNER"
FAILS_SHARE = 0.08
WORKS_S = 0.02


class Calls:
    """Notes the calls that run in this process. Thread-safe."""

    def __init__(self, folder: str, owner: int) -> None:
        self._fd = os.open(
            f"{folder}/calls-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._owner = owner

    @contextmanager
    def noted(self, rooms: dict[str, int], *jobs: tuple[str, int], slot: str | None = None) -> Iterator[None]:
        """Note the begin of a call of these messages, (id, serial) each, and its end.

        `rooms` are the places that hold so many calls at once, of which it takes one in each. The slot holds one call:
        this thread unless another is named; "" where there is none.
        """
        since = time.monotonic_ns()
        slot = f"{os.getpid()} {threading.get_ident()}" if slot is None else slot
        self._tell("call", since, since, slot, rooms, jobs)
        try:
            yield
        finally:
            self._tell("called", since, time.monotonic_ns(), slot, rooms, ())

    def _tell(self, kind: str, since: int, at: int, slot: str, rooms: dict[str, int], jobs: object) -> None:
        line = json.dumps([kind, since, at, self._owner, slot, rooms, jobs], separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


def work(serial: int) -> bool:
    """Take a while; tell whether this call fails. The serial and the moment decide."""
    drawn = (serial * 2654435761 + time.monotonic_ns()) % 1000 / 1000
    time.sleep(drawn * WORKS_S)
    return drawn < FAILS_SHARE


def in_process(serial: int, count: int) -> None:
    """The handler that runs in a pool of `count` processes."""
    from filewheel import current_job

    calls = Calls(os.environ[FOLDER], int(os.environ[OWNER]))
    with calls.noted({"processes": count}, (str(current_job().id), serial)):
        if work(serial):
            raise ValueError("try again")


def main(folder: str, owner: str, count: str) -> int:
    """The command of `filewheel run --jobs COUNT`."""
    calls = Calls(folder, int(owner))
    serial = int(sys.stdin.buffer.read())
    with calls.noted({"commands": int(count)}, (os.environ["FILEWHEEL_ID"], serial), slot=""):
        return 75 if work(serial) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
