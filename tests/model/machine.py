"""A machine whose disk can lose power after any operation, behind the seam that the real disk is behind.

What a file system may do until the matching flush is modelled, not what one file system happens to do: writes of a
file persist in any subset, torn at any byte or sector, as zeros or garbage, with or without their size; directory
entries, unlinks and renames persist in any subset (a rename is atomic); flushing a file does not persist its name.

A `Machine` is the state that survives processes (page cache included); a `ProcessDisk` is one process's view of it:
its descriptors and its locks, which die with it. `Machine.crash` gives a new machine in one of the states that a power
cut may leave. Invariant: what a flush returned for is in every one of those states.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Any


class Killed(BaseException):
    """The process was killed: nothing of it runs on."""


class Inode:
    """A file: what is durable, what was written since, and what a reader sees now."""

    __slots__ = ("data", "durable", "links", "locked_by", "number", "writes")

    def __init__(self, number: int, durable: bytes = b"") -> None:
        self.number = number
        self.durable = durable
        self.data = bytearray(durable)
        self.writes: list[tuple[int, bytes | None]] = []
        self.links = 0
        self.locked_by: tuple[ProcessDisk, int] | None = None

    def write(self, offset: int, data: bytes) -> None:
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.writes.append((offset, data))

    def truncate(self, size: int) -> None:
        resize(self.data, size)
        self.writes.append((size, None))

    def flush(self) -> None:
        self.durable = bytes(self.data)
        self.writes = []


class Dir:
    """A directory: durable entries, and the changes since, each an object that may concern two directories."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.durable: dict[str, Inode | Dir] = {}
        self.entries: dict[str, Inode | Dir] = {}
        self.changes: list[Change] = []


class Change:
    """One atomic change of names: [(directory, name, what it names afterwards or None)]."""

    __slots__ = ("effects",)

    def __init__(self, *effects: tuple[Dir, str, Inode | Dir | None]) -> None:
        self.effects = effects
        for directory, name, target in effects:
            apply(directory.entries, name, target)
        for directory in {id(d): d for d, _, _ in effects}.values():
            directory.changes.append(self)

    def persist(self) -> None:
        for directory, name, target in self.effects:
            apply(directory.durable, name, target)
            if self in directory.changes:
                directory.changes.remove(self)


def apply(entries: dict[str, Any], name: str, target: Inode | Dir | None) -> None:
    if target is None:
        entries.pop(name, None)
    else:
        entries[name] = target


def resize(data: bytearray, size: int) -> None:
    if len(data) > size:
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class Machine:
    """The disk and page cache of one machine."""

    def __init__(self) -> None:
        self.root = Dir()
        self.next_inode = 1
        self.ops = 0
        self.on_op: Callable[[str, str], None] | None = None
        """Called after every operation that changes or flushes something: the place to switch, or to crash."""
        self.before_op: Callable[[str, str], None] | None = None
        """Called before every operation: the place to let it fail."""
        self.blocked: Callable[[], None] | None = None
        """Called when a process has to wait for a lock."""

    def did(self, kind: str, name: str) -> None:
        self.ops += 1
        if self.on_op is not None:
            self.on_op(kind, name)

    def crash(self, rng: random.Random, mode: str) -> Machine:
        """Return a machine after a power cut: "none" or "all" of what was not flushed, or a random "some"."""
        after = Machine()
        after.next_inode = self.next_inode
        chosen: dict[int, bool] = {}
        files: dict[int, Inode] = {}

        def persisted(change: Change) -> bool:
            if mode != "some":
                return mode == "all"
            return chosen.setdefault(id(change), rng.random() < 0.5)

        def copy(old: Dir) -> Dir:
            new = Dir()
            entries = dict(old.durable)
            for change in old.changes:
                if persisted(change):
                    for directory, name, target in change.effects:
                        if directory is old:
                            apply(entries, name, target)
            for name, target in entries.items():
                if isinstance(target, Dir):
                    new.durable[name] = copy(target)
                else:
                    if target.number not in files:
                        files[target.number] = Inode(target.number, crashed(target, rng, mode))
                    files[target.number].links += 1
                    new.durable[name] = files[target.number]
            new.entries = dict(new.durable)
            return new

        after.root = copy(self.root)
        return after


def crashed(inode: Inode, rng: random.Random, mode: str) -> bytes:
    """Return what a file may hold after a power cut."""
    if mode == "none" or not inode.writes:
        return inode.durable if mode == "none" else bytes(inode.data)
    if mode == "all":
        return bytes(inode.data)
    data = bytearray(inode.durable)
    for offset, what in inode.writes:
        fate = rng.random()
        if fate < 0.35:
            continue
        if what is None:
            resize(data, offset)
            continue
        kept = what
        if fate < 0.6:
            kept = torn(what, offset, rng)
        if offset > len(data):
            data.extend(bytes(offset - len(data)))
        data[offset : offset + len(kept)] = kept
    return bytes(data)


def torn(data: bytes, offset: int, rng: random.Random) -> bytes:
    """Return what is left of a write that a power cut met."""
    how = rng.randrange(5)
    if how == 0:  # its beginning, at any byte
        return data[: rng.randrange(len(data) + 1)]
    if how == 1:  # its size, and zeros for its data
        return bytes(len(data))
    if how == 2:  # its size, and garbage
        return rng.randbytes(len(data))
    # Some of its sectors; the others as zeros.
    sector = 512 if how == 3 else 4096 if len(data) > 4096 else 64
    out = bytearray(len(data))
    at = 0
    while at < len(data):
        end = min(len(data), ((offset + at) // sector + 1) * sector - offset)
        if rng.random() < 0.5:
            out[at:end] = data[at:end]
        at = end
    return bytes(out)


class ProcessDisk:
    """One process's view of a machine: the Disk that the library is given."""

    def __init__(self, machine: Machine, path: str = "model.wheel") -> None:
        self.path = path
        self.machine = machine
        self.alive = True
        self._fds: dict[int, tuple[Inode, str]] = {}
        self._next = 3

    # -- helpers ---------------------------------------------------------------------------------------------

    def _enter(self, kind: str, name: str) -> None:
        if not self.alive:
            raise Killed
        if self.machine.before_op is not None:
            self.machine.before_op(kind, name)
            if not self.alive:
                raise Killed

    def _did(self, kind: str, name: str) -> None:
        self.machine.did(kind, name)
        if not self.alive:
            raise Killed

    def _dir(self, name: str) -> Dir:
        found: Inode | Dir = self.machine.root
        for part in name.split("/") if name else []:
            if not isinstance(found, Dir) or part not in found.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            found = found.entries[part]
        if not isinstance(found, Dir):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        return found

    def _at(self, name: str) -> tuple[Dir, str]:
        parent, _, last = name.rpartition("/")
        return self._dir(parent), last

    def _file(self, name: str) -> Inode:
        parent, last = self._at(name)
        found = parent.entries.get(last)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        if isinstance(found, Dir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        return found

    def kill(self) -> None:
        """End the process: descriptors and locks go, what it wrote stays in the page cache."""
        self.alive = False
        for fd in list(self._fds):
            self._forget(fd)

    def _forget(self, fd: int) -> None:
        inode, _ = self._fds.pop(fd)
        if inode.locked_by == (self, fd):
            inode.locked_by = None

    # -- files -----------------------------------------------------------------------------------------------

    def open(self, name: str, mode: str) -> int:
        self._enter("open", name)
        parent, last = self._at(name)
        found = parent.entries.get(last)
        if isinstance(found, Dir):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if found is None:
            if mode == "r":
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            found = Inode(self.machine.next_inode)
            self.machine.next_inode += 1
            found.links = 1
            Change((parent, last, found))
        elif mode == "x":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        fd = self._next
        self._next += 1
        self._fds[fd] = (found, name)
        if mode != "r":
            self._did("open", name)
        return fd

    def close(self, fd: int) -> None:
        if not self.alive:
            raise Killed
        self._forget(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("pread", name)
        assert inode is not None
        return bytes(inode.data[offset : offset + size])

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("pwrite", name)
        assert inode is not None
        inode.write(offset, bytes(data))
        self._did("pwrite", name)

    def truncate(self, fd: int, size: int) -> None:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("truncate", name)
        assert inode is not None
        inode.truncate(size)
        self._did("truncate", name)

    def allocate(self, fd: int, size: int) -> None:
        self.pwrite(fd, bytes(size), 0)

    def size(self, fd: int) -> int:
        if not self.alive:
            raise Killed
        return len(self._fds[fd][0].data)

    def fdatasync(self, fd: int) -> None:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("fdatasync", name)
        assert inode is not None
        # What was written while the flush ran need not be covered by it: flush first, then let others run.
        inode.flush()
        self._did("fdatasync", name)

    # -- names -----------------------------------------------------------------------------------------------

    def sync_dir(self, name: str) -> None:
        self._enter("sync_dir", name)
        for change in list(self._dir(name).changes):
            change.persist()
        self._did("sync_dir", name)

    def sync_all(self) -> None:
        self._enter("sync_all", "")

        def flush(directory: Dir) -> None:
            for change in list(directory.changes):
                change.persist()
            for found in directory.entries.values():
                if isinstance(found, Dir):
                    flush(found)
                else:
                    found.flush()

        flush(self.machine.root)
        self._did("sync_all", "")

    def listdir(self, name: str) -> list[str]:
        self._enter("listdir", name)
        return list(self._dir(name).entries)

    def mkdir(self, name: str) -> None:
        self._enter("mkdir", name)
        parent, last = self._at(name)
        if last in parent.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        Change((parent, last, Dir()))
        self._did("mkdir", name)

    def rmdir(self, name: str) -> None:
        self._enter("rmdir", name)
        if self._dir(name).entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        parent, last = self._at(name)
        Change((parent, last, None))
        self._did("rmdir", name)

    def rename(self, old: str, new: str) -> None:
        self._enter("rename", new)
        inode = self._file(old)
        (src, a), (dst, b) = self._at(old), self._at(new)
        replaced = dst.entries.get(b)
        if isinstance(replaced, Inode):
            replaced.links -= 1
        Change((src, a, None), (dst, b, inode))
        self._did("rename", new)

    def link(self, old: str, new: str) -> None:
        self._enter("link", new)
        inode = self._file(old)
        dst, b = self._at(new)
        if b in dst.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        inode.links += 1
        Change((dst, b, inode))
        self._did("link", new)

    def unlink(self, name: str) -> None:
        self._enter("unlink", name)
        inode = self._file(name)
        inode.links -= 1
        parent, last = self._at(name)
        Change((parent, last, None))
        self._did("unlink", name)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        self._enter("stat", name)
        try:
            inode = self._file(name)
        except (FileNotFoundError, IsADirectoryError):
            return None
        return inode.number, len(inode.data), len(inode.writes)

    # -- locks and hints ---------------------------------------------------------------------------------------

    def lock(self, fd: int, *, wait: bool) -> bool:
        self._enter("lock", "")
        inode = self._fds[fd][0]
        while inode.locked_by is not None and inode.locked_by != (self, fd):
            if not wait or self.machine.blocked is None:
                return False
            self.machine.blocked()
            if not self.alive:
                raise Killed
        inode.locked_by = (self, fd)
        return True

    def unlock(self, fd: int) -> None:
        inode = self._fds[fd][0]
        if inode.locked_by == (self, fd):
            inode.locked_by = None

    def open_hints(self, name: str) -> int | None:
        return None

    def open_bell(self, name: str) -> int | None:
        return None

    def ring(self, fd: int) -> bool:
        return False

    def wait_hint(self, fd: int | None, timeout_s: float) -> None:
        self._enter("wait", "")

    def free_bytes(self) -> int:
        return 1 << 40

    def release(self) -> None:
        pass
