"""Results of calls in the campaign of schedulers: who asks for them while schedulers are killed, and the verdict.

Calls of four kinds keep a result: `total` for an hour, `brief` for a moment; `never` fails for good, and what `large`
returns is too large. Each run returns something else, and marks it before it returns. Those who ask are not killed:
they enqueue, and ask for their own calls and for those of the others, with and without a time.
A kill loses nothing that was written, so a result that was read once stays the same until it expires.
Invariant: what is expected comes from marks alone, never from the wheel.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from filewheel.errors import CallFailed, NotFound, ResultNotKept, ResultTimeout
from filewheel.message import KEY, RESULT, Message
from filewheel.scheduling.job import current_job
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.results import RESULT_BYTES_MAX
from filewheel.scheduling.scheduler import Scheduler
from tests.crash.actors import Actor
from tests.crash.campaign import Tally
from tests.crash.marks import Mark, Marks, read_marks

BRIEF_S = 0.4
KINDS = ("total", "total", "total", "brief", "brief", "never", "large")
ANSWERS = {"total": "value", "brief": "value", "never": "failed", "large": "unkept"}
LATE_S = 3.0
"""How much longer than its time a question may take on a busy machine, on which processes are frozen now and then."""
_NS = 1_000_000_000
_CLOCKS_DIFFER_NS = 20_000_000


def keeps(scheduler: Scheduler, actor: Actor) -> None:
    """Add the handlers that keep results."""
    again = Retry(limit=50, delay_s=0.005, delay_max_s=0.02)

    def told(kind: str, number: int) -> str:
        token = os.urandom(8).hex()
        actor.marks.tell("kept-call", kind, str(current_job().fire_id), number, token)
        return token

    @scheduler.on(retry=again, result_for="1h")
    def total(number: int) -> str:
        token = told("total", number)
        if actor.rng.random() < 0.3:
            raise ValueError("try again")
        return token

    @scheduler.on(retry=again, result_for=BRIEF_S)
    def brief(number: int) -> str:
        return told("brief", number)

    @scheduler.on(retry=Retry(limit=1, delay_s=0.01), result_for="1h")
    def never(number: int) -> None:
        told("never", number)
        raise ValueError(f"never {number}")

    @scheduler.on(retry=again, result_for="1h")
    def large(number: int) -> str:
        return told("large", number) * RESULT_BYTES_MAX


class Asks(Actor):
    """Enqueues calls that keep a result, and asks for those of all who do."""

    def run(self) -> None:
        scheduler = Scheduler(self.path, sync="never")
        number = self.serial
        while self.lasts():
            if self.rng.random() < 0.4:
                kind = self.rng.choice(KINDS)
                id_ = scheduler.enqueue(kind, [number], delay=self.rng.choice([0, 0, 0.05]))
                self.marks.tell("kept", kind, number, str(id_))
                number += 1
            else:
                known = [mark[5] for mark in asked_for(self.path.parent / "marks")]
                if known:
                    recent = self.rng.random() < 0.7
                    asks(scheduler, self.marks, self.rng.choice(known[-8:] if recent else known),
                         self.rng.choice([0, 0, 0.02, 0.3]))  # fmt: skip
            time.sleep(self.rng.random() * 0.01)
        scheduler.stop()


class AsksAll(Actor):
    """Asks once more for each call, when everything has ended."""

    def run(self) -> None:
        scheduler = Scheduler(self.path)
        for mark in asked_for(self.path.parent / "marks"):
            asks(scheduler, self.marks, mark[5], 0)
        scheduler.stop()


def asked_for(folder: Path) -> list[Mark]:
    """Return the marks of the calls that were enqueued, in their order."""
    marks = [m for name, some in read_marks(folder).items() if name.endswith("-Asks") for m in some]
    return sorted((m for m in marks if m[0] == "kept"), key=lambda m: m[2])


def asks(scheduler: Scheduler, marks: Marks, id_: str, timeout_s: float) -> None:
    """Ask for a result, and mark the answer."""
    since = time.monotonic_ns()
    try:
        answer = "value", str(scheduler.result(id_, timeout_s=timeout_s))
    except ResultTimeout:
        answer = "waits", ""
    except CallFailed as exc:
        answer = "failed", exc.error
    except ResultNotKept:
        answer = "unkept", ""
    except NotFound:
        answer = "gone", ""
    marks.tell("answer", id_, *answer, timeout_s, since=since)


def wrong_places(living: list[Message], dead: list[Message], told: list[Mark], now_ns: int) -> Iterator[str]:
    """Say which call is neither pending nor has a result, or both, while nothing runs."""
    pending = {str(i) for m in living if RESULT not in m.headers for i in (m.id, m.root) if i}
    dead_ids = {str(i) for m in dead for i in (m.id, m.root) if i}
    results = Counter(m.headers[KEY].partition(":")[2] for m in living if RESULT in m.headers)
    first_call_ns: dict[str, int] = {}
    for mark in told:
        if mark[0] == "kept-call":
            first_call_ns.setdefault(mark[4], mark[2])
    for _, _, _, kind, _, id_ in (m for m in told if m[0] == "kept"):
        count = results[id_]
        begun_ns = first_call_ns.get(id_)
        may_be_over = kind == "brief" and begun_ns is not None and begun_ns + BRIEF_S * _NS < now_ns + _CLOCKS_DIFFER_NS
        if count + (id_ in pending) != 1 and not (may_be_over and count + (id_ in pending) == 0):
            yield f"the {kind} call {id_} has {count} results and is {'' if id_ in pending else 'not '}pending"
        if id_ in dead_ids and (kind != "never" or id_ in pending):
            yield f"the {kind} call {id_} is a dead letter"


def judge(told: list[Mark], tally: Tally) -> None:
    """Compare the answers with what the calls returned."""
    tokens: defaultdict[str, set[str]] = defaultdict(set)
    first_call_ns: dict[str, int] = {}
    for mark in sorted((m for m in told if m[0] == "kept-call"), key=lambda m: m[2]):
        tokens[mark[4]].add(mark[6])
        first_call_ns.setdefault(mark[4], mark[2])
    calls = {m[5]: (m[3], m[4]) for m in told if m[0] == "kept"}
    answers: defaultdict[str, list[Mark]] = defaultdict(list)
    for mark in told:
        if mark[0] == "answer":
            answers[mark[3]].append(mark)
    for id_, (kind, number) in calls.items():
        for text in wrong_answers(kind, number, tokens[id_], first_call_ns.get(id_), answers[id_]):
            tally.violation(f"the {kind} call {id_}: {text}")
        last = max(answers[id_], key=lambda m: m[1], default=None)  # which was asked last
        tally.check(last and last[4] != "waits", f"the {kind} call {id_} has no result at the end")
    tally.count("calls with a result", len(calls))
    tally.count("results read", sum(m[4] not in ("waits", "gone") for some in answers.values() for m in some))
    tally.count("results expired", sum(m[4] == "gone" for some in answers.values() for m in some))


def wrong_answers(
    kind: str, number: int, tokens: set[str], first_call_ns: int | None, answers: list[Mark]
) -> Iterator[str]:
    """Say which answers about one call are wrong, by themselves or beside earlier ones."""
    ended: Mark | None = None
    over: Mark | None = None
    for mark in sorted(answers, key=lambda m: m[2]):
        _, since_ns, at_ns, _, answer, text, timeout_s = mark
        if at_ns - since_ns > (timeout_s + LATE_S) * _NS:
            yield f"an answer took {(at_ns - since_ns) / _NS:.2f} s, with a time of {timeout_s} s"
        if answer == "gone":
            may = kind == "brief" and first_call_ns is not None
            if not may or at_ns + _CLOCKS_DIFFER_NS < (first_call_ns or 0) + BRIEF_S * _NS:
                yield "its result is not there, and has not expired"
            over = over or mark
            continue
        if over is not None and since_ns > over[2]:
            yield f"it has expired, and later the answer is {answer!r}"
        if answer == "waits":
            if ended is not None and since_ns > ended[2]:
                yield "it had a result, and later it waits"
            continue
        if answer != ANSWERS[kind]:
            yield f"the answer is {answer!r}"
        if first_call_ns is None or at_ns < first_call_ns:
            yield f"there is a result of a call that was never called: {text!r}"
        elif answer == "value" and text not in tokens:
            yield f"its result {text!r} is that of no run of it"
        elif answer == "failed" and not text.startswith(f"ValueError: never {number}"):
            yield f"it failed because of {text!r}"
        if ended is not None and (ended[4], ended[5]) != (answer, text):
            yield f"its result was {ended[5]!r}, and then {text!r}"
        ended = ended or mark
