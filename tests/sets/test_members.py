"""Sets: what may become a backup, what leaves one, cut short anywhere, and what running handles make of it."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import BadArgument, DiskError, Fenced, NotFound, NoWheel, WheelExists
from filewheel.roster.roster import change_roster, roster_at
from filewheel.sets.lag import lag_of
from filewheel.sets.members import add_backup, remove_backup
from filewheel.sets.promote import promote
from filewheel.sets.replicator import Replicator
from filewheel.sets.status import MemberStatus, set_status
from tests.sets.support_sets import Fuse, Place, place, role_of
from tests.support import FaultyDisk

__all__ = ["place"]


def status_of(place: Place, at: str = "a") -> MemberStatus:
    found = set_status(place.base / at, env=SYSTEM.using(clock=place.clock))
    assert found is not None
    (one,) = [m for m in found.members if m.member.path == str(place.b)]
    return one


# -- adding ---------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_not_there_becomes_a_backup_and_is_filled(place: Place) -> None:
    place.make(place.a)
    place.enqueue(place.a, "x", delay=1000)
    member = add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert (member.path, member.mode, member.state) == (str(place.b), "ship", "joining")
    assert (role_of(place.a), role_of(place.b)) == ("primary", "backup")
    (report,) = place.level(place.a)
    assert (report.state, report.error) == ("following", "")
    assert place.waiting(place.a) == place.waiting(place.b)
    assert status_of(place).member.state == "current"


def test_an_empty_wheel_with_another_lap_length_and_one_that_has_fired_everything_become_backups(place: Place) -> None:
    place.make(place.a)
    Wheel.create(place.b, slots=60, clock=place.clock).close()
    place.make(place.c)
    place.enqueue(place.c, "done")
    assert place.fire(place.c) == ["done"]
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x", "y", delay=5000)
    place.level(place.a)
    assert place.waiting(place.a) == place.waiting(place.b) == place.waiting(place.c) != {}


def test_a_wheel_in_which_something_waits_is_refused_and_stays_what_it_was(place: Place) -> None:
    place.make(place.a)
    place.make(place.b)
    place.enqueue(place.b, "mine", delay=1000)
    with pytest.raises(WheelExists, match="would lose them"):
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert (role_of(place.a), role_of(place.b)) == ("alone", "alone")


def test_dead_letters_count_as_something_that_waits(place: Place) -> None:
    place.make(place.a)
    place.make(place.b)
    place.enqueue(place.b, "dead")
    with Keeper(place.b, background=False, clock=place.clock) as keeper:
        for message in keeper.claim():
            keeper.bury(message)
    with pytest.raises(WheelExists, match="would lose them"):
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))


def test_the_primary_itself_is_refused_by_any_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make(place.a)
    monkeypatch.chdir(place.base)
    with pytest.raises(BadArgument, match="no backup of itself"):
        add_backup("a", "a", env=SYSTEM.using(clock=place.clock))
    shutil.copytree(place.a, place.c, ignore=shutil.ignore_patterns("hint"))
    with pytest.raises(BadArgument, match="a copy of it"):
        add_backup("a", "c", env=SYSTEM.using(clock=place.clock))
    assert (role_of(place.a), role_of(place.c)) == ("alone", "alone")


def test_a_relative_path_is_registered_as_an_absolute_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make(place.a)
    monkeypatch.chdir(place.base)
    assert add_backup("a", "b", env=SYSTEM.using(clock=place.clock)).path == str(place.b)
    roster = roster_at(place.b)
    assert roster is not None
    assert roster.primary == str(place.a)


def test_where_the_parent_does_not_exist_nothing_is_made(place: Place) -> None:
    place.make(place.a)
    with pytest.raises(NoWheel, match="parent"):
        add_backup(place.a, place.base / "no" / "b", env=SYSTEM.using(clock=place.clock))
    assert role_of(place.a) == "alone"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "copy"}, {"on_failure": "hope"}, {"copies": -1}, {"copies": True}, {"copies": 17}, {"timeout_s": 0},
        {"timeout_s": "5"},
    ],
)  # fmt: skip
def test_what_is_no_option_is_refused_before_anything_is_made(place: Place, options: dict[str, object]) -> None:
    place.make(place.a)
    with pytest.raises(BadArgument):
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock), **options)  # type: ignore[arg-type]
    assert not place.b.exists()


def test_options_hold_for_the_set_until_they_are_given_anew(place: Place) -> None:
    place.make(place.a)
    add_backup(
        place.a,
        place.b,
        copies=2,
        on_failure="stale",
        timeout_s=2,
        env=SYSTEM.using(clock=place.clock),
    )
    add_backup(place.a, place.c, copies=0, env=SYSTEM.using(clock=place.clock))
    roster = roster_at(place.a)
    assert roster is not None
    assert (roster.copies, roster.on_failure, roster.timeout_s) == (0, "stale", 2)
    assert len(roster.members) == 2


def test_a_member_that_is_added_again_gets_the_new_mode_and_keeps_what_it_has(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x", delay=1000)
    place.level(place.a)
    add_backup(place.a, place.b, mode="mirror", env=SYSTEM.using(clock=place.clock))
    roster = roster_at(place.a)
    assert roster is not None
    assert [(m.mode, m.state) for m in roster.members] == [("mirror", "joining")]
    (report,) = place.level(place.a)
    assert (report.mode, report.copied_bytes) == ("mirror", 0)
    assert place.payloads(place.b) == ["x"]


def members(place: Place) -> list[tuple[str, str, str]]:
    roster = roster_at(place.a)
    assert roster is not None
    return [(os.path.basename(m.path), m.mode, m.state) for m in roster.members]


def test_a_member_that_is_added_again_as_it_is_stays_in_step(place: Place) -> None:
    place.make_set(place.b, mode="mirror")
    before = roster_at(place.a)
    member = add_backup(place.a, place.b, mode="mirror", env=SYSTEM.using(clock=place.clock))
    assert (member.mode, member.state) == ("mirror", "current")
    assert roster_at(place.a) == before
    add_backup(place.a, place.b, mode="mirror", copies=2, env=SYSTEM.using(clock=place.clock))
    assert members(place) == [("b", "mirror", "current")]
    ours = roster_at(place.a)
    assert ours is not None
    assert (ours.copies, roster_at(place.b)) == (2, replace(ours, role="backup"))


@pytest.mark.parametrize("what", ["gone", "empty", "another", "damaged"])
def test_in_the_place_of_a_backup_whose_wheel_is_away_none_is_made_and_the_rules_change(
    place: Place, what: str
) -> None:
    place.make_set(place.b, mode="mirror")
    place.b.rename(place.base / "away")
    if what == "empty":
        place.b.mkdir()
    elif what == "another":
        place.make(place.b)
    elif what == "damaged":
        shutil.copytree(place.base / "away", place.b, ignore=shutil.ignore_patterns("hint"))
        (place.b / "roster.json").write_text("{}")
    with pytest.raises(NoWheel, match=r"a backup is registered under this path, and its wheel cannot be read") as told:
        add_backup(place.a, place.b, mode="mirror", env=SYSTEM.using(clock=place.clock))
    assert told.value.hint is not None
    assert f"`filewheel -C {place.a} backup remove {place.b}`" in told.value.hint
    assert members(place) == [("b", "mirror", "current")]
    add_backup(place.a, place.b, mode="mirror", on_failure="stale", env=SYSTEM.using(clock=place.clock))
    assert members(place) == [("b", "mirror", "current")]
    place.enqueue(place.a, "goes on without it", delay=1000)
    assert members(place) == [("b", "mirror", "stale")]
    if what == "gone":
        assert not place.b.exists()
    else:
        shutil.rmtree(place.b)
    (place.base / "away").rename(place.b)
    place.level(place.a)
    assert members(place) == [("b", "mirror", "current")]
    assert place.waiting(place.a) == place.waiting(place.b)


def test_a_backup_that_takes_no_writes_does_not_keep_the_rules_from_changing(place: Place) -> None:
    place.make_set(place.b, mode="mirror")

    def disk(path: str) -> OsDisk:
        def fail(kind: str, name: str) -> None:
            if path == str(place.b) and kind in ("pwrite", "fdatasync", "rename", "sync_dir"):
                raise OSError(errno.EROFS, "Read-only file system")

        return FaultyDisk(path, fail)

    add_backup(place.a, place.b, mode="mirror", on_failure="stale", env=SYSTEM.using(clock=place.clock, disk=disk))
    ours, theirs = roster_at(place.a), roster_at(place.b)
    assert ours is not None
    assert theirs is not None
    assert (ours.on_failure, theirs.on_failure) == ("stale", "refuse")
    place.level(place.a)
    assert roster_at(place.b) == replace(ours, role="backup")


def test_of_two_members_none_has_the_path_of_another(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.c.rename(place.base / "away")
    shutil.rmtree(place.b)
    (place.base / "away").rename(place.b)  # one disk is mounted where the other one was
    with pytest.raises(NoWheel, match="another wheel is in its place"):
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert members(place) == [("b", "ship", "current"), ("c", "ship", "current")]
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert members(place) == [("b", "ship", "joining")]


def test_a_backup_and_a_fenced_wheel_get_no_backups_of_their_own(place: Place) -> None:
    place.make_set(place.b)
    with pytest.raises(Fenced, match="is a backup of"):
        add_backup(place.b, place.c, env=SYSTEM.using(clock=place.clock))
    promote(place.b, env=SYSTEM.using(clock=place.clock))
    with pytest.raises(Fenced, match="was promoted"):
        add_backup(place.a, place.c, env=SYSTEM.using(clock=place.clock))
    with pytest.raises(Fenced, match="was a primary of this set"):
        add_backup(place.b, place.a, env=SYSTEM.using(clock=place.clock))
    assert not place.c.exists()


def test_a_wheel_of_another_set_is_refused_be_it_empty_and_its_set_knows_it_still(place: Place) -> None:
    place.make_set(place.b)
    other = place.make(place.c)
    for taken in (place.a, place.b):
        with pytest.raises(WheelExists, match="another set"):
            add_backup(other, taken, env=SYSTEM.using(clock=place.clock))
    assert role_of(other) == "alone"
    place.enqueue(place.a, "x", delay=1000)
    (report,) = place.level(place.a)
    assert report.error == ""
    assert place.payloads(place.b) == ["x"]


# -- removing -------------------------------------------------------------------------------------------------------


def test_a_removed_backup_stands_alone_and_fires_what_it_holds(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    assert remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock)).path == str(place.b)
    assert (role_of(place.b), role_of(place.c)) == ("alone", "backup")
    assert place.fire(place.b) == ["x"]
    assert place.may_fire() == [place.a, place.b]


def test_a_backup_is_named_by_the_start_of_its_id_if_that_names_one(place: Place) -> None:
    place.make_set(place.b, place.c)
    wheel = status_of(place).member.wheel
    for wrong in ("", "nothing", "x" * 32):
        with pytest.raises(NotFound, match="names no backup"):
            remove_backup(place.a, wrong, env=SYSTEM.using(clock=place.clock))
    assert remove_backup(place.a, wheel[:12], env=SYSTEM.using(clock=place.clock)).path == str(place.b)


def test_an_unreachable_backup_is_removed_and_what_it_became_is_known_when_it_is_back(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x", delay=1000)
    place.level(place.a)
    place.b.rename(place.base / "away")
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    (place.base / "away").rename(place.b)
    assert role_of(place.b) == "backup"
    with pytest.raises(BadArgument, match="removed from its set"):
        promote(place.b, force=True, env=SYSTEM.using(clock=place.clock))
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    assert (role_of(place.a), role_of(place.b)) == ("primary", "alone")
    with pytest.raises(NotFound):
        remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))


def test_another_wheel_in_the_place_of_a_removed_backup_is_left_alone(place: Place) -> None:
    place.make_set(place.b, place.c)
    shutil.rmtree(place.b)
    place.c.rename(place.b)
    was = roster_at(place.b)
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    assert roster_at(place.b) == was


def test_with_the_last_backup_the_set_is_dissolved_and_it_can_be_made_anew(place: Place) -> None:
    place.make(place.a)
    add_backup(place.a, place.b, copies=2, env=SYSTEM.using(clock=place.clock))
    place.level(place.a)
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    assert set_status(place.a, env=SYSTEM.using(clock=place.clock)) is None
    with pytest.raises(BadArgument, match="in no set"):
        Replicator(place.a, env=SYSTEM.using(clock=place.clock))
    place.enqueue(place.a, "alone", delay=1000)  # no copies are asked for any more
    add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    place.level(place.a)
    assert place.payloads(place.b) == ["alone"]


def test_a_primary_whose_set_was_dissolved_may_become_a_backup_when_it_is_empty(place: Place) -> None:
    place.make_set(place.b)
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    other = place.make(place.c)
    add_backup(other, place.a, env=SYSTEM.using(clock=place.clock))
    place.level(other)
    assert role_of(place.a) == "backup"


# -- cut short ------------------------------------------------------------------------------------------------------


def test_an_addition_cut_short_anywhere_leaves_one_that_fires_and_is_mended_by_another(place: Place) -> None:
    place.make(place.a)
    place.enqueue(place.a, "x", delay=1000)
    cut = 0
    for killed in place.cut_short(
        lambda fuse: add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock, disk=fuse.disk))
    ):
        cut += killed
        assert role_of(place.a) in ("alone", "primary")
        if role_of(place.a) == "primary":
            assert role_of(place.b) == "backup"
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
        (report,) = place.level(place.a)
        assert report.error == ""
        assert place.may_fire() == [place.a]
        assert place.payloads(place.b) == ["x"]
    assert cut > 15


@pytest.mark.parametrize("is_last", [False, True])
def test_a_removal_cut_short_anywhere_is_ended_by_another_or_undone_by_an_addition(place: Place, is_last: bool) -> None:
    place.make_set(place.b) if is_last else place.make_set(place.b, place.c)
    place.enqueue(place.a, "x", delay=1000)
    place.level(place.a)
    cut = 0

    def remove(fuse: Fuse) -> None:
        remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock, disk=fuse.disk))

    for killed in place.cut_short(remove):
        cut += killed
        registered = roster_at(place.a)
        assert registered is not None
        known = str(place.b) in {m.path for m in registered.members}
        # What the primary still has as its backup does not fire.
        assert role_of(place.b) == "backup" if known else role_of(place.b) in ("backup", "alone")
        if killed and cut % 2:
            remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock)) if role_of(
                place.b
            ) == "backup" else None
            assert role_of(place.b) == "alone"
            assert place.may_fire() == [place.a, place.b]
        elif killed and role_of(place.b) == "backup":
            add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
            place.level(place.a)
            assert place.may_fire() == [place.a]
    assert cut > 5


# -- handles that are open -------------------------------------------------------------------------------------------


def test_an_open_wheel_and_keeper_go_on_through_additions_and_removals(place: Place) -> None:
    place.make(place.a)
    with (
        Wheel(place.a, clock=place.clock) as wheel,
        Keeper(place.a, background=False, clock=place.clock) as keeper,
    ):
        for turn in range(3):
            assert wheel.enqueue(b"x", sync="always")
            add_backup(place.a, place.b, mode="mirror", env=SYSTEM.using(clock=place.clock))
            place.level(place.a)
            wheel._looked_us = -(1 << 62)
            id_ = wheel.enqueue(b"mirrored", delay=1000)
            assert id_.copies == 2
            assert bytes(id_) in place.waiting(place.b)
            keeper.ack(keeper.claim())
            remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
            wheel._looked_us = -(1 << 62)
            assert wheel.enqueue(b"y").copies == 1
            assert len(keeper.claim()) == 1, turn
            assert bytes(wheel.enqueue(b"later", delay=1000)) not in place.waiting(place.b)
            shutil.rmtree(place.b)


# -- how they are ----------------------------------------------------------------------------------------------------


def test_a_wheel_that_stands_alone_has_no_status(place: Place) -> None:
    place.make(place.a)
    assert set_status(place.a, env=SYSTEM.using(clock=place.clock)) is None


@pytest.mark.parametrize("at", ["a", "b"])
def test_what_is_behind_is_counted_without_a_replicator_seen_from_either_wheel(place: Place, at: str) -> None:
    place.make_set(place.b)
    step = status_of(place, at)
    assert (step.lag_messages, step.lag_bytes, step.lag_s, step.reachable, step.following) == (0, 0, 0.0, True, False)
    ids = place.enqueue(place.a, *"abcde", delay=1000)
    with Wheel(place.a, clock=place.clock) as wheel:
        wheel.cancel_many(ids[:2])
    behind = status_of(place, at)
    assert behind.lag_messages == 7
    assert behind.lag_bytes is not None
    assert behind.lag_bytes > 5 * 20
    assert behind.lag_s is not None
    assert behind.lag_s > 0
    place.level(place.a)
    assert status_of(place, at).lag_messages == 0


def test_what_was_dealt_and_fired_while_nobody_followed_counts_as_behind(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, *"abc")
    assert place.fire(place.a) == ["a", "b", "c"]
    behind = status_of(place)
    assert (behind.lag_messages, behind.lag_bytes == 0) == (None, False)


def test_how_far_a_new_backup_is_behind_is_not_known(place: Place) -> None:
    place.make(place.a)
    add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    new = status_of(place)
    assert (new.lag_messages, new.lag_bytes, new.lag_s) == (None, None, None)
    place.level(place.a)
    assert status_of(place).lag_messages == 0


def test_a_backup_out_of_reach_or_replaced_says_so(place: Place) -> None:
    place.make_set(place.b)
    place.b.rename(place.base / "away")
    gone = status_of(place)
    assert (gone.reachable, gone.lag_messages, gone.lag_s) == (False, None, None)
    assert gone.why
    place.make(place.b)
    other = status_of(place)
    assert (other.reachable, other.why) == (False, "another wheel is in its place")


def test_seen_from_a_backup_whose_primary_is_gone_nothing_is_known_of_the_lag(place: Place) -> None:
    place.make_set(place.b)
    place.a.rename(place.base / "away")
    seen = status_of(place, "b")
    assert (seen.reachable, seen.lag_messages) == (True, None)


@pytest.mark.damages
def test_what_follows_a_gap_counts_as_behind_and_a_journal_that_cannot_be_read_is_an_error(place: Place) -> None:
    place.make_set(place.b)
    with Wheel(place.a, clock=place.clock) as wheel:
        wheel.enqueue(b"first", delay=1000)
        size = max(place.a.glob("journal/*.log"), key=lambda p: p.stat().st_mtime_ns)
        wheel.enqueue(b"a" * 100, delay=1000)
        wheel.enqueue(b"last", delay=1000)
        data = bytearray(size.read_bytes())
        data[data.index(b"a" * 100) - 40] ^= 1
        size.write_bytes(data)
        assert status_of(place).lag_messages in (2, 3)

    def fail(kind: str, name: str) -> None:
        if kind == "open" and name.startswith("journal/"):
            raise OSError(5, "Input/output error")

    ours = open_directory(place.a, write=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)))
    theirs = open_directory(place.b, write=False)
    with pytest.raises(OSError, match="Input/output"):
        lag_of(ours, theirs)
    for opened in (ours, theirs):
        opened.disk.release()


def test_while_everything_moves_the_status_raises_nothing_and_says_that_it_is_behind(place: Place) -> None:
    place.make_set(place.b)
    with (
        Wheel(place.a, clock=place.clock) as wheel,
        Keeper(place.a, background=False, clock=place.clock) as keeper,
    ):
        for n in range(30):
            wheel.enqueue(b"x")
            keeper.ack(keeper.claim())
            if n % 7 == 0:
                keeper._housekeeper.deal_all()
            behind = status_of(place)
            assert behind.lag_bytes
            assert behind.lag_messages in (None, 2 * (n + 1))


def test_a_disk_that_fails_while_a_backup_is_added_is_an_error_and_a_second_try_succeeds(place: Place) -> None:
    place.make(place.a)

    def fail(kind: str, name: str) -> None:
        if kind == "rename" and name == "roster.json":
            raise OSError(5, "Input/output error")

    with pytest.raises(DiskError):
        add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock, disk=lambda path: FaultyDisk(path, fail)))
    assert role_of(place.a) == "alone"
    add_backup(place.a, place.b, env=SYSTEM.using(clock=place.clock))
    assert place.may_fire() == [place.a]


def test_a_roster_that_was_raised_by_hand_in_a_removed_wheel_is_no_obstacle(place: Place) -> None:
    place.make_set(place.b)
    directory = open_directory(place.b, write=True)
    change_roster(directory, lambda old: old and replace(old, role="backup"))
    directory.disk.release()
    remove_backup(place.a, str(place.b), env=SYSTEM.using(clock=place.clock))
    assert role_of(place.b) == "alone"


def test_a_former_primary_that_lacks_a_message_says_that_nobody_knows_since_when(place: Place) -> None:
    place.make_set(place.b)
    promote(str(place.b), env=SYSTEM.using(clock=place.clock), wait_s=0)
    with Wheel(place.b, clock=place.clock) as wheel:
        wheel.enqueue(b"later", delay=3600)
        wheel.flush()
    found = set_status(place.b, env=SYSTEM.using(clock=place.clock))
    assert found is not None
    (one,) = found.members
    assert (one.member.state, one.lag_messages, one.lag_s) == ("fenced", 1, None)
