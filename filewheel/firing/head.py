"""The head of a wheel: the messages that fire next, kept in step with the journals.

It is between the store, which reads the disk, and the keeper, which serves consumers. It loads windows into the ready
queue, adds messages that arrive below the frontier, removes cancelled ones, and knows which are claimed.

A drop may be read before its put, when they are in two journals and one pass reads them in that order. Such a drop is
remembered until a whole pass has started and ended after it was read. By then its put was read, or there is none.
Invariant: every message below the frontier is in `ready`, in `claims`, dropped, in a gap of `ready.aside`,
or held by a pause, in a second of `ready.held`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from filewheel.disk.directory import Directory
from filewheel.firing.pauses import KnownPauses
from filewheel.firing.ready import Ready
from filewheel.firing.shares import Bounds
from filewheel.format.frame import Frame
from filewheel.format.ids import are_of
from filewheel.format.record import ID, records_of
from filewheel.laps.store import Store
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, due_of, id_floor
from filewheel.native.compiled import ids_of
from filewheel.roster.fence import Fence

AHEAD_US = 1 * US_PER_S
"""Loading starts when memory holds less than this ahead of the present time."""
LOOKAHEAD_US = 4 * US_PER_S


class Head:
    """Ready and claimed messages. Not thread-safe: the store's lock guards it."""

    def __init__(
        self,
        directory: Directory,
        fence: Fence,
        budget: Budget,
        pauses: KnownPauses,
        on_flush: Callable[[int], None] | None,
    ) -> None:
        """`on_flush` is called with the microseconds of each flush of the keeper's own journal."""
        self.pauses = pauses
        self.ready = Ready(budget)
        self.store = Store(
            directory, fence=fence, on_frame=self._on_frame, on_return=self.ready.forget_from, on_flush=on_flush
        )
        """The disk, whose journals this follows."""
        self.claims: dict[bytes, bytes] = {}
        """id → put of the claimed messages."""
        self.cancelled: set[bytes] = set()
        """Claimed ids that were cancelled: they are not put back."""
        self._early: dict[bytes, int] = {}
        self._is_torn = False
        """An interrupt (Ctrl-C) may have left the queue half changed: it is read again before it is used."""

    # -- coming in -------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame, writer: str) -> None:
        """Apply the records of a producer's frame that are below the frontier, or end what is claimed."""
        frontier = self.ready.frontier
        if frame.first >= frontier and not (frame.drops and self.claims):
            return
        puts, drops = records_of(frame)
        try:
            if drops:
                self._drop(drops, frontier)
            near = [r for r in puts if r[ID] < frontier]
            if (not drops or self.store.repeats) and not are_of(writer, ids_of(near)):
                # The files tell whether they were dropped before: they are read again, with their drops.
                self.ready.forget_from(min(r[ID] for r in near))
            else:
                self.admit(near)  # mutant: past-passes-by
        except BaseException:
            self._is_torn = True
            raise

    def _drop(self, drops: list[bytes], frontier: bytes) -> None:
        """Apply drops that others wrote: cancels and reschedules."""
        unknown = []
        for drop in drops:
            id_ = drop[ID]
            if id_ in self.claims:  # first: the frontier may have gone back below it since  # mutant: claimed-above
                self.cancelled.add(id_)
            elif id_ < frontier:  # the others are read again, with their puts, when that window is loaded
                unknown.append(id_)
        if unknown:
            here = self.ready.discard(unknown)  # mutant: cancel-unseen
            for id_ in unknown:
                if id_ not in here:
                    self._early[id_] = self.store.passes  # mutant: early-drop-forgotten

    def cancel(self, id_: bytes) -> None:
        """Remove a message that the keeper itself cancels; the caller writes its drop."""
        if id_ in self.claims:
            self.cancelled.add(id_)
        else:
            self.ready.discard([id_])

    def admit(self, puts: list[bytes]) -> None:
        """Add messages below the frontier; those that are claimed, or known to be dropped, are left out."""
        early, unmatched = self._early, self.store.checkpoint.unmatched
        if early or unmatched or self.claims:
            gone = set(unmatched)
            kept = []
            for put in puts:
                id_ = put[ID]
                if early.pop(id_, None) is None and id_ not in gone and id_ not in self.claims:
                    kept.append(put)
            puts = kept
        if puts:
            self._add(puts)

    def _add(self, puts: list[bytes]) -> None:
        try:
            self.ready.add(puts)
        except BaseException:
            self._is_torn = True
            raise

    def refresh(self, now_us: int) -> None:
        """Read every journal once (F1), and move the frontier a few seconds ahead if the budget allows."""
        if self._is_torn:
            self.store.note_own()
            self.ready.begin_again(self.claims)
            self._early = {}
            self._is_torn = False
        self.store.ingest()  # mutant: no-look
        passes = self.store.passes
        if self._early:
            self._early = {i: p for i, p in self._early.items() if p + 2 > passes}
        ready = self.ready
        near, target = id_floor(now_us + AHEAD_US), id_floor((now_us + LOOKAHEAD_US) // US_PER_S * US_PER_S)
        while ready.frontier < near and ready.wants_more():
            window = self.store.window(ready.frontier, target, ready.room())
            puts = self._unknown(window.puts)
            for id_ in window.loose:
                self._early.setdefault(id_, passes)
            try:
                ready.load(puts, window.hi)
            except BaseException:
                self._is_torn = True
                raise

    def _unknown(self, puts: list[bytes]) -> list[bytes]:
        """Return the puts that are neither claimed nor known to be dropped."""
        if self.claims or self._early:  # mutant: claimed-again
            puts = [r for r in puts if r[ID] not in self.claims and r[ID] not in self._early]
        return puts

    def look_at_pauses(self, *, is_marked: bool = True) -> None:
        """Read the pauses if they were changed, and what a pause that has ended held. Cost: one stat.

        Without `is_marked` nothing that has a mark was changed since the last look.
        """
        if self.pauses.look(is_marked=is_marked):
            self.ready.release_held()

    def is_whole_paused(self) -> bool:
        """Return whether the whole wheel is paused."""
        return self.pauses.held.is_whole

    def next_us(self) -> int:
        """Return when the next message in memory is due; with none, the least due of those on disk."""
        next_us = self.ready.next_due_us()
        return due_of(self.ready.frontier) if next_us is None else next_us

    # -- going out -------------------------------------------------------------------------------------------

    def claim(self, now_us: int, limit: int, bounds: Bounds) -> tuple[list[bytes], list[bytes]]:
        """Claim up to `limit` due messages within these bounds; return their puts and ids.

        They are in due order; with `first` each level is. Messages that a pause holds are passed over.
        """
        held = self.pauses.held
        if held.is_whole:
            return [], []
        is_held = held.holds if held.is_any else None
        ids: list[bytes] = []
        try:
            self.ready.lay_out(bounds.keys)
            puts: list[bytes] = []
            for rooms in bounds.levels():
                self._read_gaps(rooms)
                taken = self.ready.take(id_floor(now_us + 1), limit - len(puts), rooms, is_held)  # mutant: no-clock
                puts += taken
                if len(puts) == limit:
                    break
                # mutant: lower-level-early
                if bounds.first and (self.is_behind(now_us) or self.ready.aside.lacks(rooms)):
                    break  # what goes first may still be on disk
            ids = ids_of(puts)
            self.claims.update(zip(ids, puts, strict=True))
            return puts, ids
        except BaseException:  # no caller has them
            self._is_torn = True
            for id_ in ids:
                self.claims.pop(id_, None)
            raise

    def _read_gaps(self, rooms: Mapping[bytes, int]) -> None:
        """Read more messages of each share that has room, and of which all in memory were claimed."""
        aside = self.ready.aside
        for share, start, end in aside.lacking(rooms):
            window = self.store.window(start, end, aside.budget)
            share_of = aside.layout.share_of
            puts = [r for r in self._unknown(window.puts) if share_of(r) == share]
            self.ready.load_gap(share, puts, window.hi)

    def is_behind(self, now_us: int) -> bool:
        """Return whether due messages may be on disk, and memory has room for them."""
        is_behind = self.ready.frontier < id_floor(max(0, now_us) + 1) and self.ready.wants_more()
        return is_behind and not self.is_whole_paused()

    def tear(self) -> None:
        """Have the queue read again: an interrupt came between a frame of the keeper and its messages here."""
        self._is_torn = True

    def release(self, ids: list[bytes]) -> list[bytes]:
        """Forget claimed messages, whose outcome is written; return their puts."""
        try:
            puts = list(map(self.claims.pop, ids))
            self.ready.done(ids)
            if self.cancelled:
                self.cancelled.difference_update(ids)
            return puts
        except BaseException:
            self._is_torn = True
            raise

    def stop(self, ids: list[bytes]) -> set[bytes]:
        """Forget claimed messages that were cancelled; return them."""
        stopped = self.cancelled.intersection(ids)
        if stopped:
            self.release(list(stopped))
        return stopped

    def paused(self, ids: list[bytes]) -> list[bytes]:
        """Return the claimed messages among these that a pause holds."""
        held = self.pauses.held
        if not held.is_any:
            return []
        puts = [(id_, self.claims.get(id_)) for id_ in ids]
        return [id_ for id_, put in puts if put is not None and held.holds(put)]

    def give_back(self, ids: list[bytes]) -> None:
        """Offer claimed messages again, as they were; those that were cancelled are forgotten."""
        puts = [self.claims[id_] for id_ in ids if id_ not in self.cancelled]
        self.release(ids)
        near = [put for put in puts if put[ID] < self.ready.frontier]  # the others are loaded again, from disk
        if near:
            self._add(near)

    def finished(self) -> tuple[set[int], set[int]]:
        """Return the seconds and laps whose files hold no pending message any more (X3: by the present state)."""
        ready = self.ready
        frontier, waiting = ready.aside.floor(ready.frontier), ready.waiting  # mutant: gap-is-finished
        checkpoint, settings, missing = self.store.checkpoint, self.store.dir.settings, self.store.missing
        # mutant: claimed-is-finished
        slots = {s for s in checkpoint.slots if id_floor((s + 1) * US_PER_S) <= frontier and s not in waiting}
        slots = slots - ready.held
        slots -= missing.slots  # their messages are unknown  # mutant: missing-finished
        laps: set[int] = set()
        if checkpoint.laps:
            busy = {settings.lap_of(s) for s in waiting} | missing.near()
            laps = {  # mutant: lap-claimed-is-finished
                lap
                for lap in checkpoint.laps
                if id_floor((lap + 1) * settings.slots * US_PER_S) <= frontier and lap not in busy
            }
            laps = {lap for lap in laps if ready.held.isdisjoint(settings.seconds_of(lap))}
        return slots, laps
