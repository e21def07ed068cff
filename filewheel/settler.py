"""The settler: writes what became of claimed messages to the keeper's own journal.

A settlement that puts a message with a unique key needs the lock of that key, to enter the new id before the frame is
written (rules U1 and U2). A keeper never waits for a lock that a producer holds, because a producer may have been
stopped: such a settlement is kept for later, and its message stays claimed meanwhile.

Several threads settle at once. A settlement that enters a key is tried by one thread at a time: its own first, and any
that claims when that one could not write it.
Invariant: a claimed message is forgotten only when what became of it has been written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from filewheel.clock import Clock
from filewheel.errors import Damaged, DiskError, disk_error
from filewheel.head import Head
from filewheel.headers import KEY
from filewheel.housekeeper import Housekeeper
from filewheel.keys import Keys
from filewheel.ledger import Ledger
from filewheel.message import MessageId
from filewheel.record import CANCELLED, ID, pack_drop
from filewheel.settlement import Settlement, Written, written

FRAME_BYTES = 4 << 20
"""A frame of settlements ends when it has so many bytes."""


class Settler:
    """Writes settlements. Thread-safe by the ledger's lock; `settle` is not to be called with it held."""

    def __init__(self, ledger: Ledger, head: Head, housekeeper: Housekeeper, keys: Keys, clock: Clock) -> None:
        self._ledger = ledger
        self._head = head
        self._housekeeper = housekeeper
        self._keys = keys
        self._clock = clock
        self._lock = ledger.lock
        self.later: dict[bytes, tuple[Settlement, MessageId]] = {}
        """Settlements that enter a key and are not written yet, by the claimed id; with the new id."""
        self._tried_by: dict[bytes, int] = {}
        """Which thread tries which of those."""
        self._tried = threading.Condition(ledger.lock)

    def settle(self, settlements: Sequence[Settlement], check: Callable[[], None]) -> list[MessageId | None]:
        """Write settlements; return for each the id under which the message goes on.

        `check` raises unless all of them are claimed. Until their own thread has tried them, no other settles them.
        """
        moved_to: dict[bytes, MessageId | None] = {}
        keyed: list[bytes] = []
        try:
            with self._lock:
                check()
                self._settle_plain(settlements, moved_to, keyed)
            for id_ in keyed:
                if not self._settle_keyed(id_):
                    moved_to[id_] = None
        except BaseException:
            with self._lock:
                for id_ in keyed:  # what is not written is claimed, as before
                    self.later.pop(id_, None)
            raise
        finally:
            self._were_tried(keyed)
        return [moved_to[s.id] for s in settlements]

    def _settle_plain(
        self, settlements: Sequence[Settlement], moved_to: dict[bytes, MessageId | None], keyed: list[bytes]
    ) -> None:
        """Write those that enter no key; note the others down, to be tried by this thread."""
        if any(s.what != "acked" or s.successor is not None for s in settlements):
            self._ingest()
        made: list[tuple[Settlement, Written]] = []
        size = 0
        for settlement in settlements:
            records = self._records_of(settlement)
            moved_to[settlement.id] = records.moved_to
            if records.enters:
                new = records.moved_to or self._ledger.own.new_id(settlement.due_us)
                keyed.append(settlement.id)
                self.later[settlement.id] = settlement, new
                self._tried_by[settlement.id] = threading.get_ident()
                continue
            made.append((settlement, records))
            size += sum(map(len, records.puts))
            if size > FRAME_BYTES:
                self._write(made)
                made, size = [], 0
        self._write(made)

    def settle_later(self, check: Callable[[], None]) -> None:
        """Write what could not be written while another process was busy with its key; `check` raises when closed."""
        with self._lock:
            check()
            ids = [id_ for id_ in self.later if id_ not in self._tried_by]
            self._tried_by.update(dict.fromkeys(ids, threading.get_ident()))
        try:
            for id_ in ids:
                # Neither a full disk nor a bad file of keys may keep what is due from being claimed.
                with contextlib.suppress(DiskError, Damaged):
                    self._settle_keyed(id_)
        finally:
            self._were_tried(ids)

    def _were_tried(self, ids: Iterable[bytes]) -> None:
        with self._lock:
            for id_ in ids:
                self._tried_by.pop(id_, None)
            self._tried.notify_all()

    def wait_for_others(self) -> None:
        """Return when no other thread is in the middle of a settlement: for one that closes the journal."""
        with self._lock:
            # What this thread tries itself was interrupted by a signal handler that closes.
            while set(self._tried_by.values()) - {threading.get_ident()}:
                self._tried.wait()

    def _settle_keyed(self, id_: bytes) -> bool:
        """Write one settlement that enters keys, now or later; False when its message was cancelled meanwhile."""
        settlement, new = self.later[id_]
        with self._lock:
            enters = self._records_of(settlement, new).enters
        with self._keys.hold([key for key, _ in enters], wait_s=0) as hold:
            if hold.busy:
                return True
            now_us = self._clock.now_us()
            holders = {key: hold.look(key, now_us).id for key, _ in enters}
            self._housekeeper.spend(lambda: hold.note(enters, self._ledger.own))
            with self._lock:
                self._ingest()  # whoever took the key away did so before this lock was ours
                cancelled = id_ in self._head.cancelled
                records = self._records_of(settlement, new)
                displaced = self._contend(settlement, records, holders)
                self._write([(settlement, records)])
                del self.later[id_]
                for other in displaced:  # only now: while nothing is written, they are pending
                    self._head.cancel(other)
                return not cancelled

    def _contend(self, settlement: Settlement, records: Written, holders: Mapping[str, bytes | None]) -> list[bytes]:
        """Leave out the puts whose key another message holds, or drop that one, as the settlement says.

        Returns the messages that are dropped.
        """
        taken: dict[str, bytes] = {}
        displaced: list[bytes] = []
        for key, id_ in records.enters:
            held = holders[key]
            # The message that is settled here lets go of its key in this very frame.
            holder = taken.get(key) or (held if held != settlement.id else None)
            loser = holder if id_ in settlement.replaces else id_
            if holder is None or id_ not in records.asks:
                taken[key] = id_
            elif loser == id_ or key in taken:
                records.puts[:] = [p for p in records.puts if p[ID] != loser]
                taken[key] = id_ if loser != id_ else holder
            else:
                records.drops.append(pack_drop(holder, CANCELLED))
                displaced.append(holder)
                taken[key] = id_
        return displaced

    def _ingest(self) -> None:
        try:
            self._ledger.ingest()
        except OSError as exc:
            raise disk_error(exc, self._ledger.dir.path) from exc

    def _records_of(self, settlement: Settlement, new: MessageId | None = None) -> Written:
        id_ = settlement.id
        # A2: cancelled while it ran. The drop is written already; nothing is put.
        cancelled = id_ in self._head.cancelled
        own = self._ledger.own
        new_id = own.new_id if new is None else lambda _: new
        return written(settlement, self._head.claims[id_], cancelled, self._clock.now_us(), new_id, KEY)

    def _write(self, made: Sequence[tuple[Settlement, Written]]) -> None:
        """Write settlements as one frame; nothing is forgotten if writing fails."""
        records = [drop for _, w in made for drop in w.drops]
        puts = [put for _, w in made for put in w.puts]
        if records or puts:
            self._housekeeper.write(records + puts, len(puts))
        self._head.settle([s.id for s, _ in made])
        near = [p for p in puts if p[ID] < self._head.ready.frontier]
        if near:
            self._head.ready.add(near)
