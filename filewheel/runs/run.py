"""The values of a run: where a message is worked on, that it is claimed or runs now, and how it ended.

Invariant: all of them are observations. No value here decides what fires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, get_args

from filewheel.message import US_PER_S, MessageId, schedule_of_key, to_datetime

Kind = Literal["thread", "loop", "process", "command", "program"]
State = Literal["waiting", "claimed", "running"]
Seen = Literal["waiting", "claimed", "running", "gone"]
KINDS: tuple[str, ...] = get_args(Kind)
STALE_US = 15 * US_PER_S
"""A keeper that has claimed messages and has not published for longer is stuck, or stopped."""


def count_of(value: Any) -> int:
    """Return a number of a file that other processes read. Raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no count")
    return value


def text_of(value: Any) -> str:
    """Return a text of such a file. Raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("no text")
    return value


@dataclass(frozen=True, slots=True)
class Place:
    """Where a begun message is worked on."""

    kind: Kind = "program"
    """"thread", "loop" (an event loop), "process" (of the pool), "command" (of `filewheel run`); "program": in the
    program that claimed it, which alone knows more."""
    name: str = ""
    """The name of the thread."""
    pid: int | None = None
    """The process, as the keeper's process numbers it."""

    def __str__(self) -> str:
        if self.kind in ("process", "command"):
            return f"{self.kind} {self.pid}"
        return f"{self.kind} {self.name}".rstrip()


PROGRAM = Place()


@dataclass(frozen=True, slots=True)
class Run:
    """A message that a keeper has claimed: its work runs, or waits to begin."""

    id: MessageId
    first_id: MessageId
    """The id that all attempts share: the first one."""
    topic: str
    key: str | None
    due_us: int
    attempt: int
    """The number of earlier attempts."""
    begun_us: int | None
    """When the work began, by the wall clock; None while it waits to begin."""
    place: Place | None
    """Where it runs; None while it waits to begin."""

    @property
    def state(self) -> State:
        """Return "running", or "claimed" while it waits to begin."""
        return "claimed" if self.begun_us is None else "running"

    @property
    def schedule(self) -> str | None:
        """The name of the schedule that it is an occurrence of; None of other messages."""
        return schedule_of_key(self.key)

    @property
    def due(self) -> datetime:
        """When it was due."""
        return to_datetime(self.due_us)

    @property
    def begun(self) -> datetime | None:
        """When the work began; None while it waits to begin."""
        return None if self.begun_us is None else to_datetime(self.begun_us)


class Running(list[Run]):
    """The claimed messages of a wheel's keeper, as it last published them: those that run first, the oldest first."""

    keeper_pid: int | None = None
    """The keeper's process; None without a keeper, or when its number is not known."""
    keeper_namespace = ""
    """The pid namespace of that process; nothing when it is that of this one."""
    has_keeper = False
    """Whether a process is the keeper now. Without one nothing runs."""
    at_us: int | None = None
    """When the keeper published this; None when it has published nothing."""
    claimed = 0
    """How many messages are claimed in all; the list has the first thousand."""
    begun = 0
    """How many of these run."""
    _table: frozenset[bytes] | None = None
    """The ids that have begun by the file `begun`, which is never late; None when it cannot be read."""

    _is_pending: Callable[[bytes], bool] | None = None

    def state_of(self, id_: bytes) -> Seen:
        """Return the state of a message by its id; "gone" if it has ended, was cancelled, or goes on under another id.

        "running" is exact of a pending message; "claimed", and "gone" after "running", may be a second late. Cost: a
        look-up of the message, unless the list has it.
        """
        state = self.pending_state(id_)
        # A slot of the table is kept for a while after the end.
        if self.find(id_) is None and self._is_pending is not None and not self._is_pending(id_):
            return "gone"
        return state

    def pending_state(self, id_: bytes) -> State:
        """Return the state of a message that is known to be pending. Cost: reads nothing."""
        run = self.find(id_)
        if self._table is not None:
            if id_ in self._table:
                return "running"
            return "claimed" if run is not None and run.begun_us is None else "waiting"
        return "waiting" if run is None else run.state

    def find(self, id_: bytes) -> Run | None:
        """Return the entry of a message by its id; None when the list has none."""
        return next((run for run in self if run.id == id_), None) if len(self) < _FEW else self._by_id().get(id_)

    def _by_id(self) -> Mapping[bytes, Run]:
        known: dict[bytes, Run] | None = self.__dict__.get("_index")
        if known is None or len(known) != len(self):
            known = self.__dict__["_index"] = {run.id: run for run in self}
        return known

    def age_us(self, now_us: int) -> int:
        """Return how old the list is; 0 when its time is in the future, or unknown."""
        return 0 if self.at_us is None else max(0, now_us - self.at_us)

    def is_stale(self, now_us: int) -> bool:
        """Return whether the keeper has claimed messages and does not publish: it is stuck, or stopped."""
        return self.claimed > 0 and self.age_us(now_us) > STALE_US


_FEW = 8

ACKED, RETRIED, DEAD, KILLED, CANCELLED = "acked", "retried", "dead", "killed", "cancelled"
EXPIRED = "expired"
"""The end of a result that was kept for a time; the history has none of them."""
FAILED = frozenset({RETRIED, DEAD, KILLED, "skipped", "missed", "unknown"})
"""The outcomes of `Wheel.history(failed=True)`: the work did not succeed, or was not done."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of one attempt of a message."""

    id: MessageId
    first_id: MessageId
    """The id that all attempts share: the first one."""
    topic: str
    key: str | None
    due_us: int
    attempt: int
    """The number of earlier attempts."""
    begun_us: int | None
    """When the work began, by the wall clock; None when it did not begin."""
    ended_us: int
    """When the end was written."""
    took_us: int | None
    """How long the work took, by a clock that does not step; None when it did not begin."""
    outcome: str
    """"acked", "retried", "dead", "killed", "cancelled" (while it ran), "skipped" (too late), "missed", "coalesced",
    "unknown" (no handler, or its schedule is not declared or cannot be read)."""
    error: str
    """Why it failed, or was not done."""
    place: str
    """Where it ran: "thread", "loop", "process", "command" or "program"."""
    moved_to: MessageId | None
    """The id of the next attempt, or of the dead letter."""
    schedule: str | None = None
    """The name of the schedule that it was an occurrence of; also of one that died and was revived."""

    @property
    def failed(self) -> bool:
        """Whether the work did not succeed, or was not done."""
        return self.outcome in FAILED

    @property
    def due(self) -> datetime:
        """When it was due."""
        return to_datetime(self.due_us)

    @property
    def begun(self) -> datetime | None:
        """When the work began; None when it did not begin."""
        return None if self.begun_us is None else to_datetime(self.begun_us)

    @property
    def ended(self) -> datetime:
        """When the end was written."""
        return to_datetime(self.ended_us)


class Work(NamedTuple):
    """When, how long and where a handler worked on a message: only the consumer knows it."""

    begun_us: int | None = None
    took_us: int | None = None
    place: str = ""


Then = Literal["cancel", "retry", "bury"]
THEN: tuple[str, ...] = get_args(Then)
KILLED_TEXT = "killed: `filewheel kill` ended it"


class Kill:
    """A request to end one attempt, in the process that runs it."""

    __slots__ = ("id", "then", "worked")

    text = KILLED_TEXT
    """The error of an attempt that was killed."""

    def __init__(self, id_: bytes, then: Then) -> None:
        self.id = id_
        self.then = then
        """The message's outcome: "cancel" drops it, "retry" is a failure for its retry policy, "bury" a dead letter."""
        self.worked = False
        """Whether it ended the attempt. Set before the message is settled."""


class Worker(Protocol):
    """A consumer that works on claimed messages elsewhere: in threads, processes, commands."""

    @property
    def kind(self) -> Kind:
        """Return where it works, if that is one kind of place; else "program"."""

    def places(self) -> Iterable[tuple[bytes, Place]]:
        """Return where each begun message is worked on. Called in the housekeeper's thread."""

    def kill(self, kill: Kill) -> str:
        """Begin to end an attempt that has begun; return "" , or why not: "ended", "thread", "program", "waiting".

        Must not wait. The message is settled as usual, with the outcome that the kill asks for if it worked. Called in
        the housekeeper's thread.
        """
