"""What need not survive a power cut is stored in mapped memory: the file holds it, whatever becomes of the process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk import OsDisk
from filewheel.segment import MAP_BYTES
from filewheel.speed import Map, Mapped
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
        wheel.enqueue(b"x", delay=60)
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        assert os.stat(segment.place).st_size == MAP_BYTES
        wheel._journal.rotate()
        assert os.stat(segment.place).st_size == segment.offset < 1000


def test_a_flush_takes_what_was_stored_before_with_it(wheel_dir: Path) -> None:
    with Wheel(wheel_dir, sync="never") as wheel:
        wheel.enqueue(b"stored", delay=60)
        wheel.flush()
        assert wheel._journal is not None
        assert wheel._journal.synced == wheel._journal.number == 1
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
        wheel.enqueue(b"1", delay=600)
        assert is_mapped(wheel)
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        os.truncate(segment.place, 0)
        wheel.enqueue(b"2", delay=600)
        assert not segment.maps
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
assert wheel._journal._segment.mapped_to
with open(sys.argv[1] + "/hog", "wb", buffering=0) as hog:
    try:
        while True:
            hog.write(bytes(4096))
    except OSError:
        pass
done = 1
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
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        segment.cut_off()  # as when there was no room for zeros
        for n in range(1, 5):
            wheel.enqueue(b"%d" % n, delay=60)
            assert os.stat(segment.place).st_size >= segment.offset
        assert is_mapped(wheel)
        assert sorted(m.payload for m in wheel.list()) == [b"%d" % n for n in range(5)]


def test_ctrl_c_after_a_store_ends_the_segment_and_nothing_is_stored_over(wheel_dir: Path) -> None:
    class Interrupted:
        """Stores, and then Ctrl-C comes."""

        def __init__(self, inner: Mapped) -> None:
            self.inner = inner

        def put(self, *args: Any) -> None:
            assert self.inner.put(*args) is not None
            raise KeyboardInterrupt

    with Wheel(wheel_dir, sync="never") as wheel, Keeper(wheel_dir) as keeper:
        wheel.enqueue(b"1")
        assert wheel._journal is not None
        segment = wheel._journal._segment
        assert segment is not None
        assert segment.mapped_to
        inner = segment.mapped
        segment.mapped = Interrupted(inner)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            wheel.enqueue(b"2")
        segment.mapped = inner
        fired = [m.payload for m in keeper.claim()]
        wheel.enqueue(b"3")
        assert wheel._journal._segment is not segment
        fired += [m.payload for m in keeper.claim()]
    assert fired == [b"1", b"2", b"3"]


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
