"""Several modelled disks, each with one wheel, and processes that see all of them.

Each disk is a machine of its own (machine.py) under the path of its wheel, so that what one flush covers says nothing
about another disk. All operations are counted and logged in one order. A power cut meets all disks at one moment and
loses on each what it likes; a disaster befalls one; a process that is killed takes its locks with it, on all of them.
Invariant: a disk is reached only through a `Process`, and never after that was killed.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Literal

from tests.model.crashes import crash_at_random
from tests.model.machine import Dir, Inode, Machine
from tests.model.process import ProcessDisk

Condition = Literal["well", "deleted", "unmounted", "read-only", "full", "fails each flush", "dead"]
CONDITIONS: tuple[Condition, ...] = ("deleted", "unmounted", "read-only", "full", "fails each flush", "dead")
_FLUSHES = frozenset({"fdatasync", "sync_dir", "sync_all"})
_CHANGES = frozenset({"pwrite", "truncate", "mkdir", "rmdir", "rename", "link", "unlink"}) | _FLUSHES
_IN_MEMORY = frozenset({"lock", "stat", "size", "wait"})
MODES = ("none", "all", "some", "some", "some")


class Volume(Machine):
    """One disk, and how it is."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.condition: Condition = "well"

    def befall(self, condition: Condition) -> None:
        """Let a disaster happen to it, or ("well") end. What was deleted does not come back."""
        if self.condition == "deleted":
            return
        self.condition = condition
        self.budget_bytes = self.used_bytes() if condition == "full" else None
        if condition == "deleted":
            _forget(self.root)

    @property
    def is_there(self) -> bool:
        """Whether who opens its path finds it."""
        return self.condition not in ("deleted", "unmounted")


def _forget(directory: Dir) -> None:
    for name, target in list(directory.entries.items()):
        if isinstance(target, Inode):
            target.links -= 1
        else:
            _forget(target)
        del directory.entries[name]
    directory.durable.clear()
    directory.changes.clear()


class VolumeDisk(ProcessDisk):
    """What one process sees of a volume, in whatever condition that is."""

    machine: Volume

    def _enter(self, kind: str, name: str) -> None:
        super()._enter(kind, name)
        condition = self.machine.condition
        code = None
        if condition == "dead" and kind not in _IN_MEMORY:
            code = errno.EIO
        elif condition == "read-only" and kind in _CHANGES:
            code = errno.EROFS
        elif condition == "fails each flush" and kind in ("sync_dir", "sync_all"):
            code = errno.EIO
        if code is not None:
            raise OSError(code, os.strerror(code), name)

    def _may_fail(self, kind: str, name: str) -> int | None:
        if self.machine.condition == "fails each flush" and kind == "fdatasync":
            return errno.EIO
        return super()._may_fail(kind, name)

    def _dir(self, name: str) -> Dir:
        if self.machine.condition == "deleted":  # nothing can be made in a directory that was removed either
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return super()._dir(name)

    def is_removed(self, fd: int) -> bool:
        return self._fds[fd][0].links == 0

    def open(self, name: str, mode: str) -> int:
        if self.machine.condition == "read-only" and mode != "r":
            super()._enter("open", name)
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return super().open(name, mode)


class Process:
    """One process: it opens disks by their paths, and they all end with it."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._disks: list[VolumeDisk] = []
        self._alive = True

    @property
    def alive(self) -> bool:
        return self._alive

    @alive.setter
    def alive(self, value: bool) -> None:
        self._alive = value
        for disk in self._disks:
            disk.alive = value

    def open(self, path: str) -> VolumeDisk:
        """Open the disk at a path: it is the `disk` of the library's `Env`. Raises FileNotFoundError."""
        volume = self._volumes.of_path.get(path)
        if volume is None or not volume.is_there:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        disk = VolumeDisk(volume, path)
        disk.alive = self._alive
        self._disks.append(disk)
        return disk

    def kill_disks(self) -> None:
        """Let go of everything it has open, and go on: as one that ends, and is started again."""
        for disk in self._disks:
            disk.kill()
        self._disks.clear()

    def kill(self) -> None:
        """End it: descriptors and locks go, what it wrote stays in the page caches."""
        self._alive = False
        for disk in self._disks:
            disk.kill()


class Volumes:
    """All disks of one machine."""

    def __init__(self, *paths: str) -> None:
        self.of_path = {path: Volume(path) for path in paths}
        self.log: list[tuple[str, str, str]] = []
        """Every operation that changed or flushed something: (path, kind, name), in one order."""
        self.on_op: Callable[[str, str, str], None] | None = None
        """Called after each of them: the place to crash."""
        self._listen()

    def _listen(self) -> None:
        for path, volume in self.of_path.items():
            volume.on_op = lambda kind, name, path=path: self._did(path, kind, name)  # type: ignore[misc]

    def _did(self, path: str, kind: str, name: str) -> None:
        self.log.append((path, kind, name))
        if self.on_op is not None:
            self.on_op(path, kind, name)

    def __getitem__(self, path: str) -> Volume:
        return self.of_path[path]

    def crash(self, rng: random.Random, mode: str = "") -> Volumes:
        """Return the disks after a power cut: on each, what was not flushed may be lost, whatever the others lose.

        `mode` is "none", "all" or "some" of it, on all disks; without it each draws its own.
        """
        after = Volumes()
        for path, volume in self.of_path.items():
            crashed = crash_at_random(volume, rng, mode or rng.choice(MODES))
            after.of_path[path] = new = Volume(path)
            new.root, new.next_inode = crashed.root, crashed.next_inode
            new.condition = volume.condition if volume.condition != "full" else "well"
            if volume.condition == "full":
                new.befall("full")
        after._listen()
        return after

    def copy(self, rng: random.Random) -> Volumes:
        """Return the disks as every process sees them now: a kill of all processes, and nothing more."""
        return self.crash(rng, "all")

    def without(self, path: str) -> Volumes:
        """Lose one disk whole; return these disks."""
        self.of_path[path].befall("deleted")
        return self
