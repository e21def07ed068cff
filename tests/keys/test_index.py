"""Keys of undealt messages: they list themselves, so a key costs no flush; a deal enters them before it commits."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import DiskError, Keeper, KeyHeld, Replicator, Wheel, WheelFull, add_backup
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format import layout
from filewheel.format.key_entries import pack_entry
from filewheel.keys.index import Keys
from filewheel.laps.deal import Deal
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.support import FakeClock, FaultyDisk, run

FLUSHES = {"fdatasync", "sync_all", "sync_dir"}
GONE = """
import os, sys
from filewheel import Wheel
wheel = Wheel(sys.argv[1])
for key in sys.argv[3:]:
    wheel.enqueue(b"gone", delay=60, key=key, sync=sys.argv[2])
os._exit(0)
"""


def bucket_of(path: Path, key: str) -> Path:
    return path / layout.key_file(Keys(open_directory(path, write=False)).hash_of(key)[0])


def entered(path: Path) -> list[bytes]:
    """Return the ids in the files of the index."""
    keys = Keys(open_directory(path, write=False))
    return [e.id for bucket in range(layout.KEY_BUCKETS) for e in keys.entries(bucket)]


def is_held(path: Path, key: str) -> bool:
    with Wheel(path) as wheel:
        try:
            wheel.cancel(wheel.enqueue(b"two", delay=60, key=key))
        except KeyHeld:
            return True
    return False


@pytest.fixture
def calls() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def wheel(wheel_dir: Path, calls: list[tuple[str, str]]) -> Iterator[Wheel]:
    env = SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call)))
    with Wheel(wheel_dir, env=env) as opened:
        opened.enqueue(b"first", delay=60)
        calls.clear()
        yield opened


@pytest.mark.parametrize("sync", ["never", 3600, "always"])
def test_a_key_costs_no_flush_beside_that_of_its_message(
    wheel: Wheel, calls: list[tuple[str, str]], sync: float | str
) -> None:
    for n in range(20):
        wheel.enqueue(b"one", delay=60, key=f"one {n}", sync=sync)  # type: ignore[arg-type]
    wheel.enqueue_many([b"many"] * 20, delay=60, keys=[f"many {n}" for n in range(20)], sync=sync)  # type: ignore[arg-type]
    wheel.reschedule(key="one 1", delay=70, sync=sync)  # type: ignore[arg-type]
    wheel.update(key="one 2", payload=b"new", sync=sync)  # type: ignore[arg-type]
    flushes = [call for call in calls if call[0] in FLUSHES]
    assert len(flushes) == (23 if sync == "always" else 0)
    assert not [name for _, name in flushes if name.startswith("keys")]
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"two", key="one 1", sync=sync)  # type: ignore[arg-type]


@pytest.mark.parametrize("sync", ["never", "always"])
def test_the_key_of_a_message_that_its_killed_producer_left_in_the_journal_is_held_without_an_index(
    wheel_dir: Path, sync: str
) -> None:
    run(GONE, wheel_dir, sync, "report", "other")
    shutil.rmtree(wheel_dir / layout.KEYS)
    assert not verify(open_directory(wheel_dir, write=False)).damage
    with Wheel(wheel_dir) as wheel:
        assert wheel.get(key="report") is not None
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", key="report")
        moved = wheel.reschedule(key="report", delay=90)
        assert wheel.get(key="report").id == moved  # type: ignore[union-attr]
    Keeper(wheel_dir).close()
    assert not os.listdir(wheel_dir / layout.JOURNAL)
    assert is_held(wheel_dir, "report")
    assert is_held(wheel_dir, "other")


@pytest.mark.parametrize("count", [1, 300])
def test_what_a_deal_enters_is_durable_before_its_checkpoint_is_in_place(wheel_dir: Path, count: int) -> None:
    calls: list[tuple[str, str]] = []
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"x"] * count, delay=60, keys=[str(n) for n in range(count)], sync="never")
    env = SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call)))
    with Keeper(wheel_dir, background=False, env=env) as keeper:
        calls.clear()
        Deal(keeper._store, spread=False).run()
    commit = calls.index(("rename", "checkpoint"))
    if count == 1:
        name = f"keys/{bucket_of(wheel_dir, '0').name}"
        flushed = [calls.index(call) for call in (("fdatasync", name), ("sync_dir", "keys"), ("sync_dir", ""))]
        assert calls.index(("pwrite", name)) < min(flushed) < max(flushed) < commit
    else:
        last = max(n for n, (kind, name) in enumerate(calls) if kind == "pwrite" and name.startswith("keys/"))
        assert last < calls.index(("sync_all", "")) < commit


def test_a_message_that_ended_before_it_was_dealt_is_never_entered(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        for n in range(50):
            last = wheel.enqueue(b"%d" % n, delay=60, key="typing", on_conflict="replace", sync="never")
        wheel.enqueue(b"x", delay=60, key="cancelled")
        wheel.cancel(key="cancelled")
    Keeper(wheel_dir).close()
    assert entered(wheel_dir) == [last]


def test_a_deal_for_whose_keys_there_is_no_room_changes_nothing_and_is_done_later(wheel_dir: Path) -> None:
    is_full = True

    def full(kind: str, name: str) -> None:
        if is_full and kind == "pwrite" and name.startswith("keys/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Wheel(wheel_dir) as wheel:
        id_ = wheel.enqueue(b"x", delay=60, key="report")
    env = SYSTEM.using(disk=lambda path: FaultyDisk(path, full))
    with Keeper(wheel_dir, background=False, env=env) as keeper:
        with pytest.raises(OSError, match="No space"):
            Deal(keeper._store, spread=False).run()
        assert is_held(wheel_dir, "report")
        is_full = False
        assert Deal(keeper._store, spread=False).run().puts == 1
    assert id_ in entered(wheel_dir)


@pytest.mark.damages
@pytest.mark.parametrize("what", ["directory", "pipe", "link", "keys/ is a file"])
def test_a_file_of_keys_that_is_no_file_stops_no_deal_and_a_repair_enters_its_keys(
    wheel_dir: Path, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60, key="report")
        place = bucket_of(wheel_dir, "report")
        if what == "keys/ is a file":
            shutil.rmtree(wheel_dir / layout.KEYS)
            (wheel_dir / layout.KEYS).write_bytes(b"")
        elif what == "directory":
            place.mkdir()
        elif what == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to(tmp_path / "outside")
    with caplog.at_level(logging.CRITICAL):
        Keeper(wheel_dir).close()
    assert not os.listdir(wheel_dir / layout.JOURNAL)
    assert "no key of it can be taken" in caplog.text
    assert not (tmp_path / "outside").exists()
    with Wheel(wheel_dir) as wheel, pytest.raises(DiskError):
        wheel.enqueue(b"two", key="report")
    repair(open_directory(wheel_dir, write=True))
    assert is_held(wheel_dir, "report")
    assert not verify(open_directory(wheel_dir, write=False)).damage


def test_a_look_beside_a_deal_finds_the_holder(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        wheel.enqueue(b"x", delay=60, key="report")
        real, deals = wheel._keys.read, iter([1])

        def read(bucket: int) -> bytes:
            for _ in deals:  # between the journals and the index
                Deal(keeper._store, spread=False).run()
            return real(bucket)

        monkeypatch.setattr(wheel._keys, "read", read)
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", key="report")
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", key="report")


def test_the_holder_of_a_key_is_found_in_a_copy_though_the_index_is_not_copied(wheel_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"plain", delay=60)
        dealt = wheel.enqueue(b"dealt", delay=60, key="dealt")
        Keeper(wheel_dir).close()
        add_backup(wheel_dir, copy)
        Replicator(copy).once()
        undealt = wheel.enqueue(b"undealt", delay=60, key="undealt")
        Replicator(copy).once()
    with Wheel(copy) as reader:
        found = [reader.get(key=key) for key in ("dealt", "undealt", "free")]
    assert [m and (m.id, m.payload) for m in found] == [(dealt, b"dealt"), (undealt, b"undealt"), None]


@pytest.mark.damages
def test_a_key_is_held_although_the_checkpoint_is_lost(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60, key="dealt")
        Keeper(wheel_dir).close()
        wheel.enqueue(b"x", delay=60, key="undealt")
        for name in (layout.CHECKPOINT, layout.CHECKPOINT_OLD):
            (wheel_dir / name).unlink()
        for key in ("dealt", "undealt"):
            assert wheel.get(key=key) is not None
            with pytest.raises(KeyHeld):
                wheel.enqueue(b"two", key=key)
        wheel.enqueue(b"x", delay=60, key="undealt", on_conflict="replace")
        assert wheel.stats().pending == 2


@pytest.mark.parametrize("who", ["keeper", "repair"])
def test_the_recent_entries_of_an_older_version_count_and_are_moved_to_the_other_files(
    wheel_dir: Path, who: str, clock: FakeClock
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        for n in range(20):
            wheel.enqueue(b"x", delay=3600, key=str(n))
    Keeper(wheel_dir, clock=clock).close()
    directory = open_directory(wheel_dir, write=True)
    keys, recent = Keys(directory), wheel_dir / layout.key_file(layout.KEY_RECENT)
    found = [e for bucket in range(layout.KEY_BUCKETS) for e in keys.entries(bucket)]
    assert len(found) == 20
    for place in (wheel_dir / layout.KEYS).glob("??.keys"):
        place.unlink()
    seed = directory.seed(layout.key_file(layout.KEY_RECENT))
    mark = pack_entry(seed, bytes(16), os.urandom(16))
    recent.write_bytes(mark + b"".join(pack_entry(seed, e.hash, e.id) for e in found) + bytes(4096))
    assert not verify(directory).damage
    assert all(is_held(wheel_dir, str(n)) for n in range(20))
    if who == "repair":
        repair(directory)
    else:
        with Keeper(wheel_dir, clock=clock, background=False) as keeper:
            keeper._housekeeper._keys_tidied_us = -(1 << 60)
            keeper._housekeeper._looked_us = -(1 << 60)
            keeper._housekeeper.step()
    assert not recent.exists()
    assert not verify(directory).findings
    assert all(is_held(wheel_dir, str(n)) for n in range(20))


def test_a_key_on_a_full_disk_is_refused_and_nothing_is_written(wheel_dir: Path) -> None:
    is_full = False

    def full(kind: str, name: str) -> None:
        if is_full and kind in ("pwrite", "mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, full))) as wheel:
        wheel.enqueue(b"x", delay=60)
        is_full = True
        with pytest.raises(WheelFull):
            wheel.enqueue(b"x", delay=60, key="report")
        is_full = False
        assert wheel.get(key="report") is None
        wheel.enqueue(b"x", delay=60, key="report")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
