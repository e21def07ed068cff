"""Every system call that filewheel makes on a wheel, behind one interface.

The rest of the library names files relative to the wheel ("journal/X.log") and holds plain descriptors; tests replace
the disk by one that can fail, tear and crash anywhere. This module does not interpret the bytes.

Directories are opened once. Files are opened relative to their descriptors, never by a full path, and symbolic links
are not followed: a wheel that is moved or replaced while open stays the wheel that was opened.
Errors are OSErrors. The caller knows the attempted operation and converts them to the library's errors.

Invariant: the descriptor of a lock is never duplicated or shared with a child, so a lock dies with its owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import threading
from collections import OrderedDict

from filewheel.disk import forks, pipe
from filewheel.disk.descriptors import LEAST, raised
from filewheel.env import SYSTEM_CLOCK, Env
from filewheel.native.compiled import Pen, make_pen, write_all

_BASE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODES = {
    "r": os.O_RDONLY | _BASE,
    "r+": os.O_RDWR | _BASE,
    "rw": os.O_RDWR | os.O_CREAT | _BASE,
    "w": os.O_RDWR | os.O_CREAT | _BASE,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL | _BASE,
}
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_LAP_DIRS_OPEN = 4
FILES_MIN = 16
"""With fewer free inodes a disk counts as full."""


class ForeignFile(OSError):
    """This name is not a regular file but a link, a pipe or a directory. It stays as it is."""

    hint = "`filewheel verify` reports the consequences; `filewheel repair` puts it aside"
    is_foreign = True


_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
_BROKEN = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
NO_DIRECTORY = (FileNotFoundError, NotADirectoryError)
"""Errors of a listing that mean that the directory is missing. Any other error leaves its content unknown."""
_FOREIGN = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})


def is_scarce(exc: BaseException) -> bool:
    """Return whether an error is about this process or machine, not about the file or another wheel."""
    return getattr(exc, "errno", None) in _SCARCE


def is_unreadable(exc: OSError) -> bool:
    """Return whether an error of a read means unreadable content: a bad medium, a foreign file.

    Any other error (too many open files, no permission, a stale handle) may be transient, and so is one of an open.
    """
    return isinstance(exc, ForeignFile) or exc.errno in _BROKEN or exc.errno == errno.ENOTDIR


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):
        more = os.pwrite(fd, data[done:], offset + done)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


class OsDisk:
    """The real disk. Thread-safe; cost of each call: that of the system call plus about 1 µs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._root = raised(os.open(path, _DIR_FLAGS & ~os.O_NOFOLLOW))
        self._forks = forks.now()
        self._dirs: dict[str, int] = {"": self._root}
        self._lap_dirs: OrderedDict[str, int] = OrderedDict()
        self._locked: set[int] = set()
        # Guards the directory descriptors between look-up and use.
        self._mutex = threading.RLock()

    # -- directories ---------------------------------------------------------------------------------------

    def _dir(self, name: str) -> int:
        fd = self._dirs.get(name)
        if fd is not None:
            return fd
        if self._root < 0:  # released: without this, -1 would read as a missing name
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        parent, _, last = name.rpartition("/")
        if not parent:
            fd = os.open(last, _DIR_FLAGS, dir_fd=self._root)
            self._dirs[name] = fd = fd if fd >= LEAST else raised(fd)
            return fd
        fd = self._lap_dirs.get(name)
        if fd is None:
            fd = os.open(last, _DIR_FLAGS, dir_fd=self._dir(parent))
            self._lap_dirs[name] = fd = fd if fd >= LEAST else raised(fd)
            while len(self._lap_dirs) > _LAP_DIRS_OPEN:
                os.close(self._lap_dirs.popitem(last=False)[1])
        return fd

    def _forget_dir(self, name: str) -> None:
        for cache in (self._dirs, self._lap_dirs):
            fd = cache.pop(name, None)
            if fd is not None:
                os.close(fd)

    def _at(self, name: str) -> tuple[int, str]:
        parent, _, last = name.rpartition("/")
        fd = self._dirs.get(parent)
        return self._dir(parent) if fd is None else fd, last

    def listdir(self, name: str) -> list[str]:
        # Reopened each time: a directory need not list names added after it was opened. On btrfs it does not, and the
        # new journal of another process would be missing until the listing after the next.
        with self._mutex:
            fd = os.open(".", _DIR_FLAGS, dir_fd=self._dir(name))
        try:
            names = os.listdir(fd)
            was_removed = bool(name) and not names and os.fstat(fd).st_nlink == 0
        finally:
            os.close(fd)
        if not was_removed:
            return names
        with self._mutex:
            self._forget_dir(name)
        return self.listdir(name)  # it may exist again

    def mkdir(self, name: str) -> None:
        with self._mutex:
            parent, last = self._at(name)
            os.mkdir(last, 0o700, dir_fd=parent)
            os.chmod(last, 0o700, dir_fd=parent)  # whatever the umask took

    def rmdir(self, name: str) -> None:
        with self._mutex:
            parent, last = self._at(name)
            os.rmdir(last, dir_fd=parent)
            self._forget_dir(name)

    def sync_dir(self, name: str) -> None:
        with self._mutex:
            fd = os.dup(self._dir(name))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        if _syncfs(self._root) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), self.path)

    # -- files ---------------------------------------------------------------------------------------------

    def open(self, name: str, mode: str) -> int:
        try:
            with self._mutex:
                parent, last = self._at(name)
                try:
                    fd = os.open(last, _MODES[mode], 0o600, dir_fd=parent)
                except FileNotFoundError:
                    # The directory may have been removed and made again since it was opened.
                    where = name.rpartition("/")[0]
                    if not where or os.fstat(parent).st_nlink:
                        raise
                    self._forget_dir(where)
                    parent, last = self._at(name)
                    fd = os.open(last, _MODES[mode], 0o600, dir_fd=parent)
            fd = fd if fd >= LEAST else raised(fd)
        except OSError as exc:
            if exc.errno in _FOREIGN and self._is_foreign(name):
                raise ForeignFile(exc.errno, "not a regular file", name) from exc
            raise
        try:
            info = os.fstat(fd)
            if mode != "r" and info.st_mode & 0o600 != 0o600:
                os.fchmod(fd, 0o600)  # a umask took the owner's rights: the next process could not open it
        except BaseException:  # an interrupt (Ctrl-C) too
            os.close(fd)
            raise
        if stat.S_ISREG(info.st_mode) and (mode == "r" or info.st_nlink <= 1):
            return fd
        os.close(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ForeignFile(errno.EINVAL, "not a regular file", name)
        if mode != "w":
            raise ForeignFile(errno.EMLINK, "it has another name (a hard link) and would change there too", name)
        self.unlink(name)
        return self.open(name, "x")

    def _is_foreign(self, name: str) -> bool:
        with self._mutex:
            parent, last = self._at(name)
            return not stat.S_ISREG(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode)

    def close(self, fd: int) -> None:
        try:
            if fd in self._locked:
                self._free(fd)
        finally:  # an interrupt (Ctrl-C) leaves no file open that stays locked
            try:
                os.close(fd)
            except OSError as exc:
                # The descriptor is closed in spite of the error. Durable data was flushed before.
                if exc.errno == errno.EBADF:
                    raise

    def _free(self, fd: int) -> None:
        try:
            # A child of an undetected fork may hold a copy: an unlock frees the lock in all copies.
            with contextlib.suppress(OSError):  # without such a copy, closing is enough
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:  # or a later file with this number would be taken from children
            self._forget_lock(fd)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # short: a signal or the end of the file; read on until the end
        got = len(data)
        while got < size and data:
            data = os.pread(fd, size - got, offset + got)
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    pwrite = staticmethod(write_all or _write_all)

    def pen(
        self, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int, number: int, synced: int
    ) -> Pen | None:
        if make_pen is None or type(self) is not OsDisk:
            return None  # a subclass with its own pwrite would not see the pen's writes
        return make_pen(fd, low, seq, seq_end, seed, offset, end, number, synced)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as exc:
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            self.pwrite(fd, bytes(size), 0)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def is_removed(self, fd: int) -> bool:
        # Not by a stat: with the kernel's fine timestamps, the next write after a stat dirties the inode, and a flush
        # takes a fifth longer (measured on Linux 6, ext4).
        try:
            return os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)")
        except OSError:
            return False  # no such /proc: unknown

    def is_named(self, fd: int, name: str) -> bool:
        known = self.identity(name)
        return known is not None and known[0] == os.fstat(fd).st_ino

    def data_from(self, fd: int, offset: int) -> int:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return max(offset, self.size(fd))
            return offset  # not supported by the file system

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            src, a = self._at(old)
            dst, b = self._at(new)
            os.rename(a, b, src_dir_fd=src, dst_dir_fd=dst)

    def link(self, old: str, new: str) -> None:
        with self._mutex:
            src, a = self._at(old)
            dst, b = self._at(new)
            os.link(a, b, src_dir_fd=src, dst_dir_fd=dst, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        with self._mutex:
            parent, last = self._at(name)
            os.unlink(last, dir_fd=parent)

    def identity(self, name: str) -> tuple[int, int, int] | None:
        try:
            with self._mutex:
                parent, last = self._at(name)
                info = os.stat(last, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISREG(info.st_mode):
            return None
        return info.st_ino, info.st_size, info.st_mtime_ns

    # -- locks ---------------------------------------------------------------------------------------------

    def lock(self, fd: int, *, wait: bool) -> bool:
        taken = False
        try:
            # Before the lock is taken: a child forked during the wait would inherit the lock with its copy.
            forks.keep_from_children(fd)
            self._locked.add(fd)
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = True
        except BlockingIOError:
            pass  # another open file has it
        finally:
            if not taken:
                self._forget_lock(fd)
        return taken

    def is_free(self, fd: int) -> bool:
        # Shared: two concurrent tests must not take each other for a live writer.
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # mutant: look-takes-it
        except BlockingIOError:
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        return True

    def unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)
        self._forget_lock(fd)

    def _forget_lock(self, fd: int) -> None:
        self._locked.discard(fd)
        forks.let_children_have(fd)

    # -- hints ---------------------------------------------------------------------------------------------

    def open_hints(self, name: str) -> int | None:
        return pipe.make(self._root, name)

    def open_hint(self, name: str) -> int | None:
        return pipe.open_end(self._root, name, os.O_WRONLY)

    send_hint = staticmethod(pipe.send)
    wait_hint = staticmethod(pipe.wait)

    # -- the whole -----------------------------------------------------------------------------------------

    def free_bytes(self) -> int:
        info = os.fstatvfs(self._root)
        if info.f_files and info.f_favail < FILES_MIN:  # some file systems count no inodes
            return 0
        return info.f_bavail * info.f_frsize

    def free_files(self) -> int | None:
        info = os.fstatvfs(self._root)
        return info.f_favail if info.f_files else None

    def release(self) -> None:
        with self._mutex:
            self._release()

    def _release(self) -> None:
        fds = [*self._dirs.values(), *self._lap_dirs.values()]
        self._dirs.clear()
        self._lap_dirs.clear()
        self._root = -1  # its number may be reused
        for fd in fds:
            os.close(fd)

    def __del__(self) -> None:
        # Without the mutex: no other thread has this object. In a forked child the numbers may be those of its files.
        with contextlib.suppress(Exception):
            if self._forks == forks.now():
                self._release()


_syncfs = ctypes.CDLL(None, use_errno=True).syncfs
_syncfs.argtypes = [ctypes.c_int]


SYSTEM = Env(SYSTEM_CLOCK, OsDisk, os.urandom)
"""The machine's own clocks, disks and random bytes."""
