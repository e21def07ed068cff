"""What need not survive a power cut is written by a pen: one call, and the file holds it."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import Closed, DiskError, Poisoned, Reentered, WheelFull
from filewheel.format.ids import SEQ_END, IdSource
from filewheel.journal.journal import Journal
from filewheel.journal.segment import Segment
from filewheel.journal.writer import Writer
from filewheel.native.compiled import make_pen
from filewheel.roster.fence import Fence
from tests.conftest import assert_whole
from tests.support import REPO, FaultyDisk

pytestmark = pytest.mark.skipif(make_pen is None, reason="the loops in C were not built: `apt install gcc python3-dev`")


def played(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a program that may be killed."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], cwd=REPO, capture_output=True, text=True, check=False, timeout=60
    )


def journal_of(wheel: Wheel) -> Journal:
    assert wheel._journal is not None
    return wheel._journal


def has_pen(wheel: Wheel) -> bool:
    return journal_of(wheel).appender.lender._pen is not None


@pytest.mark.parametrize("sync", ["never", 0.02])
def test_what_a_pen_wrote_is_there_at_once_for_everyone(wheel_dir: Path, sync: str | float) -> None:
    count = 3000
    with Wheel(wheel_dir, sync=sync) as wheel, Wheel(wheel_dir) as other, Keeper(wheel_dir) as keeper:
        ids = [wheel.enqueue(b"%d" % n + bytes(1000), delay=0 if n % 2 else 600) for n in range(count)]
        assert has_pen(wheel) or sync != "never"
        assert other.get(ids[0]) is not None
        fired: list[str] = []
        while batch := keeper.claim(1000):
            fired += batch.ids
            keeper.ack(batch)
        assert fired == sorted(ids[1::2])
        assert [m.id for m in other.list()] == sorted(ids[::2])
    assert_whole(wheel_dir)


def test_a_flush_takes_what_a_pen_wrote_before_with_it(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"by the journal", delay=60)
        wheel.enqueue(b"by a pen", delay=60)
        assert has_pen(wheel)
        wheel.flush()
        appender = journal_of(wheel).appender
        assert appender._durable == appender.number == 2
    assert_whole(wheel_dir)


def test_what_a_pen_and_a_journal_write_one_by_one_and_in_batches_all_stands_in_one_file(wheel_dir: Path) -> None:
    rng = random.Random(1)
    expected: list[bytes] = []
    with Wheel(wheel_dir) as wheel:
        for n in range(1500):
            sync = rng.choice(["never", "never", "never", 0.5, "always" if n % 50 == 0 else "never"])
            if rng.random() < 0.05:
                many = [b"%d-%d" % (n, i) + bytes(rng.choice([0, 1000, 40_000])) for i in range(rng.randrange(1, 40))]
                wheel.enqueue_many(many, delay=60, sync=sync)
                expected += many
            else:
                expected.append(b"%d" % n + bytes(rng.choice([0, 0, 500, 200_000 if n % 20 == 0 else 0])))
                wheel.enqueue(expected[-1], delay=60, sync=sync)
        assert sorted(m.payload for m in wheel.list()) == sorted(expected)
    assert_whole(wheel_dir)


def test_a_process_that_is_killed_leaves_all_that_its_pen_wrote(wheel_dir: Path) -> None:
    code = """
import os, signal, sys
from filewheel import Wheel
wheel = Wheel(sys.argv[1], sync="never")
for n in range(7000):
    wheel.enqueue(b"%d" % n, delay=600)
assert wheel._journal.appender.lender._pen
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert played(code, wheel_dir).returncode == -signal.SIGKILL
    with Wheel(wheel_dir) as wheel:
        assert sorted(int(m.payload) for m in wheel.list()) == list(range(7000))
    assert_whole(wheel_dir)


SIGNALS = {
    "as they are": "",
    "all blocked": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "a handler for SIGBUS": "signal.signal(signal.SIGBUS, lambda *_: None)",
    "SIGBUS reset": "signal.signal(signal.SIGBUS, signal.SIG_DFL)",
}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
@pytest.mark.parametrize("signals", SIGNALS)
def test_on_a_full_disk_an_enqueue_is_refused_with_an_error_and_what_came_before_is_kept(
    tmp_path: Path, signals: str
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    code = f"""
import os, signal, sys
from filewheel import Wheel, WheelFull
path = sys.argv[1] + "/jobs.wheel"
wheel = Wheel.create(path, sync="never")
wheel.enqueue(b"0", delay=600)
wheel.enqueue(b"1", delay=600)
assert wheel._journal.appender.lender._pen
{SIGNALS[signals]}
with open(sys.argv[1] + "/hog", "wb", buffering=0) as hog:
    try:
        while True:
            hog.write(bytes(4096))
    except OSError:
        pass
done = 2
try:
    while True:
        wheel.enqueue(b"%d" % done + bytes(100), delay=600)
        done += 1
except WheelFull as exc:
    print(done)
os.unlink(sys.argv[1] + "/hog")
wheel.enqueue(b"%d" % done, delay=600)
wheel.close()
"""
    try:
        done = played(code, small)
        assert done.returncode == 0, (done.returncode, done.stderr)
        with Wheel(small / "jobs.wheel") as wheel:
            kept = sorted(int(m.payload.rstrip(b"\0")) for m in wheel.list())
        assert kept == list(range(int(done.stdout) + 1))
        assert_whole(small / "jobs.wheel")
    finally:
        subprocess.run(["umount", small], check=False)


def test_the_handlers_of_signals_stay_those_of_the_program(wheel_dir: Path) -> None:
    before = {n: signal.getsignal(n) for n in signal.valid_signals()}
    status = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Sig")]
    with Wheel(wheel_dir, sync="never") as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        assert has_pen(wheel)
        assert status == [s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("Sig")]
    assert before == {n: signal.getsignal(n) for n in signal.valid_signals()}
    assert_whole(wheel_dir)


class Torn(OsDisk):
    """A real disk whose pens fail at a chosen put, after a half of the frame or all of it was written."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.fails_with = 0
        self.fails_at = 0.0

    def pen(self, fd: int, *where: Any) -> Any:
        assert make_pen is not None
        return TornPen(self, fd, make_pen(fd, *where))


class TornPen:
    def __init__(self, disk: Torn, fd: int, inner: Any) -> None:
        self.disk, self.fd, self.inner = disk, fd, inner
        self.has_failed = False

    def put(self, *args: Any) -> Any:
        if not self.disk.fails_with:
            return self.inner.put(*args)
        code, self.disk.fails_with = self.disk.fails_with, 0
        size = os.fstat(self.fd).st_size
        offset = self.inner.end()[1]
        assert make_pen is not None
        whole = make_pen(self.fd, bytes(16), 0, 9, 0, offset, 1 << 20, 0, 0)
        whole.put(*args)
        os.ftruncate(self.fd, round(size + (whole.end()[1] - size) * self.disk.fails_at))
        self.has_failed = True
        raise OSError(code, os.strerror(code))

    def end(self) -> Any:
        return *self.inner.end()[:3], self.has_failed


@pytest.mark.parametrize("part", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(
    ("code", "error"), [(errno.EIO, DiskError), (errno.ENOSPC, WheelFull), (errno.EDQUOT, WheelFull)]
)
def test_a_write_of_a_pen_that_fails_is_an_error_of_its_call_and_what_comes_later_is_kept(
    wheel_dir: Path, code: int, error: type[DiskError], part: float
) -> None:
    disks: list[Torn] = []
    with Wheel(
        wheel_dir, sync="never", env=SYSTEM.using(disk=lambda path: disks.append(Torn(path)) or disks[-1])
    ) as wheel:  # type: ignore[func-returns-value]
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        assert has_pen(wheel)
        writer = journal_of(wheel).writer
        disks[0].fails_with, disks[0].fails_at = code, part
        with pytest.raises(error) as raised:
            wheel.enqueue(b"refused", delay=60)
        assert raised.value.errno == code
        for n in range(3, 6):
            wheel.enqueue(b"%d" % n, delay=60)
        assert journal_of(wheel).writer != writer
        wheel.flush()
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(6)]
    assert_whole(wheel_dir)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/dev/full is Linux's")
def test_a_pen_whose_file_takes_nothing_raises_once_and_has_ended() -> None:
    assert make_pen is not None
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        pen = make_pen(fd, bytes(16), 5, 9, 0, 0, 4096, 0, 0)
        with pytest.raises(OSError, match="space") as raised:
            pen.put(1, 1, b"\xa0\x80\0", b"x")
        assert raised.value.errno == errno.ENOSPC
        assert pen.put(1, 1, b"\xa0\x80\0", b"x") is None
        assert pen.end() == pen.end() == (6, 0, 0, True)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("low", "offset", "end"), [(bytes(15), 0, 4096), (bytes(16), 4096, 4095), (bytes(16), 0, 1 << 63)]
)
def test_a_pen_for_what_is_no_part_of_a_file_is_refused(low: bytes, offset: int, end: int) -> None:
    assert make_pen is not None
    with pytest.raises(ValueError, match="16 bytes of an id"):
        make_pen(1, low, 0, 9, 0, offset, end, 0, 0)


def test_what_a_pen_writes_after_zeros_were_given_back_lies_in_the_file(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        wheel.enqueue(b"1", delay=60)
        appender = journal_of(wheel).appender
        with appender.lock:
            segment = appender.lender.writer.segment
        assert segment is not None
        segment.cut_off()  # as when there was no room for zeros
        for n in range(2, 5):
            wheel.enqueue(b"%d" % n, delay=60)
            assert os.stat(segment.place).st_size >= segment.offset
        assert has_pen(wheel)
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(5)]
    assert_whole(wheel_dir)


class Interrupted:
    """A pen whose call is followed by Ctrl-C, once."""

    def __init__(self, inner: Any, call: str) -> None:
        self.inner = inner
        self.call = call

    def _done(self, call: str, *args: Any) -> Any:
        result = getattr(self.inner, call)(*args)
        if self.call == call:
            self.call = ""
            raise KeyboardInterrupt
        return result

    def put(self, *args: Any) -> Any:
        return self._done("put", *args)

    def end(self) -> Any:
        return self._done("end")


@pytest.mark.parametrize("call", ["put", "end"])
def test_ctrl_c_after_a_pen_has_written_or_was_taken_back_costs_nothing(wheel_dir: Path, call: str) -> None:
    with Wheel(wheel_dir, sync="never") as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"0")
        wheel.enqueue(b"1")
        journal = journal_of(wheel)
        lender = journal.appender.lender
        assert lender._pen is not None
        lender._pen = pen = Interrupted(lender._pen, call)
        lender.put = pen.put  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"2")
            wheel.enqueue(b"3", sync="always")
        fired = [m.payload for m in keeper.claim()]
        wheel.enqueue(b"4")
        wheel.enqueue_many([b"5", b"6"])
        fired += [m.payload for m in keeper.claim()]
        assert journal.appender.number == 5
    assert fired == [b"0", b"1", b"2", b"4", b"5", b"6"]
    assert_whole(wheel_dir)


def test_ctrl_c_while_a_pen_is_lent_leaves_one_that_nobody_puts_with(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(disk: OsDisk, *where: Any) -> Any:
        assert make_pen is not None
        make_pen(*where)
        raise KeyboardInterrupt

    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        wheel.enqueue(b"1", delay=60)
        journal = journal_of(wheel)
        assert journal.appender.number == 2  # and the pen is taken back
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(OsDisk, "pen", interrupted)
            wheel.enqueue(b"2", delay=60)
        wheel.enqueue(b"3", delay=60)
        assert journal.appender.number == 3
        assert [m.payload for m in wheel.list()] == [b"0", b"1", b"3"]
    assert_whole(wheel_dir)


def test_threads_that_write_with_a_pen_beside_others_that_flush_and_rotate_leave_each_message_once(
    wheel_dir: Path,
) -> None:
    made: list[list[str]] = [[] for _ in range(6)]
    with Wheel(wheel_dir, sync="never") as wheel:
        journal = Journal(wheel._dir, segment_bytes=200_000, fence=Fence(wheel._dir))
        wheel._journal = journal

        def write(n: int) -> None:
            for i in range(3000):
                made[n].append(wheel.enqueue(b"%d-%d" % (n, i), delay=600))

        def disturb(n: int) -> None:
            rng = random.Random(n)
            for _ in range(150):
                kind = rng.randrange(6)
                if kind == 0:
                    made[n] += wheel.enqueue_many([b"many"] * 5, delay=600)
                elif kind == 1:
                    wheel.flush()
                elif kind == 2:
                    made[n].append(wheel.enqueue(b"now", delay=600, sync="always"))
                elif kind == 3:
                    made[n].append(wheel.enqueue(b"soon", delay=600, sync=0.001))
                elif kind == 4:
                    journal.rotate()
                else:
                    assert wheel.cancel(made[n].pop()) if made[n] else True

        works = [threading.Thread(target=write if n < 4 else disturb, args=(n,)) for n in range(6)]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            for work in works:
                work.start()
            for work in works:
                work.join()
        finally:
            sys.setswitchinterval(interval)
        expected = sorted(id_ for ids in made for id_ in ids)
        assert [m.id for m in wheel.list()] == expected
    assert_whole(wheel_dir)


def test_garbage_that_enqueues_when_it_is_collected_in_an_enqueue_gets_a_place_of_its_own(wheel_dir: Path) -> None:
    made: list[str] = []
    refused: list[int] = []

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                made.append(wheel.enqueue(b"garbage", delay=600))
            except Reentered:  # not in a put of the pen: in one of the first
                refused.append(1)

    threshold = gc.get_threshold()
    with Wheel(wheel_dir, sync="never") as wheel:
        try:
            gc.set_threshold(3, 1, 1)
            for n in range(300):
                if n % 2:
                    Garbage()
                made.append(wheel.enqueue(b"%d" % n, delay=600))
        finally:
            gc.set_threshold(*threshold)
        gc.collect()
        assert len(made) + len(refused) == 450
        assert len(refused) < 10
        assert [m.id for m in wheel.list()] == sorted(made)
    assert_whole(wheel_dir)


def test_a_pen_stops_where_the_sequence_of_its_writer_does(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        journal = journal_of(wheel)
        first = journal.writer
        journal.appender.lender.writer.ids.seq = SEQ_END - 3
        made = [wheel.enqueue(b"%d" % n, delay=60) for n in range(1, 8)]
        assert journal.writer != first
        assert len(set(made)) == 7
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(8)]
    assert_whole(wheel_dir)


def test_after_a_flush_that_failed_nothing_is_written_though_a_pen_was_lent_meanwhile(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Wheel(wheel_dir, sync="never")
    for n in range(3):
        wheel.enqueue(b"%d" % n, delay=60)

    def fails(*_: object) -> None:
        another = threading.Thread(target=wheel.enqueue, args=(b"3",), kwargs={"delay": 60})
        another.start()
        another.join()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Segment, "flush", fails)
    with pytest.raises(Poisoned):
        wheel.flush()
    with pytest.raises(Poisoned):
        wheel.enqueue(b"refused", delay=60)
    wheel.close()
    with Wheel(wheel_dir) as wheel:
        assert [m.payload for m in wheel.list()] == [b"0", b"1", b"2", b"3"]


def test_a_handle_that_was_closed_has_lent_no_pen(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        journal = journal_of(wheel)
        assert journal.appender.lender._pen is not None
        journal.close()
        with pytest.raises(Closed):
            journal.put(1, 1, b"", b"refused", sync="never")
    assert_whole(wheel_dir)


def test_who_waited_for_a_flush_takes_back_the_pen_that_was_lent_meanwhile(wheel_dir: Path) -> None:
    class Waits:
        """Waits, and others get the lock."""

        def wait(self, timeout_s: float | None = None) -> None:
            appender.lock.release()
            appender._flushing = 0
            journal.rotate()
            for n in range(3, 6):
                wheel.enqueue(b"%d" % n, delay=60)
            appender.lock.acquire()

        def notify_all(self) -> None:
            pass

    with Wheel(wheel_dir, sync="never") as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        journal = journal_of(wheel)
        appender = journal.appender
        changed, appender._changed = appender._changed, Waits()  # type: ignore[assignment]
        appender._flushing = -1
        # The next has to go into another segment, and so to wait.
        appender._segment_bytes = 1000
        with appender.lock:
            appender.lender.writer.free_to = 0
        wheel.enqueue(b"6" + bytes(500), delay=60, sync="always")
        appender._changed = changed
        assert sorted(m.payload[:1] for m in wheel.list()) == [b"%d" % n for n in range(7)]
    assert_whole(wheel_dir)


def test_the_lender_alone_holds_the_writer_and_takes_it_back_before_it_returns_it(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        appender = journal_of(wheel).appender
        for owner in (wheel, journal_of(wheel), appender):
            kept = [name for name, value in vars(owner).items() if isinstance(value, (Writer, Segment, IdSource))]
            assert not kept, f"{owner} would read them while a pen writes"
        lender = appender.lender
        assert lender._pen is not None
        with pytest.raises(AssertionError, match="the lock guards the writer"):
            lender.writer  # noqa: B018
        with appender.lock:
            assert lender.writer.number == lender.writer.written == 3
        assert lender._pen is None
        assert lender.put(1, 1, b"", b"") is None
    assert_whole(wheel_dir)


def test_a_disk_that_sees_each_write_is_not_passed_by(wheel_dir: Path) -> None:
    seen: list[str] = []
    disk = lambda path: FaultyDisk(path, lambda kind, name: seen.append(kind))  # noqa: E731
    with Wheel(wheel_dir, sync="never", env=SYSTEM.using(disk=disk)) as wheel:
        seen.clear()
        wheel.enqueue(b"1", delay=60)
        wheel.enqueue(b"2", delay=60)
        assert seen.count("pwrite") == 2
        assert not has_pen(wheel)


def test_where_there_is_no_pen_the_journal_writes(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.disk.disk.make_pen", None)
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"1", delay=60)
        wheel.enqueue(b"2", delay=60)
        assert not has_pen(wheel)
        assert [m.payload for m in wheel.list()] == [b"1", b"2"]
    assert_whole(wheel_dir)
