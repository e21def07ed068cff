"""The next seconds of the wheel, counted: what the ring shows is what is pending."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.env import SYSTEM_CLOCK
from filewheel.live import turning as module
from filewheel.live.turning import LOOK_S, OVERDUE_MAX, SECONDS, turning
from filewheel.message import US_PER_S
from tests.cli.support import Fw
from tests.support import START_US, FakeClock, eventually


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_US + 250_000)


def test_each_second_has_the_number_of_messages_that_are_due_in_it(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 900, delay=[(n * n % 2000) / 10 for n in range(900)])
        Fw(wheel_dir).deal()
        ids = wheel.enqueue_many([b"y"] * 40, delay=[n * 3.3 for n in range(40)])
        wheel.cancel_many(ids[:7])
        found = turning(wheel, clock)
        dues = Counter(m.due_us // US_PER_S - found.start_s for m in wheel.list() if m.due_us >= clock.now_us())
        assert found.counts == [dues[n] for n in range(SECONDS)]
        assert sum(found.counts) > 300
        assert found.start_s == START_US // US_PER_S


def test_what_is_due_is_overdue_and_in_no_second(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 6, at=[(clock.now_us() + us) / US_PER_S for us in (-9, -1, 0, 1, 700_000, 800_000)])
        found = turning(wheel, clock)
        assert found.overdue == 2
        assert found.counts[:2] == [3, 1]
        assert not found.has_more_overdue


def test_dead_letters_and_the_time_beyond_are_not_counted(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"far", delay=SECONDS)
        wheel.enqueue(b"near", delay=SECONDS - 1)
        found = turning(wheel, clock)
        assert found.counts == [0] * (SECONDS - 1) + [1]


def test_more_overdue_than_is_counted_is_said_to_be_more(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OVERDUE_MAX", 10)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 10, delay=-5)
        assert not turning(wheel, clock).has_more_overdue
        wheel.enqueue(b"one more", delay=-5)
        found = turning(wheel, clock)
        assert found.has_more_overdue
        assert found.overdue == 10
    assert OVERDUE_MAX > 10


def test_a_second_with_too_many_messages_is_cut_and_says_so(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(FakeClock):
        def steady_us(self) -> int:
            self.run_us += round(LOOK_S * US_PER_S / 3)
            return self.run_us

    monkeypatch.setattr(module, "_BUDGET", module.Budget(records=50, bytes=1 << 20))
    clock = Hasty()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 1000, delay=[n / 20 for n in range(1000)])
        found = turning(wheel, clock)
        assert found.is_cut
        assert 0 < sum(found.counts) < 1000
        assert found.to_json()["cut"] is True


def test_what_has_begun_is_neither_overdue_nor_next(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"long", delay=-5)
        batch = eventually(keeper.claim)
        found = turning(wheel, SYSTEM_CLOCK)
        assert (found.overdue, found.begun, found.lag_us, found.next_us) == (0, 1, 0, None)
        waits = wheel.enqueue(b"waits", delay=-3)
        found = turning(wheel, SYSTEM_CLOCK)
        assert found.overdue == 1
        assert found.next_us == waits.due_us
        assert found.lag_us == found.now_us - waits.due_us
        wheel.pause()
        found = turning(wheel, SYSTEM_CLOCK)
        assert (found.overdue, found.begun, found.paused) == (0, 1, 1)
        seen = wheel.overdue()
        assert (seen.count, seen.running, seen.paused) == (0, 1, 1)
        wheel.resume()
        keeper.ack(batch)
        keeper.ack(eventually(keeper.claim))


def test_the_next_is_found_wherever_it_is(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert turning(wheel, clock).next_us is None
        far = wheel.enqueue(b"far", delay=86_400 * 90)
        assert turning(wheel, clock).next_us == far.due_us
        near = wheel.enqueue(b"near", delay=7)
        assert turning(wheel, clock).next_us == near.due_us
        late = wheel.enqueue(b"late", delay=-7)
        found = turning(wheel, clock)
        assert found.next_us == late.due_us
        assert found.lag_us == 7 * US_PER_S


def test_what_is_paused_is_not_overdue_and_hides_nothing_that_is(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DUE", module.Budget(records=10, bytes=1 << 20))
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=-9, topic="mail")
        other = wheel.enqueue(b"x", delay=-3, topic="report")
        far = wheel.enqueue(b"x", delay=900, topic="mail")
        wheel.pause(topic="mail")
        found = turning(wheel, clock)
        assert (found.overdue, found.paused, found.has_more_overdue) == (1, 50, False)
        assert found.next_us == other.due_us
        assert found.lag_us == 3 * US_PER_S
        wheel.pause()
        found = turning(wheel, clock)
        assert (found.overdue, found.paused, found.lag_us) == (0, 51, 0)
        assert found.next_us == far.due_us
        wheel.resume(everything=True)
        assert turning(wheel, clock).overdue == 51


def test_so_many_paused_messages_are_counted_and_no_more(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hasty(FakeClock):
        def steady_us(self) -> int:
            self.run_us += round(LOOK_S * US_PER_S / 3)
            return self.run_us

    monkeypatch.setattr(module, "_DUE", module.Budget(records=10, bytes=1 << 20))
    clock = Hasty()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * 1000, delay=[-n for n in range(1, 1001)], topic="mail")
        wheel.pause(topic="mail")
        found = turning(wheel, clock)
        assert found.has_more_overdue
        assert 0 < found.paused < 1000
        assert found.overdue == 0
