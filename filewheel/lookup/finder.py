"""Finding messages by their ids, again and again, without reading all undealt journals each time.

A finder answers as `Snapshot.find` does, in the same way: the checkpoint, every journal from its covered position, the
checkpoint once more, and then the one file that may hold an id. But it remembers the checkpoint until it is replaced,
its position in each journal, and an index of the records there. So a look costs a listing, a read for each journal that
may have grown, and the new frames.

It keeps no file open between two looks: a removed file frees its room at once, and a fork or a dropped handle leaves
nothing behind. Its memory is bounded (`IDS_MAX`, `RUNS_MAX`); beyond that, it searches frames on disk.
Invariant: the answer is that of a snapshot taken during the look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.threads import one_call
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.journal.tail import Handles
from filewheel.laps.slot import FRAME_BYTES, File, covered_of, lap_file, slot_file
from filewheel.lookup.index import FileIndex, FrameReader, FrameRun, Hits, LoadedRuns, Place, ids_of, puts_in, within
from filewheel.lookup.journals import JournalIndex, News
from filewheel.lookup.lru import Lru
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import ID_LIMIT, US_PER_S, due_of, id_after

RUNS_MAX = 1 << 15
"""How many runs of lap and slot files are known by their range."""
_FEW = 8
_TRIES = 20

Places = dict[bytes, Place]
"""id → the place of its put."""
T = TypeVar("T")


class Finder:
    """Finds pending messages by id. Thread-safe. Needs no closing."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._lock = threading.RLock()
        self.epoch = 0
        """How many checkpoints were read so far; with each, the journals are read from another position."""
        self._loaded = LoadedRuns()
        self._journals = JournalIndex(directory, self._loaded)
        self._forget()

    def forget(self) -> None:
        """Forget everything that was read."""
        with self._lock:
            self._forget()

    def follow(self) -> bool:
        """Read the new records of the journals; False where this finder cannot follow them."""
        return self._look((), lambda places, handles: True, lambda found: False)

    def read_on(self, read: Callable[[Checkpoint, Mapping[str, FileIndex], Handles], T]) -> T | None:
        """Call `read` on the journals as far as they were followed; None where they cannot be.

        `read` may be called more than once, with the lock held, and may call `has_put`.
        """
        return self._look((), lambda _, handles: read(self._checkpoint, self._journals.files, handles), lambda _: None)

    def has_put(self, ids: Iterable[bytes], handles: Handles) -> set[bytes]:
        """Return, of these ids, those that would be pending if no journal held a drop. For `read_on`."""
        wanted = sorted(i for i in ids if i < ID_LIMIT)
        found, dealt, dropped = Places(), Places(), set(self._unmatched)
        self._search(self._journals.hits(wanted), found, set(), handles)
        left = [i for i in wanted if i not in found]
        hits = [hit for file, some in self._files_of(left, handles) for hit in file.hits(some)]
        self._search(hits, dealt, dropped, handles)
        return (found.keys() - self._unmatched) | (dealt.keys() - dropped)

    def watch(self, horizon: bytes) -> None:
        """Remember from now on the new records of journals below an id."""
        with self._lock:
            self._journals.watch(horizon)

    def take_news(self) -> News | None:
        """Return the puts, and the ids of drops, that were new in journals since the last call; None: too many."""
        with self._lock:
            return self._journals.take_news()

    def _forget(self) -> None:
        self.epoch += 1
        self._frames = FrameReader(self._dir)
        self._checkpoint = Checkpoint()
        self._unmatched: frozenset[bytes] = frozenset()
        self._loaded.clear()
        self._journals.forget()
        self._files: Lru[str, FileIndex] = Lru()
        """Lap and slot files, by name; each weighs as much as it has runs."""
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
        """Return what `find` does, and the journals to flush before the other ids count as ended.

        None instead of the journals stands for all of them.
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
                        self._journals.follow(self._checkpoint, wanted, handles)
                        # A deal that was committed in between has moved messages to files that this look does not read.
                        if self._frames.are_current():
                            return answer(self._places(wanted, handles), handles)
                    except FileNotFoundError:
                        pass  # a covered or finished file was removed: there is a newer checkpoint
                    except BaseException:
                        self._forget()  # an interrupt (Ctrl-C) too may have left it half done
                        raise
                self._forget()
        except OSError as exc:
            raise disk_error(exc, self._dir.path) from exc
        finally:
            handles.close()
        # Lengths cannot be trusted, or one deal follows the other: a snapshot handles both.
        with Snapshot(self._dir) as snapshot:
            return answer_of(snapshot.find(wanted))

    # -- the checkpoint --------------------------------------------------------------------------------------

    def _renew(self) -> None:
        """Read the checkpoint if there is a newer one, and forget the indexes that it makes void."""
        # The one before keeps its inode as checkpoint.old, so the same identity recurs after three deals at the
        # earliest, all within one tick of the file system's clock.
        identity = self._disk.identity(layout.CHECKPOINT)
        if identity is not None and identity == self._frames.checkpoint_identity:
            return
        self.epoch += 1
        self._frames = FrameReader(self._dir)
        checkpoint = self._dir.checkpoint()
        for file in list(self._files.values()):
            if covered_of(self._dir.settings, checkpoint, file.name) is None:
                self._drop(file)  # it was removed
        for file in self._journals.files.values():
            file.is_blank = False
        self._checkpoint = checkpoint
        self._unmatched = frozenset(checkpoint.unmatched)
        self._frames.checkpoint_identity = identity

    def _drop(self, file: FileIndex) -> None:
        """Forget a lap or slot file."""
        self._files.pop(file.name)
        self._unload(file)

    def _unload(self, file: FileIndex) -> None:
        for run in file.runs:
            self._loaded.unload(run)

    # -- looking up ------------------------------------------------------------------------------------------

    def _places(self, wanted: list[bytes], handles: Handles) -> Places:
        """Return the places of the puts of pending ids."""
        places: Places = {}
        dropped = {i for i in wanted if i in self._unmatched} if self._unmatched else set()
        self._sure, self._unsure = set(dropped), {}
        hits = self._journals.hits(wanted)
        self._search(hits, places, dropped, handles)
        left = [i for i in wanted if i not in dropped] if dropped else wanted
        hits = [hit for file, ids in self._files_of(left, handles) for hit in file.hits(ids)]
        self._search(hits, places, dropped, handles)
        for id_ in dropped:
            places.pop(id_, None)
        return places

    def _search(self, hits: Hits, places: Places, dropped: set[bytes], handles: Handles) -> None:
        """Search for ids in the runs that may hold them."""
        needs = 0
        for run, ids in hits:
            if run.puts is None:
                needs = needs or sum(run.records for run, _ in hits)
                # More than fits: to load one would only remove another that this same look needs.
                if needs > self._loaded.most or (len(ids) <= _FEW and not self._loaded.is_worth_loading(run)):
                    self._search_frames(run, ids, places, dropped, handles)
                    continue
                self._loaded.load(run, list(self._frames.of(run, handles)))
            else:
                self._loaded.use(run)
            puts, drops = run.puts, run.drops
            if puts:
                places.update([(i, (run.name, puts[i])) for i in ids if i in puts])
            if drops and not drops.isdisjoint(ids):
                self._drop_ids(run, drops.intersection(ids), dropped)

    def _search_frames(
        self, run: FrameRun, ids: list[bytes], places: Places, dropped: set[bytes], handles: Handles
    ) -> None:
        """Search for ids in a run's frames, and remember nothing."""
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
        """Note the drops that a run holds, and whether they are durable."""
        dropped.update(ids)
        if self._journals.is_durable(run.name, run.number):
            self._sure.update(ids)
        else:
            self._unsure.update(dict.fromkeys(ids, run.name))

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
        file = self._files.get(name) or FileIndex(name, run_bytes=FRAME_BYTES)
        if file.pos < length:
            file = self._list_frames(file, length, handles)
        self._files.put(name, file, len(file.runs))
        for other in self._files.shrink(RUNS_MAX):
            self._unload(other)
        return file

    def _list_frames(self, file: FileIndex, length: int, handles: Handles) -> FileIndex:
        fd = self._frames.fd_of(file.name, handles)
        if fd is None:
            return FileIndex(file.name, run_bytes=FRAME_BYTES)
        start, end = file.pos, min(length, self._disk.size(fd))
        for item in scan(self._disk, fd, start, end, self._dir.seed(file.name), headers=True):
            if isinstance(item, Frame):
                self._loaded.unload(file.add(item))
            elif start:
                # Damage, or another file: start again.
                self._drop(file)
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
            # A file was damaged since, or removed by hand. There may be another copy.
            with Snapshot(self._dir) as snapshot:
                found |= snapshot.find(i for i in places if i not in found)
        return found
