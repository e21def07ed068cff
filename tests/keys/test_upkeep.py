"""The index of keys, rebuilt from the messages: from nothing, twice, cut short anywhere, in bounded memory."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from filewheel import Keeper, KeyHeld, Message, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.quarantine import Quarantine
from filewheel.format import layout
from filewheel.keys import upkeep
from filewheel.keys.index import Keys
from filewheel.keys.upkeep import rebuild_keys, unreadable_keys
from filewheel.message import KEY
from filewheel.tools.verify import verify
from tests.support import FaultyDisk

COUNT = 400


@pytest.fixture
def path(wheel_dir: Path) -> Path:
    """A wheel with keys in slot and lap files, of dead letters, of ended messages, and in a journal."""
    with Wheel(wheel_dir) as wheel:
        keys = [f"k{n}" for n in range(COUNT)]
        wheel.enqueue_many([b"x"] * COUNT, delay=[3600 + n * 60 for n in range(COUNT)], keys=keys)
        wheel.enqueue(b"x", key="dead")
        with Keeper(wheel_dir) as keeper:
            keeper.bury(keeper.claim()[0])
        wheel.cancel(key="k7")
        wheel.enqueue(b"x", delay=60, key="undealt")
    return wheel_dir


def rebuild(path: Path, fail: object = None) -> list[str]:
    env = SYSTEM if fail is None else SYSTEM.using(disk=lambda where: FaultyDisk(where, fail))  # type: ignore[arg-type]
    directory = open_directory(path, write=True, env=env)
    return rebuild_keys(directory, Quarantine(directory))


def files_of(path: Path) -> dict[str, bytes]:
    return {place.name: place.read_bytes() for place in sorted((path / layout.KEYS).glob("*.keys"))}


def assert_all_are_held(path: Path) -> None:
    with Wheel(path) as wheel:
        for key in [*(f"k{n}" for n in range(COUNT) if n != 7), "undealt"]:
            with pytest.raises(KeyHeld):
                wheel.enqueue(b"two", key=key)
        for key in ("k7", "dead", "new"):
            assert wheel.cancel(wheel.enqueue(b"two", delay=60, key=key))
    assert not verify(open_directory(path, write=False)).damage


def test_an_index_that_is_missing_is_rebuilt_from_the_messages_and_then_nothing_is_left_to_do(path: Path) -> None:
    shutil.rmtree(path / layout.KEYS)
    assert verify(open_directory(path, write=False)).damage
    assert rebuild(path) == [f"{COUNT} keys were entered again"]  # also one that was cancelled after the last deal
    made = files_of(path)
    assert rebuild(path) == []
    assert files_of(path) == made
    assert_all_are_held(path)


def test_a_wheel_without_keys_gets_no_index(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)
    Keeper(wheel_dir).close()
    assert rebuild(wheel_dir) == []
    assert not (wheel_dir / layout.KEYS).exists()


@pytest.mark.damages
@pytest.mark.parametrize("held_bytes", [64, 1 << 20])
def test_a_rebuild_that_was_cut_short_at_any_call_is_done_by_the_next(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(upkeep, "HELD_BYTES", held_bytes)
    shutil.rmtree(path / layout.KEYS)
    total = 0

    def count(kind: str, name: str) -> None:
        nonlocal total
        total += 1

    copy = tmp_path / "counted"
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns(layout.HINT))
    rebuild(copy, count)
    assert total > 500
    for at in range(1, total, max(1, total // 40)):
        copy, left = tmp_path / str(at), at

        def die(kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        shutil.copytree(path, copy, ignore=shutil.ignore_patterns(layout.HINT))
        with pytest.raises(KeyboardInterrupt):
            rebuild(copy, die)
        rebuild(copy)
        assert not verify(open_directory(copy, write=False)).damage
        keys = Keys(open_directory(copy, write=False))
        assert all((keys.find([f"k{n}"])[f"k{n}"].id is None) == (n == 7) for n in range(0, COUNT, 7))
        assert not list((copy / layout.KEYS).glob(".*.tmp"))
        shutil.rmtree(copy)


def test_keys_that_are_taken_while_the_index_is_rebuilt_stay_taken(path: Path) -> None:
    shutil.rmtree(path / layout.KEYS)
    producer = Wheel(path)
    names = iter(range(1000))

    def take(kind: str, name: str) -> None:
        if kind == "rename":
            producer.enqueue(b"x", delay=60, key=f"new {next(names)}", sync="never")

    rebuild(path, take)
    producer.close()
    taken = next(names)
    assert taken > 50
    assert rebuild(path) == []
    with Wheel(path) as wheel:
        for n in range(taken):
            with pytest.raises(KeyHeld):
                wheel.enqueue(b"two", key=f"new {n}")
    Keeper(path).close()
    assert_all_are_held(path)


@pytest.mark.damages
@pytest.mark.parametrize("what", ["directory", "pipe", "too long", "lock", "unfinished"])
def test_what_is_no_file_of_keys_is_put_aside_or_made_again(path: Path, what: str) -> None:
    place = next((path / layout.KEYS).glob("??.keys"))
    if what == "lock":
        place = path / layout.key_lock(3)
    elif what == "unfinished":
        place = path / layout.key_tmp(int(place.stem, 16))
    place.unlink(missing_ok=True)
    if what == "too long":
        with place.open("wb") as file:
            file.truncate(1 << 29)
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    assert [name for name, _ in unreadable_keys(open_directory(path, write=False))] == [f"keys/{place.name}"]
    done = rebuild(path)
    assert done[0].startswith(f"keys/{place.name} was")
    assert not unreadable_keys(open_directory(path, write=False))
    assert_all_are_held(path)


@pytest.mark.damages
def test_bytes_that_are_no_entry_go_and_no_entry_that_can_be_read(path: Path) -> None:
    place = next((path / layout.KEYS).glob("??.keys"))
    data = place.read_bytes()
    place.write_bytes(b"torn" + data + b"torn")
    assert rebuild(path) == []
    assert place.read_bytes() == data
    (next((path / layout.LAPS).rglob("*.lap"))).rename(path / "away")
    place.write_bytes(data + b"torn")
    rebuild(path)
    assert place.read_bytes() == data
    (path / "away").unlink()


def test_the_memory_of_a_rebuild_does_not_grow_with_the_messages(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "HELD_BYTES", 64 << 10)
    with Wheel(wheel_dir) as wheel:
        for start in range(0, 80_000, 1000):
            ids = [MessageId.make(10**16 + i, 1, i) for i in range(start, start + 1000)]
            wheel.add((Message(i, b"x", headers={KEY: f"k{i.due_us}"}) for i in ids), sync="never")
    Keeper(wheel_dir).close()
    shutil.rmtree(wheel_dir / layout.KEYS)
    tracemalloc.start()
    try:
        assert rebuild(wheel_dir) == ["80000 keys were entered again"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 80,000 keys and ids would be 8 MB more. What is held is a frame of 256 KiB, with an object for each message in it.
    assert peak < 6 << 20
