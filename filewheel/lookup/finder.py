"""What a handle remembers of its looks, so that the next one reads only what is new.

A finder answers as a `Snapshot` does, in the same way: the checkpoint, every journal from its covered position, and
then the files that may hold an id. But it keeps a `Memory`: the reader of the journals with its positions, an index of
the records there and of lap and slot files, the messages that are due first, and the counts. A look takes the memory
out of the finder and puts it back, by one assignment, when nothing can fail any more. A look that is interrupted or
meets an error has taken it along, and the next one starts from nothing.

It keeps no file open between two looks: a removed file frees its room at once, and a fork or a dropped handle leaves
nothing behind. Its memory is bounded (`IDS_MAX`, `RUNS_MAX`, front.py, tally.py); beyond that, it searches on disk.
Invariant: the answer is that of a snapshot taken during the look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from typing import Concatenate, ParamSpec, TypeVar

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.threads import one_call
from filewheel.errors import Damaged, disk_error
from filewheel.format.frame import Frame, scan
from filewheel.format.ids import are_of
from filewheel.format.record import ID, keyed_of, may_have_keys, readable_records
from filewheel.journal.reader import JournalReader
from filewheel.journal.tail import Tail
from filewheel.laps.slot import FRAME_BYTES, File, covered_of, lap_files, slot_files
from filewheel.lookup.front import COUNT_MAX, Front
from filewheel.lookup.index import (
    FileIndex,
    FrameReader,
    FrameRun,
    Hits,
    LoadedRuns,
    Place,
    ids_of,
    puts_in,
    within,
)
from filewheel.lookup.lru import Lru
from filewheel.lookup.snapshot import Filter, Snapshot
from filewheel.lookup.stats import Known, Stats, sizes_of, stats_of
from filewheel.lookup.tally import Tally, list_laps
from filewheel.message import ID_LIMIT, US_PER_S, due_of, id_after, to_datetime
from filewheel.native import compiled
from filewheel.roster.repeats import may_repeat

RUNS_MAX = 1 << 15
"""How many runs of lap and slot files are known by their range."""
_FEW = 8
_TRIES = 20

Places = dict[bytes, Place]
"""id → the place of its put."""
Listed = dict[bytes, list[bytes]]
"""Hash of a key → the ids that may hold it."""
Dealt = Callable[[Collection[bytes], Checkpoint], Listed]
Holders = tuple[Listed, dict[bytes, bytes], set[str] | None]
P = ParamSpec("P")
T = TypeVar("T")


class _Overtaken(Exception):
    """A deal was committed during the look: it starts again."""


class Finder:
    """Finds pending messages, again and again. Thread-safe. Needs no closing."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.RLock()
        self._memory: Memory | None = None
        self._is_asked_again = False
        self._lists_keys = False

    def forget(self) -> None:
        """Forget everything that was read."""
        self._memory = None

    # -- by id -----------------------------------------------------------------------------------------------

    def pending(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that are pending. Cost: about 50 µs, and the reading of what is new."""
        return self.known(ids)[0]

    def known(self, ids: Iterable[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Return, of these ids, those that are pending, and those with a drop: no put makes them pending again."""
        wanted = _sorted(ids)
        return self._look(wanted, Memory.known, wanted)

    def ended(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that have ended for sure. A file that is missing now may hold others."""
        wanted = _sorted(ids)
        return self._look(wanted, Memory.ended, wanted)

    def find(self, ids: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return, of these ids, those that are pending, with their packed puts. Cost: also a frame for each."""
        wanted = _sorted(ids)
        return self._look(wanted, Memory.find, wanted)[0]

    def holders(self, hashes: Collection[bytes], dealt: Dealt) -> Holders:
        """Return hash → the ids that may hold this key, the puts of those that are pending, and journals.

        `dealt` returns the same for messages in laps, up to a checkpoint. It is called when the journals above that one
        were read, because a deal enters a key there before it covers a journal. The journals are those to be flushed
        before the other ids count as ended; None stands for all of them.
        """
        if not self._lists_keys:
            with one_call(self._lock, self._dir.path):
                self._memory, self._lists_keys = None, True
        return self._look([], Memory.holders, hashes, dealt)  # mutant: key-index-first

    def forget_ended(self, hash_: bytes, gone: Set[bytes]) -> None:
        """List ids of a key no more: they were not pending when they were looked up, and their drops are durable."""
        with one_call(self._lock, self._dir.path):
            memory, self._memory = self._memory, None
            if memory is not None:
                memory.forget_ended(hash_, gone)
            self._memory = memory

    # -- walks and counts ------------------------------------------------------------------------------------

    def first(self, which: Filter, limit: int | None) -> list[bytes] | None:
        """Return the packed puts of these messages, the first `limit`; None where a walk has to find them.

        The messages that are due first are remembered, from the second call on or with a small limit.
        """
        if not self._is_worth_it(limit):
            return None
        return self._look(None, Memory.first, which, limit)

    def stats(self) -> Stats:
        """Count the pending messages, and their bytes on disk. The counts are remembered from the second call on."""
        if self._is_worth_it():
            stats = self._look(None, Memory.stats)
            if stats is not None:
                return stats
        with self.snapshot() as snapshot:
            return stats_of(self._dir, snapshot)

    def snapshot(self) -> Snapshot:
        """Take a snapshot to read from after this call. The caller closes it."""
        if not self._is_worth_it():
            return Snapshot(self._dir)
        return self._look(None, Memory.snapshot)

    def _is_worth_it(self, limit: int | None = None) -> bool:
        """Return whether to remember what the present look reads: a single one costs no memory."""
        if self._memory is None and not self._is_asked_again and (limit is None or limit > COUNT_MAX):
            self._is_asked_again = True
            return False
        return True

    def _look(
        self,
        wanted: list[bytes] | None,
        answer: Callable[Concatenate[Memory, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Bring the memory up to date and return what `answer` finds in it; for `wanted` ids, without one cut."""
        with one_call(self._lock, self._dir.path):
            memory, self._memory = self._memory or Memory(self._dir, lists_keys=self._lists_keys), None
            try:
                for left in reversed(range(_TRIES)):
                    try:
                        memory.catch_up(wanted)
                        found = answer(memory, *args, **kwargs)
                        break
                    except (FileNotFoundError, _Overtaken):  # a covered or finished file was removed
                        if not left:
                            raise
            except OSError as exc:
                raise disk_error(exc, str(exc.filename or self._dir.path)) from exc
            finally:
                memory.journals.handles.close()
            # The lengths of a checkpoint in doubt cannot be trusted a second time.
            self._memory = None if memory.journals.checkpoint.doubt else memory
            return found


def _sorted(ids: Iterable[bytes]) -> list[bytes]:
    return [i for i in sorted(set(ids)) if i < ID_LIMIT]


class Memory:
    """What was read of a wheel. Not thread-safe; a look that fails throws it away."""

    def __init__(self, directory: Directory, *, lists_keys: bool = False) -> None:
        """With `lists_keys` it can look for the holders of unique keys."""
        self._dir = directory
        self._lists_keys = lists_keys
        self.journals = JournalReader(directory)
        self.loaded = LoadedRuns()
        self._unmatched: frozenset[bytes] = frozenset()
        self._frames = FrameReader(directory, self.journals)
        self._wanted: list[bytes] = []
        """The ids that the present look is for."""
        self._segments: dict[str, FileIndex] = {}
        self.files: Lru[str, FileIndex] = Lru()
        """Lap and slot files, by name; each weighs as much as it has runs."""
        self._front: Front | None = None
        self._tally: Tally | None = None
        self._known: Known = {}

    # -- following -------------------------------------------------------------------------------------------

    def catch_up(self, wanted: list[bytes] | None) -> None:
        """Read what is new; without `wanted` ids, up to one cut of all journals. Raises OSError."""
        self._wanted = wanted or []
        self.journals.follow(self, at_one_cut=wanted is None)
        if wanted is None and self._front is not None:
            self._front.is_at_a_cut()

    def renewed(self) -> None:
        """Forget what another checkpoint makes void."""
        checkpoint = self.journals.checkpoint
        for file in list(self.files.values()):
            if covered_of(self._dir.settings, checkpoint, file.name) is None:
                self._drop(file)  # it was removed
        self._unmatched = frozenset(checkpoint.unmatched)
        self._frames = FrameReader(self._dir, self.journals)
        self._front = self._tally = None  # a deal may have covered records that were never read here

    def take(self, tail: Tail, frame: Frame) -> None:
        """Take a new frame of a journal."""
        if not frame.puts and not frame.drops:
            return
        file = self._segments.get(tail.name)
        if file is None:
            file = self._segments[tail.name] = FileIndex(tail.name, frame.offset, tail=tail)
        run = file.add(frame)
        ids = None
        if self._lists_keys and may_have_keys(frame):  # mutant: key-undealt-unlisted
            puts, drops = readable_records(frame)
            file.keyed.add(keyed_of(puts, self._dir.settings.key_hash))
            ids = compiled.ids_of(puts), compiled.ids_of(drops)
        is_few = frame.puts + frame.drops <= _FEW or within(self._wanted, frame.first, frame.last)
        if run.puts is None and run.offset == frame.offset and is_few:
            run.puts = {}
        if run.puts is not None:
            is_full = self.loaded.hold(run)
            run.take(frame, ids)
            if is_full:
                self.loaded.unload(run)
        if self._front is not None or self._tally is not None:
            self._keep_in_step(tail, frame)

    def _keep_in_step(self, tail: Tail, frame: Frame) -> None:
        """Take a new frame into what is remembered of the pending messages, or forget it."""
        front, tally = self._front, self._tally
        self._front = self._tally = None
        try:
            ids, drops = ids_of(frame)
        except Damaged:
            return
        puts = list(ids)
        if not are_of(tail.writer, puts) and (not frame.drops or may_repeat(self._dir)):
            return  # only the files can tell whether they were dropped
        if front is not None:
            front.take(frame)
        if tally is not None:
            tally.take(puts, drops)
        self._front, self._tally = front, None if tally is None or tally.is_full else tally

    def take_back(self, tail: Tail) -> None:
        """Forget what was read of a journal."""
        for name in [name for name, file in self._segments.items() if file.tail is tail]:
            self._unload(self._segments.pop(name))
        self._front = self._tally = None

    def _drop(self, file: FileIndex) -> None:
        """Forget a lap or slot file."""
        self.files.pop(file.name)
        self._unload(file)

    def _unload(self, file: FileIndex) -> None:
        for run in file.runs:
            self.loaded.unload(run)

    # -- walks and counts ------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return a snapshot with files of its own. Raises _Overtaken."""
        handles = self.journals.pin()
        if handles is None:
            raise _Overtaken
        return Snapshot(self._dir, self.journals, handles)

    def _here(self) -> Snapshot:
        """Return a snapshot for the present look, with its files."""
        return Snapshot(self._dir, self.journals, self.journals.handles)

    def _check_current(self) -> None:
        if not self.journals.is_current():
            raise _Overtaken

    def first(self, which: Filter, limit: int | None) -> list[bytes] | None:
        """Return the packed puts of these messages, the first `limit`; None where a walk has to find them."""
        count = 1 if limit is None else limit
        front = self._front
        if front is None or not front.has(count):
            snapshot = self._here()
            front = Front.of(snapshot, count)
            self._check_current()
            self._front = None if snapshot.damage else front  # what cannot be read now may be there later
        return front.first(which, limit)

    def stats(self) -> Stats | None:
        """Count; None where a snapshot has to, because of damage or a message that was written twice."""
        checkpoint = self.journals.checkpoint
        if checkpoint.doubt or self.journals.damage:
            return None
        tally, self._tally = self._tally, None
        if tally is None or tally.files != list_laps(self._dir, checkpoint):
            snapshot = self._here()
            tally = Tally.of(self._dir, snapshot, self._known)
            self._check_current()
            if snapshot.damage:
                return None
        sizes: dict[str, int] = {}
        for part in self.journals.parts():
            sizes[part.name] = part.end - part.start
        stats = sizes_of(self._dir, checkpoint, list(sizes.items()))
        stats.pending, stats.dead = tally.counts(self.has_put)
        self._tally = None if tally.is_full else tally
        first = self.first(Filter(), 1)
        stats.next_due = to_datetime(due_of(first[0][ID])) if first else None
        stats.damaged += len(self._dir.notes)
        return stats

    def has_put(self, ids: Iterable[bytes]) -> set[bytes]:
        """Return, of these ids, those that would be pending if no journal held a drop."""
        wanted = _sorted(ids)
        found, dealt, dropped = Places(), Places(), dict.fromkeys(self._unmatched, "")
        self._search(self._journal_hits(wanted), found, {})
        left = [i for i in wanted if i not in found]
        self._search([hit for file, some in self._files_of(left) for hit in file.hits(some)], dealt, dropped)
        return (found.keys() - self._unmatched) | (dealt.keys() - dropped.keys())

    # -- by id -----------------------------------------------------------------------------------------------

    def known(self, wanted: list[bytes]) -> tuple[set[bytes], set[bytes]]:
        """Return the pending ids, and those with a drop."""
        places, dropped = self._places(wanted)
        return set(places), set(dropped)

    def ended(self, wanted: list[bytes]) -> set[bytes]:
        """Return the ids that have ended: no file that may hold them is missing."""
        places, dropped = self._places(wanted)
        gone = [i for i in wanted if i not in places]
        away = [ids for file, ids in self._files_of(gone) if self._frames.fd_of(file.name) is None]
        return set(gone).difference(*away) | dropped.keys()

    def find(self, wanted: list[bytes]) -> tuple[dict[bytes, bytes], set[str] | None]:
        """Return the packed puts of pending ids, and the journals with drops that may not be durable; None: all."""
        places, dropped = self._places(wanted)
        found: dict[bytes, bytes] = {}
        by_frame: dict[Place, list[bytes]] = {}
        for id_, place in places.items():
            by_frame.setdefault(place, []).append(id_)
        for place, ids in by_frame.items():
            frame = self._frames.at(place)
            if frame is not None:
                found |= puts_in(frame, ids)
        if len(found) < len(places):
            # A file was damaged since, or removed by hand. There may be another copy.
            found |= self._here().find(i for i in places if i not in found)
        return found, None if self.journals.checkpoint.doubt else {name for name in dropped.values() if name}

    def holders(self, hashes: Collection[bytes], dealt: Dealt) -> Holders:
        """Return what `Finder.holders` does."""
        ids = dealt(hashes, self.journals.checkpoint)
        for hash_ in hashes:
            for file in self._segments.values():
                ids[hash_] += file.keyed.of(hash_)
        some = [id_ for some in ids.values() for id_ in some]
        return ids, *(self.find(_sorted(some)) if some else ({}, set()))

    def forget_ended(self, hash_: bytes, gone: Set[bytes]) -> None:
        """List ids of a key no more."""
        for file in self._segments.values():
            file.keyed.remove(hash_, gone)

    def _journal_hits(self, wanted: list[bytes]) -> Hits:
        return [hit for file in self._segments.values() for hit in file.hits(wanted)]

    def _places(self, wanted: list[bytes]) -> tuple[Places, dict[bytes, str]]:
        """Return the places of the puts of pending ids, and the dropped ids, each with the journal to flush for it."""
        places: Places = {}
        dropped = dict.fromkeys(self._unmatched.intersection(wanted), "") if self._unmatched else {}
        self._search(self._journal_hits(wanted), places, dropped)
        left = [i for i in wanted if i not in dropped] if dropped else wanted
        self._search([hit for file, ids in self._files_of(left) for hit in file.hits(ids)], places, dropped)
        for id_ in dropped:
            places.pop(id_, None)
        return places, dropped

    def _search(self, hits: Hits, places: Places, dropped: dict[bytes, str]) -> None:
        """Search for ids in the runs that may hold them."""
        needs = 0
        for run, ids in hits:
            if run.puts is None:
                needs = needs or sum(run.records for run, _ in hits)
                # More than fits: to load one would only remove another that this same look needs.
                if needs > self.loaded.most or (len(ids) <= _FEW and not self.loaded.is_worth_loading(run)):
                    self._search_frames(run, ids, places, dropped)
                    continue
                self.loaded.load(run, list(self._frames.of(run)))
            else:
                self.loaded.use(run)
            puts, drops = run.puts, run.drops
            if puts:
                places.update([(i, (run.name, puts[i])) for i in ids if i in puts])
            if drops and not drops.isdisjoint(ids):
                self._drop_ids(run, drops.intersection(ids), dropped)

    def _search_frames(self, run: FrameRun, ids: list[bytes], places: Places, dropped: dict[bytes, str]) -> None:
        """Search for ids in a run's frames, and remember nothing."""
        for frame in self._frames.of(run, lo=ids[0], hi=id_after(ids[-1])):
            among = within(ids, frame.first, frame.last)
            if not among or (len(among) <= _FEW and not any(i in frame.body for i in among)):
                continue
            try:
                puts, drops = ids_of(frame)
            except Damaged:
                continue
            places.update(dict.fromkeys(set(puts).intersection(among), (run.name, frame.offset)))
            self._drop_ids(run, set(drops).intersection(among), dropped)

    def _drop_ids(self, run: FrameRun, ids: set[bytes], dropped: dict[bytes, str]) -> None:
        """Note the drops that a run holds, and the journal to flush where they may not be durable."""
        journal = self._segments.get(run.name)
        # A drop is durable once it is dealt (D2), and once a later frame or the seal says so.
        is_sure = journal is None or journal.tail is None or run.number <= journal.tail.synced  # mutant: key-drops-sure
        for id_ in ids:
            if is_sure:
                dropped[id_] = ""
            else:
                dropped.setdefault(id_, run.name)

    # -- lap and slot files ----------------------------------------------------------------------------------

    def _files_of(self, wanted: list[bytes]) -> Iterator[tuple[FileIndex, list[bytes]]]:
        """Yield the lap and slot files that may hold these ids, each with those ids."""
        slots, laps = self.journals.checkpoint.slots, self.journals.checkpoint.laps
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
            for slot in slot_files(self._dir.settings, second, slots[second]):
                yield self._file(slot), ids
        for lap, ids in by_lap.items():
            for file in lap_files(self._dir.settings, lap, laps[lap]):
                yield self._file(file), ids

    def _file(self, of: File) -> FileIndex:
        """Return the index of a file up to its covered length."""
        name, length = of.name, of.end
        file = self.files.get(name) or FileIndex(name, run_bytes=FRAME_BYTES)
        if file.pos < length:
            file = self._list_frames(file, length)
        self.files.put(name, file, len(file.runs))
        for other in self.files.shrink(RUNS_MAX):
            self._unload(other)
        return file

    def _list_frames(self, file: FileIndex, length: int) -> FileIndex:
        fd = self._frames.fd_of(file.name)
        if fd is None:
            return FileIndex(file.name, run_bytes=FRAME_BYTES)
        disk = self._dir.disk
        start, end = file.pos, min(length, disk.size(fd))
        for item in scan(disk, fd, start, end, self._dir.seed(file.name), headers=True):
            if isinstance(item, Frame):
                self.loaded.unload(file.add(item))
            elif start:
                # Damage, or another file: start again.
                self._drop(file)
                return self._list_frames(FileIndex(file.name, run_bytes=FRAME_BYTES), length)
        file.pos = length
        return file
