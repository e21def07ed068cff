"""The link between a primary and a backup, driven by hand: in step after a quiet moment, whatever happened before."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from filewheel import Fenced, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.roster.roster import Mode, Roster, change_roster, read_roster
from tests.sets.support import Pair, fire
from tests.support import FaultyDisk

both = pytest.mark.parametrize("pair", ["ship", "mirror", "far"], indirect=True)


@both
def test_what_is_enqueued_cancelled_moved_and_fired_is_the_same_in_both_after_a_quiet_moment(pair: Pair) -> None:
    rng = random.Random(1)
    pair.settle(1)
    with pair.keeper() as keeper, pair.wheel() as one, pair.wheel() as other:
        ids: list[MessageId] = []
        for turn in range(300):
            wheel = rng.choice([one, other])
            ids.append(wheel.enqueue(b"%d" % turn, delay=rng.choice([0, 0, 1, 5, 300, 9999])))
            if rng.random() < 0.3:
                rng.choice([one, other]).cancel(rng.choice(ids))
            waiting = [i for i in ids[-20:] if wheel.get(i) is not None]
            if waiting and rng.random() < 0.3:
                ids.append(wheel.reschedule(rng.choice(waiting), delay=rng.choice([0, 2, 600])))
            if rng.random() < 0.2:
                fire(pair, keeper, lambda k, i: k.nack(i, delay=1) if rng.random() < 0.3 else k.ack([i]))
            pair.tick(rng.randrange(3), rng.choice([0.001, 0.02, 0.4]))
        pair.settle()
        assert pair.pending(pair.primary), "the test shows nothing"
        pair.assert_equal()


def test_under_a_load_that_never_pauses_a_backup_becomes_current(pair: Pair) -> None:
    with pair.keeper() as keeper, pair.wheel() as wheel:
        for _ in range(60):
            wheel.enqueue(b"x")
            fire(pair, keeper)
            pair.tick()
        assert pair.member().state == "current"


def test_under_a_load_that_never_pauses_catching_up_ends(pair: Pair) -> None:
    with pair.keeper() as keeper, pair.wheel() as wheel:
        turns = 0

        def pause() -> bool:
            nonlocal turns
            turns += 1
            wheel.enqueue(b"x")
            fire(pair, keeper)
            pair.clock.advance(0.02)
            return turns > 200

        pair.open().catch_up(pause)
        assert turns < 100


@both
@pytest.mark.parametrize("boot", ["the same boot", "another boot"])
def test_a_link_that_was_killed_goes_on_or_heals_and_both_are_equal_in_the_end(pair: Pair, boot: str) -> None:
    rng = random.Random(3)
    with pair.keeper() as keeper, pair.wheel() as wheel:
        for turn in range(25):
            for _ in range(rng.randrange(6)):
                wheel.enqueue(b"x", delay=rng.choice([0, 0.1, 50, 5000]))
            fire(pair, keeper)
            pair.tick(rng.randrange(1, 6), rng.choice([0.02, 0.3]))
            if turn % 3 == 0:
                pair.kill()
        pair.settle()
        pair.assert_equal()


@both
def test_what_was_acknowledged_long_ago_does_not_come_back_when_a_link_begins_anew(pair: Pair) -> None:
    with pair.keeper() as keeper, pair.wheel() as wheel:
        kept = wheel.enqueue(b"kept", delay=5000)
        pair.settle(1)
        wheel.enqueue_many([b"x"] * 100)
        assert len(fire(pair, keeper)) == 100
        pair.settle(40)
        keeper._housekeeper.deal_all()
        pair.kill()
        pair.settle()
        assert pair.pending(pair.backup) == {kept}


def test_a_backup_is_told_that_it_is_current_when_its_primary_is(pair: Pair) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue(b"x", delay=100)
    assert pair.member().state == "joining"
    for _ in range(100):
        pair.tick()
        told = read_roster(open_directory(pair.backup, write=False).disk, str(pair.backup))
        assert told is not None
        # If the primary is lost now, this is the copy that says whether the backup may be promoted.
        assert told.members == pair.roster().members
    assert pair.member().state == "current"


def test_a_backup_that_has_heard_of_a_promotion_takes_no_tick_of_the_old_primary(pair: Pair) -> None:
    pair.settle(1)
    change_roster(open_directory(pair.backup, write=True), heard_of_a_promotion)
    with pair.wheel() as wheel:
        id_ = wheel.enqueue(b"x", delay=600)
    assert pair.link is not None
    with pytest.raises(Fenced):
        pair.link.tick()
    pair.kill()
    assert bytes(id_) not in pair.pending(pair.backup)


def heard_of_a_promotion(mine: Roster | None) -> Roster:
    assert mine is not None
    return replace(mine, epoch=mine.epoch + 1)


@pytest.mark.parametrize("mode", ["ship", "mirror"])
def test_the_names_that_a_copy_counts_on_are_durable_first(tmp_path: Path, mode: Mode) -> None:
    """The checkpoint's at the primary, before it is copied; a mirror's segment, before a frame in it counts."""
    calls: list[tuple[str, str, str]] = []
    pair = Pair(tmp_path, mode=mode)
    pair.disk = lambda path: FaultyDisk(path, lambda kind, name: calls.append((Path(path).stem, kind, name)))
    pair.settle(1)
    with Wheel(pair.primary, clock=pair.clock, env=SYSTEM.using(disk=pair.disk)) as wheel:
        wheel.enqueue(b"x", delay=600)
        if mode == "mirror":
            (segment,) = {
                n for who, kind, n in calls if (who, kind) == ("backup", "pwrite") and n.startswith("journal")
            }
            ours = [(kind, name) for who, kind, name in calls if who == "backup"]
            opened = ours.index(("open", segment))
            assert opened < ours.index(("sync_dir", "journal"), opened) < ours.index(("pwrite", segment), opened)
    pair.keeper().close()
    calls.clear()
    pair.tick(3)
    read = calls.index(("primary", "open", "checkpoint"))
    assert calls.index(("primary", "sync_dir", ""), read) < calls.index(("backup", "rename", "checkpoint"), read)
    pair.close()
