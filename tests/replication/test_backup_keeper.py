"""The keeper of a backup: it deals and deletes what is finished, knows every key, and fires nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import Keeper, Locked, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import Fenced
from filewheel.format.record import ACKED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.keys.index import Keys
from filewheel.message import KEY, US_PER_S
from filewheel.replication.backup_keeper import BackupKeeper
from tests.replication.support import Pair, fire
from tests.support_wheel import a_put


def files(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "laps").rglob("*") if p.is_file())


def test_what_is_due_is_not_fired_and_goes_whole_when_its_drops_have_come(pair: Pair) -> None:
    keeper = BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    journal = Journal(open_directory(pair.backup, write=True))
    start_us = pair.clock.now_us()
    near = [journal.new_id(start_us + US_PER_S * n) for n in (2, 2, 70)]
    far = journal.new_id(start_us + 5000 * US_PER_S)
    journal.append([a_put(i) for i in [*near, far]], 4)
    keeper.tick()
    for _ in range(40):
        pair.clock.advance(1)
        keeper.tick()
    assert len(files(pair.backup)) == 3
    for _ in range(50):
        pair.clock.advance(1)
        keeper.tick()
    assert pair.pending(pair.backup) == {*near, far}
    journal.append([pack_drop(i, ACKED) for i in near[:2]], 0)
    for _ in range(40):
        pair.clock.advance(1)
        keeper.tick()
    assert len(files(pair.backup)) == 2
    journal.append([pack_drop(near[2], ACKED)], 0)
    for _ in range(40):
        pair.clock.advance(1)
        keeper.tick()
    assert len(files(pair.backup)) == 1
    assert pair.pending(pair.backup) == {far}
    journal.close()
    keeper.close()


def test_a_backup_is_locked_while_a_link_runs_and_free_afterwards(pair: Pair) -> None:
    pair.tick()
    with pytest.raises(Locked):
        BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock))
    with pytest.raises(Fenced):
        Keeper(pair.backup, wait=False, background=False)
    pair.close()
    BackupKeeper(str(pair.backup), env=SYSTEM.using(clock=pair.clock)).close()


def test_every_key_that_lives_is_known_in_the_backup_at_each_moment(pair: Pair) -> None:
    keys = Keys(open_directory(pair.backup, write=False))
    with pair.keeper() as keeper, pair.wheel() as wheel:
        for n in range(30):
            wheel.enqueue(b"x", key=f"key {n % 7}", delay=n % 3, on_conflict="replace")
            if n % 5 == 0:
                wheel.reschedule(key=f"key {n % 7}", delay=2)
            if n % 4 == 0:
                pair.clock.advance(1)
                fire(pair, keeper, lambda k, i: k.nack(i, delay=1))
            pair.tick()
            if n == 15:
                pair.kill()
            lives = pair.pending(pair.backup)
            for name in range(7):
                held = keys.find([f"key {name}"])[f"key {name}"].id
                with Wheel(pair.backup) as backup:
                    has = [m.id for m in backup.list() if m.headers.get(KEY) == f"key {name}"]
                assert (held in has) if has else held is None or held in lives
        pair.settle(3)
        for name in range(7):
            with Wheel(pair.primary) as primary:
                held_here = Keys(open_directory(pair.primary, write=False)).find([f"key {name}"])[f"key {name}"].id
                assert held_here is not None
                assert primary.get(held_here) is not None
            assert keys.find([f"key {name}"])[f"key {name}"].id == held_here


def test_a_message_that_moved_goes_on_in_both_when_its_first_id_is_cancelled(pair: Pair) -> None:
    with pair.keeper() as keeper, pair.wheel() as wheel:
        first = wheel.enqueue(b"x")
        fire(pair, keeper, lambda k, i: k.nack(i, delay=2))
        keeper.claim()
        pair.settle(0.5)
        wheel.cancel(first)
        pair.settle(1)
        assert len(pair.pending(pair.primary)) == 1
        assert pair.pending(pair.primary) == pair.pending(pair.backup)
        pair.assert_equal()
