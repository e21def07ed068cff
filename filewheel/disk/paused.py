"""The file paused.json: read, and replaced under the lock of paused.lock.

A reader takes no lock. A change holds the lock from the read to the rename, so of two changes at once none is lost. On
a full disk a change takes its room from the ballast. The file stays when the last pause ends, so the version never
falls.
Format: docs/format.md, 13.
Invariant: once a change has returned, a power cut does not undo it.
"""

from __future__ import annotations

from collections.abc import Callable

from filewheel.disk.ballast import Ballast
from filewheel.disk.directory import Directory, check_writable
from filewheel.disk.disk import ForeignFile
from filewheel.disk.locks import WAIT_S, HeldLocks
from filewheel.disk.replace import replace_file
from filewheel.env import Disk
from filewheel.errors import UNWRITTEN, Damaged, Locked, WheelFull, disk_error
from filewheel.format import layout
from filewheel.format.pauses import PAUSED_BYTES_MAX, Pauses, parse_pauses

Change = Callable[[Pauses], Pauses]


def read_pauses(disk: Disk, path: str) -> Pauses:
    """Read what is paused in the wheel at `path`; nothing if the file is missing. Raises Damaged, OSError."""
    place = f"{path}/{layout.PAUSED}"
    try:
        fd = disk.open(layout.PAUSED, "r")
    except FileNotFoundError:
        return Pauses()
    except ForeignFile as exc:
        raise Damaged("not a regular file", path=place, hint="stop the keeper, then `filewheel repair`") from exc
    try:
        return parse_pauses(disk.pread(fd, PAUSED_BYTES_MAX, 0), place)
    finally:
        disk.close(fd)


def change_pauses(
    directory: Directory, change: Change, *, mend: bool = False, wait_s: float = WAIT_S
) -> tuple[Pauses, Pauses]:
    """Replace the pauses by the result of `change`, under the lock; return the old and the new ones.

    On return they are durable. Nothing is written when `change` returns its argument. It may be called twice. With
    `mend`, a damaged file counts as empty, for a caller that has a copy of it.

    Raises Unsafe; Locked when another process holds the lock for `wait_s`; Damaged, WheelFull, ReadOnly, DiskError, and
    the errors of `change`.
    """
    check_writable(directory.path, directory.disk, force=True)
    try:
        return _change(directory, change, mend, wait_s)
    except WheelFull:
        if not Ballast(directory.disk, directory.path).lend():
            raise
        return _change(directory, change, mend, wait_s)


def _change(directory: Directory, change: Change, mend: bool, wait_s: float) -> tuple[Pauses, Pauses]:
    disk = directory.disk
    with HeldLocks(directory) as held:
        if not held.take(layout.PAUSED_LOCK, wait_s):
            raise Locked(
                "another process is in the middle of a pause or a resume, and does not go on",
                role="pause",
                path=directory.place(layout.PAUSED_LOCK),
                hint="continue or kill the stopped process",
            )
        try:
            try:
                old = read_pauses(disk, directory.path)
            except Damaged:
                if not mend:
                    raise
                old = Pauses()
            new = change(old)
            if new is not old:
                replace_file(disk, layout.PAUSED, layout.PAUSED_TMP, new.to_json())
        except OSError as exc:
            raise disk_error(exc, directory.place(layout.PAUSED), undone=UNWRITTEN) from exc
    return old, new
