"""What one process sees of a modelled machine: the Disk that the library is given, with faults on request.

Its descriptors and its locks die with it; what it wrote stays in the machine's page cache.
Errors of write-back are told as Linux tells them: each descriptor that was open hears of one once, a descriptor opened
later only if nobody has heard yet; the pages are clean then, and their data gone at the next power cut.
Invariant: a process that was killed makes no further call.
"""

from __future__ import annotations

import errno
import os

from filewheel.format import layout
from tests.model.machine import Change, Dir, Inode, Machine
from tests.model.pen import ModelPen

_PAGE = 128


class Killed(BaseException):
    """The process was killed: nothing of it runs on."""


class ProcessDisk:
    """One process's view of a machine: the Disk that the library is given."""

    def __init__(self, machine: Machine, path: str = "model.wheel") -> None:
        self.path = path
        self.machine = machine
        self.alive = True
        self._fds: dict[int, tuple[Inode, str]] = {}
        self._heard: dict[int, int] = {}
        """For each descriptor, up to which failure of write-back it was told."""
        self._heard_all = machine.errors
        self._next = 3

    # -- helpers ---------------------------------------------------------------------------------------------

    def _enter(self, kind: str, name: str) -> None:
        if not self.alive:
            raise Killed
        if name in (layout.PAUSED, layout.PURGED) and name not in self.machine.root.entries:
            return  # nothing was ever paused or purged: a look may come before or after what another does
        if self.machine.before_op is not None:
            self.machine.before_op(kind, name)
            if not self.alive:
                raise Killed

    def _may_fail(self, kind: str, name: str) -> int | None:
        return self.machine.fault(kind, name) if self.machine.fault is not None else None

    def _fail(self, kind: str, name: str) -> None:
        code = self._may_fail(kind, name)
        if code is not None:
            raise OSError(code, os.strerror(code), name)

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
        self._heard.pop(fd, None)
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
            if mode in ("r", "r+"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            self._fail("open", name)
            found = Inode(self.machine.next_inode)
            self.machine.next_inode += 1
            found.links = 1
            Change((parent, last, found))
        elif mode == "x":
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        fd = self._next
        self._next += 1
        self._fds[fd] = (found, name)
        self._heard[fd] = found.told
        if mode not in ("r", "r+"):
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
        data = bytes(inode.data[offset : offset + size])
        if self.machine.mid_read is not None and len(data) > _PAGE:
            # A read is not atomic beside a write: its pages may be of different moments.
            self.machine.mid_read("mid_read", name)
            if not self.alive:
                raise Killed
            first = _PAGE - offset % _PAGE
            data = data[:first] + bytes(inode.data[offset + first : offset + size])
        return data if self.machine.flip is None else self.machine.flip(name, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> None:
        inode, name = self.file_of(fd)
        code = self.write(inode, name, data, offset)
        self.did_write(name)
        if code is not None:
            raise OSError(code, os.strerror(code), name)

    def file_of(self, fd: int) -> tuple[Inode, str]:
        """Let others run, and return the file that is written to next."""
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("pwrite", name)
        assert inode is not None
        return inode, name

    def write(self, inode: Inode, name: str, data: bytes, offset: int) -> int | None:
        """Write as far as the machine lets it; return the error."""
        code, room = self._may_fail("pwrite", name), len(data)
        if self.machine.budget_bytes is not None and offset + len(data) > len(inode.data):
            left = self.machine.budget_bytes - self.machine.used_bytes() + len(inode.data) - offset
            if left < len(data):
                code, room = errno.ENOSPC, max(0, left)
        if code is None:
            inode.write(offset, bytes(data))
        elif room:  # a part of it got there, and nobody says which
            inode.write(offset, bytes(data[: room if room < len(data) else len(data) // 2]))
        return code

    def did_write(self, name: str) -> None:
        """Count a write, and let it be the last thing that happened."""
        self._did("pwrite", name)

    def pen(
        self, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int, number: int, synced: int
    ) -> ModelPen:
        return ModelPen(self, fd, low, seq, seq_end, seed, offset, end, number, synced)

    def truncate(self, fd: int, size: int) -> None:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("truncate", name)
        assert inode is not None
        inode.truncate(size)
        self._did("truncate", name)

    def allocate(self, fd: int, size: int) -> None:
        self.pwrite(fd, bytes(size), 0)

    def is_removed(self, fd: int) -> bool:
        return False  # the rules are to hold without that help

    def is_named(self, fd: int, name: str) -> bool:
        return True  # nobody removes the lock of a keeper here

    def data_from(self, fd: int, offset: int) -> int:
        return offset

    def size(self, fd: int) -> int:
        self._enter("size", self._fds[fd][1] if self.alive else "")
        return len(self._fds[fd][0].data)

    def fdatasync(self, fd: int) -> None:
        inode, name = self._fds[fd] if self.alive else (None, "")
        self._enter("fdatasync", name)
        assert inode is not None
        if self._may_fail("fdatasync", name) is not None:
            inode.lose(evict=inode.number % 2 == 0)
            self.machine.errors += 1
        # What was written while the flush ran need not be covered by it: flush first, then let others run.
        inode.flush()
        self._did("fdatasync", name)
        if self.machine.after_flush is not None:
            self.machine.after_flush()
            if not self.alive:
                raise Killed
        if inode.errors > self._heard[fd]:
            self._heard[fd] = inode.told = inode.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    # -- names -----------------------------------------------------------------------------------------------

    def sync_dir(self, name: str) -> None:
        self._enter("sync_dir", name)
        self._fail("sync_dir", name)
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

        if self._may_fail("sync_all", "") is not None:
            self.machine.lose_all(evict=self.machine.ops % 2 == 0)
        flush(self.machine.root)
        self._did("sync_all", "")
        if self.machine.errors > self._heard_all:
            self._heard_all = self.machine.errors
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def listdir(self, name: str) -> list[str]:
        self._enter("listdir", name)
        return list(self._dir(name).entries)

    def mkdir(self, name: str) -> None:
        self._enter("mkdir", name)
        self._fail("mkdir", name)
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
        self._fail("rename", new)
        inode = self._file(old)
        (src, a), (dst, b) = self._at(old), self._at(new)
        replaced = dst.entries.get(b)
        if isinstance(replaced, Inode):
            replaced.links -= 1
        Change((src, a, None), (dst, b, inode))
        self._did("rename", new)

    def link(self, old: str, new: str) -> None:
        self._enter("link", new)
        self._fail("link", new)
        inode = self._file(old)
        dst, b = self._at(new)
        if b in dst.entries:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        inode.links += 1
        Change((dst, b, inode))
        self._did("link", new)

    def unlink(self, name: str) -> None:
        self._enter("unlink", name)
        self._fail("unlink", name)
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
        while inode.locked_by not in (None, (self, fd)):
            if not wait or self.machine.blocked is None:
                return False
            self.machine.blocked()
            if not self.alive:
                raise Killed
        inode.locked_by = (self, fd)
        return True

    def is_free(self, fd: int) -> bool:
        self._enter("lock", "")
        return self._fds[fd][0].locked_by in (None, (self, fd))

    def unlock(self, fd: int) -> None:
        inode = self._fds[fd][0]
        if inode.locked_by == (self, fd):
            inode.locked_by = None

    def open_hints(self, name: str) -> int | None:
        return None

    def open_hint(self, name: str) -> int | None:
        return None

    def send_hint(self, fd: int) -> bool:
        return False

    def wait_hint(self, fd: int | None, timeout_s: float) -> bool:
        self._enter("wait", "")
        return False

    def free_bytes(self) -> int:
        budget = self.machine.budget_bytes
        return 1 << 40 if budget is None else max(0, budget - self.machine.used_bytes())

    def free_files(self) -> int | None:
        return None

    def release(self) -> None:
        pass
