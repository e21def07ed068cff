"""A disk in memory that starts from an image and is thrown away: thousands of them a second.

The campaigns of damage open a keeper on hundreds of thousands of states that differ in a few bytes. An `Image` is what
all of them share; a `MemoryDisk` is one process's disk on it, which copies only what it changes. It models no caches
and no crashes (tests/model/machine.py does): what is written is there.
Invariant: nothing that is done to a MemoryDisk changes its image.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

from tests.model.machine import Dir, Machine

SIZE_MAX = 8 << 20
"""A larger file does not fit: there are no holes here."""


class Image:
    """The files and directories of a wheel: names relative to it."""

    def __init__(self, files: Mapping[str, bytes], dirs: Iterable[str], locked: Iterable[str] = ()) -> None:
        self.files = dict(files)
        self.locked = frozenset(locked)
        """The files of which another process, which lives, holds the lock."""
        self.entries: dict[str, dict[str, None]] = {"": {}}
        for name in dirs:
            self.entries[name] = {}
        for name in sorted([*self.files, *dirs]):
            parent, _, last = name.rpartition("/")
            self.entries[parent][last] = None

    @classmethod
    def of(cls, machine: Machine, locked: Iterable[str] = ()) -> Image:
        """Take what processes see on a modelled machine."""
        files: dict[str, bytes] = {}
        dirs: list[str] = []

        def walk(directory: Dir, prefix: str) -> None:
            for last, found in directory.entries.items():
                if isinstance(found, Dir):
                    dirs.append(prefix + last)
                    walk(found, f"{prefix}{last}/")
                else:
                    files[prefix + last] = bytes(found.data)

        walk(machine.root, "")
        return cls(files, dirs, locked)

    def write_to(self, path: str, changes: Mapping[str, bytes]) -> None:
        """Make a real directory of it, with some files changed."""
        for name in sorted(self.entries):
            if name:
                os.mkdir(f"{path}/{name}", 0o700)
        for name, data in (self.files | dict(changes)).items():
            with open(f"{path}/{name}", "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
                file.write(data)


class File:
    """A file that is open, or was changed."""

    __slots__ = ("data", "number", "version")

    def __init__(self, number: int, data: bytes | bytearray) -> None:
        self.number = number
        self.data = data
        self.version = 0

    def writable(self) -> bytearray:
        """Return the data to be changed in place."""
        self.version += 1
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        return self.data


class MemoryDisk:
    """One process's disk: an image, with some files changed from the start."""

    def __init__(self, image: Image, changes: Mapping[str, bytes] | None = None, path: str = "memory.wheel") -> None:
        self.path = path
        self._image = image
        self.changes = changes or {}
        self.locked = set(image.locked)
        self._files: dict[str, File | None] = {}
        self._entries: dict[str, dict[str, None] | None] = {}
        self._fds: dict[int, File] = {}
        self._held: set[int] = set()
        """Descriptors of files that another process has locked."""
        self._next = 3
        self._inode = 0

    # -- looking up ------------------------------------------------------------------------------------------

    def _listing(self, name: str) -> dict[str, None]:
        found = self._entries[name] if name in self._entries else self._image.entries.get(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return found

    def _own_listing(self, name: str) -> dict[str, None]:
        """Return a directory's entries, to be changed."""
        if name not in self._entries:
            self._entries[name] = dict(self._listing(name))
        return self._listing(name)

    def _file(self, name: str) -> File | None:
        if name in self._files:
            return self._files[name]
        data = self.changes.get(name)
        if data is None:
            data = self._image.files.get(name)
        file = None if data is None else self._new(data)
        self._files[name] = file
        return file

    def _new(self, data: bytes) -> File:
        self._inode += 1
        return File(self._inode, data)

    def _there(self, name: str) -> File:
        file = self._file(name)
        if file is None:
            if name in self._entries or name in self._image.entries:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return file

    def _name(self, name: str, file: File | None) -> None:
        """Let a name mean a file, or nothing."""
        parent, _, last = name.rpartition("/")
        entries = self._own_listing(parent)
        if file is None:
            entries.pop(last, None)
        else:
            entries[last] = None
        self._files[name] = file

    def contents(self, directory: str) -> dict[str, bytes]:
        """Return the files of a directory as they are now."""
        names = [f"{directory}/{last}" for last in self._listing(directory)]
        return {n: bytes(f.data) for n in names if (f := self._file(n)) is not None}

    # -- files -----------------------------------------------------------------------------------------------

    def open(self, name: str, mode: str) -> int:
        file = self._file(name)
        if file is None:
            if mode in ("r", "r+") or name in self._image.entries:
                self._there(name)
            self._listing(name.rpartition("/")[0])
            file = self._new(b"")
            self._name(name, file)
        elif mode == "x":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        fd = self._next
        self._next += 1
        self._fds[fd] = file
        if name in self.locked:
            self._held.add(fd)
        return fd

    def close(self, fd: int) -> None:
        del self._fds[fd]

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        if size < 0 or offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return bytes(self._fds[fd].data[offset : offset + size])

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        if offset + len(data) > SIZE_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        target = self._fds[fd].writable()
        if offset > len(target):
            target.extend(bytes(offset - len(target)))
        target[offset : offset + len(data)] = data

    def pen(self, fd: int, *where: object) -> None:
        """Give none: nothing here writes so much that a pen would pay."""

    def truncate(self, fd: int, size: int) -> None:
        if size > SIZE_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        target = self._fds[fd].writable()
        del target[size:]
        target.extend(bytes(size - len(target)))

    def allocate(self, fd: int, size: int) -> None:
        self.truncate(fd, max(size, self.size(fd)))

    def is_removed(self, fd: int) -> bool:
        return False  # the rules are to hold without that help

    def is_named(self, fd: int, name: str) -> bool:
        return True  # nobody removes the lock of a keeper here

    def data_from(self, fd: int, offset: int) -> int:
        return offset

    def size(self, fd: int) -> int:
        return len(self._fds[fd].data)

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_dir(self, name: str) -> None:
        self._listing(name)

    def sync_all(self) -> None:
        pass

    # -- names -----------------------------------------------------------------------------------------------

    def listdir(self, name: str) -> list[str]:
        return list(self._listing(name))

    def mkdir(self, name: str) -> None:
        parent, _, last = name.rpartition("/")
        if last in self._listing(parent):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        self._own_listing(parent)[last] = None
        self._entries[name] = {}

    def rmdir(self, name: str) -> None:
        if self._listing(name):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)
        parent, _, last = name.rpartition("/")
        del self._own_listing(parent)[last]
        self._entries[name] = None

    def rename(self, old: str, new: str) -> None:
        file = self._there(old)
        self._name(old, None)
        self._name(new, file)

    def link(self, old: str, new: str) -> None:
        file = self._there(old)
        if self._file(new) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._name(new, file)

    def unlink(self, name: str) -> None:
        self._there(name)
        self._name(name, None)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        file = self._file(name)
        return None if file is None else (file.number, len(file.data), file.version)

    # -- locks and hints -------------------------------------------------------------------------------------

    def lock(self, fd: int, *, wait: bool) -> bool:
        return not (self.locked and fd in self._held)

    def is_free(self, fd: int) -> bool:
        return not (self.locked and fd in self._held)

    def unlock(self, fd: int) -> None:
        pass

    def let_go(self) -> None:
        """End the processes that held locks."""
        self.locked.clear()
        self._held.clear()

    def open_hints(self, name: str) -> int | None:
        return None

    def open_hint(self, name: str) -> int | None:
        return None

    def send_hint(self, fd: int) -> bool:
        return False

    def wait_hint(self, fd: int | None, timeout_s: float) -> bool:
        return False

    def free_bytes(self) -> int:
        return 1 << 40

    def free_files(self) -> int | None:
        return None

    def release(self) -> None:
        pass
