"""The deal: records move from the journals into slot and lap files, so that the journals can be removed.

One deal is one transaction. It reads the journals from their covered positions up to a cut, leaves out every put that
was dropped below the same cut, appends the rest to slot and lap files above their covered lengths, makes all of it
durable, and commits by replacing the checkpoint. Only then does it remove covered segments. A crash before the commit
leaves bytes that no checkpoint covers; the next deal overwrites them. The same transaction deals a near lap from its
one file into slots, deals a file anew of which most is dropped, and leaves finished files out of the checkpoint. Files
that are not named any more are unlinked after the commit. No file is ever rewritten.

A deal runs in the background, one at a time. Comments name the rules D0-D6, K1-K4 and X1 of the protocol.
Invariant: a deal does not change the set of pending messages.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass

from filewheel.disk.checkpoint import Checkpoint, Covered, Position, place_checkpoint, prepare_checkpoint
from filewheel.disk.directory import raise_format
from filewheel.disk.flush import flush_file, poisoned_by
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.format.record import CANCELLED, DROP_PREFIX, pack_drop
from filewheel.format.settings import Settings
from filewheel.journal.tail import Tail
from filewheel.laps.additions import SYNC_EACH_MAX, Additions
from filewheel.laps.cut import Cut, Files, dropped_above, puts_above, take_cut
from filewheel.laps.lap_writer import LapWriter
from filewheel.laps.slot import File, lap_files, lap_floor, slot_files
from filewheel.laps.store import Store
from filewheel.laps.window import read_file
from filewheel.message import US_PER_S, due_of, id_floor
from filewheel.native.compiled import PutTable, sort

CHUNK_BYTES = 24 << 20
CHUNK_RECORDS = 150_000
OPEN_AHEAD_S = 120
"""A lap is dealt into slots this long before it starts. From then on a deal writes to one file for each second."""
ANEW_BYTES = 64 << 20
"""A deal deals anew about so many bytes of files of which most is dropped."""
ROOM_BYTES = 64 << 10
"""With less than this free, a disk counts as full: it is for acknowledgements."""
_BLOCK_BYTES = 4096
"""Less than this is not worth a new file: a file system gives a file no less."""


@dataclass
class Dealt:
    """The result of a deal."""

    puts: int = 0
    left_bytes: int = 0
    """Bytes that were read and are not covered yet."""


Finished = Callable[[], Files]
"""Returns the files without pending messages. Called with the store's lock held."""


class Deal:
    """One deal. Make it, call `run()` once."""

    def __init__(
        self,
        store: Store,
        *,
        spread: bool,
        finished: Finished | None = None,
        is_short: bool = False,
        anew: Set[str] = frozenset(),
        chunk_bytes: int = CHUNK_BYTES,
        chunk_records: int = CHUNK_RECORDS,
    ) -> None:
        """Prepare a deal. `spread` opens near laps into seconds; without, new laps stay in one file.

        With `is_short` room is short: the deal must fit into what is free, and free at least what it takes. It leaves
        out what is dropped above the cut too. With `chunk_bytes` 0 it covers nothing, and removes what is finished.
        The files in `anew` are dealt anew, by name, if they can be read whole.
        """
        self._store = store
        self._dir = store.dir
        self._disk = store.disk
        self._spread = spread
        self._finished = finished
        self._is_short = is_short
        self._anew = anew
        self._chunk_bytes = chunk_bytes
        self._chunk_records = chunk_records
        self._added = Additions(self._dir)
        self._gone: list[str] = []
        self._done = Dealt()
        self.frees_bytes = 0
        """How much the removals after its commit free, about."""

    def run(self) -> Dealt:
        """Deal. On return it is durable and the covered segments are removed.

        Raises OSError, and Damaged when no file can take a message, with the wheel unchanged; OSError also when only
        files that are no longer needed could not be removed. Raises Poisoned when a flush failed, or when it is
        unknown whether the checkpoint was replaced: this keeper is finished, and the next one recovers.
        """
        store = self._store
        raise_format(self._dir)
        with store.lock:
            store.look_for_missing()
            limits = store.cut(ends_own=not self._is_short)
            seen = {w: t.seen for w, t in store.tails.items()}
            base = store.checkpoint
            finished = self._finished() if self._finished is not None else (set(), set())
        cut = take_cut(store, limits, self._chunk_bytes, self._chunk_records)
        self._flush_journals(seen)  # mutant: journals-unflushed
        new = base.copy()
        new.deal = base.deal + 1
        new.keeper = store.own.writer
        # K4: the entry of a writer without segments is left out only now, a flush after their removal.
        # mutant: entry-early
        new.positions = {w: p for w, p in new.positions.items() if w in limits} | cut.positions
        try:
            if base.doubt:  # the files may hold these records already
                store.note_repeats()  # mutant: doubt-unmarked
            self._write(cut, base, new, finished, seen)
            self._added.sync(self._store.removal.unlinked_in)  # mutant: checkpoint-first
            self._expire(new, finished)
            prepare_checkpoint(self._disk, new, self._dir.seed)  # mutant: checkpoint-first.2 segments-first files-first
        except (OSError, FilewheelError):
            self._added.undo()
            raise
        finally:
            self._added.close()
        # K1: the commit. Nothing is undone from here on: the new checkpoint may be the one that counts.
        with poisoned_by("the checkpoint", self._dir.path):
            place_checkpoint(self._disk)
        with store.lock:
            self._commit(new, cut)  # mutant: removed-first
            self._remove_needless(cut)
        return self._done

    # -- D2 --------------------------------------------------------------------------------------------------

    def _flush_journals(self, seen: dict[str, Position]) -> None:
        """Make the journals durable as far as they were read.

        D2: a frame that is split over files must first be durable as one frame.
        X1: so must every drop that makes a file count as finished.
        """
        store = self._store
        store.own.flush()  # mutant: own-unflushed
        names = []
        for writer, position in seen.items():
            tail = store.tails[writer]
            if writer != store.own.writer:  # mutant: others-unflushed
                names += [part.name for part in tail.parts(max(tail.covered, tail.flushed), position)]
        with poisoned_by("a journal", self._dir.path):
            if len(names) > SYNC_EACH_MAX:
                self._disk.sync_all()
            else:
                for name in names:
                    with contextlib.suppress(FileNotFoundError):
                        flush_file(self._disk, name)
        for writer, position in seen.items():
            tail = store.tails[writer]
            tail.flushed = max(tail.flushed, position)

    # -- writing: D4 to D6 -----------------------------------------------------------------------------------

    def _write(self, cut: Cut, base: Checkpoint, new: Checkpoint, finished: Files, seen: dict[str, Position]) -> None:
        puts, cut.puts = cut.puts, PutTable()
        puts.sort()
        puts.unique()  # mutant: dealt-twice
        # Only a drop can meet a put that is yet to come.
        has_drops = bool(cut.drops or cut.drop_frames or base.unmatched)
        coming = puts_above(self._store, cut, self._chunk_bytes) if has_drops else set()
        cut.take_apart(base, puts, coming, finished, self._dir.settings.slots)
        matched: set[bytes] = set()
        # D3: a put is left out only for a drop below the same cut.
        if cut.drops or base.unmatched:
            gone = cut.drops.keys() | set(base.unmatched)
            matched = puts.having(gone)
            if matched:
                puts.remove(matched)
            # In a set of wheels a put may come twice, by its writer and by a replicator: a drop that has met one of the
            # two is kept for the other.
            still = gone if self._store.repeats else gone - matched  # mutant: repeats-forgotten
            # D1: the next deal gets a drop whose put is yet to be dealt, or the put would be pending again.
            new.unmatched = sorted(still if coming is None else still & coming)  # mutant: unmatched-forgotten
        # D4: in doubt, or where a put may come twice, a file may hold the put already, and needs its drop.
        again = self._store.repeats  # mutant: repeats-no-drop
        loose = [r for i, r in cut.drops.items() if i not in matched or again]
        # Drops for a file that was missing are written to it now, or are carried on to the next deal.
        missing, owes = self._store.missing, self._store.owes_drops
        loose += [  # mutant: missing-owed
            pack_drop(i, CANCELLED)
            for i in base.unmatched
            if i not in matched and i not in cut.drops and (owes or missing.hides(i))
        ]
        sort(loose)
        # X2: records for a removed file were read before it counted as finished, so they are finished too.
        loose = self._without_finished(puts, loose, new, finished)
        if self._is_short:
            puts.remove(dropped_above(self._store, cut, seen, puts))  # mutant: short-deals-dropped
            puts.remove(puts.having(self._store.over))  # mutant: kafka-full-keeps-done
            self._must_gain(cut, base, puts, finished)  # mutant: short-takes-room
        # D5: one reading of the clock for the whole deal.
        near = near_laps(self._dir.settings, self._store.clock.now_us()) if self._spread else frozenset()
        writer = LapWriter(self._store, new, near, self._added)
        for files in self._to_deal_anew(base, new, near, finished):
            if writer.is_there(files[0].lap):
                lo, hi = files[0].range
                start = bisect_left(loose, DROP_PREFIX + lo)
                end = bisect_left(loose, DROP_PREFIX + hi, start)
                writer.deal_anew(files, loose[start:end])
                del loose[start:end]
                self._gone += [file.name for file in files]  # mutant: anew-old-stays
        writer.write(puts, loose)
        # U2: until now the journals named who has these keys, and they are not read again once they are covered.
        # A message that ended before this deal is not entered.
        left = sorted(puts.having(cut.keyed)) if cut.keyed else ()
        self._added.enter_keys([(cut.keyed[id_], id_) for id_ in left])  # mutant: key-dealt-unlisted
        if writer.held:
            new.unmatched = sorted(writer.held.union(new.unmatched))
        self._done.puts = len(puts)

    def _to_deal_anew(
        self, base: Checkpoint, new: Checkpoint, near: Set[int], finished: Files
    ) -> Iterator[Sequence[File]]:
        """Yield the files to deal anew, those of a lap or a second together.

        Near laps go into slots. What counted in doubt becomes one file. Of others more than half is dropped.
        """
        settings, left = self._dir.settings, ANEW_BYTES
        for is_lap, before, after in ((False, base.slots, new.slots), (True, base.laps, new.laps)):
            for key, covered in sorted(before.items()):
                files = lap_files(settings, key, covered) if is_lap else slot_files(settings, key, covered)
                if key in finished[is_lap]:
                    continue
                if covered.others or (is_lap and key in near):
                    yield files
                elif files[-1].name in self._anew or (
                    left > 0 and is_worn(covered) and (not self._is_short or not covered.live)
                ):
                    left -= covered.end
                    if self._is_whole(files[-1]):  # mutant: anew-damaged
                        yield files
                    else:  # what cannot be read stays where it is, for `repair` or a backup; it is not looked at again
                        after[key] = covered._replace(live=covered.end)

    def _is_whole(self, file: File) -> bool:
        with contextlib.closing(self._store.new_handles()) as handles:
            return None not in read_file(self._dir, handles, file, 0)

    def _must_gain(self, cut: Cut, base: Checkpoint, puts: PutTable, finished: Files) -> None:
        """Raise ENOSPC unless what is written fits into the room that there is, and frees at least as much."""
        settings, laps, at = self._dir.settings, 0, 0
        while at < len(puts):
            laps += 1
            at = puts.find(lap_floor(settings, settings.lap_of(due_of(puts.id(at)) // US_PER_S) + 1), at)
        need = puts.size_bytes() + puts.size_bytes() // 8 + laps * _BLOCK_BYTES
        self.frees_bytes = sum(
            base_files[key].end
            for base_files, keys in ((base.slots, finished[0]), (base.laps, finished[1]))
            for key in keys & base_files.keys()
        )
        for writer, position in cut.positions.items():
            tail = self._store.tails[writer]
            self.frees_bytes += sum(end for n, end in tail.ends.items() if n < position.segment)
            self.frees_bytes += position.offset if writer in cut.ended else 0
        if need and (need > self.frees_bytes or need + ROOM_BYTES > self._disk.free_bytes()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _without_finished(self, puts: PutTable, drops: list[bytes], new: Checkpoint, finished: Files) -> list[bytes]:
        """Remove the records of finished files from sorted puts, and from the sorted drops that are returned.

        Those of a slot stay if the file of its lap stays, which may hold the same messages.
        """
        slots, lap_of = self._dir.settings.slots, self._dir.settings.lap_of
        ranges = [(s, s + 1) for s in finished[0] if lap_of(s) not in new.laps] + [  # mutant: both-finished
            (lap * slots, (lap + 1) * slots) for lap in finished[1]
        ]
        kept, at = [], 0
        for first, end in sorted(ranges):
            lo, hi = id_floor(first * US_PER_S), id_floor(end * US_PER_S)
            start = puts.find(lo, 0)
            puts.cut(start, puts.find(hi, start))
            upto = bisect_left(drops, DROP_PREFIX + lo, at)
            kept += drops[at:upto]
            at = bisect_left(drops, DROP_PREFIX + hi, upto)
        return kept + drops[at:] if kept or at else drops

    def _expire(self, new: Checkpoint, finished: Files) -> None:
        """Leave finished files out of the new checkpoint; they are unlinked after the commit."""
        settings = self._dir.settings
        for second in finished[0] & new.slots.keys():
            self._gone += [file.name for file in slot_files(settings, second, new.slots.pop(second))]
        for lap in finished[1] & new.laps.keys():
            self._gone += [file.name for file in lap_files(settings, lap, new.laps.pop(lap))]

    # -- commit: K2 to K4 ------------------------------------------------------------------------------------

    def _commit(self, new: Checkpoint, cut: Cut) -> None:
        """Make the new checkpoint the store's. It counts on disk already, so nothing here may fail."""
        store = self._store
        store.checkpoint = new
        store.removal.unlinked_in.clear()
        store.owes_drops = False
        for writer in [w for w, t in store.tails.items() if t.gone]:
            del store.tails[writer]
        for writer, position in cut.positions.items():
            store.tails[writer].covered = position
        for name in self._gone:
            store.missing.forget(name)
        store.undealt_bytes = max(0, store.undealt_bytes - cut.size_bytes)
        store.undealt_records = max(0, store.undealt_records - cut.records)
        store.undealt_puts = max(0, store.undealt_puts - cut.put_records)
        self._done.left_bytes = store.undealt_bytes

    def _remove_needless(self, cut: Cut) -> None:
        """Remove covered segments and finished files, as many as possible; then raise the error of one that failed.

        That one no longer counts: the next deal tries a segment again, the next keeper sweeps a file.
        """
        store = self._store
        with contextlib.ExitStack() as last_first:
            last_first.callback(store.removal.remove_empty_dirs, store.checkpoint)  # mutant: dirs-stay
            for name in self._gone:
                last_first.callback(store.removal.unlink, name)
            for writer in cut.positions:
                # mutant: live-removed
                last_first.callback(self._retire, store.tails[writer], ended=writer in cut.ended)

    def _retire(self, tail: Tail, *, ended: bool) -> None:
        for n in [n for n in tail.ends if n < tail.covered.segment]:
            self._store.removal.unlink(layout.segment(tail.writer, n))
            tail.ends.pop(n, None)
        if ended:
            # K3: its lock was free when it was read, so it does not grow, and nothing valid is past the cut.
            self._store.removal.unlink(layout.segment(tail.writer, tail.covered.segment))
            tail.gone = True


def deal_all(store: Store, finished: Finished | None = None) -> None:
    """Deal at least once, and then until nothing is left or nothing more can be covered. Near laps stay one file.

    Raises what `Deal.run` raises.
    """
    while True:
        before = store.undealt_bytes
        Deal(store, spread=False, finished=finished).run()
        if store.undealt_bytes >= before or not needs_deal(store, finished):
            return


def needs_deal(store: Store, finished: Finished | None) -> bool:
    """Return whether a deal would cover anything, remove anything, or end a doubt."""
    with store.lock:
        return bool(store.checkpoint.doubt) or store.has_undealt() or (finished is not None and any(finished()))


def is_worn(covered: Covered) -> bool:
    """Return whether a file is worth dealing anew: more than half of it is not needed any more, or may not be."""
    return covered.live <= 0 or covered.end > 2 * covered.live + _BLOCK_BYTES


def near_laps(settings: Settings, now_us: int) -> frozenset[int]:
    """Return the laps that are kept in slots: the present one, and the next one shortly before it starts."""
    now_s = now_us // US_PER_S
    return frozenset((settings.lap_of(now_s), settings.lap_of(now_s + min(OPEN_AHEAD_S, settings.slots))))
