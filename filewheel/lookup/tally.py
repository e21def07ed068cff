"""The number of pending messages, remembered between calls and kept in step with the journals.

The slot and lap files are counted once for each checkpoint. Of the journals, only the new frames are read. A put by its
own writer adds one, since an id is given out once. A drop subtracts one if its put exists and no other drop did.
Where this is not certain, nothing is remembered and a snapshot counts everything: with damage, with a missing file,
with puts that one writer wrote for another, or with puts that a slot or lap file holds too. Bytes that were counted are
not read again before the next checkpoint.
Invariant: an answer equals the count of a snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.threads import one_call
from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID
from filewheel.journal.tail import Handles
from filewheel.lookup.finder import Finder
from filewheel.lookup.front import Front
from filewheel.lookup.index import FileIndex, ids_of
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.lookup.stats import Known, Stats, counts_of, sizes_of
from filewheel.message import MessageId, due_of, to_datetime
from filewheel.roster.repeats import may_repeat

DROPS_MAX = 1 << 18
"""How many drops are remembered at most."""
_TRIES = 4


class _Unknown(Exception):
    """The number cannot be derived from the remembered state."""


class _Stale(Exception):
    """There is another checkpoint, or a journal was removed: the remembered state is void."""


class Tally:
    """Counts what is pending in a wheel. Thread-safe. Needs no closing."""

    def __init__(self, directory: Directory, finder: Finder, front: Front) -> None:
        self._dir = directory
        self._finder = finder
        self._front = front
        self._lock = threading.RLock()
        self._was_asked = False
        self._known: Known = {}
        self._forget()

    def _forget(self) -> None:
        self._deal = -1
        """The checkpoint that this belongs to."""
        self._listing: list[list[str]] = []
        """The directories of the laps."""
        self._is_simple = False
        self._counts = [0, 0]
        """How many are pending, and how many are dead letters."""
        self._read: dict[str, tuple[int, int]] = {}
        """For each journal, the offsets at which reading started and stopped."""
        self._drops: set[bytes] = set()

    def stats(self) -> Stats | None:
        """Return the counts of the wheel; None where a snapshot has to count, as it does the first time.

        Cost: a look of the finder and some listings; after a new checkpoint all of the journals and the laps' headers.

        Raises Reentered, OSError.
        """
        with one_call(self._lock, self._dir.path):
            if not self._was_asked:  # a single call costs no memory
                self._was_asked = True
                return None
            for _ in range(_TRIES):
                found = self._finder.read_on(self._try_to_count)
                if isinstance(found, _Stale):
                    self._learn()
                    continue
                first = self._front.first(1) if isinstance(found, Stats) else None
                if not isinstance(found, Stats) or first is None:
                    return None
                found.next_due = to_datetime(due_of(first[0][ID])) if first else None
                return found
        return None

    def _learn(self) -> None:
        """Count the messages in the laps."""
        self._forget()
        with Snapshot(self._dir) as snapshot:
            listing = self._list_laps(snapshot.checkpoint)
            snapshot.first()  # finds the same damage as a full count
            puts = snapshot.journal_puts() if may_repeat(self._dir) else set[bytes]()
            snapshot.journals = []
            is_apart = not puts or not snapshot.named(puts)  # mutant: remembered-twice
            counts = counts_of(self._dir, snapshot, self._known)
            self._deal = snapshot.checkpoint.deal
            self._listing = listing
            self._is_simple = is_apart and not snapshot.damage and not snapshot.checkpoint.doubt
            self._counts = list(counts)

    def _list_laps(self, checkpoint: Checkpoint) -> list[list[str]]:
        """List the directories of a checkpoint's files, to notice a file that was removed by hand."""
        laps = sorted({self._dir.settings.lap_of(second) for second in checkpoint.slots})
        names = [layout.LAPS, *map(layout.lap_dir, laps)]
        return [sorted(self._dir.disk.listdir(name)) for name in names]

    def _try_to_count(
        self, checkpoint: Checkpoint, journals: Mapping[str, FileIndex], handles: Handles
    ) -> Stats | _Stale | _Unknown:
        try:
            return self._count(checkpoint, journals, handles)
        except (_Stale, _Unknown) as exc:  # a raised error makes the finder forget everything
            return exc

    def _count(self, checkpoint: Checkpoint, journals: Mapping[str, FileIndex], handles: Handles) -> Stats:
        """Count the new records of the journals."""
        if checkpoint.deal != self._deal or self._list_laps(checkpoint) != self._listing:
            raise _Stale
        if any(n not in journals or (journals[n].start, journals[n].pos) < at for n, at in self._read.items()):
            raise _Stale
        if not self._is_simple or any(file.has_gaps or not file.is_blank for file in journals.values()):
            raise _Unknown
        counts, new = list(self._counts), set[bytes]()
        unmatched = set(checkpoint.unmatched)
        for file in journals.values():
            writer = layout.parse_segment(file.name.rpartition("/")[2])
            assert writer is not None
            for frame in self._news_of(file, handles):
                puts, drops = _ids_of(frame)
                _check_own(puts, writer[0])
                new.update(drops)
                pending = [i for i in puts if i not in self._drops and i not in unmatched]
                dead = sum(i >= DEAD_FLOOR for i in pending)
                counts[0] += len(pending) - dead
                counts[1] += dead
        new -= self._drops
        if len(new) + len(self._drops) > DROPS_MAX:
            raise _Unknown
        for id_ in self._finder.has_put(new, handles) if new else ():
            counts[id_ >= DEAD_FLOOR] -= 1
        # Nothing was changed until now, so an error or a second call by the finder finds the old state.
        self._drops |= new
        self._counts = counts
        self._read = {file.name: (file.start, file.pos) for file in journals.values()}
        sizes = [(file.name, file.pos - file.start) for file in journals.values() if file.pos > file.start]
        stats = sizes_of(self._dir, checkpoint, sizes)
        stats.pending, stats.dead = counts
        stats.damaged += len(self._dir.notes)
        return stats

    def _news_of(self, file: FileIndex, handles: Handles) -> Iterable[Frame]:
        """Yield the frames that a journal has gained."""
        start = self._read.get(file.name, (0, file.start))[1]
        if start == file.pos:
            return
        end = min(file.pos, self._dir.disk.size(fd := handles.get(file.name)))
        for item in scan(self._dir.disk, fd, start, end, self._dir.seed(file.name)):
            if not isinstance(item, Frame):
                raise _Unknown
            yield item


def _ids_of(frame: Frame) -> tuple[list[bytes], list[bytes]]:
    try:
        puts, drops = ids_of(frame)
    except Damaged:
        raise _Unknown from None
    return list(puts), list(drops)


def _check_own(ids: list[bytes], writer: str) -> None:
    """Raise unless all of these ids were given out by this writer."""
    if ids and (str(MessageId(ids[0]))[12:20] != writer or len({(i[7] & 63, i[8:12], i[12] >> 6) for i in ids}) > 1):
        raise _Unknown
