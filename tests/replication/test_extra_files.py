"""Files of a backup for what its primary has nothing of any more: they go whole, and only when that is certain."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from filewheel import MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.record import ACKED, pack_drop, pack_message
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.laps.slot import LapFile, SlotFile
from filewheel.lookup.snapshot import Snapshot
from filewheel.replication import lap_plan
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.extras import Decision, absent
from filewheel.replication.lap_plan import LapPlanner
from filewheel.replication.link import Link
from filewheel.roster.retention import Retention
from filewheel.tools.repair import repair
from tests.replication.support import Pair, fire
from tests.replication.test_lap_copy import deal, fill, in_journals

DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lap_plan, "_SMALL_BYTES", 0)


def laps_in(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "laps").rglob("*.*"))


def go_away(pair: Pair, ids: list[MessageId], *, fires: bool = True) -> None:
    """Let the primary fire everything while the backup is away, and forget what it kept for it."""
    pair.settle(1)
    link = pair.link
    assert link is not None
    link.keeper._housekeeper.deal_all()
    pair.assert_equal()
    pair.close()
    assert laps_in(pair.backup)
    if fires:
        pair.clock.advance(DAY_S)
        with pair.keeper() as keeper:
            assert len(fire(pair, keeper)) == len(ids)
            Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        lose_its_place(pair)


def lose_its_place(pair: Pair) -> None:
    Retention(open_directory(pair.primary, write=True), limit_bytes=1).give_up()


def test_what_was_fired_while_the_backup_was_away_goes_whole_and_no_drop_is_written(pair: Pair) -> None:
    ids = fill(pair)
    go_away(pair, ids)
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"new"] * 50, delay=5000.0)
    deal(pair)
    link = pair.settle(3)
    assert (link.report.healed_drops, link.report.healed_puts) == (400, 50)
    assert in_journals(pair.backup) == 0
    pair.assert_equal()
    assert laps_in(pair.backup) == laps_in(pair.primary)


def test_seconds_that_were_fired_go_whole_too(pair: Pair) -> None:
    with pair.wheel() as wheel:
        ids = list(wheel.enqueue_many([b"x"] * 60, delay=[n + 1.0 for n in range(30)] * 2))
    deal(pair, spread=True)
    pair.settle(0.5)
    pair.close()
    assert all(name.endswith(".slot") for name in laps_in(pair.backup))
    pair.clock.advance(20)
    with pair.keeper() as keeper:
        fired = fire(pair, keeper)
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    lose_its_place(pair)
    assert 20 < len(fired) < len(ids)
    link = pair.settle(3)
    assert link.report.healed_drops == len(fired)
    assert in_journals(pair.backup) == 0
    pair.assert_equal()


def test_they_go_after_a_second_look_and_not_at_the_first(pair: Pair) -> None:
    ids = fill(pair)
    go_away(pair, ids)
    link = pair.tick(10, 0.05)
    assert link.report.healed_drops == 0
    assert pair.pending(pair.backup) == set(map(bytes, ids))
    pair.settle(2)
    assert link.report.healed_drops == len(ids)


@pytest.mark.parametrize("dealt", [False, True])
def test_what_comes_to_such_a_file_between_the_two_looks_stays(pair: Pair, dealt: bool) -> None:
    ids = fill(pair)
    go_away(pair, ids)
    link = pair.tick(3)
    with pair.wheel() as wheel:
        late = wheel.enqueue(b"late", at=(pair.clock.now_us() - (DAY_S - 5000) * 1_000_000) / 1e6)
    assert late.due_us < pair.clock.now_us()
    pair.tick(3)
    if dealt:
        deal(pair)
        link.keeper._housekeeper.deal_all()
    pair.settle(4)
    assert pair.pending(pair.backup) == {bytes(late)}
    assert link.report.healed_drops == len(ids)
    pair.assert_equal()


def test_what_the_primary_s_journal_has_for_laps_between_them_is_not_forgotten(pair: Pair) -> None:
    ids = fill(pair, delays=(1000, 9000))
    go_away(pair, ids)
    with pair.wheel() as wheel:
        between = wheel.enqueue(b"between", at=(pair.clock.now_us() - (DAY_S - 5000) * 1_000_000) / 1e6)
    lose_its_place(pair)
    pair.settle(4)
    assert pair.pending(pair.backup) == {bytes(between)}
    pair.assert_equal()


def test_what_only_the_backup_s_journal_has_for_them_is_looked_into_by_itself(pair: Pair) -> None:
    ids = fill(pair)
    go_away(pair, ids, fires=False)
    with pair.wheel() as wheel:
        last = wheel.enqueue(b"last", at=min(ids).due_us / 1e6)
    link = pair.tick(3)
    assert bytes(last) in pair.pending(pair.backup)
    assert in_journals(pair.backup) > 0
    pair.kill()
    pair.clock.advance(DAY_S)
    with pair.keeper() as keeper:
        assert len(fire(pair, keeper)) == len(ids) + 1
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    lose_its_place(pair)
    link = pair.settle(3)
    assert link.report.healed_drops == len(ids) + 1
    assert pair.pending(pair.backup) == set()


def test_a_second_copy_in_the_backup_s_journal_does_not_come_back_when_the_drop_goes_with_the_file(pair: Pair) -> None:
    """Its first copy and its drop lie in the file; a writer that died and a replicator may both have written it."""
    ids = fill(pair, 40, delays=(5000,))
    go_away(pair, ids, fires=False)
    with Wheel(pair.primary) as wheel:
        again = pack_message(next(m for m in wheel.list() if m.id == ids[0]))
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    keeper.store.write([pack_drop(ids[0], ACKED)], 0)
    keeper.deal_all()
    keeper.close()
    assert in_journals(pair.backup) == 0
    pair.clock.advance(DAY_S)
    with pair.keeper() as primary:
        fire(pair, primary)
        Deal(primary._store, spread=True, finished=primary._head.finished).run()
    lose_its_place(pair)
    journal = Journal(open_directory(pair.backup, write=True))
    journal.append([again], 1)
    link = pair.tick(3)
    assert pair.pending(pair.backup) == set(map(bytes, ids[1:])), "the file is there still"
    pair.settle(4)
    assert link.report.healed_drops >= len(ids) - 1
    assert pair.pending(pair.backup) == set()
    journal.close()


def test_a_file_that_was_opened_into_seconds_since_it_was_seen_is_looked_into(pair: Pair) -> None:
    ids = fill(pair, 40, delays=(70,))
    go_away(pair, ids, fires=False)
    link = pair.tick()
    Deal(link.keeper.store, spread=True).run()
    assert any(name.endswith(".slot") for name in laps_in(pair.backup))
    pair.clock.advance(DAY_S)
    with pair.keeper() as keeper:
        fire(pair, keeper)
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    lap = link.target.settings.lap_of(ids[0].due_us // 1_000_000)
    seen = LapFile(lap, link.target.settings.slots, 1000, 1)
    assert link._reconciler.carry_out(Decision(delete=[seen]), {}, None).by_id
    pair.settle(4)
    assert pair.pending(pair.backup) == set()


@pytest.mark.damages
def test_files_that_the_primary_has_lost_are_given_back(pair: Pair) -> None:
    ids = fill(pair)
    go_away(pair, ids, fires=False)
    for file in (pair.primary / "laps").glob("*.lap"):
        file.unlink()
    repair(
        open_directory(pair.primary, write=True, env=SYSTEM.using(clock=pair.clock))
    )  # the checkpoint names them no more
    pair.damaged.append(pair.primary)
    link = pair.settle(5)
    assert link.report.healed_drops == 0
    assert link.report.returned == len(ids)
    assert pair.pending(pair.primary) == pair.pending(pair.backup) == set(map(bytes, ids))


@pytest.mark.damages
def test_nothing_goes_for_a_primary_whose_checkpoint_is_in_doubt(pair: Pair) -> None:
    ids = fill(pair)
    go_away(pair, ids, fires=False)
    for name in ("checkpoint", "checkpoint.old"):
        (pair.primary / name).write_bytes(b"")
    for file in (pair.primary / "laps").glob("*.lap"):
        file.unlink()
    pair.damaged.append(pair.primary)
    lose_its_place(pair)
    assert absent(open_directory(pair.primary, write=False), [LapFile(1, 900, 1, 1)]) == ([], set())
    pair.settle(5)
    assert pair.pending(pair.backup) == set(map(bytes, ids))


def test_a_move_that_the_primary_has_lost_is_made_again_before_the_file_goes(pair: Pair) -> None:
    """The backup has the message by its new id, in a lap of which the primary has nothing, and the old id's drop."""
    with pair.wheel() as wheel:
        old = wheel.enqueue(b"x", delay=5000)
    deal(pair)
    pair.settle(1)
    pair.close()
    backup = pair.primary.with_name("copy.wheel")
    shutil.copytree(pair.primary, backup, ignore=shutil.ignore_patterns("hint"))
    with pair.wheel() as wheel:
        new = wheel.reschedule(old, delay=20_000)
    deal(pair)
    pair.settle(1)
    assert pair.link is not None
    pair.link.keeper._housekeeper.deal_all()
    pair.close()
    shutil.rmtree(pair.primary)
    shutil.move(backup, pair.primary)  # power was cut before the move was durable
    lose_its_place(pair)
    pair.settle(5)
    assert pair.pending(pair.primary) == pair.pending(pair.backup) == {bytes(new)}


def test_of_files_with_which_anything_overlaps_none_is_absent(pair: Pair) -> None:
    fill(pair, 40, delays=(100, 5000))
    with pair.wheel() as wheel:
        put = wheel.enqueue(b"x", delay=9000)
    directory = open_directory(pair.primary, write=False)
    lap_of = directory.settings.lap_of

    def lap(second: int) -> LapFile:
        return LapFile(lap_of(second), directory.settings.slots, 1, 1)

    def slot(second: int) -> SlotFile:
        return SlotFile(second, lap_of(second), 1, 1)

    now_s = pair.clock.now_us() // 1_000_000
    taken = [lap(now_s + 100), slot(now_s + 100), slot(now_s + 101), lap(put.due_us // 1_000_000)]
    taken.append(slot(put.due_us // 1_000_000))
    free = [lap(now_s + 300), slot(now_s + 400), slot(put.due_us // 1_000_000 + 1)]
    for one in taken:
        assert absent(directory, [one])[0] == [], one
    for one in free:
        assert absent(directory, [one])[0] == [one], one
    assert absent(directory, []) == ([], set())


def test_a_fenced_primary_s_backup_forgets_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = fill(pair)
    go_away(pair, ids)
    link = Link(str(pair.primary), pair.member(), env=SYSTEM.using(clock=pair.clock), boot=pair.boot, fenced=True)
    link.heal()
    for _ in range(40):
        pair.clock.advance(0.25)
        link.tick()
    assert pair.pending(pair.backup) == set(map(bytes, ids))
    link.close()


def test_a_lap_of_seconds_is_planned_second_by_second(pair: Pair) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 5, delay=[1.0, 2.0, 3.0, 8.0, 9.0])
    deal(pair, spread=True)
    pair.settle(0.5)
    pair.close()
    first, second = (open_directory(p, write=False) for p in (pair.primary, pair.backup))
    with Snapshot(second) as snapshot:
        theirs = snapshot.checkpoint
    assert len(theirs.slots) == 5
    with pair.keeper() as keeper:
        pair.clock.advance(4)
        fire(pair, keeper)
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    seconds = sorted(theirs.slots)
    plan = LapPlanner(first, second, theirs).next(bytes(16), 1, set())
    assert [file.key for file in plan.absent] == seconds[: len(plan.absent)]
    assert len(plan.absent) >= 3
    after = LapPlanner(first, second, theirs).next(plan.hi, 1, set())
    assert not after.absent
    assert not after.copy
    assert not LapPlanner(first, second, theirs).next(bytes(16), 1, set(), by_id=True).absent
