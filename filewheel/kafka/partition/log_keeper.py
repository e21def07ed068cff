"""The keeper of a wheel that holds the records of a log: messages that have their ids, taken in in bulk.

A producer draws an id for each message. A log that is copied into a wheel (Kafka's, filewheel/kafka/) names its records
already, and an id made of that name is the same whenever the record is read again. Such messages go to the keeper's own
journal, so no second journal has to be read back. A process with many wheels runs their background work in one thread
(`housekeep`), and asks each when it next has something to do.
Invariant: a message that was added is in memory when it is due before the frontier, and on disk in any case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

from filewheel.errors import disk_errors
from filewheel.format import layout
from filewheel.format.record import CANCELLED, ID, pack_drop
from filewheel.kafka.partition.losses import KnownLosses
from filewheel.keeper import Keeper
from filewheel.keys import unique
from filewheel.keys.index import KeyHolder
from filewheel.laps.window import Budget
from filewheel.message import DEAD_US, ID_END, ID_MIN, US_PER_S, due_of, id_floor
from filewheel.native.compiled import part


class LogKeeper(Keeper):
    """A keeper that takes in messages of a log, and that another thread keeps house for."""

    _first_above = ID_MIN
    """No undealt message at or above `_known_from` has a smaller id."""
    _known_from = ID_MIN
    """The frontier when that was last true."""

    def expect_repeats(self) -> None:
        """Prepare for messages that are added twice. Durable on return; needed once in the life of a wheel."""
        with self._lock, disk_errors(self._dir.path):
            self._check()
            self._store.note_repeats()  # mutant: kafka-repeats-unmarked

    def is_gone(self) -> bool:
        """Return whether the wheel's files were removed from outside. Cost: a stat."""
        return self._dir.disk.identity(layout.LOCK) is None

    def limit_ballast(self, most: int) -> None:
        """Reserve at most so many bytes for a full disk: a process may have a thousand keepers. Raises DiskError."""
        with self._lock, disk_errors(self._dir.path):
            self._check()
            self._reserve.is_needed = False
            self._reserve.ballast.limit(most)  # mutant: kafka-ballast-of-a-wheel

    def add_puts(self, body: bytes, count: int, first: bytes, last: bytes, *, cancels: tuple[bytes, ...] = ()) -> None:
        """Write packed puts that have their ids, and drops of the messages that they replace, as one frame.

        On return they can be claimed, and survive this process; a power cut after `flush`. All ids, those of `cancels`
        too, are from `first` to `last`. A message that is pending already stays one message, if `expect_repeats` was
        called before.

        Raises WheelFull, Poisoned.
        """
        with self._lock:
            self._check()
            drops = b"".join(pack_drop(id_, CANCELLED) for id_ in cancels)
            first_above = self._first_undealt()
            self._store.write_body(drops + body, count, len(cancels), first, last)
            for id_ in cancels:
                self._head.cancel(id_)  # mutant: kafka-cancelled-fires
            frontier = self._head.ready.frontier
            if first < frontier:
                self._head.admit([put for put in part(body, first, last)[0] if put[ID] < frontier])
            if last >= frontier:
                self._first_above = min(first_above, max(first, frontier))

    def _first_undealt(self) -> bytes:
        """Return a lower bound of the ids of undealt messages at or above the frontier."""
        frontier = self._head.ready.frontier
        if frontier < self._known_from:  # it fell: what is between is in memory no more  # mutant: due-forgotten
            self._first_above = ID_MIN
        elif not self._store.undealt_puts:
            self._first_above = ID_END
        self._known_from = frontier
        return self._first_above

    @contextlib.contextmanager
    def holding_keys(self, keys: Collection[str]) -> Iterator[dict[str, KeyHolder]]:
        """Hold the locks of unique keys in a `with`, and yield their holders: each key may be given to a message.

        Raises Locked, DiskError.
        """
        with unique.holding(self._keys, keys):
            looked = self._keys.look(self._keys.hashes_of(keys))
            self._keys.flush_drops(looked, self._store.own)
            yield looked.holders

    def pending_ids(self, lo: bytes, budget: Budget) -> tuple[list[bytes], bytes, bool]:
        """Return the ids of pending messages from `lo` on, in order, claimed ones too; those of dead letters are left
        out.

        Also the id from which to read on, and whether there are no more. Cost: a read of the undealt journals, and of
        the files with these ids. Raises DiskError, Damaged.
        """
        with self._lock, disk_errors(self._dir.path):
            self._check()
            window = self._store.window(lo, id_floor(DEAD_US), budget)
            return window.found.ids(), window.hi, not window.cut

    def reload(self) -> None:
        """Forget what is in memory and not claimed: it is read again from the files, where every drop counts.

        For a message that was added again after its drop: memory may have taken it for pending.
        """
        with self._lock:
            self._head.ready.forget_from(ID_MIN)

    def losses(self) -> KnownLosses:
        """Return the losses of this wheel: those from now on are news. Cost: a listing. Raises OSError."""
        return KnownLosses(self._store)

    def set_over(self, ids: Collection[bytes]) -> None:
        """Say which claimed messages are done, though their drops found no room: a log says so for good.

        On a full disk a deal leaves them out, as those with a drop.
        """
        with self._lock:
            self._store.over = frozenset(ids)

    def flush(self) -> None:
        """Make everything that this keeper has written durable. Raises Poisoned."""
        self._store.own.flush()

    def next_due_us(self) -> int | None:
        """Return a time before which no message is due that this keeper took in or dealt; None when there is none.

        Messages of other writers count from the next claim on. Cost: 10 ns for each slot and lap file.
        """
        with self._lock:
            self._check()
            ready = self._head.ready
            due_us = ready.first_due_us()
            if due_us is not None:
                return due_us  # all that is on disk only is due later
            frontier, at_us = ready.frontier, due_of(ready.frontier)
            checkpoint, settings = self._store.checkpoint, self._store.dir.settings
            dues = [s * US_PER_S for s in checkpoint.slots if id_floor((s + 1) * US_PER_S) > frontier]
            lap_us = settings.slots * US_PER_S
            dues += [lap * lap_us for lap in checkpoint.laps if id_floor((lap + 1) * lap_us) > frontier]
            if self._store.undealt_puts:
                dues.append(due_of(self._first_undealt()))
            return max(at_us, min(dues)) if dues else None

    def housekeep(self) -> int | None:
        """Do the background work that is due, for a keeper that was opened with `background=False`.

        Returns after how many microseconds there may be more to do; None: not before something is added or settled. An
        error ends the keeper: its next call raises it.
        """
        self._housekeeper.try_step()
        return None if self._broken is not None else self._housekeeper.idle_us()
