"""A handle's standing: who may write and fire, by its own roster and by those of the other wheels that can be seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import DiskFactory
from filewheel.errors import Damaged, DiskError, Fenced
from filewheel.message import US_PER_S
from filewheel.roster.fence import Fence
from filewheel.roster.roster import Member, change_roster
from tests.support import FaultyDisk
from tests.support_set import alter, fence, make_set, open_wheel, promote, roster_of


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tmp_path / "a"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "b"


@contextmanager
def fence_of(path: Path, disk: DiskFactory = OsDisk) -> Iterator[Fence]:
    fence = Fence(open_directory(path, write=True, env=SYSTEM.using(disk=disk)))
    try:
        yield fence
    finally:
        fence.close()


def test_a_wheel_that_stands_alone_may_write_and_fire(a: Path) -> None:
    open_wheel(a)
    with fence_of(a) as fence:
        assert fence.roster is None
        fence.check_may_write()
        fence.check_may_fire(0)


def test_a_primary_may_write_and_fire_and_a_backup_may_neither(a: Path, b: Path) -> None:
    make_set(a, b)
    with fence_of(a) as fence:
        fence.check_may_write()
        fence.check_may_fire(0)
    with fence_of(b) as fence:
        for check in (fence.check_may_write, lambda: fence.check_may_fire(0)):
            with pytest.raises(Fenced, match=f"backup of {a}") as caught:
                check()
            assert (caught.value.primary, caught.value.epoch, caught.value.path) == (str(a), 1, str(b))


def test_a_look_tells_of_a_roster_that_was_replaced_once(a: Path, b: Path) -> None:
    open_wheel(a)
    with fence_of(a) as fence:
        assert not fence.look()
        make_set(a, b)
        assert fence.look()
        assert not fence.look()
        assert fence.roster == roster_of(a)
        alter(a, copies=2)
        assert fence.look()


def test_of_two_that_were_promoted_to_one_epoch_one_goes_on(a: Path, b: Path) -> None:
    """Neither could see the other; now they can."""
    make_set(a, b, epoch=3)
    ids = {path: open_wheel(path).settings.id for path in (a, b)}
    for path, other in ((a, b), (b, a)):
        member = Member(str(other), ids[other], "ship", "fenced")
        alter(path, role="primary", epoch=4, primary=str(path), primary_wheel=ids[path], members=(member,))
    loser, winner = sorted((a, b), key=lambda path: ids[path])
    with fence_of(winner) as fence:
        fence.check_may_fire(0)
    with fence_of(loser) as fence, pytest.raises(Fenced, match=str(winner)):
        fence.check_may_fire(0)
    assert (roster_of(loser).role, roster_of(loser).primary) == ("fenced", str(winner))
    with fence_of(winner) as fence:
        fence.check_may_fire(2_000_000)


def test_when_the_roster_has_gone_nothing_is_written_nor_fired(a: Path, b: Path) -> None:
    make_set(a, b)
    with fence_of(a) as fence:
        os.unlink(a / "roster.json")
        for _ in range(2):
            with pytest.raises(Fenced, match="is gone"):
                fence.look()
            with pytest.raises(Fenced, match="is gone"):
                fence.check_may_fire(0)


def test_a_wheel_without_its_roster_is_no_wheel_that_stands_alone_while_it_was_not_taken_out(a: Path, b: Path) -> None:
    """Somebody deletes the directory file by file: what is enqueued now would be in no other wheel."""
    make_set(a, b)
    (a / "roster.json").unlink()
    with pytest.raises(Fenced, match="is gone, and perhaps the wheel"), fence_of(a):
        pass
    with Wheel(a) as wheel, pytest.raises(Fenced, match="use another wheel"):
        wheel.enqueue(b"x")
    (a / "roster.lock").unlink()
    with fence_of(a) as fence:
        fence.check_may_fire(0)


def test_a_wheel_that_was_taken_out_of_its_set_stands_alone(a: Path, b: Path) -> None:
    make_set(a, b)
    change_roster(open_directory(a, write=True), lambda _: None)
    with fence_of(a) as fence:
        assert fence.roster is None
        fence.check_may_fire(0)


def test_a_wheel_of_the_set_with_a_higher_epoch_fences_this_one_which_writes_it_down(a: Path, b: Path) -> None:
    make_set(a, b)
    with fence_of(a) as fence:
        fence.check_may_fire(0)
        promote(b)
        with pytest.raises(Fenced, match=f"{b} was promoted") as caught:
            fence.check_may_fire(1)
        assert (caught.value.primary, caught.value.epoch) == (str(b), 2)
    mine = roster_of(a)
    assert (mine.role, mine.epoch, mine.primary) == ("fenced", 2, str(b))
    with fence_of(a) as fence, pytest.raises(Fenced):
        fence.check_may_write()


def test_a_backup_that_was_told_of_the_promotion_is_enough_where_the_new_primary_cannot_be_seen(
    a: Path, b: Path, tmp_path: Path
) -> None:
    c = tmp_path / "c"
    make_set(a, b, c)
    promote(b)
    alter(c, epoch=2, primary=str(b), primary_wheel=roster_of(b).primary_wheel)
    b.rename(tmp_path / "unmounted")
    with fence_of(a) as fence, pytest.raises(Fenced, match=f"{b} was promoted in place of this wheel"):
        fence.check_may_fire(0)


def test_another_set_at_the_path_of_a_member_fences_nothing(a: Path, b: Path) -> None:
    make_set(a, b)
    alter(b, set="another", epoch=9)
    with fence_of(a) as fence:
        fence.check_may_fire(0)


@pytest.mark.parametrize("what", ["gone", "not a wheel", "damaged", "removed from the set"])
def test_a_wheel_that_cannot_be_seen_does_not_keep_this_one_from_firing(a: Path, b: Path, what: str) -> None:
    make_set(a, b)
    promote(b)
    if what == "gone":
        b.rename(b.with_name("x"))
    elif what == "not a wheel":
        b.rename(b.with_name("x"))
        b.write_text("")
    elif what == "damaged":
        (b / "roster.json").write_bytes(b"{}")
    else:
        change_roster(open_directory(b, write=True), lambda _: None)
    with fence_of(a) as fence:
        fence.check_may_fire(0)
        fence.check_may_fire(1)


def test_a_wheel_that_comes_back_to_its_path_is_seen_within_a_second(a: Path, b: Path) -> None:
    make_set(a, b)
    with fence_of(a) as fence:
        fence.check_may_fire(0)
        b.rename(b.with_name("away"))
        make_set(b, a.with_name("other"), epoch=2)
        assert roster_of(b).epoch == 2
        with pytest.raises(Fenced):
            fence.check_may_fire(US_PER_S + 1)


def test_a_wheel_whose_own_disk_cannot_be_written_stops_all_the_same(a: Path, b: Path) -> None:
    make_set(a, b)
    promote(b)

    def fail(kind: str, name: str) -> None:
        if kind == "pwrite":
            raise OSError(5, "Input/output error")

    with fence_of(a, lambda path: FaultyDisk(path, fail)) as fence:
        for _ in range(2):
            with pytest.raises(Fenced):
                fence.check_may_fire(0)
    assert roster_of(a).role == "primary"


def test_a_roster_that_fences_this_wheel_is_heeded_without_a_look_at_the_others(a: Path, b: Path) -> None:
    make_set(a, b)
    with fence_of(a) as own:
        promote(b)
        fence(a, b)
        b.rename(b.with_name("away"))
        with pytest.raises(Fenced, match="rejoin"):
            own.check_may_fire(0)


def test_a_roster_that_cannot_be_read_is_an_error_with_its_name(a: Path, b: Path) -> None:
    make_set(a, b)
    trouble: list[str] = []

    def fail(kind: str, name: str) -> None:
        if trouble and kind == "open" and name == "roster.json":
            raise OSError(5, "Input/output error")

    with fence_of(a, lambda path: FaultyDisk(path, fail)) as fence:
        alter(a, copies=2)
        trouble.append("eio")
        with pytest.raises(DiskError, match=r"roster\.json"):
            fence.look()
        trouble.clear()
        assert fence.look()
    (a / "roster.json").write_bytes(b"{}")
    with pytest.raises(Damaged), fence_of(a):
        pass


def test_the_other_wheels_are_let_go_of_when_it_is_closed(a: Path, b: Path) -> None:
    make_set(a, b)
    opened: list[OsDisk] = []

    class Noted(OsDisk):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            opened.append(self)

    with fence_of(a, Noted) as fence:
        for now_us in (0, 1, US_PER_S - 1, US_PER_S, US_PER_S + 1):
            fence.check_may_fire(now_us)
    own, *others = opened
    assert [disk.path for disk in others] == [str(b), str(b)]
    for disk in others:
        with pytest.raises(OSError, match="Bad file"):
            disk.free_bytes()
    assert own.free_bytes()
