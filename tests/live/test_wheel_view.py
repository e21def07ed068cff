"""A view of a wheel: opened when it can be, and always of the wheel that is there now."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from filewheel import Keeper, NoWheel, Poisoned, Scheduler, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from filewheel.live import all_metrics
from filewheel.live.overview import live_fields, overview_fields
from filewheel.live.wheel_view import CHECK_S, WheelView
from filewheel.message import SCHEDULE
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.published import publish
from tests.cli.support import Fw
from tests.conftest import assert_whole
from tests.support import FakeClock, FaultyDisk, eventually, open_below
from tests.support_set import make_set


def view_of(path: Path, clock: FakeClock) -> WheelView:
    return WheelView(path, env=SYSTEM.using(clock=clock))


def test_a_wheel_that_is_made_later_is_shown_from_then_on(tmp_path: Path, clock: FakeClock) -> None:
    path = tmp_path / "later.wheel"
    with view_of(path, clock) as view:
        with pytest.raises(NoWheel):
            view.stats()
        with Wheel.create(path) as wheel:
            wheel.enqueue(b"x", delay=60)
        assert view.stats().value.pending == 1
    assert_whole(path)


def test_a_wheel_that_was_replaced_is_the_new_one_within_seconds(wheel_dir: Path, clock: FakeClock) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)
    with view_of(wheel_dir, clock) as view:
        assert view.stats().value.pending == 1
        wheel_dir.rename(wheel_dir.with_name("moved"))
        with Wheel.create(wheel_dir) as wheel:
            wheel.enqueue_many([b"y"] * 3, delay=60)
        clock.advance(CHECK_S + 1)
        assert view.stats().value.pending == 3
        shutil.rmtree(wheel_dir)
        clock.advance(CHECK_S + 1)
        with pytest.raises(NoWheel):
            view.stats()
        Wheel.create(wheel_dir).close()
        assert view.stats().value.pending == 0


def test_a_view_leaves_no_file_open_and_writes_nothing(wheel_dir: Path, clock: FakeClock) -> None:
    Fw(wheel_dir).enqueue("--in", "1h", "x")
    before = sorted((p.relative_to(wheel_dir), p.stat().st_mtime_ns) for p in wheel_dir.rglob("*"))
    with view_of(wheel_dir, clock) as view:
        overview_fields(view)
        view.schedules()
        view.topics()
        clock.advance(CHECK_S + 1)
        overview_fields(view)
    assert open_below(wheel_dir) == []
    assert sorted((p.relative_to(wheel_dir), p.stat().st_mtime_ns) for p in wheel_dir.rglob("*")) == before


@pytest.mark.damages
def test_of_a_damaged_wheel_all_is_shown_that_can_be_read(wheel_dir: Path) -> None:
    fw = Fw(wheel_dir)
    fw.enqueue("--in", "1h", "x")
    fw.enqueue("--in", "40d", "y")
    fw.deal()
    sorted(wheel_dir.glob("laps/*.lap"))[0].unlink()
    with WheelView(wheel_dir) as view:
        found = live_fields(view)
        assert found["stats"]["damaged"] == 1
        assert found["stats"]["pending"] == 1


@pytest.mark.damages
def test_metrics_that_cannot_be_read_are_a_trouble_and_hide_nothing_else(wheel_dir: Path) -> None:
    Fw(wheel_dir).enqueue("--in", "1h", "x")
    (wheel_dir / layout.METRICS).write_bytes(b"\x00" * 40)
    with WheelView(wheel_dir) as view:
        found = live_fields(view)
    assert found["rates"] is None
    assert [trouble["part"] for trouble in found["troubles"]] == ["rates"]
    assert found["stats"]["pending"] == 1


def test_what_a_scheduler_published_gives_rates(wheel_dir: Path, clock: FakeClock) -> None:
    metrics = Metrics()
    metrics.count("fired", "mail", 3)
    publish(metrics, open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
    with view_of(wheel_dir, clock) as view:
        rates = view.rates()
        assert rates is not None
        assert rates.is_stale, "no keeper runs"


def test_schedules_are_found_with_their_next_times_and_followed(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel_dir, clock=clock)
    for n in range(12):
        scheduler.schedule(f"report:{n:02}", 100 + n, "report", [n])
    scheduler.enqueue("mail", ["ann"])
    with Wheel(wheel_dir, clock=clock) as wheel, view_of(wheel_dir, clock) as view:
        wheel.enqueue_many([b"x"] * 300, delay=50)
        wheel.enqueue(b"no schedule", delay=1, headers={"k": f"it only names {SCHEDULE}"})
        Fw(wheel_dir).deal()
        found = view.schedules().value
        assert sorted(stored.name for stored in found.found) == [f"report:{n:02}" for n in range(12)]
        dues = [stored.occurrence.due_us for stored in found.found]
        assert dues == sorted(dues)
        assert not found.is_cut
        scheduler.unschedule("report:03")
        wheel.reschedule(key="filewheel.every:report:11", delay=1)
        clock.advance(3)
        names = [stored.name for stored in view.schedules().value.found]
        assert names[0] == "report:11"
        assert sorted(names) == [f"report:{n:02}" for n in range(12) if n != 3]
    scheduler.stop()


def test_a_backup_is_shown_as_one(tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    make_set(primary, backup)
    with WheelView(backup) as view:
        found = live_fields(view)
    assert found["set"]["role"] == "backup"
    assert found["set"]["primary"] == str(primary)
    with WheelView(primary) as view:
        assert [one["path"] for one in live_fields(view)["set"]["backups"]] == [str(backup)]


def test_what_runs_is_not_late_in_the_metrics_of_the_page_and_of_the_shell(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper, WheelView(wheel_dir) as view:
        wheel.enqueue(b"long", delay=-5)
        batch = eventually(keeper.claim)
        assert view.turning().value.overdue == 0
        assert view.turning().value.begun == all_metrics.overdue(view).running == wheel.overdue().running == 1
        assert all_metrics.overdue(view).count == wheel.overdue().count == 0
        assert all_metrics.overdue(view).lag_us == wheel.overdue().lag_us == 0
        keeper.ack(batch)


def test_after_a_flush_that_failed_the_page_acts_on_a_wheel_that_was_opened_anew(wheel_dir: Path) -> None:
    broken: list[bool] = []

    def fail(kind: str, name: str) -> None:
        if broken and kind == "fdatasync" and "journal" in name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with Wheel(wheel_dir) as wheel:
        first, other = wheel.enqueue(b"", delay=60), wheel.enqueue(b"", delay=60)
    with WheelView(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as view:
        broken.append(True)
        with pytest.raises(Poisoned):
            view.wheel().cancel(first)
        broken.clear()
        assert view.wheel().cancel(other)
        assert view.stats().value.pending == 0
