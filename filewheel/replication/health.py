"""Checks that a primary is intact before its missing messages are treated as finished.

A message that only a backup has was fired or lost in the primary. Where the primary is known to be damaged, the message
is given back; elsewhere it is dropped from the backup. A directory during its deletion looks for a moment like an empty
wheel, so it must not count as intact.
Invariant: no message is dropped from a backup while `why_changed` returns a reason, or because of a file that
`damaged_files` returns.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import Directory, read_settings
from filewheel.disk.disk import is_scarce
from filewheel.disk.quarantine import items
from filewheel.errors import FilewheelError, said
from filewheel.format import layout
from filewheel.laps.slot import file_named, files_of
from filewheel.message import ID_END, ID_MIN, to_datetime
from filewheel.roster.roster import read_roster

_PROBE_BYTES = 64 << 10
Range = tuple[bytes, bytes]
EVERYTHING: Range = (ID_MIN, ID_END)


def why_changed(directory: Directory, epoch: int) -> str:
    """Return why this directory is no longer the opened wheel; an empty string if it is."""
    disk = directory.disk
    try:
        if read_settings(disk, layout.SETTINGS, directory.path).id != directory.settings.id:
            return "another wheel is in its place"
        roster = read_roster(disk, directory.path)
        if roster is None or roster.epoch != epoch:
            return "its roster has changed"
        for name in (layout.LAPS, layout.JOURNAL):
            disk.listdir(name)
        checkpoint = directory.checkpoint()
        if checkpoint.doubt:
            return checkpoint.doubt
    except (OSError, FilewheelError) as exc:
        return said(exc)
    return ""


def why_not_durable(directory: Directory) -> str:
    """Write and flush a probe; return why that failed, or an empty string.

    If a disk fails to flush, data that was read from it may be missing at the next read. Raises OSError when this
    process is short of files or memory.
    """
    disk = directory.disk
    try:
        fd = disk.open(layout.PROBE, "w")
        try:
            disk.pwrite(fd, bytes(_PROBE_BYTES), 0)
            disk.fdatasync(fd)  # mutant: standby-writes-nothing
        finally:
            disk.close(fd)
            with contextlib.suppress(OSError):
                disk.unlink(layout.PROBE)
    except OSError as exc:
        if is_scarce(exc):
            raise
        return exc.strerror or str(exc)
    return ""


def damaged_files(directory: Directory, known: Collection[str], unread: Iterable[str]) -> set[str]:
    """Return the files from which a wheel may have lost messages.

    These are the missing or too short files, those with bytes in quarantine (except for `known` items), and those that
    were just unreadable (`unread`). Cost: a stat of each file. Raises OSError.
    """
    # An item with an unreadable note may be of any file.  # mutant: note-illegible
    names = {str(i.get("name", i["item"])) for i in items(directory) if i["item"] not in known}
    names.update(missing_files(directory), unread)
    return names


def ranges_of(directory: Directory, names: Iterable[str]) -> list[Range]:
    """Return the ranges of ids that these files may contain. Damage in a journal may concern every id."""
    return sorted({_range_of(directory, name) for name in names})


def items_before(directory: Directory, us: int) -> set[str]:
    """Return the items of a wheel's quarantine that were found before a time."""
    time = to_datetime(us).isoformat()
    return {str(i["item"]) for i in items(directory) if str(i.get("found", "")) < time}


def items_now(directory: Directory) -> set[str]:
    """Return the items of a wheel's quarantine. Cost: a listing. Raises OSError."""
    found = directory.disk.listdir(layout.QUARANTINE)
    return {f"{layout.QUARANTINE}/{last}" for last in found if last.endswith(".json")}


def covers(ranges: list[Range], id_: bytes) -> bool:
    """Return whether an id is in one of the ranges."""
    return any(lo <= id_ < hi for lo, hi in ranges)


def meets(one: Range, other: Range) -> bool:
    """Return whether two ranges overlap."""
    return one[0] < other[1] and other[0] < one[1]


def missing_files(directory: Directory) -> list[str]:
    """Return the missing or too short files of a wheel's checkpoint.

    Cost: a stat of each file. Raises OSError.
    """
    while True:
        checkpoint = _checkpoint(directory)
        missing = []
        for file in files_of(directory.settings, checkpoint):
            known = directory.disk.identity(file.name)
            if known is None or known[1] + 7 < file.end:
                missing.append(file.name)
        # A file is removed only after a checkpoint that no longer names it.
        if not missing or _checkpoint(directory).deal == checkpoint.deal:
            return missing


def _checkpoint(directory: Directory) -> Checkpoint:
    return directory.checkpoint()


def _range_of(directory: Directory, name: str) -> Range:
    file = file_named(directory.settings, name)
    return EVERYTHING if file is None else file.range
