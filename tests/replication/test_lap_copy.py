"""Laps that are copied whole into a backup: nothing is missing and nothing comes back; what cannot be is compared."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from filewheel import Keeper, MessageId, Wheel, WheelFull
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import FilewheelError
from filewheel.format.frame import Frame, scan, seal
from filewheel.format.record import pack_message, split
from filewheel.keys.index import Keys
from filewheel.laps.deal import Deal
from filewheel.message import ID_MIN
from filewheel.replication import lap_copy, lap_plan
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.lap_copy import LapCopy
from filewheel.replication.lap_plan import LapPlanner
from tests.replication.support import Pair, fire

FAR_S = (100, 1000, 5000, 20_000)


def deal(pair: Pair, *, spread: bool = False) -> None:
    """Deal what the primary's journals hold."""
    with pair.keeper() as keeper:
        Deal(keeper._store, spread=spread, finished=keeper._head.finished).run()


def fill(pair: Pair, count: int = 400, delays: tuple[float, ...] = FAR_S) -> list[MessageId]:
    """Enqueue messages in several laps, and deal them."""
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many(
            [b"%d" % n for n in range(count)], delay=[delays[n % len(delays)] for n in range(count)]
        )
    deal(pair)
    return list(ids)


def bodies(path: Path) -> list[bytes]:
    """Return the records of each lap of a wheel, in the order in which they lie there."""
    directory = open_directory(path, write=False)
    found = []
    for place in sorted((path / "laps").rglob("*.*")):
        name = str(place.relative_to(path))
        fd = directory.disk.open(name, "r")
        items = list(scan(directory.disk, fd, 0, place.stat().st_size, directory.seed(name)))
        assert all(isinstance(i, Frame) for i in items)
        found.append(b"".join(i.body for i in items if isinstance(i, Frame)))
        directory.disk.close(fd)
    return found


def in_journals(path: Path) -> int:
    """Return how many records lie in a wheel's journals."""
    directory = open_directory(path, write=False)
    count = 0
    for place in (path / "journal").iterdir():
        name = f"journal/{place.name}"
        fd = directory.disk.open(name, "r")
        items = scan(directory.disk, fd, 0, place.stat().st_size, directory.seed(name))
        count += sum(len(split(i.body)) for i in items if isinstance(i, Frame))
        directory.disk.close(fd)
    return count


def test_what_an_empty_backup_lacks_is_copied_and_no_record_goes_through_its_journal(pair: Pair) -> None:
    fill(pair)
    link = pair.tick(3)
    assert link.report.healed_puts == 400
    assert in_journals(pair.backup) == 0
    assert bodies(pair.backup) == bodies(pair.primary)
    pair.assert_equal()
    assert pair.told[-1][0] == pair.told[-1][1] > 400


@pytest.mark.parametrize("step_bytes", [1, 3000])
def test_laps_larger_than_a_step_are_copied_in_several_while_the_primary_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    monkeypatch.setattr(lap_copy, "STEP_BYTES", step_bytes)
    monkeypatch.setattr("filewheel.laps.slot.FRAME_BYTES", 300)
    ids = fill(pair)
    rng = random.Random(step_bytes)
    with pair.wheel() as wheel, pair.keeper() as keeper:
        for turn in range(60):
            pair.tick(1, 0.1)
            wheel.enqueue(b"new", delay=rng.choice(FAR_S))
            wheel.cancel(rng.choice(ids))
            if wheel.get(moving := rng.choice(ids)) is not None:
                ids.append(wheel.reschedule(moving, delay=rng.choice(FAR_S)))
            if turn % 7 == 3:
                Deal(keeper._store, spread=turn % 2 == 0, finished=keeper._head.finished).run()
            fire(pair, keeper)
        pair.settle()
        assert pair.pending(pair.primary)
        pair.assert_equal()


def test_a_lap_that_a_step_has_begun_is_gone_on_with_and_nothing_is_copied_twice(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lap_copy, "STEP_BYTES", 2000)
    monkeypatch.setattr("filewheel.laps.slot.FRAME_BYTES", 300)
    fill(pair, delays=(5000,))
    link = pair.tick(3)
    assert 0 < link.report.healed_puts < 400, "it takes several steps"
    pair.settle(2)
    assert link.report.healed_puts == 400
    assert bodies(pair.backup) == bodies(pair.primary)


def test_a_drop_that_the_backup_has_dealt_and_forgotten_does_not_let_its_message_come_back(pair: Pair) -> None:
    """The primary's file has the message still, and its drop lies in a journal that the link has read already."""
    ids = fill(pair, 4, delays=(5000,))
    link = pair.tick(5)
    assert in_journals(pair.backup) == 0
    for place in (pair.backup / "laps").rglob("*.*"):
        place.unlink()
    link.keeper.store.checkpoint.laps.clear()
    link.keeper.store.checkpoint.slots.clear()
    with pair.wheel() as wheel:
        assert wheel.cancel(ids[0])
        pair.tick(5)
        link.keeper._housekeeper.deal_all()
        assert (link.keeper.store.undealt_records, in_journals(pair.backup)) == (0, 1), "dealt, and it met nothing"
        link.heal()
        pair.tick(5)
        assert pair.pending(pair.backup) == set(map(bytes, ids[1:]))
        pair.settle()
        pair.assert_equal()


def test_what_is_due_is_copied_too_and_is_not_taken_for_finished(pair: Pair) -> None:
    ids = fill(pair, 50, delays=tuple(map(float, range(50))))
    pair.clock.advance(3000)
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    keeper.tick()
    one = LapCopy(open_directory(pair.primary, write=False), keeper)
    plan = one.plan(ID_MIN)
    assert one.copy(plan.copy, ID_MIN, plan.hi).copied == 50
    for _ in range(3):
        keeper._housekeeper.deal_all()
        assert pair.pending(pair.backup) == set(map(bytes, ids))
        keeper.tick()
    keeper.close()


def test_what_was_copied_goes_whole_when_the_primary_has_fired_it(pair: Pair) -> None:
    fill(pair, 50, delays=tuple(map(float, range(50))))
    pair.clock.advance(3000)
    link = pair.settle(2)
    assert (link.report.healed_puts, in_journals(pair.backup)) == (50, 0)
    with pair.keeper() as keeper:
        assert len(fire(pair, keeper)) == 50
        pair.settle()
    link.keeper._housekeeper.deal_all()
    assert not list((pair.backup / "laps").rglob("*.*"))
    pair.assert_equal()


def test_what_only_the_backup_has_in_a_lap_that_is_copied_is_dropped(pair: Pair) -> None:
    fill(pair, 200, delays=(5000,))
    with Wheel.create(pair.backup.with_name("other.wheel"), clock=pair.clock, slots=60) as other:
        extra = other.enqueue(b"extra", delay=5000)
        (message,) = other.list()
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    keeper.store.own.append([pack_message(message)], 1)
    keeper.ingest()
    keeper.close()
    link = pair.tick(5)
    assert link.report.healed_puts == 200
    assert bytes(extra) in pair.pending(pair.backup)
    pair.settle()
    assert link.report.healed_drops == 1
    pair.assert_equal()


def test_keys_of_messages_that_are_copied_are_known_in_the_backup(pair: Pair) -> None:
    with pair.wheel() as wheel:
        ids = [wheel.enqueue(b"x", delay=5000, key=f"key-{n}") for n in range(20)]
    deal(pair)
    pair.tick(3)
    assert in_journals(pair.backup) == 0
    keys = Keys(open_directory(pair.backup, write=False))
    assert [set(keys.ids_of(f"key-{n}")) for n in range(20)] == [{bytes(i)} for i in ids]


@pytest.mark.damages
def test_a_lap_that_cannot_be_read_whole_is_compared_and_the_others_are_copied(pair: Pair) -> None:
    fill(pair)
    victim = max((pair.primary / "laps").rglob("*.lap"))
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    pair.damaged.append(pair.primary)
    link = pair.settle(2)
    assert link.report.healed_puts == 300
    assert link.has_met_damage
    assert victim.name not in {p.name for p in (pair.backup / "laps").rglob("*")}


@pytest.mark.parametrize("what", ["gone", "short"])
def test_a_file_that_goes_while_it_is_copied_takes_nothing_with_it(pair: Pair, what: str) -> None:
    fill(pair)
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    source = open_directory(pair.primary, write=False)
    one = LapCopy(source, keeper)
    plan = one.plan(ID_MIN)
    victim = next((pair.primary / "laps").glob(f"{plan.copy[2]}-*.lap"))
    data = victim.read_bytes()
    victim.unlink() if what == "gone" else victim.write_bytes(data[:8])
    done = one.copy(plan.copy, ID_MIN, plan.hi)
    assert (done.hi, done.copied, done.puts) == (ID_MIN, 0, [])
    assert not list((pair.backup / "laps").rglob("*.*"))
    assert not keeper.store.checkpoint.laps
    victim.write_bytes(data)
    assert plan.copy[2] not in one.plan(ID_MIN).copy
    one.begin()
    plan = one.plan(ID_MIN)
    assert one.copy(plan.copy, ID_MIN, plan.hi).copied == 400
    keeper.close()


def test_a_lap_that_is_opened_into_seconds_after_it_was_planned_is_not_copied_beside_a_file_of_it(pair: Pair) -> None:
    ids = fill(pair, 40, delays=(100,))
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    with Wheel(pair.primary) as wheel:
        put = pack_message(next(m for m in wheel.list() if m.id == ids[0]))
    keeper.store.write([put], 1)
    keeper.deal_all()
    one = LapCopy(open_directory(pair.primary, write=False), keeper)
    plan = one.plan(ID_MIN)
    assert len(plan.copy) == 1
    pair.clock.advance(60)
    deal(pair, spread=True)
    assert list(pair.primary.rglob("*.slot"))
    done = one.copy(plan.copy, ID_MIN, plan.hi)
    assert (done.hi, done.copied) == (ID_MIN, 0)
    assert not list(pair.backup.rglob("*.slot"))
    keeper.close()


class Full(OsDisk):
    """A disk with less room than it seems."""

    room = 1 << 60

    def free_bytes(self) -> int:
        return self.room


def test_where_there_is_no_room_nothing_is_begun_and_the_error_says_so(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair)
    pair.disk = Full
    link = pair.open()
    monkeypatch.setattr(Full, "room", 1 << 20)
    with pytest.raises(WheelFull):
        pair.tick(3)
    assert not list((pair.backup / "laps").rglob("*.*"))
    pair.kill()
    monkeypatch.setattr(Full, "room", 1 << 40)
    link = pair.tick(3)
    assert link.report.healed_puts == 400
    pair.assert_equal()


class Fails(OsDisk):
    """A disk of which one call fails that changes something."""

    left = 1 << 60

    def _count(self) -> None:
        Fails.left -= 1
        if Fails.left == 0:
            raise OSError(5, "Input/output error")

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._count()
        super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._count()
        super().fdatasync(fd)

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)


def test_an_error_at_any_call_leaves_a_backup_that_the_next_link_heals(pair: Pair) -> None:
    fill(pair, 40)
    pair.disk = Fails
    calls = 0
    while True:
        calls += 1
        link = pair.open()
        Fails.left = calls
        try:
            pair.tick(4)
            break
        except (OSError, FilewheelError):
            pair.kill()
        finally:
            Fails.left = 1 << 60
    assert calls > 3
    link = pair.settle(2)
    assert link.report.healed_puts <= 40
    pair.assert_equal()


def test_a_lap_that_is_one_file_here_and_seconds_there_is_compared(pair: Pair) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue(b"x", delay=30.0)
    link = pair.settle(1)
    Deal(link.keeper.store, spread=True).run()
    pair.close()
    deal(pair)
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"y"] * 400, delay=30.0)
    deal(pair)
    assert list(pair.primary.rglob("*.lap"))
    assert list(pair.backup.rglob("*.slot"))
    link = pair.open()
    laps = LapPlanner(link.source, link.target, link.keeper.store.checkpoint)
    assert [laps.can_copy(lap) for lap in laps._our.laps] == [False]
    link.heal()
    pair.settle(2)
    assert not list(pair.backup.rglob("*.lap")), "one form for each lap"
    pair.assert_equal()


def test_laps_that_are_the_same_are_passed_over_without_a_look_at_their_records(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(pair, delays=(5000, 20_000))
    link = pair.settle(1)
    monkeypatch.setattr("filewheel.replication.heal.compare", lambda *_: pytest.fail("compared"))
    pair.told.clear()
    link.heal()
    pair.settle(1)
    assert pair.told[-1][0] > 400
    assert link.report.healed_puts == 400
    pair.assert_equal()


@pytest.mark.damages
def test_laps_of_one_size_that_are_not_the_same_are_compared(pair: Pair) -> None:
    ids = fill(pair, 40, delays=(5000,))
    link = pair.settle(1)
    other = pair.primary.with_name("other.wheel")
    Wheel.create(other, slots=60, clock=pair.clock).close()
    with Wheel(other, clock=pair.clock) as wheel:
        strangers = wheel.enqueue_many([b"%d" % n for n in range(40)], delay=5000)
    with Keeper(other, wait=False, background=False, clock=pair.clock):
        pass
    (theirs,) = (pair.backup / "laps").rglob("*.lap")
    (strange,) = (other / "laps").rglob("*.lap")
    directories = [open_directory(p, write=False) for p in (other, pair.backup)]
    name = f"laps/{theirs.name}"
    fd = directories[0].disk.open(name, "r")
    frames = scan(directories[0].disk, fd, 0, strange.stat().st_size, directories[0].seed(name))
    offset = 0
    data = b""
    for frame in frames:
        assert isinstance(frame, Frame)
        data += seal(
            frame.body, seed=directories[1].seed(name), offset=offset, number=1, synced=0,
            puts=frame.puts, drops=0, first=frame.first, last=frame.last,
        )  # fmt: skip
        offset = len(data)
    assert len(data) == theirs.stat().st_size
    theirs.write_bytes(data)
    link.heal()
    pair.settle(4)
    assert (link.report.healed_puts, link.report.healed_drops) == (80, 40)
    assert pair.pending(pair.backup) == set(map(bytes, ids)) != set(map(bytes, strangers))


def test_of_laps_that_are_passed_over_the_journals_count(pair: Pair) -> None:
    fill(pair, 40, delays=(5000,))
    pair.settle(1)
    pair.close()
    with pair.wheel() as wheel:
        late = wheel.enqueue(b"late", delay=4999)
    link = pair.open()
    link.follower.skip()  # as if this link began here, with nothing known
    link.heal()
    pair.settle(1)
    assert bytes(late) in pair.pending(pair.backup)
    pair.assert_equal()


@pytest.mark.parametrize("seed", range(5))
def test_two_wheels_that_have_grown_apart_are_equal_after_a_heal(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(lap_copy, "STEP_BYTES", rng.choice([1, 500, 1 << 20]))
    monkeypatch.setattr(lap_plan, "_SMALL_BYTES", rng.choice([0, 1000, 1 << 16]))
    monkeypatch.setattr("filewheel.laps.slot.FRAME_BYTES", rng.choice([200, 1 << 17]))
    delays = (0, 1, 30, 90, 400, 5000)
    with pair.keeper() as keeper, pair.wheel() as wheel:
        ids: list[MessageId] = []
        for turn in range(6):
            pair.settle(1)
            if turn % 2:
                pair.close()
            ids += wheel.enqueue_many([b"x"] * 60, delay=[rng.choice(delays) for _ in range(60)])
            for id_ in rng.sample(ids, 20):
                if rng.random() < 0.5:
                    wheel.cancel(id_)
                elif wheel.get(id_) is not None:
                    ids.append(wheel.reschedule(id_, delay=rng.choice(delays)))
            if rng.random() < 0.6:
                Deal(keeper._store, spread=rng.random() < 0.5, finished=keeper._head.finished).run()
            pair.clock.advance(rng.choice([0, 20, 100]))
            fire(pair, keeper, lambda k, i: k.nack(i, delay=50) if rng.random() < 0.3 else k.ack([i]))
            pair.tick()
            assert pair.link is not None
            pair.link.heal()
            pair.tick(rng.randrange(4))
        link = pair.tick()
        while link._heal.is_on:
            pair.tick()
        pair.settle()
        assert pair.pending(pair.primary)
        pair.assert_equal()
