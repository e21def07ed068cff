"""Sets of real directories driven by hand: a fast clock, a process that is killed, what waits and fires."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import FilewheelError
from filewheel.roster.roster import Mode, roster_at
from filewheel.sets.compare import verify_backups
from filewheel.sets.link import LinkReport
from filewheel.sets.members import add_backup
from filewheel.sets.replicator import Replicator
from tests.conftest import assert_whole
from tests.model.process import Killed
from tests.support import START_US


class QuickClock:
    """A clock that runs faster than time does: what waits a second for good reason takes a moment in a test."""

    def __init__(self, times: int = 25) -> None:
        self._times = times
        self._began_s = time.monotonic()

    def now_us(self) -> int:
        return START_US + self.steady_us()

    def steady_us(self) -> int:
        return round((time.monotonic() - self._began_s) * 1e6 * self._times)


class Fuse:
    """Kills the process that has these disks before its n-th change of any of them; None never does."""

    def __init__(self, at: int | None = None) -> None:
        self.left = at
        self.ops = 0
        self.killed = False
        self._disks: list[FusedDisk] = []

    def disk(self, path: str) -> FusedDisk:
        """Open a disk, as a DiskFactory does."""
        self.check()
        opened = FusedDisk(path, self)
        self._disks.append(opened)
        return opened

    def check(self) -> None:
        if self.killed:
            raise Killed

    def step(self) -> None:
        """Count one change."""
        self.check()
        self.ops += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                self.killed = True
                for disk in self._disks:
                    disk.let_go()
                raise Killed


class FusedDisk(OsDisk):
    """A real disk that is one process's; when that is killed its descriptors and locks go."""

    def __init__(self, path: str, fuse: Fuse) -> None:
        super().__init__(path)
        self._fuse = fuse
        self._own: set[int] = set()

    def let_go(self) -> None:
        for fd in self._own:
            super().close(fd)
        super().release()

    def open(self, name: str, mode: str) -> int:
        if mode == "r":
            self._fuse.check()
        else:
            self._fuse.step()
        fd = super().open(name, mode)
        self._own.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._fuse.check()
        self._own.discard(fd)
        super().close(fd)

    def lock(self, fd: int, *, wait: bool) -> bool:
        self._fuse.check()
        self._own.add(fd)  # a directory's was opened elsewhere
        return super().lock(fd, wait=wait)

    def release(self) -> None:
        if not self._fuse.killed:
            super().release()

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self._fuse.check()
        return super().pread(fd, size, offset)

    def listdir(self, name: str) -> list[str]:
        self._fuse.check()
        return super().listdir(name)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        self._fuse.check()
        return super().identity(name)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        self._fuse.step()
        super().pwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._fuse.step()
        super().truncate(fd, size)

    def mkdir(self, name: str) -> None:
        self._fuse.step()
        super().mkdir(name)

    def rmdir(self, name: str) -> None:
        self._fuse.step()
        super().rmdir(name)

    def rename(self, old: str, new: str) -> None:
        self._fuse.step()
        super().rename(old, new)

    def link(self, old: str, new: str) -> None:
        self._fuse.step()
        super().link(old, new)

    def unlink(self, name: str) -> None:
        self._fuse.step()
        super().unlink(name)


class Place:
    """A directory with wheels in it, and the clock that they live by."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.clock = QuickClock()
        self.a, self.b, self.c = (base / name for name in "abc")

    def make(self, path: Path) -> Path:
        """Make a wheel."""
        Wheel.create(path, clock=self.clock).close()
        return path

    def make_set(self, *backups: Path, mode: Mode = "ship") -> None:
        """Make `a` the primary of these backups, each in step."""
        if not self.a.exists():
            self.make(self.a)
        for path in backups:
            add_backup(self.a, path, mode=mode, env=SYSTEM.using(clock=self.clock))
        self.level(self.a)

    def enqueue(self, path: Path, *payloads: str, delay: float = 0, key: str | None = None) -> list[bytes]:
        """Enqueue messages by a producer of their own; return their ids."""
        with Wheel(path, clock=self.clock) as wheel:
            return [bytes(wheel.enqueue(p.encode(), delay=delay, key=key)) for p in payloads]

    def waiting(self, path: Path) -> dict[bytes, str]:
        """Return what is pending, dead letters not included."""
        with Wheel(path, clock=self.clock) as wheel:
            return {bytes(m.id): m.payload.decode() for m in wheel.list()}

    def payloads(self, path: Path) -> list[str]:
        """Return the payloads of what is pending, sorted."""
        return sorted(self.waiting(path).values())

    def fire(self, path: Path, *, ack: bool = True) -> list[str]:
        """Fire what is due; return the payloads."""
        found: list[str] = []
        with Keeper(path, wait=False, background=False, clock=self.clock) as keeper:
            while batch := keeper.claim():
                found += [m.payload.decode() for m in batch]
                if ack:
                    keeper.ack(batch)
        return sorted(found)

    def level(self, path: Path) -> list[LinkReport]:
        """Bring every backup in step."""
        with Replicator(path, interval_s=0.001, env=SYSTEM.using(clock=self.clock)) as replicator:
            return replicator.once()

    def wheels(self) -> list[Path]:
        """Return every wheel that is here."""
        return [path for path in sorted(self.base.iterdir()) if (path / "wheel.json").exists()]

    def may_fire(self) -> list[Path]:
        """Return the wheels on which a keeper can be opened."""
        found = []
        for path in self.wheels():
            try:
                Keeper(path, wait=False, background=False, clock=self.clock).close()
                found.append(path)
            except FilewheelError:
                continue
        return found

    # -- cut short -------------------------------------------------------------------------------------------

    def save(self) -> Callable[[], None]:
        """Return what puts every wheel back to what it is now."""
        kept = self.base.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        _copy(self.base, kept)

        def restore() -> None:
            shutil.rmtree(self.base)
            _copy(kept, self.base)

        return restore

    def cut_short(self, act: Callable[[Fuse], object], every: int = 1) -> Iterator[bool]:
        """Do something from the same start again and again, killed before each of its changes in turn.

        Yields whether it was killed, with the wheels as it left them; the last time it was not.
        """
        restore = self.save()
        at = 1
        while True:
            fuse = Fuse(at)
            with contextlib.suppress(Killed):
                act(fuse)
            yield fuse.killed
            if not fuse.killed:
                return
            restore()
            at += every


def _copy(old: Path, new: Path) -> None:
    shutil.copytree(old, new, ignore=shutil.ignore_patterns("hint"))


def role_of(path: Path) -> str:
    """Return what a wheel is in its set."""
    roster = roster_at(path)
    return "alone" if roster is None else roster.role


def in_thread(what: Callable[[], object]) -> threading.Thread:
    """Start a thread that a test joins."""
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place for wheels; each that is there at the end is verified."""
    base = tmp_path / "set"
    base.mkdir()
    here = Place(base)
    yield here
    if request.node.get_closest_marker("damages") is None:
        for path in here.wheels():
            assert_whole(path)
            roster = roster_at(path)
            if roster is not None and roster.role == "primary" and roster.members:
                assert [one.mismatches for one in verify_backups(path) if one.mismatches] == []
