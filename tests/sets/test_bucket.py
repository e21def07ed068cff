"""A copy in a bucket, request by request: what is written, what is refused, what is found again after an error."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("obstore", reason="the extra `objects` is not installed")

from obstore.store import LocalStore, MemoryStore

import filewheel.sets.bucket_target
import filewheel.sets.copy
from filewheel import Damaged, DiskError, Keeper, NoWheel, Wheel, WheelExists
from filewheel.disk.directory import open_directory
from filewheel.sets.bucket import Listed, ObjectStore
from filewheel.sets.bucket_target import BucketTarget, Replaced
from filewheel.sets.copy import Copied, Copy
from filewheel.sets.pack import SMALL_FILES, PackHead, object_name, pack
from filewheel.sets.restore import Restored, restore
from filewheel.sets.source import Source
from filewheel.sets.target import Tick
from filewheel.tools.diff import differences
from filewheel.tools.verify import verify
from tests.support import FakeClock


class CountingStore(ObjectStore):
    """A bucket in memory that counts its requests, with a clock of its own, and fails when told to."""

    def __init__(self, store: object = None) -> None:
        super().__init__("memory:///bucket", MemoryStore() if store is None else store)
        self.requests = 0
        self.fails: list[str] = []
        """What happens to the next objects: "before", "after" the object was made, or nothing."""
        self.second = 0
        self.made: dict[int, int] = {}

    def create(self, number: int, data: bytes) -> bool:
        self.requests += 1
        fails = self.fails.pop(0) if self.fails else ""
        if fails == "before":
            raise DiskError("no connection", path=self.url)
        done = super().create(number, data)
        if done:
            self.made[number] = self.second
        if fails == "after":
            raise DiskError("no answer", path=self.url)
        return done

    def head(self, number: int):  # type: ignore[no-untyped-def]
        self.requests += 1
        return super().head(number)

    def listing(self) -> Iterator[Listed]:
        self.requests += 1
        return (Listed(one.number, self.made[one.number] * 1_000_000) for one in super().listing())

    def since_us(self, number: int) -> int:
        self.requests += 1
        return self.made[number] * 1_000_000

    @property
    def numbers(self) -> list[int]:
        return [one.number for one in ObjectStore.listing(self)]

    def rot(self, number: int) -> None:
        """Flip the last bit of an object."""
        import obstore

        data = bytearray(obstore.get(self._store, object_name(number)).bytes())
        data[-1] ^= 1
        obstore.put(self._store, object_name(number), bytes(data), mode="overwrite")

    def replace(self, number: int, head: PackHead) -> None:
        """Replace an object by another one, as somebody with a key might."""
        import obstore

        data, _ = pack(head, [b"x"] * len(head.parts))
        obstore.put(self._store, object_name(number), data, mode="overwrite")

    def lose(self, number: int) -> None:
        """Delete an object."""
        ObjectStore.delete(self, [number])


class Shipped:
    """A primary and its copy in a bucket, driven by hand."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.store = path, FakeClock(), CountingStore()
        self.primary = path / "primary"
        Wheel.create(self.primary, clock=self.clock).close()
        self._directory = open_directory(self.primary, write=False)
        self.epoch, self.keep_us = 1, 0
        self.copy: Copy | None = None
        self.restored = 0

    def open(self, directory: Path | None = None) -> Copy:
        """Begin to ship, as a replicator that was started does."""
        source = self._directory if directory is None else open_directory(directory, write=False)
        target = BucketTarget(self.store, source, self.epoch, keep_us=self.keep_us)
        return Copy(Source(source), target, small=SMALL_FILES)

    def tick(self) -> Copied:
        """Ship what is new."""
        self.store.second += 1
        if self.copy is None:
            self.copy = self.open()
        target = self.copy._target
        assert isinstance(target, BucketTarget)
        if target.is_outgrown:
            self.copy = Copy(self.copy._source, target, small=SMALL_FILES)
        done = self.copy.tick()
        if target.needs_base:
            target.commit(Tick())
        return done

    def restart(self) -> None:
        """Kill the replicator."""
        self.copy = None

    def enqueue(self, *payloads: bytes, delay: float = 3600, key: str | None = None) -> None:
        with Wheel(self.primary, clock=self.clock) as wheel:
            for payload in payloads:
                wheel.enqueue(payload, delay=delay, key=key)

    def deal(self) -> None:
        """Let a keeper deal, and fire what is due."""
        with Keeper(self.primary, wait=False, background=False, clock=self.clock) as keeper:
            while batch := keeper.claim():
                keeper.ack(batch)

    def restore(self, at_s: int | None = None) -> Restored:
        """Restore to a new directory, and check what is there."""
        self.restored += 1
        at = None if at_s is None else datetime.fromtimestamp(at_s, UTC)
        with patch("filewheel.sets.restore.ObjectStore", lambda url: self.store):
            done = restore(self.store.url, self.path / f"restored-{self.restored}", at=at)
        found = verify(open_directory(done.path, write=False))
        assert not found.damage, found.damage
        return done

    def assert_same(self) -> None:
        """Assert that what is restored has the messages of the primary."""
        done = self.restore()
        with Wheel(self.primary, clock=self.clock) as ours, Wheel(done.path, clock=self.clock) as theirs:
            assert list(differences(ours, theirs)) == []

    def payloads(self, path: str) -> list[bytes]:
        with Wheel(path, clock=self.clock) as wheel:
            return sorted(m.payload for m in wheel.list())


@pytest.fixture
def ship(tmp_path: Path) -> Shipped:
    return Shipped(tmp_path)


@contextlib.contextmanager
def sizes(**values: int) -> Iterator[None]:
    module = filewheel.sets.bucket_target
    was = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in was.items():
            setattr(module, name, value)


# -- ticks ---------------------------------------------------------------------------------------------------


def test_an_empty_wheel_is_one_object_and_can_be_restored(ship: Shipped) -> None:
    ship.tick()
    assert ship.store.numbers == [1]
    ship.assert_same()


def test_a_tick_with_something_new_is_one_object_whatever_number_of_files_it_touches(ship: Shipped) -> None:
    for i in range(20):
        ship.enqueue(f"{i}".encode(), delay=3600 * i)
    ship.tick()
    ship.deal()
    ship.tick()
    assert ship.store.numbers == [1, 2]
    ship.assert_same()


def test_a_tick_with_nothing_new_makes_no_request(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.deal()
    ship.tick()
    before = ship.store.requests
    for _ in range(50):
        ship.tick()
    assert ship.store.requests == before


def test_what_was_acknowledged_before_a_tick_is_not_restored(ship: Shipped) -> None:
    ship.enqueue(b"now", delay=1)
    ship.enqueue(b"later")
    ship.tick()
    ship.clock.advance(2)
    ship.deal()
    ship.tick()
    assert ship.payloads(ship.restore().path) == [b"later"]


def test_what_was_acknowledged_after_the_last_tick_fires_again(ship: Shipped) -> None:
    ship.enqueue(b"now", delay=1)
    ship.tick()
    ship.clock.advance(2)
    ship.deal()
    done = ship.restore()
    with Keeper(done.path, wait=False, background=False, clock=ship.clock) as keeper:
        assert [m.payload for m in keeper.claim()] == [b"now"]


def test_a_restored_wheel_has_an_id_of_its_own_and_refuses_a_key_that_is_held(ship: Shipped) -> None:
    ship.enqueue(b"a", key="the key")
    ship.tick()
    done = ship.restore()
    ours, theirs = (open_directory(path, write=False).settings for path in (ship.primary, done.path))
    assert (ours.salt, ours.slots, ours.id == theirs.id) == (theirs.salt, theirs.slots, False)
    with Wheel(done.path, clock=ship.clock) as wheel:
        with pytest.raises(filewheel.KeyHeld):
            wheel.enqueue(b"b", delay=5, key="the key")


def test_pauses_are_restored(ship: Shipped) -> None:
    with Wheel(ship.primary, clock=ship.clock) as wheel:
        wheel.pause(topic="mail")
    ship.tick()
    with Wheel(ship.restore().path) as wheel:
        assert [(p.what, p.name) for p in wheel.paused()] == [("topic", "mail")]


def test_a_replicator_that_is_started_again_goes_on_without_a_new_base(ship: Shipped) -> None:
    ship.enqueue(*[b"x" * 1000] * 50)
    ship.tick()
    ship.deal()
    ship.tick()
    for n in range(3):
        ship.restart()
        ship.enqueue(b"%d" % n)
        assert ship.tick().bytes < 1000
    ship.assert_same()


def test_a_large_tick_is_several_objects_and_counts_with_its_last(
    ship: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filewheel.sets.copy, "PART_BYTES", 500)
    with sizes(PART_BYTES=1000):
        ship.enqueue(b"small")
        ship.tick()
        for _ in range(8):
            ship.enqueue(b"x" * 900)
        ship.store.fails = ["", "", "", "before"]
        with pytest.raises(DiskError):
            ship.tick()
        assert len(ship.store.numbers) == 4
        assert ship.payloads(ship.restore().path) == [b"small"]
        ship.restart()
        ship.tick()
        ship.assert_same()


def test_journals_of_a_tick_that_was_begun_again_do_not_count(ship: Shipped) -> None:
    name = "journal/ABCDEFGH-000001.log"
    with sizes(PART_BYTES=1):
        target = BucketTarget(ship.store, ship._directory, 1)
        target.start()
        target.begin()
        target.add(Tick(parts=[(name, 0, b"bytes of a segment that is gone when it looks again")]))
        target.begin()
        target.commit(Tick())
    assert ship.store.numbers == [1, 2]
    assert BucketTarget(ship.store, ship._directory, 1).start().journals == {}
    assert not (Path(ship.restore().path) / name).exists()


def test_a_new_base_is_made_when_the_packs_are_as_large_and_what_is_before_it_goes(ship: Shipped) -> None:
    with sizes(BASE_BYTES_MIN=3000, OBJECT_BYTES=1):
        for n in range(60):
            ship.enqueue(b"%03d" % n * 30)
            ship.deal()
            ship.tick()
        assert ship.store.numbers[0] > 1
        assert len(ship.store.numbers) < 30
        ship.assert_same()
        ship.restart()
        ship.enqueue(b"more")
        ship.tick()
        ship.assert_same()


def test_a_key_that_may_not_delete_is_no_reason_to_stop(ship: Shipped, caplog: pytest.LogCaptureFixture) -> None:
    def refused(numbers: object) -> None:
        raise DiskError("access was refused", path="memory:///bucket")

    ship.store.delete = refused  # type: ignore[method-assign]
    with sizes(BASE_BYTES_MIN=1000, OBJECT_BYTES=1):
        for n in range(40):
            ship.enqueue(b"%03d" % n * 30)
            ship.tick()
    assert ship.store.numbers == list(range(1, 41))
    assert "older objects stay" in caplog.text
    ship.assert_same()


# -- requests that fail --------------------------------------------------------------------------------------


def test_an_object_whose_answer_was_lost_is_found_again(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    ship.enqueue(b"b")
    ship.store.fails = ["after"]
    with pytest.raises(DiskError):
        ship.tick()
    ship.restart()
    assert ship.tick().bytes == 0
    assert ship.store.numbers == [1, 2]
    ship.assert_same()


def test_an_object_that_was_made_by_a_request_that_was_tried_again_is_ones_own(ship: Shipped) -> None:
    class Twice(CountingStore):
        def create(self, number: int, data: bytes) -> bool:
            super().create(number, data)
            return super().create(number, data)  # as the library does after a connection that broke

    ship.store = Twice()
    ship.enqueue(b"a")
    ship.tick()
    ship.enqueue(b"b")
    ship.tick()
    assert ship.store.numbers == [1, 2]
    ship.assert_same()


def test_an_object_of_a_killed_replicator_that_arrives_late_is_gone_on_from(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    late = ship.open()
    ship.enqueue(b"b")
    ship.tick()
    ship.enqueue(b"c")
    with pytest.raises(DiskError, match="another process has made this object"):
        late.tick()
    ship.restart()
    ship.tick()
    ship.assert_same()


# -- who writes ----------------------------------------------------------------------------------------------


def test_another_wheel_is_refused_a_bucket_that_has_copies(ship: Shipped, tmp_path: Path) -> None:
    ship.tick()
    Wheel.create(tmp_path / "other").close()
    with pytest.raises(Replaced, match="copies of another wheel"):
        ship.open(tmp_path / "other")
    assert ship.store.numbers == [1]


def test_a_clone_of_the_directory_is_refused(ship: Shipped, tmp_path: Path) -> None:
    ship.tick()
    shutil.copytree(ship.primary, tmp_path / "clone", ignore=shutil.ignore_patterns("hint"))
    with pytest.raises(Replaced, match="is a clone of it, or was moved") as caught:
        ship.open(tmp_path / "clone")
    assert "--take-over" in str(caught.value.hint)
    assert ship.store.numbers == [1]


def test_a_wheel_that_takes_over_makes_a_mark_and_a_base_and_the_old_one_is_refused_at_once(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    restored = Path(ship.restore().path)
    old = ship.copy
    assert old is not None
    ship.epoch = 2
    new = ship.open(restored)
    new.tick()
    assert ship.store.numbers == [1, 2, 3]  # what it has taken over stays for a week; the mark, and a base
    ship.enqueue(b"of the old one")
    with pytest.raises(Replaced, match="another wheel, .* writes here .epoch 2") as caught:
        old.tick()
    assert caught.value.epoch == 2
    ship.epoch = 1
    with pytest.raises(Replaced):
        ship.open()
    assert ship.payloads(ship.restore().path) == [b"a"]


def test_a_wheel_that_slept_through_new_bases_still_meets_the_mark(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    old, restored = ship.copy, Path(ship.restore().path)
    assert old is not None
    ship.epoch = 2
    with sizes(BASE_BYTES_MIN=500, OBJECT_BYTES=1, TAKEN_US=0):
        ship.copy = ship.open(restored)
        for n in range(20):
            with Wheel(restored, clock=ship.clock) as wheel:
                wheel.enqueue(b"%d" % n * 50, delay=9)
            ship.tick()
    assert ship.store.numbers[0] == 2
    assert ship.store.numbers[1] > 5
    ship.enqueue(b"of the old one")
    with pytest.raises(Replaced):
        old.tick()


def test_until_its_base_is_whole_a_new_epoch_restores_what_was_there_before(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    restored = Path(ship.restore().path)
    ship.epoch = 2
    ship.store.fails = ["", "before"]
    with pytest.raises(DiskError):
        ship.open(restored).tick()
    assert ship.payloads(ship.restore().path) == [b"a"]


# -- earlier times -------------------------------------------------------------------------------------------


def test_a_restore_goes_back_to_a_time_that_is_kept(ship: Shipped) -> None:
    ship.keep_us = 20_000_000
    with sizes(BASE_BYTES_MIN=1000, OBJECT_BYTES=1):
        for n in range(1, 61):
            ship.enqueue(b"%03d" % n * 20)
            ship.tick()  # one a second
    for at_s in (42, 50, 59):
        assert len(ship.payloads(ship.restore(at_s).path)) == at_s
    assert ship.store.numbers[0] > 5
    with pytest.raises(NoWheel, match="no copy of that time"):
        ship.restore(5)


def test_no_clock_of_the_primary_is_asked(ship: Shipped) -> None:
    for n in range(1, 6):
        ship.clock.step((-1) ** n * 400 * 86_400)  # a year back, a year on
        ship.enqueue(b"%d" % n)
        ship.tick()
    assert len(ship.payloads(ship.restore(3).path)) == 3
    assert len(ship.payloads(ship.restore().path)) == 5


def test_without_keep_only_what_is_behind_the_base_is_there(ship: Shipped) -> None:
    with sizes(BASE_BYTES_MIN=1000, OBJECT_BYTES=1):
        for n in range(1, 31):
            ship.enqueue(b"%03d" % n * 20)
            ship.tick()
    with pytest.raises(NoWheel):
        ship.restore(3)


# -- damage --------------------------------------------------------------------------------------------------


def test_bit_rot_in_a_pack_is_named_and_the_time_before_it_is_offered(ship: Shipped) -> None:
    for n in range(1, 6):
        ship.enqueue(b"%d" % n)
        ship.tick()
    ship.store.rot(4)
    with pytest.raises(Damaged, match="000000000004.pack: the object fails its checksum") as caught:
        ship.restore()
    assert "--at 1970-01-01T00:00:03" in str(caught.value.hint)
    assert not (ship.path / "restored-1").exists()
    assert ship.payloads(ship.restore(3).path) == [b"1", b"2", b"3"]


def test_bit_rot_in_the_base_offers_the_base_before_it_if_that_is_kept(ship: Shipped) -> None:
    ship.keep_us = 1_000_000_000
    with sizes(BASE_BYTES_MIN=1000, OBJECT_BYTES=1):
        for n in range(1, 31):
            ship.enqueue(b"%03d" % n * 20)
            ship.tick()
    base = ship.store.head(30)[0].base
    assert base > 1
    ship.store.rot(base)
    with pytest.raises(Damaged, match=object_name(base)) as caught:
        ship.restore()
    assert f"--at 1970-01-01T00:00:{base - 1:02d}" in str(caught.value.hint)
    assert len(ship.payloads(ship.restore(base - 1).path)) == base - 1


def test_an_object_that_is_missing_is_named(ship: Shipped) -> None:
    for n in range(1, 4):
        ship.enqueue(b"%d" % n)
        ship.tick()
    ship.store.lose(2)
    with pytest.raises(Damaged, match="000000000002.pack: the object is missing"):
        ship.restore()


def test_a_damaged_chain_gets_a_new_base_when_the_replicator_is_started_again(ship: Shipped) -> None:
    for n in range(1, 4):
        ship.enqueue(b"%d" % n)
        ship.tick()
    ship.store.lose(2)
    ship.restart()
    ship.enqueue(b"4")
    ship.tick()
    ship.assert_same()


def test_a_primary_that_was_set_back_is_refused(ship: Shipped, tmp_path: Path) -> None:
    ship.enqueue(b"a")
    ship.deal()
    ship.tick()
    image = tmp_path / "image"
    shutil.copytree(ship.primary, image, ignore=shutil.ignore_patterns("hint"))
    ship.enqueue(b"b", b"c")
    ship.deal()
    ship.tick()
    ship.restart()
    for name in ("journal", "laps", "checkpoint"):
        path = ship.primary / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if (image / name).is_dir():
            shutil.copytree(image / name, path)
        else:
            shutil.copy(image / name, path)
    ship.enqueue(b"d")
    ship.deal()
    with pytest.raises(filewheel.FilewheelError, match="one was set back, or both have fired"):
        ship.tick()


def test_a_head_that_names_a_file_outside_of_a_wheel_is_refused(ship: Shipped) -> None:
    ship.tick()
    head = ship.store.head(1)[0]
    for name in ("../out/x.log", "/etc/passwd", "journal/../x.log", "wheel.json", "laps/../../a.lap"):
        for changed in (replace(head, gone=[name]), replace(head, parts=[(name, 0, 1, 0)])):
            ship.store.replace(1, changed)
            with pytest.raises(Damaged, match="is no file of a wheel"):
                ship.restore()
    ship.store.replace(1, replace(head, small=[("roster.json", b"{}")]))
    with pytest.raises(Damaged, match="a small file is not one"):
        ship.restore()
    assert not [path for path in ship.path.iterdir() if path.name.startswith(("out", "restored"))]


def test_a_restore_during_which_a_new_base_took_the_place_of_the_old_one_reads_that(ship: Shipped) -> None:
    ship.enqueue(b"a")
    ship.tick()
    read, store = ship.store.read, ship.store

    def late(number: int):  # type: ignore[no-untyped-def]
        store.read = read  # type: ignore[method-assign]
        target = ship.copy._target  # type: ignore[union-attr]
        assert isinstance(target, BucketTarget)
        target.needs_base = True
        ship.copy = Copy(ship.copy._source, target, small=SMALL_FILES)  # type: ignore[union-attr]
        ship.enqueue(b"b")
        ship.tick()
        return read(number)

    store.read = late  # type: ignore[method-assign]
    assert ship.payloads(ship.restore().path) == [b"a", b"b"]


# -- where it is restored ------------------------------------------------------------------------------------


def test_a_restore_refuses_a_directory_that_is_not_empty(ship: Shipped) -> None:
    ship.tick()
    (ship.path / "restored-1").mkdir()
    (ship.path / "restored-1" / "file").write_text("mine")
    with pytest.raises(WheelExists):
        ship.restore()
    assert [p.name for p in (ship.path / "restored-1").iterdir()] == ["file"]


def test_a_restore_of_an_empty_bucket_says_so(ship: Shipped) -> None:
    with pytest.raises(NoWheel, match="this bucket has no copy"):
        ship.restore()


def test_a_directory_serves_as_a_bucket(ship: Shipped, tmp_path: Path) -> None:
    ship.store = CountingStore(LocalStore(tmp_path / "bucket", mkdir=True))
    with sizes(BASE_BYTES_MIN=1000, OBJECT_BYTES=1):
        for n in range(1, 31):
            ship.enqueue(b"%03d" % n * 20)
            ship.tick()
    ship.assert_same()
