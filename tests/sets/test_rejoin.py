"""Rejoining: what only the old primary had is kept once, what was fired does not come back, cut short or not."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import DiskFactory
from filewheel.errors import BadArgument, Fenced, FilewheelError, Locked
from filewheel.laps.deal import Deal
from filewheel.roster import fence
from filewheel.roster.roster import roster_at
from filewheel.sets.forks import FORKS_MAX, Fork, read_forks, write_forks
from filewheel.sets.members import add_backup, remove_backup
from filewheel.sets.promote import promote
from filewheel.sets.rejoin import Rejoin, rejoin
from tests.sets.support_sets import Place, place, role_of

__all__ = ["place"]


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no producer is open nobody has to be waited for."""
    monkeypatch.setattr(fence, "_FENCE_S", 0.0)


def back(place: Place, path: object, disk: DiskFactory | None = None, **options: object) -> Rejoin:
    return rejoin(str(path), env=SYSTEM.using(clock=place.clock, disk=disk), **options)  # type: ignore[arg-type]


def go(place: Place, path: object) -> None:
    promote(str(path), env=SYSTEM.using(clock=place.clock), wait_s=0)


def lost_for_a_while(place: Place) -> None:
    """Promote `b` while `a` cannot be seen; `a` is back afterwards and knows nothing of it."""
    place.a.rename(place.base / "away")
    go(place, place.b)
    (place.base / "away").rename(place.a)


def forget_finished(place: Place, path: Path) -> None:
    """Have the keeper delete what is finished: no file of the wheel knows of it from then on."""
    with Keeper(path, background=False, clock=place.clock) as keeper:
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()


def test_what_was_enqueued_after_the_fence_is_kept_once_and_all_wheels_are_equal_afterwards(place: Place) -> None:
    place.make_set(place.b)
    with Wheel(place.a, clock=place.clock) as late:
        late.enqueue(b"early", delay=1000)
        go(place, place.b)
        late._looked_us = place.clock.now_us()  # as one that looked just before the promotion
        with pytest.raises(Fenced, match="it was written, and is not confirmed"):
            late.enqueue(b"late", delay=1000)
    done = back(place, place.a)
    assert (done.primary, done.kept, done.dropped, done.notes) == (str(place.b), 1, 0, [])
    assert role_of(place.a) == "backup"
    place.level(place.b)
    assert place.waiting(place.a) == place.waiting(place.b)
    assert place.payloads(place.b) == ["early", "late"]


def test_what_was_not_shipped_is_kept_and_what_fired_in_the_new_primary_does_not_come_back(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "shipped", "both")
    place.level(place.a)
    place.enqueue(place.a, "only here")
    lost_for_a_while(place)
    assert place.fire(place.b) == ["both", "shipped"]
    forget_finished(place, place.b)
    done = back(place, place.a)
    assert (done.kept, done.dropped, done.notes) == (1, 0, [])
    assert place.fire(place.b) == ["only here"]
    assert place.fire(place.b) == []
    place.level(place.b)
    assert place.waiting(place.a) == place.waiting(place.b) == {}


def test_what_the_old_one_fired_and_could_not_say_is_dropped(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x", "y")
    place.level(place.a)
    keeper = Keeper(place.a, background=False, clock=place.clock)
    batch = keeper.claim(1)
    go(place, place.b)
    keeper.ack(batch)
    with pytest.raises(Locked):
        back(place, place.a)
    keeper.close()
    done = back(place, place.a)
    assert (done.kept, done.dropped) == (0, 1)
    assert place.fire(place.b) == ["y"]


def test_after_two_promotions_what_fired_in_between_does_not_come_back(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x")
    place.level(place.a)
    place.enqueue(place.a, "only here")
    lost_for_a_while(place)
    place.level(place.b)
    assert place.fire(place.b) == ["x"]
    place.level(place.b)
    go(place, place.c)
    assert place.fire(place.c) == []
    done = back(place, place.a)
    assert (done.kept, done.notes) == (1, [])
    assert place.fire(place.c) == ["only here"]


def test_a_message_whose_key_was_taken_meanwhile_becomes_one_dead_letter_however_often_it_is_begun(
    place: Place,
) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "old", delay=1000, key="k")
    lost_for_a_while(place)
    place.enqueue(place.b, "new", delay=1000, key="k")
    # The fuse may burn after the dead letter was written and before the wheel is registered.
    for _ in place.cut_short(lambda fuse: back(place, place.a, disk=fuse.disk)):
        back(place, place.a, force=True)
        with Wheel(place.b, clock=place.clock) as wheel:
            assert [m.payload for m in wheel.list()] == [b"new"]
            assert [m.payload for m in wheel.list(dead=True)] == [b"old"]


def test_a_message_with_a_key_that_was_moved_in_the_old_primary_goes_on_where_it_was_moved_to(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x", delay=1000, key="k")
    place.level(place.a)
    with Wheel(place.a, clock=place.clock) as wheel:
        moved = wheel.reschedule(key="k", delay=2000)
    lost_for_a_while(place)
    done = back(place, place.a)
    assert (done.kept, done.dropped, done.notes) == (1, 1, [])
    assert place.waiting(place.b) == {bytes(moved): "x"}


def test_a_rejoin_cut_short_anywhere_and_begun_again_comes_to_the_same(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "fired there", "fired here", "waits")
    place.level(place.a)
    place.enqueue(place.a, "only here")
    keeper = Keeper(place.a, background=False, clock=place.clock)
    batch = keeper.claim()
    lost_for_a_while(place)
    keeper.ack([m for m in batch if m.payload == b"fired here"])
    keeper.close()
    keeper = Keeper(place.b, background=False, clock=place.clock)
    batch = keeper.claim()
    keeper.ack([m for m in batch if m.payload == b"fired there"])
    keeper.close()
    cut = 0
    for killed in place.cut_short(lambda fuse: back(place, place.a, disk=fuse.disk), every=2):
        cut += killed
        assert place.may_fire() == [place.b]
        if killed:
            with contextlib.suppress(BadArgument):  # it may be done but for the letting go
                back(place, place.a)
            assert role_of(place.a) == "backup"
        assert place.payloads(place.b) == ["only here", "waits"]
        (report,) = place.level(place.b)
        assert report.error == ""
        assert place.waiting(place.a) == place.waiting(place.b)
    assert cut > 5


def test_what_is_not_fenced_is_not_taken_back(place: Place) -> None:
    place.make(place.a)
    with pytest.raises(BadArgument, match="in no set"):
        back(place, place.a)
    place.make_set(place.b)
    with pytest.raises(BadArgument, match="is the primary"):
        back(place, place.a)
    with pytest.raises(BadArgument, match="is a backup already"):
        back(place, place.b)


def test_twice_in_a_row_the_second_is_refused_and_forced_it_changes_nothing(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "x", delay=1000)
    lost_for_a_while(place)
    assert back(place, place.a).kept == 1
    with pytest.raises(BadArgument, match="is a backup already"):
        back(place, place.a)
    again = back(place, place.a, force=True)
    assert (again.kept, again.dropped) == (0, 0)
    assert place.payloads(place.b) == ["x"]


def test_without_the_new_primary_nothing_is_changed(place: Place) -> None:
    place.make_set(place.b)
    go(place, place.b)
    place.b.rename(place.base / "away")
    with pytest.raises(FilewheelError, match="the primary of this set, cannot be read"):
        back(place, place.a)
    assert role_of(place.a) == "fenced"


def test_a_producer_that_writes_while_the_wheel_rejoins_loses_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "_FENCE_S", 0.5)
    place.make_set(place.b)
    lost_for_a_while(place)
    taken: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        with Wheel(place.a) as wheel:  # by the real clock: it looks each fifth of a second
            while not stop.is_set():
                try:
                    wheel.enqueue(b"%d" % len(taken), delay=5000)
                except Fenced:
                    return
                taken.append(str(len(taken)))

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        while len(taken) < 3:
            pass
        done = back(place, place.a)
    finally:
        stop.set()
        thread.join()
    place.level(place.b)
    there = place.payloads(place.b)
    # The call that ended with Fenced promised nothing: its message may be there.
    assert there in (sorted(taken), sorted([*taken, str(len(taken))]))
    assert done.kept == len(there)
    assert place.payloads(place.a) == there


def test_round_and_round_everything_fires_and_nothing_is_lost(place: Place) -> None:
    place.make_set(place.b)
    fired: Counter[str] = Counter()
    want: set[str] = set()
    primary, other = place.a, place.b
    for turn in range(4):
        names = [f"{turn}{c}" for c in "abcdef"]
        want.update(names)
        place.enqueue(primary, *names[:3])
        fired.update(place.fire(primary))
        place.enqueue(primary, names[3], delay=1000)
        place.level(primary)
        place.enqueue(primary, *names[4:])
        primary.rename(place.base / "away")
        go(place, other)
        (place.base / "away").rename(primary)
        fired.update(place.fire(other))
        back(place, primary)
        (report,) = place.level(other)
        assert report.error == ""
        assert place.waiting(primary) == place.waiting(other)
        fired.update(place.fire(other))
        primary, other = other, primary
    left = place.payloads(primary)
    assert set(fired) | set(left) == want
    assert sorted(left) == [f"{turn}d" for turn in range(4)]
    assert max(fired.values()) == 1
    assert place.may_fire() == [primary]
    roster = roster_at(primary)
    assert roster is not None
    assert roster.epoch == 5


def test_a_fenced_wheel_can_be_taken_out_of_the_set_and_is_still_no_wheel_that_fires(place: Place) -> None:
    place.make_set(place.b)
    go(place, place.b)
    remove_backup(place.b, str(place.a), env=SYSTEM.using(clock=place.clock))
    assert role_of(place.a) == "fenced"
    assert place.may_fire() == [place.b]
    add_backup(place.b, place.c, env=SYSTEM.using(clock=place.clock))
    place.level(place.b)
    assert role_of(place.c) == "backup"


def test_what_fired_before_the_new_primary_kept_its_journals_comes_back_in_no_backup_either(place: Place) -> None:
    place.make_set(place.b, place.c)
    place.enqueue(place.a, "x", "y")
    place.level(place.a)
    place.a.rename(place.base / "away")
    go(place, place.b)
    place.fire(place.b)
    place.enqueue(place.b, "still there")  # in the second of a slot that remembers
    place.level(place.b)
    (place.base / "away").rename(place.a)
    back(place, place.a)
    place.level(place.b)
    assert place.waiting(place.b) == place.waiting(place.c) == place.waiting(place.a)


def two_of_one_writer(place: Place) -> None:
    """Enqueue a message for a far lap, and one that stays in the journal; the backup has both."""
    place.make_set(place.b)
    with Wheel(place.a, clock=place.clock) as wheel:
        wheel.enqueue(b"far", delay=10_000)
        place.fire(place.a)
        wheel.enqueue(b"near", delay=1000)
    place.level(place.a)


@pytest.mark.damages
@pytest.mark.parametrize("when", ["before the promotion", "after it"])
@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_what_the_new_primary_had_and_lost_is_kept_from_the_old_one(place: Place, when: str, how: str) -> None:
    two_of_one_writer(place)
    place.a.rename(place.base / "away")

    def lose() -> None:
        (file,) = place.b.glob("laps/*.lap")
        if how == "missing":
            file.unlink()
        else:
            file.write_bytes(bytes(file.stat().st_size))

    if when == "before the promotion":
        lose()
    promote(place.b, force=True, env=SYSTEM.using(clock=place.clock), wait_s=0)
    if when == "after it":
        lose()
    (place.base / "away").rename(place.a)
    assert back(place, place.a).kept == 1
    place.level(place.b)
    assert place.payloads(place.b) == ["far", "near"]


def test_what_a_wheel_has_that_missed_more_promotions_than_are_noted_is_kept(place: Place) -> None:
    place.make_set(place.b)
    place.enqueue(place.a, "shipped", delay=1000)
    place.level(place.a)
    place.enqueue(place.a, "only here", delay=1000)
    lost_for_a_while(place)
    new = open_directory(place.b, write=True)
    (fork,) = read_forks(new)
    number = dict.fromkeys(fork.known, 1 << 29)
    write_forks(new, [fork, *(Fork(fork.epoch + n, f"{n:032x}", number) for n in range(1, FORKS_MAX + 1))])
    assert len(read_forks(new)) == FORKS_MAX
    new.disk.release()
    assert back(place, place.a).kept == 1
    place.level(place.b)
    assert place.payloads(place.b) == ["only here", "shipped"]
