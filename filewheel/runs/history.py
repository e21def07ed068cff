"""The history of runs: files of JSON lines in `history/`, one line for the end of each attempt.

The keeper's process appends to the newest file, without a flush: a crash loses the last second. When that file has as
many ends as are to be kept, the next one begins, and all but the file before it are removed. So at least that many
ends are kept, and at most twice as many. A line that is no JSON (torn by a crash, or a foreign file) is passed over.

On the firing path a whole batch is one entry in memory, with the puts as they were claimed. They are unpacked in the
housekeeper's thread, and only those that are kept.
Format: docs/format.md, 13.
Invariants: nothing depends on these files, and no error here reaches the firing; the memory is bounded by the number of
ends that are kept, whatever is fired in between.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY, ForeignFile
from filewheel.env import Clock, Disk
from filewheel.errors import BadArgument, Damaged, DiskError, disk_error
from filewheel.format import layout
from filewheel.format.record import unpack_put
from filewheel.journal.settlement import Settlement
from filewheel.message import DEAD_US, KEY, OF_SCHEDULE, Message, MessageId, schedule_of_key
from filewheel.native.compiled import ids_of, plain_messages, size_of
from filewheel.runs.run import ACKED, CANCELLED, DEAD, EXPIRED, KILLED, RETRIED, Ended, Kind, Work, count_of, text_of
from filewheel.runs.times import Began, BeginTimes

log = logging.getLogger(__name__)

KEPT = 10_000
"""The default number of ends."""
ERROR_CHARS_MAX = 500
ROOM_BYTES = 4 << 20
"""With less than this free, nothing is written: the room is for acknowledgements."""
_BYTES_MAX = 64 << 20
"""No file is read or continued beyond this."""
_FILES_READ = 3
_PUT_BYTES = 400
"""Larger messages, on the average of a batch, are kept without their payload."""
_PLAIN_END = DEAD_US << 6
_ANY = (1 << 63) - 1
_OUTCOMES = {"retried": RETRIED, "buried": DEAD, "killed": KILLED}
_quote = json.encoder.encode_basestring_ascii


def _start_of(message: Message, quoted: dict[str, str]) -> str:
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


def _end_of(some: _Some, work: Work) -> str:
    """Return the rest of a line: how it ended."""
    parts = [f',"ended_us":{some.at[0]},"outcome":{_quote(some.outcome)}']
    if work.begun_us is not None:
        parts.append(f'"begun_us":{work.begun_us}')
    if work.took_us is not None:
        parts.append(f'"took_us":{work.took_us}')
    if some.error:
        parts.append(f'"error":{_quote(some.error[:ERROR_CHARS_MAX])}')
    if work.place:
        parts.append(f'"where":{_quote(work.place)}')
    if some.moved_to is not None:
        parts.append(f'"moved_to":"{some.moved_to}"')
    return ",".join(parts) + "}\n"


def read_line(line: bytes) -> Ended | None:
    """Read a line of the history; None for anything else."""
    try:
        found = json.loads(line)
        id_ = MessageId.parse(str(found["id"]))
        moved_to = found.get("moved_to")
        key, schedule = (None if found.get(name) is None else text_of(found[name]) for name in ("key", "schedule"))
        return Ended(
            id_,
            MessageId.parse(str(found.get("first", id_))),
            text_of(found["topic"]),
            key,
            count_of(found["due_us"]),
            count_of(found["attempt"]),
            _maybe(found.get("begun_us")),
            count_of(found["ended_us"]),
            _maybe(found.get("took_us")),
            text_of(found["outcome"]),
            text_of(found.get("error", "")),
            text_of(found.get("where", "")),
            None if moved_to is None else MessageId.parse(str(moved_to)),
            schedule_of_key(key) or schedule,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadArgument):
        return None


def _maybe(value: Any) -> int | None:
    return None if value is None else count_of(value)


@dataclass(frozen=True, slots=True)
class _Some:
    """Messages whose end was written together."""

    puts: list[bytes] | None
    messages: list[Message] | None
    """In place of the puts, without payloads."""
    at: Began
    works: Mapping[bytes, Work]
    place: Kind
    outcome: str = ACKED
    error: str = ""
    moved_to: MessageId | None = None

    def __len__(self) -> int:
        return len(self.puts if self.puts is not None else self.messages or ())


class History:
    """The ends of one keeper: noted with the store's lock held, written by the housekeeper's thread."""

    def __init__(self, directory: Directory, kept: int, clock: Clock) -> None:
        """Keep at least the last `kept` ends; with 0, none. Nothing is opened yet."""
        self._dir = directory
        self._disk = directory.disk
        self._clock = clock
        self._kept = kept
        self._some: deque[_Some] = deque()
        self._noted = 0
        """How many ends are noted."""
        self._works: dict[bytes, Work] = {}
        self.place: Kind = "program"
        """Where the consumer works, unless it reports another place."""
        self.watched: dict[bytes, bool] = {}
        """Messages that a kill ends, and whether they were dropped because they had been cancelled."""
        self._mutex = threading.Lock()
        self._number = 0
        """That of the newest file; 0 while it is not known."""
        self._count = 0
        """How many lines it has."""
        self._failed = False

    def report(self, id_: bytes, work: Work) -> None:
        """Note how the work on a message ran, before the consumer settles it. Thread-safe."""
        if self._kept:
            self._works[id_] = work

    def acked(self, puts: list[bytes]) -> None:
        """Note messages whose acknowledgement is written. Cost: about 20 ns a message."""
        if self._kept:
            self._note(puts, ACKED)

    def settled(self, settlement: Settlement, put: bytes, moved_to: MessageId | None) -> None:
        """Note a message whose settlement is written, unless it is only deferred."""
        was_cancelled = moved_to is None and settlement.what in ("retried", "buried")
        if was_cancelled and settlement.id in self.watched:
            self.watched[settlement.id] = True
        if not self._kept:
            return
        if settlement.what == "deferred" or settlement.outcome == EXPIRED:
            self._works.pop(settlement.id, None)
            return
        outcome = settlement.outcome or _OUTCOMES.get(settlement.what, ACKED)
        error = settlement.failed or settlement.reason
        self._note([put], CANCELLED if was_cancelled else outcome, error, moved_to)

    def _note(self, puts: list[bytes], outcome: str, error: str = "", moved_to: MessageId | None = None) -> None:
        works = {}
        if self._works:
            for id_ in ids_of(puts):
                if (work := self._works.pop(id_, None)) is not None:
                    works[id_] = work
        kept: list[bytes] | None = puts[-self._kept :] if len(puts) > self._kept else puts
        assert kept is not None
        messages = None
        if size_of(kept, _ANY) > _PUT_BYTES * len(kept):
            messages, kept = [_without_payload(m) for m in _messages(kept)], None
        at = self._clock.now_us(), self._clock.steady_us()
        some = _Some(kept, messages, at, works, self.place, outcome, error, moved_to)
        with self._mutex:
            self._some.append(some)
            self._noted += len(some)
            while self._noted - len(self._some[0]) >= self._kept:
                self._noted -= len(self._some.popleft())

    def write(self, times: BeginTimes) -> None:
        """Write what was noted since the last call, in order. In the housekeeper's thread."""
        with self._mutex:
            some, self._some, self._noted = self._some, deque(), 0
        made = [(one, list(_messages(one.puts)) if one.puts is not None else one.messages or []) for one in some]
        unknown = [m.id for one, messages in made for m in messages if _begun_us(one, m) is None]
        began = times.find(unknown) if unknown else {}
        quoted: dict[str, str] = {}
        lines: list[str] = []
        for one, messages in made:
            lines += _lines(one, messages, began, quoted)
        if lines:
            self.append(lines[-self._kept :])

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


def _begun_us(some: _Some, message: Message) -> int | None:
    work = some.works.get(message.id)
    return None if work is None else work.begun_us


def _lines(
    some: _Some, messages: Sequence[Message], began: Mapping[bytes, Began], quoted: dict[str, str]
) -> Iterator[str]:
    ends: dict[Began | None, str] = {}
    for message in messages:
        work, at = some.works.get(message.id), began.get(message.id)
        if work is not None:
            if at is not None and work.begun_us is None:
                work = work._replace(begun_us=at[0], took_us=max(0, some.at[1] - at[1]))
            yield _start_of(message, quoted) + _end_of(some, work)
            continue
        if (end := ends.get(at)) is None:  # most messages of a batch began together
            seen = Work() if at is None else Work(at[0], max(0, some.at[1] - at[1]), some.place)
            end = ends[at] = _end_of(some, seen)
        yield _start_of(message, quoted) + end


def _messages(puts: Sequence[bytes]) -> Iterator[Message]:
    """Unpack puts; one that is not a message is left out: it was set aside when it was handed out."""
    plain, _ = plain_messages(list(puts), 0, len(puts), _PLAIN_END)
    for put, message in zip(puts, plain, strict=True):
        if message is not None:
            yield message
            continue
        try:
            yield unpack_put(put)
        except Damaged:
            continue


def _without_payload(message: Message) -> Message:
    return Message(message.id, b"", message.topic, message.headers, message.attempt, message.enqueued_us, message.root)


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


def remove_ends(directory: Directory, is_meant: Callable[[Ended], bool]) -> int:
    """Remove the ends that are meant, and every line that cannot be read; return how many ends.

    A keeper may append meanwhile: an end that it writes in this moment may be left out. Raises OSError.
    """
    disk, count = directory.disk, 0
    for number in _numbers(disk) or []:
        try:
            fd = disk.open(layout.history(number), "r+")
        except (FileNotFoundError, ForeignFile):
            continue
        try:
            lines = disk.pread(fd, disk.size(fd), 0).splitlines(keepends=True)
            ends = [read_line(line) for line in lines]
            meant = [ended is None or is_meant(ended) for ended in ends]
            if any(meant):
                # Nothing depends on this file; a crash in between leaves a torn line, which a reader passes over.
                disk.truncate(fd, 0)
                disk.pwrite(fd, b"".join(line for line, goes in zip(lines, meant, strict=True) if not goes), 0)
            count += sum(goes and ended is not None for goes, ended in zip(meant, ends, strict=True))
        finally:
            disk.close(fd)
    return count


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
