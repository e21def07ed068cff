"""What need not survive a power cut is stored in mapped memory: the file holds it, whatever becomes of the process."""

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
from filewheel.disk import OsDisk
from filewheel.errors import Closed, Poisoned
from filewheel.journal import Journal
from filewheel.segment import MAP_BYTES, Segment
from filewheel.speed import Map
from filewheel.writer import SEQ_END
from tests.conftest import assert_whole
from tests.support import REPO, FaultyDisk

pytestmark = pytest.mark.skipif(Map is None, reason="the loops in C were not built, or not on Linux")


def played(code: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run a program that may be killed."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], cwd=REPO, capture_output=True, text=True, check=False, timeout=60
    )


def is_mapped(wheel: Wheel) -> bool:
    assert wheel._journal is not None
    segment = wheel._journal._segment
    return segment is not None and segment.mapped_to > 0


@pytest.mark.parametrize("sync", ["never", 0.02])
def test_what_is_stored_is_there_at_once_for_everyone_over_many_windows(wheel_dir: Path, sync: str | float) -> None:
    count = 3 * MAP_BYTES // 1200
    with Wheel(wheel_dir, sync=sync) as wheel, Wheel(wheel_dir) as other, Keeper(wheel_dir) as keeper:
        ids = [wheel.enqueue(b"%d" % n + bytes(1000), delay=0 if n % 2 else 600) for n in range(count)]
        assert is_mapped(wheel)
        assert other.get(ids[0]) is not None
        fired: list[str] = []
        while batch := keeper.claim(1000):
            fired += batch.ids
            keeper.ack(batch)
        assert fired == sorted(ids[1::2])
        assert [m.id for m in other.list()] == sorted(ids[::2])
    assert_whole(wheel_dir)


def test_a_segment_that_is_let_go_ends_where_its_last_frame_ends(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"written, as the first of a file is", delay=60)
        wheel.enqueue(b"stored", delay=60)
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        assert os.stat(segment.place).st_size > MAP_BYTES
        wheel._journal.rotate()
        assert os.stat(segment.place).st_size == segment.offset < 1000


def test_a_flush_takes_what_was_stored_before_with_it(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"written", delay=60)
        wheel.enqueue(b"stored", delay=60)
        wheel.flush()
        assert wheel._journal is not None
        assert wheel._journal.synced == wheel._journal.number == 2
    assert_whole(wheel_dir)


def test_stored_and_written_one_by_one_and_in_batches_all_stand_in_one_file(wheel_dir: Path) -> None:
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


def test_a_process_that_is_killed_leaves_all_that_it_had_stored(wheel_dir: Path) -> None:
    code = """
import os, signal, sys
from filewheel import Wheel
wheel = Wheel(sys.argv[1], sync="never")
for n in range(7000):
    wheel.enqueue(b"%d" % n, delay=600)
assert wheel._journal._segment.mapped_to
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert played(code, wheel_dir).returncode == -signal.SIGKILL
    with Wheel(wheel_dir) as wheel:
        assert sorted(int(m.payload) for m in wheel.list()) == list(range(7000))
    assert_whole(wheel_dir)


@pytest.mark.damages
@pytest.mark.parametrize("faulthandler", ["", "import faulthandler; faulthandler.enable()"])
def test_a_page_that_is_not_there_is_written_instead_and_nobody_is_killed(wheel_dir: Path, faulthandler: str) -> None:
    code = f"""
import os, sys
{faulthandler}
from filewheel import Wheel
with Wheel(sys.argv[1], sync="never") as wheel:
    wheel.enqueue(b"0", delay=600)
    wheel.enqueue(b"1", delay=600)
    segment = wheel._journal._segment
    assert segment.mapped_to
    os.truncate(segment.place, 0)
    for n in range(2, 40):
        wheel.enqueue(b"%d" % n + bytes(500), delay=600)
print("alive")
"""
    done = played(code, wheel_dir)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
    with Wheel(wheel_dir) as wheel:
        assert sorted(int(m.payload.rstrip(b"\0")) for m in wheel.list()) == list(range(2, 40))


@pytest.mark.damages
def test_a_file_of_which_a_page_could_not_be_had_is_written_from_then_on(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=600)
        wheel.enqueue(b"1", delay=600)
        assert is_mapped(wheel)
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        os.truncate(segment.place, 0)
        for n in range(2, 5):
            wheel.enqueue(b"%d" % n, delay=600)
            assert not is_mapped(wheel)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
def test_on_a_full_disk_an_enqueue_that_is_stored_is_refused_with_an_error_and_what_came_before_is_kept(
    tmp_path: Path,
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", small], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    code = """
import os, sys
from filewheel import Wheel, WheelFull
path = sys.argv[1] + "/jobs.wheel"
wheel = Wheel.create(path, sync="never")
wheel.enqueue(b"0", delay=600)
wheel.enqueue(b"1", delay=600)
assert wheel._journal._segment.mapped_to
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
        assert done.returncode == 0, done.stderr
        with Wheel(small / "jobs.wheel") as wheel:
            kept = sorted(int(m.payload.rstrip(b"\0")) for m in wheel.list())
        assert kept == list(range(int(done.stdout) + 1))
        assert_whole(small / "jobs.wheel")
    finally:
        subprocess.run(["umount", small], check=False)


@pytest.mark.parametrize("faulthandler", ["", "before", "after"])
def test_a_bus_error_of_others_ends_the_process_as_it_would_have(wheel_dir: Path, faulthandler: str) -> None:
    enable = "import faulthandler; faulthandler.enable()"
    code = f"""
import mmap, os, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
{enable if faulthandler == "before" else ""}
from filewheel import Wheel
wheel = Wheel(sys.argv[1], sync="never")
wheel.enqueue(b"0", delay=600)
wheel.enqueue(b"1", delay=600)
assert wheel._journal._segment.mapped_to
{enable if faulthandler == "after" else ""}
with open(sys.argv[2], "w+b") as file:
    file.truncate(8192)
    theirs = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
print("here", flush=True)
theirs[5000]
print("never")
"""
    done = played(code, wheel_dir, wheel_dir / "theirs")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "here\n")
    assert ("Bus error" in done.stderr) == bool(faulthandler)
    (wheel_dir / "theirs").unlink()


def test_what_is_stored_after_zeros_were_given_back_lies_in_the_file(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        wheel.enqueue(b"1", delay=60)
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        wheel._journal._recall()
        segment.cut_off()  # as when there was no room for zeros
        for n in range(2, 5):
            wheel.enqueue(b"%d" % n, delay=60)
            assert os.stat(segment.place).st_size >= segment.offset
        assert is_mapped(wheel)
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(5)]


def journal_of(wheel: Wheel) -> Journal:
    assert wheel._journal is not None
    return wheel._journal


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
def test_ctrl_c_after_a_pen_has_stored_or_was_taken_back_costs_nothing(wheel_dir: Path, call: str) -> None:
    with Wheel(wheel_dir, sync="never") as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"0")
        wheel.enqueue(b"1")
        journal = journal_of(wheel)
        assert journal._pen is not None
        journal._pen = pen = Interrupted(journal._pen, call)
        journal._store = pen.put
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"2")
            wheel.enqueue(b"3", sync="always")
        fired = [m.payload for m in keeper.claim()]
        wheel.enqueue(b"4")
        wheel.enqueue_many([b"5", b"6"])
        fired += [m.payload for m in keeper.claim()]
        assert journal.number == 5
    assert fired == [b"0", b"1", b"2", b"4", b"5", b"6"]
    assert_whole(wheel_dir)


def test_ctrl_c_while_a_pen_is_lent_leaves_one_that_nobody_puts_with(wheel_dir: Path) -> None:
    class Interrupting:
        """Memory that gives a pen, and then Ctrl-C comes."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def pen(self, *args: Any) -> Any:
            self.inner.pen(*args)
            raise KeyboardInterrupt

    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        wheel.enqueue(b"1", delay=60)
        journal = journal_of(wheel)
        assert journal.number == 2  # and the pen is taken back
        segment = journal._segment
        assert segment is not None
        mapped, segment.mapped = segment.mapped, Interrupting(segment.mapped)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"2", delay=60)
        segment.mapped = mapped
        wheel.enqueue(b"3", delay=60)
        assert journal.number == 3
        assert [m.payload for m in wheel.list()] == [b"0", b"1", b"3"]
    assert_whole(wheel_dir)


def test_threads_that_store_beside_others_that_write_flush_and_rotate_leave_each_message_once(wheel_dir: Path) -> None:
    made: list[list[str]] = [[] for _ in range(6)]
    with Wheel(wheel_dir, sync="never") as wheel:
        journal = Journal(wheel._dir, segment_bytes=200_000)
        wheel._journal = journal

        def store(n: int) -> None:
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

        works = [threading.Thread(target=store if n < 4 else disturb, args=(n,)) for n in range(6)]
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

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            made.append(wheel.enqueue(b"garbage", delay=600))

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
        assert len(made) == 450
        assert [m.id for m in wheel.list()] == sorted(made)
    assert_whole(wheel_dir)


def test_a_pen_stops_where_the_sequence_of_its_writer_does(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"0", delay=60)
        journal = journal_of(wheel)
        first = journal.writer
        journal._ids.seq = SEQ_END - 3
        made = [wheel.enqueue(b"%d" % n, delay=60) for n in range(1, 8)]
        assert journal.writer != first
        assert len(set(made)) == 7
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(8)]
    assert_whole(wheel_dir)


def test_after_a_flush_that_failed_nothing_is_stored_though_a_pen_was_lent_meanwhile(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Wheel(wheel_dir, sync="never")
    for n in range(3):
        wheel.enqueue(b"%d" % n, delay=60)

    def fails(*_: object) -> None:
        wheel.enqueue(b"3", delay=60)
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
        assert journal._pen is not None
        journal.close()
        with pytest.raises(Closed):
            journal.put(1, 1, b"", b"refused", sync="never")
    assert_whole(wheel_dir)


def test_who_waited_for_a_flush_takes_back_the_pen_that_was_lent_meanwhile(wheel_dir: Path) -> None:
    class Waits:
        """Waits, and others get the lock."""

        def wait(self, timeout_s: float | None = None) -> None:
            journal._flushing = False
            journal.rotate()
            for n in range(3, 6):
                wheel.enqueue(b"%d" % n, delay=60)

        def notify_all(self) -> None:
            pass

    with Wheel(wheel_dir, sync="never") as wheel:
        for n in range(3):
            wheel.enqueue(b"%d" % n, delay=60)
        journal = journal_of(wheel)
        settled, journal._settled = journal._settled, Waits()  # type: ignore[assignment]
        journal._flushing = True
        # The next has to go into another segment, and so to wait.
        journal._segment_bytes, journal._free_to = 1000, 0
        wheel.enqueue(b"6" + bytes(500), delay=60, sync="always")
        journal._settled = settled
        assert sorted(m.payload[:1] for m in wheel.list()) == [b"%d" % n for n in range(7)]
    assert_whole(wheel_dir)


def test_a_disk_that_sees_each_write_is_not_passed_by(wheel_dir: Path) -> None:
    seen: list[str] = []
    disk = lambda path: FaultyDisk(path, lambda kind, name: seen.append(kind))  # noqa: E731
    with Wheel(wheel_dir, sync="never", disk=disk) as wheel:
        seen.clear()
        wheel.enqueue(b"1", delay=60)
        wheel.enqueue(b"2", delay=60)
        assert seen.count("pwrite") == 2
        assert not is_mapped(wheel)


def test_where_memory_cannot_show_a_file_it_is_written(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsDisk, "map", lambda *args, **more: None)
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"1", delay=60)
        wheel.enqueue(b"2", delay=60)
        assert not is_mapped(wheel)
        assert [m.payload for m in wheel.list()] == [b"1", b"2"]
