"""Claims and begins, and the order of writes and reads that decides between a begin and a cancel.

A begin is published in the file `begun`, then the mark is read, then the journals if the mark has changed. So either
the cancel finds the message begun, or the begin finds it cancelled. A claim is such a begin, unless its consumer calls
`begin` later.
A pause changes the mark too, so the same order decides between a begin and a pause.
Invariant: once a cancel returned without finding a message begun, it is neither handed out nor begun. Once a pause has
returned, no message that it holds begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from filewheel.disk.begun import LIFE_BYTES, Begun
from filewheel.firing.head import Head
from filewheel.firing.shares import Bounds
from filewheel.format.record import ID
from filewheel.laps.store import Store
from filewheel.native.compiled import ids_of
from filewheel.runs.times import BeginTimes


class Begins:
    """The begins of one keeper. The store's lock guards everything but `may_begin` and `unbegin`."""

    def __init__(self, store: Store, head: Head) -> None:
        """Replace the table of the former keeper, whose lock this one has now, by an empty one."""
        self._store = store
        self._head = head
        self._begun = Begun(store.disk, head.claims, store.dir.env.entropy(LIFE_BYTES))
        self._clock = store.clock
        self.times = BeginTimes(head.claims)
        """When the claimed messages began."""

    @property
    def life(self) -> bytes:
        """The keeper's name for itself in `begun`."""
        return self._begun.life

    def claim(
        self, now_us: int, by_us: int, limit: int, bounds: Bounds, room_for: Callable[[int, int], int], *, begun: bool
    ) -> tuple[list[bytes], list[bytes]]:
        """Hand out up to `limit` messages that are due by a time (see Head.claim), and that have room (see Reserve).

        Raises OSError.
        """
        mark = self._begun.mark()
        self._head.look_at_pauses(is_marked=not self._begun.is_known(mark))
        self._head.refresh(now_us)
        self._begun.looked(mark)
        puts, ids = self._head.claim(by_us, limit, bounds)
        try:
            fit = room_for(len(ids), len(self._head.claims) - len(ids)) if ids else 0
            if fit < len(ids):
                self._head.give_back(ids[fit:])
                puts, ids = puts[:fit], ids[:fit]
            stopped = self.begin(ids) if begun and ids else ()
        except BaseException:  # no caller has them
            self._head.give_back([id_ for id_ in ids if id_ in self._head.claims])
            raise
        if stopped:
            puts = [put for put in puts if put[ID] not in stopped]
            ids = ids_of(puts)
        return puts, ids

    def begin(self, ids: list[bytes]) -> set[bytes]:
        """Begin claimed messages; return those that must not begin, which are not claimed any more. Raises OSError.

        Those that were cancelled are forgotten, those that a pause holds are offered again when it ends.
        """
        try:
            self._begun.publish(ids)
            mark = self._begun.mark()
            if not self._begun.is_known(mark):
                self._head.look_at_pauses()
                self._store.ingest()
                self._begun.looked(mark)
        except BaseException:
            self._begun.retract(ids)
            raise
        self._note(ids)
        stopped = self._head.stop(ids)
        paused = self._head.paused(ids)
        if paused:
            self.give_back(paused)
            stopped = stopped.union(paused)
        return stopped

    def _note(self, ids: Sequence[bytes]) -> None:
        self.times.note(ids, (self._clock.now_us(), self._clock.steady_us()))

    def may_begin(self, ids: Sequence[bytes]) -> bool:
        """Begin claimed messages, if that needs no wait; False when only `begin` can decide."""
        if not self._begun.is_public:  # writing the whole table under its lock would block an event loop
            return False
        self._begun.publish(ids)
        # Read the mark first: if it is unchanged, `cancelled` has every message cancelled before it.
        begins = self._begun.is_old() and all(
            id_ in self._head.claims and id_ not in self._head.cancelled for id_ in ids
        )
        begins = begins and not self._head.paused(list(ids))
        if begins:
            self._note(ids)
        else:
            self._begun.retract(ids)
        return begins

    def unbegin(self, ids: Sequence[bytes]) -> None:
        """Retract the begins of claimed messages."""
        self._begun.retract(ids)
        self.times.note(ids, None)

    def give_back(self, ids: list[bytes]) -> None:
        """Offer claimed messages again whose work does not begin after all."""
        self._begun.retract(ids)
        self.times.note(ids, None)
        self._head.give_back(ids)

    def close(self) -> None:
        """Close the file: the begins in it do not count any more."""
        self._begun.close()
