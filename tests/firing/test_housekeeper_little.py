"""A keeper that is open for a moment leaves little to a later one; what is left stays bounded."""

from __future__ import annotations

from pathlib import Path

from filewheel import Keeper, Scheduler, Wheel
from filewheel.disk.directory import open_directory
from filewheel.firing.housekeeper import LITTLE_BYTES, LITTLE_FILES
from filewheel.testing import FakeClock


def deals(path: Path) -> int:
    return open_directory(path, write=False).checkpoint().deal


def test_a_close_without_a_deal_leaves_little_where_it_is_and_nothing_fires_twice(
    wheel_dir: Path, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"now")
        later = wheel.enqueue(b"later", delay=60)
        keeper = Keeper(wheel_dir, background=False, clock=clock)
        assert keeper.ack(keeper.claim()) == 1
        keeper.close(deal=False)
        assert deals(wheel_dir) == 0
        with Keeper(wheel_dir, background=False, clock=clock) as keeper:
            assert not keeper.claim()
            assert [m.id for m in wheel.list()] == [later]
        assert deals(wheel_dir) > 0  # a close with a deal does what the other has left


def test_a_close_without_a_deal_deals_what_is_much(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(bytes(LITTLE_BYTES), delay=60)
        Keeper(wheel_dir, background=False, clock=clock).close(deal=False)
        assert deals(wheel_dir) > 0
        assert [len(m.payload) for m in wheel.list()] == [LITTLE_BYTES]


def test_drains_one_after_the_other_leave_few_files(wheel_dir: Path, clock: FakeClock) -> None:
    calls: list[int] = []
    scheduler = Scheduler(wheel_dir, clock=clock)
    handler = scheduler.on("job", result_for=3600)(calls.append)
    journals = 0
    for n in range(4 * LITTLE_FILES):
        handler.after(0, n)
        assert scheduler.drain() == 1
        clock.advance(1)
        journals = max(journals, len(list((wheel_dir / "journal").iterdir())))
        files = [*wheel_dir.rglob("*.slot"), *wheel_dir.rglob("*.lap")]
        assert len(files) <= 2 * LITTLE_FILES + 2, files
    scheduler.stop()
    assert calls == list(range(4 * LITTLE_FILES))
    assert LITTLE_FILES // 2 < journals <= LITTLE_FILES + 2  # the scheduler's own, and one that a deal could not end
    assert 3 <= deals(wheel_dir) <= 5
