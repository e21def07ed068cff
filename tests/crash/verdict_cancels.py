"""The judge of cancels: what calls noted when they began, against what was said about their messages before.

A call begins in the library a moment before its first line is noted, so a begin that was noted after a cancel returned
proves nothing by itself. It is judged only where it had certainly not begun: the thread, the process or the task that
it ran in had another call in hand at that moment; or so many others ran in a room that holds no more (a lane of two, an
event loop's turns); or its process was started later; or that process has gone on for a second since.
Invariant: it knows the marks and what waits at the end, and nothing of the library.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.crash.marks import Mark

PULSES = 50
"""After so many pulses, 20 ms apart, a process has begun whatever it had looked at."""


@dataclass(frozen=True)
class Call:
    """A call that began: noted at `since`; `end` is None when nobody knows."""

    since: int
    owner: int
    slot: str
    rooms: tuple[tuple[str, int], ...]
    jobs: tuple[tuple[str, int], ...]
    end: int | None


@dataclass(frozen=True)
class End:
    """A call that returned at `at`, after which a message may not begin."""

    what: str
    at: int


@dataclass
class Told:
    """What the marks say."""

    calls: list[Call] = field(default_factory=list)
    pulses: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    started: dict[int, int] = field(default_factory=dict)
    keys: dict[int, str | None] = field(default_factory=dict)
    """Serial → key, of all that anyone tried to enqueue."""
    puts: dict[int, int] = field(default_factory=dict)
    """Serial → when its enqueue had returned."""
    ids: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id → its serial, and since when it is known."""
    of_id: defaultdict[str, list[End]] = field(default_factory=lambda: defaultdict(list))
    of_serial: defaultdict[int, list[End]] = field(default_factory=lambda: defaultdict(list))
    of_key: defaultdict[str, list[tuple[int, End, int]]] = field(default_factory=lambda: defaultdict(list))
    """Key → what ended all that had it when the call began: that moment, the end, the serial that it spares."""
    won: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Id → the calls that said that they ended or moved what waited under it."""
    tried: set[int] = field(default_factory=set)
    """Serials that something was tried on that ends them."""
    tried_keys: set[str] = field(default_factory=set)
    stopped: list[tuple[str, int, int]] = field(default_factory=list)
    """Ids that a cancel said it had stopped in time, and when it was called and returned."""
    ended: dict[int, int] = field(default_factory=dict)
    """Keeper → when it began to close."""
    moves: list[tuple[int, int, str]] = field(default_factory=list)
    """Of each reschedule that succeeded: when it began, the serial, the old id."""
    errors: list[str] = field(default_factory=list)


def read(marks: Mapping[str, list[Mark]]) -> Told:
    """Take in the marks of all processes."""
    told = Told()
    ends: dict[tuple[str, int], int] = {}
    lines = sorted(((mark, who) for who, some in marks.items() for mark in some), key=lambda pair: pair[0][2])
    for (kind, since, at, *what), who in lines:
        if kind == "called":
            ends[who, since] = max(at, ends.get((who, since), 0))
        elif kind == "pulse":
            told.pulses[what[0]].append(at)
        elif kind == "start":
            told.started[what[0]] = at
        elif kind == "ends":
            told.ended[what[0]] = at
        elif kind == "error":
            told.errors.append(f"{who}: {what[0]}")
        elif kind != "call":
            _said(told, kind, since, at, what)
    for (kind, since, _, *what), who in lines:
        if kind == "call":
            owner, slot, rooms, jobs = what
            some = tuple((id_, serial) for id_, serial in jobs)
            told.calls.append(Call(since, owner, slot, tuple(rooms.items()), some, ends.get((who, since))))
    return told


def _said(told: Told, kind: str, since: int, at: int, what: list[object]) -> None:
    """Take in what a producer tried, or was told."""
    match kind, what:
        case "try-put", [int(serial), key]:
            told.keys[serial] = None if key is None else str(key)
        case "put", [int(serial), str(id_), key, how]:
            told.puts[serial] = at
            told.ids.setdefault(id_, (serial, at))
            if how == "replace":
                told.of_key[str(key)].append((since, End("replace", at), serial))
        case "try-cancel", [list(drawn)]:
            told.tried.update(serial for _, serial in drawn)
        case "cancel", [list(drawn), dict(words)]:
            for id_, serial in drawn:
                told.of_id[id_].append(End("cancel", at))
                if id_ in words:
                    told.of_serial[serial].append(End("cancel", at))
                    told.won[id_].append("cancel")
                if words.get(id_) == "stopped":
                    told.stopped.append((id_, since, at))
        case "try-end-key", [str(key)]:
            told.tried_keys.add(key)
        case "cancel-key", [str(key)]:
            told.of_key[key].append((since, End("cancel by key", at), -1))
        case "move", [str(old), str(new), int(serial)]:
            told.of_id[old].append(End("reschedule", at))
            told.won[old].append("reschedule")
            told.ids.setdefault(new, (serial, at))
            told.moves.append((since, serial, old))
        case "move-key", [str(key)]:
            told.of_key[key].append((since, End("reschedule by key", at), -1))


def judge(marks: Mapping[str, list[Mark]], waiting: list[tuple[str, int, str | None]], dead: set[int]) -> Iterator[str]:
    """Say what is wrong. `waiting` has id, serial and key of what waits at the end, `dead` the dead's serials."""
    told = read(marks)
    yield from told.errors
    yield from _begun(told)
    yield from _stopped(told)
    yield from _kept(told, waiting)
    yield from _lost(told, {serial for _, serial, _ in waiting} | dead)


# -- no call begins that had not begun ------------------------------------------------------------------------------


def _begun(told: Told) -> Iterator[str]:
    proof = _Proof(told)
    for call in told.calls:
        for id_, serial in call.jobs:
            for end in _ends_of(told, id_, serial):
                why = proof.had_not_begun(call, end.at) if end.at < call.since else None
                if why is not None:
                    late_ms = (call.since - end.at) / 1e6
                    yield f"{serial} ({id_}) began {late_ms:.1f} ms after its {end.what} returned: {why}"
                    break


def _stopped(told: Told) -> Iterator[str]:
    """What was stopped in time has not begun and does not, in any process that lived on after that was said."""
    calls = defaultdict(list)
    for call in told.calls:
        for id_, _ in call.jobs:
            calls[id_].append(call)
    for id_, since, at in told.stopped:
        for call in calls[id_]:
            lived_ns = min(max(told.pulses.get(call.owner, [0])), told.ended.get(call.owner, 1 << 63))
            was_put_back = call.slot.endswith("may put back") and call.end is not None and call.end < since
            if lived_ns > at and not was_put_back:
                yield f"{id_} began {(call.since - at) / 1e6:.1f} ms after it was said to be stopped in time"


def _ends_of(told: Told, id_: str, serial: int) -> Iterator[End]:
    yield from told.of_id.get(id_, ())
    yield from told.of_serial.get(serial, ())
    key = told.keys.get(serial)
    known_at = told.ids.get(id_, (serial, 1 << 63))[1]
    for began, end, spares in told.of_key.get(key, ()) if key is not None else ():
        # A message that goes on under another id after a reschedule may begin; one that was ended may not.
        since = known_at if end.what == "reschedule by key" else told.puts.get(serial, 1 << 63)
        if since < began and serial != spares:
            yield end


class _Proof:
    """Tells when a call cannot have begun yet."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._in_slot: defaultdict[str, list[Call]] = defaultdict(list)
        self._in_room: defaultdict[tuple[int, str], list[Call]] = defaultdict(list)
        for call in told.calls:
            if call.slot:
                self._in_slot[call.slot].append(call)
            for room, _ in call.rooms:
                self._in_room[call.owner, room].append(call)

    def had_not_begun(self, call: Call, at: int) -> str | None:
        """Return why it had certainly not begun at a moment before its begin was noted; None when it may have."""
        if self._told.started.get(call.owner, 0) > at:
            return "its process was started later"
        for other in self._in_slot.get(call.slot, ()):
            if other is not call and other.end is not None and at < other.end <= call.since:
                return f"{other.jobs} ran in its place until later"
        for room, count in call.rooms:
            others = self._in_room[call.owner, room]
            if sum(o.since <= at < (o.end or 0) for o in others if o is not call) >= count:
                return f"{room} had no room"
        pulses = self._told.pulses.get(call.owner, [])
        gone_on = bisect.bisect(pulses, call.since) - bisect.bisect(pulses, at)
        return f"its process has gone on for {gone_on} pulses since" if gone_on > PULSES else None


# -- one wins, nothing is lost --------------------------------------------------------------------------------------


def _kept(told: Told, waiting: list[tuple[str, int, str | None]]) -> Iterator[str]:
    """What a call ended does not wait; each message waits once, and each key is held once."""
    for id_, how in told.won.items():
        if len(how) > 1:
            yield f"{id_} was ended or moved {len(how)} times: {how}"
    serials: set[int] = set()
    keys: set[str] = set()
    for id_, serial, key in waiting:
        if serial not in told.keys:
            yield f"{serial} waits, which nobody enqueued"
        if serial in serials:
            yield f"{serial} waits twice"
        if key is not None and key in keys:
            yield f"the key {key} is held twice"
        serials.add(serial)
        keys.update({key} - {None})  # type: ignore[arg-type]
        for end in _ends_of(told, id_, serial):
            yield f"{serial} ({id_}) waits after its {end.what} returned"


def _lost(told: Told, there: set[int]) -> Iterator[str]:
    """Each message that was confirmed has begun, or was ended, or is there; so is what a reschedule made of it."""
    began: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
    for call in told.calls:
        for id_, serial in call.jobs:
            began[serial].append((call.since, id_))
            if serial not in told.keys:
                yield f"{serial} began, which nobody enqueued"
    for serial in told.puts:
        if not (began[serial] or serial in there or _may_be_ended(told, serial)):
            yield f"{serial} is lost"
    for since, serial, old in told.moves:
        has_begun = any(id_ != old and at > since for at, id_ in began[serial])
        if not (has_begun or serial in there or _may_be_ended(told, serial)):
            yield f"{serial} is lost after it was moved from {old}"


def _may_be_ended(told: Told, serial: int) -> bool:
    return serial in told.tried or told.keys.get(serial) in told.tried_keys
