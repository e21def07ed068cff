"""The ballast: made with the wheel, given up on a full disk; and a full disk where a wheel has none."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import AsyncWheel, Keeper, Wheel, WheelFull
from filewheel.disk.ballast import BALLAST_BYTES
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import Disk
from filewheel.firing.reserve import ACK_BYTES
from filewheel.scheduling.scheduler import Scheduler
from filewheel.sets.members import add_backup
from tests.cli.support import Fw, invoke
from tests.conftest import assert_whole
from tests.crash.full import fill
from tests.crash.images import image, lacks, sizes
from tests.support import FaultyDisk

MESSAGES = 300


def create(path: Path) -> None:
    Wheel.create(path).close()


def open_or_create(path: Path) -> None:
    Wheel.open_or_create(path).close()


def create_for_tasks(path: Path) -> None:
    async def main() -> None:
        async with AsyncWheel.create(path):
            pass

    asyncio.run(main())


def schedule(path: Path) -> None:
    with Scheduler(path) as scheduler:
        scheduler.enqueue("name")


def init(path: Path) -> None:
    assert invoke("-C", path, "init").code == 0


def back_up(path: Path) -> None:
    primary = path.with_name("primary")
    Wheel.create(primary).close()
    add_backup(primary, path)


@pytest.mark.parametrize("make", [create, open_or_create, create_for_tasks, schedule, init, back_up])
def test_a_wheel_that_is_made_has_its_ballast_before_any_keeper_ran(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "made")
    ballast = os.stat(tmp_path / "made" / "ballast")
    assert ballast.st_size == BALLAST_BYTES
    assert ballast.st_blocks * 512 >= BALLAST_BYTES


@pytest.fixture(params=["ext4", "tmpfs"])
def disk(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system of its own."""
    if lacks(request.param):
        pytest.skip(str(lacks(request.param)))
    with image(request.param, sizes(request.param)) as mounted:
        yield mounted.mount_point


def fill_up(disk: Path, wheel: Wheel) -> None:
    """Leave nothing of a disk, and no room in the wheel's journals either."""
    fill(disk / "filler", 0)
    with pytest.raises(WheelFull):
        while True:
            wheel.enqueue(bytes(3000), delay=5000)


def test_on_a_disk_that_was_full_before_the_first_keeper_everything_is_acknowledged(disk: Path) -> None:
    path = disk / "jobs.wheel"
    with Wheel.create(path) as wheel:
        wheel.enqueue_many([b"x"] * MESSAGES, topic="due")
        fill_up(disk, wheel)
    fw = Fw(path)
    assert len(fw("run", "--once").lines) == MESSAGES
    assert fw("run", "--once").lines == []
    (disk / "filler").unlink()
    assert_whole(path)


def test_without_a_ballast_a_full_disk_fires_nothing_and_says_that_it_could_not_be_acknowledged(disk: Path) -> None:
    path = disk / "jobs.wheel"
    fw = Fw(path)
    with Wheel.create(path) as wheel:
        wheel.enqueue_many([b"x"] * MESSAGES, topic="due")
        (path / "ballast").unlink()
        fill_up(disk, wheel)
    for _ in range(2):
        result = fw("run", "--once", code=1)
        assert result.lines == []
        assert "no message is handed out that could not be acknowledged" in result.err
    (disk / "filler").unlink()
    assert len(fw("run", "--once").lines) == MESSAGES
    assert_whole(path)


@pytest.mark.parametrize("has_ballast", [True, False])
def test_a_drain_on_a_full_disk_calls_all_with_a_ballast_and_none_without_one(
    disk: Path, has_ballast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = disk / "jobs.wheel"
    called: list[int] = []
    scheduler = Scheduler(path)
    scheduler.on("job")(called.append)
    for i in range(30):
        scheduler.enqueue("job", [i])
    if not has_ballast:
        (path / "ballast").unlink()
    fill_up(disk, scheduler.wheel)
    if has_ballast:
        assert scheduler.drain() == len(called) == 30
        assert "one by one" not in caplog.text
    else:
        for _ in range(2):
            with pytest.raises(WheelFull, match="no message is handed out"):
                scheduler.drain()
            assert called == []
    scheduler.stop()
    (disk / "filler").unlink()
    assert_whole(path)


class Quota(OsDisk):
    """A disk with free space that a quota keeps from this user."""

    def allocate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size // 2)  # some of it was given
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


class Scarce(OsDisk):
    """A disk with hardly anything free."""

    def free_bytes(self) -> int:
        return 100 << 10


@pytest.mark.parametrize("kind", [Quota, Scarce])
def test_a_wheel_is_made_without_a_ballast_where_there_is_no_room_for_one_and_warns(
    tmp_path: Path, kind: type[Disk], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "jobs.wheel"
    with caplog.at_level(logging.WARNING), Wheel.create(path, env=SYSTEM.using(disk=kind)) as wheel:  # type: ignore[arg-type]
        wheel.enqueue(b"x")
    assert "ballast" in caplog.text
    assert not (path / "ballast").exists() or not (path / "ballast").stat().st_size
    with Keeper(path) as keeper:
        assert (path / "ballast").stat().st_size == BALLAST_BYTES
        assert keeper.ack(keeper.claim()) == 1
    assert_whole(path)


def test_where_little_is_left_the_room_for_acknowledgements_is_made_before_messages_are_handed_out(
    wheel_dir: Path,
) -> None:
    full = False

    class NearlyFull(FaultyDisk):
        def free_bytes(self) -> int:
            return 0

    def fail(kind: str, name: str) -> None:
        if full and kind == "open":  # what is to be written later needs a file
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (wheel_dir / "ballast").unlink()
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"x"] * MESSAGES)
    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=lambda path: NearlyFull(path, fail))) as keeper:
        batch = keeper.claim(MESSAGES)
        full = True
        assert keeper.ack(batch) == MESSAGES
        full = False


def test_messages_are_handed_out_one_by_one_where_there_is_room_for_one_and_none_where_there_is_not(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    room = 1 << 20

    class Quota(OsDisk):
        def pwrite(self, fd: int, data: bytes, offset: int) -> None:
            if offset + len(data) > room and os.readlink(f"/proc/self/fd/{fd}").endswith(".log"):
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            OsDisk.pwrite(fd, data, offset)

    (wheel_dir / "ballast").unlink()
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"x"] * 100)
    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=Quota)) as keeper:
        room = ACK_BYTES + 20
        first = keeper.claim(50)
        assert len(first) == 1
        with pytest.raises(WheelFull, match="no message is handed out"):
            keeper.claim(50)  # the room is for the first
        assert keeper.ack(first) == 1
        with pytest.raises(WheelFull, match="no message is handed out"):
            keeper.claim(50)
        assert not keeper._head.claims
        room = 2 * ACK_BYTES + 20
        assert keeper.ack(keeper.claim(50)) == 1
        assert caplog.text.count("one by one") == 1
        room = 1 << 20
        assert keeper.ack(keeper.claim(1000)) == 98
