"""The index of the journals above a checkpoint, which follows them as they grow.

Each look reads the frames that are new since the last one, and steps over a frame that does not verify only when a
later one shows that it never will. It costs a listing, and a read for each journal that may have grown. On
request it remembers the new records below an id (`watch`, `take_news`).
Invariant: everything below a file's `pos` was read, or stepped over for good.
"""

from __future__ import annotations

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES, SMALL_BLOCK, Frame, scan
from filewheel.format.record import ID, readable_records
from filewheel.journal.tail import Handles
from filewheel.journal.walk import Part, listing_of, parts_above
from filewheel.lookup.index import FileIndex, Hits, LoadedRuns, within

NEWS_MAX = 1 << 13
"""How many records are remembered for `take_news`."""
_FEW = 8

News = tuple[list[bytes], list[bytes]]
"""Packed puts, and the ids of drops."""


class JournalIndex:
    """The index of each journal segment. Not thread-safe: the finder's lock guards it."""

    def __init__(self, directory: Directory, loaded: LoadedRuns) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._loaded = loaded
        self._horizon = b""
        self._news: News | None = [], []
        """The records that journals have gained below the horizon; None when these were too many."""
        self.forget()

    def forget(self) -> None:
        """Forget all that was read, but not the news."""
        self.files: dict[str, FileIndex] = {}
        self._names: list[str] = []
        self._checkpoint: Checkpoint | None = None
        self._parts: list[Part] = []

    def watch(self, horizon: bytes) -> None:
        """Remember from now on the new records of journals below an id."""
        self._horizon = horizon

    def take_news(self) -> News | None:
        """Return the puts, and the ids of drops, that were new in journals since the last call; None: too many."""
        news, self._news = self._news, ([], [])
        return news

    def hits(self, wanted: list[bytes]) -> Hits:
        """Return the runs that may hold some of these sorted ids, each with those ids."""
        return [hit for file in self.files.values() for hit in file.hits(wanted)]

    def is_durable(self, name: str, number: int) -> bool:
        """Return whether a frame of a file is known to be durable: dealt (D2), sealed, or called so later."""
        journal = self.files.get(name)
        return journal is None or journal.is_sealed or number <= journal.synced  # mutant: key-drops-sure

    def follow(self, checkpoint: Checkpoint, wanted: list[bytes], handles: Handles) -> None:
        """Read the new frames of all journals. Raises FileNotFoundError when one was removed since it was listed."""
        gone = set(self.files)
        for part in self._parts_above(checkpoint):
            name, start = part.name, part.start
            file = self.files.get(name)
            if file is not None and file.start != start:
                # K2: covered records are in the laps, their drops too, or in the checkpoint (D1, D4).
                self._drop(file)
                file = None
            if file is None:
                file = self.files[name] = FileIndex(name, start)
            gone.discard(name)
            if file.is_sealed and file.is_blank:
                continue
            try:
                fd = handles.get(name)
            except ForeignFile:
                continue
            self._follow(file, fd, wanted)
        for name in gone:
            self._drop(self.files[name])

    def _drop(self, file: FileIndex) -> None:
        """Forget a file."""
        for run in file.runs:
            self._loaded.unload(run)
        del self.files[file.name]

    def _parts_above(self, checkpoint: Checkpoint) -> list[Part]:
        names = self._disk.listdir(layout.JOURNAL)
        if names != self._names or checkpoint is not self._checkpoint:
            self._parts = list(parts_above(listing_of(names), checkpoint.positions))
            self._names, self._checkpoint = names, checkpoint
        return self._parts

    def _follow(self, file: FileIndex, fd: int, wanted: list[bytes]) -> None:
        """Read a journal from its position on."""
        disk = self._disk
        seed = self._dir.seed(file.name)
        while not (file.is_blank and self._is_blank_at(fd, file.pos)):  # the next frame will start there
            size = disk.size(fd)
            for item in scan(disk, fd, file.pos, size, seed, resync=False, block_bytes=SMALL_BLOCK):
                if isinstance(item, Frame):
                    self._add(file, item, wanted)
            if file.pos >= size:
                file.is_blank = True
                return
            if file.is_blank and self._is_blank_at(fd, file.pos):
                return
            item = next(iter(scan(disk, fd, file.pos, size, seed)))
            if isinstance(item, Frame):
                continue  # it was half written, and now is whole
            if item.at_end:
                # I1: it may be half written. Bytes that are not blank are searched again each time.
                file.is_blank = item.blank
                return
            # A later frame is there, so the writer has moved on; but this one may have become whole since it was read.
            again = next(iter(scan(disk, fd, item.offset, size, seed, resync=False)), None)
            if again is None:
                file.pos, file.has_gaps = item.end, True

    def _is_blank_at(self, fd: int, offset: int) -> bool:
        return not self._disk.pread(fd, HEADER_BYTES, offset).strip(b"\0")

    def _add(self, file: FileIndex, frame: Frame, wanted: list[bytes]) -> None:
        """Take a journal's next frame."""
        file.is_sealed = frame.is_seal
        if frame.is_seal:
            file.pos = frame.end
            return
        if frame.first < self._horizon:
            self._note_news(frame)
        records = frame.puts + frame.drops
        run = file.add(frame)
        if run.puts is not None:
            self._loaded.hold(run)
            run.take(frame)
        elif run.offset == frame.offset and (records <= _FEW or within(wanted, frame.first, frame.last)):
            run.puts = {}
            self._loaded.hold(run)
            run.take(frame)
        if self._loaded.is_full and run.puts is not None:
            self._loaded.unload(run)

    def _note_news(self, frame: Frame) -> None:
        """Remember the records of a frame that are below the horizon."""
        if self._news is None:
            return
        puts, drops = readable_records(frame)
        horizon = self._horizon
        self._news[0].extend(r for r in puts if r[ID] < horizon)
        self._news[1].extend(r[ID] for r in drops if r[ID] < horizon)
        if len(self._news[0]) + len(self._news[1]) > NEWS_MAX:
            self._news, self._horizon = None, b""
