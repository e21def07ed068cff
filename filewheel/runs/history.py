"""The history of runs: files of JSON lines in `history/`, one line for the end of each attempt.

The keeper's process appends to the newest file, without a flush: a crash loses the last second. When that file has as
many ends as are to be kept, the next one begins, and all but the file before it are removed. So at least that many
ends are kept, and at most twice as many. A line that is no JSON (torn by a crash, or a foreign file) is passed over.
Format: docs/format.md, 13.
Invariant: nothing depends on these files, and no error here reaches the firing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY, ForeignFile
from filewheel.env import Disk
from filewheel.errors import BadArgument, DiskError, disk_error
from filewheel.format import layout
from filewheel.message import KEY, OF_SCHEDULE, Message, MessageId, schedule_of_key
from filewheel.runs.run import Detail, Ended

log = logging.getLogger(__name__)

KEPT = 10_000
"""The default number of ends."""
ERROR_CHARS_MAX = 500
ROOM_BYTES = 4 << 20
"""With less than this free, nothing is written: the room is for acknowledgements."""
_BYTES_MAX = 64 << 20
"""No file is read or continued beyond this."""
_FILES_READ = 3
_quote = json.encoder.encode_basestring_ascii


def start_of(message: Message, quoted: dict[str, str]) -> str:
    """Return the start of a line: what the message says. `quoted` remembers topics. Cost: about 1.5 µs."""
    topic = quoted.get(message.topic)
    if topic is None:
        topic = quoted[message.topic] = _quote(message.topic)
    first = "" if message.root is None else f',"first":"{message.root}"'
    key = f',"key":{_quote(message.headers[KEY])}' if KEY in message.headers else ""
    of = f',"schedule":{_quote(message.headers[OF_SCHEDULE])}' if OF_SCHEDULE in message.headers else ""
    return (
        f'{{"id":"{message.id}"{first},"topic":{topic},"due_us":{message.due_us},"attempt":{message.attempt}{key}{of}'
    )


def end_of(detail: Detail, ended_us: int, moved_to: MessageId | None = None) -> str:
    """Return the rest of a line: how it ended."""
    parts = [f',"ended_us":{ended_us},"outcome":{_quote(detail.outcome)}']
    if detail.begun_us is not None:
        parts.append(f'"begun_us":{detail.begun_us}')
    if detail.took_us is not None:
        parts.append(f'"took_us":{detail.took_us}')
    if detail.error:
        parts.append(f'"error":{_quote(detail.error[:ERROR_CHARS_MAX])}')
    if detail.place:
        parts.append(f'"where":{_quote(detail.place)}')
    if moved_to is not None:
        parts.append(f'"moved_to":"{moved_to}"')
    return ",".join(parts) + "}\n"


def read_line(line: bytes) -> Ended | None:
    """Read a line of the history; None for anything else."""
    try:
        found = json.loads(line)
        id_ = MessageId.parse(str(found["id"]))
        moved_to = found.get("moved_to")
        key, schedule = (None if found.get(name) is None else _text(found[name]) for name in ("key", "schedule"))
        return Ended(
            id_,
            MessageId.parse(str(found.get("first", id_))),
            _text(found["topic"]),
            key,
            _count(found["due_us"]),
            _count(found["attempt"]),
            _maybe(found.get("begun_us")),
            _count(found["ended_us"]),
            _maybe(found.get("took_us")),
            _text(found["outcome"]),
            _text(found.get("error", "")),
            _text(found.get("where", "")),
            None if moved_to is None else MessageId.parse(str(moved_to)),
            schedule_of_key(key) or schedule,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadArgument):
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def _maybe(value: Any) -> int | None:
    return None if value is None else _count(value)


class HistoryWriter:
    """Appends to the history of a wheel. Belongs to the keeper's process, one thread at a time."""

    def __init__(self, directory: Directory, kept: int) -> None:
        """Keep at least the last `kept` ends. Nothing is opened yet."""
        self._dir = directory
        self._disk = directory.disk
        self._kept = kept
        self._number = 0
        """That of the newest file; 0 while it is not known."""
        self._count = 0
        """How many lines it has."""
        self._failed = False

    def append(self, lines: Sequence[str]) -> bool:
        """Write lines; return whether they are written. An error is logged once, and never raised. Nothing is flushed.

        On a disk that is nearly full nothing is written: these ends are left out.
        """
        try:
            if self._disk.free_bytes() < ROOM_BYTES:
                raise OSError(errno.ENOSPC, "too little is free on the disk")
            rest = lines
            while rest:
                if not self._number or self._count >= self._kept:
                    self._next_file()
                some, rest = rest[: self._kept - self._count], rest[self._kept - self._count :]
                self._write(some)
        except (OSError, DiskError) as exc:
            if not self._failed:
                log.warning("%s: the history of runs is not written; logged once: %s", self._dir.path, exc)
            self._failed = True
            self._number = 0  # look again
            return False
        self._failed = False
        return True

    def _write(self, lines: Sequence[str]) -> None:
        fd = self._disk.open(layout.history(self._number), "rw")
        try:
            size = self._disk.size(fd)
            is_torn = size > 0 and self._disk.pread(fd, 1, size - 1) != b"\n"
            data = "".join(lines)
            self._disk.pwrite(fd, (f"\n{data}" if is_torn else data).encode(), size)
        finally:
            self._disk.close(fd)
        self._count += len(lines)

    def _next_file(self) -> None:
        """Continue the newest file that has room, or begin the next one, and remove the old ones."""
        numbers = _numbers(self._disk)
        if numbers is None:
            self._disk.mkdir(layout.HISTORY)
            numbers = []
        if not self._number and numbers:
            self._number = numbers[-1]
            self._count = _lines_of(self._disk, self._number, self._kept)
        if not self._number or self._count >= self._kept:
            self._number, self._count = max(numbers, default=0) + 1, 0
            if self._number >= layout.HISTORY_END:
                raise OSError(errno.EOVERFLOW, "history/ has a file with the highest number: remove the directory")
        for number in numbers:
            if number < self._number - 1:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(layout.history(number))


def _numbers(disk: Disk) -> list[int] | None:
    """Return the numbers of the files, in order; None when there is no directory. Raises OSError."""
    try:
        names = disk.listdir(layout.HISTORY)
    except NO_DIRECTORY:
        return None
    return sorted(n for n in map(layout.parse_history, names) if n is not None)


def _lines_of(disk: Disk, number: int, most: int) -> int:
    """Count the lines of a file; `most` for one that is not continued. Raises OSError."""
    try:
        fd = disk.open(layout.history(number), "r+")
    except (FileNotFoundError, ForeignFile):
        return most
    try:
        size = disk.size(fd)
        return most if size > _BYTES_MAX else disk.pread(fd, size, 0).count(b"\n")
    finally:
        disk.close(fd)


def read_history(directory: Directory) -> Iterator[Ended]:
    """Yield the ends that are kept, the newest first. Takes no lock. Memory: one file, a few MiB.

    Raises DiskError.
    """
    try:
        for number in reversed((_numbers(directory.disk) or [])[-_FILES_READ:]):
            for line in reversed(_read_file(directory.disk, number).splitlines()):
                if (ended := read_line(line)) is not None:
                    yield ended
    except OSError as exc:
        raise disk_error(exc, directory.place(layout.HISTORY)) from exc


def _read_file(disk: Disk, number: int) -> bytes:
    """Return the end of a file; nothing when it has gone, or is no regular file."""
    try:
        fd = disk.open(layout.history(number), "r")
    except (FileNotFoundError, ForeignFile):
        return b""
    try:
        size = disk.size(fd)
        return disk.pread(fd, min(size, _BYTES_MAX), max(0, size - _BYTES_MAX))
    finally:
        disk.close(fd)
