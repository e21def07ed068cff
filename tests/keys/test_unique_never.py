"""Keyed messages that need not survive a power cut: no flush for their entries, and never two with one key."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, KeyHeld, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.locks import Held
from filewheel.env import Env
from filewheel.format import layout
from filewheel.keys.files import KeyFiles
from filewheel.keys.index import Keys
from filewheel.keys.lost import doubtful_puts
from filewheel.laps.deal import Deal, Dealt
from filewheel.laps.store import Store
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.support import FaultyDisk, eventually, ledger_of, run

FLUSHES = {"fdatasync", "sync_all", "sync_dir"}
GONE = """
import os, sys
from filewheel import Wheel
wheel = Wheel(sys.argv[1])
for key in sys.argv[3:]:
    wheel.enqueue(b"gone", delay=60, key=key, sync=sys.argv[2])
os._exit(0)
"""
GONE_BATCH = """
import os, sys
from filewheel import Wheel
wheel = Wheel(sys.argv[1])
wheel.enqueue_many([b"gone"] * len(sys.argv[3:]), delay=60, keys=sys.argv[3:], sync=sys.argv[2])
os._exit(0)
"""


def bucket_of(path: Path, key: str) -> Path:
    return path / layout.key_file(Keys(open_directory(path, write=False)).bucket_of(key))


def lose_entries(path: Path, *keys: str) -> None:
    """Take the entries of keys out of the index, as a power cut does."""
    for key in keys:
        place = bucket_of(path, key)
        place.write_bytes(bytes(place.stat().st_size))


def deal(path: Path, env: Env = SYSTEM) -> tuple[Dealt, Store]:
    """Deal as a keeper does that has just come."""
    store = ledger_of(open_directory(path, write=True, env=env))
    store.recover()
    try:
        return Deal(store, spread=False).run(), store
    finally:
        store.close()


@pytest.fixture
def calls() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def wheel(wheel_dir: Path, calls: list[tuple[str, str]]) -> Iterator[Wheel]:
    with Wheel(
        wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call)))
    ) as opened:
        opened.enqueue(b"first", delay=60)
        calls.clear()
        yield opened


def flushes_of(calls: list[tuple[str, str]]) -> list[str]:
    return [name for kind, name in calls if kind in FLUSHES]


@pytest.mark.parametrize("sync", ["never", 3600])
def test_a_key_of_a_message_that_need_not_be_durable_yet_costs_no_flush(
    wheel: Wheel, calls: list[tuple[str, str]], sync: float | str
) -> None:
    wheel.enqueue_many([b"m"] * 9, delay=60, keys=[f"m {n}" for n in range(9)])  # makes the file of recent entries
    calls.clear()
    for n in range(20):
        wheel.enqueue(b"one", delay=60, key=f"one {n}", sync=sync)  # type: ignore[arg-type]
    wheel.enqueue_many([b"many"] * 20, delay=60, keys=[f"many {n}" for n in range(20)], sync=sync)  # type: ignore[arg-type]
    wheel.reschedule(key="one 1", delay=70, sync=sync)  # type: ignore[arg-type]
    wheel.update(key="one 2", payload=b"new", sync=sync)  # type: ignore[arg-type]
    assert flushes_of(calls) == []
    with pytest.raises(KeyHeld):
        wheel.enqueue(b"two", key="one 1", sync=sync)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["flush", "interval", "close", "rotate", "another commit"])
def test_when_the_journal_is_flushed_the_entries_were_flushed_before(
    wheel: Wheel, wheel_dir: Path, calls: list[tuple[str, str]], how: str
) -> None:
    wheel.enqueue(b"one", delay=60, key="report", sync=0.001 if how == "interval" else "never")
    assert wheel._journal is not None
    mine = layout.segment_tmp(wheel._journal.writer, 1)
    if how == "flush":
        wheel.flush()
    elif how == "interval":
        eventually(lambda: mine in flushes_of(calls))
    elif how == "close":
        wheel.close()
    elif how == "rotate":
        wheel._journal.rotate()
    else:
        wheel.enqueue(b"plain", delay=60, sync="always")
    flushed = flushes_of(calls)
    entry = f"keys/{bucket_of(wheel_dir, 'report').name}"
    assert flushed.index(entry) < flushed.index("keys") < flushed.index(mine)
    before = len(flushes_of(calls))
    if how != "close":
        wheel.flush()
        assert entry not in flushes_of(calls)[before:]


def test_many_entries_are_flushed_at_once(wheel: Wheel, calls: list[tuple[str, str]]) -> None:
    for n in range(20):
        wheel.enqueue(b"one", delay=60, key=str(n), sync="never")
    wheel.flush()
    assert [kind for kind, _ in calls if kind in FLUSHES] == ["sync_all", "fdatasync"]


def test_entries_of_a_batch_are_flushed_with_one_call(wheel: Wheel, calls: list[tuple[str, str]]) -> None:
    for _ in range(2):
        calls.clear()
        wheel.enqueue_many([b"m"] * 50, delay=60, keys=[str(n) for n in range(50)], on_conflict="keep", sync="never")
        wheel.enqueue(b"m", delay=60, sync="never")
        wheel.flush()
    assert len(flushes_of(calls)) == 1  # that of the journal: nothing was entered the second time
    calls.clear()
    wheel.enqueue_many([b"m"] * 50, delay=60, keys=[f"again {n}" for n in range(50)], sync="never")
    wheel.flush()
    assert flushes_of(calls)[0] == "keys/recent.keys"
    assert len(flushes_of(calls)) == 2


def test_what_a_power_cut_took_out_of_the_recent_entries_is_held_and_entered(wheel_dir: Path) -> None:
    keys = [str(n) for n in range(20)]
    run(GONE_BATCH, wheel_dir, "never", *keys)
    place = wheel_dir / "keys" / "recent.keys"
    place.write_bytes(bytes(place.stat().st_size))
    with Wheel(wheel_dir) as wheel, pytest.raises(KeyHeld) as caught:
        wheel.enqueue_many([b"two"] * 20, keys=keys)
    assert set(caught.value.held) == set(keys)
    deal(wheel_dir)
    assert not verify(open_directory(wheel_dir, write=False)).damage
    with Wheel(wheel_dir) as wheel, pytest.raises(KeyHeld) as caught:
        wheel.enqueue_many([b"two"] * 20, keys=keys)
    assert set(caught.value.held) == set(keys)


def test_entries_whose_flush_was_interrupted_are_flushed_by_the_next(wheel_dir: Path) -> None:
    interrupts, flushed = [KeyboardInterrupt], []

    def fail(kind: str, name: str) -> None:
        if kind == "fdatasync" and name.startswith("keys/"):
            if interrupts:
                raise interrupts.pop()
            flushed.append(name)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        wheel.enqueue(b"one", delay=60, key="report", sync="never")
        with pytest.raises(KeyboardInterrupt):
            wheel.flush()
        wheel.flush()
        assert flushed == [f"keys/{bucket_of(wheel_dir, 'report').name}"]


def test_an_entry_that_a_power_cut_took_is_no_damage_and_its_key_is_held(wheel_dir: Path) -> None:
    run(GONE, wheel_dir, "never", "report", "other")
    lose_entries(wheel_dir, "report")
    assert not verify(open_directory(wheel_dir, write=False)).damage
    with Wheel(wheel_dir) as wheel:
        assert wheel.get(key="report") is not None
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", key="report")
        moved = wheel.reschedule(key="report", delay=90)
        assert wheel.get(key="report").id == moved  # type: ignore[union-attr]


def test_what_a_power_cut_took_out_of_the_index_is_entered_when_its_message_is_dealt(wheel_dir: Path) -> None:
    run(GONE, wheel_dir, "never", "report", "other")
    lose_entries(wheel_dir, "report")
    with Keeper(wheel_dir):
        pass
    assert not os.listdir(wheel_dir / "journal")
    assert not list(doubtful_puts(open_directory(wheel_dir, write=False)))
    with Wheel(wheel_dir) as wheel, pytest.raises(KeyHeld):
        wheel.enqueue(b"two", key="report")


def test_a_repair_enters_what_a_power_cut_took(wheel_dir: Path) -> None:
    run(GONE, wheel_dir, "never", "report")
    lose_entries(wheel_dir, "report")
    repair(open_directory(wheel_dir, write=True))
    with Wheel(wheel_dir) as wheel, pytest.raises(KeyHeld):
        wheel.enqueue(b"two", key="report")


def test_of_a_producer_that_flushes_only_its_last_message_is_looked_at_again(wheel_dir: Path) -> None:
    run(GONE, wheel_dir, "always", *"abcdefg")
    assert len(list(doubtful_puts(open_directory(wheel_dir, write=False)))) == 1


@pytest.mark.parametrize("how", ["lives", "closed"])
def test_of_a_producer_that_lives_or_has_closed_nothing_is_looked_at_again(wheel_dir: Path, how: str) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"one", delay=60, key="report", sync="never")
        if how == "closed":
            wheel.close()
        assert not list(doubtful_puts(open_directory(wheel_dir, write=False)))


def test_while_a_producer_has_the_lock_what_cannot_be_entered_is_not_dealt(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(GONE, wheel_dir, "never", "report")
    lose_entries(wheel_dir, "report")
    with Wheel(wheel_dir) as wheel:
        plain = wheel.enqueue(b"plain", delay=60)
    busy, waits = Keys(open_directory(wheel_dir, write=True)), []
    held = Held(open_directory(wheel_dir, write=True))
    assert busy.lock(held, busy.bucket_of("report"), 0)
    real, real_all = KeyFiles.lock, KeyFiles.lock_all

    def lock(keys: KeyFiles, held: Held, bucket: int, wait_s: float) -> bool:
        waits.append(wait_s)
        return real(keys, held, bucket, wait_s)

    def lock_all(keys: KeyFiles, held: Held, wait_s: float, *, shared: bool) -> bool:
        waits.append(wait_s)
        return real_all(keys, held, wait_s, shared=shared)

    with monkeypatch.context() as patched:
        patched.setattr(KeyFiles, "lock", lock)
        patched.setattr(KeyFiles, "lock_all", lock_all)
        done, store = deal(wheel_dir)
    held.close()
    assert waits == [0, 0]
    assert (done.puts, len(done.held), done.left_bytes > 0) == (1, 1, True)
    with Wheel(wheel_dir) as wheel:
        assert wheel.get(plain) is not None
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"two", key="report")
    done, store = deal(wheel_dir)
    assert (done.puts, done.held, done.left_bytes) == (1, set(), 0)
    assert not store.has_undealt()


def test_where_an_entry_cannot_be_written_its_message_is_not_dealt_and_others_are(wheel_dir: Path) -> None:
    def full(kind: str, name: str) -> None:
        if kind == "pwrite" and name.startswith("keys/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run(GONE, wheel_dir, "never", "report")
    lose_entries(wheel_dir, "report")
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"plain", delay=60)
    done, _ = deal(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, full)))
    assert (done.puts, len(done.held)) == (1, 1)
    done, _ = deal(wheel_dir)
    assert (done.puts, done.held) == (1, set())


def test_what_is_dealt_of_a_producer_that_lives_is_flushed_in_the_index(wheel_dir: Path) -> None:
    calls: list[tuple[str, str]] = []
    with (
        Wheel(wheel_dir) as wheel,
        Keeper(
            wheel_dir,
            background=False,
            env=SYSTEM.using(disk=lambda path: FaultyDisk(path, lambda *call: calls.append(call))),
        ) as keeper,
    ):
        wheel.enqueue(b"one", delay=60, key="report", sync="never")
        calls.clear()
        Deal(keeper._store, spread=False).run()
        flushed = flushes_of(calls)
        assert flushed.index(f"keys/{bucket_of(wheel_dir, 'report').name}") < flushed.index("checkpoint.tmp")
