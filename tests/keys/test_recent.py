"""The file of recent entries of keys: batches enter theirs there, every look reads it, and a merge empties it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from filewheel import Damaged, DiskError, KeyHeld, Locked, MessageId, Wheel
from filewheel.disk import locks
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.keys import index as keys
from filewheel.keys.bucket import BUCKET_BYTES_MAX, ENTRY_BYTES, KeyEntry, entries
from filewheel.keys.index import LISTED_EACH_MAX, Keys
from filewheel.keys.recent import RECENT_BYTES_MAX, Recent
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.support import FakeClock

RECENT = layout.KEY_RECENT
NAMES = [f"k{n}" for n in range(20)]


@pytest.fixture
def batch(wheel: Wheel) -> list[MessageId]:
    """A batch of messages with the keys of NAMES."""
    return list(wheel.enqueue_many([b"x"] * len(NAMES), delay=60, keys=NAMES))


def keys_of(path: Path) -> Keys:
    """The index, as a process sees it that has just opened the wheel."""
    return Keys(open_directory(path, write=True))


def id_(n: int) -> MessageId:
    return MessageId.make(10**15, 1, n)


def enter(index: Keys, *pairs: tuple[str, bytes]) -> None:
    """Enter keys as a batch does."""
    with index.locked(RECENT, 0) as is_locked:
        assert is_locked
        index.enter([(index.hash_of(key), i) for key, i in pairs])


def merge(index: Keys) -> None:
    with index.locked(RECENT, 0) as is_locked:
        assert is_locked
        index.merge()


def in_buckets(index: Keys) -> dict[bytes, bytes]:
    found = [e for b in range(layout.KEY_BUCKETS) for e in entries(index.read(b), index.seed(b))]
    return {e.hash: e.id for e in found if isinstance(e, KeyEntry)}


def in_recent(index: Keys) -> list[KeyEntry]:
    return [e for e in entries(index.read(RECENT), index.seed(RECENT)) if isinstance(e, KeyEntry)]


# -- batches -------------------------------------------------------------------------------------------------


def test_the_keys_of_a_batch_go_into_one_file(batch: list[MessageId], wheel_dir: Path) -> None:
    index = keys_of(wheel_dir)
    assert [e.id for e in in_recent(index)] == batch
    assert os.listdir(wheel_dir / layout.KEYS) in (["recent.keys", "all.lock"], ["all.lock", "recent.keys"])
    assert [index.find(name).id for name in NAMES] == batch


def test_a_key_of_a_batch_is_held_whoever_asks_for_it(batch: list[MessageId], wheel: Wheel, wheel_dir: Path) -> None:
    with Wheel(wheel_dir, clock=FakeClock()) as other:
        for one in (wheel, other):
            with pytest.raises(KeyHeld) as caught:
                one.enqueue(b"y", key="k3")
            assert caught.value.id == batch[3]
            assert one.get(key="k3").id == batch[3]  # type: ignore[union-attr]
            with pytest.raises(KeyHeld) as caught:
                one.enqueue_many([b"y"] * len(NAMES), keys=NAMES)
            assert list(caught.value.held.values()) == batch
        moved = other.reschedule(key="k4", delay=90)
        assert wheel.get(key="k4").id == moved  # type: ignore[union-attr]
        assert wheel.cancel(key="k5")
        assert other.get(key="k5") is None


def test_while_another_has_one_key_a_batch_takes_the_others_one_by_one(wheel: Wheel, wheel_dir: Path) -> None:
    other = keys_of(wheel_dir)
    free = [name for name in NAMES if other.bucket_of(name) != other.bucket_of("k0")]
    with other.hold(["k0"], wait_s=0) as held:
        assert not held.busy
        made = wheel.enqueue_many([b"x"] * len(free), delay=60, keys=free)
    assert not (wheel_dir / layout.key_file(RECENT)).exists()
    assert sorted(in_buckets(other).values()) == sorted(made)
    again = list(wheel.enqueue_many([b"x"] * len(free), delay=60, keys=free, on_conflict="replace"))
    assert [e.id for e in in_recent(other)] == again
    assert [wheel.get(key=name).id for name in free] == again  # type: ignore[union-attr]


def test_while_a_batch_is_busy_no_key_is_to_be_had(
    wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = keys_of(wheel_dir)
    monkeypatch.setattr(locks, "WAIT_S", 0.0)
    with other.hold(NAMES, wait_s=0) as batch:
        assert not batch.busy
        for names in (["k0"], ["another"], NAMES):
            with wheel._keys.hold(names, wait_s=0) as hold:
                assert hold.busy == set(names)
        assert wheel._keys.tidy(0) == 0
    with wheel._keys.hold(NAMES, wait_s=0) as hold:
        assert not hold.busy


def test_a_batch_that_waited_in_vain_for_all_keys_does_not_wait_the_next_time(wheel: Wheel, wheel_dir: Path) -> None:
    index, other = wheel._keys, keys_of(wheel_dir)
    elsewhere = [name for name in NAMES if index.hash_of(name)[0] != index.hash_of("k0")[0]]  # no wait for its bucket
    with other.hold(["k0"], wait_s=0):
        for _ in range(2):
            with index.hold(elsewhere) as hold:
                assert not hold._is_alone
            assert not index.is_patient
    with index.hold(elsewhere) as hold:
        assert hold._is_alone
    assert index.is_patient


def test_a_batch_that_would_fill_the_file_goes_into_the_buckets(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "RECENT_ENTRIES_MAX", 4 * len(NAMES) - 4)
    made = list(wheel.enqueue_many([b"x"] * len(NAMES), delay=60, keys=NAMES))
    assert in_recent(wheel._keys) == []
    assert sorted(in_buckets(wheel._keys).values()) == sorted(made)
    assert [wheel.get(key=name).id for name in NAMES] == made  # type: ignore[union-attr]


def test_where_no_recent_file_can_be_written_a_batch_fails_and_enqueues_nothing(wheel: Wheel, wheel_dir: Path) -> None:
    wheel.enqueue(b"x", key="k0", delay=60)
    os.mkfifo(wheel_dir / layout.key_file(RECENT))
    with pytest.raises(DiskError):
        wheel.enqueue_many([b"x"] * len(NAMES), delay=60, keys=NAMES, on_conflict="keep")
    (wheel_dir / layout.key_file(RECENT)).unlink()
    assert len(list(wheel.list())) == 1


# -- merging -------------------------------------------------------------------------------------------------


def test_batches_merge_the_recent_entries_when_there_are_many(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "RECENT_ENTRIES_MAX", 50)
    made = {}
    for n in range(12):
        names = [f"{n}-{i}" for i in range(10)]
        made.update(zip(names, wheel.enqueue_many([b"x"] * 10, delay=60, keys=names), strict=True))
        assert len(in_recent(wheel._keys)) <= 50
    assert in_buckets(wheel._keys)
    assert {name: wheel.get(key=name).id for name in made} == made  # type: ignore[union-attr]


def test_the_keeper_merges_when_half_of_what_fits_is_there(
    batch: list[MessageId], wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = keys_of(wheel_dir)
    index.tidy(0)
    assert len(in_recent(index)) == len(NAMES)
    monkeypatch.setattr(keys, "RECENT_ENTRIES_MAX", 2 * len(NAMES))
    assert index.tidy(0) == 1
    assert in_recent(index) == []
    assert sorted(in_buckets(index).values()) == sorted(batch)
    assert [wheel.get(key=name).id for name in NAMES] == batch  # type: ignore[union-attr]
    index.tidy(0)
    assert wheel.enqueue_many([b"x"], keys=["k0"], on_conflict="keep")[0] == batch[0]


@pytest.mark.parametrize(("kind", "name"), [(Keys, "read"), (Recent, "listed")])
def test_a_merge_between_the_reads_of_a_look_hides_nothing(
    batch: list[MessageId], wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: type, name: str
) -> None:
    index, read = keys_of(wheel_dir), getattr(kind, name)

    def merged(*args: object, **more: object) -> object:
        monkeypatch.setattr(kind, name, read)
        merge(index)
        return read(*args, **more)

    monkeypatch.setattr(kind, name, merged)
    assert set(wheel._keys.listed("k7")) == {batch[7]}


def test_a_merge_while_verify_reads_the_index_is_no_damage(
    batch: list[MessageId], wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, read, seen = keys_of(wheel_dir), Keys.read, []

    def merged(self: Keys, bucket: int, mode: str = "r") -> bytes:
        data = read(self, bucket, mode)
        seen.append(bucket)
        if len(seen) == 1:
            merge(index)
        return data

    monkeypatch.setattr(Keys, "read", merged)
    assert verify(open_directory(wheel_dir, write=False)).damage == []
    assert RECENT in seen


def test_a_key_that_batches_replace_again_and_again_has_a_short_list(wheel: Wheel) -> None:
    for _ in range(3 * LISTED_EACH_MAX):
        last = wheel.enqueue_many([b"x"] * 6, delay=60, keys=NAMES[:6], on_conflict="replace", sync="never")
    assert len(in_recent(wheel._keys)) <= 6 * (LISTED_EACH_MAX + 2)
    assert sorted(m.id for m in wheel.list()) == sorted(last)


@pytest.mark.damages
def test_what_a_bucket_cannot_take_stays_among_the_recent_entries(batch: list[MessageId], wheel_dir: Path) -> None:
    index = keys_of(wheel_dir)
    bad = wheel_dir / layout.key_file(index.bucket_of("k0"))
    bad.touch()
    os.truncate(bad, BUCKET_BYTES_MAX + 1)
    merge(index)
    left = [e.id for e in in_recent(index)]
    assert left == [i for i, name in zip(batch, NAMES, strict=True) if index.bucket_of(name) == index.bucket_of("k0")]
    bad.unlink()
    merge(index)
    assert in_recent(index) == []
    assert sorted(in_buckets(index).values()) == sorted(batch)


# -- what a handle remembers ---------------------------------------------------------------------------------


def found_by(index: Keys, *names: str) -> list[list[bytes]]:
    """What is listed for keys, as whoever holds their locks reads it, and so remembers it."""
    by_hash = index.recent.listed([index.hash_of(name) for name in names], is_still=True)
    return [by_hash.get(index.hash_of(name), []) for name in names]


def test_what_others_enter_is_read_on_from_where_reading_stood(wheel_dir: Path) -> None:
    index, other = keys_of(wheel_dir), keys_of(wheel_dir)
    index.recent.listed([bytes(16)] * 100, is_still=True)
    for n in range(1000):
        enter(other, ("k", id_(n)), (f"k{n}", id_(n)))
        if n % 100 == 0:
            assert found_by(index, "k", f"k{n}") == [[id_(i) for i in range(n + 1)], [id_(n)]]
            assert index.listed(f"k{n}") == [id_(n)]
    assert found_by(index, "k", "k999", "none") == [[id_(i) for i in range(1000)], [id_(999)], []]


def test_a_file_that_took_the_place_of_one_that_was_read_is_read_anew(wheel_dir: Path) -> None:
    index, other = keys_of(wheel_dir), keys_of(wheel_dir)
    enter(other, ("a", id_(1)), ("z", id_(9)))
    assert found_by(index, *["a"] * 100)[0] == [id_(1)]
    assert index.recent._seen is not None
    with other.locked(RECENT, 0):
        other.replace(RECENT, [(other.hash_of("b"), id_(2)), (other.hash_of("z"), id_(9))])
    assert found_by(index, "a", "b", "z") == [[], [id_(2)], [id_(9)]]


def test_entries_that_were_taken_back_hide_no_later_ones(wheel_dir: Path) -> None:
    index, other, third = keys_of(wheel_dir), keys_of(wheel_dir), keys_of(wheel_dir)
    enter(other, ("a", id_(1)))
    enter(other, ("b", id_(2)))
    assert found_by(index, *["b"] * 100)[0] == [id_(2)]
    os.truncate(wheel_dir / layout.key_file(RECENT), 2 * ENTRY_BYTES)  # as a write that failed leaves it
    enter(third, ("c", id_(3)))
    assert found_by(index, "a", "c") == [[id_(1)], [id_(3)]]


def test_an_entry_that_comes_into_a_gap_is_found(wheel_dir: Path) -> None:
    index, other = keys_of(wheel_dir), keys_of(wheel_dir)
    enter(other, ("a", id_(1)), ("b", id_(2)), ("c", id_(3)))
    place = wheel_dir / layout.key_file(RECENT)
    whole = place.read_bytes()
    place.write_bytes(whole[: 2 * ENTRY_BYTES] + bytes(ENTRY_BYTES) + whole[3 * ENTRY_BYTES :])
    for _ in range(100):  # one page of a write was seen, and the one before it was not
        assert [index.listed(name) for name in "abc"] == [[id_(1)], [], [id_(3)]]
    place.write_bytes(whole)
    assert [index.listed(name) for name in "abc"] == [[id_(1)], [id_(2)], [id_(3)]]


def test_after_a_gap_a_batch_goes_on_behind_all_that_is_there(wheel_dir: Path) -> None:
    index, other = keys_of(wheel_dir), keys_of(wheel_dir)
    enter(other, ("a", id_(1)), ("b", id_(2)), ("c", id_(3)))
    with (wheel_dir / layout.key_file(RECENT)).open("r+b") as file:
        file.seek(2 * ENTRY_BYTES)
        file.write(b"torn" + bytes(ENTRY_BYTES - 4))
    enter(index, ("d", id_(4)))
    assert found_by(index, "a", "b", "c", "d") == [[id_(1)], [], [id_(3)], [id_(4)]]
    assert found_by(keys_of(wheel_dir), "a", "b", "c", "d") == [[id_(1)], [], [id_(3)], [id_(4)]]


# -- damage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "zeroed", "torn"])
def test_a_damaged_file_of_recent_entries_is_damage_and_repair_enters_every_key_anew(
    batch: list[MessageId], wheel: Wheel, wheel_dir: Path, how: str
) -> None:
    wheel.close()
    place = wheel_dir / layout.key_file(RECENT)
    whole = place.read_bytes()
    if how == "missing":
        place.unlink()
    else:
        place.write_bytes(bytes(len(whole)) if how == "zeroed" else whole[:100] + b"?" * 300 + whole[400:])
    found = verify(open_directory(wheel_dir, write=False))
    assert any("not listed under their unique keys" in d.what for d in found.damage)
    repair(open_directory(wheel_dir, write=True))
    assert verify(open_directory(wheel_dir, write=False)).damage == []
    index = keys_of(wheel_dir)
    assert [index.find(name).id for name in NAMES] == batch
    assert all(isinstance(e, KeyEntry) for e in entries(index.read(RECENT), index.seed(RECENT)))


def test_repair_makes_a_file_of_recent_entries_anew_that_was_too_long_to_be_read(
    batch: list[MessageId], wheel: Wheel, wheel_dir: Path
) -> None:
    wheel.close()
    os.truncate(wheel_dir / layout.key_file(RECENT), RECENT_BYTES_MAX + 1)
    found = verify(open_directory(wheel_dir, write=False))
    assert [d.name for d in found.damage] == [layout.key_file(RECENT)]
    with Wheel(wheel_dir) as other, pytest.raises(Damaged, match="filewheel repair"):
        other.enqueue(b"y", key="k0")
    done = repair(open_directory(wheel_dir, write=True))
    assert f"{len(NAMES)} keys were entered again" in " ".join(done.done)
    assert verify(open_directory(wheel_dir, write=False)).damage == []
    index = keys_of(wheel_dir)
    assert [index.find(name).id for name in NAMES] == batch


def test_a_wheel_without_that_file_is_whole(wheel: Wheel, wheel_dir: Path) -> None:
    made = wheel.enqueue(b"x", key="k0", delay=60)
    assert not (wheel_dir / layout.key_file(RECENT)).exists()
    assert wheel.get(key="k0").id == made  # type: ignore[union-attr]
    assert verify(open_directory(wheel_dir, write=False)).damage == []


def test_a_stopped_batch_keeps_a_producer_waiting_and_then_it_is_told(
    wheel: Wheel, wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Keys.hold, "__kwdefaults__", {"wait_s": 0.01})
    with keys_of(wheel_dir).hold(NAMES), pytest.raises(Locked):
        wheel.enqueue(b"x", key="another")
    wheel.enqueue(b"x", key="another")
