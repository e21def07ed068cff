"""A quota of bytes in this process, exact to the byte: what the operating system says when a disk is nearly full.

It stands between `filewheel.disk.disk` and the system calls, so that the library's own handling of short writes is
tried. Files may grow by so many bytes in all; what is truncated or removed is given back. File systems give space in
blocks of 4 KiB, so none of them can be left with exactly 1,234 bytes; this can. As some of them do, it writes what
still fits and tells so (XFS, tmpfs), or nothing (ext4, btrfs).
Invariant: `left` is what files may still grow by; None is no limit.
"""

from __future__ import annotations

import errno
import os
import stat
import types
from typing import Any


class Quota:
    """What `filewheel.disk.disk` sees as `os`."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.short = True
        """Whether a write that does not fit is cut short, or refused whole."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _take(self, size: int) -> None:
        if self.left is None:
            return
        if size > self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= size

    def _give_back(self, info: os.stat_result) -> None:
        if self.left is not None and stat.S_ISREG(info.st_mode) and info.st_nlink == 1:
            self.left += info.st_size

    def open(self, name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & os.O_CREAT and self.left == 0:
            try:
                os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
            except FileNotFoundError:
                self._take(1)  # no room for a name either
        return os.open(name, flags, mode, dir_fd=dir_fd)

    def mkdir(self, name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if self.left == 0:
            self._take(1)
        os.mkdir(name, mode, dir_fd=dir_fd)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        grows = max(0, offset + len(data) - os.fstat(fd).st_size)
        if self.left is not None and grows > self.left and self.short:
            data = data[: max(0, len(data) - (grows - self.left))]
            if data:
                grows = self.left
        self._take(grows)
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        grows = size - os.fstat(fd).st_size
        self._take(grows)
        os.ftruncate(fd, size)

    def posix_fallocate(self, fd: int, offset: int, size: int) -> None:
        self._take(max(0, offset + size - os.fstat(fd).st_size))
        os.posix_fallocate(fd, offset, size)

    def unlink(self, name: str, *, dir_fd: int | None = None) -> None:
        info = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        os.unlink(name, dir_fd=dir_fd)
        self._give_back(info)

    def rename(self, old: str, new: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        try:
            info = os.stat(new, dir_fd=dst_dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            info = None
        os.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if info is not None:
            self._give_back(info)

    def fstatvfs(self, fd: int) -> Any:
        if self.left is None:
            return os.fstatvfs(fd)
        return types.SimpleNamespace(f_bavail=self.left, f_frsize=1, f_files=0)
