"""The sleep of a standby: what ends it, when the look in between is so rare that it does not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from filewheel import AsyncKeeper, Keeper, Locked, Scheduler
from filewheel.disk import hint as bell
from filewheel.disk.descriptors import Waker
from filewheel.disk.disk import SYSTEM
from filewheel.disk.hint import StandbySleep
from tests.support import open_below

NEVER_S = 3600.0
KEEPER = """
import sys, time
from filewheel import Keeper
keeper = Keeper(sys.argv[1])
print("up", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def dozing(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released each time that a standby goes to sleep beside a keeper."""
    falls = threading.Semaphore(0)

    class Telling(Waker):
        def wait(self, timeout_s: float, bell: int | None = None) -> None:
            if bell is not None:
                falls.release()
            super().wait(timeout_s, bell)

    monkeypatch.setattr(bell, "Waker", Telling)
    return falls


@pytest.fixture
def asleep(dozing: threading.Semaphore, monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """The same, and the time to look is never there."""
    monkeypatch.setattr(bell, "STANDBY_S", NEVER_S)
    return dozing


def test_a_sleep_ends_when_the_keeper_closes_and_the_lock_is_free_then(
    wheel_dir: Path, asleep: threading.Semaphore
) -> None:
    before = open_below(wheel_dir)
    for _ in range(20):
        with Keeper(wheel_dir):
            thread = threading.Thread(target=StandbySleep(str(wheel_dir), SYSTEM).wait)
            thread.start()
            assert asleep.acquire(timeout=120)
        thread.join(60)
        assert not thread.is_alive()
    assert open_below(wheel_dir) == before


def test_the_lock_is_free_before_a_standby_is_woken(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(wheel_dir)
    close, seen = keeper._hints.close, []
    monkeypatch.setattr(keeper._hints, "close", lambda: (seen.append(keeper._keeper_lock.held), close()))
    keeper.close()
    assert seen == [False]


def test_a_sleep_that_was_called_off_ends_and_so_does_every_later_one(
    wheel_dir: Path, asleep: threading.Semaphore
) -> None:
    before = open_below(wheel_dir)
    with Keeper(wheel_dir):
        sleep = StandbySleep(str(wheel_dir), SYSTEM)
        thread = threading.Thread(target=sleep.wait)
        thread.start()
        assert asleep.acquire(timeout=120)
        sleep.end()
        thread.join(60)
        assert not thread.is_alive()
        sleep.wait()
        sleep.end()
    assert open_below(wheel_dir) == before


def test_a_scheduler_that_stands_by_stops_at_once(wheel_dir: Path, asleep: threading.Semaphore) -> None:
    threads = set(threading.enumerate())
    with Keeper(wheel_dir, background=False):
        scheduler = Scheduler(wheel_dir)
        scheduler.start()
        assert asleep.acquire(timeout=120)
        scheduler.stop()
    assert not set(threading.enumerate()) - threads


def test_a_scheduler_that_stands_by_takes_over_when_the_keeper_is_killed(
    wheel_dir: Path, asleep: threading.Semaphore
) -> None:
    command = [sys.executable, "-c", KEEPER, str(wheel_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"up\n"
        with Scheduler(wheel_dir) as scheduler:
            assert asleep.acquire(timeout=120)
            keeper.kill()
            assert scheduler.wait_until_keeper(60)


def test_an_asyncio_standby_that_is_cancelled_or_closed_in_its_sleep_leaves_nothing(
    wheel_dir: Path, asleep: threading.Semaphore
) -> None:
    threads, before = set(threading.enumerate()), open_below(wheel_dir)

    async def main() -> None:
        standby = AsyncKeeper(wheel_dir)
        for ends in (False, True):
            opening = asyncio.create_task(standby.open())
            while not asleep.acquire(blocking=False):
                await asyncio.sleep(0.001)
            if ends:
                await standby.close()
            else:
                opening.cancel()
            with pytest.raises((asyncio.CancelledError, Exception)) as caught:
                await opening
            assert type(caught.value).__name__ == ("Closed" if ends else "CancelledError")

    with Keeper(wheel_dir, background=False):
        opened = open_below(wheel_dir)
        asyncio.run(main())
        assert not set(threading.enumerate()) - threads
        assert open_below(wheel_dir) == opened
    assert open_below(wheel_dir) == before


def test_a_standby_notices_that_keeper_lock_was_removed_though_its_holder_stays(
    wheel_dir: Path, dozing: threading.Semaphore
) -> None:
    holder = Keeper(wheel_dir, background=False)
    with Scheduler(wheel_dir) as standby:
        assert dozing.acquire(timeout=120)
        (wheel_dir / "keeper.lock").unlink()
        assert standby.wait_until_keeper(120)
        with pytest.raises(Locked, match="removed or replaced"):
            holder.close()
