"""What must hold whatever administrators do to a set: a pure function of the marks of its processes.

The marks are those of verdict_set.py; from producers also "try-cancel" serial and "cancelled" serial, path; from the
conductor "attempt" path, exit code, for each promotion that was tried, and "held" path, [serial, ...], caught_up, for
each that was done: what waited in the wheel just after.

Invariant: it knows the marks and which serials wait in the primary at the end; nothing of the library.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tests.crash.marks import Mark

S = 1_000_000_000
AFTER_S = 0.5
"""How long after a promotion a producer may go on that had looked at the roster just before."""


@dataclass
class _Fire:
    since: int
    at: int
    path: str
    who: str
    acked_at: int = 1 << 62


@dataclass
class _Told:
    puts: dict[int, int] = field(default_factory=dict)
    """Serial → when its enqueue returned."""
    tried: set[int] = field(default_factory=set)
    """Serials that somebody began to cancel."""
    cancelled: dict[int, int] = field(default_factory=dict)
    fires: dict[int, list[_Fire]] = field(default_factory=lambda: defaultdict(list))
    attempts: list[tuple[int, int]] = field(default_factory=list)
    held: list[tuple[int, int, str, frozenset[int], bool]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def is_amid(self, since: int, at: int) -> bool:
        """Tell whether a promotion was begun before `at`, and none had ended before `since`."""
        for begun, ended in self.attempts:
            # One that was cut short lasts until another is done.
            until = min([done for _, done, *_ in self.held if done >= ended], default=1 << 62)
            if begun <= at and since <= max(until, ended) + round(AFTER_S * S):
                return True
        return False


def judge(marks: Mapping[str, list[Mark]], pending: Collection[int]) -> list[str]:
    """Return what a set did that it must not do; `pending` are the serials that wait in its primary at the end."""
    told = _read(marks)
    return [*told.errors, *_lost(told, pending), *_undone(told, pending), *_behind(told)]


def _read(marks: Mapping[str, list[Mark]]) -> _Told:
    told = _Told()
    everything = sorted(((m, who) for who, lines in marks.items() for m in lines), key=lambda pair: pair[0][2])
    for (kind, since, at, *what), who in everything:
        if kind == "put":
            told.puts.update((serial, at) for serial, _ in what[0])
        elif kind == "try-cancel":
            told.tried.add(what[0])
        elif kind == "cancelled":
            told.cancelled[what[0]] = at
        elif kind == "fire":
            for serial, _, _ in what[1]:
                told.fires[serial].append(_Fire(since, at, what[2], who))
        elif kind == "ack":
            for serial in what[0]:
                fire = next((f for f in reversed(told.fires[serial]) if f.who == who), None)
                if fire is not None:
                    fire.acked_at = at
        elif kind == "attempt":
            told.attempts.append((since, at))
        elif kind == "held":
            told.held.append((since, at, what[0], frozenset(what[1]), what[2]))
        elif kind == "error":
            told.errors.append(f"{who}: {what[0]}")
    return told


def _lost(told: _Told, pending: Collection[int]) -> Iterator[str]:
    """Every confirmed enqueue has fired, or waits, or was cancelled: no disk was lost."""
    for serial in told.puts:
        if not told.fires[serial] and serial not in pending and serial not in told.tried:
            yield f"{serial} was confirmed, and neither fired nor waits"


def _undone(told: _Told, pending: Collection[int]) -> Iterator[str]:
    """What was acknowledged or cancelled does not fire, unless that returned while a promotion was at work."""
    for serial, fires in told.fires.items():
        for first, second in itertools.pairwise(sorted(fires, key=lambda f: f.at)):
            if first.acked_at <= second.since and not told.is_amid(first.since, first.acked_at):
                yield f"{serial} fired again in {second.path}, {_s(first.acked_at, second.since)} after its ack"
        at = told.cancelled.get(serial)
        for fire in fires:
            if at is not None and fire.since > at and not told.is_amid(at, at):
                yield f"{serial} fired in {fire.path}, {_s(at, fire.since)} after its cancel had returned True"
    for serial, at in told.cancelled.items():
        if serial in pending and not told.is_amid(at, at):
            yield f"{serial} waits, and was cancelled"


def _s(since: int, at: int) -> str:
    return f"{(at - since) / S:.3f} s"


def _behind(told: _Told) -> Iterator[str]:
    """A promotion that says that it caught up has everything that had been confirmed before it began."""
    for since, done, path, held, caught_up in told.held:
        if not caught_up:
            continue
        lacks = [
            serial for serial, at in told.puts.items()
            if at < since and serial not in held and serial not in told.tried
            and not any(f.since <= done for f in told.fires[serial])
        ]  # fmt: skip
        if lacks:
            yield f"the promotion of {path} says that it caught up, and lacks {len(lacks)}: {lacks[:3]}"
