"""Finding by id, again and again: whatever happened between two looks, a finder answers as a snapshot does."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import filewheel.lookup.finder
import filewheel.lookup.index
from filewheel import Closed, DiskError, Keeper, MessageId, NotFound, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.format import layout
from filewheel.format.frame import Frame, scan
from filewheel.format.record import ID, PUT_PREFIX, pack_drop, pack_message, records_of, unpack_put
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.lookup.finder import Finder, Memory
from filewheel.lookup.lru import Lru
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S
from filewheel.tools.repair import repair
from tests.conftest import assert_whole
from tests.support import FakeClock, ledger_of, open_below, run, timed

CANCEL = "import sys; from filewheel import Wheel\nwith Wheel(sys.argv[1]) as w: print(bool(w.cancel(sys.argv[2])))"


@pytest.fixture
def finder(wheel_dir: Path) -> Finder:
    return Finder(open_directory(wheel_dir, write=False))


@pytest.fixture
def wheel(wheel_dir: Path, clock: FakeClock) -> Iterator[Wheel]:
    with Wheel(wheel_dir, clock=clock, sync="never") as opened:
        yield opened


def look(finder: Finder, ids: Iterable[bytes]) -> list[bytes]:
    """Return the payloads of those that are pending, sorted; a snapshot must agree."""
    wanted = list(ids)
    found = finder.find(wanted)
    with Snapshot(finder._dir) as snapshot:
        assert found == snapshot.find(wanted)
    assert finder.pending(wanted) == found.keys()
    return sorted(unpack_put(put).payload for put in found.values())


def memory_of(finder: Finder) -> Memory:
    """Return what a finder remembers."""
    assert finder._memory is not None
    return finder._memory


def deal(wheel_dir: Path, clock: FakeClock, *, spread: bool = False) -> None:
    """Deal everything, into laps or, with `spread`, near laps into seconds."""
    directory = open_directory(wheel_dir, write=True)
    owner = KeeperLock(directory)
    owner.take("keeper", wait=False)
    store = ledger_of(timed(directory, clock))
    store.recover()
    Deal(store, spread=spread).run()
    store.close()
    owner.release()


class Hooked(OsDisk):
    """A disk on which something happens once, before or after a call with a name."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.before: dict[tuple[str, str], Callable[[], object]] = {}
        self.after: dict[tuple[str, str], Callable[[], object]] = {}
        self.opened: list[str] = []
        self.read_bytes = 0

    def _now(self, hooks: dict[tuple[str, str], Callable[[], object]], kind: str, name: str) -> None:
        for hook in [h for h in hooks if h[0] == kind and name.startswith(h[1])]:
            hooks.pop(hook)()

    def open(self, name: str, mode: str) -> int:
        self._now(self.before, "open", name)
        self.opened.append(name)
        return super().open(name, mode)

    def listdir(self, name: str) -> list[str]:
        found = super().listdir(name)
        self._now(self.after, "listdir", name)
        return found

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.read_bytes += len(data)
        self._now(self.after, "pread", os.readlink(f"/proc/self/fd/{fd}").rpartition("/")[2])
        return data


@pytest.fixture
def disk(wheel_dir: Path) -> Hooked:
    return Hooked(os.fspath(wheel_dir))


@pytest.fixture
def hooked(wheel_dir: Path, disk: Hooked) -> Finder:
    return Finder(open_directory(wheel_dir, write=False, env=SYSTEM.using(disk=lambda path: disk)))


# -- what becomes of a message ----------------------------------------------------------------------------------


def test_what_was_just_enqueued_is_found_one_by_one_and_in_batches(wheel: Wheel, finder: Finder) -> None:
    one = wheel.enqueue(b"one", delay=60)
    assert look(finder, [one]) == [b"one"]
    many = wheel.enqueue_many([b"%d" % i for i in range(100)], delay=[i * 100 for i in range(100)])
    assert look(finder, [many[50], one, many[3]]) == [b"3", b"50", b"one"]
    assert len(look(finder, [*many, one])) == 101
    assert look(finder, [many[7]]) == [b"7"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("spread", [True, False])
def test_what_a_deal_moved_is_found_where_it_is_now(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock, known: bool, spread: bool
) -> None:
    ids = wheel.enqueue_many([b"%d" % i for i in range(9)], delay=[i * 400 for i in range(9)])
    for turn in range(2):
        if known:
            assert len(look(finder, ids)) == 9 - turn
        deal(wheel_dir, clock, spread=spread)
        wheel.cancel(ids[0])
        assert look(finder, ids) == [b"%d" % i for i in range(1, 9)]
        assert [look(finder, [i]) for i in ids[4:6]] == [[b"4"], [b"5"]]


def test_a_file_that_grows_while_it_is_known(wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock) -> None:
    ids: list[bytes] = []
    for i in range(5):
        ids += wheel.enqueue_many([b"%d" % i] * 3, delay=3600)
        deal(wheel_dir, clock)
        for _ in range(3):  # what is wanted a second time is indexed
            assert len(look(finder, ids)) == 3 * (i + 1)
            assert look(finder, ids[-1:]) == [b"%d" % i]
        loaded = memory_of(finder).loaded
        assert loaded.ids == sum(run.records for run in loaded) > 0


def test_a_lap_that_is_opened_into_seconds_between_two_looks(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    ids = wheel.enqueue_many([b"%d" % i for i in range(9)], delay=[i * 20 for i in range(9)])
    deal(wheel_dir, clock)
    for _ in range(3):
        assert len(look(finder, ids)) == 9
    deal(wheel_dir, clock, spread=True)
    assert list((wheel_dir / "laps").glob("*/*.slot"))
    for _ in range(3):
        assert len(look(finder, ids)) == 9


@pytest.mark.parametrize("dealt", [True, False])
def test_what_another_handle_or_process_cancelled_is_not_found(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock, dealt: bool
) -> None:
    ids = wheel.enqueue_many([b"a", b"b", b"c"], delay=3600)
    if dealt:
        deal(wheel_dir, clock)
    assert len(look(finder, ids)) == 3
    with Wheel(wheel_dir, clock=clock) as other:
        assert other.cancel(ids[0])
        assert not wheel.cancel(ids[0])
        assert look(finder, ids) == [b"b", b"c"]
    assert run(CANCEL, wheel_dir, ids[1]).strip() == "True"
    assert look(finder, ids) == [b"c"]
    assert wheel.cancel_many(ids) == {ids[2]}
    assert look(finder, ids) == []
    deal(wheel_dir, clock)
    assert look(finder, ids) == []


def test_what_a_keeper_acked_or_retried_and_what_was_rescheduled(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    ids = wheel.enqueue_many([b"%d" % i for i in range(6)], delay=[1, 2, 3, 900, 1800, 90_000])
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        assert len(look(finder, ids)) == 6
        clock.advance(5)
        batch = keeper.claim()
        keeper.ack([m for m in batch if m.payload != b"2"])
        (third,) = [m for m in batch if m.payload == b"2"]
        again = keeper.nack(third, delay=60)
        assert again is not None
        assert look(finder, [*ids, again]) == [b"2", b"3", b"4", b"5"]
        moved = wheel.reschedule(ids[5], delay=30)
        assert look(finder, [*ids, moved]) == [b"3", b"4", b"5"]
    assert look(finder, [*ids, moved]) == [b"3", b"4", b"5"]
    assert wheel.get(ids[5]) is None
    assert wheel.get(moved).root == ids[5]  # type: ignore[union-attr]


def test_a_dead_letter_is_found_and_can_be_revived(wheel_dir: Path, wheel: Wheel, clock: FakeClock) -> None:
    wheel.enqueue(b"x", delay=1)
    clock.advance(2)
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:
        (message,) = keeper.claim()
        keeper.bury(message, reason="no")
        (dead,) = wheel.list(dead=True)
        assert wheel.get(dead.id) == dead
        deal_now = Deal(keeper._store, spread=False)
        deal_now.run()
        assert wheel.get(dead.id) == dead
        assert wheel.get(wheel.reschedule(dead.id, delay=5)).payload == b"x"  # type: ignore[union-attr]
        assert wheel.get(dead.id) is None


def test_ids_of_another_wheel_and_ids_that_nothing_can_have(tmp_path: Path, wheel: Wheel, finder: Finder) -> None:
    with Wheel.create(tmp_path / "other.wheel") as other:
        strange = other.enqueue(b"x", delay=60)
    mine = wheel.enqueue(b"mine", delay=60)
    for _ in range(2):
        assert look(finder, [strange, b"\xff" * 16, bytes(16)]) == []
        assert look(finder, [strange, mine]) == [b"mine"]
    assert look(finder, []) == []


def test_what_a_payload_looks_like_is_not_taken_for_a_record(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    real = wheel.enqueue(b"real", delay=60)
    fake = MessageId.make(real.due_us + 1, 7, 7)
    wheel.enqueue_many([PUT_PREFIX + fake + bytes(20), pack_drop(real, 1) * 3], delay=60)
    for _ in range(3):
        assert look(finder, [fake]) == []
        assert look(finder, [real]) == [b"real"]
    deal(wheel_dir, clock)
    for _ in range(3):
        assert look(finder, [fake]) == []
        assert look(finder, [real]) == [b"real"]


def test_a_cancel_that_was_dealt_together_with_its_put_stays_one(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    # Neither of the two gets into a file. The canceller's journal goes, that of the message is still in use.
    ids = wheel.enqueue_many([b"a", b"b"], delay=3600)
    assert look(finder, ids) == [b"a", b"b"]
    with Wheel(wheel_dir, clock=clock) as other:
        assert other.cancel(ids[0])
    deal(wheel_dir, clock)
    assert look(finder, ids) == [b"b"]


def test_a_cancel_that_comes_before_its_put_counts(wheel_dir: Path, wheel: Wheel, finder: Finder) -> None:
    with Wheel(wheel_dir) as other:
        id_ = MessageId.make(5_000_000 * US_PER_S, 3, 4)
        assert not other.cancel(id_)
        assert look(finder, [id_]) == []
        (message,) = [wheel.get(wheel.enqueue(b"x", delay=60))]
        assert message is not None
        message.id = id_
        wheel.add([message])
        assert look(finder, [id_]) == []


def test_many_handles_and_more_journals_than_are_kept_open(wheel_dir: Path, finder: Finder, clock: FakeClock) -> None:
    wheels = [Wheel(wheel_dir, clock=clock, sync="never") for _ in range(40)]
    ids = [w.enqueue(b"%02d" % i, delay=60 + i) for i, w in enumerate(wheels)]
    assert len(look(finder, ids)) == 40
    assert all(w.cancel(i) for w, i in zip(wheels, ids[1:], strict=False))
    assert look(finder, ids) == [b"00"]
    for w in wheels:
        w.close()
    assert look(finder, ids) == [b"00"]


def test_threads_that_cancel_through_one_handle(wheel: Wheel) -> None:
    ids = wheel.enqueue_many([b"x"] * 400, delay=[60 + i for i in range(400)])
    gone: list[MessageId] = []

    def cancel(some: list[MessageId]) -> None:
        gone.extend(i for i in some if wheel.cancel(i))

    threads = [threading.Thread(target=cancel, args=(ids[n::4],)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(gone) == sorted(ids)


# -- what it costs ----------------------------------------------------------------------------------------------


def test_a_look_when_nothing_is_new_reads_next_to_nothing(
    wheel_dir: Path, wheel: Wheel, hooked: Finder, disk: Hooked, clock: FakeClock
) -> None:
    old = wheel.enqueue_many([b"x" * 100] * 500, delay=[3600 + i for i in range(500)])
    deal(wheel_dir, clock)
    new = wheel.enqueue_many([b"x" * 100] * 500, delay=[3600 + i for i in range(500)])
    for _ in range(3):  # what is wanted a second time is indexed
        assert len(hooked.pending([old[5], new[5]])) == 2
    disk.opened.clear()
    disk.read_bytes = 0
    assert len(hooked.pending([old[9], new[9]])) == 2
    wheel.cancel(new[9])
    assert len(hooked.pending([old[10], new[9]])) == 1
    assert {n.partition("/")[0] for n in disk.opened} == {"journal"}
    assert disk.read_bytes < 5000


def test_a_sealed_journal_is_not_opened_again(wheel_dir: Path, hooked: Finder, disk: Hooked) -> None:
    with Wheel(wheel_dir) as wheel:
        ids = [wheel.enqueue(b"x", delay=60)]
    assert hooked.pending(ids)
    disk.opened.clear()
    assert hooked.pending(ids)
    assert not disk.opened


def test_nothing_stays_open_between_two_looks(wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock) -> None:
    ids = list(wheel.enqueue_many([b"x"] * 9, delay=[i * 400 for i in range(9)]))
    deal(wheel_dir, clock)
    ids.append(wheel.enqueue(b"y", delay=60))
    finder.find(ids)
    before = open_below(wheel_dir)
    finder.find(ids)
    finder.pending(ids[:1])
    assert open_below(wheel_dir) == before


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_over_its_limit_an_index_still_answers_and_does_not_grow(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(filewheel.lookup.index, "IDS_MAX", 20)
    monkeypatch.setattr(filewheel.lookup.finder, "RUNS_MAX", 3)
    monkeypatch.setattr(filewheel.lookup.index, "RUN_RECORDS", 4)
    ids: list[bytes] = []
    for round_ in range(2):
        for i in range(0, 100, batch):
            ids += wheel.enqueue_many([b"x"] * batch, delay=[i * 90.0 + k for k in range(batch)])
            assert len(look(finder, ids[-1:])) == 1
        assert len(look(finder, ids)) == len(ids)
        memory = memory_of(finder)
        assert memory.loaded.ids <= 20
        assert [len(look(finder, [i])) for i in ids[::7]] == [1] * len(ids[::7])
        assert memory.loaded.ids == sum(r.records for r in memory.loaded) <= 20
        assert memory.files.weight == sum(len(f.runs) for f in memory.files.values())
        assert len(memory.files) <= 3
        gone = ids[round_::9]
        assert wheel.cancel_many(gone) == set(gone)
        ids = [i for i in ids if i not in gone]
        assert look(finder, gone) == []
        deal(wheel_dir, clock)
        assert len(look(finder, ids)) == len(ids)
        assert look(finder, gone) == []
    finder.forget()
    assert finder._memory is None
    assert len(look(finder, ids)) == len(ids)


def test_a_closed_handle_holds_nothing_and_finds_nothing(wheel_dir: Path) -> None:
    wheel = Wheel(wheel_dir)
    id_ = wheel.enqueue(b"x", delay=60)
    assert wheel.get(id_)
    wheel.close()
    assert wheel._finder._memory is None
    for call in (wheel.get, wheel.cancel):
        with pytest.raises(Closed):
            call(id_)


# -- what happens while it looks --------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("when", [("listdir", "journal"), ("pread", "checkpoint")])
def test_a_deal_that_is_committed_during_a_look(
    wheel_dir: Path, hooked: Finder, disk: Hooked, clock: FakeClock, known: bool, when: tuple[str, str]
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        old = wheel.enqueue(b"old", delay=3600)
    if known:
        assert hooked.pending([old])
    with Wheel(wheel_dir, clock=clock) as wheel:
        new = wheel.enqueue(b"new", delay=3600)
    deal_once = disk.after[when] = lambda: deal(wheel_dir, clock)
    if known and when[0] == "pread":  # a known checkpoint is not read
        deal_once()
    assert hooked.pending([old, new]) == {old, new}
    assert look(hooked, [old, new]) == [b"new", b"old"]


def test_a_lap_that_is_opened_into_seconds_just_before_it_is_read(
    wheel_dir: Path, wheel: Wheel, hooked: Finder, disk: Hooked, clock: FakeClock
) -> None:
    id_ = wheel.enqueue(b"x", delay=1)
    deal(wheel_dir, clock)
    disk.before["open", "laps"] = lambda: deal(wheel_dir, clock, spread=True)
    assert hooked.pending([id_]) == {id_}


def test_a_snapshot_finds_what_was_opened_into_seconds_after_it_was_taken(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock
) -> None:
    ids = wheel.enqueue_many([b"x", b"y"], delay=[1, 2])
    deal(wheel_dir, clock)
    with wheel.snapshot() as snapshot:
        deal(wheel_dir, clock, spread=True)
        assert not list((wheel_dir / "laps").glob("*.lap"))
        assert set(snapshot.find(ids)) == set(ids)


def test_a_deal_after_each_look_at_the_journals_ends_in_the_long_way(
    wheel_dir: Path, wheel: Wheel, hooked: Finder, disk: Hooked, clock: FakeClock
) -> None:
    ids = [wheel.enqueue(b"0", delay=3600)]
    deals = []

    def again() -> None:
        if len(deals) < 25:
            deals.append(1)
            deal(wheel_dir, clock)
            disk.after["listdir", "journal"] = again

    disk.after["listdir", "journal"] = again
    assert hooked.pending(ids) == set(ids)
    assert len(deals) > 20


def test_an_interrupt_or_an_error_leaves_nothing_half_learned(
    wheel: Wheel, finder: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [wheel.enqueue(b"x", delay=60)]
    for exc, raised in ((OSError(5, "bad"), DiskError), (KeyboardInterrupt(), KeyboardInterrupt)):
        assert finder.pending(ids) == set(ids)
        ids.append(wheel.enqueue(b"x", delay=60))

        def stop(run: object, frame: object, ids: object, exc: BaseException = exc) -> None:
            raise exc

        with monkeypatch.context() as patch:
            patch.setattr(filewheel.lookup.index.FrameRun, "take", stop)
            with pytest.raises(raised):
                finder.pending(ids)
        assert finder.pending(ids) == set(ids)


# -- frames that do not verify, yet or ever -----------------------------------------------------------------------


def journal_of(wheel_dir: Path, wheel: Wheel) -> Path:
    assert wheel._journal is not None
    return wheel_dir / "journal" / f"{wheel._journal.writer}-000001.log"


def offsets(wheel_dir: Path, place: Path) -> list[tuple[int, int]]:
    """Return where the frames of a file lie."""
    directory = open_directory(wheel_dir, write=False)
    name = f"{place.parent.name}/{place.name}"
    fd = directory.disk.open(name, "r")
    try:
        items = scan(directory.disk, fd, 0, place.stat().st_size, directory.seed(name))
        return [(item.offset, item.end) for item in items if isinstance(item, Frame)]
    finally:
        directory.disk.close(fd)


@pytest.mark.parametrize("ahead", [0, 4096])
def test_a_frame_that_is_half_written_is_found_when_it_is_whole(
    wheel_dir: Path, wheel: Wheel, finder: Finder, ahead: int
) -> None:
    ids = [wheel.enqueue(b"%d" % i, delay=60 + i) for i in range(3)]
    place = journal_of(wheel_dir, wheel)
    spans = offsets(wheel_dir, place)
    whole = place.read_bytes()[: spans[-1][1]]
    for n, (start, end) in enumerate(spans):
        for cut in (start, start + 1, start + 8, start + 71, start + 72, (start + 72 + end) // 2, end - 8):
            place.write_bytes(whole[:cut] + bytes(ahead))
            assert len(look(finder, ids)) == n
        place.write_bytes(whole[:end] + bytes(ahead))
        assert len(look(finder, ids)) == n + 1


@pytest.mark.parametrize("reads", [1, 2])
def test_a_frame_of_which_a_look_saw_only_a_part_is_not_passed_by(
    wheel_dir: Path, wheel: Wheel, finder: Finder, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    """A read beside a writer may be of two moments: here it shows a later frame, and zeros where an earlier one is."""
    ids = [wheel.enqueue(b"%d" % i, delay=60 + i) for i in range(4)]
    start, end = offsets(wheel_dir, journal_of(wheel_dir, wheel))[1]
    real = OsDisk.pread
    left = [reads]

    def torn(self: OsDisk, fd: int, size: int, offset: int) -> bytes:
        data = real(self, fd, size, offset)
        if left[0] and offset <= start < offset + size and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
            left[0] -= 1
            data = (
                data[: start - offset] + bytes(min(len(data), end - offset) - (start - offset)) + data[end - offset :]
            )
        return data

    monkeypatch.setattr(OsDisk, "pread", torn)
    finder.find(ids)
    assert left == [0]
    monkeypatch.setattr(OsDisk, "pread", real)
    assert look(finder, ids) == [b"0", b"1", b"2", b"3"]


@pytest.mark.damages
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("part", ["magic", "body"])
def test_what_lies_behind_damage_in_a_journal_is_found(
    wheel_dir: Path, wheel: Wheel, finder: Finder, known: bool, part: str
) -> None:
    ids = [wheel.enqueue(b"%d" % i, delay=60 + i) for i in range(2)]
    if known:
        assert len(look(finder, ids[:1])) == 1
    ids += [wheel.enqueue(b"%d" % i, delay=60 + i) for i in range(2, 6)]
    place = journal_of(wheel_dir, wheel)
    start, end = offsets(wheel_dir, place)[3]
    data = bytearray(place.read_bytes())
    data[start if part == "magic" else end - 9] ^= 1
    place.write_bytes(data)
    assert look(finder, ids) == [b"0", b"1", b"2", b"4", b"5"]
    ids.append(wheel.enqueue(b"6", delay=70))
    assert look(finder, ids) == [b"0", b"1", b"2", b"4", b"5", b"6"]


@pytest.mark.damages
def test_a_put_of_which_the_frame_was_damaged_since_is_taken_from_elsewhere(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    id_ = wheel.enqueue(b"x", delay=3600)
    message = wheel.get(id_)
    assert message is not None
    deal(wheel_dir, clock)
    with contextlib.closing(Journal(open_directory(wheel_dir, write=True))) as again:
        again.append([pack_message(message)], 1)
        for _ in range(3):
            assert look(finder, [id_]) == [b"x"]
    memory_of(finder)._frames._recent = Lru()
    (lap,) = (wheel_dir / "laps").glob("*.lap")
    data = bytearray(lap.read_bytes())
    data[80] ^= 1
    lap.write_bytes(data)
    assert look(finder, [id_]) == [b"x"]


@pytest.mark.damages
def test_damage_in_a_lap_costs_only_what_was_in_the_frame(wheel_dir: Path, wheel: Wheel, clock: FakeClock) -> None:
    ids = []
    for i in range(4):
        ids.append(wheel.enqueue(b"%d" % i, delay=3600))
        deal(wheel_dir, clock)
    (lap,) = (wheel_dir / "laps").glob("*.lap")
    spans = offsets(wheel_dir, lap)
    whole = lap.read_bytes()
    for at in (spans[1][0] + 4, spans[1][1] - 9):
        data = bytearray(whole)
        data[at] ^= 1
        lap.write_bytes(data)
        finder = Finder(open_directory(wheel_dir, write=False))
        for _ in range(3):
            assert look(finder, ids) == [b"0", b"2", b"3"]
            assert look(finder, ids[1:2]) == []


def test_a_drop_that_was_dealt_before_its_put_counts(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    # Its put lies behind the end of the chunk, so the checkpoint carries the drop on.
    ids = [wheel.enqueue(b"%d" % i, delay=60 + i) for i in range(20)]
    assert len(look(finder, ids)) == 20
    # The journals are dealt in the order of their names.
    with Wheel(wheel_dir, clock=clock, env=SYSTEM.using(entropy=lambda size: (1).to_bytes(size, "big"))) as other:
        other.cancel_many(ids[-3:])
    directory = open_directory(wheel_dir, write=True)
    store = ledger_of(timed(directory, clock))
    store.recover()
    Deal(store, spread=False, chunk_records=8).run()
    store.close()
    with Snapshot(directory) as snapshot:
        assert snapshot.checkpoint.unmatched
    for _ in range(3):
        assert len(look(finder, ids)) == 17
        assert look(finder, ids[-1:]) == []


@pytest.mark.damages
def test_a_repaired_file_is_read_anew(wheel_dir: Path, finder: Finder, clock: FakeClock) -> None:
    ids = []
    for i in range(4):
        with Wheel(wheel_dir, clock=clock) as wheel:
            ids.append(wheel.enqueue(b"%d" % i, delay=3600))
        deal(wheel_dir, clock)
    (lap,) = (wheel_dir / "laps").glob("*.lap")
    data = bytearray(lap.read_bytes())
    data[offsets(wheel_dir, lap)[1][0]] ^= 1
    lap.write_bytes(data)
    assert look(finder, ids) == [b"0", b"2", b"3"]
    repair(open_directory(wheel_dir, write=True, env=SYSTEM.using(clock=clock)))
    assert look(finder, ids) == [b"0", b"2", b"3"]


@pytest.mark.damages
def test_without_a_checkpoint_a_finder_takes_what_is_there(
    wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock
) -> None:
    ids = [wheel.enqueue(b"0", delay=3600)]
    deal(wheel_dir, clock)
    ids.append(wheel.enqueue(b"1", delay=3600))
    assert look(finder, ids) == [b"0", b"1"]
    checkpoint, old = wheel_dir / layout.CHECKPOINT, wheel_dir / layout.CHECKPOINT_OLD
    kept = checkpoint.read_bytes()
    checkpoint.write_bytes(b"")
    assert look(finder, ids) == [b"0", b"1"]
    old.unlink()
    checkpoint.unlink()
    assert look(finder, ids) == [b"0", b"1"]
    assert wheel.cancel(ids[0])
    assert look(finder, ids) == [b"1"]
    checkpoint.write_bytes(kept)
    assert look(finder, ids) == [b"1"]


@pytest.mark.damages
def test_files_that_are_taken_away_by_hand(wheel_dir: Path, wheel: Wheel, finder: Finder, clock: FakeClock) -> None:
    far = wheel.enqueue(b"far", delay=90_000)
    deal(wheel_dir, clock)
    near = wheel.enqueue(b"near", delay=60)
    (lap,) = (wheel_dir / "laps").glob("*.lap")
    lap.unlink()
    assert look(finder, [far, near]) == [b"near"]
    wheel.flush()
    journal_of(wheel_dir, wheel).unlink()
    assert look(finder, [far, near]) == []


@pytest.mark.damages
def test_a_segment_that_is_no_regular_file_is_left_alone(wheel_dir: Path, wheel: Wheel, finder: Finder) -> None:
    id_ = wheel.enqueue(b"x", delay=60)
    os.mkfifo(wheel_dir / "journal" / "00000000-000001.log")
    for _ in range(2):
        assert look(finder, [id_]) == [b"x"]


def test_a_second_that_went_and_came_again_is_another_file(wheel_dir: Path, finder: Finder, clock: FakeClock) -> None:
    """Between two looks its file was finished and removed, and another one of the same name and length was made."""
    due = clock.now_us() / US_PER_S + 30
    ids = []
    for payload in (b"a", b"b"):
        with Wheel(wheel_dir, clock=clock) as wheel:
            ids.append(wheel.enqueue(payload, at=due))
        deal(wheel_dir, clock, spread=True)
        if payload == b"a":
            for _ in range(3):
                assert look(finder, ids) == [b"a"]
            clock.advance(60)
            with Keeper(wheel_dir, clock=clock, background=False) as keeper:
                keeper.ack(keeper.claim())
            assert not list((wheel_dir / "laps").glob("*/*.slot"))
            clock.step(-60)
    assert look(finder, ids) == [b"b"]


def test_a_second_that_went_with_one_deal_and_came_with_the_next_is_another_file(
    wheel: Wheel, wheel_dir: Path, finder: Finder, clock: FakeClock
) -> None:
    """The same, when the finder looked after each deal."""
    due = clock.now_us() / US_PER_S + 30
    with Keeper(wheel_dir, clock=clock, background=False) as keeper:

        def deal_one() -> None:
            before = keeper._store.checkpoint.deal
            Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
            assert keeper._store.checkpoint.deal == before + 1

        a = wheel.enqueue(b"a", at=due)
        deal_one()
        for _ in range(3):
            assert look(finder, [a]) == [b"a"]
        clock.advance(60)
        keeper.ack(keeper.claim())
        deal_one()
        assert not list((wheel_dir / "laps").glob("*/*.slot"))
        assert look(finder, [a]) == []
        clock.step(-60)
        b = wheel.enqueue(b"b", at=due)
        deal_one()
        assert look(finder, [a, b]) == [b"b"]


def test_frames_that_hold_something_else_than_their_headers_say(wheel_dir: Path, finder: Finder) -> None:
    """Drops that are not where the header says make no sense, and nothing of them is taken."""
    from filewheel.lookup.index import ids_of

    drops = [pack_drop(MessageId.make(i, 1, 1), 2) for i in (5, 6, 7)]

    def frame(body: bytes, first: bytes, last: bytes, puts: int = 0, drops: int = 3) -> Frame:
        return Frame(0, 0, 1, 0, puts, drops, first, last, body)

    good = frame(b"".join(drops), drops[0][ID], drops[2][ID])
    puts, dropped = ids_of(good)
    assert (list(puts), list(dropped)) == ([], [d[ID] for d in records_of(good)[1]])
    for bad in (
        frame(b"".join(drops), drops[1][ID], drops[2][ID]),
        frame(b"".join(drops), drops[0][ID], drops[1][ID]),
        frame(b"".join(drops)[:-1] + b"\xc4", drops[0][ID], drops[2][ID]),
        frame(b"\x94" + b"".join(drops)[1:], drops[0][ID], drops[2][ID]),
    ):
        for read in (ids_of, records_of):
            with pytest.raises(filewheel.Damaged):
                read(bad)


# -- anything, in any order -------------------------------------------------------------------------------------


class Anything(RuleBasedStateMachine):
    """One finder is kept over a wheel's whole life; whenever it is asked, a snapshot must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.home = tempfile.TemporaryDirectory()
        self.path = Path(self.home.name) / "w"
        self.clock = FakeClock()
        Wheel.create(self.path, slots=60, clock=self.clock).close()
        self.wheels = [self.open(), self.open()]
        self.keeper: Keeper | None = None
        self.finder = Finder(open_directory(self.path, write=False))
        self.ids: list[bytes] = []

    def open(self) -> Wheel:
        return Wheel(self.path, clock=self.clock, sync="never")

    def some(self, data: st.DataObject) -> list[bytes]:
        """Draw some of the ids so far."""
        return data.draw(st.lists(st.sampled_from(self.ids), max_size=12)) if self.ids else []

    @rule(who=st.integers(0, 1), delays=st.lists(st.integers(0, 200), min_size=1, max_size=20))
    def enqueue(self, who: int, delays: list[int]) -> None:
        self.ids += self.wheels[who].enqueue_many([b"%d" % d for d in delays], delay=list(delays))

    @rule(who=st.integers(0, 1), delay=st.integers(0, 200))
    def enqueue_one(self, who: int, delay: int) -> None:
        self.ids.append(self.wheels[who].enqueue(b"one", delay=delay))

    @rule(who=st.integers(0, 1), data=st.data())
    def cancel(self, who: int, data: st.DataObject) -> None:
        ids = self.some(data)
        with Snapshot(self.finder._dir) as snapshot:
            pending = set(snapshot.find(ids))
        assert self.wheels[who].cancel_many(ids) == pending

    @rule(who=st.integers(0, 1), data=st.data(), delay=st.integers(0, 200))
    def reschedule(self, who: int, data: st.DataObject, delay: int) -> None:
        for id_ in self.some(data)[:2]:
            with contextlib.suppress(NotFound):
                self.ids.append(self.wheels[who].reschedule(id_, delay=delay))

    @rule(who=st.integers(0, 1))
    def end(self, who: int) -> None:
        self.wheels[who].close()
        self.wheels[who] = self.open()

    @rule(seconds=st.integers(0, 100), limit=st.integers(1, 20), back=st.integers(0, 3))
    def fire(self, seconds: int, limit: int, back: int) -> None:
        self.clock.advance(seconds)
        if self.keeper is None:
            self.keeper = Keeper(self.path, clock=self.clock, background=False)
        batch = list(self.keeper.claim(limit))
        for message in batch[:back]:
            moved = self.keeper.nack(message, delay=30)
            self.ids += [moved] if moved else []
        self.keeper.ack(batch[back:])

    @rule(spread=st.booleans())
    def deal(self, spread: bool) -> None:
        if self.keeper is None:
            deal(self.path, self.clock, spread=spread)
        else:
            Deal(self.keeper._store, spread=spread, finished=self.keeper._head.finished).run()

    @rule()
    def end_keeper(self) -> None:
        if self.keeper is not None:
            self.keeper.close()
            self.keeper = None

    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        look(self.finder, self.some(data))

    @rule()
    def find_all(self) -> None:
        look(self.finder, self.ids)

    @invariant()
    def counts_are_right(self) -> None:
        memory = self.finder._memory
        if memory is not None:
            assert memory.loaded.ids == sum(run.records for run in memory.loaded) <= filewheel.lookup.index.IDS_MAX
            assert memory.files.weight == sum(len(file.runs) for file in memory.files.values())

    def teardown(self) -> None:
        look(self.finder, self.ids)
        self.end_keeper()
        for wheel in self.wheels:
            wheel.close()
        look(self.finder, self.ids)
        assert_whole(self.path)
        self.home.cleanup()


@pytest.mark.parametrize("ids_max", [filewheel.lookup.index.IDS_MAX, 24])
def test_whatever_happens_a_finder_answers_as_a_snapshot_does(monkeypatch: pytest.MonkeyPatch, ids_max: int) -> None:
    monkeypatch.setattr(filewheel.lookup.index, "IDS_MAX", ids_max)
    monkeypatch.setattr(filewheel.lookup.index, "RUN_RECORDS", max(5, ids_max // 6))
    examples = int(os.environ.get("FILEWHEEL_EXAMPLES", "20"))
    run_state_machine_as_test(
        Anything,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, derandomize=True, database=None
        ),
    )
