"""Looks at a primary without a lock, and says which bytes of which files count.

A copy takes nothing from a primary but these bytes: lap and slot files below the lengths that the checkpoint covers,
and journals up to the last frame that verifies. The checkpoint is read before and after the journals, and again after
a file was missing, so that all of a view is of one moment (C2).
Invariant: no byte of a view can be lost by the primary in a power cut, once `read` has returned it (C6, C12).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from filewheel.disk.checkpoint import START, Checkpoint, parse_checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.journal.tail import Handles, Tail
from filewheel.journal.walk import Listing, list_segments
from filewheel.laps.slot import files_of

CHUNK_BYTES = 1 << 20
LOCK_TEST_US = 200_000
"""How often a look finds out which writers have ended."""


class Again(Exception):
    """The primary has another checkpoint than the view: look again."""


@dataclass
class View:
    """What counts in a primary at one moment."""

    raw: bytes
    """The bytes of the checkpoint."""
    checkpoint: Checkpoint
    files: dict[str, int]
    """Lap and slot files, with their covered lengths."""
    journals: dict[str, int]
    """Segments that are not covered whole, with the end of the last frame that verifies."""

    ended: set[str]
    """The last segments of writers that have ended, and have nothing more to come."""

    @property
    def sizes(self) -> dict[str, int]:
        """Each file that counts, with the length that counts."""
        return self.files | self.journals


class Source:
    """One primary, as its copies see it. Not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self.dir, self.disk = directory, directory.disk
        self.damage: list[Damage] = []
        """Bytes of journals that had been durable and do not verify."""
        self._handles = Handles(directory)
        self._tails: dict[str, Tail] = {}
        self._ends: dict[str, int] = {}
        self._known: tuple[object, bytes, Checkpoint, dict[str, int]] | None = None
        """The last checkpoint: its identity, bytes, content and files."""
        self._tested_us: int | None = None

    def look(self) -> View:
        """Take a view. Cost when nothing is new: a listing, two stats, and a read of four bytes a live writer.

        Raises Damaged when the checkpoint does not verify, OSError.
        """
        while True:
            known = self._checkpoint()
            journals = self._poll(known[2])
            if self.is_current():  # mutant: copy-look-once
                last = (layout.segment(w, t.seen.segment) for w, t in self._tails.items() if t.ended)
                return View(known[1], known[2], known[3], journals, journals.keys() & set(last))

    def is_current(self) -> bool:
        """Return whether the checkpoint of the last view is still the primary's. Cost: one stat."""
        return self._known is not None and self.disk.identity(layout.CHECKPOINT) == self._known[0]

    def _checkpoint(self) -> tuple[object, bytes, Checkpoint, dict[str, int]]:
        identity = self.disk.identity(layout.CHECKPOINT)
        if self._known is None or self._known[0] != identity:
            place = self.dir.place(layout.CHECKPOINT)
            try:
                raw = b"".join(data for _, data in self._blocks(layout.CHECKPOINT, 0, 1 << 62))
            except FileNotFoundError:
                raise Damaged("missing", path=place, hint="start a keeper: it makes a new one") from None
            found = parse_checkpoint(raw, self.dir.seed, self.dir.settings.lap_of, place)
            # C12: after a power cut here the rename could be undone, and the next deal would have the same number.
            self.disk.sync_dir("")  # mutant: copy-checkpoint-unflushed
            self._known = identity, raw, found, {file.name: file.end for file in files_of(self.dir.settings, found)}
        return self._known

    def _poll(self, checkpoint: Checkpoint) -> dict[str, int]:
        """Read all journals as far as their frames verify."""
        listing, now_us = list_segments(self.dir), self.dir.env.clock.steady_us()
        test = self._tested_us is None or not 0 <= now_us - self._tested_us < LOCK_TEST_US
        if test:
            self._tested_us = now_us
        for writer in [w for w in self._tails if w not in listing]:
            self._handles.drop(layout.segment(writer, self._tails.pop(writer).seen.segment))
        for writer in listing:
            if writer not in self._tails:
                self._tails[writer] = Tail(self.dir, self._handles, writer, checkpoint.positions.get(writer, START))
        for tail in self._tails.values():
            self._read_on(tail, listing, test=test)
        for writer, at in checkpoint.positions.items():
            if at.segment in listing.get(writer, ()):  # all below was read by a keeper, torn ends too
                name = layout.segment(writer, at.segment)
                self._ends[name] = max(at.offset, self._ends.get(name, 0))
        self._ends = {n: end for n, end in self._ends.items() if self._counts(n, checkpoint, listing)}
        return dict(self._ends)

    def _read_on(self, tail: Tail, listing: Listing, *, test: bool) -> None:
        writer = tail.writer

        def present() -> set[int]:
            return list_segments(self.dir).get(writer, set()) | listing.get(writer, set())

        def take(frame: Frame) -> None:
            self._ends[layout.segment(writer, tail.seen.segment)] = frame.end

        on_damage = self.damage.append
        tail.poll(present(), present, take, test_lock=test, on_damage=on_damage, on_foreign=lambda _: None)

    def _counts(self, name: str, checkpoint: Checkpoint, listing: Listing) -> bool:
        parsed = layout.parse_segment(name.rpartition("/")[2])
        assert parsed is not None
        writer, n = parsed
        covered = checkpoint.positions.get(writer, START)
        return n >= covered.segment and (n in listing.get(writer, ()) or self.disk.identity(name) is not None)

    def is_there(self, name: str) -> bool:
        """Return whether the primary has a file of this name. Cost: one stat."""
        return self.disk.identity(name) is not None

    def flush(self, name: str) -> None:
        """Make a segment durable: nothing is copied that the primary could still lose (C6). Raises Again, OSError."""
        try:
            self.disk.fdatasync(self._handles.get(name))  # mutant: copy-source-unflushed
        except FileNotFoundError:
            raise Again from None

    def read(self, name: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of a part of a file, in blocks. Raises Again when the file is not there, OSError."""
        try:
            yield from self._blocks(name, start, end)
        except FileNotFoundError:
            raise Again from None

    def runs(self, name: str, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a part of a file that are frames which verify. Raises Again, OSError."""
        runs: list[tuple[int, int]] = []
        for frame in frames_in(self.dir, name, end, start):
            if runs and runs[-1][1] == frame.offset:
                runs[-1] = runs[-1][0], frame.end
            else:
                runs.append((frame.offset, frame.end))
        if not self.is_there(name):
            raise Again
        return runs

    def _blocks(self, name: str, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        fd = self.disk.open(name, "r")
        try:
            while start < end:
                data = self.disk.pread(fd, min(CHUNK_BYTES, end - start), start)
                if not data:
                    return
                yield start, data
                start += len(data)
        finally:
            self.disk.close(fd)

    def close(self) -> None:
        """Close its files; the directory stays open."""
        self._handles.close()


def read_at(directory: Directory, name: str, start: int, end: int) -> bytes | None:
    """Return bytes of a file, zeros where it ends; None when there is no file. An unreadable block is zeros."""
    try:
        fd = directory.disk.open(name, "r")
    except FileNotFoundError:
        return None
    try:
        return directory.disk.pread(fd, end - start, start)
    finally:
        directory.disk.close(fd)


def digests(directory: Directory, parts: list[tuple[str, int, int]]) -> list[bytes | None]:
    """Return a digest of each (file, start, end), as `read_at` reads it; None where there is no file."""
    read = (read_at(directory, *part) for part in parts)
    return [None if data is None else hashlib.blake2b(data, digest_size=16).digest() for data in read]


def frames_in(directory: Directory, name: str, size: int, start: int = 0, *, headers: bool = False) -> Iterator[Frame]:
    """Yield the frames of a file that verify, from an offset on; with `headers`, no bodies are read."""
    try:
        fd = directory.disk.open(name, "r")
    except FileNotFoundError:
        return
    try:
        end = min(size, directory.disk.size(fd))
        reader = scan(directory.disk, fd, start, end, directory.seed(name), headers=headers)
        yield from (item for item in reader if isinstance(item, Frame))
    finally:
        directory.disk.close(fd)
