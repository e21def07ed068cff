"""A queue whose items can be taken once they are due: java.util.concurrent.DelayQueue.

It is only the container; its callers' threads do the work. Of the threads that wait, one is the *leader*: it sleeps
until the head is due. The others, its *followers*, sleep until they are notified. So a new head wakes one thread, and a
head that becomes due wakes one. A leader that leaves wakes a follower, which becomes the leader.
Invariant: while an item and a waiting thread are there, a leader sleeps until the head is due at the latest, or a
thread is notified.
"""

from __future__ import annotations

import threading
from typing import Generic

from filewheel.checks import check_whole
from filewheel.env import SYSTEM_CLOCK, Clock, Condition
from filewheel.errors import BadArgument
from filewheel.timers.binary_heap import BinaryHeap
from filewheel.timers.entry import PENDING, Entry, Item
from filewheel.timers.scheme import check_time
from filewheel.timers.steady import Delay, OwnerProcess, Steady, delay_ns

BEFORE_ALL = -(1 << 63)
"""A time before every due: so the heap alone orders the items."""


class DelayQueue(Generic[Item]):
    """A queue of items with due times, for any number of threads. Unbounded; `put` never waits.

    put O(log n); take, poll O(log n); remove O(1) on average. Items leave in the order of due times, then of puts.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, name: str = "DelayQueue") -> None:
        """Make an empty queue; errors call it by this name."""
        self._steady = Steady(clock)
        self._owner = OwnerProcess(name)
        self._heap: BinaryHeap[Item] = BinaryHeap(now=BEFORE_ALL)
        self._lock = threading.RLock()  # reentrant: a destructor may close it in the middle of a call
        self._available = Condition(self._lock)
        self._leader: int | None = None
        self._is_closed = False
        self._is_ending = False
        self._steady.watch(self._clock_moved)

    def now_ns(self) -> int:
        """Return the time that a due is compared with: the steady clock in nanoseconds."""
        return self._steady.now_ns()

    def put(self, item: Item, delay: Delay = 0) -> Entry[Item]:
        """Add an item that is due after a delay; `remove` takes the returned entry.

        Raises BadArgument for a delay that is no finite number, or an item None; Closed.
        """
        return self.put_at(item, self.now_ns() + delay_ns("delay", delay))

    def put_at(self, item: Item, due_ns: int) -> Entry[Item]:
        """Add an item that is due at a time of `now_ns()`. Raises as `put`."""
        if item is None:
            raise BadArgument("an item is not None, which poll returns when there is none")
        check_time("due_ns", due_ns)
        with self._owner.one_call(self._lock):
            if self._is_closed or self._is_ending:
                raise self._owner.closed()
            entry = self._heap.start(due_ns, item)
            if self._heap.first() is entry:
                self._leader = None  # it sleeps too long for this head: the thread that wakes is the next leader
                self._available.notify()
        return entry

    def take(self) -> Item:
        """Remove the first item that is due, and return it; wait for it. Raises Closed."""
        found = self._take(None)
        assert found is not None
        return found

    def poll(self, timeout: Delay = 0) -> Item | None:
        """Remove the first item that is due, and return it; None if none was after this time.

        Raises BadArgument, Closed.
        """
        return self._take(self.now_ns() + delay_ns("timeout", timeout))

    def _take(self, until_ns: int | None) -> Item | None:
        me = threading.get_ident()
        with self._owner.one_call(self._lock):
            try:
                while True:
                    head = self._heap.first()
                    if self._is_closed or (self._is_ending and head is None):
                        raise self._owner.closed()
                    now_ns = self.now_ns()
                    if head is not None and head.due <= now_ns:
                        return self._heap.pop().item
                    if until_ns is not None and until_ns <= now_ns:
                        return None
                    if head is None or self._leader is not None:
                        self._available.wait(self._steady.wait_s(until_ns))
                        continue
                    self._leader = me
                    try:
                        wakes_ns = head.due if until_ns is None else min(head.due, until_ns)
                        self._available.wait(self._steady.wait_s(wakes_ns))
                    finally:
                        if self._leader == me:
                            self._leader = None
            finally:
                if self._leader is None and self._heap.first() is not None:
                    self._available.notify()  # the next leader
                elif self._is_ending and self._heap.first() is None:
                    self._available.notify_all()

    def peek(self) -> Item | None:
        """Return the first item, due or not, without removing it; None when there is none."""
        with self._owner.one_call(self._lock):
            head = self._heap.first()
            return None if head is None else head.item

    def next_due_ns(self) -> int | None:
        """Return the due time of the first item; None when there is none."""
        with self._owner.one_call(self._lock):
            head = self._heap.first()
            return None if head is None else head.due

    def drain_to(self, items: list[Item], most: int | None = None) -> int:
        """Move the items that are due to the end of a list, at most this many; return how many. Raises BadArgument."""
        most = None if most is None else check_whole("most", most, least=0)
        if not isinstance(items, list):
            raise BadArgument("drain_to appends to a list")
        count = 0
        with self._owner.one_call(self._lock):
            now_ns = self.now_ns()
            while (most is None or count < most) and (head := self._heap.first()) is not None and head.due <= now_ns:
                items.append(self._heap.pop().item)
                count += 1
        return count

    def remove(self, entry: Entry[Item]) -> bool:
        """Remove an item by its entry: True if it was in the queue. Raises BadArgument for another queue's entry."""
        with self._owner.one_call(self._lock):
            is_removed = self._heap.stop(entry)
            if self._is_ending and self._heap.first() is None:
                self._available.notify_all()
            return is_removed

    def entries(self) -> list[Entry[Item]]:
        """Return the entries of the items in the queue, due or not, in no order."""
        with self._owner.one_call(self._lock):
            return list(self._heap)

    def close(self) -> list[Item]:
        """End the queue: who waits, and every later call, gets Closed. Return the items that are left."""
        with self._owner.one_call(self._lock):
            self._is_closed = True
            self._available.notify_all()
            return [entry.item for entry in self._heap.clear()]

    def finish(self) -> None:
        """Take no further items; Closed is raised when the last one was taken.

        Safe in a destructor, also in one that interrupts a call of this queue, and after a fork.
        """
        if self._owner.is_here:
            self._is_ending = True
            # Not for ever: a destructor may run while its thread has the lock of another queue.
            if self._lock.acquire(timeout=1):
                try:
                    self._available.notify_all()
                finally:
                    self._lock.release()

    def check(self) -> None:
        """Raise Forked in a child of the process that made the queue."""
        self._owner.check()

    @property
    def is_ending(self) -> bool:
        """Whether the queue takes no further items."""
        return self._is_ending or self._is_closed

    def __enter__(self) -> DelayQueue[Item]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DelayQueue of {len(self)}>"

    def __len__(self) -> int:
        """Return how many items are in the queue, due or not."""
        return len(self._heap)

    def __contains__(self, entry: object) -> bool:
        """Return whether an entry is in the queue."""
        return isinstance(entry, Entry) and entry.scheme is self._heap and entry.state is PENDING

    def _clock_moved(self) -> None:
        with self._lock:
            self._available.notify_all()
