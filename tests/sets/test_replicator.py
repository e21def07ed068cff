"""The replicator: threads on real directories, through losses and promotions; what it releases."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import BadArgument, FilewheelError
from filewheel.roster import fence
from filewheel.sets.link import LinkReport
from filewheel.sets.members import add_backup, remove_backup
from filewheel.sets.promote import promote
from filewheel.sets.rejoin import rejoin
from filewheel.sets.replicator import Replicator
from filewheel.sets.status import find_primary
from tests.sets.support_sets import Place, in_thread, place, role_of
from tests.support import FaultyDisk, eventually

__all__ = ["place"]


@contextmanager
def running(place: Place, path: Path, disk: object = OsDisk) -> Iterator[Replicator]:
    with Replicator(path, interval_s=0.005, env=SYSTEM.using(clock=place.clock, disk=disk)) as replicator:  # type: ignore[arg-type]
        thread = in_thread(replicator.run)
        try:
            yield replicator
        finally:
            replicator.stop()
            thread.join(120)
            assert not thread.is_alive()
            assert not [t for t in threading.enumerate() if t.name.startswith("filewheel-link")]


def equal(place: Place, *paths: Path) -> None:
    """Wait until wheels hold the same."""

    def seen() -> bool:
        try:
            found = [place.waiting(path) for path in paths]
        except FilewheelError:
            return False
        return all(one == found[0] for one in found)

    eventually(seen)


def state(replicator: Replicator, path: Path) -> str:
    return next((r.state for r in replicator.status() if r.path == str(path)), "none")


def segments(place: Place) -> list[str]:
    return (
        [n for n in os.listdir(place.a / "retained") if n.endswith(".log")] if (place.a / "retained").exists() else []
    )


def test_backups_come_and_go_while_it_runs(place: Place) -> None:
    place.make_set(place.b)
    with running(place, place.a) as replicator:
        place.enqueue(place.a, "x", delay=1000)
        equal(place, place.a, place.b)
        add_backup(place.a, place.c, env=SYSTEM.using(clock=place.clock))
        equal(place, place.a, place.c)
        remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
        eventually(lambda: state(replicator, place.b) == "none")
        place.enqueue(place.a, "y", delay=1000)
        equal(place, place.a, place.c)
        assert place.payloads(place.b) == ["x"]


def test_a_backup_that_went_away_and_came_back_gets_what_it_missed(place: Place) -> None:
    place.make_set(place.b, place.c)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.b) == "following")
        place.b.rename(place.base / "away")
        shutil.copytree(place.base / "away", place.base / "older", ignore=shutil.ignore_patterns("hint"))
        shutil.rmtree(place.base / "away")  # whoever has it open writes to what nobody sees any more
        place.enqueue(place.a, "missed", delay=1000)
        equal(place, place.a, place.c)
        (place.base / "older").rename(place.b)
    (report, _) = place.level(place.a)
    assert report.error == ""
    assert place.waiting(place.a) == place.waiting(place.b) == place.waiting(place.c)


def test_a_backup_that_moved_is_followed_where_it_is_registered_now(place: Place) -> None:
    place.make_set(place.b)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.b) == "following")
        place.b.rename(place.c)
        add_backup(place.a, place.c, env=SYSTEM.using(clock=place.clock))
        place.enqueue(place.a, "x", delay=1000)
        eventually(lambda: state(replicator, place.c) == "following")
        equal(place, place.a, place.c)


def test_a_second_one_says_that_it_is_locked_out_and_takes_over(place: Place) -> None:
    place.make_set(place.b)
    with running(place, place.a) as first:
        eventually(lambda: state(first, place.b) == "following")
        with running(place, place.a) as second:
            eventually(lambda: any("is replicating to it" in r.error for r in second.status()))
            first.stop()
            eventually(lambda: state(second, place.b) == "following")
            place.enqueue(place.a, "x", delay=1000)
            equal(place, place.a, place.b)


def test_through_a_promotion_and_the_return_of_the_old_primary_it_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "_FENCE_S", 0.0)
    place.make_set(place.b, place.c)
    with running(place, place.a):
        place.enqueue(place.a, "x", delay=1000)
        equal(place, place.a, place.b, place.c)
        promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)
        place.enqueue(place.b, "y", delay=1000)
        equal(place, place.b, place.c)
        rejoin(place.a, env=SYSTEM.using(clock=place.clock))
        equal(place, place.b, place.a)
        assert place.payloads(place.a) == ["x", "y"]


def test_when_the_wheel_that_it_was_started_with_is_lost_it_goes_on_from_the_new_primary(place: Place) -> None:
    place.make_set(place.b, place.c)
    with running(place, place.a) as replicator:
        eventually(lambda: state(replicator, place.c) == "following")
        place.a.rename(place.base / "lost")
        promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)
        place.enqueue(place.b, "y", delay=1000)
        equal(place, place.b, place.c)
    shutil.rmtree(place.base / "lost")


def test_restarted_it_goes_on_where_it_was(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, *"abcdefgh", delay=1000)
    place.level(place.a)
    place.enqueue(place.a, "x", "y", delay=1000)
    (report,) = place.level(place.a)
    assert (report.state, report.healed, report.returned) == ("following", 0, 0)
    assert 100 < report.copied_bytes < 1000


def test_it_can_be_stopped_by_a_signal(place: Place) -> None:
    place.make_set(place.b)
    replicator = Replicator(place.a, env=SYSTEM.using(clock=place.clock))
    before = signal.signal(signal.SIGUSR1, lambda *_: replicator.stop())
    try:
        killer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
        killer.start()
        replicator.run()
        killer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert role_of(place.b) == "backup"


def test_once_with_a_backup_out_of_reach_brings_the_other_in_step_and_releases_nothing(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, *"abc")
    place.fire(place.a)
    was = segments(place)
    place.b.rename(place.base / "away")
    reports = place.level(place.a)
    assert [(r.state, bool(r.error)) for r in reports] == [("unreachable", True), ("following", False)]
    assert set(was) <= set(segments(place))
    (place.base / "away").rename(place.b)
    assert [r.error for r in place.level(place.a)] == ["", ""]
    assert place.waiting(place.b) == {}


def test_a_disk_that_fails_under_one_backup_does_not_hold_up_the_other(place: Place) -> None:
    place.make_set(place.b, place.c)
    told: list[LinkReport] = []

    def disk(path: str) -> OsDisk:
        def fail(kind: str, name: str) -> None:
            if path == str(place.b) and kind == "fdatasync" and name == "ticks":
                raise OSError(5, "Input/output error")

        return FaultyDisk(path, fail)

    with running(place, place.a, disk) as replicator:
        replicator._on_change = told.append
        place.enqueue(place.a, *"abc", delay=1000)
        equal(place, place.a, place.c)
        eventually(lambda: any(r.path == str(place.b) and r.state == "failed" for r in [*told, *replicator.status()]))
    place.level(place.a)
    assert place.waiting(place.a) == place.waiting(place.b)


def test_under_load_every_wheel_holds_the_same_when_it_is_quiet(place: Place) -> None:
    place.make_set(place.b, place.c)
    with running(place, place.a):
        with (
            Wheel(place.a, clock=place.clock, sync=0.01) as wheel,
            Keeper(place.a, clock=place.clock) as keeper,
        ):
            for n in range(300):
                wheel.enqueue(b"%d" % n, delay=0 if n % 3 else 5000)
                if n % 20 == 0:
                    keeper.ack(keeper.claim())
            eventually(lambda: not keeper.ack(keeper.claim()) and len(place.waiting(place.a)) == 100)
        equal(place, place.a, place.b, place.c)


def test_when_the_set_is_dissolved_it_ends_with_an_error(place: Place) -> None:
    place.make_set(place.b)
    remaining: list[BaseException] = []

    with Replicator(place.a, interval_s=0.005, env=SYSTEM.using(clock=place.clock)) as replicator:

        def run() -> None:
            try:
                replicator.run()
            except BadArgument as exc:
                remaining.append(exc)

        thread = in_thread(run)
        eventually(lambda: state(replicator, place.b) == "following")
        remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
        thread.join(120)
    assert len(remaining) == 1
    with pytest.raises(BadArgument, match="interval_s"):
        Replicator(place.a, interval_s=0)


def test_the_primary_is_found_from_every_wheel_by_the_highest_epoch(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.a.rename(place.base / "away")
    with pytest.raises(FilewheelError, match="the primary of this set, cannot be read"):
        find_primary(str(place.c), SYSTEM)
    promote(place.b, env=SYSTEM.using(clock=place.clock), wait_s=0)
    (place.base / "away").rename(place.a)
    assert {find_primary(str(p), SYSTEM)[0] for p in (place.a, place.b, place.c)} == {str(place.b)}


@pytest.mark.parametrize("after", range(2))
def test_an_error_of_one_backup_lets_go_of_all_and_the_next_pass_brings_them_in_step(place: Place, after: int) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x", delay=1000)
    left = [after]

    def fail(kind: str, name: str) -> None:
        if kind == "fdatasync" and name == "ticks":
            left[0] -= 1
            if left[0] == -1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    replicator = Replicator(
        place.a, interval_s=0.001, env=SYSTEM.using(clock=place.clock, disk=lambda path: FaultyDisk(path, fail))
    )
    try:
        said = [r.error for r in replicator.once()]
    except FilewheelError as exc:
        said = [str(exc)]
    assert any("Input/output error" in error for error in said)
    assert not any(r.error for r in replicator.once())
    assert place.waiting(place.a) == place.waiting(place.b) == place.waiting(place.c)
