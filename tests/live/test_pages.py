"""Pages of the backlog: in order, whole, bounded in number, bytes and time; and what a search finds."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, MessageId, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.live import pages
from filewheel.live.pages import PAGE_BYTES, PAGE_MAX, SCAN_S, Page, Query, read_page
from filewheel.message import US_PER_S
from tests.cli.support import Fw
from tests.support import FakeClock


def walk(wheel: Wheel, **query: object) -> list[Page]:
    """Return all pages of a search."""
    found = [read_page(wheel, Query(**query), SYSTEM_CLOCK)]  # type: ignore[arg-type]
    while found[-1].next_id is not None:
        found.append(read_page(wheel, Query(**{**query, "after": found[-1].next_id}), SYSTEM_CLOCK))  # type: ignore[arg-type]
    return found


def test_pages_one_after_the_other_are_the_whole_list_in_order(wheel: Wheel, wheel_dir: Path) -> None:
    rng = random.Random(4)
    wheel.enqueue_many([b"x"] * 700, delay=[rng.choice([0, 5, 5, 900, 90_000 * rng.random()]) for _ in range(700)])
    Fw(wheel_dir).deal()
    wheel.enqueue_many([b"y"] * 34, delay=[rng.random() * 9000 for _ in range(34)])
    shown = [message for page in walk(wheel, limit=50) for message in page.messages]
    assert shown == list(wheel.list())
    assert [len(page.messages) for page in walk(wheel, limit=50)] == [50] * 14 + [34]


def test_a_page_that_ends_with_the_last_message_names_no_next(wheel: Wheel) -> None:
    wheel.enqueue_many([b"x"] * 4, delay=60)
    page = read_page(wheel, Query(limit=4), SYSTEM_CLOCK)
    assert len(page.messages) == 4
    assert page.next_id is None
    assert page.reached_us is None


def test_an_empty_wheel_has_one_empty_page(wheel: Wheel) -> None:
    assert read_page(wheel, Query(), SYSTEM_CLOCK) == Page()


@pytest.mark.parametrize(
    ("topic", "found"),
    [("mail", 2), ("mail*", 4), ("*:7", 1), ("nothing", 0), ("日*", 1), ("[mn]ail", 3), ("MAIL", 0)],
)
def test_a_search_by_topic_finds_names_and_globs(wheel: Wheel, topic: str, found: int) -> None:
    for name in ("mail", "mail", "mail.welcome", "mail:7", "日本", "nail", ""):
        wheel.enqueue(b"x", delay=60, topic=name)
    page = read_page(wheel, Query(topic=topic), SYSTEM_CLOCK)
    assert len(page.messages) == found
    assert page.scanned == 7
    assert [m.id for m in page.messages] == [m.id for m in wheel.list(topic=topic)]


def test_a_range_of_dues_begins_at_its_first_and_ends_before_its_last_microsecond(wheel: Wheel) -> None:
    ids = [wheel.enqueue(b"x", at=2_000_000_000 + n) for n in range(5)]
    page = read_page(wheel, Query(from_us=2_000_000_001 * US_PER_S, until_us=2_000_000_003 * US_PER_S), SYSTEM_CLOCK)
    assert [m.id for m in page.messages] == ids[1:3]


def test_dead_letters_have_pages_of_their_own_by_the_time_of_their_death(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        alive = wheel.enqueue(b"alive", delay=3600)
        for n in range(5):
            wheel.enqueue(b"%d" % n, topic="a" if n % 2 else "b")
        for message in keeper.claim():
            keeper.bury(message, reason="no")
        found = walk(wheel, dead=True, limit=2)
        assert [len(page.messages) for page in found] == [2, 2, 1]
        died = [m.died_us for page in found for m in page.messages]
        assert died == sorted(died, key=lambda us: us or 0)
        first = died[0]
        assert first is not None
        assert found[0].reached_us is not None
        assert first <= found[0].reached_us
        assert len(read_page(wheel, Query(dead=True, topic="a"), SYSTEM_CLOCK).messages) == 2
        assert not read_page(wheel, Query(dead=True, until_us=first), SYSTEM_CLOCK).messages
        assert len(read_page(wheel, Query(dead=True, from_us=first), SYSTEM_CLOCK).messages) == 5
        assert [m.id for m in read_page(wheel, Query(), SYSTEM_CLOCK).messages] == [alive]


class Hasty(FakeClock):
    """A clock on which each look takes half of the time for a scan."""

    def steady_us(self) -> int:
        self.advance(SCAN_S / 2)
        return self.run_us


def test_a_search_that_finds_nothing_stops_in_time_and_goes_on_from_there(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_LOOK_EACH", 100)
    wheel.enqueue_many([b"x"] * 1000, delay=[60 + n for n in range(1000)], topic="a")
    last = wheel.enqueue(b"last", delay=5000, topic="b")
    found = [read_page(wheel, Query(topic="b"), Hasty())]
    while found[-1].next_id is not None:
        assert not found[-1].messages
        assert found[-1].scanned < 1000
        assert found[-1].reached_us == found[-1].next_id.due_us
        found.append(read_page(wheel, Query(topic="b", after=found[-1].next_id), Hasty()))
    assert len(found) > 2
    assert sum(page.scanned for page in found) == 1001
    assert [m.id for m in found[-1].messages] == [last]


def test_a_page_of_large_messages_is_short_and_the_next_goes_on(wheel: Wheel) -> None:
    body = bytes(1 << 20)
    ids = [wheel.enqueue(body, delay=60 + n) for n in range(8)]
    found = walk(wheel)
    assert all(sum(len(m.payload) for m in page.messages) <= PAGE_BYTES + 2 * len(body) for page in found)
    assert len(found) > 1
    assert [m.id for page in found for m in page.messages] == ids


def test_a_page_that_was_cancelled_in_between_is_only_shorter(wheel: Wheel) -> None:
    ids = wheel.enqueue_many([b"x"] * 20, delay=[60 + n for n in range(20)])
    first = read_page(wheel, Query(limit=10), SYSTEM_CLOCK)
    assert first.next_id is not None
    wheel.cancel_many([ids[9], ids[10], ids[19]])
    second = read_page(wheel, Query(limit=10, after=first.next_id), SYSTEM_CLOCK)
    assert [m.id for m in second.messages] == list(ids[11:19])


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": PAGE_MAX + 1}, {"topic": "x" * 300}, {"dead": 1}])
def test_a_wrong_query_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        Query(**wrong)  # type: ignore[arg-type]


def test_rows_follow_each_other_by_id(wheel: Wheel) -> None:
    wheel.enqueue_many([b"x"] * 30, delay=60)
    ids = [m.id for page in walk(wheel, limit=7) for m in page.messages]
    assert all(a < b for a, b in pairwise(ids))
    assert all(isinstance(id_, MessageId) for id_ in ids)
