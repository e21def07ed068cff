"""The oracle: what callers were told, and what a wheel must therefore hold.

It knows only what was attempted and what returned (this enqueue, this cancel, this acknowledgement and its flush). It
never looks at the library's state, so it cannot share its mistakes. Messages are told apart by their payload, which is
unique for each enqueue; an id is where one is at present.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from filewheel.message import Message, MessageId
from tests.model.process import ProcessDisk


@dataclass
class Told:
    """What is known from outside about one message."""

    payload: bytes
    dues: set[int]
    """Every due it was ever asked to have."""
    enqueued: bool = False
    """An enqueue returned with sync="always", or was flushed later."""
    may_be_gone: bool = False
    """An acknowledgement or a cancel of it was at least attempted."""
    finished: set[bytes] = field(default_factory=set)
    """Ids whose drop is durable: never pending again."""
    acked: set[bytes] = field(default_factory=set)
    """Ids that were acknowledged to a keeper, durable or not."""
    fired: int = 0


class Oracle:
    """What callers were told, and what was found to contradict it."""

    def __init__(self) -> None:
        self.messages: dict[bytes, Told] = {}
        self.of_id: dict[bytes, bytes] = {}
        self.cancelled: set[bytes] = set()
        """Ids that a call which has returned cancelled, moved or replaced."""
        self.stopped: set[bytes] = set()
        """Ids that a cancel said it had stopped in time."""
        self.was_paused = False
        self.may_be_paused = {False}
        """What a recovered wheel may say."""
        self.holds = False
        self.resumes = 0
        self.begins: dict[bytes, ProcessDisk] = {}
        """Ids that began, and in which process, until its keeper closes."""
        self.ending: set[bytes] = set()
        """Ids that one was tried on that would."""
        self.unflushed: list[bytes] = []
        """Ids whose drop was written and is not flushed yet."""
        self.violations: list[str] = []
        self.is_lossy = False
        """Bits flipped on their way from the disk: frames may be lost, and drops with them, but nothing is invented."""
        self.won: dict[bytes, str] = {}
        """Ids that a call said it had moved or cancelled, and which."""
        self.keys: set[str] = set()
        """Every unique key that was ever asked for."""
        self.serial = 0
        self.told = 0
        """How often anyone was told anything: two moments with the same count know the same."""

    # -- what is attempted and what returns ------------------------------------------------------------------

    def new(self, due_us: int) -> Told:
        """Know of a message that somebody is about to enqueue."""
        self.serial += 1
        told = Told(b"m%d" % self.serial, {due_us})
        self.messages[told.payload] = told
        return told

    def enqueued(self, told: Told, id_: MessageId, *, durable: bool = True) -> None:
        """Know that an enqueue returned."""
        self.told += 1
        self.of_id[id_] = told.payload
        told.enqueued = told.enqueued or durable

    def of(self, id_: bytes) -> Told:
        """Return what is known about the message with this id."""
        return self.messages[self.of_id[id_]]

    def cancelling(self, id_: bytes) -> None:
        """Know that a cancel is about to be tried."""
        self.told += 1
        self.ending.add(id_)
        self.of(id_).may_be_gone = True

    def is_cancelled(self, id_: bytes, *, durable: bool = True, found: bool = False) -> None:
        """Know that a cancel returned; `found` is whether it said that the message was pending."""
        if found:
            self.wins(id_, "cancel")
        self.cancelled.add(id_)
        if durable:
            self.finish(id_)

    def moving(self, id_: bytes, due_us: int) -> None:
        """Know that a reschedule or a retry is about to be tried."""
        self.told += 1
        self.ending.add(id_)
        self.of(id_).dues.add(due_us)

    def is_moved(self, id_: bytes, new: bytes, *, durable: bool = True) -> None:
        """Know that a reschedule returned a new id."""
        self.wins(id_, "reschedule")
        self.of_id[new] = self.of_id[id_]
        self.cancelled.add(id_)
        if durable:
            self.finish(id_)

    def wins(self, id_: bytes, how: str) -> None:
        """Know that a call says it was the one that moved or cancelled what waited: a second one is void (V1)."""
        if id_ in self.won:
            self.violations.append(f"{self.of_id[id_]!r}: a {how} succeeded, and a {self.won[id_]} had")
        self.won[id_] = how

    def finish(self, id_: bytes) -> None:
        """Know that the drop of an id is durable."""
        self.told += 1
        payload = self.of_id.get(id_)
        if payload is not None:
            self.messages[payload].finished.add(id_)

    def flushed(self) -> None:
        """Know that the keeper's journal was flushed."""
        for id_ in self.unflushed:
            self.finish(id_)
        self.unflushed.clear()

    def power_cut(self) -> None:
        """Know that what was acknowledged and not flushed may be offered again."""
        self.told += 1
        for told in self.messages.values():
            told.acked &= told.finished
        # What was not flushed may be pending again, and may be moved again.
        self.won = {i: how for i, how in self.won.items() if i in self.of(i).finished}
        self.cancelled = {i for i in self.cancelled if i not in self.of_id or i in self.of(i).finished}
        self.unflushed.clear()

    def fired(self, message: Message, now_us: int, cancelled: set[bytes]) -> bool:
        """Judge a message that was handed out; `cancelled` had returned before the claim began."""
        told = self.messages.get(message.payload)
        if told is None:
            self.violations.append(f"fired {message.payload!r}, which nobody enqueued")
            return False
        told.fired += 1
        if message.due_us > now_us:
            self.violations.append(f"{message.payload!r} fired {message.due_us - now_us} µs early")
        if message.id in cancelled and not self.is_lossy:
            self.violations.append(f"{message.payload!r} started after its cancel had returned")
        if message.id in told.acked and not self.is_lossy:
            self.violations.append(f"{message.payload!r} fired again after it was acknowledged")
        self.of_id[message.id] = message.payload
        return True

    def closes(self, disk: ProcessDisk) -> None:
        """Know that a keeper is about to close: what it had begun is offered again."""
        self.begins = {id_: where for id_, where in self.begins.items() if where is not disk}

    def said_stopped(self, id_: bytes) -> None:
        """Know that a cancel said it was in time: nothing of it has begun in a process that lives."""
        self.stopped.add(id_)
        if id_ in self.begins and self.begins[id_].alive:
            self.violations.append(f"{self.of_id[id_]!r} was said to be stopped in time, and had begun")

    # -- pauses ----------------------------------------------------------------------------------------------

    def pausing(self) -> None:
        """Know that somebody is about to pause the wheel."""
        self.was_paused = True
        self.may_be_paused = {True, *self.may_be_paused}

    def is_paused(self) -> None:
        """Know that the wheel is paused: the call has returned."""
        self.holds = True
        self.may_be_paused = {True}

    def resuming(self) -> None:
        """Know that somebody is about to resume the wheel."""
        self.holds = False
        self.resumes += 1
        self.may_be_paused = {False, *self.may_be_paused}

    def is_resumed(self) -> None:
        """Know that the wheel is resumed."""
        self.may_be_paused = {False}

    def held_since(self) -> int | None:
        """Return what `handed_out` is given, before a keeper is asked; None if no pause is in force for certain."""
        return self.resumes if self.holds else None

    def handed_out(self, count: int, held_since: int | None) -> None:
        """Judge how many messages a keeper claimed or began while the wheel was paused from before to after."""
        if count and held_since is not None and held_since == self.resumes:
            self.violations.append(f"{count} messages were claimed or begun after a pause had returned")

    def begun(self, disk: ProcessDisk, ids: list[MessageId], stopped: set[bytes], cancelled: set[bytes]) -> None:
        """Judge what a keeper said may begin; `cancelled` had returned before it was asked."""
        self.told += 1
        for id_ in ids:
            if id_ not in stopped:
                self.begins[id_] = disk
                if id_ in self.stopped:
                    self.violations.append(f"{self.of_id[id_]!r} began, and was said to be stopped in time")
        for id_ in ids:
            if id_ not in stopped and id_ in cancelled and not self.is_lossy:
                self.violations.append(f"{self.of_id[id_]!r} began after its cancel had returned")
            if id_ in stopped and id_ not in self.ending and not self.of(id_).may_be_gone and not self.was_paused:
                self.violations.append(f"{self.of_id[id_]!r} may not begin, and nobody ended it")

    # -- what a recovered wheel holds ------------------------------------------------------------------------

    def check_pending(self, pending: dict[bytes, tuple[bytes, int]], context: str) -> None:
        """Compare what a recovered wheel holds (id → payload, due) with what was promised."""
        present: dict[bytes, list[bytes]] = {}
        for id_, (payload, due_us) in pending.items():
            told = self.messages.get(payload)
            if told is None or (due_us not in told.dues and not MessageId(id_).is_dead):
                self.violations.append(f"invented {payload!r} due {due_us}: {context}")
                continue
            present.setdefault(payload, []).append(id_)
            if id_ in told.finished and not self.is_lossy:
                self.violations.append(f"{payload!r} is back after its drop was durable: {context}")
        for payload, told in self.messages.items() if not self.is_lossy else ():
            if told.enqueued and not told.may_be_gone and payload not in present:
                self.violations.append(f"{payload!r} is lost: {context}")
