"""A timer scheme: where a started timer waits, and which timers have expired at a time.

The interface has the operations of Varghese and Lauck (1987), "Hashed and Hierarchical Timing Wheels":

    START_TIMER                 `start(due, item)`
    STOP_TIMER                  `stop(entry)`
    PER_TICK_BOOKKEEPING        `advance(now, expire)`, for any number of ticks
    EXPIRY_PROCESSING           `expire(entry)`, a function that `advance` calls for each expired timer

A scheme is policy only: it reads no clock, starts no thread and takes no lock. Its driver, be it a thread, an event
loop or a test, calls `advance`, at the latest at `next_advance()`. Times are integers of one unit; a `due` is absolute.
Invariants: no timer expires before its due, or twice; a timer that was stopped does not expire; one that is due is
expired by the next `advance` to its due's tick, whatever that finds or an `expire` raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic

from filewheel.checks import check_whole, shown
from filewheel.errors import BadArgument, TooLarge
from filewheel.timers.entry import EXPIRED, PENDING, STOPPED, Entry, Item, Slot

SLOTS_MAX = 1 << 24

Expire = Callable[[Entry[Item]], object]
"""Called for each timer that expired; its state is EXPIRED already."""


class Scheme(ABC, Generic[Item]):
    """The base of the schemes. A subclass decides where a timer waits."""

    def __init__(self, *, now: int = 0) -> None:
        """Start at a time. Raises BadArgument unless it is an integer."""
        self.now = check_time("now", now)
        """The latest time that `advance` was called with."""
        self._numbers = 0
        self._pending = 0
        # What is due and not yet expired: emptied by the next advance, also one by 0.
        self._overdue: Slot[Item] = Slot(level=-1)

    def start(self, due: int, item: Item) -> Entry[Item]:
        """Start a timer, and return its entry. One that is due already expires in the next `advance`, even by 0.

        Raises BadArgument unless `due` is an integer.
        """
        if type(due) is not int:
            check_time("due", due)
        entry = Entry(due, item, self._numbers, self)
        self._numbers += 1
        self._pending += 1  # first, and a stop takes it back last: after Ctrl-C it is never too low
        if due <= self.now:
            self._overdue.append(entry)
            return entry
        try:
            self._place(entry)
        except TooLarge:
            self._pending -= 1
            raise
        return entry

    def stop(self, entry: Entry[Item]) -> bool:
        """Stop a timer: True if it was pending, False if it has expired or was stopped before.

        Raises BadArgument for an entry of another scheme.
        """
        if not isinstance(entry, Entry):
            raise BadArgument(f"entry is what a start returned, not {shown(entry)}")
        if entry.scheme is not self:
            raise BadArgument(f"{shown(entry)} was started by another scheme", hint="stop it there")
        if entry.state is not PENDING:
            return False
        entry.state = STOPPED
        if entry.slot is None:
            self._forget(entry)
        else:
            entry.slot.remove(entry)
        self._pending -= 1
        return True

    def advance(self, now: int, expire: Expire[Item]) -> int:
        """Let time pass up to `now`, call `expire` for each timer that is due, and return how many were.

        A time before `.now` counts as `.now`: a clock that stands still or runs back expires nothing early. `expire`
        may start and stop timers, and advance. What it starts expires in a later call, even if it is due at once. If
        it raises, so does this; the other timers that are due stay pending until the next call.
        Raises BadArgument unless `now` is an integer.
        """
        if type(now) is not int:
            check_time("now", now)
        if now > self.now:
            self._collect(now)
            self.now = now
        return self._expire(expire)

    def _expire(self, expire: Expire[Item]) -> int:
        end = self._numbers  # what an `expire` starts waits for the next call: it may start itself again without end
        count = 0
        while (entry := self._overdue.first) is not None and entry.number < end:
            self._overdue.remove(entry)
            entry.state = EXPIRED
            self._pending -= 1
            count += 1
            expire(entry)
        return count

    def check_delay(self, delay: int) -> None:
        """Raise TooLarge for a delay from now that this scheme does not take."""

    def next_advance(self) -> int | None:
        """Return the earliest time at which `advance` has work, to expire a timer or empty a slot; None for never."""
        if self._overdue.first is not None:
            return self.now
        return self._next() if self._pending else None

    def clear(self) -> list[Entry[Item]]:
        """Stop every pending timer, and return them."""
        stopped = [*self._overdue, *self._waiting()]
        return [entry for entry in stopped if self.stop(entry)]

    def __len__(self) -> int:
        """Return how many timers are pending."""
        return self._pending

    def __iter__(self) -> Iterator[Entry[Item]]:
        """Yield the pending timers, in no order."""
        return iter([*self._overdue, *self._waiting()])

    @abstractmethod
    def _place(self, entry: Entry[Item]) -> None:
        """Let an entry wait that is due after `now`."""

    @abstractmethod
    def _collect(self, now: int) -> None:
        """Move the entries that are due at `now`, which is after `self.now`, to the overdue ones."""

    @abstractmethod
    def _next(self) -> int:
        """Return the next time with work. There is a waiting entry."""

    @abstractmethod
    def _waiting(self) -> Iterable[Entry[Item]]:
        """Return the pending entries that are not overdue."""

    def _forget(self, entry: Entry[Item]) -> None:
        """Forget a stopped entry that is in no slot."""
        raise AssertionError(f"{entry!r} is in no slot")


class TickWheel(Scheme[Item]):
    """The base of the wheels: time goes in ticks, and a timer expires at the first tick that is not before its due.

    So none is early, and each is late by less than a tick.
    """

    def __init__(self, *, tick: int = 1, now: int = 0) -> None:
        """Start at a time, with this many units in a tick. Raises BadArgument for other numbers."""
        super().__init__(now=now)
        self.tick = check_whole("tick", tick)
        self.hand = self.now // self.tick
        """The tick of `now`: every slot up to this one is empty."""

    def _tick_of(self, due: int) -> int:
        """Return the tick at which a timer expires: its due, rounded up."""
        return -(-due // self.tick)

    def _next(self) -> int:
        return (self.hand + 1) * self.tick


def check_time(name: str, value: int) -> int:
    """Return an integer. Raises BadArgument for anything else: a float would lose nanoseconds."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadArgument(f"{name} is an integer, not {shown(value)}", hint="round(seconds * 1_000_000_000)")
    return value


def check_slots(slots: int, *, least: int = 1) -> int:
    """Return a number of slots. Raises BadArgument, and TooLarge for more than memory is for."""
    if check_whole("slots", slots, least=least) > SLOTS_MAX:
        raise TooLarge(f"{shown(slots)} slots are over the limit of {SLOTS_MAX}", hint="a longer tick, or more levels")
    return slots


def slots_of(count: int, level: int = 0) -> list[Slot[Item]]:
    """Return the empty slots of a wheel, or of one of its levels."""
    return [Slot(level, index) for index in range(count)]
