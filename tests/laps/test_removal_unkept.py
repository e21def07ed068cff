"""A covered segment that can be neither kept for backups nor counted stays in journal/ until either can be written."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import Keeper, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format import layout
from filewheel.laps.deal import Deal
from filewheel.laps.tidy import tidy
from filewheel.roster.retention import read_overflow
from filewheel.roster.roster import read_roster
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.roster.test_retention import NAMES, kept, primary
from tests.support import FaultyDisk, ledger_of


def refusing(*places: str) -> tuple[list[bool], Callable[[str], FaultyDisk]]:
    """A disk that takes nothing in these places until the switch is off."""
    on = [True]

    def fail(what: str, name: str) -> None:
        if on[0] and name.startswith(places) and (what == "rename" or (what == "open" and name == layout.OVERFLOW_TMP)):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), name)

    return on, lambda path: FaultyDisk(path, fail)


def state_of_backup(path: Path) -> str:
    roster = read_roster(OsDisk(os.fspath(path)), os.fspath(path))
    assert roster is not None
    return roster.members[0].state


def assert_pending(path: Path, *, gone: MessageId) -> None:
    """Assert that what was acknowledged does not wait, what was not does, and everything can be read."""
    with Wheel(path) as wheel:
        waiting = list(wheel.list())
        assert gone not in {m.id for m in waiting}
        assert {m.payload for m in waiting} >= {b"x"}
        assert len(waiting) == len({m.id for m in waiting}) == wheel.stats().pending
    assert verify(open_directory(path, write=False)).damage == []


def test_a_covered_segment_goes_where_only_the_roster_can_say_so_and_the_counter_is_raised_before_the_next_is_kept(
    wheel_dir: Path,
) -> None:
    roster = primary(wheel_dir, state="current")
    refuses, disk = refusing("retained/")
    store = ledger_of(open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=disk)))
    store.follow(roster)
    (wheel_dir / NAMES[0]).write_bytes(b"segment")
    assert store.removal.retire_segment(NAMES[0])
    assert os.listdir(wheel_dir / "journal") == []
    assert state_of_backup(wheel_dir) == "stale"
    refuses[0] = False
    assert read_overflow(store.dir) == 0
    (wheel_dir / NAMES[1]).write_bytes(b"segment")
    assert store.removal.retire_segment(NAMES[1])
    assert read_overflow(store.dir) == 1
    assert list(kept(wheel_dir)) == [NAMES[1].rpartition("/")[2]]
    shutil.rmtree(wheel_dir / "retained")


@pytest.mark.parametrize("writer", ["has ended", "goes on"])
@pytest.mark.parametrize("next_is", ["the same keeper", "another keeper", "a keeper after one that could not either"])
def test_a_covered_segment_that_can_be_neither_kept_nor_counted_stays_until_either_can_be_written(
    wheel_dir: Path, writer: str, next_is: str
) -> None:
    primary(wheel_dir, state="current")
    refuses, disk = refusing("retained/", "roster.json")
    keeper = Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk))
    wheel = Wheel(wheel_dir)
    wheel.enqueue(b"x", delay=3600)
    now = wheel.enqueue(b"now", delay=0)
    assert wheel._journal is not None
    wheel._journal.rotate()
    if writer == "has ended":
        wheel.close()
    else:
        wheel.enqueue(b"y", delay=3600)
    keeper.ack(keeper.claim(), sync="always")
    was = {p.name for p in (wheel_dir / "journal").iterdir()}
    for _ in range(3):
        Deal(keeper._store, spread=True).run()
        assert len(was & set(os.listdir(wheel_dir / "journal"))) >= 1
        assert_pending(wheel_dir, gone=now)
    assert kept(wheel_dir) == {}
    assert state_of_backup(wheel_dir) == "current"
    if next_is != "the same keeper":
        keeper.close()
        assert os.listdir(wheel_dir / "journal")
        if next_is == "a keeper after one that could not either":
            with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk)) as again:
                assert len(again.claim()) == 0
            assert os.listdir(wheel_dir / "journal")
        assert_pending(wheel_dir, gone=now)
        keeper = Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk))
    refuses[0] = False
    assert len(keeper.claim()) == 0
    wheel.close()
    keeper.close()
    assert os.listdir(wheel_dir / "journal") == []
    assert was <= set(kept(wheel_dir))
    assert read_overflow(open_directory(wheel_dir, write=False)) == 0
    assert_pending(wheel_dir, gone=now)
    with Keeper(wheel_dir, background=False) as last:
        Deal(last._store, spread=True).run()
        assert not last._store.checkpoint.positions


def test_what_was_acknowledged_does_not_fire_again_from_a_covered_segment_that_stays(wheel_dir: Path) -> None:
    primary(wheel_dir, state="current")
    wheel = Wheel(wheel_dir)
    now = wheel.enqueue(b"now", delay=0)
    wheel.enqueue(b"x", delay=3600)
    assert wheel._journal is not None
    refuses, disk = refusing(f"retained/{wheel._journal.writer}", layout.OVERFLOW, layout.OVERFLOW_TMP, layout.ROSTER)
    keeper = Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk))
    wheel.close()
    keeper.ack(keeper.claim(), sync="always")
    keeper._store.ingest(test_locks=True)
    for _ in range(3):
        Deal(keeper._store, spread=True).run()
        assert len(keeper.claim()) == 0
    assert len(kept(wheel_dir)) == 1  # the keeper's own, with the drop
    keeper.close()
    assert len(os.listdir(wheel_dir / "journal")) == 1
    for _ in range(2):
        with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk)) as again:
            for _ in range(3):
                Deal(again._store, spread=True).run()
                assert len(again.claim()) == 0
    assert_pending(wheel_dir, gone=now)
    refuses[0] = False
    Keeper(wheel_dir, background=False).close()
    assert os.listdir(wheel_dir / "journal") == []
    assert_pending(wheel_dir, gone=now)


def test_a_covered_segment_that_stays_is_no_undealt_one_for_a_repair_a_producer_that_tidies_and_who_looks(
    wheel_dir: Path,
) -> None:
    primary(wheel_dir, state="current")
    refuses, disk = refusing("retained/", layout.ROSTER)
    with Wheel(wheel_dir) as wheel:
        now = wheel.enqueue(b"now", delay=0)
        wheel.enqueue(b"x", delay=3600)
    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=disk)) as keeper:
        keeper.ack(keeper.claim(), sync="always")
    left = sorted(os.listdir(wheel_dir / "journal"))
    for _ in range(2):
        assert tidy(open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=disk)))
        repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=disk)))
        assert set(left) <= set(os.listdir(wheel_dir / "journal"))
        assert_pending(wheel_dir, gone=now)
        with Wheel(wheel_dir) as wheel:
            assert wheel.stats().journal_bytes == 0
    refuses[0] = False
    repair(open_directory(wheel_dir, write=True))
    assert os.listdir(wheel_dir / "journal") == []
    assert set(left) <= set(kept(wheel_dir))
    assert_pending(wheel_dir, gone=now)
