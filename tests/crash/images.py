"""File systems in image files: made once for each process that plays rounds, mounted, cut off, and cleaned away.

Needs root and loop devices. Invariant: when `image(...)` ends, or this process is told to end, nothing is mounted and
no loop device is held; what a killed process left is only an image in a temporary directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32), the same for ext4 and XFS
LOG_FLUSHED, LOG_NOT_FLUSHED = 1, 2
MIB = 1 << 20
MAKE: dict[str, tuple[str, ...]] = {
    "ext4": ("mkfs.ext4", "-qF", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-qfK"),
    "btrfs": ("mkfs.btrfs", "-qfK"),
}


@dataclass
class Image:
    """One file system of our own."""

    kind: str
    device: str
    mount_point: Path
    options: list[str] = field(default_factory=list)

    def mount(self) -> None:
        """Mount it; that replays its journal."""
        run("mount", "-t", self.kind, *self.options, self.device, str(self.mount_point))

    def umount(self) -> None:
        """Unmount it."""
        run("umount", str(self.mount_point))

    def cut(self, how: int) -> None:
        """Cut the power: from now on nothing reaches the device, and what had not is lost."""
        fd = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", how))
        finally:
            os.close(fd)


def run(*command: str) -> str:
    """Run a command; return what it printed. Raises OSError with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def image(kind: str, size_bytes: int) -> Iterator[Image]:
    """Make a file system in a sparse file and mount it; with "tmpfs", one in memory."""
    folder = Path(tempfile.mkdtemp(prefix=f"filewheel-{kind}-"))
    mount_point = folder / "mnt"
    mount_point.mkdir()
    device = ""
    try:
        if kind == "tmpfs":
            made = Image(kind, "tmpfs", mount_point, ["-o", f"size={size_bytes}"])
        else:
            backing = folder / "image"
            with backing.open("wb") as file:
                file.truncate(size_bytes)
            run(*MAKE[kind], str(backing))
            device = run("losetup", "-f", "--show", str(backing))
            made = Image(kind, device, mount_point)
        made.mount()
        yield made
    finally:
        subprocess.run(["umount", "-l", mount_point], capture_output=True, check=False)
        if device:
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def ends_cleanly() -> Iterator[None]:
    """Turn SIGTERM into an exit that unwinds, so that what was mounted is unmounted."""
    was = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, was)


@functools.cache
def lacks(*kinds: str) -> str | None:
    """Say why none of these file systems can be mounted here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "mounting file systems needs Linux and root"
    reason = None
    for kind in kinds:
        if kind != "tmpfs" and shutil.which(MAKE[kind][0]) is None:
            reason = f"there is no {MAKE[kind][0]}"
            continue
        try:
            with image(kind, 4 * MIB if kind == "tmpfs" else sizes(kind)):
                return None
        except OSError as exc:
            reason = str(exc)
    return reason


def sizes(kind: str) -> int:
    """Return how large an image of a kind is: about the smallest that its maker takes."""
    return {"ext4": 64, "xfs": 300, "btrfs": 114, "tmpfs": 16}[kind] * MIB


def available(*kinds: str) -> list[str]:
    """Return those of the kinds that can be mounted here."""
    return [kind for kind in kinds if lacks(kind) is None]
