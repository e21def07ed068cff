"""The settler: it writes the outcomes of claimed messages to the keeper's own journal.

A settlement that puts a message with a unique key needs the lock of that key, so that no other message takes it (rule
U1). One that moves a message needs the lock of its id, so that it is not moved or cancelled twice
(V1). A keeper never waits for a lock that a producer holds, because a producer may have been stopped. Such a settlement
is tried again later, and its message stays claimed. Many are written under their locks together: one lookup, one frame.

Several threads settle at once. A settlement that needs locks is tried by one thread at a time: first its own, then any
that claims if that one could not write it. They take the locks of ids in turn, so none is delayed by the locks of
another thread.
Invariant: a claimed message is forgotten only when its outcome has been written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from filewheel.disk import locks
from filewheel.env import Condition
from filewheel.errors import Damaged, DiskError, FilewheelError, Locked, NotClaimed, disk_error
from filewheel.firing.batch import Batch, ids_in
from filewheel.firing.head import Head
from filewheel.firing.reserve import Reserve, fires_again
from filewheel.format.record import CANCELLED, ID, key_of, pack_drop
from filewheel.journal.settlement import Records, Settlement, records_of
from filewheel.keys.index import Keys
from filewheel.laps.store import Store
from filewheel.message import KEY, Message, MessageId
from filewheel.runs.history import History

FRAME_BYTES = 4 << 20
"""A frame of settlements ends when it has so many bytes."""


class Settler:
    """Writes settlements. Thread-safe by the store's lock; do not call `settle` with it held."""

    def __init__(
        self, store: Store, head: Head, reserve: Reserve, keys: Keys, history: History, moving: threading.RLock
    ) -> None:
        """`moving` is held by the thread that has locks of ids: another one would find them busy."""
        self._store = store
        self._head = head
        self._reserve = reserve
        self._keys = keys
        self.history = history
        self._clock = store.clock
        self._lock = store.lock
        self.later: dict[bytes, tuple[Settlement, MessageId, list[str]]] = {}
        """Settlements that need locks and are not written yet, by the claimed id; with the new id, and the keys."""
        self._trouble: FilewheelError | None = None
        """The error of the last try."""
        self._tried_by: dict[bytes, int] = {}
        """The thread that tries each of those."""
        self._tried = Condition(store.lock)
        self._moving = moving

    def settle(self, settlements: Sequence[Settlement], check: Callable[[], None]) -> list[MessageId | None]:
        """Write settlements; return for each the message's new id, if any.

        `check` raises unless all of them are claimed. Until their own thread has tried them, no other settles them.
        """
        moved_to: dict[bytes, MessageId | None] = {}
        locking: list[bytes] = []
        try:
            with self._lock:  # mutant: settled-twice
                check()
                self._settle_plain(settlements, moved_to, locking)
            if locking:
                moved_to.update(dict.fromkeys(self._settle_locking(locking)))
        except BaseException:
            with self._lock:
                for id_ in locking:  # messages whose outcome is not written stay claimed
                    self.later.pop(id_, None)  # mutant: settled-unwritten
            raise
        finally:
            self._were_tried(locking)
        return [moved_to[s.id] for s in settlements]

    def ids_of(self, what: Batch | Message | bytes | Iterable[Message | bytes]) -> list[bytes]:
        """Return the ids of claimed messages; of a batch, those still claimed. Raises NotClaimed."""
        claims = self._head.claims
        if isinstance(what, Batch):
            held = list(filter(claims.__contains__, what.ids))
            return [i for i in held if i not in self.later] if self.later else held
        ids = ids_in(what)
        for id_ in ids:
            if id_ not in claims or id_ in self.later:
                name = str(MessageId(id_)) if len(id_) == 16 else repr(id_)
                raise NotClaimed(
                    f"message {name} is not claimed by this keeper",
                    path=self._store.dir.path,
                    hint="acknowledge each message once, by the keeper that claimed it",
                )
        if len(set(ids)) < len(ids):
            raise NotClaimed(
                "a message is named twice in one call",
                path=self._store.dir.path,
                hint="settle each message once",
            )
        return ids

    def _settle_plain(
        self, settlements: Sequence[Settlement], moved_to: dict[bytes, MessageId | None], locking: list[bytes]
    ) -> None:
        """Write those that need no lock; note the others, for this thread to try."""
        if any(s.what == "killed" or s.successor is not None for s in settlements):
            self._ingest()  # for cancels; before a message moves they are read under its lock
        made: list[tuple[Settlement, Records]] = []
        size = 0
        for settlement in settlements:
            records = self._records_of(settlement)
            moved_to[settlement.id] = records.moved_to
            if records.enters or records.moved_to is not None:
                new = records.moved_to or self._store.own.new_id(settlement.due_us)
                locking.append(settlement.id)
                self.later[settlement.id] = settlement, new, [key for key, _ in records.enters]
                self._tried_by[settlement.id] = threading.get_ident()
                continue
            made.append((settlement, records))
            size += sum(map(len, records.puts))
            if size > FRAME_BYTES:
                self._write(made)
                made, size = [], 0
        self._write(made)

    def settle_later(self, check: Callable[[], None]) -> None:
        """Write settlements that waited for a lock of another process; `check` raises when closed."""
        with self._lock:
            check()
            ids = [id_ for id_ in self.later if id_ not in self._tried_by]  # mutant: settled-by-another
            self._tried_by.update(dict.fromkeys(ids, threading.get_ident()))
        try:
            if ids:
                self._settle_locking(ids)
            self._trouble = None
        except (DiskError, Damaged) as exc:
            # Neither a full disk nor a bad file of keys may stop claims of due messages.
            self._trouble = exc
        finally:
            self._were_tried(ids)

    def unwritten(self) -> FilewheelError | None:
        """Return why some settlements were not written, for a keeper that closes; None when all were."""
        with self._lock:
            count = len(self.later)
        if not count:
            return None
        exc = self._trouble or Locked(
            f"another process has the lock of a key or of a message, and {count} settlements wait for it",
            role="id",
            path=self._store.dir.path,
            hint="continue or kill the process that is stopped",
        )
        return fires_again(exc)

    def _were_tried(self, ids: Iterable[bytes]) -> None:
        with self._lock:
            for id_ in ids:
                self._tried_by.pop(id_, None)
            self._tried.notify_all()

    def wait_for_others(self) -> None:
        """Wait until no other thread is in the middle of a settlement, before the journal is closed."""
        with self._lock:
            # A settlement of this thread itself was interrupted by a signal handler that closes.
            while set(self._tried_by.values()) - {threading.get_ident()}:  # mutant: closed-beside-a-settle
                self._tried.wait()

    def _settle_locking(self, ids: Sequence[bytes]) -> list[bytes]:
        """Write settlements that need locks, now or later; return those whose message was cancelled."""
        cancelled: list[bytes] = []
        with self._lock:
            entered = {id_: self.later[id_][2] for id_ in ids}
            own = {id_: key_of(self._head.claims[id_]) for id_ in ids}
        contended = {id_: {key for key in (*entered[id_], own[id_]) if key is not None} for id_ in ids}
        left = list(ids)
        while left:
            ids, left = left, []
            now: list[bytes] = []
            keys: set[str] = set()
            for id_ in ids:
                # Those that contend for a key go into separate rounds.
                (now if keys.isdisjoint(contended[id_]) else left).append(id_)  # mutant: keys-at-once
                keys |= contended[id_]
            try:
                cancelled += self._settle_at_once({id_: entered[id_] for id_ in now})
            except (Damaged, DiskError) as exc:
                if len(ids) == 1 or not exc.is_of_one_file:
                    raise
                self._settle_each(ids, cancelled)  # one bad file of keys fails no other settlement
                return cancelled
        return cancelled

    def _settle_each(self, ids: Sequence[bytes], cancelled: list[bytes]) -> None:
        """Write settlements one by one; raise the last error at the end."""
        failed: FilewheelError | None = None
        for id_ in ids:
            try:
                cancelled += self._settle_locking([id_] if id_ in self.later else [])
            except (Damaged, DiskError) as exc:
                if not exc.is_of_one_file:
                    raise
                failed = exc
        if failed is not None:
            raise failed

    def _settle_at_once(self, entered: Mapping[bytes, Sequence[str]]) -> list[bytes]:
        """Write settlements that do not contend, by the keys that each enters; return as `_settle_locking` does."""
        keys, number_of = self._keys, locks.number_of
        hashes = {key: keys.hash_of(key) for some in entered.values() for key in some}
        if not hashes:
            return self._write_alone(list(entered), {})
        with locks.HeldLocks(self._store.dir) as key_locks:
            # mutant: key-waited-for
            busy = self._take(key_locks, lambda: locks.take_keys(key_locks, hashes.values(), 0))
            # mutant: key-busy-ignored
            free = [i for i, some in entered.items() if busy.isdisjoint(number_of(hashes[key]) for key in some)]
            looked = keys.look({key: hashes[key] for id_ in free for key in entered[id_]})
            holders = {key: holder.id for key, holder in looked.holders.items()}
            keys.flush_drops(looked, self._store.own)  # mutant: key-drop-unflushed-retry
            return self._write_alone(free, holders)

    def _write_alone(self, free: Sequence[bytes], holders: Mapping[str, bytes | None]) -> list[bytes]:
        """Write settlements under the locks of their ids; those of the keys that they enter are held."""
        # A signal handler inside a call of this keeper does not wait: the holder may be waiting for this very thread.
        alone = self._lock if self._lock._is_owned() else self._moving  # type: ignore[attr-defined]
        # Each thread lock stands in a `with` itself: Ctrl-C in a generator or an ExitStack leaves it held for ever.
        with alone, locks.HeldLocks(self._store.dir) as held:  # mutant: id-own-threads
            # mutant: id-retry-unlocked id-waited-for
            busy = self._take(held, lambda: locks.take_ids(held, free, 0))
            with self._lock:  # mutant: settle-lock-kept
                self._ingest()  # reads the moves and cancels that others wrote before these locks were taken
                # mutant: id-busy-ignored
                return self._write_locked([i for i in free if locks.bucket_of(i) not in busy], holders)

    def _take(self, held: locks.HeldLocks, take: Callable[[], frozenset[int]]) -> frozenset[int]:
        """Take locks; return the numbers of those that another process has.

        The first use of a lock makes its file, which on a full disk takes the room of the ballast.
        """
        busy: frozenset[int] = frozenset()

        def anew() -> None:
            nonlocal busy
            held.close()  # those of a try that found the disk full
            busy = take()

        self._reserve.spend(anew)
        return busy

    def _write_locked(self, ids: Sequence[bytes], holders: Mapping[str, bytes | None]) -> list[bytes]:
        """Write settlements whose locks are all held, in frames of bounded size."""
        cancelled = [id_ for id_ in ids if id_ in self._head.cancelled]
        made: list[tuple[Settlement, Records]] = []
        displaced: list[bytes] = []
        size = 0
        for n, id_ in enumerate(ids):
            settlement, new, _ = self.later[id_]
            records = self._records_of(settlement, new)
            displaced += self._contend(settlement, records, holders)
            made.append((settlement, records))
            size += sum(map(len, records.puts))
            if size > FRAME_BYTES or n == len(ids) - 1:
                self._write(made)
                for done, _ in made:
                    del self.later[done.id]
                for other in displaced:  # only now: until the frame is written, they are pending
                    self._head.cancel(other)  # mutant: displaced-fires
                made, displaced, size = [], [], 0
        return cancelled

    def _contend(self, settlement: Settlement, records: Records, holders: Mapping[str, bytes | None]) -> list[bytes]:
        """Leave out the puts whose key another message holds, or drop that one, as the settlement says.

        Returns the messages that are dropped.
        """
        taken: dict[str, bytes] = {}
        displaced: list[bytes] = []
        for key, id_ in records.enters:
            held = holders[key]
            # The message that is settled here releases its key in this frame.
            holder = taken.get(key) or (held if held != settlement.id else None)
            loser = holder if id_ in settlement.replaces else id_
            if holder is None or id_ not in records.asks:
                taken[key] = id_
            elif loser == id_ or key in taken:
                records.puts[:] = [p for p in records.puts if p[ID] != loser]
                taken[key] = id_ if loser != id_ else holder
            else:
                records.drops.append(pack_drop(holder, CANCELLED))
                displaced.append(holder)  # mutant: displaced-too-early
                taken[key] = id_
        return displaced

    def _ingest(self) -> None:
        try:
            self._store.ingest()
        except OSError as exc:
            raise disk_error(exc, self._store.dir.path) from exc

    def _records_of(self, settlement: Settlement, new: MessageId | None = None) -> Records:
        id_ = settlement.id
        # A2: cancelled while it ran. The drop is written already; nothing is put.
        cancelled = id_ in self._head.cancelled  # mutant: cancel-and-retry
        own = self._store.own
        new_id = own.new_id if new is None else lambda _: new
        return records_of(settlement, self._head.claims[id_], cancelled, self._clock.now_us(), new_id, KEY)

    def _write(self, made: Sequence[tuple[Settlement, Records]]) -> None:
        """Write settlements as one frame; nothing is forgotten if writing fails."""
        records = [drop for _, w in made for drop in w.drops]
        puts = [put for _, w in made for put in w.puts]
        try:
            if records or puts:
                self._reserve.write(records + puts, len(puts))  # mutant: two-frames-settled
            for (settlement, its), put in zip(made, self._head.release([s.id for s, _ in made]), strict=True):
                self.history.settled(settlement, put, its.moved_to)
            near = [p for p in puts if p[ID] < self._head.ready.frontier]
            if near:  # mutant: retry-unseen
                self._head.admit(near)
        except FilewheelError:  # nothing was written
            raise
        except BaseException:  # Ctrl-C behind the frame: the messages in it are not in the queue
            self._head.tear()
            raise
