"""Requests to end a run: empty files in `kills/`, whose names say everything.

A command makes `kills/<id>-<life>-<nonce>.<then>` and waits. The keeper whose name in `begun` is that life sees it a
few times a second, has its consumer end that attempt, and renames the file to its answer. It signals only what it
started itself; no number of a process is read from a file. An id is one attempt, and a message begins once in the life
of a keeper, so a request can mean no other begin. Who asked removes the file; the keeper removes what is left.
Format: docs/format.md, 13.
Invariant: a request ends at most the attempt that ran in the life of the keeper that it names.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import NamedTuple

from filewheel.disk.begun import LIFE_BYTES, read_table
from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.disk.keeper_lock import holder
from filewheel.env import Disk
from filewheel.errors import disk_errors
from filewheel.format import layout
from filewheel.message import MessageId
from filewheel.runs.run import Then

NONCE_BYTES = 4
POLL_S = 0.05
TIMEOUT_S = 10.0


class Killed(enum.StrEnum):
    """The result of a kill. True for KILLED and CANCELLED: the attempt was ended. Each equals its text."""

    KILLED = "killed"
    """The attempt was ended, and its outcome is written."""
    CANCELLED = "cancelled"
    """The attempt was ended; the message had been cancelled, so it is dropped, in spite of `then`."""
    ENDED = "ended"
    """It ended by itself before it could be killed, or had ended already: nothing was changed."""
    WAITING = "waiting"
    """It has not begun: `cancel` stops it."""
    OTHER = "other"
    """Another kill of it, which asked for another outcome, is at work: that one decides."""
    THREAD = "thread"
    """It runs in a thread, which nothing can end from outside: its process has to be stopped."""
    PROGRAM = "program"
    """The program that claimed it works on it itself, and cannot end it."""
    NO_KEEPER = "no keeper"
    """No keeper runs, so nothing runs; or it ended before it answered."""
    TIMED_OUT = "timed out"
    """The time is up; it may end later, or the keeper does not answer. The request is withdrawn if it was not taken."""

    def __bool__(self) -> bool:
        return self in (Killed.KILLED, Killed.CANCELLED)


ANSWERS = frozenset(k.value for k in Killed) - {Killed.NO_KEEPER, Killed.TIMED_OUT}


class Request(NamedTuple):
    """One request: its file, and what that asks for."""

    name: str
    id: MessageId
    life: bytes
    word: str


def requests(disk: Disk) -> Iterator[Request]:
    """Yield the requests and answers in the directory, in the order of their names; foreign names are passed over.

    Raises OSError.
    """
    try:
        names = disk.listdir(layout.KILLS)
    except NO_DIRECTORY:
        return
    for last in sorted(names):
        if (parsed := layout.parse_kill(last)) is not None:
            id_, life, word = parsed
            yield Request(f"{layout.KILLS}/{last}", MessageId.parse(id_), life, word)


class Asked:
    """A request that waits for its answer. Close it, or use it as a context manager."""

    def __init__(self, directory: Directory, id_: MessageId | None, then: Then) -> None:
        """Make the request, unless no keeper runs, or there is no message. Raises DiskError."""
        self._dir = directory
        self._disk = directory.disk
        self._name = ""
        self._without = Killed.NO_KEEPER
        if holder(directory) is None:
            return
        if id_ is None:
            self._without = Killed.ENDED
            return
        with disk_errors(directory.place(layout.KILLS)):
            life = read_table(self._disk)[:LIFE_BYTES]
            if not life:
                return
            self._stem = layout.kill(str(id_), life, directory.env.entropy(NONCE_BYTES))
            name = f"{self._stem}.{then}"
            with contextlib.suppress(FileExistsError):
                self._disk.mkdir(layout.KILLS)
            self._disk.close(self._disk.open(name, "x"))
        self._name = name

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def look(self) -> Killed | None:
        """Return the answer; None while there is none. Cost: a listing. Raises DiskError."""
        if not self._name:
            return self._without
        with disk_errors(self._dir.place(layout.KILLS)):
            found = [r for r in requests(self._disk) if r.name.startswith(f"{self._stem}.")]
        for request in found:
            if request.word in ANSWERS:
                self._name = request.name
                return Killed(request.word)
        # A keeper that ends removes the requests that it has not answered.
        return None if found and holder(self._dir) is not None else Killed.NO_KEEPER

    def close(self) -> None:
        """Remove the request, or its answer. Never raises OSError."""
        if self._name:
            for request in self._left():
                with contextlib.suppress(OSError):
                    self._disk.unlink(request)
            self._name = ""

    def _left(self) -> list[str]:
        try:
            return [r.name for r in requests(self._disk) if r.name.startswith(f"{self._stem}.")]
        except OSError:
            return [self._name]
