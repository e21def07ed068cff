"""The ends of runs since the last look of the housekeeper, in memory: the last ones, as many as the history keeps.

On the firing path a whole batch is one entry, with the puts as they were claimed. They are unpacked in the
housekeeper's thread, and only those that are kept.
Invariant: the memory is bounded by the number of ends that are kept, whatever is fired in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from filewheel.env import Clock
from filewheel.errors import Damaged
from filewheel.format.record import unpack_put
from filewheel.journal.settlement import Settlement
from filewheel.message import DEAD_US, Message, MessageId
from filewheel.native.compiled import ids_of, plain_messages, size_of
from filewheel.runs.history import end_of, start_of
from filewheel.runs.run import ACKED, CANCELLED, DEAD, EXPIRED, KILLED, RETRIED, Detail, Kind
from filewheel.runs.times import Began, BeginTimes

_PUT_BYTES = 400
"""Larger messages, on the average of a batch, are kept without their payload."""
_PLAIN_END = DEAD_US << 6
_ANY = (1 << 63) - 1
_NONE = Detail()
_OUTCOMES = {"retried": RETRIED, "buried": DEAD}


@dataclass(frozen=True, slots=True)
class _Some:
    """Messages whose end was written together."""

    puts: list[bytes] | None
    messages: list[Message] | None
    """In place of the puts, without payloads."""
    at: Began
    details: Mapping[bytes, Detail]
    place: Kind
    outcome: str = ACKED
    error: str = ""
    moved_to: MessageId | None = None

    def __len__(self) -> int:
        return len(self.puts if self.puts is not None else self.messages or ())


class Ends:
    """The ends of one keeper. The store's lock guards all but `take` and `report`."""

    def __init__(self, most: int, clock: Clock) -> None:
        """Keep the last `most`; with 0, none."""
        self.most = most
        self._clock = clock
        self._some: deque[_Some] = deque()
        self._count = 0
        self._details: dict[bytes, Detail] = {}
        self.place: Kind = "program"
        """Where the consumer works, unless it reports another place."""
        self.watched: dict[bytes, bool] = {}
        """Messages that a kill ends, and whether they were dropped because they had been cancelled."""
        self._mutex = threading.Lock()

    def __bool__(self) -> bool:
        return self._count > 0

    def report(self, id_: bytes, detail: Detail) -> None:
        """Note what the consumer knows of an end, before it settles the message. Thread-safe."""
        if self.most:
            self._details[id_] = detail

    def acked(self, puts: list[bytes]) -> None:
        """Note messages whose acknowledgement is written. Cost: about 20 ns a message."""
        if self.most:
            self._note(puts, ACKED)

    def settled(self, settlement: Settlement, put: bytes, moved_to: MessageId | None) -> None:
        """Note a message whose settlement is written, unless it is only deferred."""
        if settlement.id in self.watched and settlement.what in _OUTCOMES:
            self.watched[settlement.id] = moved_to is None
        if not self.most:
            return
        if settlement.what == "deferred" or settlement.outcome == EXPIRED:
            self._details.pop(settlement.id, None)
            return
        outcome = _OUTCOMES.get(settlement.what, ACKED)
        if settlement.what == "killed":
            outcome = KILLED
        elif moved_to is None and outcome != ACKED:
            outcome = CANCELLED
        self._note([put], settlement.outcome or outcome, settlement.failed or settlement.reason, moved_to)

    def forget(self, id_: bytes) -> None:
        """Forget what was reported of a message that is not settled after all. Thread-safe."""
        self._details.pop(id_, None)

    def _note(self, puts: list[bytes], outcome: str, error: str = "", moved_to: MessageId | None = None) -> None:
        details = {}
        if self._details:
            for id_ in ids_of(puts):
                if (detail := self._details.pop(id_, None)) is not None:
                    details[id_] = detail
        kept: list[bytes] | None = puts[-self.most :] if len(puts) > self.most else puts
        assert kept is not None
        messages = None
        if size_of(kept, _ANY) > _PUT_BYTES * len(kept):
            messages, kept = [_without_payload(m) for m in _messages(kept)], None
        at = self._clock.now_us(), self._clock.steady_us()
        some = _Some(kept, messages, at, details, self.place, outcome, error, moved_to)
        with self._mutex:
            self._some.append(some)
            self._count += len(some)
            while self._count - len(self._some[0]) >= self.most:
                self._count -= len(self._some.popleft())

    def take(self, times: BeginTimes) -> list[str]:
        """Return the ends since the last call as lines of the history, in order. In the housekeeper's thread."""
        with self._mutex:
            some, self._some, self._count = self._some, deque(), 0
        made = [(one, list(_messages(one.puts)) if one.puts is not None else one.messages or []) for one in some]
        unknown = [m.id for one, messages in made for m in messages if one.details.get(m.id, _NONE).begun_us is None]
        began = times.find(unknown) if unknown else {}
        quoted: dict[str, str] = {}
        lines: list[str] = []
        for one, messages in made:
            lines += _lines(one, messages, began, quoted)
        return lines[-self.most :] if self.most else []


def _lines(
    some: _Some, messages: Sequence[Message], began: Mapping[bytes, Began], quoted: dict[str, str]
) -> Iterator[str]:
    ends: dict[Began | None, str] = {}
    for message in messages:
        detail, at = some.details.get(message.id), began.get(message.id)
        if detail is not None:
            yield start_of(message, quoted) + end_of(_merged(some, detail, at), some.at[0], some.moved_to)
            continue
        end = ends.get(at)
        if end is None:  # most messages of a batch began together
            begun_us, took_us = (None, None) if at is None else (at[0], max(0, some.at[1] - at[1]))
            seen = Detail(some.outcome, some.error, begun_us, took_us, some.place if at is not None else "")
            end = ends[at] = end_of(seen, some.at[0], some.moved_to)
        yield start_of(message, quoted) + end


def _merged(some: _Some, detail: Detail, at: Began | None) -> Detail:
    """Return what the consumer knows, and the settlement. A message that was cancelled is not retried or dead."""
    if at is not None and detail.begun_us is None:
        detail = detail._replace(begun_us=at[0], took_us=max(0, some.at[1] - at[1]))
    outcome = some.outcome if some.outcome == CANCELLED else detail.outcome or some.outcome
    return detail._replace(outcome=outcome, error=detail.error or some.error)


def _messages(puts: Sequence[bytes]) -> Iterator[Message]:
    """Unpack puts; one that is not a message is left out: it was set aside when it was handed out."""
    plain, _ = plain_messages(list(puts), 0, len(puts), _PLAIN_END)
    for put, message in zip(puts, plain, strict=True):
        if message is not None:
            yield message
            continue
        try:
            yield unpack_put(put)
        except Damaged:
            continue


def _without_payload(message: Message) -> Message:
    return Message(message.id, b"", message.topic, message.headers, message.attempt, message.enqueued_us, message.root)
