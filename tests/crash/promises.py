"""What a caller was told, read from what it said, and whether a wheel keeps to it.

It knows only the marks of an actor (actor.py): what was asked, what returned, what raised. It runs in another process
than the library that it judges. Messages are told apart by their payload, which is unique; an id is where one is.
Invariant: it never looks at the library's state, so it cannot share its mistakes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from filewheel import MessageId

Fact = dict[str, Any]
NOTHING = "nothing of this call was written"


@dataclass
class Told:
    """What is known from outside about one message."""

    dues: set[int]
    """Every due that it was ever asked to have."""
    level: str = ""
    """How firmly it was promised: "", "written", "durable"."""
    refused: bool = False
    """The call said that it enqueued nothing."""
    may_be_gone: bool = False
    """An acknowledgement or a cancel of it was at least attempted."""
    may_be_dead: bool = False
    finished: dict[bytes, str] = field(default_factory=dict)
    """Ids whose drop was promised, and how firmly."""


def text_of(payload: bytes) -> str:
    """Return the text that a payload is known by; of a packed call too."""
    return payload.decode(errors="backslashreplace")


class Promises:
    """What the marks of one or more processes, one after the other, promise."""

    def __init__(self) -> None:
        self.messages: dict[str, Told] = {}
        self.of_id: dict[bytes, str] = {}
        self.wrong: list[str] = []
        """What the marks alone show to be broken."""
        self.ended = False
        self.created = False
        self._unflushed: list[tuple[str, bytes | None]] = []

    def read(self, marks: Iterable[Fact], *, once: bool = True) -> None:
        """Take in what a process said; `once`: the disk failed one call only."""
        for mark in marks:
            if mark["phase"] == "bare":
                self.wrong.append(f"{mark['op']} raised what is not of the error tree:\n{mark['trace']}")
            elif mark["phase"] == "stuck":
                if once:
                    self.wrong.append(f"{mark['op']} does not work again after one error")
            elif mark["phase"] == "raised":
                self._raised(mark)
            else:
                handler = getattr(self, f"_{mark['op']}_{mark['phase']}", None)
                if handler is not None:
                    handler(mark)

    def _raised(self, mark: Fact) -> None:
        if mark["op"].startswith("unknown "):
            self.wrong.append(f"{mark['op']}: {mark['error']} though nothing failed: {mark['says']}")
        if mark["op"] == "enqueue" and NOTHING in mark["says"]:
            for payload in mark["payloads"]:
                self.messages[payload].refused = True

    # -- one for each kind of mark ------------------------------------------------------------------------------

    def _create_end(self, mark: Fact) -> None:
        self.created = True

    def _enqueue_begin(self, mark: Fact) -> None:
        for payload, due in zip(mark["payloads"], mark["dues"], strict=True):
            self.messages.setdefault(payload, Told(set())).dues.add(due)

    def _enqueue_end(self, mark: Fact) -> None:
        for payload, id_ in zip(mark["payloads"], mark["ids"], strict=True):
            self.of_id[bytes.fromhex(id_)] = payload
            self.messages[payload].refused = False  # an import says the same payloads again
            self.messages[payload].level = "durable" if mark["sync"] == "always" else "written"
            if mark["sync"] != "always":
                self._unflushed.append((payload, None))

    def _told(self, id_: str) -> Told:
        return self.messages[self.of_id[bytes.fromhex(id_)]]

    def _cancel_begin(self, mark: Fact) -> None:
        for id_ in mark["ids"]:
            self._told(id_).may_be_gone = True

    def _ack_begin(self, mark: Fact) -> None:
        self._cancel_begin(mark)

    def _finish(self, mark: Fact) -> None:
        for id_ in mark["ids"]:
            raw = bytes.fromhex(id_)
            self._told(id_).finished[raw] = "durable" if mark["sync"] == "always" else "written"
            if mark["sync"] != "always":
                self._unflushed.append((self.of_id[raw], raw))

    def _cancel_end(self, mark: Fact) -> None:
        self._finish(mark)

    def _ack_end(self, mark: Fact) -> None:
        self._finish(mark)

    def _move_end(self, mark: Fact) -> None:
        self._finish(mark)
        if mark["new"]:
            self.of_id[bytes.fromhex(mark["new"])] = self.of_id[bytes.fromhex(mark["ids"][0])]

    def _reschedule_begin(self, mark: Fact) -> None:
        self._told(mark["ids"][0]).dues.add(mark["due"])

    def _nack_begin(self, mark: Fact) -> None:
        self._reschedule_begin(mark)

    def _bury_begin(self, mark: Fact) -> None:
        self._told(mark["ids"][0]).may_be_dead = True

    _reschedule_end = _nack_end = _bury_end = _move_end

    def _claim_end(self, mark: Fact) -> None:
        for id_, payload, due in mark["fired"]:
            raw = bytes.fromhex(id_)
            told = self.messages.get(payload)
            if told is None or due not in told.dues:
                self.wrong.append(f"fired {payload!r} due {due}, which nobody enqueued")
                continue
            if due > mark["now"]:
                self.wrong.append(f"fired {payload!r} {due - mark['now']} µs early")
            if told.finished.get(raw) == "durable":
                self.wrong.append(f"fired {payload!r} again after its drop was durable")
            self.of_id[raw] = payload

    def _flush_end(self, mark: Fact) -> None:
        for payload, id_ in self._unflushed:
            told = self.messages[payload]
            if id_ is None:
                told.level = "durable"
            else:
                told.finished[id_] = "durable"
        self._unflushed.clear()

    def _lost_end(self, mark: Fact) -> None:
        # What was not flushed stays written, if the disk did not forget it with the flush that failed.
        self._unflushed.clear()

    def _hurt_end(self, mark: Fact) -> None:
        """Somebody damaged the file that holds these messages."""
        for payload in mark["payloads"]:
            self.messages[payload].may_be_gone = True

    def _removed_end(self, mark: Fact) -> None:
        """Somebody removed the wheel, to load it anew."""
        self.messages.clear()

    def _end_end(self, mark: Fact) -> None:
        self.ended = True
        if mark["open"]:
            self.wrong.append(f"files stay open after everything was closed: {mark['open']}")

    # -- judging --------------------------------------------------------------------------------------------------

    def judge(self, pending: Iterable[tuple[bytes, str, int]], *, forgets: bool) -> list[str]:
        """Say what is wrong with what a wheel holds: (id, payload, due). `forgets`: unflushed data was lost."""
        wrong = []
        present: dict[str, list[bytes]] = {}
        holds = {"durable"} if forgets else {"durable", "written"}
        for id_, payload, due in pending:
            told = self.messages.get(payload)
            if told is None:
                wrong.append(f"{payload!r} is pending, and nobody enqueued it")
                continue
            is_dead = MessageId(id_).is_dead
            if (is_dead and not told.may_be_dead) or (not is_dead and due not in told.dues):
                wrong.append(f"{payload!r} is pending at {due}, asked was {sorted(told.dues)}")
            present.setdefault(payload, []).append(id_)
            if told.finished.get(id_) in holds:
                wrong.append(f"{payload!r} is pending after its drop was {told.finished[id_]}")
            if told.refused:
                wrong.append(f"{payload!r} is pending, and enqueue said that nothing was enqueued")
        for payload, ids in present.items():
            if len(ids) > 1:
                wrong.append(f"{payload!r} is pending {len(ids)} times: a move was torn apart")
        for payload, told in self.messages.items():
            if told.level in holds and not told.may_be_gone and payload not in present:
                wrong.append(f"{payload!r} is lost; its enqueue was {told.level}")
        return wrong
