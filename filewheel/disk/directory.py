"""Make a wheel's directory, and open one after checks.

Owns wheel.json: the format, the wheel's id, the salt of its checksums, its lap length and its limits. It is written
once, with a copy, because nothing else can be read without the salt. Opening refuses a directory that is missing, not
a wheel, owned by another user, writable by others, on a network file system, or written by a newer filewheel.
Invariant: a directory that `open_directory` returned is a wheel of this format, and reading it needs no lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from filewheel.checks import check_path, scheme_of
from filewheel.disk.ballast import Ballast
from filewheel.disk.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from filewheel.disk.descriptors import raised
from filewheel.disk.disk import SYSTEM, ForeignFile, OsDisk, is_unreadable
from filewheel.disk.replace import replace_file
from filewheel.env import Disk, Env, check_env
from filewheel.errors import (
    Damaged,
    NetworkFileSystem,
    NoWheel,
    Unsafe,
    WheelExists,
    disk_error,
    disk_errors,
)
from filewheel.format import layout
from filewheel.format.frame import FORMAT
from filewheel.format.settings import (
    PAYLOAD_BYTES_MAX_DEFAULT,
    SLOTS_DEFAULT,
    Settings,
    Sync,
    check_limits,
    check_sync,
    parse_settings,
)
from filewheel.message import US_PER_S, to_datetime

log = logging.getLogger(__name__)

_SETTINGS_BYTES_MAX = 65536

NETWORK_TYPES = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "9p", "afs", "ceph", "coda", "glusterfs", "lustre"),
        *("gfs2", "ocfs2", "beegfs", "gpfs", "orangefs", "pvfs2", "davfs", "moosefs", "lizardfs", "juicefs"),
        *("virtiofs", "vboxsf", "vmhgfs", "prl_fs", "drvfs"),  # folders of a host, shared with its virtual machines
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.cephfs", "fuse.ceph"),
        *("fuse.juicefs", "fuse.blobfuse", "fuse.blobfuse2", "fuse.davfs", "fuse.davfs2", "fuse.goofys", "fuse.mfs"),
        *("fuse.mount-s3", "fuse.mountpoint-s3", "fuse.seaweedfs", "fuse.moosefs", "fuse.lizardfs", "fuse.vmhgfs-fuse"),
        *("fuse.curlftpfs", "fuse.hdfs", "fuse.fuse_dfs", "fuse.beegfs", "fuse.objectivefs", "fuse.smbnetfs"),
    }
)
"""File systems whose locks and flushes cannot be trusted."""
_LEFT_BEHIND = {
    layout.JOURNAL,
    layout.LAPS,
    layout.QUARANTINE,
    layout.LOCK,
    layout.CHECKPOINT,
    layout.CHECKPOINT_OLD,
    layout.CHECKPOINT_TMP,
    layout.SETTINGS_TMP,
}


@dataclass
class Directory:
    """An open wheel directory: its disk, its settings, and the path for messages."""

    path: str
    disk: Disk
    settings: Settings
    notes: list[str] = field(default_factory=list)
    """Damage that does not prevent opening, such as a damaged wheel.json with a good copy."""
    env: Env = SYSTEM
    """The source of `disk`, and of the clock and the entropy for every user of this directory."""

    @cached_property
    def seed(self) -> Callable[[str], int]:
        """Returns the start value of a file's checksums, by its name."""
        return partial(layout.seed, self.settings.salt_bytes)

    def place(self, name: str) -> str:
        """Return a file's path for an error message."""
        return f"{self.path}/{name}"

    def checkpoint(self) -> Checkpoint:
        """Read the checkpoint; if the newest is damaged or missing, the result has a `doubt`. Raises OSError."""
        return read_checkpoint(self.disk, self.seed, self.settings.lap_of, self.path)


def make_parents(path: str | os.PathLike[str]) -> None:
    """Make the missing directories above a wheel's. Not durable by itself. Raises DiskError."""
    above = os.path.dirname(check_path(path))
    with disk_errors(above):
        os.makedirs(above, mode=0o700, exist_ok=True)


def create_directory(
    path: str | os.PathLike[str],
    *,
    slots: int = SLOTS_DEFAULT,
    sync: Sync = "always",
    payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
    salt: str | None = None,
    fill: Callable[[Directory], object] | None = None,
    now_us: int,
    force: bool = False,
    env: Env = SYSTEM,
) -> None:
    """Make an empty wheel at `path`, whose parent must exist. On return it is durable.

    `salt` is that of another wheel, whose files this one is to have. `fill` may write them: it is called before the
    directory becomes a wheel.

    Raises WheelExists when the path is in use (an empty directory is taken over).
    """
    where = check_path(path)
    sync = check_sync(sync)
    check_limits(slots, payload_bytes_max)
    try:
        is_made = _make(where)
    except FileNotFoundError as exc:
        raise NoWheel("the parent directory does not exist", path=where, hint="make it first") from exc
    except OSError as exc:
        raise disk_error(exc, where) from exc
    try:
        if not os.path.isdir(where):
            raise WheelExists("a file is there", path=where, hint="choose another name")
        _check_network(where, force)
        _check_owner(where)
        settings = Settings(
            id=env.entropy(16).hex(),
            salt=env.entropy(16).hex() if salt is None else salt,
            slots=slots,
            sync=sync,
            payload_bytes_max=payload_bytes_max,
            created=to_datetime(now_us // US_PER_S * US_PER_S).isoformat(),
        )
        root = env.disk(where)
        try:
            # Two concurrent makers would each write a salt: messages enqueued with the first would be unreadable.
            with _alone(where, root):
                _check_empty(where)
                _write(root, settings, where, env, fill)
        finally:
            root.release()
        parent = os.open(os.path.dirname(where) or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
        log.info("made a new wheel at %s", where)
    except BaseException as exc:
        if is_made:
            with contextlib.suppress(OSError):  # what has files by now is taken over by the next `create`
                os.rmdir(where)
        if isinstance(exc, OSError):
            raise disk_error(exc, where) from exc
        raise


def _make(where: str) -> bool:
    """Make the directory; return whether it did not exist. Raises OSError."""
    try:
        os.mkdir(where, 0o700)
    except FileExistsError:
        return False
    return True


@contextlib.contextmanager
def _alone(where: str, disk: Disk) -> Iterator[None]:
    """Exclude other processes that make a wheel in this directory."""
    fd = raised(os.open(where, os.O_RDONLY | os.O_CLOEXEC))
    try:
        try:
            disk.lock(fd, wait=True)
            yield
        finally:
            # An interrupt (Ctrl-C) before the close leaves a file open, and no lock that others wait for.
            disk.unlock(fd)
    finally:
        disk.close(fd)


def _check_empty(where: str) -> None:
    """Raise WheelExists unless a wheel can be made here."""
    found = set(os.listdir(where))
    if layout.SETTINGS in found:
        raise WheelExists(
            "there is a wheel already", path=where, hint=f"use it as it is; `filewheel -C {where} inspect` shows it"
        )
    if layout.SETTINGS_COPY in found:
        # A new salt would make its files unreadable.
        raise WheelExists("there is a wheel already, without its wheel.json", path=where, hint="`filewheel repair`")
    # The remains of an interrupted `create` are taken over. Other files are foreign.
    if found - _LEFT_BEHIND or any(
        os.listdir(os.path.join(where, name)) for name in found & {layout.JOURNAL, layout.LAPS, layout.QUARANTINE}
    ):
        raise WheelExists("the directory is not empty", path=where, hint="choose an empty one")


def _write(
    disk: Disk,
    settings: Settings,
    where: str,
    env: Env = SYSTEM,
    fill: Callable[[Directory], object] | None = None,
) -> None:
    for name in (layout.JOURNAL, layout.LAPS, layout.QUARANTINE):
        with contextlib.suppress(FileExistsError):
            disk.mkdir(name)
    disk.close(disk.open(layout.LOCK, "rw"))  # a disk may have no room for it when the first keeper starts
    # A new wheel has a checkpoint, so a missing one always means damage.
    write_checkpoint(disk, Checkpoint(), partial(layout.seed, settings.salt_bytes))
    if fill is not None:
        try:
            fill(Directory(where, disk, settings, env=env))
        except BaseException:
            with contextlib.suppress(OSError):
                for name in os.listdir(where):  # it was empty
                    path = os.path.join(where, name)
                    if os.path.isdir(path):
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        os.unlink(path)
            raise
    # wheel.json is written last: a crash before it leaves a directory that `create` takes over. Its copy follows:
    # written first, it would make the remains of a crash a wheel, whose salt a later `create` replaces.
    write_settings(disk, settings, layout.SETTINGS)
    # Between the two, so that the flush of the copy's name covers it. After a crash here the keeper makes the ballast.
    Ballast(disk, where).make()
    write_settings(disk, settings, layout.SETTINGS_COPY)


def raise_format(directory: Directory) -> None:
    """Give a wheel of an older format the present number, before anything is written that older versions misread."""
    if directory.settings.format < FORMAT:  # mutant: format-kept
        directory.settings = replace(directory.settings, format=FORMAT)
        for name in (layout.SETTINGS, layout.SETTINGS_COPY):
            write_settings(directory.disk, directory.settings, name)


def write_settings(disk: Disk, settings: Settings, name: str) -> None:
    """Write wheel.json or its copy: atomic and durable."""
    replace_file(disk, name, layout.SETTINGS_TMP, settings.to_json())


def open_directory(
    path: str | os.PathLike[str],
    *,
    write: bool,
    force: bool = False,
    env: Env = SYSTEM,
) -> Directory:
    """Open a wheel's directory for reading, or also for writing.

    Raises NoWheel, Unsafe, NetworkFileSystem, NewerFormat, Damaged (both copies of wheel.json are), DiskError.
    """
    where = check_path(path)
    check_env(env)
    try:
        root = env.disk(where)
    except (FileNotFoundError, NotADirectoryError) as exc:
        missing = isinstance(exc, FileNotFoundError)
        if scheme_of(where):
            raise NoWheel("no directory of this machine", path=where, hint="only a backup may be at a URL") from None
        raise NoWheel(
            "no such directory" if missing else "not a directory",
            path=where,
            hint=_where_is(where) if missing else "name a wheel's directory",
        ) from None
    except OSError as exc:
        raise disk_error(exc, where) from exc
    if write:
        check_writable(where, root, force=force)
    notes: list[str] = []
    settings = _read_settings(root, where, notes)
    return Directory(where, root, settings, notes, env)


def _where_is(where: str) -> str:
    """Return a hint for a missing wheel; `init` is last, because the disk may not be mounted."""
    return (
        "check the path, and that its disk is mounted; a lost primary: `filewheel promote` a backup of it; "
        f"a new wheel: `filewheel -C {where} init`"
    )


@contextlib.contextmanager
def opened(path: str | os.PathLike[str], env: Env = SYSTEM) -> Iterator[Directory]:
    """Open a wheel's directory for reading, and release its disk at the end. Raises as `open_directory`."""
    directory = open_directory(path, write=False, env=env)
    try:
        yield directory
    finally:
        directory.disk.release()


def _read_settings(disk: Disk, where: str, notes: list[str]) -> Settings:
    trouble: Damaged | None = None
    missing = 0
    for name in (layout.SETTINGS, layout.SETTINGS_COPY):
        place = f"{where}/{name}"
        try:
            settings = read_settings(disk, name, place)
        except FileNotFoundError:
            missing += 1
            continue
        except (Damaged, OSError) as exc:
            if isinstance(exc, ForeignFile):
                trouble = Damaged("not a regular file", path=place, hint="remove it, then `filewheel repair`")
            elif isinstance(exc, Damaged):
                trouble = exc
            elif is_unreadable(exc):
                trouble = Damaged(f"cannot be read ({exc.strerror})", path=place)
            else:
                raise disk_error(exc, place) from exc
            notes.append(str(trouble))
            continue
        if name == layout.SETTINGS_COPY and not notes:
            notes.append(f"{where}/{layout.SETTINGS}: missing; the copy was used. Try: `filewheel repair`")
        return settings
    if trouble is None or missing == 2:
        raise NoWheel("not a wheel (it has no wheel.json)", path=where, hint=_where_is(where))
    raise trouble


def read_settings(disk: Disk, name: str, place: str) -> Settings:
    """Read wheel.json, or its copy. Raises OSError, NewerFormat, Damaged."""
    fd = disk.open(name, "r")
    try:
        return parse_settings(disk.pread(fd, _SETTINGS_BYTES_MAX, 0), place)
    finally:
        disk.close(fd)


def check_writable(where: str, disk: Disk, *, force: bool) -> None:
    """Raise Unsafe unless the directory is ours, closed to others, and, without `force`, on a local file system.

    Also raises NoWheel when it was removed since it was opened, and DiskError.
    """
    if isinstance(disk, OsDisk):
        _check_network(where, force)
        _check_owner(where)


def _check_owner(where: str) -> None:
    try:
        info = os.stat(where)
    except FileNotFoundError as exc:
        raise NoWheel("the directory has gone", path=where, hint="mount its disk again, or name another one") from exc
    except OSError as exc:
        raise disk_error(exc, where) from exc
    if info.st_uid != os.geteuid():
        raise Unsafe(
            f"the directory belongs to user {info.st_uid}, you are {os.geteuid()}",
            path=where,
            hint="run as its owner",
        )
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o022:
        raise _open_to_others(where)
    if mode & 0o011:  # others may enter it
        for name in layout.DIRECTORIES:
            _check_closed(f"{where}/{name}")


def _check_closed(where: str) -> None:
    """Raise Unsafe if others may write in a directory of the wheel; one that is missing is made when it is needed."""
    try:
        mode = os.lstat(where).st_mode
    except FileNotFoundError:
        return
    except OSError as exc:
        raise disk_error(exc, where) from exc
    if stat.S_ISDIR(mode) and mode & 0o022:
        raise _open_to_others(where)


def _open_to_others(where: str) -> Unsafe:
    return Unsafe(
        "others may write in the directory",
        path=where,
        hint=f"`chmod go-w {where}`; where that changes nothing (a disk of Windows in WSL, vfat), use a disk of Linux, "
        "or mount it with umask=077",
    )


def _check_network(where: str, force: bool) -> None:
    kind = file_system_type(where)
    if kind in NETWORK_TYPES and not force:
        raise NetworkFileSystem(
            f"on a network file system ({kind}), where locks and flushes cannot be trusted",
            path=where,
            hint="use a local disk, or force=True (`--force`) if you accept the risk",
        )


def file_system_type(path: str) -> str:
    """Return the type of the file system that holds `path` ("ext4", "nfs4"), or "" if it is unknown."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                fields = line.split()
                if fields[2] == f"{os.major(device)}:{os.minor(device)}":
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass  # "" counts as local: unknown types are accepted
    return ""
