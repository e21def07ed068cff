"""What the judge of the campaign of cancels sees, and what it lets pass."""

from __future__ import annotations

import pytest

from tests.crash.marks import Mark
from tests.crash.verdict_cancels import PULSES, judge

MS = 1_000_000
Waiting = list[tuple[str, int, str | None]]


def mark(kind: str, since_ms: float, at_ms: float, *what: object) -> Mark:
    return [kind, round(since_ms * MS), round(at_ms * MS), *what]


def put(serial: int, at_ms: float = 1, *, key: str | None = None, how: str = "reject") -> list[Mark]:
    return [mark("try-put", at_ms, at_ms, serial, key), mark("put", at_ms, at_ms, serial, f"i{serial}", key, how)]


def call(serial: int, begin_ms: float, end_ms: float = 0, *, slot: str = "", rooms: dict[str, int] | None = None,
         id_: str | None = None, owner: int = 7) -> list[Mark]:  # fmt: skip
    jobs = [[id_ or f"i{serial}", serial]]
    ended = [mark("called", begin_ms, end_ms, owner, slot, rooms or {}, [])] if end_ms else []
    return [mark("call", begin_ms, begin_ms, owner, slot, rooms or {}, jobs), *ended]


def cancel(serial: int, at_ms: float, *, done: bool = True, how: str = "begun") -> list[Mark]:
    drawn, words = [[f"i{serial}", serial]], {f"i{serial}": how} if done else {}
    return [mark("try-cancel", at_ms, at_ms, drawn), mark("cancel", at_ms, at_ms, drawn, words)]


def verdict(producer: list[Mark], calls: list[Mark], waiting: Waiting | None = None, *more: Mark) -> list[str]:
    return list(judge({"p": producer, "calls-7": calls, "f": [mark("start", 0, 0, 7), *more]}, waiting or [], set()))


@pytest.mark.parametrize("done", [True, False])
def test_what_began_where_another_call_was_still_running_when_its_cancel_returned_had_not_begun(done: bool) -> None:
    told = put(1) + put(2) + cancel(2, 5, done=done)
    assert "in its place" in verdict(told, call(1, 2, 6, slot="t") + call(2, 7, 8, slot="t"))[0]
    assert verdict(told, call(1, 2, 4, slot="t") + call(2, 7, 8, slot="t")) == []
    assert verdict(told, call(1, 2, 6, slot="t") + call(2, 7, 8, slot="other")) == []


def test_what_began_though_its_room_was_full_when_its_cancel_returned_had_not_begun() -> None:
    told = put(1) + put(2) + put(3) + cancel(3, 5)
    both = call(1, 2, 6, rooms={"lane": 2}) + call(2, 3, 9, rooms={"lane": 2})
    assert "lane had no room" in verdict(told, both + call(3, 7, 8, rooms={"lane": 2}))[0]
    assert verdict(told, call(1, 2, 6, rooms={"lane": 2}) + call(3, 7, 8, rooms={"lane": 2}) + call(2, 6, 7)) == []


def test_what_began_in_a_process_that_was_started_later_or_has_gone_on_for_long_had_not_begun() -> None:
    told = put(1) + cancel(1, 5)
    assert verdict(told, call(1, 4000)) == []
    assert "started later" in verdict(told, call(1, 9, owner=8), None, mark("start", 6, 6, 8))[0]
    pulses = [mark("pulse", 0, 20 * n, 7) for n in range(PULSES + 3)]
    assert "pulses" in verdict(told, call(1, 4000), None, *pulses)[0]
    assert verdict(told, call(1, 4000), None, *pulses[:-3]) == []


def test_what_was_stopped_in_time_has_not_begun_in_a_process_that_lives_on_and_does_not() -> None:
    told, pulse = put(1) + cancel(1, 5, how="stopped"), mark("pulse", 0, 9, 7)
    assert "stopped in time" in verdict(told, call(1, 2), None, pulse)[0]
    assert "stopped in time" in verdict(told, call(1, 6), None, pulse)[0]
    assert verdict(told, call(1, 2), None, mark("pulse", 0, 4, 7)) == []
    assert verdict(told, call(1, 2), None, pulse, mark("ends", 3, 3, 7)) == []
    assert verdict(told, call(1, 2, 4, slot="t may put back"), None, pulse) == []
    assert verdict(put(1) + cancel(1, 5, how="begun"), call(1, 2), None, pulse) == []


def test_an_old_id_does_not_begin_after_a_reschedule_and_the_new_one_does() -> None:
    told = [*put(1), *put(2), mark("move", 4, 5, "i2", "new", 2)]
    first = call(1, 2, 6, slot="t")
    assert verdict(told, first + call(2, 7, slot="t"))
    assert verdict(told, first + call(2, 7, slot="t", id_="new")) == []
    assert verdict(told, first, [("new", 2, None)]) == []
    assert "2 is lost after it was moved from i2" in verdict(told, first)


def test_what_has_the_key_of_a_replacement_and_was_there_before_does_not_begin_later() -> None:
    told = put(1) + put(2, key="k") + put(3, 5, key="k", how="replace")
    assert verdict(told, call(1, 2, 6, slot="t") + call(3, 7, slot="t") + call(2, 3)) == []
    assert verdict(told, call(1, 2, 6, slot="t") + call(2, 7, slot="t") + call(3, 8))


def test_of_several_that_end_one_message_one_says_so_and_then_it_does_not_wait() -> None:
    assert verdict(put(1) + cancel(1, 5) + cancel(1, 6, done=False), []) == []
    assert "2 times" in verdict(put(1) + cancel(1, 5) + cancel(1, 6), [])[0]
    assert "waits after" in verdict(put(1) + cancel(1, 5, done=False), [], [("i1", 1, None)])[0]
    assert "held twice" in verdict(put(1, key="k") + put(2, key="k"), [], [("i1", 1, "k"), ("i2", 2, "k")])[0]


def test_a_confirmed_message_that_nobody_ended_has_begun_or_waits() -> None:
    assert verdict(put(1), []) == ["1 is lost"]
    assert verdict(put(1), call(1, 2)) == verdict(put(1), [], [("i1", 1, None)]) == []
    assert verdict([*put(1), mark("try-cancel", 2, 2, [["i1", 1]])], []) == []
    assert verdict([], call(1, 2)) == ["1 began, which nobody enqueued"]
