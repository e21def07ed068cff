"""A DelayQueue for the tasks of one event loop: the leader waits with a timer of the loop, its followers for it.

Invariant: while an item and a waiting task are there, one of them has a timer for the head, or was woken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Generic

from filewheel.checks import check_whole
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument, OtherLoop
from filewheel.timers.binary_heap import BinaryHeap
from filewheel.timers.delay_queue import BEFORE_ALL
from filewheel.timers.entry import Entry, Item
from filewheel.timers.steady import Delay, OwnerProcess, Steady, delay_ns


class AsyncDelayQueue(Generic[Item]):
    """A queue of items with due times, for the tasks of the event loop in which it was made. `put` never waits.

    Costs and order as of DelayQueue. A `take` that is cancelled takes nothing.
    """

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make an empty queue in the running loop. Raises RuntimeError when none runs."""
        self._loop = asyncio.get_running_loop()
        self._steady = Steady(clock)
        self._owner = OwnerProcess("AsyncDelayQueue")
        self._heap: BinaryHeap[Item] = BinaryHeap(now=BEFORE_ALL)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._leader: asyncio.Future[None] | None = None
        self._is_closed = False
        self._steady.watch(self._clock_moved)

    def now_ns(self) -> int:
        """Return the time that a due is compared with: the steady clock in nanoseconds."""
        return self._steady.now_ns()

    def put(self, item: Item, delay: Delay = 0) -> Entry[Item]:
        """Add an item that is due after a delay; `remove` takes the returned entry.

        Raises BadArgument for a delay that is no finite number, or an item None; Closed; OtherLoop.
        """
        if item is None:
            raise BadArgument("an item is not None, which poll returns when there is none")
        wait_ns = delay_ns("delay", delay)
        self._check()
        entry = self._heap.start(self.now_ns() + wait_ns, item)
        if self._heap.first() is entry:
            self._wake_one()
        return entry

    async def take(self) -> Item:
        """Remove the first item that is due, and return it; wait for it. Raises Closed, OtherLoop."""
        while True:
            self._check()
            head = self._heap.first()
            if head is not None and head.due <= self.now_ns():
                item = self._heap.pop().item
                if len(self._heap) and self._leader is None:
                    self._wake_one()
                return item
            await self._wait(head)

    async def poll(self, timeout: Delay = 0) -> Item | None:
        """Remove the first item that is due, and return it; None if none was after this time. Raises as `take`."""
        wait_ns = delay_ns("timeout", timeout)
        self._check()
        until_ns = self.now_ns() + wait_ns
        while True:
            head = self._heap.first()
            if head is not None and head.due <= self.now_ns():
                return await self.take()
            if until_ns <= self.now_ns():
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._steady.wait_s(until_ns)):
                    await self._wait(head)
            self._check()

    async def _wait(self, head: Entry[Item] | None) -> None:
        """Wait until this task is woken: as the leader, when the head is due at the latest."""
        woken = self._loop.create_future()
        timer: asyncio.TimerHandle | None = None
        self._waiting.append(woken)
        if head is not None and self._leader is None:
            self._leader = woken
            timer = self._loop.call_later(self._steady.wait_s(head.due), _set, woken)
        try:
            await woken
        except asyncio.CancelledError:
            if woken.done() and not woken.cancelled():
                self._wake_one()  # it was this task's turn: another one takes it
            raise
        finally:
            self._waiting.remove(woken)
            if timer is not None:
                timer.cancel()
            if self._leader is woken:
                self._leader = None
                if woken.cancelled() and len(self._heap):
                    self._wake_one()

    def _wake_one(self) -> None:
        """Wake the leader, or the task that waits longest: it looks at the head again."""
        for woken in self._waiting if self._leader is None else [self._leader, *self._waiting]:
            if not woken.done():
                woken.set_result(None)
                return

    def peek(self) -> Item | None:
        """Return the first item, due or not, without removing it; None when there is none."""
        head = self._heap.first()
        return None if head is None else head.item

    def drain_to(self, items: list[Item], most: int | None = None) -> int:
        """Move the items that are due to the end of a list, at most this many; return how many. Raises BadArgument."""
        most = None if most is None else check_whole("most", most, least=0)
        if not isinstance(items, list):
            raise BadArgument("drain_to appends to a list")
        self._check()
        count, now_ns = 0, self.now_ns()
        while (most is None or count < most) and (head := self._heap.first()) is not None and head.due <= now_ns:
            items.append(self._heap.pop().item)
            count += 1
        return count

    def remove(self, entry: Entry[Item]) -> bool:
        """Remove an item by its entry: True if it was in the queue. Raises BadArgument for another queue's entry."""
        return self._heap.stop(entry)

    def close(self) -> list[Item]:
        """End the queue: who waits, and every later call, gets Closed. Return the items that are left."""
        self._is_closed = True
        for woken in self._waiting:
            _set(woken)
        return [entry.item for entry in self._heap.clear()]

    def __enter__(self) -> AsyncDelayQueue[Item]:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<AsyncDelayQueue of {len(self)}>"

    def __len__(self) -> int:
        """Return how many items are in the queue, due or not."""
        return len(self._heap)

    def _check(self) -> None:
        self._owner.check()
        if self._is_closed:
            raise self._owner.closed()
        if asyncio.get_running_loop() is not self._loop:
            raise OtherLoop("this queue belongs to the event loop in which it was made", hint="make one in each loop")

    def _clock_moved(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake_one)


def _set(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
