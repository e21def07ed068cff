"""Pauses of a set: a promotion keeps them, whichever wheel is lost, and an older copy never wins over a newer one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filewheel import Fenced, Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.paused import change_pauses
from filewheel.errors import Damaged
from filewheel.format.pauses import Pause, Pauses
from filewheel.sets import pauses
from filewheel.sets.members import add_backup, remove_backup
from filewheel.sets.promote import Promotion, promote
from filewheel.sets.rejoin import rejoin
from filewheel.tools.repair import repair
from tests.sets.support_sets import Place, place
from tests.support_set import alter

__all__ = ["place"]


def go(place: Place, path: Path) -> Promotion:
    return promote(str(path), env=SYSTEM.using(clock=place.clock), wait_s=0)


def paused(path: Path) -> Pauses:
    with Wheel(path) as wheel:
        return wheel.paused()


def pause(path: Path, topic: str) -> None:
    with Wheel(path) as wheel:
        wheel.pause(topic=topic, why="test")


def test_a_pause_is_in_every_wheel_of_the_set_when_it_returns_and_a_promotion_keeps_it(place: Place) -> None:
    place.make_set(place.b, place.c)
    pause(place.a, "mail")
    assert paused(place.a) == paused(place.b) == paused(place.c)
    with Wheel(place.a) as wheel:
        wheel.enqueue(b"m", topic="mail")
        wheel.enqueue(b"o", topic="other")
    place.level(place.a)
    shutil.rmtree(place.a)
    done = go(place, place.b)
    assert str(done.paused) == "topic mail"
    assert "paused, as before: topic mail; `filewheel resume` ends it" in done.notes
    assert place.fire(place.b) == ["o"]
    with Wheel(place.b) as wheel:
        assert wheel.resume(topic="mail")
    assert place.fire(place.b) == ["m"]


def test_a_wheel_that_could_not_be_reached_is_named_and_gets_the_pause_from_the_replicator(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.make_set(place.b)
    place.b.rename(place.base / "away")
    pause(place.a, "mail")
    assert f"{place.b} did not get this change" in caplog.text
    (place.base / "away").rename(place.b)
    assert not paused(place.b)
    place.level(place.a)
    assert paused(place.b) == paused(place.a)
    with Wheel(place.a) as wheel:
        wheel.resume(topic="mail")
    assert not paused(place.b)


def test_a_promotion_takes_the_newest_pauses_of_all_wheels_that_can_be_read(place: Place) -> None:
    place.make_set(place.b, place.c)
    pause(place.a, "old")
    place.c.rename(place.base / "away")
    pause(place.a, "new")
    (place.base / "away").rename(place.c)
    shutil.rmtree(place.a)
    assert str(paused(place.c)) == "topic old"
    assert str(go(place, place.c).paused) == "topic old, topic new"


def test_a_change_after_a_promotion_is_newer_than_any_of_the_former_primary(place: Place) -> None:
    place.make_set(place.b, place.c)
    for topic in "xyz":
        pause(place.a, topic)
    place.b.rename(place.base / "away")
    pause(place.a, "only here")  # and in c
    (place.base / "away").rename(place.b)
    place.a.rename(place.base / "lost")
    place.c.rename(place.base / "lost too")
    go(place, place.b)
    with Wheel(place.b) as wheel:
        wheel.resume(everything=True)
    (place.base / "lost").rename(place.a)
    (place.base / "lost too").rename(place.c)
    rejoin(str(place.a), env=SYSTEM.using(clock=place.clock))
    place.level(place.b)
    assert paused(place.a) == paused(place.b) == paused(place.c)
    assert not paused(place.a)
    assert not go(place, place.c).paused


def test_a_backup_and_a_fenced_wheel_are_not_paused_and_name_the_primary(place: Place) -> None:
    place.make_set(place.b)
    with Wheel(place.b) as wheel, pytest.raises(Fenced, match=f"backup of {place.a}"):
        wheel.pause()
    go(place, place.b)
    with Wheel(place.a) as wheel, pytest.raises(Fenced, match=r"was promoted in place"):
        wheel.pause()
    assert not paused(place.a)
    assert not paused(place.b)


def test_a_former_primary_that_has_not_heard_of_the_promotion_is_not_paused_either(place: Place) -> None:
    place.make_set(place.b)
    place.a.rename(place.base / "away")
    go(place, place.b)
    (place.base / "away").rename(place.a)
    with Wheel(place.a) as wheel, pytest.raises(Fenced, match=r"was promoted in place"):
        wheel.pause()
    assert not paused(place.b)


def test_a_wheel_that_is_fenced_between_the_check_and_the_change_is_not_paused(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b)
    with Wheel(place.a) as wheel:
        seen = pauses.Peers.seen

        def then_fenced(*args: object) -> object:
            found = seen(*args)  # type: ignore[arg-type]
            monkeypatch.undo()
            alter(place.a, role="fenced")
            return found

        monkeypatch.setattr(pauses.Peers, "seen", then_fenced)
        with pytest.raises(Fenced):
            wheel.pause()
        assert not wheel.paused()


def test_a_wheel_that_joins_a_set_is_paused_as_the_set_is_from_the_start(place: Place) -> None:
    place.make(place.a)
    place.make(place.b)
    pause(place.b, "its own")
    pause(place.a, "mail")
    add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert paused(place.b) == paused(place.a)
    remove_backup(place.a, str(place.b))
    assert str(paused(place.b)) == "topic mail"


def test_a_copy_is_replaced_by_a_newer_one_only(place: Place) -> None:
    place.make_set(place.b)
    newer = Pauses((Pause("topic", "newer"),), epoch=1, version=99)
    change_pauses(open_directory(place.b, write=True), lambda _: newer)
    pause(place.a, "mail")
    assert paused(place.b) == newer  # until the replicator follows the primary
    place.level(place.a)
    assert paused(place.b) == paused(place.a)


@pytest.mark.damages
def test_a_damaged_copy_is_replaced_and_a_damaged_primary_takes_nothing_from_its_backup(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.make_set(place.b)
    pause(place.a, "mail")
    (place.b / "paused.json").write_bytes(b"{}")
    place.level(place.a)
    assert "it is replaced by the primary's" in caplog.text
    assert str(paused(place.b)) == "topic mail"
    (place.a / "paused.json").write_bytes(b"{}")
    place.level(place.a)
    assert str(paused(place.b)) == "topic mail"
    done = go(place, place.b)
    assert str(done.paused) == "topic mail"
    assert any("fails its checksum" in note for note in done.notes)


def test_a_damaged_file_of_the_wheel_to_be_promoted_is_replaced_by_a_copy_or_refuses_the_promotion(
    place: Place,
) -> None:
    place.make_set(place.b)
    pause(place.a, "mail")
    (place.b / "paused.json").write_bytes(b"{}")
    assert str(go(place, place.b).paused) == "topic mail"
    (place.b / "paused.json").write_bytes(b"{}")
    with pytest.raises(Damaged, match="list of pauses"):
        Keeper(place.b)
    repair(open_directory(place.b, write=True))
    assert str(paused(place.b)) == "the wheel"
    shutil.rmtree(place.b / "quarantine")
    (place.b / "quarantine").mkdir()
