"""What a replicator logs of what fails: once when it begins, now and then while it lasts, and when it is over."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from filewheel.disk.directory import open_directory, opened
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.message import US_PER_S
from filewheel.roster.roster import change_roster
from filewheel.sets import replicator as replicating
from filewheel.sets.failure_log import FailureLog
from filewheel.sets.promote import promote
from filewheel.sets.rejoin import rejoin
from filewheel.sets.replicator import Replicator
from tests.sets.support_sets import Place, in_thread, place
from tests.support import eventually

__all__ = ["place"]


class Clock:
    def __init__(self) -> None:
        self.us = 0

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.us

    def step(self, seconds: float) -> None:
        self.us += round(seconds * US_PER_S)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "filewheel.sets")
    return caplog


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records]


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno >= logging.WARNING]


def test_a_failure_that_lasts_is_logged_once_and_again_every_five_minutes(
    clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    troubles = FailureLog(clock)
    for _ in range(601):
        troubles.failed("b", "b is gone")
        clock.step(1)
    assert lines(log) == ["b is gone", "b is gone (for 5 min)", "b is gone (for 10 min)"]
    troubles.over("b", "b is back")
    troubles.over("b", "b is back")
    assert lines(log)[3:] == ["b is back"]


def test_a_failure_in_other_words_and_one_that_comes_and_goes_are_logged_once_a_minute(
    clock: Clock, log: pytest.LogCaptureFixture
) -> None:
    troubles = FailureLog(clock)
    for n in range(120):
        troubles.failed("b", f"b fails: {n % 2}")
        troubles.over("b", "b works")
        clock.step(1)
    assert lines(log) == ["b fails: 0", "b works", "b fails: 0 (for 1 min)", "b works"]
    troubles.failed("c", "c is gone")
    clock.step(61)
    troubles.failed("c", "c is another wheel")
    assert lines(log)[4:] == ["c is gone", "c is another wheel"]


def test_what_ends_by_itself_is_logged_only_when_it_lasts(clock: Clock, log: pytest.LogCaptureFixture) -> None:
    troubles = FailureLog(clock)
    for _ in range(9):
        troubles.failed("b", "b is being promoted", after_s=10)
        clock.step(1)
    troubles.over("b", "b works")
    clock.step(3600)
    troubles.failed("b", "b is being promoted", after_s=10)
    assert lines(log) == []
    clock.step(10)
    troubles.failed("b", "b is being promoted", after_s=10)
    assert lines(log) == ["b is being promoted"]


# -- a replicator ---------------------------------------------------------------------------------------------------


@contextmanager
def running(place: Place, path: Path) -> Iterator[Replicator]:
    with Replicator(path, interval_s=0.005, env=SYSTEM.using(clock=place.clock)) as replicator:
        thread = in_thread(replicator.run)
        try:
            yield replicator
        finally:
            replicator.stop()
            thread.join(120)


def state(replicator: Replicator, path: Path) -> str:
    return next((r.state for r in replicator.status() if r.path == str(path)), "none")


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts how often failures are met, and lets a second be a moment."""
    met = threading.Semaphore(0)
    failed = FailureLog.failed

    def count(self: FailureLog, name: str, text: str, *, after_s: float = 0) -> None:
        failed(self, name, text, after_s=after_s)
        met.release()

    monkeypatch.setattr(FailureLog, "failed", count)
    monkeypatch.setattr(replicating, "RETRY_S", 0.01)
    monkeypatch.setattr(replicating, "LOOK_S", 0.01)
    return met


def meet(tries: threading.Semaphore, times: int) -> None:
    for _ in range(times):
        assert tries.acquire(timeout=120)


def test_a_primary_that_cannot_be_read_is_logged_once_with_the_way_out_and_once_when_it_is_back(
    place: Place, log: pytest.LogCaptureFixture, tries: threading.Semaphore
) -> None:
    place.make_set(place.b)
    place.make_set(place.c, mode="mirror")
    with running(place, place.b) as replicator:
        eventually(lambda: state(replicator, place.b) == state(replicator, place.c) == "following")
        place.a.rename(place.base / "away")
        meet(tries, 20)
        told = [text for text in warnings(log) if "cannot be read (no such directory)" in text]
        assert len(told) == 1
        assert f"{place.a}, the primary of this set, cannot be read" in told[0]
        assert f"`filewheel -C {place.c} promote`" in told[0]
        (place.base / "away").rename(place.a)
        eventually(lambda: f"{place.a}: the primary of this set can be read again" in lines(log))
        eventually(lambda: state(replicator, place.b) == state(replicator, place.c) == "following")


def test_a_backup_that_is_deleted_under_a_replicator_is_logged_in_one_line(
    place: Place, log: pytest.LogCaptureFixture, tries: threading.Semaphore
) -> None:
    place.make_set(place.b)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.b) == "following")
        shutil.copytree(place.b, place.base / "away", ignore=shutil.ignore_patterns("hint"))
        place.b.rename(place.base / "gone")  # at once: half of it would be another trouble, with a line of its own
        shutil.rmtree(place.base / "gone")
        meet(tries, 20)
        (place.base / "away").rename(place.b)
        eventually(lambda: state(replicator, place.b) == "following")
    assert warnings(log) == [f"{place.b} cannot be reached: no such directory"]


def test_a_backup_that_was_taken_out_by_hand_is_logged_in_one_line(
    place: Place, log: pytest.LogCaptureFixture, tries: threading.Semaphore
) -> None:
    place.make_set(place.b)
    with opened(place.b) as directory:
        change_roster(directory, lambda _: None)
    with running(place, place.a):
        eventually(lambda: warnings(log) != [])
        meet(tries, 20)
    (told,) = warnings(log)
    assert told.startswith(f"{place.b} cannot be followed: this wheel is not a backup of the set")


def test_a_backup_whose_rejoin_holds_it_for_a_moment_is_no_warning(place: Place, log: pytest.LogCaptureFixture) -> None:
    place.make_set(place.b)
    directory = open_directory(place.b, write=True)
    lock = KeeperLock(directory)
    lock.take("rejoin", wait=False)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.b) == "failed")
        lock.release()
        directory.disk.release()
        eventually(lambda: state(replicator, place.b) == "following")
    assert warnings(log) == []


def test_a_planned_promotion_and_the_return_of_the_old_primary_are_no_warnings(
    place: Place, log: pytest.LogCaptureFixture
) -> None:
    place.make_set(place.b, place.c)
    with running(place, place.a) as replicator:
        for new, old in ((place.b, place.a), (place.a, place.b)):
            eventually(lambda old=new: state(replicator, old) == "following")  # type: ignore[misc]
            place.enqueue(old, "x", delay=1000)
            eventually(lambda new=new, old=old: place.waiting(old) == place.waiting(new))  # type: ignore[misc]
            promote(new, env=SYSTEM.using(clock=place.clock))
            rejoin(old, env=SYSTEM.using(clock=place.clock))
            eventually(lambda old=old: state(replicator, old) == "following")  # type: ignore[misc]
    assert warnings(log) == []
    assert f"{place.b} is the primary now, epoch 2" in lines(log)


def test_a_promotion_that_was_cut_short_is_logged_when_it_lasts(
    place: Place, log: pytest.LogCaptureFixture, tries: threading.Semaphore
) -> None:
    place.make_set(place.b)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.b) == "following")
        for path in (place.a, place.b):
            with opened(path) as directory:
                change_roster(directory, lambda r: r and r.announced(2, "fenced" if path == place.a else "promoting"))  # noqa: B023
        eventually(lambda: any("a promotion has started and not ended" in text for text in warnings(log)))
        meet(tries, 20)
        promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)
    assert len([text for text in warnings(log) if "a promotion has started" in text]) == 1
