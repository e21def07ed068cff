"""What a set of wheels must have done, judged by what its processes were told: a pure function of their marks.

The marks (tests/crash/marks.py; each is [kind, when it began, when it returned, ...], in nanoseconds):
- a producer: "try-put" [[serial, due_us]], "put" [[serial, id]], copies, path; "refused" serial, error, path
- a keeper: "own" path; "fire" now_us, [[serial, id, due_us]], path; "try-ack" and "ack" [serial, ...], path
- the conductor: "disaster" name, path, loses; "undone" path; "promoted" path, the old primary, whether it was read to
  its end; "primary" path; "replicator" whether it begins or ends; "quiet" when the load ends
- anybody: "error" text, for what must not happen at all

Invariant: it knows the marks, the policy and which serials wait in the primary at the end; nothing of the library.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tests.crash.marks import Mark

S = 1_000_000_000
ENDLESS = 1 << 62
GARBLES = ("one bit flipped", "corrupted", "badly corrupted")
"""Disasters after which a wheel can be read, but not all of it."""


COMPARED_S = 10.0
"""How long after a power cut a replicator may take to start, and to compare a small set."""
CUT_LAG_S = 0.25
"""How long before a power cut an acknowledgement may have returned and be lost by it, on a busy machine."""


@dataclass(frozen=True)
class Policy:
    """How the set was made."""

    mode: Literal["mirror", "ship"]
    on_failure: Literal["refuse", "stale"] = "refuse"
    timeout_s: float = 5.0
    """How long an enqueue waits for a mirror."""
    lag_s: float = 0.0
    """What was told so shortly before the disaster may not have reached a backup that is shipped to."""
    start_s: float = 2.0
    """How long a replicator may take to start, and to open what it ships from and to."""
    served_s: float = 1.2
    """How long after all is well again an enqueue may be refused still: a mirror is tried once a second."""
    slack_s: float = 2.0
    """What a busy machine adds to every time."""


@dataclass
class _Put:
    at: int
    copies: int
    path: str


@dataclass
class _Fire:
    since: int
    at: int
    path: str
    who: str
    acked_at: int = ENDLESS
    """When the acknowledgement of it returned."""
    tried_at: int = ENDLESS


@dataclass
class _Disaster:
    name: str
    path: str
    at: int
    loses: bool
    undone_since: int = ENDLESS
    undone_at: int = ENDLESS


@dataclass
class _Told:
    """All marks, sorted by what they are about."""

    primary: str = ""
    asked: dict[int, int] = field(default_factory=dict)
    puts: dict[int, _Put] = field(default_factory=dict)
    slow: list[tuple[str, int, int]] = field(default_factory=list)
    refused: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    fires: dict[int, list[_Fire]] = field(default_factory=lambda: defaultdict(list))
    disasters: list[_Disaster] = field(default_factory=list)
    promotions: list[tuple[int, int, str, str]] = field(default_factory=list)
    """When it began, when it returned, who is the primary, who was."""
    read_to_the_end: set[str] = field(default_factory=set)
    """Old primaries of which a promotion said so."""
    rests: list[tuple[int, int]] = field(default_factory=list)
    """When no replicator was at work."""
    quiet_at: int | None = None
    cuts: list[int] = field(default_factory=list)
    """When the power was cut."""

    def until(self, new: str) -> int:
        """Return when this wheel had been promoted."""
        return next((at for _, at, path, _ in self.promotions if path == new), ENDLESS)

    errors: list[str] = field(default_factory=list)


def judge(marks: Mapping[str, list[Mark]], pending: Collection[int], policy: Policy) -> list[str]:
    """Return what a set did that it must not do; `pending` are the serials that wait in its primary at the end."""
    told = _read(marks)
    return [
        *told.errors,
        *_lost(told, pending, policy),
        *_early_or_invented(told, marks),
        *_twice(told, pending, policy),
        *_fenced_fires(told),
        *_refusals(told, policy),
    ]


def _read(marks: Mapping[str, list[Mark]]) -> _Told:
    told = _Told()
    lives = {who: who for who in marks}  # a process may be the keeper several times
    everything = sorted(((m, who) for who, lines in marks.items() for m in lines), key=lambda pair: pair[0][2])
    for (kind, since, at, *what), who in everything:
        if kind == "primary":
            told.primary = what[0]
        elif kind == "own":
            lives[who] = f"{who} since {since / S:.3f}"
        elif kind == "try-put":
            told.asked.update((serial, due_us) for serial, due_us in what[0])
        elif kind == "put":
            told.puts.update((serial, _Put(at, what[1], what[2])) for serial, _ in what[0])
            told.slow.append((who, since, at))
        elif kind == "refused":
            told.refused[who].append((at, what[1]))
            told.slow.append((who, since, at))
        elif kind == "fire":
            for serial, _, _ in what[1]:
                told.fires[serial].append(_Fire(since, at, what[2], lives[who]))
        elif kind in ("try-ack", "ack"):
            for serial in what[0]:
                fire = next((f for f in reversed(told.fires.get(serial, [])) if f.who == lives[who]), None)
                if fire is None:
                    told.errors.append(f"{who} acknowledged {serial}, which it was not handed")
                elif kind == "ack":
                    fire.acked_at = at
                else:
                    fire.tried_at = since
        elif kind == "disaster":
            told.disasters.append(_Disaster(what[0], what[1], since, what[2]))
        elif kind == "undone":
            for disaster in told.disasters:
                if disaster.path == what[0] and disaster.undone_at == ENDLESS:
                    disaster.undone_since, disaster.undone_at = since, at
        elif kind == "promoted":
            told.promotions.append((since, at, what[0], what[1]))
            if len(what) > 2 and what[2]:
                told.read_to_the_end.add(what[1])
        elif kind == "quiet":
            told.quiet_at = at
        elif kind == "power cut":
            told.cuts.append(since)
        elif kind == "replicator":
            if what[0] and told.rests:
                told.rests[-1] = (told.rests[-1][0], at)
            elif not what[0]:
                told.rests.append((at, ENDLESS))
        elif kind == "error":
            told.errors.append(f"{who}: {what[0]}")
    return told


def _lost(told: _Told, pending: Collection[int], policy: Policy) -> Iterator[str]:
    """Every acknowledged enqueue has fired, or waits in the primary, but for what one copy could not save."""
    for serial, put in told.puts.items():
        if told.fires.get(serial) or serial in pending:
            continue
        if put.copies < 2 and _was_left(told, put, policy):
            continue
        yield f"{serial} was acknowledged with {put.copies} copies, and neither fired nor waits"


def _was_left(told: _Told, put: _Put, policy: Policy) -> bool:
    """Whether a message with one copy was in a wheel that was lost, too soon for a replicator to ship it."""
    return any(
        disaster.loses
        and disaster.path == put.path
        and (put.path not in told.read_to_the_end or disaster.name in GARBLES)
        and put.at >= _shipped_until(told, disaster.at, policy)
        for disaster in told.disasters
    )


def _shipped_until(told: _Told, at: int, policy: Policy) -> int:
    """Return up to when everything that was told had been shipped at some time."""
    until = at - round(policy.lag_s * S)
    for begin, end in reversed(told.rests):
        if begin < at and end + round(policy.start_s * S) > until:
            until = min(until, begin - round(policy.lag_s * S))
    return until


def _early_or_invented(told: _Told, marks: Mapping[str, list[Mark]]) -> Iterator[str]:
    for lines in marks.values():
        for mark in lines:
            if mark[0] != "fire":
                continue
            for serial, _, due_us in mark[4]:
                if serial not in told.asked:
                    yield f"{serial} fired, which nobody enqueued"
                elif mark[3] < told.asked[serial]:
                    yield f"{serial} fired {told.asked[serial] - mark[3]} µs early (its id says {due_us})"


def _twice(told: _Told, pending: Collection[int], policy: Policy) -> Iterator[str]:
    """What fires again was in flight: claimed and not acknowledged, or acknowledged too shortly before a disaster."""
    for serial, fires in told.fires.items():
        for first, second in itertools.pairwise(sorted(fires, key=lambda f: f.at)):
            if second.since < first.acked_at and first.who == second.who:
                yield f"{serial} was handed out twice by one keeper, {first.who}"
            elif first.acked_at <= second.since and not _may_repeat(told, first, second.path, policy):
                yield f"{serial} fired again in {second.path}, {(second.at - first.acked_at) / S:.3f} s after its ack"
        last = max(fires, key=lambda f: f.at)
        end = told.promotions[-1][2] if told.promotions else told.primary
        if serial in pending and last.acked_at < ENDLESS and not _may_repeat(told, last, end, policy):
            yield f"{serial} waits in the primary, and was acknowledged"


def _may_repeat(told: _Told, fire: _Fire, path: str, policy: Policy) -> bool:
    if any(0 <= cut - fire.acked_at <= CUT_LAG_S * S for cut in told.cuts):
        return True  # acknowledgements are flushed 20 ms later, more or less
    for cut in told.cuts:
        since = next((s for s, _, new, _ in told.promotions if path == new and s > cut), ENDLESS)
        if cut - CUT_LAG_S * S <= fire.acked_at and since - cut <= COMPARED_S * S:
            return True  # what a cut took from a backup alone is found by comparing, and that had not been done yet
    for disaster in told.disasters:
        if disaster.path == fire.path == path and disaster.loses and fire.acked_at <= disaster.undone_at:
            return True  # the drop was damaged, or lost
    for since, _, new, old in told.promotions:
        if path == new and old == fire.path:
            # A mirror has the drop when the call returns, and so has who read the old one to its end. What had not
            # returned when the last batch was handed out there was in hand.
            claims = [f.since for fires in told.fires.values() for f in fires if f.path == old]
            begun = max([since, *(at for at in claims if at < told.until(new))])
            if policy.mode == "ship" and old not in told.read_to_the_end:
                struck = min([since, *(d.at for d in told.disasters if d.path == old)])
                begun = _shipped_until(told, struck, policy)
            garbled = any(d.path == old and d.name in GARBLES and d.at < since for d in told.disasters)
            if fire.acked_at >= begun or garbled:  # what is pending there but for a drop that cannot be read is copied
                return True
    return False


def _fenced_fires(told: _Told) -> Iterator[str]:
    """Once a promotion has returned, no claim begins anywhere else."""
    for _, at, new, _ in told.promotions:
        until = min([since for since, _, _, _ in told.promotions if since > at], default=ENDLESS)
        for serial, fires in told.fires.items():
            for fire in fires:
                if at < fire.since < until and fire.path != new:
                    yield f"{serial} fired in {fire.path}, {(fire.since - at) / S:.3f} s after {new} was promoted"


def _refusals(told: _Told, policy: Policy) -> Iterator[str]:
    """An enqueue is refused, or takes long, only while the policy says so."""
    windows = list(_windows(told, policy))
    for who, refusals in told.refused.items():
        for at, error in refusals:
            if not any(begin <= at <= end for begin, end in windows):
                yield f"{who} was refused ({error}) {_since(told, at)}"
    slack = round((policy.timeout_s + policy.slack_s) * S)
    for who, since, at in told.slow:
        if at - since > slack:
            yield f"an enqueue of {who} took {(at - since) / S:.1f} s"
    served = sorted(put.at for put in told.puts.values())
    for _, end in _windows(told, policy, slack_s=0):
        until = end + round(policy.served_s * S)
        if told.quiet_at is not None and until <= told.quiet_at and not any(end <= at <= until for at in served):
            yield f"nobody was served within {policy.served_s} s {_since(told, end)}"


def _windows(told: _Told, policy: Policy, *, slack_s: float | None = None) -> Iterator[tuple[int, int]]:
    """Return from when to when enqueues may be refused."""
    slack = round((policy.slack_s if slack_s is None else slack_s) * S)
    primary = told.primary
    for disaster in told.disasters:
        promoted = [p for p in told.promotions if p[3] == disaster.path and p[1] > disaster.at]
        if disaster.path == primary or promoted:
            # The primary's own disaster: until another is promoted, or it is well again.
            end = min([disaster.undone_at, *(at for _, at, _, _ in promoted)])
        elif policy.mode == "ship":
            continue  # who is shipped to holds up nobody
        elif policy.on_failure == "stale":
            end = min(disaster.at + round(policy.timeout_s * S), disaster.undone_at)
        else:
            end = disaster.undone_at
        yield disaster.at, min(end + slack, ENDLESS)
        if promoted and disaster.undone_at < ENDLESS:
            # Who could not be told of the promotion learns of it when the old primary rejoins.
            yield disaster.undone_since, disaster.undone_at + slack
    for since, at, _, _ in told.promotions:
        yield since, at + slack


def _since(told: _Told, at: int) -> str:
    before = [d for d in told.disasters if d.at <= at]
    if not before:
        return "before anything had happened"
    last = max(before, key=lambda d: d.at)
    return f"{(at - last.at) / S:.3f} s after {last.path} was {last.name}"
