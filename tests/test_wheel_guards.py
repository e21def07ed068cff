"""Guards that no ordinary use meets: names that collide, files that vanish, errors after the fact, forks and kills."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from filewheel import DiskError, Keeper, Locked, Message, MessageId, Wheel, WheelFull
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.disk.quarantine import items
from filewheel.firing.housekeeper import DEAL_AGE_US
from filewheel.format import layout
from filewheel.format.record import pack_tail
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.laps.tidy import tidy
from filewheel.message import US_PER_S
from tests.conftest import assert_whole
from tests.support import START_US, FakeClock, FaultyDisk, MissingNames, eventually, timed


def same_entropy(name: int, start: int) -> object:
    """Entropy that draws a given writer name (5 bytes) and a given first sequence number (4 bytes)."""
    return lambda size: (name if size == 5 else start).to_bytes(size, "big")


class SweptDisk(OsDisk):
    """A disk on which a keeper that sweeps has locked the first new segment before its writer does."""

    swept = False

    def lock(self, fd: int, *, wait: bool) -> bool:
        new = [f"journal/{n}" for n in self.listdir("journal") if layout.is_segment_tmp(n)]
        if self.swept or not new:
            return super().lock(fd, wait=wait)
        self.swept = True
        sweeper = self.open(new[0], "r")
        assert super().lock(sweeper, wait=False)
        try:
            if not wait:
                return super().lock(fd, wait=False)
            self.unlink(new[0])  # who waits has it after that
        finally:
            self.close(sweeper)
        return super().lock(fd, wait=True)


def test_a_writer_whose_new_segment_is_held_by_a_sweep_waits_and_begins_another(wheel_dir: Path) -> None:
    disks: list[SweptDisk] = []

    def disk(path: str) -> SweptDisk:
        disks.append(SweptDisk(path))
        return disks[-1]

    with Wheel(wheel_dir, env=SYSTEM.using(disk=disk)) as wheel:
        id_ = wheel.enqueue(b"x", delay=60)
        assert any(each.swept for each in disks)
        for segment in (wheel_dir / "journal").iterdir():
            with segment.open("rb") as file, pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert [m.id for m in wheel.list()] == [id_]
    assert_whole(wheel_dir)


def test_a_writer_that_draws_the_name_of_another_does_not_write_into_its_segment(wheel_dir: Path) -> None:
    first = Journal(open_directory(wheel_dir, write=True, env=SYSTEM.using(entropy=same_entropy(7, 1))))  # type: ignore[arg-type]
    first.put(10 * US_PER_S, 0, b"\x00\xa0\x80", b"x")
    second = Journal(open_directory(wheel_dir, write=True, env=SYSTEM.using(entropy=same_entropy(7, 2))))  # type: ignore[arg-type]
    with pytest.raises(DiskError, match="another writer drew the same name"):
        second.put(10 * US_PER_S, 0, b"\x00\xa0\x80", b"y")
    first.close()
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"x"]


def test_two_writers_of_one_name_give_different_ids(wheel_dir: Path) -> None:
    # One after the other, the first long gone: 40 bits of name are drawn again one day.
    ids = []
    for start in (1, 2):
        journal = Journal(open_directory(wheel_dir, write=True, env=SYSTEM.using(entropy=same_entropy(7, start))))  # type: ignore[arg-type]
        ids.append(journal.put(10 * US_PER_S, 0, b"\x00\xa0\x80", b"x"))
        journal.close()
        for name in os.listdir(wheel_dir / "journal"):
            os.unlink(wheel_dir / "journal" / name)
    assert ids[0] != ids[1]


def test_a_writer_whose_first_segment_could_not_be_made_does_not_use_its_name_again(wheel_dir: Path) -> None:
    # A keeper may have seen the segment come and go, and then it takes the writer for ended.
    names: list[str] = []

    def fail(what: str, name: str) -> None:
        if what == "rename" and name.startswith("journal/"):
            names.append(name)
        if what == "sync_dir" and name == "journal" and len(names) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        with pytest.raises(DiskError):
            wheel.enqueue(b"refused", delay=60)
        wheel.enqueue(b"x", delay=60)
    assert len(set(names)) == 2


@pytest.mark.damages
def test_a_file_that_was_taken_away_is_reported_when_the_keeper_starts_not_when_its_time_comes(
    wheel_dir: Path,
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=100_000)
    Keeper(wheel_dir, clock=clock, background=False).close()
    (lap,) = (wheel_dir / "laps").glob("*.lap")
    lap.unlink()
    with Keeper(wheel_dir, clock=clock, background=False):
        (item,) = items(open_directory(wheel_dir, write=False))
        assert item["reason"] == "the file is missing"
        assert item["name"] == f"laps/{lap.name}"


def lose_checkpoints(wheel_dir: Path) -> None:
    (wheel_dir / "checkpoint").write_bytes(b"garbage")
    (wheel_dir / "checkpoint.old").unlink(missing_ok=True)


@pytest.mark.damages
def test_without_a_checkpoint_a_message_that_is_in_a_journal_and_in_a_file_fires_once(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=30)
        keeper = Keeper(wheel_dir, clock=clock, background=False)
        Deal(keeper._store, spread=True).run()  # dealt, and its live writer's segment stays
        lose_checkpoints(wheel_dir)
        clock.advance(60)
        keeper._store.close()
        keeper._keeper_lock.release()
        with Keeper(wheel_dir, clock=clock, background=False) as again:
            batch = again.claim()
            assert [m.payload for m in batch] == [b"x"]
            again.ack(batch)


@pytest.mark.damages
def test_without_a_checkpoint_a_message_whose_cancel_is_in_a_journal_does_not_come_back(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel:
        id_ = wheel.enqueue(b"x", delay=30)
        keeper = Keeper(wheel_dir, clock=clock, background=False)
        Deal(keeper._store, spread=True).run()
        wheel.cancel(id_)
        keeper._store.close()
        keeper._keeper_lock.release()
        lose_checkpoints(wheel_dir)
    # This life deals the put and the drop of one journal, while a file has the put already.
    Keeper(wheel_dir, clock=clock, background=False).close()
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert not list(wheel.list())


def test_the_first_segment_of_a_writer_that_a_keeper_s_listing_misses_is_read_before_the_second(
    wheel_dir: Path,
) -> None:
    clock = FakeClock()
    disks: list[MissingNames] = []

    def disk(path: str) -> MissingNames:
        disks.append(MissingNames(path))
        return disks[-1]

    with Keeper(wheel_dir, clock=clock, env=SYSTEM.using(disk=disk), background=False) as keeper:
        journal = Journal(open_directory(wheel_dir, write=True))
        for payload in (b"first", b"second"):
            journal.rotate()
            journal.put(START_US, START_US, pack_tail("", None), payload)
        disks[0].missing = [{1}]  # both were made while it was listing, and it had passed the place of the first
        batch = keeper.claim()
        assert not disks[0].missing
        assert {m.payload for m in batch} == {b"first", b"second"}
        keeper.ack(batch)
        journal.close()


def test_the_directory_of_a_lap_that_is_past_goes_while_the_keeper_runs(wheel_dir: Path) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        wheel.enqueue(b"x", delay=30)
        Deal(keeper._store, spread=True).run()
        assert [p.name for p in (wheel_dir / "laps").iterdir()]
        clock.advance(2000)
        keeper.ack(keeper.claim())
        clock.advance(DEAL_AGE_US / US_PER_S)
        keeper._housekeeper.step()
        assert not list((wheel_dir / "laps").iterdir())


def test_a_write_that_fails_after_it_got_there_leaves_nothing_of_what_was_refused(wheel_dir: Path) -> None:
    armed = []

    def fail(what: str, name: str) -> None:
        if armed and what == "pwritten" and "journal" in name:
            armed.clear()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        wheel.enqueue(b"0", delay=60)
        armed.append(True)
        with pytest.raises(WheelFull, match="nothing of this call was written"):
            wheel.enqueue(b"refused", delay=60)
        assert [m.payload for m in wheel.list()] == [b"0"]
        wheel.enqueue(b"1", delay=60)
    with Wheel(wheel_dir) as again:
        assert [m.payload for m in again.list()] == [b"0", b"1"]


@pytest.mark.parametrize("how", ["enqueue_many", "add"])
def test_a_call_of_several_commits_that_meets_a_full_disk_says_how_much_of_it_was_written(
    wheel_dir: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.journal.journal.BATCH_BYTES", 2500)
    monkeypatch.setattr("filewheel.wheel._ADD_BYTES", 2500)
    left = [2]

    def fail(what: str, name: str) -> None:
        if what == "pwrite" and "journal" in name:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        with pytest.raises(WheelFull) as caught:
            if how == "add":
                due = 1_900_000_000 * US_PER_S
                wheel.add([Message(MessageId.make(due, 1, n), bytes(1000)) for n in range(12)])
            else:
                wheel.enqueue_many([bytes(1000)] * 12, delay=60)
        written = len(list(wheel.list()))
        assert 0 < written < 12
        assert f"the first {written} messages of this call were written" in str(caught.value)
        assert "nothing of this call" not in str(caught.value)
        left[0] = 1000


def test_what_was_enqueued_before_a_failed_write_is_durable_when_a_later_call_says_so(wheel_dir: Path) -> None:
    calls: list[str] = []
    armed = []

    def fail(what: str, name: str) -> None:
        if what in ("pwrite", "fdatasync") and "journal" in name:
            calls.append(f"{what} {name}")
            if armed and what == "pwrite":
                armed.clear()
                raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
        wheel.enqueue(b"0", delay=60, sync="never")
        armed.append(True)
        with pytest.raises(DiskError):
            wheel.enqueue(b"refused", delay=60)
        first = calls[0].partition(" ")[2]
        wheel.enqueue(b"1", delay=60)
        # The second segment is another writer's: its flush alone would not vouch for the first.
        assert f"fdatasync {first}" in calls


def test_a_flusher_that_wakes_just_before_its_handle_is_closed_is_no_error_of_the_close(wheel_dir: Path) -> None:
    journal = Journal(open_directory(wheel_dir, write=True))
    appender = journal.appender
    flush, awake = appender.flush, threading.Event()

    def flush_too_late() -> None:
        awake.set()
        eventually(lambda: appender._closed)
        flush()

    appender.flush = flush_too_late  # type: ignore[method-assign]
    journal.put(10 * US_PER_S, 0, b"\x00\xa0\x80", b"x", sync=0.001)
    assert awake.wait(120)
    journal.close()
    assert appender._durable == appender.written == 1
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"x"]


def test_a_flusher_that_gets_to_run_only_after_its_handle_was_closed_ends_at_once(wheel_dir: Path) -> None:
    journal = Journal(open_directory(wheel_dir, write=True))
    appender = journal.appender
    loop, closed = appender._flush_loop, threading.Event()

    def run_late() -> None:
        assert closed.wait(120)
        loop()

    appender._flush_loop = run_late  # type: ignore[method-assign]
    journal.put(10 * US_PER_S, 0, b"\x00\xa0\x80", b"x", sync=3600)
    thread = appender._flusher
    assert thread is not None
    appender._flusher = None  # which `close` would wait for
    journal.close()
    closed.set()
    thread.join(120)
    assert not thread.is_alive()


def test_a_deal_for_which_there_is_no_room_leaves_no_files_behind(wheel_dir: Path) -> None:
    def fail(what: str, name: str) -> None:
        if what == "pwrite" and name == "checkpoint.tmp":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(5)], delay=[i * 2000 for i in range(5)])
    keeper = Keeper(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)), background=False)
    with pytest.raises(OSError, match="No space left"):
        Deal(keeper._store, spread=False).run()
    assert not list((wheel_dir / "laps").glob("*.lap"))
    keeper._store.close()
    keeper._keeper_lock.release()
    with Wheel(wheel_dir) as wheel:
        assert len(list(wheel.list())) == 5


def test_a_lock_is_free_when_its_file_is_closed_though_a_child_that_was_just_forked_has_it_open(
    wheel_dir: Path,
) -> None:
    disk = open_directory(wheel_dir, write=True).disk
    fd = disk.open("keeper.lock", "rw")
    assert disk.lock(fd, wait=False)
    copy = os.dup(fd)  # what a fork leaves in the child until it runs
    disk.close(fd)
    again = disk.open("keeper.lock", "rw")
    assert disk.lock(again, wait=False)
    disk.close(again)
    os.close(copy)


def test_a_child_that_outlives_a_killed_keeper_does_not_keep_the_next_one_out(wheel_dir: Path) -> None:
    read, write = os.pipe()
    parent = os.fork()
    if parent == 0:
        Keeper(wheel_dir, background=False)
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        os.write(write, b"%d\n" % child)
        time.sleep(30)
        os._exit(0)
    child = int(os.read(read, 20))
    try:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)

        def takes_over() -> bool:
            try:
                Keeper(wheel_dir, wait=False, background=False).close()
            except Locked:
                return False  # the child may not have run yet
            return True

        assert eventually(takes_over)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_what_was_unlinked_before_a_deal_that_covers_nothing_is_flushed_before_its_writer_is_forgotten(
    wheel_dir: Path,
) -> None:
    # K4: a segment that came back after a power cut would be read anew.
    flushed: list[str] = []

    def note(what: str, name: str) -> None:
        if what == "sync_dir":
            flushed.append(name)

    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, note))) as keeper:
        with Wheel(wheel_dir) as wheel:
            wheel.enqueue(b"x", delay=3600)
        store = keeper._store
        store.ingest(test_locks=True)
        Deal(store, spread=True).run()
        (writer,) = store.checkpoint.positions
        assert os.listdir(wheel_dir / "journal") == []
        flushed.clear()
        Deal(store, spread=False, is_short=True, chunk_bytes=0).run()
        assert writer not in store.checkpoint.positions
        assert flushed.index("journal") < flushed.index("")


def test_of_two_that_look_at_once_whether_a_writer_lives_neither_takes_the_other_for_it(tmp_path: Path) -> None:
    """A keeper and a replicator look at the same segments; one that stopped there would miss a cancel behind it."""
    (tmp_path / "segment").touch()
    disk, other, writer = OsDisk(str(tmp_path)), OsDisk(str(tmp_path)), OsDisk(str(tmp_path))
    asked, also, held = disk.open("segment", "r"), other.open("segment", "r"), writer.open("segment", "rw")
    assert disk.is_free(asked)
    fcntl.flock(also, fcntl.LOCK_SH)  # in the middle of a look
    assert disk.is_free(asked)
    fcntl.flock(also, fcntl.LOCK_UN)
    assert writer.lock(held, wait=False)
    assert not disk.is_free(asked)
    writer.close(held)
    assert disk.is_free(asked)
    for one, fd in ((disk, asked), (other, also)):
        one.close(fd)
    for one in (disk, other, writer):
        one.release()


@pytest.mark.parametrize("how", ["run once", "tidy"])
def test_short_keepers_and_tidying_forget_the_writers_whose_segments_are_gone(wheel_dir: Path, how: str) -> None:
    clock = FakeClock()
    directory = open_directory(wheel_dir, write=True)
    counts = []
    for _ in range(6):
        with Wheel(wheel_dir, clock=clock) as wheel:
            wheel.enqueue(b"x", delay=0 if how == "run once" else 60)
        if how == "run once":
            keeper = Keeper(wheel_dir, clock=clock, background=False)
            keeper.ack(keeper.claim())
            keeper.close()
        else:
            assert tidy(timed(directory, clock))
        checkpoint = directory.checkpoint()
        counts.append(len(checkpoint.positions))
    assert counts[-1] == counts[1] <= 4
    with Wheel(wheel_dir, clock=clock) as wheel:
        assert wheel.stats().pending == (0 if how == "run once" else 6)
