"""Recurring work through the scheduler: one living occurrence, always; what is missed, changed, removed, loaded.

Nothing sleeps here: the clock moves when it is told to, and `drain` calls what is due.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import zoneinfo
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import pytest

from filewheel import (
    BadArgument,
    DiskError,
    Every,
    GiveUp,
    Keeper,
    Message,
    Retry,
    RetryLater,
    Scheduler,
    Wheel,
    current_job,
)
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.live.health import check_health
from filewheel.message import HISTORY, KEY, SCHEDULE, US_PER_S, to_datetime
from filewheel.schedules.cron import Cron
from filewheel.schedules.recurrence import cron_of
from filewheel.tools.dump import dump, last_line, load, to_json
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock, eventually

START_S = START_US // US_PER_S
"""2027-01-15 08:00:00 UTC, a Friday; a full hour."""
YEAR_S = 365 * 86_400
Make = Callable[..., Scheduler]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START_US + US_PER_S // 2)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Where the wheel is; verified at the end."""
    yield tmp_path / "jobs.wheel"
    assert_whole(tmp_path / "jobs.wheel")


@pytest.fixture
def make(path: Path, clock: FakeClock) -> Iterator[Make]:
    """Make schedulers of one wheel, as one program after the other would."""
    made: list[Scheduler] = []

    def one(**options: Any) -> Scheduler:
        scheduler = Scheduler(path, clock=clock, sync="never", **options)
        made.append(scheduler)
        return scheduler

    yield one
    for scheduler in made:
        scheduler.stop()


def living(path: Path) -> list[Message]:
    """Return the occurrences that wait, of all schedules."""
    with Wheel(path) as wheel:
        return [m for m in wheel.list() if SCHEDULE in m.headers]


def the_living(path: Path) -> Message:
    """Return the one occurrence that waits; it holds its key."""
    (found,) = living(path)
    assert found.headers[KEY] == "filewheel.every:" + json.loads(found.headers[SCHEDULE])["name"]
    with Wheel(path) as wheel:
        holder = wheel.get(key=found.headers[KEY])
    assert holder is not None
    assert holder.id == found.id
    return found


def dead(path: Path) -> list[Message]:
    with Wheel(path) as wheel:
        return list(wheel.list(dead=True))


def noted(scheduler: Scheduler, clock: FakeClock, **definition: Any) -> list[float]:
    """Define a schedule whose handler notes when it is called, in seconds from the start."""
    calls: list[float] = []
    when = definition.pop("when", 10)

    @scheduler.every(when, **definition)
    def tick() -> None:
        calls.append((clock.now_us() - START_US) / US_PER_S)

    return calls


# -- when it is called ------------------------------------------------------------------------------------------------


def test_an_interval_is_called_once_each_interval_on_its_grid(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noted(scheduler, clock)
    assert scheduler.drain() == 0
    assert the_living(path).due_us == START_US + 10 * US_PER_S
    for _ in range(36):
        clock.advance(1)
        scheduler.drain()
        the_living(path)
    assert calls == [10.5, 20.5, 30.5]


def test_a_cron_expression_is_called_by_the_wall_of_its_zone(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when="30 9 * * mon-fri", tz="Europe/Berlin")
    scheduler.drain()
    for _ in range(4 * 24 * 2):  # from Friday, 9:00 in Berlin, to Tuesday
        clock.advance(1800)
        scheduler.drain()
    friday, monday = 1800.5, 1800.5 + 3 * 86_400
    assert calls == [friday, monday]
    assert the_living(path).due == datetime(2027, 1, 19, 8, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("night", "when", "calls"),
    [
        # From noon to noon, in Berlin: the night when 2:00 to 3:00 is not there, and the one when it is there twice.
        (datetime(2027, 3, 27, 11, tzinfo=UTC), "30 2 * * *", ["2027-03-28T01:00:00+00:00"]),
        (datetime(2027, 10, 30, 10, tzinfo=UTC), "30 2 * * *", ["2027-10-31T00:30:00+00:00"]),
        (datetime(2027, 10, 30, 10, tzinfo=UTC), "*/30 * * * *", 48),
        (datetime(2027, 3, 27, 11, tzinfo=UTC), "*/30 * * * *", 48),
    ],
    ids=["gap", "fold", "fold, each half hour", "gap, each half hour"],
)
def test_in_a_night_when_the_clocks_change_nothing_is_called_twice_or_left_out(
    make: Make, clock: FakeClock, path: Path, night: datetime, when: str, calls: list[str] | int
) -> None:
    clock.wall_us = int(night.timestamp()) * US_PER_S
    scheduler = make()
    called: list[str] = []

    @scheduler.every(when, tz="Europe/Berlin")
    def tick() -> None:
        called.append(to_datetime(clock.now_us()).isoformat())

    scheduler.drain()
    for _ in range(24 * 2):
        clock.advance(1800)
        scheduler.drain()
    assert (called if isinstance(calls, list) else len(called)) == calls
    the_living(path)


def test_a_handler_that_is_slower_than_its_interval_is_called_on_without_a_pile(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    begun: list[float] = []

    @scheduler.every(10)
    def slow() -> None:
        begun.append((clock.now_us() - START_US) / US_PER_S)
        if len(begun) < 4:
            clock.advance(35)

    scheduler.drain()
    clock.advance(10)
    scheduler.drain()
    # What comes due while it runs is called once when it has ended: not three times, and not never.
    assert begun == [10.5, 45.5, 80.5, 115.5]
    assert the_living(path).due_us == START_US + 120 * US_PER_S


@pytest.mark.parametrize(
    ("missed", "calls"),
    [("once", [605.5]), ("all", [605.5] * 60), ("skip", [])],
)
def test_what_passed_during_a_long_stop_is_called_as_the_schedule_says(
    make: Make, clock: FakeClock, path: Path, missed: str, calls: list[float]
) -> None:
    make_up = make()
    noted(make_up, clock, missed=missed)
    make_up.drain()
    make_up.stop()
    clock.advance(605)
    scheduler = make()
    found = noted(scheduler, clock, missed=missed, grace_s=60)
    scheduler.drain()
    assert found == calls
    assert the_living(path).due_us == START_US + 610 * US_PER_S
    clock.advance(10)
    scheduler.drain()
    assert found == [*calls, 615.5]
    assert not dead(path)


def test_what_is_late_within_its_grace_is_not_skipped(make: Make, clock: FakeClock) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, missed="skip", grace_s=30)
    scheduler.drain()
    clock.advance(10 + 29)
    scheduler.drain()
    assert calls == [39.5]


def test_a_clock_that_jumps_ten_years_ahead_makes_one_call(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when=0.001)
    scheduler.drain()
    clock.step(10 * YEAR_S)
    scheduler.drain()
    assert calls == [10 * YEAR_S + 0.5]
    assert the_living(path).due_us == clock.now_us() + 1000


def test_a_clock_that_is_put_back_calls_nothing_again(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when=60)
    scheduler.drain()
    clock.advance(60)
    scheduler.drain()
    clock.step(-50)
    for _ in range(4):
        clock.advance(20)
        scheduler.drain()
        the_living(path)
    assert calls == [60.5]
    clock.advance(40)
    scheduler.drain()
    assert calls == [60.5, 130.5]


@pytest.mark.parametrize("when", [60, "0 * * * *"])
def test_a_schedule_that_a_wrong_clock_sent_far_ahead_comes_back_when_its_program_starts(
    make: Make, clock: FakeClock, path: Path, when: object
) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when=when)
    scheduler.drain()
    clock.step(10 * YEAR_S)
    scheduler.drain()
    clock.step(-10 * YEAR_S)
    scheduler.stop()
    again = make()
    noted_again = noted(again, clock, when=when)
    again.drain()
    assert not noted_again
    assert the_living(path).due_us <= clock.now_us() + 3600 * US_PER_S
    clock.advance(3600)
    again.drain()
    assert len(calls) == len(noted_again) == 1


def test_an_occurrence_that_somebody_moved_ahead_stays_there(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when=60)
    scheduler.drain()
    scheduler.wheel.reschedule(key="filewheel.every:tick", delay=86_400)
    for _ in range(3):
        clock.advance(7200)
        scheduler.drain()
    assert not calls
    assert the_living(path).due_us == START_US + 86_400 * US_PER_S + US_PER_S // 2
    clock.advance(86_400)
    scheduler.drain()
    assert len(calls) == 1


# -- failures ---------------------------------------------------------------------------------------------------------


def test_an_occurrence_that_fails_is_tried_again_until_its_next_is_due(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    tried: list[float] = []

    @scheduler.every(10)
    @scheduler.on(retry=Retry(limit=100, delay_s=3, factor=1, jitter=0))
    def fails() -> None:
        tried.append((clock.now_us() - START_US) / US_PER_S)
        raise ValueError("broken")

    scheduler.drain()
    for _ in range(21):
        clock.advance(1)
        scheduler.drain()
        the_living(path)
    assert tried == [10.5, 13.5, 16.5, 19.5, 20.5]
    (letter,) = dead(path)
    assert SCHEDULE not in letter.headers
    assert KEY not in letter.headers
    assert letter.due_us is not None
    assert letter.headers["filewheel.reason"] == "ValueError: broken (after 4 attempts)"
    assert len(json.loads(letter.headers[HISTORY])) == 4


def test_a_retry_that_succeeds_is_followed_by_one_occurrence_without_a_history(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    tried: list[str] = []

    @scheduler.every(60)
    @scheduler.on(retry=Retry(limit=3, delay_s=5, jitter=0))
    def flaky() -> None:
        tried.append("")
        if len(tried) == 1:
            raise ValueError("broken")

    scheduler.drain()
    clock.advance(60)
    scheduler.drain()
    assert the_living(path).attempt == 1
    assert HISTORY in the_living(path).headers
    clock.advance(5)
    scheduler.drain()
    found = the_living(path)
    assert (len(tried), found.attempt, found.due_us) == (2, 0, START_US + 120 * US_PER_S)
    assert HISTORY not in found.headers
    assert found.root is None


@pytest.mark.parametrize("error", [GiveUp("no"), RetryLater(3600, "later")])
def test_an_occurrence_that_wants_no_retry_before_the_next_is_a_dead_letter_and_the_next_comes(
    make: Make, clock: FakeClock, path: Path, error: Exception
) -> None:
    scheduler = make()

    @scheduler.every(10)
    def gives_up() -> None:
        raise error

    scheduler.drain()
    for _ in range(3):
        clock.advance(10)
        scheduler.drain()
        the_living(path)
    assert len(dead(path)) == 3


def test_a_dead_occurrence_that_is_revived_is_called_once_and_followed_by_nothing(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    calls: list[int] = []

    @scheduler.every(10)
    def once_bad() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise GiveUp("no")

    scheduler.drain()
    clock.advance(10)
    scheduler.drain()
    (letter,) = dead(path)
    scheduler.wheel.reschedule(letter.id, delay=0)
    scheduler.drain()
    assert len(calls) == 2
    the_living(path)
    with Wheel(path) as wheel:
        assert len(list(wheel.list())) == 1


# -- definitions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["interval", "handler", "args", "missed", "nothing"])
def test_a_changed_definition_replaces_what_waits_and_the_same_one_does_not(
    make: Make, clock: FakeClock, path: Path, change: str
) -> None:
    def define(scheduler: Scheduler, *, changed: str | None = None) -> None:
        @scheduler.on("first")
        def first(to: str) -> None: ...

        @scheduler.on("second")
        def second(to: str) -> None: ...

        scheduler.every(
            20 if changed == "interval" else 10,
            name="report",
            args=["you" if changed == "args" else "me"],
            missed="all" if changed == "missed" else "once",
        )(second if changed == "handler" else first)

    old = make()
    define(old)
    old.drain()
    before = the_living(path)
    old.stop()
    new = make()
    define(new, changed=change)
    new.drain()
    after = the_living(path)
    assert (after.id == before.id) == (change == "nothing")
    assert after.topic == ("second" if change == "handler" else "first")
    clock.advance(20)
    assert new.drain() == (2 if change == "missed" else 1)
    the_living(path)


def test_a_definition_that_changes_while_the_old_one_runs_has_one_successor(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    calls: list[str] = []

    @scheduler.on("work")
    def work(what: str) -> None:
        calls.append(what)
        if what == "old":
            scheduler.schedule("report", 30, "work", ["new"])

    scheduler.schedule("report", 10, "work", ["old"])
    clock.advance(10)
    scheduler.drain()
    found = the_living(path)
    assert found.due_us == START_US + 30 * US_PER_S
    clock.advance(20)
    scheduler.drain()
    assert calls == ["old", "new"]


def test_a_schedule_that_is_removed_from_the_program_is_not_called_and_waits_until_it_is_unscheduled(
    make: Make, clock: FakeClock, path: Path
) -> None:
    old = make()
    noted(old, clock)
    old.drain()
    old.stop()
    new = make()
    calls: list[int] = []
    new.on("tick")(lambda: calls.append(1))
    for _ in range(3):
        clock.advance(600)
        new.drain()
    assert not calls
    found = the_living(path)
    assert (found.root and found.root.due_us, found.attempt) == (START_US + 10 * US_PER_S, 0)
    assert new.unschedule("tick")
    clock.advance(600)
    new.drain()
    assert not living(path)
    assert not dead(path)


def test_a_schedule_that_the_firing_program_does_not_declare_is_called_at_once_when_its_own_program_fires_again(
    make: Make, clock: FakeClock, path: Path
) -> None:
    old = make()
    noted(old, clock)
    old.drain()
    old.stop()
    other = make()
    clock.advance(60)
    other.drain()
    other.stop()
    clock.advance(1)
    again = make()
    called = noted(again, clock)
    assert again.drain() == 1
    assert called == [61.5]
    found = the_living(path)
    assert (found.due_us, found.waits, found.root) == (START_US + 70 * US_PER_S, None, None)


@pytest.mark.parametrize("how", ["reschedule", "retry", "bury"])
def test_an_occurrence_that_waited_and_moved_on_waits_no_more(
    make: Make, clock: FakeClock, path: Path, how: str
) -> None:
    scheduler = make()
    scheduler.schedule("cleanup", 3600, "clean")
    clock.advance(3600)
    scheduler.drain()
    waits = the_living(path).waits or ""
    assert waits.startswith("the schedule 'cleanup' waits: no handler is named 'clean'")
    assert f"process {os.getpid()}" in waits, "who fired then: another one may fire by now"

    @scheduler.on("clean", retry=Retry(limit=1 if how == "retry" else 0, delay_s=5, jitter=0))
    def clean() -> None:
        raise ValueError

    if how == "reschedule":
        scheduler.wheel.reschedule(key="filewheel.every:cleanup", delay=0)
    else:
        clock.advance(300)
        scheduler.drain()
    assert [m.waits for m in [*living(path), *dead(path)]] == [None] * (1 + (how == "bury"))


def test_an_occurrence_that_waited_for_its_program_is_too_late_by_its_own_due(
    make: Make, clock: FakeClock, path: Path
) -> None:
    old = make()
    noted(old, clock, when=3600, missed="skip")
    old.drain()
    old.stop()
    other = make()
    clock.advance(3600)
    other.drain()
    other.stop()
    clock.advance(299)
    again = make()
    called = noted(again, clock, when=3600, missed="skip")
    again.drain()
    assert called == []
    assert again.metrics.snapshot()["counters"]["missed"] == {"tick": 1}


def test_that_a_schedule_waits_is_logged_with_its_name_the_program_and_the_way_out(
    make: Make, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make()
    noted(old, clock)
    old.drain()
    old.stop()
    monkeypatch.setattr("sys.argv", ["/usr/bin/filewheel", "work", "app2:scheduler", "--secret"])
    clock.advance(60)
    caplog.clear()
    make().drain()
    (record,) = caplog.records
    assert (record.levelname, record.event) == ("WARNING", "unknown")  # type: ignore[attr-defined]
    said = record.getMessage()
    for words in (
        "the schedule 'tick' waits", f"process {os.getpid()} (`/usr/bin/filewheel work app2:scheduler`)",
        "@scheduler.every(..., name='tick')", "filewheel unschedule tick",
    ):  # fmt: skip
        assert words in said
    assert "secret" not in said


def test_a_removed_schedule_whose_call_waits_for_a_retry_is_not_tried_by_another_program(
    make: Make, clock: FakeClock, path: Path
) -> None:
    old = make()

    @old.every(60)
    @old.on(retry=Retry(limit=5, delay_s=5, jitter=0))
    def tick() -> None:
        raise ValueError

    old.drain()
    clock.advance(60)
    old.drain()
    assert the_living(path).attempt == 1
    old.stop()
    new = make()
    calls: list[int] = []
    new.on("tick")(lambda: calls.append(1))
    clock.advance(10)
    new.drain()
    assert not calls
    assert the_living(path).attempt == 1


def test_a_program_that_stands_by_starts_the_schedules_that_are_missing_and_changes_none(
    path: Path, make: Make, clock: FakeClock
) -> None:
    first = make()
    noted(first, clock, when=60)
    first.drain()
    second = make()
    noted(second, clock, when=90)
    second.every(30, name="more")(second.on("more")(lambda: None))
    with Keeper(path, clock=clock, background=False):
        second.start()
        eventually(lambda: len(living(path)) == 2)
        assert second.state == "standby"
        found = {s.name: s.recurrence for s in second.schedules()}
        second.stop()
    assert found == {"tick": Every(60), "more": Every(30)}


# -- what cannot be read here and now --------------------------------------------------------------------------------


@pytest.fixture
def zones(tmp_path: Path) -> Iterator[Path]:
    """A time zone database with the zone Old/Town, for the time of a test."""
    place = tmp_path / "zones"
    (place / "Old").mkdir(parents=True)
    berlin = next(Path(p) / "Europe/Berlin" for p in zoneinfo.TZPATH if (Path(p) / "Europe/Berlin").is_file())
    shutil.copy(berlin, place / "Old/Town")
    zoneinfo.reset_tzpath([str(place)])
    yield place
    zoneinfo.reset_tzpath()
    forget_zones()


def forget_zones() -> None:
    """Be another process: one that has read no zone yet."""
    ZoneInfo.clear_cache()
    cron_of.cache_clear()


def test_a_schedule_in_a_zone_that_this_machine_lacks_waits_and_goes_on_when_the_zone_is_there(
    make: Make, clock: FakeClock, path: Path, zones: Path
) -> None:
    scheduler = make()
    calls: list[str] = []
    scheduler.on("work")(calls.append)
    scheduler.schedule("far", "* * * * *", "work", ["far"], tz="Old/Town")
    scheduler.schedule("near", 60, "work", ["near"])
    town = (zones / "Old/Town").rename(zones / "elsewhere")
    forget_zones()
    clock.advance(60)
    scheduler.drain()
    assert calls == ["near"]
    found = {s.name: s for s in scheduler.schedules()}
    assert "'Old/Town' is not a time zone" in found["far"].unreadable
    assert "'Old/Town' is not a time zone" in (found["far"].occurrence.waits or "")
    assert [s.name for s in scheduler.schedules("far")] == ["far"]
    health = check_health(path, env=SYSTEM.using(clock=clock), needs_keeper=False, max_lag_s=0)
    assert health.failed == ()
    clock.advance(1)
    health = check_health(path, env=SYSTEM.using(clock=clock), needs_keeper=False, max_lag_s=0)
    assert [check.kind for check in health.failed] == ["late"]
    assert "'Old/Town' is not a time zone" in health.failed[0].text
    town.rename(zones / "Old/Town")
    clock.advance(300)
    scheduler.drain()
    assert calls[-2:] == ["near", "far"] or calls[-2:] == ["far", "near"]
    assert all(s.occurrence.waits is None and not s.unreadable for s in scheduler.schedules())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_zone_file_that_cannot_be_opened_at_that_moment_ends_no_schedule(
    make: Make, clock: FakeClock, zones: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    scheduler = make()
    calls: list[int] = []
    scheduler.on("work")(lambda: calls.append(1))
    scheduler.schedule("far", "* * * * *", "work", tz="Old/Town")

    class Unopened(ZoneInfo):
        def __new__(cls, key: str) -> Unopened:
            raise OSError(code, os.strerror(code), str(zones / key))

    with monkeypatch.context() as patch:
        patch.setattr("filewheel.schedules.zone.ZoneInfo", Unopened)
        cron_of.cache_clear()
        clock.advance(60)
        scheduler.drain()
        with pytest.raises(DiskError):
            Cron("* * * * *", "Old/Town")
    assert not calls
    clock.advance(300)
    scheduler.drain()
    assert calls == [1]


def test_the_zone_of_a_call_that_runs_is_known_at_its_end(
    make: Make, clock: FakeClock, path: Path, zones: Path
) -> None:
    scheduler = make()

    @scheduler.on()
    def work() -> None:
        (zones / "Old/Town").unlink()
        ZoneInfo.clear_cache()

    scheduler.schedule("far", "* * * * *", "work", tz="Old/Town")
    clock.advance(60)
    scheduler.drain()
    assert the_living(path).due_us == START_US + 120 * US_PER_S


def test_a_definition_that_cannot_be_read_is_replaced_by_the_program_that_declares_it_and_keeps_its_due(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    calls = noted(scheduler, clock, when=600)
    scheduler.drain()
    newer = the_living(path)
    stored = json.loads(newer.headers[SCHEDULE]) | {"missed": "tomorrow"}
    scheduler.cancel(newer.id)
    scheduler.wheel.enqueue(
        newer.payload, at=newer.due, topic="tick", key="filewheel.every:tick",
        headers={k: v for k, v in newer.headers.items() if k != KEY} | {SCHEDULE: json.dumps(stored)},
    )  # fmt: skip
    assert [s.unreadable for s in scheduler.schedules()] == ["missed is 'once', 'all' or 'skip', not 'tomorrow'"]
    clock.advance(700)
    scheduler.drain()
    assert calls == [700.5]
    assert the_living(path).due_us == START_US + 1200 * US_PER_S


def test_an_edit_of_a_schedule_that_cannot_be_read_says_so_and_starting_it_anew_keeps_its_due(
    make: Make, clock: FakeClock, zones: Path
) -> None:
    wheel = make().wheel
    wheel.schedule("far", "0 * * * *", b"x", tz="Old/Town")
    (zones / "Old/Town").unlink()
    forget_zones()
    clock.advance(4000)
    with pytest.raises(BadArgument, match="'far' cannot be read here: tz 'Old/Town'"):
        wheel.edit_schedule("far", payload=b"y")
    assert wheel.schedule("far", "0 * * * *", b"x", tz="UTC").due_us == START_US + 3600 * US_PER_S


def test_a_schedule_made_at_run_time_goes_on_in_a_program_that_does_not_know_it_until_it_is_unscheduled(
    make: Make, clock: FakeClock, path: Path
) -> None:
    first = make()
    first.schedule("cleanup", Every(10), "clean", ["tmp"], {"deep": True})
    first.stop()
    second = make()
    calls: list[object] = []

    @second.on("clean")
    def clean(what: str, deep: bool = False) -> None:
        calls.append((what, deep))

    for _ in range(3):
        clock.advance(10)
        second.drain()
        the_living(path)
    assert calls == [("tmp", True)] * 3
    assert second.unschedule("cleanup")
    assert not second.unschedule("cleanup")
    clock.advance(60)
    second.drain()
    assert len(calls) == 3
    assert not living(path)


def test_scheduling_the_same_twice_keeps_the_occurrence_that_waits(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    first = scheduler.schedule("cleanup", 10, "clean")
    clock.advance(3)
    assert scheduler.schedule("cleanup", 10, "clean") == first
    assert scheduler.schedule("cleanup", 20, "clean") != first
    the_living(path)


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_unscheduled_while_its_call_runs_it_has_no_successor_and_no_retry(
    make: Make, clock: FakeClock, path: Path, how: str
) -> None:
    scheduler = make()
    calls: list[int] = []

    @scheduler.on("clean")
    def clean() -> None:
        calls.append(1)
        assert scheduler.unschedule("cleanup")
        if how == "raises":
            raise ValueError

    scheduler.schedule("cleanup", 10, "clean")
    for _ in range(4):
        clock.advance(10)
        scheduler.drain()
    assert calls == [1]
    assert not living(path)
    assert not dead(path)


def test_ten_programs_that_define_the_same_have_one_occurrence(make: Make, clock: FakeClock, path: Path) -> None:
    schedulers = [make() for _ in range(10)]
    calls = [noted(s, clock) for s in schedulers]
    for scheduler in schedulers:
        scheduler.drain()
        the_living(path)
    clock.advance(10)
    for scheduler in schedulers:
        scheduler.drain()
        the_living(path)
    assert sorted(map(len, calls)) == [0] * 9 + [1]


@pytest.mark.parametrize("unknown", ["wait", "bury"])
def test_an_occurrence_whose_handler_is_not_there_waits_for_it(
    make: Make, clock: FakeClock, path: Path, unknown: str
) -> None:
    scheduler = make(unknown=unknown)
    scheduler.schedule("cleanup", 10, "clean")
    for _ in range(5):
        clock.advance(10)
        scheduler.drain()
        the_living(path)
    assert not dead(path)
    scheduler.stop()
    later = make(unknown=unknown)
    calls: list[int] = []
    later.on("clean")(lambda: calls.append(1))
    clock.advance(300)
    later.drain()
    assert len(calls) == 1
    clock.advance(10)
    later.drain()
    assert len(calls) == 2
    the_living(path)


def test_two_schedules_of_one_handler_live_side_by_side(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make()
    calls: list[str] = []

    @scheduler.every(10, name="often", args=["often"])
    @scheduler.every(30, name="seldom", args=["seldom"])
    def tick(which: str) -> None:
        calls.append(which)

    scheduler.drain()
    for _ in range(6):
        clock.advance(10)
        scheduler.drain()
        assert len(living(path)) == 2
    assert sorted(calls) == ["often"] * 6 + ["seldom"] * 2


def test_what_an_occurrence_enqueues_in_its_transaction_comes_with_the_next_occurrence(
    make: Make, clock: FakeClock, path: Path
) -> None:
    scheduler = make()
    steps: list[int] = []

    @scheduler.on()
    def step(number: int) -> None:
        steps.append(number)

    @scheduler.every(10)
    def begin() -> None:
        with current_job().transaction():
            step.enqueue(len(steps))

    scheduler.drain()
    for _ in range(3):
        clock.advance(10)
        scheduler.drain()
    assert steps == [0, 1, 2]
    the_living(path)


def test_an_occurrence_that_is_dumped_and_loaded_elsewhere_recurs_there(
    make: Make, clock: FakeClock, path: Path, tmp_path: Path
) -> None:
    scheduler = make()
    scheduler.schedule("cleanup", 10, "clean", ["tmp"])
    with Wheel(path) as wheel:
        lines = [json.dumps(to_json(m)) for m in dump(wheel)]
    other = Scheduler(tmp_path / "other.wheel", clock=clock, sync="never")
    other.wheel.add(load([*lines, last_line(len(lines))]))
    calls: list[str] = []

    @other.on("clean")
    def clean(what: str) -> None:
        calls.append(what)

    clock.advance(10)
    other.drain()
    clock.advance(10)
    other.drain()
    assert calls == ["tmp", "tmp"]
    the_living(tmp_path / "other.wheel")
    other.stop()
    assert_whole(tmp_path / "other.wheel")


# -- one frame --------------------------------------------------------------------------------------------------------


class Telling(OsDisk):
    """A disk that tells what was written to the journals."""

    writes: ClassVar[list[bytes]] = []

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.names: dict[int, str] = {}

    def open(self, name: str, mode: str) -> int:
        fd = super().open(name, mode)
        self.names[fd] = name
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        super().pwrite(fd, data, offset)
        if self.names.get(fd, "").startswith("journal/") and any(data):
            self.writes.append(data)


def test_the_next_occurrence_is_in_the_frame_that_ends_this_one(make: Make, clock: FakeClock, path: Path) -> None:
    scheduler = make(env=SYSTEM.using(disk=Telling))
    calls = noted(scheduler, clock)
    scheduler.drain()
    this = the_living(path)
    clock.advance(10)
    Telling.writes.clear()
    scheduler.drain()
    following = the_living(path)
    assert len(calls) == 1
    (frame,) = [w for w in Telling.writes if this.id in w]
    assert following.id in frame


@pytest.mark.parametrize("ticks", [1, 3])
def test_a_clock_that_is_put_right_while_an_occurrence_runs_does_not_send_the_next_years_ahead(
    make: Make, path: Path, clock: FakeClock, ticks: int
) -> None:
    scheduler = make()
    called: list[int] = []

    @scheduler.every(1)
    def tick() -> None:
        called.append(1)
        if len(called) == ticks:
            clock.step(-50 * 366 * 86_400)

    scheduler.drain()
    clock.advance(1)
    clock.step(50 * 366 * 86_400)
    while len(called) < ticks:
        scheduler.drain()
        clock.advance(1)
    (occurrence,) = living(path)
    assert 0 <= occurrence.due_us - clock.now_us() + US_PER_S <= 2 * US_PER_S
