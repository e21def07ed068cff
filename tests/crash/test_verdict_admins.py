"""What the judge of the administrators' campaign sees, and what it lets pass."""

from __future__ import annotations

from tests.crash.marks import Mark
from tests.crash.verdict_admins import judge

S = 1_000_000_000


def mark(kind: str, since_s: float, at_s: float, *what: object) -> Mark:
    return [kind, round(since_s * S), round(at_s * S), *what]


def put(at_s: float, serial: int = 1) -> Mark:
    return mark("put", at_s, at_s, [[serial, "00"]], 1, "/a")


def fire(since_s: float, path: str) -> Mark:
    return mark("fire", since_s, since_s, 0, [[1, "00", 0]], path)


PROMOTION = [mark("attempt", 5, 6, "/b", 0), mark("held", 5, 6, "/b", [1], True)]


def test_a_confirmed_message_that_neither_fired_nor_waits_is_lost() -> None:
    assert judge({"p": [put(1)], "c": PROMOTION}, {1}) == []
    assert len(judge({"p": [put(1)]}, set())) == 1


def test_what_was_acknowledged_before_a_promotion_began_does_not_fire_after_it_and_what_was_in_hand_may() -> None:
    for acked_s, wrong in ((4, 1), (5.5, 0)):
        first = [fire(3, "/a"), mark("ack", acked_s, acked_s, [1], "/a")]
        found = judge({"p": [put(1)], "k": first, "l": [fire(8, "/b")], "c": PROMOTION}, set())
        assert len(found) == wrong, found


def test_what_was_cancelled_before_a_promotion_began_neither_fires_nor_waits() -> None:
    cancelled = [put(1), mark("try-cancel", 2, 2, 1), mark("cancelled", 2, 3, 1, "/a")]
    assert judge({"p": cancelled, "c": PROMOTION}, set()) == []
    assert len(judge({"p": cancelled, "c": PROMOTION}, {1})) == 1
    assert len(judge({"p": cancelled, "k": [fire(8, "/b")], "c": PROMOTION}, set())) == 1


def test_a_promotion_that_says_that_it_caught_up_has_everything_that_was_confirmed_before() -> None:
    for caught_up, wrong in ((True, 1), (False, 0)):
        held = [mark("attempt", 5, 6, "/b", 0), mark("held", 5, 6, "/b", [], caught_up)]
        found = judge({"p": [put(1)], "c": held}, {1})
        assert len(found) == wrong, found
