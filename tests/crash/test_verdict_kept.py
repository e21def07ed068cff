"""What the judge of results in the campaign of schedulers sees, and what it lets pass."""

from __future__ import annotations

import pytest

from filewheel import Message, MessageId
from filewheel.message import KEY, RESULT
from tests.crash.campaign import Tally
from tests.crash.kept import judge, wrong_places
from tests.crash.marks import Mark

MS = 1_000_000
ID = MessageId(bytes(15) + b"\x07")
OTHER = MessageId(bytes(15) + b"\x08")


def mark(kind: str, since_ms: float, at_ms: float, *what: object) -> Mark:
    return [kind, round(since_ms * MS), round(at_ms * MS), *what]


def call(kind: str, *runs: tuple[float, str]) -> list[Mark]:
    """The marks of one call, of the number 3: its enqueue, and when each run returned what."""
    return [mark("kept", 1, 1, kind, 3, str(ID)), *(mark("kept-call", at, at, kind, str(ID), 3, t) for at, t in runs)]


def answer(at_ms: float, how: str, text: str = "", *, waited_s: float = 0, took_ms: float = 1) -> Mark:
    return mark("answer", at_ms - took_ms, at_ms, str(ID), how, text, waited_s)


def verdict(*told: Mark) -> list[str]:
    tally = Tally("scheduler")
    judge(list(told), tally)
    return [violation.text for violation in tally.violations]


TOTAL = call("total", (10, "a"), (20, "b"))
BRIEF = call("brief", (10, "a"))
FAILED = "ValueError: never 3 (after 2 attempts)"


@pytest.mark.parametrize(
    "told",
    [
        [*TOTAL, answer(5, "waits"), answer(30, "value", "b"), answer(40, "value", "b")],
        [*TOTAL, answer(31, "waits", took_ms=25), answer(30, "value", "a")],  # asked before the other had its answer
        [*BRIEF, answer(20, "value", "a"), answer(500, "gone"), answer(600, "gone")],
        [*BRIEF, answer(501, "value", "a", took_ms=10), answer(500, "gone")],
        [*call("never", (10, "a")), answer(20, "failed", FAILED), answer(30, "failed", FAILED)],
        [*call("large", (10, "a")), answer(20, "unkept")],
        [*TOTAL, answer(1400, "value", "b", waited_s=0.3, took_ms=1300)],
    ],
)
def test_what_holds_is_let_pass(told: list[Mark]) -> None:
    assert verdict(*told) == []


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([*TOTAL, answer(30, "value", "c")], "that of no run"),
        ([*TOTAL, answer(30, "value", "a"), answer(40, "value", "b")], "was 'a', and then 'b'"),
        ([*TOTAL, answer(30, "value", "a"), answer(40, "waits")], "later it waits"),
        ([*TOTAL, answer(30, "gone")], "has not expired"),
        ([*TOTAL, answer(30, "unkept")], "the answer is 'unkept'"),
        ([*TOTAL, answer(30, "failed", "ValueError: try again")], "the answer is 'failed'"),
        ([*TOTAL, answer(30, "waits")], "no result at the end"),
        ([*TOTAL], "no result at the end"),
        ([*call("total"), answer(30, "value", "a")], "never called"),
        ([*BRIEF, answer(300, "gone")], "has not expired"),
        ([*BRIEF, answer(500, "gone"), answer(600, "value", "a")], "has expired, and later"),
        ([*call("never", (10, "a")), answer(20, "value", "a")], "the answer is 'value'"),
        ([*call("never", (10, "a")), answer(20, "failed", "it was killed")], "failed because of 'it was killed'"),
        ([*TOTAL, answer(5000, "value", "b", waited_s=0.3, took_ms=4000)], "took 4.00 s, with a time of 0.3 s"),
    ],
)
def test_what_does_not_hold_is_seen(told: list[Mark], words: str) -> None:
    assert any(words in text for text in verdict(*told)), verdict(*told)


def places(kind: str, living: str, dead: bool = False, *, now_ms: float = 20) -> list[str]:
    """The verdict on a call that was run at 10 ms; what lives: (p)ending, (m)oved and pending, a (r)esult each."""
    result = Message(OTHER, b"", RESULT, {KEY: f"{RESULT}:{ID}", RESULT: "msgpack"}, 0, 0)
    kinds = {"p": Message(ID, b"", kind, {}, 0, 0), "m": Message(OTHER, b"", kind, {}, 0, 0, root=ID), "r": result}
    buried = [Message(OTHER, b"", kind, {}, 0, 0, root=ID)] if dead else []
    return list(wrong_places([kinds[c] for c in living], buried, call(kind, (10, "a")), round(now_ms * MS)))


def test_a_call_is_pending_or_has_one_result() -> None:
    for good in ("p", "m", "r"):
        assert places("total", good) == []
    for bad in ("", "pr", "mr", "rr"):
        assert "pending" in places("total", bad)[0]
    assert "0 results" in places("brief", "", now_ms=300)[0]
    assert places("brief", "", now_ms=500) == []
    assert places("never", "r", dead=True) == []
    assert "dead letter" in places("never", "p", dead=True)[0]
    assert "dead letter" in places("total", "r", dead=True)[0]
