"""The oracle: what processes were told, by their marks, against what they were handed and what a wheel holds.

It knows the marks, and what is pending as a reader sees it; nothing else of the library, so it cannot share its
mistakes. Ids and payloads are both followed: an id that was returned lives until something was tried that ends that
id, and a payload until something was tried that ends a message and does not just move it.
Invariant: a promise is forgotten only by `power_cut`, and only when it was not one that survives a power cut.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from filewheel.message import DEAD_US, MessageId, due_of
from tests.crash.marks import Mark

ID_LOCKS = 16
HELD_NS = 1_000_000_000
"""How long another process may take at most, from the mark of a move or a cancel to the end of it."""
Pending = dict[str, tuple[int, str | None]]
"""What a reader sees: id → serial of the payload (-1 when it is not whole), and root."""


@dataclass
class Known:
    """An id that some process was told of."""

    serial: int
    root: str
    since: int
    durable: bool


@dataclass
class Ended:
    """An id of which somebody was told that it is finished, or has moved."""

    how: str
    at: int
    durable: bool


@dataclass
class Promises:
    """What was promised over the life of one wheel."""

    asked: dict[int, int] = field(default_factory=dict)
    """Serial → due, for everything that anyone tried to enqueue."""
    batches: list[set[int]] = field(default_factory=list)
    known: dict[str, Known] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    """Ids that something was tried on that ends them."""
    gone_tried: set[int] = field(default_factory=set)
    """Serials of messages that someone tried to cancel or acknowledge."""
    ended: dict[str, Ended] = field(default_factory=dict)
    serial_by_id: dict[str, int] = field(default_factory=dict)
    trials: list[tuple[int, int, str]] = field(default_factory=list)
    """When something was tried that ends an id: (its lock, the time, the process)."""
    contended: set[str] = field(default_factory=set)
    """Ids that a keeper returned while another process may have had their lock: written later, or never."""
    refused: set[int] = field(default_factory=set)
    """Serials of which the enqueue raised that the disk is full."""
    fired: set[int] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    fires: int = 0
    acked: int = 0

    def broken(self, text: str) -> None:
        """Note a broken promise, unless there are many already."""
        if len(self.violations) < 10:
            self.violations.append(text)

    # -- taking in what was told ---------------------------------------------------------------------------

    def take(self, marks: dict[str, list[Mark]], *, interval_ns: int = 0, at: int = 0) -> None:
        """Take in the marks of processes that ran at the same time, and judge what they were handed.

        With `interval_ns`, what was enqueued with an interval that long before `at` counts as durable.
        """
        self._judge_owners(marks)  # first: with two keepers everything else is wrong too
        everything = sorted(((m, name) for name, told in marks.items() for m in told), key=lambda pair: pair[0][2])
        for mark, name in everything:
            self._attempt(mark, name)
        for mark, name in everything:
            self._returned(mark, name)
        for told in marks.values():
            self._flushes(told, interval_ns, at)
        for name, told in marks.items():
            self._judge_fires(name, [m for m in told if m[0] == "fire"])
            self._judge_moves(name, [m for m in told if m[0] == "move"])

    def _attempt(self, mark: Mark, name: str) -> None:
        kind, _, _, *what = mark
        if kind == "try-put":
            self.asked.update((serial, due_us) for serial, due_us in what[0])
            self.batches.append({serial for serial, _ in what[0]})
        elif kind == "put":
            self.serial_by_id.update((id_, serial) for serial, id_ in what[0])
        elif kind == "fire":
            self.serial_by_id.update((id_, serial) for id_, _, serial, _ in what[1])
        elif kind == "move" and what[1]:
            self.serial_by_id[what[1]] = self.serial_by_id[what[0]]
        elif kind == "try-end":
            self.tried.update(what[1])
            self.trials += [(int(i, 16) % ID_LOCKS, mark[1], name) for i in what[1]]
            if what[0] != "move":
                self.gone_tried.update(self.serial_by_id[i] for i in what[1])
        elif kind == "refused":
            self.refused.update(what[0])
        elif kind == "refused-end":
            self.tried.difference_update(what[0])
            self.gone_tried.difference_update(self.serial_by_id[i] for i in what[0])
        elif kind == "error":
            self.broken(f"{name}: {what[0]}")

    def _returned(self, mark: Mark, name: str) -> None:
        kind, began, at, *what = mark
        if kind == "put":
            for serial, id_ in what[0]:
                self.known[id_] = Known(serial, id_, at, what[1] == "always")
        elif kind == "end":
            self.acked += len(what[1]) * (what[0] == "ack")
            for id_ in what[1]:
                self._end(id_, what[0], at, what[2] == "always")
        elif kind == "move":
            old, new, sync = what
            self._end(old, "move", at, sync == "always" and new is not None)
            if new is not None:
                root = self.known[old].root if old in self.known else old
                self.known[new] = Known(self.serial_by_id[old], root, at, sync == "always")
                if "Keeper" in name and self._is_contended(old, began, at, name):
                    self.contended.add(new)

    def _is_contended(self, id_: str, began: int, at: int, name: str) -> bool:
        """Tell whether another process may have held the lock of an id: `Keeper.nack` says what that means."""
        lock = int(id_, 16) % ID_LOCKS
        return any(t[0] == lock and began - HELD_NS < t[1] < at and t[2] != name for t in self.trials)

    def _end(self, id_: str, how: str, at: int, durable: bool) -> None:
        """An id may be ended twice; what counts is when it was first, and whether any of them is durable."""
        was = self.ended.get(id_)
        if was is None:
            self.ended[id_] = Ended(how, at, durable)
        else:
            was.durable |= durable
            was.at = min(was.at, at)

    def _flushes(self, told: list[Mark], interval_ns: int, at: int) -> None:
        """What a process was told before it began a call that flushes is durable once that call has returned."""
        flushed = max((m[1] for m in told if m[0] == "durable" or "always" in m[3:]), default=0)
        for kind, _, returned, *what in told:
            if kind not in ("put", "end", "move"):
                continue
            is_old = interval_ns and isinstance(what[-1], float) and returned < at - interval_ns
            if returned > flushed and not is_old:
                continue
            if kind == "put":
                for _, id_ in what[0]:
                    self.known[id_].durable = True
            elif kind == "end":
                for id_ in what[1]:
                    self.ended[id_].durable = True
            elif what[1] is not None:
                self.known[what[1]].durable = self.ended[what[0]].durable = True

    # -- judging what was handed out -----------------------------------------------------------------------

    def _judge_fires(self, name: str, fires: list[Mark]) -> None:
        handed: set[str] = set()
        heads: list[tuple[int, str]] = []
        for _, began, _, now_us, rows in fires:
            ids = [row[0] for row in rows]
            if ids != sorted(ids):
                self.broken(f"{name}: one claim is out of order: {ids}")
            for id_, root, serial, due_us in rows:
                self._judge_fire(name, id_, root, serial, due_us, began, now_us)
                if id_ in handed:
                    self.broken(f"{name}: {id_} was handed out twice by one keeper")
                for claimed, head in heads:
                    if head > id_ and id_ in self.known and self.known[id_].since < claimed:
                        self.broken(f"{name}: {id_} was enqueued before a claim that handed out the later {head}")
                        break
            handed.update(ids)
            heads = [h for h in heads if h[1] > ids[-1]] + [(began, ids[-1])]
            self.fires += len(ids)

    def _judge_fire(
        self, name: str, id_: str, root: str | None, serial: int, due_us: int, began: int, now_us: int
    ) -> None:
        self._judge_exact(f"{name} fired", id_, root, serial)
        if due_us != due_of(bytes.fromhex(id_)):
            self.broken(f"{name}: {id_} was handed out with a due of {due_us}")
        if due_us > now_us:
            self.broken(f"{name}: {id_} fired {due_us - now_us} µs early")
        end = self.ended.get(id_)
        if end is not None and end.at < began:
            self.broken(f"{name}: {id_} fired {(began - end.at) / 1e6:.1f} ms after its {end.how} had returned")
        self.fired.add(serial)

    def _judge_exact(self, who: str, id_: str, root: str | None, serial: int) -> None:
        if serial not in self.asked:
            self.broken(f"{who} {id_}, whose payload nobody enqueued")
        elif serial in self.refused:
            self.broken(f"{who} {id_}, whose enqueue was refused")
        elif root is None and due_of(bytes.fromhex(id_)) != self.asked[serial]:
            self.broken(f"{who} {id_}, due at another time than was asked: {self.asked[serial]}")
        elif id_ in self.known and self.known[id_].serial != serial:
            self.broken(f"{who} {id_} with the payload of another message")

    def _judge_moves(self, name: str, moves: list[Mark]) -> None:
        for _, began, _, old, new, _ in moves:
            end = self.ended[old]
            if new is not None and end.how == "cancel" and end.at < began and "Keeper" in name:
                self.broken(f"{name}: {old} was put back as {new} although its cancel had returned")

    def _judge_owners(self, marks: dict[str, list[Mark]]) -> None:
        spans = []
        for name, told in marks.items():
            began = next((m[1] for m in told if m[0] == "own"), None)
            if began is not None:
                end = next((m[1] for m in told if m[0] == "disown"), told[-1][2])
                spans.append((began, end, name))
        spans.sort()
        for (_, end, one), (began, _, other) in itertools.pairwise(spans):
            if began < end:
                self.broken(f"{one} and {other} were keepers at the same time, for {(end - began) / 1e6:.1f} ms")

    # -- judging what a wheel holds ------------------------------------------------------------------------

    def check_pending(self, pending: Pending, *, durable: bool, context: str) -> None:
        """Compare what a wheel holds with all promises, or with the durable ones only."""
        present: set[int] = set()
        for id_, (serial, root) in pending.items():
            present.add(serial)
            is_dead = MessageId.fromhex(id_).is_dead
            self._judge_exact(f"{context}: pending is", id_, "" if is_dead else root, serial)
            end = self.ended.get(id_)
            if end is not None and (end.durable or not durable):
                self.broken(f"{context}: {id_} is pending after its {end.how} had returned")
        for id_, known in self.known.items():
            if (known.durable or not durable) and not (pending.keys() & {id_}):
                # A cancel by the first id of a chain may have found the present one.
                moved = (known.serial in self.gone_tried and known.root != id_) or id_ in self.contended
                if id_ not in self.tried and not moved:
                    self.broken(f"{context}: {id_} (message {known.serial}) is lost")
                elif known.serial not in present | self.gone_tried:
                    self.broken(f"{context}: message {known.serial} is lost on its way from {id_}")
        seen = present | self.gone_tried
        # One that was put back lives in the keeper's journal, which may survive when its producer's did not.
        unmoved = {serial for serial, root in pending.values() if root is None}
        for batch in self.batches:
            if batch & unmoved and not batch <= seen:
                self.broken(f"{context}: {len(batch & seen)} of one commit of {len(batch)} messages are there")

    def check_drained(self, pending: Pending) -> None:
        """Check a wheel of which everything was fired and acknowledged: only dead letters are left."""
        self.check_pending(pending, durable=False, context="drained")
        for id_ in pending:
            if due_of(bytes.fromhex(id_)) < DEAD_US:
                self.broken(f"drained: {id_} is pending still")

    def power_cut(self, pending: Pending) -> None:
        """Go on from what survived: it is durable now, and what did not survive does not come back."""
        for id_, (serial, root) in pending.items():
            was = self.known.get(id_)
            chain = was.root if was is not None else root or id_
            self.known[id_] = Known(serial, chain, was.since if was is not None else 0, True)
            self.serial_by_id[id_] = serial
            self.ended.pop(id_, None)
            self.tried.discard(id_)
        for id_ in self.known.keys() - pending.keys():
            known = self.known.pop(id_)
            self._end(id_, "loss in a power cut, or its end before it,", known.since, True)
        # What was asked for and is not there, or was ended and is there again, starts anew.
        self.gone_tried -= {serial for serial, _ in pending.values()}
