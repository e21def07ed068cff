"""keeper.lock removed or replaced under its holder: one process goes on, and the other says why it stops."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper, Locked, Scheduler, Wheel
from filewheel.disk.keeper_lock import KeeperLock
from tests.conftest import assert_whole
from tests.support import eventually
from tests.support_set import open_wheel


def remove(lock: Path) -> None:
    lock.unlink()


def replace(lock: Path) -> None:
    lock.with_name("new").write_bytes(b"")
    os.rename(lock.with_name("new"), lock)


def move_away(lock: Path) -> None:
    os.rename(lock, lock.with_name("moved"))


ways = pytest.mark.parametrize("lose", [remove, replace, move_away])


@ways
def test_a_keeper_whose_lock_was_lost_fires_nothing_more_and_a_second_one_fires_the_rest(
    wheel_dir: Path, lose: Callable[[Path], None]
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"first", b"second", b"third"], delay=0)
    first = Keeper(wheel_dir, background=False)
    held = first.claim(1)
    lose(wheel_dir / "keeper.lock")
    with Keeper(wheel_dir, background=False, wait=False) as second:
        for call in (first.claim, first.check_may_fire):
            with pytest.raises(Locked, match="removed or replaced") as caught:
                call()
            assert caught.value.pid == os.getpid()
            assert str(wheel_dir / "keeper.lock") in str(caught.value)
        assert first.ack(held) == 1
        first.close()
        assert [m.payload for m in second.claim()] == [b"second", b"third"]


@ways
def test_a_keeper_whose_lock_was_lost_deals_nothing_more(wheel_dir: Path, lose: Callable[[Path], None]) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"later", delay=5000)
    keeper = Keeper(wheel_dir, background=False)
    before = (wheel_dir / "checkpoint").read_bytes()
    lose(wheel_dir / "keeper.lock")
    with pytest.raises(Locked):
        keeper.close()
    assert (wheel_dir / "checkpoint").read_bytes() == before


def test_the_housekeeper_of_a_keeper_whose_lock_was_lost_stops_it(wheel_dir: Path) -> None:
    keeper = Keeper(wheel_dir)
    remove(wheel_dir / "keeper.lock")
    eventually(lambda: keeper._broken is not None)
    assert isinstance(keeper._broken, Locked)
    keeper.close()


def test_a_standby_that_waited_for_a_file_that_was_replaced_waits_for_the_new_one(wheel_dir: Path) -> None:
    first = KeeperLock(open_wheel(wheel_dir))
    first.take("keeper", wait=False)
    second, third = KeeperLock(open_wheel(wheel_dir)), KeeperLock(open_wheel(wheel_dir))
    waiting = threading.Thread(target=lambda: second.take("keeper", wait=True))
    opened = second._disk.open
    has_opened = threading.Semaphore(0)

    def telling(name: str, mode: str) -> int:
        fd = opened(name, mode)
        has_opened.release()
        return fd

    second._disk.open = telling  # type: ignore[method-assign]
    waiting.start()
    assert has_opened.acquire(timeout=120)
    remove(wheel_dir / "keeper.lock")
    third.take("keeper", wait=False)
    first.release()  # the second one gets the lock of a file that has no name
    assert has_opened.acquire(timeout=120)  # so it opens the new one
    assert not second.held
    third.release()
    waiting.join(120)
    assert second.held
    second.check()
    second.release()


def test_a_scheduler_whose_lock_was_lost_becomes_the_keeper_again(tmp_path: Path) -> None:
    path = tmp_path / "w"
    done = threading.Semaphore(0)
    scheduler = Scheduler(path)
    job = scheduler.on("job")(done.release)
    with scheduler:
        assert scheduler.wait_until_keeper(120)
        remove(path / "keeper.lock")
        job.enqueue()
        assert done.acquire(timeout=120)
    assert_whole(path)
