"""The disasters that can befall one directory, each brought about under whoever uses it, and undone at the end.

Each finds the file system that the directory lies on, which is one of our own (`place`): an ext4 in an image file, with
its journal in another. The kernel refuses to write to a file that became immutable, also on behalf of a loop device:
so each block that a live process flushes fails with EIO, and the file system lives on as long as its journal does.
`DISASTERS` has them all. Invariant: after `undo` the directory can be written again (but for what is gone for good),
and nothing is mounted that was not mounted before.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import fcntl
import functools
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.crash.full import fill, give_back
from tests.crash.images import MIB, lacks, run

PLACE_BYTES = 64 * MIB
JOURNAL_BYTES = 8 * MIB
BUSY_S = 10.0
"""How long an undo waits for the last process that has files open."""
_MAKE = ("mkfs.ext4", "-qF", "-b", "4096")
_FLAGS_GET, _FLAGS_SET, _IMMUTABLE = 0x80086601, 0x40086602, 0x10
_PREFIX = "filewheel-place-"


@contextlib.contextmanager
def place(size_bytes: int = PLACE_BYTES) -> Iterator[Path]:
    """Make an ext4 of its own and mount it; what is yielded is where a wheel may be made. It goes at the end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    devices = []
    mount_point = folder / "mnt"
    mount_point.mkdir()
    try:
        for name, size in (("journal", JOURNAL_BYTES), ("image", size_bytes)):
            with (folder / name).open("wb") as file:
                file.truncate(size)
            devices.append(run("losetup", "-f", "--show", str(folder / name)))
        journal, device = devices
        run(*_MAKE, "-O", "journal_dev", journal)
        run(*_MAKE, "-J", f"device={journal}", "-E", "nodiscard,lazy_itable_init=0", device)
        mount(device, mount_point)
        yield mount_point / "jobs.wheel"
    finally:
        for name in ("journal", "image"):
            set_immutable(folder / name, immutable=False)
        while subprocess.run(["umount", "-l", mount_point], capture_output=True, check=False).returncode == 0:
            pass  # it may have been mounted twice
        for device in devices:
            subprocess.run(["losetup", "-d", device], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


class Disaster(abc.ABC):
    """One disaster. An object of it befalls one directory, once."""

    name: str
    loses: bool
    """Whether what the directory held may be gone for good."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(1)

    @classmethod
    def needs(cls) -> str | None:
        """Say what this machine lacks for it, or None."""
        return lacks("ext4") or next((f"there is no {t}" for t in ("e2fsck", "findmnt") if not shutil.which(t)), None)

    def apply(self, path: Path) -> None:
        """Let it happen to a directory."""
        self.path = path
        self.device, self.mount_point = mounted(path)
        self.happen()

    @abc.abstractmethod
    def happen(self) -> None:
        """Do the harm."""

    @abc.abstractmethod
    def undo(self) -> None:
        """Put the file system right. Raises OSError when processes have files open that must be closed for that."""

    def mount_again(self) -> None:
        """Mount the file system anew, checked; whoever has files open on it must let go of them first."""
        end = time.monotonic() + BUSY_S
        while os.path.ismount(self.mount_point):
            try:
                run("umount", str(self.mount_point))
            except OSError as exc:
                if time.monotonic() > end:
                    raise OSError(errno.EBUSY, f"cannot undo {self.name!r}: {exc}; end whoever uses it") from exc
                time.sleep(0.02)
        # It mends what the disaster did to the file system; codes up to 2 say that it did.
        done = subprocess.run(["e2fsck", "-fy", self.device], capture_output=True, text=True, check=False)
        if done.returncode > 2:
            raise OSError(f"e2fsck of {self.device}: {done.stdout.strip()}")
        mount(self.device, self.mount_point)


class Deleted(Disaster):
    """Somebody types rm -rf while it is in use."""

    name = "deleted"
    loses = True

    @classmethod
    def needs(cls) -> str | None:
        return None

    def apply(self, path: Path) -> None:
        self.path = path  # it may lie on any file system
        self.happen()

    def happen(self) -> None:
        end = time.monotonic() + BUSY_S
        while os.path.lexists(self.path):  # whoever uses it makes files meanwhile
            shutil.rmtree(self.path, ignore_errors=time.monotonic() < end)

    def undo(self) -> None:
        """Leave it: what was deleted does not come back, and another may be made in its place."""


class ReadOnly(Disaster):
    """The kernel mounts it read-only, as it does when it finds the file system wrong."""

    name = "read-only"
    loses = False

    def happen(self) -> None:
        try:
            run("mount", "-o", "remount,ro", str(self.mount_point))
        except OSError:  # files are open for writing: nobody can ask for it then, but the kernel does it all the same
            run("mount", "-o", "remount,errors=remount-ro", str(self.mount_point))
            Path(f"/sys/fs/ext4/{Path(self.device).name}/trigger_fs_error").write_text("1")

    def undo(self) -> None:
        self.mount_again()


class FilledUp(Disaster):
    """A file takes all the room there is."""

    name = "filled up"
    loses = False

    def happen(self) -> None:
        self.filler = self.mount_point / "filler"
        fill(self.filler, 0)

    def undo(self) -> None:
        give_back(self.filler)


class Unmounted(Disaster):
    """It is unmounted lazily: whoever has it open goes on, whoever opens it finds nothing."""

    name = "unmounted"
    loses = False

    def happen(self) -> None:
        run("umount", "-l", str(self.mount_point))

    def undo(self) -> None:
        # Where somebody has it open still, this is the same file system, in the same state.
        mount(self.device, self.mount_point)


class Corrupted(Disaster):
    """Bits flip in its files: in one byte of so many, and at least in one."""

    name = "corrupted"
    loses = True
    one_in_bytes = 4096

    @classmethod
    def needs(cls) -> str | None:
        return None

    def apply(self, path: Path) -> None:
        self.path = path
        self.happen()

    def happen(self) -> None:
        sizes = [(p, size) for p in sorted(self.path.rglob("*")) if (size := size_of(p))]
        total = sum(size for _, size in sizes)
        self.flipped: list[tuple[str, int]] = []
        for _ in range(max(1, total // self.one_in_bytes)):
            ((file, size),) = self.rng.choices(sizes, weights=[s for _, s in sizes])
            at = self.rng.randrange(size)
            with contextlib.suppress(FileNotFoundError):  # it was in use, and is not any more
                flip(file, at, 1 << self.rng.randrange(8))
                self.flipped.append((str(file.relative_to(self.path)), at))

    def undo(self) -> None:
        """Leave it: only a copy knows what stood there."""


class BarelyCorrupted(Corrupted):
    """One bit flips, somewhere."""

    name = "one bit flipped"
    one_in_bytes = 1 << 40


class BadlyCorrupted(Corrupted):
    """Hardly a frame stays whole."""

    name = "badly corrupted"
    one_in_bytes = 64


class FailsFlushes(Disaster):
    """No block of a file can be written any more: each flush fails with EIO, what is there can be read.

    The journal of the file system lives on, until the kernel has to write back what it holds.
    """

    name = "fails each flush"
    loses = True
    stops: tuple[str, ...] = ("image",)

    @classmethod
    def needs(cls) -> str | None:
        return super().needs() or refuses_to_write()

    def happen(self) -> None:
        for name in self.stops:
            set_immutable(self.mount_point.parent / name, immutable=True)

    def undo(self) -> None:
        for name in self.stops:
            set_immutable(self.mount_point.parent / name, immutable=False)
        probe = self.mount_point / "probe"
        try:
            probe.write_bytes(b"")
            probe.unlink()
        except OSError:  # the kernel has given the file system up meanwhile
            self.mount_again()


class Dead(FailsFlushes):
    """Nothing can be written to the whole device: EIO, and EROFS when the kernel has given the file system up."""

    name = "dead"
    stops = ("image", "journal")


DISASTERS: dict[str, type[Disaster]] = {
    kind.name: kind
    for kind in (
        Deleted, ReadOnly, FilledUp, Unmounted, BarelyCorrupted, Corrupted, BadlyCorrupted, FailsFlushes, Dead,
    )
}  # fmt: skip


@contextlib.contextmanager
def befallen(disaster: Disaster, path: Path) -> Iterator[Disaster]:
    """Apply a disaster, and undo it at the end."""
    disaster.apply(path)
    try:
        yield disaster
    finally:
        disaster.undo()


# -- what they are made of -------------------------------------------------------------------------------------------


def mount(device: str, mount_point: Path) -> None:
    """Mount an ext4; on a failing disk its users see EIO for as long as its journal lives, and EROFS then."""
    run("mount", "-t", "ext4", "-o", "errors=continue", device, str(mount_point))


def mounted(path: Path) -> tuple[str, Path]:
    """Return the device and the mount point of the file system that a path is on. It must be a `place`."""
    where = path
    while not where.exists():
        where = where.parent
    device, target = run("findmnt", "-no", "SOURCE,TARGET", "-T", str(where)).split(maxsplit=1)
    if not device.startswith("/dev/loop") or not Path(target).parent.name.startswith(_PREFIX):
        raise OSError(errno.EINVAL, f"{path} is on {device}, which is not ours to harm: make it in a `place`")
    return device, Path(target)


def set_immutable(path: Path, *, immutable: bool) -> None:
    """Forbid to write to a file, also to who has it open; or allow it again. Where that is unknown it does nothing."""
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            flags = bytearray(8)
            fcntl.ioctl(fd, _FLAGS_GET, flags, True)
            (was,) = struct.unpack("<q", flags)
            now = was | _IMMUTABLE if immutable else was & ~_IMMUTABLE
            if now != was:
                fcntl.ioctl(fd, _FLAGS_SET, struct.pack("<q", now))
        except OSError as exc:
            if immutable or exc.errno not in (errno.ENOTTY, errno.EOPNOTSUPP):
                raise
        finally:
            os.close(fd)


@functools.cache
def refuses_to_write() -> str | None:
    """Say why writing to an image file cannot be made to fail here, or None."""
    with tempfile.NamedTemporaryFile(prefix=_PREFIX) as file:
        path = Path(file.name)
        try:
            set_immutable(path, immutable=True)
            os.write(file.fileno(), b"x")
        except PermissionError:
            return None
        except OSError as exc:
            return f"no file in {path.parent} can be made immutable ({exc.strerror})"
        finally:
            set_immutable(path, immutable=False)
    return f"who has an immutable file of {path.parent} open may write to it"


def size_of(path: Path) -> int:
    """Return the size of a regular file; 0 for anything else, or when it is gone."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0


def flip(path: Path, at: int, bits: int) -> None:
    """Flip bits of one byte of a file, whoever else writes to it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        byte = os.pread(fd, 1, at)
        if byte:
            os.pwrite(fd, bytes([byte[0] ^ bits]), at)
    finally:
        os.close(fd)
