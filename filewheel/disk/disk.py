"""Every system call that filewheel makes on a wheel, behind one seam.

The rest of the library names files relative to the wheel ("journal/X.log") and holds plain descriptors; a test
gives it another disk that can fail, tear and crash anywhere. Nothing here interprets what it reads or writes.

Directories are opened once and everything inside is reached through their descriptors, never through a path,
and no symbolic link is followed: a wheel that is moved or swapped while open stays the wheel that was opened.
Errors leave as OSError. The caller, which knows the attempted operation, turns them into members of the error tree.

Invariant: no descriptor of a lock is ever duplicated or shared with a child, so a lock dies with its owner.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable

from filewheel.disk import forks, pipe
from filewheel.env import SYSTEM_CLOCK, Env
from filewheel.native.compiled import Pen, make_pen, write_all

_BASE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # mutant: links-followed
_MODES = {
    "r": os.O_RDONLY | _BASE,
    "r+": os.O_RDWR | _BASE,
    "rw": os.O_RDWR | os.O_CREAT | _BASE,
    "w": os.O_RDWR | os.O_CREAT | _BASE,
    "x": os.O_RDWR | os.O_CREAT | os.O_EXCL | _BASE,
}
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_LAP_DIRS_OPEN = 4


class ForeignFile(OSError):
    """Something is there under this name that is no regular file: a link, a pipe, a directory. It is left alone."""

    hint = "`filewheel verify` says what fails because of it; `filewheel repair` puts it aside"
    is_foreign = True


SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})
"""Errors that say something about this process or machine, and nothing about the file that was to be opened."""
_BROKEN = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG})
NO_DIRECTORY = (FileNotFoundError, NotADirectoryError)
"""Errors of a listing that say that no such directory is there. Any other one says nothing about what is in it."""
_FOREIGN = frozenset({errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV})


def is_scarce(exc: BaseException) -> bool:
    """Tell whether an error is about this process or machine: of the file, or of another wheel, it says nothing."""
    return getattr(exc, "errno", None) in SCARCE


def is_unreadable(exc: OSError) -> bool:
    """Tell whether an error of opening a file says that its content is out of reach: a bad medium, something foreign.

    Any other error (too many open files, no permission, a stale handle) may be over in a moment.
    """
    return isinstance(exc, ForeignFile) or exc.errno in _BROKEN or exc.errno == errno.ENOTDIR


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = os.pwrite(fd, data, offset)
    while done < len(data):  # mutant: short-write
        more = os.pwrite(fd, data[done:], offset + done)
        if more == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += more


class OsDisk:
    """The real disk. Thread-safe; cost of each call: that of the system call plus about 1 µs."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._root = os.open(path, _DIR_FLAGS & ~os.O_NOFOLLOW)
        self._dirs: dict[str, int] = {"": self._root}
        self._lap_dirs: OrderedDict[str, int] = OrderedDict()
        self._locked: set[int] = set()
        # Guards the directory descriptors: one must not be closed between its look-up and its use.
        self._mutex = threading.RLock()

    # -- directories ---------------------------------------------------------------------------------------

    def _dir(self, name: str) -> int:
        fd = self._dirs.get(name)
        if fd is not None:
            return fd
        if self._root < 0:  # released: an empty name would be one that is not there  # mutant: closed-is-missing
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        parent, _, last = name.rpartition("/")
        if not parent:
            fd = self._dirs[name] = os.open(last, _DIR_FLAGS, dir_fd=self._root)
            return fd
        fd = self._lap_dirs.get(name)
        if fd is None:
            fd = os.open(last, _DIR_FLAGS, dir_fd=self._dir(parent))
            self._lap_dirs[name] = fd
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
        return self._dir(parent), last

    def listdir(self, name: str) -> list[str]:
        # Opened again each time: a directory need not show names added after it was opened, and on btrfs it does
        # not, which would hide a journal that another process has made until the listing after the next.
        with self._mutex:
            fd = os.open(".", _DIR_FLAGS, dir_fd=self._dir(name))
        try:
            names = os.listdir(fd)
            was_removed = bool(name) and not names and os.fstat(fd).st_nlink == 0  # mutant: listing-of-the-dead
        finally:
            os.close(fd)
        if not was_removed:
            return names
        with self._mutex:
            self._forget_dir(name)
        return self.listdir(name)  # it may have been made again

    def mkdir(self, name: str) -> None:
        with self._mutex:
            parent, last = self._at(name)
            os.mkdir(last, 0o700, dir_fd=parent)

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
        if _syncfs is None:
            os.sync()
        elif _syncfs(self._root) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), self.path)

    # -- files ---------------------------------------------------------------------------------------------

    def open(self, name: str, mode: str) -> int:
        try:
            fd = self._open(name, mode)
        except OSError as exc:
            if exc.errno in _FOREIGN:
                raise ForeignFile(exc.errno, "not a regular file", name) from exc
            raise
        try:
            info = os.fstat(fd)
        except OSError:
            os.close(fd)  # mutant: open-leaks
            raise
        if stat.S_ISREG(info.st_mode) and (mode == "r" or info.st_nlink <= 1):  # mutant: link-written pipes-opened
            return fd
        os.close(fd)
        if not stat.S_ISREG(info.st_mode):
            raise ForeignFile(errno.EINVAL, "not a regular file", name)
        if mode != "w":  # mutant: link-kept
            raise ForeignFile(errno.EMLINK, "it has another name (a hard link) and would change there too", name)
        self.unlink(name)
        return self.open(name, "x")

    def _open(self, name: str, mode: str) -> int:
        with self._mutex:
            parent, last = self._at(name)
            try:
                return os.open(last, _MODES[mode], 0o600, dir_fd=parent)
            except FileNotFoundError:
                # The directory may have been removed, and made again, since it was opened.
                where = name.rpartition("/")[0]
                if not where or os.fstat(parent).st_nlink:
                    raise
                self._forget_dir(where)
                parent, last = self._at(name)
                return os.open(last, _MODES[mode], 0o600, dir_fd=parent)

    def close(self, fd: int) -> None:
        if fd in self._locked:
            # A child of an unseen fork may hold a copy: unlocking frees the lock in all copies.
            with contextlib.suppress(OSError):  # closing frees it as well, but for such a copy
                self.unlock(fd)  # mutant: lock-not-freed
            self._forget_lock(fd)
        try:
            os.close(fd)
        except OSError as exc:
            # The descriptor is closed whatever the error. All that must be durable was flushed before.
            if exc.errno == errno.EBADF:  # mutant: close-fails
                raise

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]  # short: the end of the file, or a signal; ask until it says so
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
            return None  # a disk that does more than this one with a write would miss what a pen writes
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
        # Not by a stat: where the kernel keeps fine timestamps, the next write to a file that was looked at dirties its
        # inode, and a flush takes a fifth longer (measured on Linux 6, ext4).
        try:
            return os.readlink(f"/proc/self/fd/{fd}").endswith(" (deleted)")
        except OSError:
            return False  # no such /proc here: then a flush says nothing of the name

    def is_named(self, fd: int, name: str) -> bool:
        known = self.identity(name)
        return known is not None and known[0] == os.fstat(fd).st_ino

    def data_from(self, fd: int, offset: int) -> int:
        try:
            return os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return max(offset, self.size(fd))
            return offset  # a file system that does not know

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

    # Imported when needed: without it a reader starts in half of the time.

    def lock(self, fd: int, *, wait: bool) -> bool:
        from filewheel.disk import flock

        return self._lock(fd, lambda: flock.take(fd, wait=wait))

    def share(self, fd: int) -> bool:
        from filewheel.disk import flock

        return self._lock(fd, lambda: flock.share(fd))

    def _lock(self, fd: int, take: Callable[[], bool]) -> bool:
        # Before it is taken: a child that is forked while this waits would be handed the lock with its copy.
        forks.keep_from_children(fd)  # mutant: lock-handed-to-child
        self._locked.add(fd)  # mutant: lock-handed-to-child.2
        taken = False
        try:
            taken = take()
        finally:
            if not taken:  # mutant: lock-handed-to-child.3
                self._forget_lock(fd)
        return taken

    def is_free(self, fd: int) -> bool:
        # Shared: of two that ask at once neither must take the other for a writer that lives. Readers ask too, and do
        # without that import.
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # mutant: look-takes-it
        except BlockingIOError:
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        return True

    def unlock(self, fd: int) -> None:
        from filewheel.disk import flock

        flock.let_go(fd)
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
        return info.f_bavail * info.f_frsize

    def release(self) -> None:
        with self._mutex:
            self._release()

    def _release(self) -> None:
        fds = [*self._dirs.values(), *self._lap_dirs.values()]
        self._dirs.clear()
        self._lap_dirs.clear()
        self._root = -1  # its number may be another file's soon
        for fd in fds:
            os.close(fd)

    def __del__(self) -> None:
        # Without the mutex: no other thread has this object, and in a child a thread of the parent may hold the mutex.
        with contextlib.suppress(Exception):
            self._release()  # mutant: child-waits-for-nobody


def _find_syncfs() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    return function


_syncfs = _find_syncfs()

SYSTEM = Env(SYSTEM_CLOCK, OsDisk, secrets.token_bytes)
"""The machine's own clocks, disks and random bytes."""
