"""The disasters themselves: a plain process that writes sees what it should see, and nothing stays mounted."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.disaster import (
    DISASTERS,
    Corrupted,
    Dead,
    Deleted,
    Disaster,
    FailsFlushes,
    FilledUp,
    ReadOnly,
    Unmounted,
    befallen,
    mounted,
    place,
)

WRITER = r"""
import errno, json, os, sys
path = sys.argv[1]
fd = os.open(f"{path}/open", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 8192)

def opened():
    os.pwrite(fd, b"x" * 100, 0)
    os.fdatasync(fd)

def grown():
    os.pwrite(fd, b"x" * 5000, os.fstat(fd).st_size)
    os.fdatasync(fd)

def anew():
    new = os.open(f"{path}/new", os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(new, b"x" * 5000, 0)
        os.fdatasync(new)
    finally:
        os.close(new)

for _ in sys.stdin:
    seen = {}
    for do in (opened, grown, anew):
        try:
            do()
            seen[do.__name__] = ""
        except OSError as exc:
            seen[do.__name__] = errno.errorcode[exc.errno]
    print(json.dumps(seen), flush=True)
"""


class Writer:
    """A plain process that has one file open, and writes to it and to others when it is asked to."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-c", WRITER, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def sees(self) -> dict[str, str]:
        """Let it write to its open file in place, at the end of it, and to a file by name: the errors that it sees."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        seen: dict[str, str] = json.loads(self.process.stdout.readline())
        return seen

    def end(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


WELL = {"opened": "", "grown": "", "anew": ""}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Writer]:
    path.mkdir(exist_ok=True)
    writer = Writer(path)
    try:
        assert writer.sees() == WELL
        yield writer
    finally:
        writer.end()


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory on a file system of its own; in the end nothing of it is mounted or held."""
    missing = Disaster.needs()
    if missing:
        pytest.skip(missing)
    with place() as path:
        device, mount_point = mounted(path)
        yield path
    assert not os.path.ismount(mount_point)
    backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    end = time.monotonic() + 10  # of whoever lets go last
    while backing.exists() and str(mount_point.parent) in backing.read_text():
        assert time.monotonic() < end, f"{device} is held"


def test_who_writes_to_a_deleted_directory_writes_to_nothing_and_finds_nothing_by_name(tmp_path: Path) -> None:
    path = tmp_path / "jobs.wheel"
    with writing(path) as writer, befallen(Deleted(), path):
        assert writer.sees() == {"opened": "", "grown": "", "anew": "ENOENT"}
        assert not path.exists()


def test_on_a_file_system_that_became_read_only_nothing_can_be_written_also_to_open_files(directory: Path) -> None:
    with writing(directory) as writer:
        disaster = ReadOnly()
        disaster.apply(directory)
        assert set(writer.sees().values()) == {"EROFS"}
    disaster.undo()
    with writing(directory) as writer:
        assert writer.sees() == WELL


def test_without_files_open_for_writing_it_is_mounted_read_only_as_anyone_would(directory: Path) -> None:
    directory.mkdir()
    with befallen(ReadOnly(), directory), pytest.raises(OSError, match="Read-only"):
        (directory / "new").write_bytes(b"x")
    (directory / "new").write_bytes(b"x")


def test_a_disaster_that_cannot_be_undone_while_the_files_are_open_says_so(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.crash.disaster.BUSY_S", 0.05)
    disaster = ReadOnly()
    with writing(directory):
        disaster.apply(directory)
        with pytest.raises(OSError, match="end whoever uses it"):
            disaster.undo()
    monkeypatch.undo()
    disaster.undo()


def test_on_a_full_disk_what_was_reserved_can_be_written_and_nothing_more(directory: Path) -> None:
    with writing(directory) as writer:
        with befallen(FilledUp(), directory):
            assert writer.sees()["opened"] == ""
            seen = [writer.sees() for _ in range(4)]
            assert seen[-1] == {"opened": "", "grown": "ENOSPC", "anew": ""}
        assert writer.sees() == WELL


def test_who_has_files_open_does_not_see_a_lazy_unmount_and_who_opens_them_does(directory: Path) -> None:
    with writing(directory) as writer:
        with befallen(Unmounted(), directory):
            assert writer.sees() == {"opened": "", "grown": "", "anew": "ENOENT"}
            assert not directory.exists()
            assert not os.path.ismount(directory.parent)
        assert writer.sees() == WELL
        assert (directory / "open").read_bytes()[:100] == b"x" * 100


def test_each_flush_of_a_live_process_fails_and_works_again_afterwards(directory: Path) -> None:
    with writing(directory) as writer:
        with befallen(FailsFlushes(), directory):
            for _ in range(4):
                assert writer.sees() == {"opened": "EIO", "grown": "EIO", "anew": "EIO"}
            assert (directory / "open").read_bytes()[:100] == b"x" * 100
        writer.sees()  # what was lost meanwhile is told once more
        assert writer.sees() == WELL


def test_a_dead_device_fails_flushes_and_then_every_write(directory: Path) -> None:
    with writing(directory) as writer:
        disaster = Dead()
        disaster.apply(directory)
        assert set(writer.sees().values()) <= {"EIO", "EROFS"}
        assert set(writer.sees().values()) <= {"EIO", "EROFS"}
    disaster.undo()
    with writing(directory) as writer:
        assert writer.sees() == WELL


@pytest.mark.parametrize(
    ("name", "low", "high"), [("one bit flipped", 1, 1), ("corrupted", 8, 8), ("badly corrupted", 400, 512)]
)
def test_so_many_bits_flip_as_the_rate_says(tmp_path: Path, name: str, low: int, high: int) -> None:
    path = tmp_path / "jobs.wheel"
    (path / "laps").mkdir(parents=True)
    was = bytes(16384)
    for file in ("a", "laps/b"):
        (path / file).write_bytes(was)
    disaster = DISASTERS[name](random.Random(7))
    disaster.apply(path)
    changed = sum(bin(byte).count("1") for f in ("a", "laps/b") for byte in (path / f).read_bytes())
    assert low <= changed <= high
    assert isinstance(disaster, Corrupted)
    assert {f for f, _ in disaster.flipped} <= {"a", "laps/b"}
    assert sum((path / f).stat().st_size for f in ("a", "laps/b")) == 2 * len(was)


def test_a_file_system_that_is_not_ours_is_not_harmed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="not ours to harm") as raised:
        ReadOnly().apply(tmp_path)
    assert raised.value.errno == errno.EINVAL


def test_every_disaster_has_a_name_of_its_own_and_says_what_it_needs() -> None:
    assert len(DISASTERS) == 9
    assert {name for name, kind in DISASTERS.items() if kind.needs() is None} >= {"deleted", "corrupted"}
