"""Disks that are full, read-only, failing, or not to be trusted: a clear error, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import filewheel.disk.directory
import filewheel.laps.tidy
from filewheel import (
    DiskError,
    Keeper,
    MessageId,
    NetworkFileSystem,
    Poisoned,
    ReadOnly,
    Unsafe,
    Wheel,
    WheelFull,
    add_backup,
)
from filewheel.disk.ballast import BALLAST_BYTES
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.lookup.snapshot import Snapshot
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.crash.images import image, lacks, sizes
from tests.support import FakeClock, FaultyDisk, lose, run

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")


def failing(kind: str, pattern: str, code: int, *, after: int = 0) -> tuple[Callable[[str], FaultyDisk], list[int]]:
    """A disk on which calls of a kind on matching names fail, once `after` of them have worked."""
    left = [after]

    def fail(what: str, name: str) -> None:
        if what == kind and pattern in name:
            if left[0] <= 0:
                raise OSError(code, os.strerror(code), name)
            left[0] -= 1

    return lambda path: FaultyDisk(path, fail), left


# -- full -------------------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_enqueue_and_keeps_what_was_there(wheel_dir: Path) -> None:
    disk, left = failing("pwrite", "journal", errno.ENOSPC, after=4)  # the zeros written ahead are one
    with Wheel(wheel_dir, env=SYSTEM.using(disk=disk)) as wheel:
        for i in range(3):
            wheel.enqueue(b"%d" % i, delay=60)
        with pytest.raises(WheelFull, match="nothing of this call was written. Try: free some space"):
            wheel.enqueue(b"refused", delay=60)
        left[0] = 1000
        # Room again: the same handle goes on, as a new writer.
        wheel.enqueue(b"3", delay=60)
        assert [m.payload for m in wheel.list()] == [b"0", b"1", b"2", b"3"]
    with Wheel(wheel_dir) as again:
        assert [m.payload for m in again.list()] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("call", ["cancel", "reschedule", "update", "ack"])
def test_on_a_full_disk_the_error_says_what_its_own_call_left_undone(wheel_dir: Path, call: str) -> None:
    disk, left = failing("pwrite", "journal", errno.ENOSPC, after=1000)
    with (
        Wheel(wheel_dir, env=SYSTEM.using(disk=disk)) as wheel,
        Keeper(wheel_dir, env=SYSTEM.using(disk=disk), background=False) as keeper,
    ):
        id_ = wheel.enqueue(b"later", delay=60, key="k")
        wheel.enqueue(b"now")
        (claimed,) = keeper.claim()
        left[0] = 0
        calls: dict[str, Callable[[], object]] = {
            "cancel": lambda: wheel.cancel(id_),
            "reschedule": lambda: wheel.reschedule(id_, delay=5),
            "update": lambda: wheel.update(key="k", payload=b"other"),
            "ack": lambda: keeper.ack(claimed),
        }
        with pytest.raises(WheelFull, match="nothing of this call was written"):
            calls[call]()
        left[0] = 1000
        assert [m.payload for m in wheel.list()] == [b"now", b"later"]


def test_a_wheel_that_cannot_be_made_on_a_full_disk_speaks_of_no_message(tmp_path: Path) -> None:
    full, _ = failing("pwrite", "", errno.ENOSPC)
    with pytest.raises(WheelFull) as caught:
        Wheel.create(tmp_path / "wheel", env=SYSTEM.using(disk=full))
    assert "of this call" not in str(caught.value)


def test_a_write_that_stops_half_way_leaves_no_half_message(wheel_dir: Path) -> None:
    code = """
    import resource, signal, sys
    from filewheel import DiskError, Wheel
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Wheel(sys.argv[1]) as wheel:
        wheel.enqueue(b"a" * 300, delay=60)
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, resource.RLIM_INFINITY))
        try:
            wheel.enqueue(b"b" * 300, delay=60)
        except DiskError as exc:
            print(type(exc).__name__)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        wheel.enqueue(b"c" * 300, delay=60)
    """
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("the file size is limited here already")
    assert run(code, wheel_dir).strip() == "WheelFull"
    with Wheel(wheel_dir) as wheel:
        assert [m.payload[:1] for m in wheel.list()] == [b"a", b"c"]


@needs_root
def test_on_a_really_full_disk_acks_and_cancels_go_on_and_room_comes_back(small: Path) -> None:
    clock = FakeClock()
    path = small / "jobs.wheel"
    with Wheel.create(path, clock=clock) as wheel:
        ids = wheel.enqueue_many([b"x" * 1000] * 500, delay=[i / 10 for i in range(500)])
        keeper = Keeper(path, clock=clock, background=False)
        keeper._housekeeper.reserve.ballast.keep()
        keeper._store.ingest()
        assert 0 < (path / "ballast").stat().st_size <= BALLAST_BYTES
        filler = small / "filler"
        with filler.open("wb", buffering=0) as hog, pytest.raises(OSError, match="No space"):
            while True:
                hog.write(bytes(65536))
        enqueued = 0
        with pytest.raises(WheelFull):
            while True:
                wheel.enqueue(b"y" * 10_000, delay=5000)
                enqueued += 1
        clock.advance(100)
        done = 0
        while batch := keeper.claim(50):
            done += keeper.ack(batch)
            clock.advance(1)
            keeper._housekeeper.step()
        assert done == 500
        filler.unlink()
        wheel.enqueue(b"z", delay=5000)
        keeper.close()
        assert not wheel.cancel(ids[0])
        assert wheel.stats().pending == enqueued + 1
    assert not verify(open_directory(path, write=False)).damage


@pytest.mark.parametrize("where", ["laps", "checkpoint"])
def test_a_keeper_is_closed_on_a_full_disk_without_an_error_and_the_next_one_deals(wheel_dir: Path, where: str) -> None:
    clock = FakeClock()
    disk, _ = failing("pwrite", where, errno.ENOSPC)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(100)], delay=[i * 60 for i in range(100)])
        keeper = Keeper(wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=disk))
        keeper.ack(keeper.claim())
        keeper.close()
        assert wheel.stats().pending == 99
        assert wheel.stats().journal_files > 0
        with Keeper(wheel_dir, clock=clock, background=False) as following:
            assert not following.claim()
        assert wheel.stats().pending == 99
        assert wheel.stats().lap_files + wheel.stats().slot_files > 0


def test_a_ballast_that_was_made_with_little_room_grows_when_there_is_more(wheel_dir: Path) -> None:
    free = 2 << 20
    (wheel_dir / "ballast").unlink()

    class Roomy(OsDisk):
        def free_bytes(self) -> int:
            return free

    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=Roomy)) as keeper:
        keeper._housekeeper.reserve.ballast.keep()
        assert (wheel_dir / "ballast").stat().st_size == free // 4
        free = 1 << 30
        keeper._housekeeper.reserve.ballast.keep()
        assert (wheel_dir / "ballast").stat().st_size == BALLAST_BYTES
        free = 0
        keeper._housekeeper.reserve.ballast.keep()
        assert (wheel_dir / "ballast").stat().st_size == BALLAST_BYTES


def test_a_deal_on_a_full_disk_changes_nothing_and_is_tried_again(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    disk, left = failing("pwrite", "laps", errno.ENOSPC)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(100)], delay=[i * 60 for i in range(100)])
        keeper = Keeper(wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=disk))
        clock.advance(31)
        keeper._housekeeper.step()
        assert "no space to deal" in caplog.text
        assert wheel.stats().pending == 100
        assert wheel.stats().slot_files == 0
        left[0] = 10_000
        clock.advance(31)
        keeper._housekeeper.step()
        assert wheel.stats().pending == 100
        assert wheel.stats().slot_files > 1
        keeper.close()


# -- failing ----------------------------------------------------------------------------------------------------------


def test_a_failed_flush_poisons_the_handle_and_is_never_tried_again(wheel_dir: Path) -> None:
    disk, left = failing("fdatasync", "journal", errno.EIO, after=2)
    wheel = Wheel(wheel_dir, env=SYSTEM.using(disk=disk))
    wheel.enqueue(b"0", delay=60)
    wheel.enqueue(b"1", delay=60)
    with pytest.raises(Poisoned, match="a flush failed .* Try: close this handle"):
        wheel.enqueue(b"2", delay=60)
    left[0] = 1000
    with pytest.raises(Poisoned):
        wheel.enqueue(b"3", delay=60)
    with pytest.raises(Poisoned):
        wheel.flush()
    wheel.close()
    with Wheel(wheel_dir) as again:
        again.enqueue(b"4", delay=60)
        assert {b"0", b"1", b"4"} <= {m.payload for m in again.list()}


def test_a_checkpoint_that_cannot_be_flushed_ends_the_keeper_and_loses_nothing(wheel_dir: Path) -> None:
    clock = FakeClock()
    disk, _ = failing("fdatasync", "checkpoint", errno.EIO)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(10)], delay=5000)
        keeper = Keeper(wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=disk))
        keeper._store.ingest()
        with pytest.raises(DiskError, match="Input/output error"):
            keeper.close()
        assert wheel.stats().pending == 10
        with Keeper(wheel_dir, clock=clock, background=False):
            pass
        assert wheel.stats().pending == 10


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_checkpoint_whose_rename_cannot_be_flushed_keeps_what_it_names(wheel_dir: Path, code: int) -> None:
    clock = FakeClock()
    broken: list[bool] = []

    def fail(what: str, name: str) -> None:
        if what == "sync_dir" and name == "" and broken:
            raise OSError(code, os.strerror(code), name)

    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(10)], delay=5000)
        keeper = Keeper(
            wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
        )
        clock.advance(31)
        broken.append(True)
        with pytest.raises(Poisoned, match="the checkpoint cannot be made durable"):
            keeper._housekeeper.step()
        broken.clear()
        keeper._fail(Poisoned("as the housekeeper's thread does"))
        keeper.close()
        assert wheel.stats().pending == 10
        assert_whole(wheel_dir)


@pytest.mark.parametrize("pattern", ["slot", "lap", "checkpoint"])
def test_too_many_open_files_are_no_damage(wheel_dir: Path, pattern: str) -> None:
    clock = FakeClock()
    short: list[bool] = []

    def fail(what: str, name: str) -> None:
        if what == "open" and name.endswith(pattern) and short:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"%d" % i for i in range(4)], delay=[40, 40, 5000, 5000])
        with Keeper(wheel_dir, clock=clock, background=False) as keeper:
            clock.advance(31)
            keeper._housekeeper.step()
        disk = lambda path: FaultyDisk(path, fail)  # noqa: E731
        clock.advance(5000)
        short.append(True)
        with (
            Wheel(wheel_dir, clock=clock, env=SYSTEM.using(disk=disk)) as again,
            pytest.raises(DiskError, match="too many open files"),
        ):
            list(again.list())
        if pattern == "checkpoint":
            with pytest.raises(DiskError, match="too many open files"):
                Keeper(wheel_dir, wait=False, clock=clock, background=False, env=SYSTEM.using(disk=disk))
            short.clear()
        with Keeper(wheel_dir, wait=False, clock=clock, background=False, env=SYSTEM.using(disk=disk)) as keeper:
            if short:
                with pytest.raises(DiskError, match="too many open files"):
                    keeper.claim()
                short.clear()
            assert len(keeper.claim()) == 4


@pytest.mark.parametrize(
    "look",
    [
        lambda w: list(w.list()),
        lambda w: w.peek(),
        lambda w: w.get(MessageId.make(5000, 1, 1)),
        lambda w: w.stats(),
        lambda w: w.histogram([0, 2e9]),
        lambda w: w.topics(),
        lambda w: w.cancel(MessageId.make(5000, 1, 1)),
        lambda w: verify(w._dir),
    ],
)
def test_a_disk_that_refuses_to_read_is_a_disk_error(wheel_dir: Path, look: Callable[[Wheel], object]) -> None:
    class Refusing(OsDisk):
        bad = False

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            name = os.readlink(f"/proc/self/fd/{fd}")
            if self.bad and name.endswith((".log", ".slot", ".lap")):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, size, offset)

    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"x"] * 3, delay=[10, 5000, 90_000])
        Keeper(wheel_dir, background=False).close()
    refusing = Refusing(os.fspath(wheel_dir))
    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda path: refusing)) as wheel:
        id_ = wheel.enqueue(b"y", delay=60)
        with wheel.snapshot() as snapshot:
            refusing.bad = True
            with pytest.raises(DiskError, match="Input/output error"):
                snapshot.find([id_])
        with pytest.raises(DiskError, match="Input/output error"):
            look(wheel)


def test_a_flush_that_failed_in_the_background_is_told_by_close(wheel_dir: Path) -> None:
    disk, _ = failing("fdatasync", "journal", errno.EIO)
    wheel = Wheel(wheel_dir, env=SYSTEM.using(disk=disk))
    wheel.enqueue(b"0", delay=60, sync=0.001)
    assert wheel._journal is not None
    assert wheel._journal.appender._flusher is not None
    wheel._journal.appender._flusher.join(120)
    with pytest.raises(Poisoned, match="a flush failed"):
        wheel.close()


@pytest.mark.parametrize("kind", ["open", "pwrite"])
def test_closing_a_producer_that_cannot_tidy_up_is_no_error(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filewheel.laps.tidy, "TIDY_SEGMENTS", 1)
    disk, _ = failing(kind, "keeper.lock", errno.ENOSPC)
    wheel = Wheel(wheel_dir, env=SYSTEM.using(disk=disk))
    wheel.enqueue(b"0", delay=60)
    wheel.close()
    with Wheel(wheel_dir) as again:
        assert [m.payload for m in again.list()] == [b"0"]


@pytest.mark.parametrize("what", ["pread", "is_free"])
def test_a_keeper_that_cannot_start_leaves_no_file_open(wheel_dir: Path, what: str) -> None:
    class Bad(OsDisk):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if what == "pread" and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().pread(fd, size, offset)

        def is_free(self, fd: int) -> bool:
            if what == "is_free" and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            return super().is_free(fd)

    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)
    with pytest.raises(DiskError):
        Keeper(wheel_dir, wait=False, env=SYSTEM.using(disk=Bad))
    still = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            still.append(os.readlink(f"/proc/self/fd/{fd}"))
    assert not [name for name in still if str(wheel_dir) in name]
    Keeper(wheel_dir, wait=False).close()


def test_a_journal_that_cannot_be_opened_once_is_not_passed_over(wheel_dir: Path) -> None:
    clock = FakeClock()
    bad: list[bool] = []

    def fail(what: str, name: str) -> None:
        if what == "open" and name.endswith(".log") and bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", delay=2)
    with Keeper(
        wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))
    ) as keeper:
        keeper._store.handles.close()
        bad.append(True)
        with pytest.raises(DiskError, match="Input/output error"):
            keeper.claim()
        bad.clear()
        clock.advance(2)
        assert [m.payload for m in keeper.claim()] == [b"x"]


def test_a_keeper_whose_journal_cannot_be_flushed_stops_firing_and_says_why(wheel_dir: Path) -> None:
    clock = FakeClock()
    disk, _ = failing("fdatasync", "journal", errno.EIO)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x")
        keeper = Keeper(wheel_dir, clock=clock, background=False, env=SYSTEM.using(disk=disk))
        keeper.ack(keeper.claim())
        with pytest.raises(Poisoned):
            keeper._housekeeper.step()
        keeper._fail(Poisoned("a flush failed"))
        with pytest.raises(Poisoned):
            keeper.claim()
        keeper.close()


# -- read-only, owner, network ---------------------------------------------------------------------------------


@needs_root
def test_a_read_only_mount_can_be_looked_at_and_not_written(small: Path) -> None:
    path = small / "jobs.wheel"
    with Wheel.create(path) as wheel:
        id_ = wheel.enqueue(b"x", delay=60)
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    with Wheel(path) as wheel:
        assert [m.payload for m in wheel.list()] == [b"x"]
        assert wheel.get(id_) is not None
        assert wheel.stats().pending == 1
        assert not verify(open_directory(path, write=False)).damage
        with pytest.raises(ReadOnly, match="cannot be written .*Read-only file system.* Try: check the mount"):
            wheel.enqueue(b"y")
        with pytest.raises(ReadOnly):
            wheel.cancel(id_)
    with pytest.raises(ReadOnly):
        Keeper(path)


def test_a_directory_that_may_not_be_written_says_so(wheel_dir: Path) -> None:
    disk, _ = failing("open", "journal", errno.EACCES)
    with Wheel(wheel_dir, env=SYSTEM.using(disk=disk)) as wheel, pytest.raises(ReadOnly, match="access was refused"):
        wheel.enqueue(b"x")


@needs_root
def test_another_users_wheel_is_not_written(wheel_dir: Path) -> None:
    os.chown(wheel_dir, 12345, -1)
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 0
        with pytest.raises(Unsafe, match=r"belongs to user 12345, you are 0. Try: run as its owner"):
            wheel.enqueue(b"x")
    with pytest.raises(Unsafe):
        Keeper(wheel_dir)


def _administer(path: Path, backup: Path) -> None:
    """Call all that writes without a writer's journal; each must be refused."""
    with Wheel(path) as wheel:
        for call in (
            wheel.pause,
            lambda: wheel.pause(topic="a"),
            lambda: wheel.resume(everything=True),
            lambda: add_backup(path, backup),
        ):
            with pytest.raises(Unsafe):
                call()


@needs_root
def test_a_wheel_of_another_user_is_not_paused_and_joins_no_set(wheel_dir: Path, tmp_path: Path) -> None:
    os.chown(wheel_dir, 12345, -1)
    before = sorted(path.name for path in wheel_dir.iterdir())
    _administer(wheel_dir, tmp_path / "backup.wheel")
    assert sorted(path.name for path in wheel_dir.iterdir()) == before


def test_a_directory_that_others_may_write_is_not_paused_and_joins_no_set(wheel_dir: Path, tmp_path: Path) -> None:
    wheel_dir.chmod(0o777)
    before = sorted(path.name for path in wheel_dir.iterdir())
    _administer(wheel_dir, tmp_path / "backup.wheel")
    assert sorted(path.name for path in wheel_dir.iterdir()) == before
    wheel_dir.chmod(0o700)


def test_a_directory_below_that_others_may_enter_and_write_is_refused(wheel_dir: Path) -> None:
    (wheel_dir / "journal").chmod(0o777)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)  # nobody else can enter the wheel
    wheel_dir.chmod(0o755)
    with Wheel(wheel_dir) as wheel, pytest.raises(Unsafe, match="journal: others may write .* `chmod go-w .*journal`"):
        wheel.enqueue(b"x")
    (wheel_dir / "journal").chmod(0o700)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)


def test_a_directory_that_others_may_write_is_refused_with_the_command_that_mends_it(wheel_dir: Path) -> None:
    wheel_dir.chmod(0o777)
    with Wheel(wheel_dir) as wheel, pytest.raises(Unsafe, match="others may write .* Try: `chmod go-w"):
        wheel.enqueue(b"x")
    wheel_dir.chmod(0o700)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=60)


def test_a_network_file_system_is_refused_unless_forced(
    wheel_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filewheel.disk.directory, "file_system_type", lambda path: "nfs4")
    with Wheel(wheel_dir) as wheel, pytest.raises(NetworkFileSystem, match=r"nfs4.* Try: use a local disk"):
        wheel.enqueue(b"x")
    with pytest.raises(NetworkFileSystem):
        Keeper(wheel_dir)
    with pytest.raises(NetworkFileSystem):
        Wheel.create(tmp_path / "other")
    with Wheel(wheel_dir, force=True) as wheel:
        wheel.enqueue(b"x", delay=60)
    Keeper(wheel_dir, force=True).close()


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        path = tmp_path / "w"
        with Wheel.create(path) as wheel:
            wheel.enqueue(b"x", delay=60)
            with Keeper(path):
                pass
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o700
    for item in path.rglob("*"):
        assert item.stat().st_mode & 0o077 == 0, item
    assert_whole(path)


# -- interrupted ------------------------------------------------------------------------------------------------------


def interrupted(kind: str, *, after: int) -> Callable[[str], FaultyDisk]:
    """A disk on which Ctrl-C arrives once, in a call of this kind on a journal."""
    left = [after]

    def fail(what: str, name: str) -> None:
        if what == kind and "journal" in name:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    return lambda path: FaultyDisk(path, fail)


def test_ctrl_c_in_a_flush_does_not_leave_the_others_waiting_for_ever(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, env=SYSTEM.using(disk=interrupted("fdatasync", after=2))) as wheel:
        wheel.enqueue(b"0", delay=60)
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"perhaps", delay=60)
        wheel.enqueue(b"1", delay=60)
    with Wheel(wheel_dir) as again:
        assert {m.payload for m in again.list()} >= {b"0", b"1"}


@pytest.mark.parametrize("kind", ["pwrite", "pwritten"])
@pytest.mark.parametrize("after", [3, 4], ids=["zeros", "frame"])
def test_ctrl_c_in_a_write_costs_no_other_message_though_the_keeper_read_what_was_written(
    wheel_dir: Path, kind: str, after: int
) -> None:
    with Keeper(wheel_dir, background=False) as keeper:
        with Wheel(wheel_dir, env=SYSTEM.using(disk=interrupted(kind, after=after))) as wheel:
            wheel.enqueue(b"0")
            wheel.enqueue(b"1")
            with pytest.raises(KeyboardInterrupt):
                wheel.enqueue(b"perhaps")
            seen = [m.payload for m in keeper.claim()]
            wheel.enqueue(b"2")
            wheel.enqueue(b"3")
            seen += [m.payload for m in keeper.claim()]
        assert [p for p in seen if p != b"perhaps"] == [b"0", b"1", b"2", b"3"]
        keeper.ack(list(keeper._head.claims))


def test_a_keeper_starts_on_a_disk_that_is_full(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"0")
    disk, left = failing("pwrite", "", errno.ENOSPC)
    with Keeper(wheel_dir, env=SYSTEM.using(disk=disk), background=False) as keeper:
        with pytest.raises(WheelFull, match="no message is handed out"):
            keeper.claim()
        left[0] = 1000
        assert [m.payload for m in keeper.claim()] == [b"0"]
        keeper.ack(list(keeper._head.claims))


def test_tidying_up_on_a_full_disk_does_not_fail_the_close_that_led_to_it(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.laps.tidy.TIDY_SEGMENTS", 1)
    disk, _ = failing("pwrite", "keeper.lock", errno.ENOSPC)
    wheel = Wheel(wheel_dir, env=SYSTEM.using(disk=disk))
    wheel.enqueue(b"0", delay=60)
    wheel.close()


# -- file systems ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs"])
def test_a_directory_that_stays_open_shows_what_others_have_made_since(kind: str) -> None:
    if lacks(kind):
        pytest.skip(str(lacks(kind)))
    with image(kind, sizes(kind)) as mounted:
        disk = OsDisk(str(mounted.mount_point))
        disk.mkdir("journal")
        for i in range(3):
            assert len(disk.listdir("journal")) == i
            (mounted.mount_point / "journal" / str(i)).touch()
        disk.release()


def test_an_enqueue_into_a_journal_that_was_deleted_meanwhile_is_not_confirmed(tmp_path: Path) -> None:
    wheel = Wheel.create(tmp_path / "jobs.wheel")
    wheel.enqueue(b"a", delay=60)
    shutil.rmtree(tmp_path / "jobs.wheel")
    with pytest.raises(Poisoned, match="removed while it was in use"):
        wheel.enqueue(b"b", delay=60)


@pytest.mark.damages
def test_a_wheel_whose_journals_have_gone_with_their_directory_is_a_disk_error_to_whoever_reads_it(
    tmp_path: Path,
) -> None:
    with Wheel.create(tmp_path / "wheel") as wheel:
        id_ = wheel.enqueue(b"x", delay=60)
    with Wheel(tmp_path / "wheel") as wheel:
        lose(tmp_path / "wheel" / "journal")
        with pytest.raises(DiskError, match="No such file"):
            list(wheel.list())
        with pytest.raises(DiskError, match="No such file"), Snapshot(wheel._dir) as snapshot:
            snapshot.find([id_])
