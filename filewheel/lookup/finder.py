"""Finding messages by their ids, again and again, without looking at the whole undealt part each time.

A finder gives the answers of `Snapshot.find`, and in the same way: the checkpoint, every journal from the positions
in it, the checkpoint once more, and then the one file that may hold an id. But it remembers: the manifest until there
is another checkpoint, how far it has read each journal, and an index of what it met there. So a look costs a listing, a
read for each journal that may have grown, and the frames that are new.

It keeps no file open from one look to the next: a removed file gives its room back at once, and a fork or a handle that
is dropped leaves nothing behind. What it holds in memory is bounded by `IDS_MAX` ids; beyond it, frames are searched
instead.
Invariant: a frame of a journal is passed by only when it verified, or when a later one shows that it never will.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from filewheel.disk.checkpoint import Checkpoint, Position
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.reentry import one_call
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.frame import HEADER_BYTES, SMALL_BLOCK, Frame, scan
from filewheel.format.record import ID, readable_records
from filewheel.journal.tail import Handles
from filewheel.laps.slot import FRAME_BYTES, File, file_named, lap_file, slot_file
from filewheel.lookup.index import FileIndex, FrameReader, FrameRun, Hits, Place, ids_of, puts_in, within
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_LIMIT, US_PER_S, due_of, id_after

IDS_MAX = 1 << 18
"""How many ids are held in memory: at about 120 bytes each, 30 MiB."""
RUNS_MAX = 1 << 15
"""How many runs of lap and slot files are known by their range."""
NEWS_MAX = 1 << 13
"""How many records are remembered for whoever watches."""
_FEW = 8
_LOAD_EACH = 8
_TRIES = 20
_NOWHERE = Position(0, 0, 0)

Places = dict[bytes, Place]
"""For each id where its put is."""
T = TypeVar("T")


class Finder:
    """Finds what is pending by its id. Thread-safe. Needs no closing."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._lock = threading.RLock()
        self.epoch = 0
        """How often what was learned of the journals began anew: with each checkpoint."""
        self._horizon = b""
        self._news: tuple[list[bytes], list[bytes]] | None = [], []
        """What journals have gained below the horizon: puts, and ids of drops; None when it was too much."""
        self._forget()

    def forget(self) -> None:
        """Let go of everything that was learned."""
        with self._lock:
            self._forget()

    def follow(self) -> bool:
        """Read what the journals have gained; False where this finder cannot follow them."""
        return self._look((), lambda places, handles: True, lambda found: False)

    def read_on(self, read: Callable[[Checkpoint, Mapping[str, FileIndex], Handles], T]) -> T | None:
        """Have a function read the journals as far as they were followed; None where they cannot be.

        It may be called more than once, and is called with the lock held: it may ask `has_put`.
        """
        return self._look((), lambda _, handles: read(self._checkpoint, self._journals, handles), lambda _: None)

    def has_put(self, ids: Iterable[bytes], handles: Handles) -> set[bytes]:
        """Return, of these ids, those that would be pending if no journal held a drop. For `read_on`."""
        wanted = sorted(i for i in ids if i < ID_LIMIT)
        found, dealt, dropped = Places(), Places(), set(self._unmatched)
        self._search([hit for file in self._journals.values() for hit in file.hits(wanted)], found, set(), handles)
        left = [i for i in wanted if i not in found]
        hits = [hit for file, some in self._files_of(left, handles) for hit in file.hits(some)]
        self._search(hits, dealt, dropped, handles)
        return (found.keys() - self._unmatched) | (dealt.keys() - dropped)

    def watch(self, horizon: bytes) -> None:
        """Remember from now on what journals gain below an id."""
        with self._lock:
            self._horizon = horizon

    def take_news(self) -> tuple[list[bytes], list[bytes]] | None:
        """Return the puts, and the ids of drops, that journals gained since this was asked last; None: too many."""
        with self._lock:
            news, self._news = self._news, ([], [])
            return news

    def _forget(self) -> None:
        self.epoch += 1
        self._frames = FrameReader(self._dir)
        self._checkpoint = Checkpoint()
        self._unmatched: frozenset[bytes] = frozenset()
        self._listing: list[str] = []
        self._segments: list[tuple[str, int]] = []
        self._journals: dict[str, FileIndex] = {}
        self._files: dict[str, FileIndex] = {}
        """Lap and slot files, those used last at the end."""
        self._loaded: dict[FrameRun, None] = {}
        """The runs of which the ids are known, those used last at the end."""
        self._ids = 0
        self._runs = 0
        """How many runs of lap and slot files are known."""
        self._turns = 0
        self._sure: set[bytes] = set()
        """In one look: ids with a drop that is known to be durable."""
        self._unsure: dict[bytes, str] = {}
        """In one look: ids with a drop that may not be durable, and the journal that has it."""

    # -- asking ----------------------------------------------------------------------------------------------

    def pending(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that are pending. Cost: about 50 µs, and the reading of what is new."""
        return self._look(ids, lambda places, _: set(places), set)

    def find(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return, of these ids, those that are pending, with their packed puts. Cost: also a frame for each."""
        return self._look(ids, self._read_puts, lambda found: found)

    def look(self, ids: Iterable[bytes]) -> tuple[dict[bytes, bytes], set[str] | None]:
        """Return what `find` does, and the journals to be flushed before it is relied on that the others are finished.

        None instead of the journals when all of them are.
        """
        return self._look(
            ids,
            lambda places, handles: (
                self._read_puts(places, handles),
                {name for id_, name in self._unsure.items() if id_ not in self._sure},
            ),
            lambda found: (found, None),
        )

    def _look(
        self,
        ids: Iterable[bytes],
        answer: Callable[[Places, Handles], T],
        answer_of: Callable[[dict[bytes, bytes]], T],
    ) -> T:
        wanted = sorted(i for i in set(ids) if i < ID_LIMIT)
        handles = Handles(self._dir)
        try:
            with one_call(self._lock, self._dir.path):
                for _ in range(_TRIES):
                    self._renew()
                    if self._checkpoint.doubt:
                        break
                    try:
                        self._follow_journals(wanted, handles)
                        # A deal that was committed meanwhile has moved messages to where this look would not find them.
                        if self._frames.are_current():
                            return answer(self._places(wanted, handles), handles)
                    except FileNotFoundError:
                        pass  # what was covered, or finished, was removed: there is a newer checkpoint
                    except BaseException:
                        self._forget()  # an interrupt (Ctrl-C) too may have left it half learned
                        raise
                self._forget()
        except OSError as exc:
            raise disk_error(exc, self._dir.path) from exc
        finally:
            handles.close()
        # Lengths cannot be trusted, or one deal follows the other: the long way takes what is there.
        with Snapshot(self._dir) as snapshot:
            return answer_of(snapshot.find(wanted))

    # -- the checkpoint --------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Read the manifest if there is a newer one, and forget what it makes void."""
        # The one before keeps its inode as checkpoint.old, so the same identity comes again after three deals at the
        # earliest, all within one tick of the file system's clock.
        identity = self._disk.identity(layout.CHECKPOINT)
        if identity is not None and identity == self._frames.checkpoint_identity:
            return
        self.epoch += 1
        self._frames = FrameReader(self._dir)
        checkpoint = self._dir.checkpoint()
        if checkpoint.deal != self._checkpoint.deal + 1:
            # From one deal to the next a file grows or goes. Over several it may have gone and come again.
            for file in list(self._files.values()):
                self._drop(self._files, file)
        for file in list(self._files.values()):
            known = file_named(self._dir.settings, file.name)
            if known is None or known.key not in known.among(checkpoint):
                self._drop(self._files, file)  # it has gone, and one of its name may come
        for file in self._journals.values():
            file.is_blank = False
        self._checkpoint = checkpoint
        self._unmatched = frozenset(checkpoint.unmatched)
        self._frames.checkpoint_identity = identity

    def _drop(self, files: dict[str, FileIndex], file: FileIndex) -> None:
        """Forget a file."""
        for run in file.runs:
            self._unload(run)
        self._runs -= file.counted
        file.counted = 0
        files.pop(file.name, None)

    # -- journals --------------------------------------------------------------------------------------------

    def _follow_journals(self, wanted: list[bytes], handles: Handles) -> None:
        """Read what the journals have gained. Raises FileNotFoundError when one has gone since it was listed."""
        gone = set(self._journals)
        for writer, n in self._list_segments():
            covered = self._checkpoint.positions.get(writer, _NOWHERE)
            if n < covered.segment:
                continue
            name = layout.segment(writer, n)
            start = covered.offset if n == covered.segment else 0
            file = self._journals.get(name)
            if file is not None and file.start != start:
                # K2: what is covered is in the laps. Its drops there, or carried in the manifest (D1, D4).
                self._drop(self._journals, file)
                file = None
            if file is None:
                file = self._journals[name] = FileIndex(name, start)
            gone.discard(name)
            if file.is_sealed and file.is_blank:
                continue
            try:
                fd = handles.get(name)
            except ForeignFile:
                continue
            self._follow(file, fd, wanted)
        for name in gone:
            self._drop(self._journals, self._journals[name])

    def _list_segments(self) -> list[tuple[str, int]]:
        listing = self._disk.listdir(layout.JOURNAL)
        if listing != self._listing:
            parsed = [layout.parse_segment(last) for last in listing]
            self._segments = sorted(p for p in parsed if p is not None)
            self._listing = listing
        return self._segments

    def _follow(self, file: FileIndex, fd: int, wanted: list[bytes]) -> None:
        """Read a journal from where reading stands."""
        disk = self._disk
        seed = self._dir.seed(file.name)
        while not (file.is_blank and self._is_blank_at(fd, file.pos)):  # the next frame will begin there
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
                continue  # it was being written, and now is whole
            if item.at_end:
                # I1: it may be in the middle of being written. What is not blank is looked through each time.
                file.is_blank = item.blank
                return
            # A later frame is there, so nobody is writing here any more; but it may have become whole meanwhile.
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
            self._hold(run)
            run.take(frame)
        elif run.offset == frame.offset and (records <= _FEW or within(wanted, frame.first, frame.last)):
            run.puts = {}
            self._hold(run)
            run.take(frame)
        if self._ids > IDS_MAX and run.puts is not None:
            self._unload(run)

    def _note_news(self, frame: Frame) -> None:
        """Remember what of a frame is below the horizon, for whoever watches."""
        if self._news is None:
            return
        puts, drops = readable_records(frame)
        horizon = self._horizon
        self._news[0].extend(r for r in puts if r[ID] < horizon)
        self._news[1].extend(r[ID] for r in drops if r[ID] < horizon)
        if len(self._news[0]) + len(self._news[1]) > NEWS_MAX:
            self._news, self._horizon = None, b""

    # -- looking up ------------------------------------------------------------------------------------------

    def _places(self, wanted: list[bytes], handles: Handles) -> Places:
        """Return where the puts are of those ids that are pending."""
        places: Places = {}
        dropped = {i for i in wanted if i in self._unmatched} if self._unmatched else set()
        self._sure, self._unsure = set(dropped), {}
        hits = [hit for file in self._journals.values() for hit in file.hits(wanted)]
        self._search(hits, places, dropped, handles)
        left = [i for i in wanted if i not in dropped] if dropped else wanted
        hits = [hit for file, ids in self._files_of(left, handles) for hit in file.hits(ids)]
        self._search(hits, places, dropped, handles)
        for id_ in dropped:
            places.pop(id_, None)
        return places

    def _search(self, hits: Hits, places: Places, dropped: set[bytes], handles: Handles) -> None:
        """Look for ids in the runs that may hold them."""
        needs = 0
        for run, ids in hits:
            if run.puts is None:
                needs = needs or sum(run.records for run, _ in hits)
                # More than fits: to index one would only push out another that this same look needs.
                if needs > IDS_MAX or (len(ids) <= _FEW and not self._is_worth_loading(run)):
                    self._search_frames(run, ids, places, dropped, handles)
                    continue
                self._load(run, handles)
            elif self._ids > IDS_MAX // 2:
                self._loaded[run] = self._loaded.pop(run)
            puts, drops = run.puts, run.drops
            if puts:
                places.update([(i, (run.name, puts[i])) for i in ids if i in puts])
            if drops and not drops.isdisjoint(ids):
                self._drop_ids(run, drops.intersection(ids), dropped)

    def _is_worth_loading(self, run: FrameRun) -> bool:
        """Tell whether a run that is asked for an id should be indexed: at the second time, while there is room."""
        if not run.asked:
            run.asked = True
            return False
        if self._ids + run.records <= IDS_MAX:
            return True
        # It costs four times a search, and pushes out what may be wanted as much: now and then is enough to follow
        # what is wanted now.
        self._turns = (self._turns + 1) % _LOAD_EACH
        return not self._turns

    def _search_frames(
        self, run: FrameRun, ids: list[bytes], places: Places, dropped: set[bytes], handles: Handles
    ) -> None:
        """Look for ids in a run's frames, and keep nothing."""
        for frame in self._frames.of(run, handles, lo=ids[0], hi=id_after(ids[-1])):
            among = within(ids, frame.first, frame.last)
            if not among or (len(among) <= _FEW and not any(i in frame.body for i in among)):
                continue
            try:
                puts, drops = ids_of(frame)
            except Damaged:
                continue
            places.update(dict.fromkeys(set(puts).intersection(among), (run.name, frame.offset)))
            self._drop_ids(run, set(drops).intersection(among), dropped)

    def _drop_ids(self, run: FrameRun, ids: set[bytes], dropped: set[bytes]) -> None:
        """Take note of drops that a run holds, and of whether they are durable."""
        dropped.update(ids)
        journal = self._journals.get(run.name)
        # What was dealt is durable (D2); so is what a later frame of its writer says so of, and what a seal follows.
        if journal is None or journal.is_sealed or run.number <= journal.synced:
            self._sure.update(ids)
        else:
            self._unsure.update(dict.fromkeys(ids, run.name))

    def _load(self, run: FrameRun, handles: Handles) -> None:
        """Learn a run's ids; let go of others when there are too many."""
        frames = list(self._frames.of(run, handles))
        run.puts = {}
        self._hold(run)
        for frame in frames:
            run.take(frame)
        while self._ids > IDS_MAX:
            self._unload(next(iter(self._loaded)))

    def _hold(self, run: FrameRun) -> None:
        """Count the ids of a run that is loaded, or has grown since."""
        self._loaded[run] = None
        self._ids += run.records - run.held
        run.held = run.records

    def _unload(self, run: FrameRun) -> None:
        if run.puts is not None:
            del self._loaded[run]
            self._ids -= run.held
            run.let_go()

    # -- files -----------------------------------------------------------------------------------------------

    def _files_of(self, wanted: list[bytes], handles: Handles) -> Iterator[tuple[FileIndex, list[bytes]]]:
        """Yield the lap and slot files that may hold these ids, each with those ids."""
        slots, laps = self._checkpoint.slots, self._checkpoint.laps
        lap_of = self._dir.settings.lap_of
        by_slot: dict[int, list[bytes]] = {}
        by_lap: dict[int, list[bytes]] = {}
        for id_ in wanted:
            second = due_of(id_) // US_PER_S
            if second in slots:
                by_slot.setdefault(second, []).append(id_)
            if lap_of(second) in laps:
                by_lap.setdefault(lap_of(second), []).append(id_)
        for second, ids in by_slot.items():
            yield self._file(slot_file(self._dir.settings, second, slots[second]), handles), ids
        for lap, ids in by_lap.items():
            yield self._file(lap_file(self._dir.settings, lap, laps[lap]), handles), ids

    def _file(self, of: File, handles: Handles) -> FileIndex:
        """Return the index of a file up to its covered length."""
        name, length = of.name, of.end
        file = self._files.get(name)
        if file is not None and file.pos > length:
            self._drop(self._files, file)  # `repair` has replaced it
            file = None
        if file is None:
            file = FileIndex(name, run_bytes=FRAME_BYTES)
        if file.pos < length:
            file = self._list_frames(file, length, handles)
        self._runs += len(file.runs) - file.counted
        file.counted = len(file.runs)
        self._files.pop(name, None)
        self._files[name] = file
        while self._runs > RUNS_MAX and len(self._files) > 1:
            self._drop(self._files, next(iter(self._files.values())))
        return file

    def _list_frames(self, file: FileIndex, length: int, handles: Handles) -> FileIndex:
        fd = self._frames.fd_of(file.name, handles)
        if fd is None:
            return FileIndex(file.name, run_bytes=FRAME_BYTES)
        begun, end = file.pos, min(length, self._disk.size(fd))
        for item in scan(self._disk, fd, begun, end, self._dir.seed(file.name), headers=True):
            if isinstance(item, Frame):
                self._unload(file.add(item))
            elif begun:
                # Damage, or not the file that it was: from the beginning.
                self._drop(self._files, file)
                return self._list_frames(FileIndex(file.name, run_bytes=FRAME_BYTES), length, handles)
        file.pos = length
        return file

    # -- puts ------------------------------------------------------------------------------------------------

    def _read_puts(self, places: Places, handles: Handles) -> dict[bytes, bytes]:
        """Read the puts of ids that are pending."""
        by_frame: dict[Place, list[bytes]] = {}
        for id_, place in places.items():
            by_frame.setdefault(place, []).append(id_)
        found: dict[bytes, bytes] = {}
        for place, ids in by_frame.items():
            frame = self._frames.at(place, handles)
            if frame is not None:
                found |= puts_in(frame, ids)
        if len(found) < len(places):
            # Damaged since, or removed by hand. There may be another copy.
            with Snapshot(self._dir) as snapshot:
                found |= snapshot.find(i for i in places if i not in found)
        return found
