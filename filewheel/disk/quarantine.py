"""Quarantine: copies of undecodable bytes with the reason, so that no data disappears silently.

One item is a pair of files in quarantine/: `<file>@<offset>.bin` with the bytes, and `<file>@<offset>.json` with their
origin, the reason and the time. Only the keeper and `repair` write here; `verify`, `stats` and people read.
Format: docs/format.md, 13.
Invariant: a range is copied once, and a full disk here never stops the firing.
"""

from __future__ import annotations

import contextlib
import json
import logging
import zlib
from dataclasses import asdict, dataclass

from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY, ForeignFile
from filewheel.env import Disk
from filewheel.format import layout
from filewheel.message import to_datetime

log = logging.getLogger(__name__)

_ITEM_BYTES_MAX = 64 << 20
_ITEMS_MAX = 10_000
_COPY_BYTES = 1 << 20
NOT_FILE = "not a regular file"
NOT_DIRECTORY = "not a directory"


@dataclass(frozen=True)
class Damage:
    """A range of unreadable bytes, with the known facts."""

    name: str
    offset: int
    end: int
    reason: str
    proven: bool
    """Whether it held durable bytes; if not, it may be a commit that never completed."""


class Quarantine:
    """The quarantine of one wheel."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self._kept: dict[tuple[str, int], bool] = {}
        """(file, offset) → whether it was proven."""
        self.aside: list[Damage] = []
        """The damage that this handle put aside, in order."""

    def keep(self, damage: Damage) -> None:
        """Copy a range to quarantine and log it; rewrite the note if it is proven later. Never raises."""
        key = (damage.name, damage.offset)
        known = self._kept.get(key)
        # mutant: proof-unnoted
        if known or known is damage.proven or (known is None and len(self._kept) >= _ITEMS_MAX):
            return
        self._kept[key] = damage.proven
        if known is None:
            self.aside.append(damage)
        log.log(
            logging.ERROR if damage.proven else logging.WARNING,
            "%s: %s at offset %d (%d bytes)%s; kept in %s. Try: filewheel verify",
            self._dir.place(damage.name),
            damage.reason,
            damage.offset,
            damage.end - damage.offset,
            "" if damage.proven else ", perhaps a commit that never completed",
            layout.QUARANTINE,
        )
        try:
            self._copy(damage)
        except OSError as exc:
            log.error("%s: cannot be kept in quarantine: %s", self._dir.place(damage.name), exc)

    def note(self, damage: Damage) -> None:
        """Write a note about a missing file; there are no bytes to copy. Never raises."""
        try:
            stem = self._stem(damage)
            if self._disk.identity(f"{stem}.json") is None:
                self._note(stem, damage)
        except OSError as exc:
            log.error("%s: cannot be noted in quarantine: %s", self._dir.place(damage.name), exc)

    def keep_bytes(self, damage: Damage, data: bytes) -> None:
        """Copy an invalid record from a frame that verified. Never raises."""
        self.aside.append(damage)
        stem = layout.quarantined(damage.name, f"{zlib.crc32(data):08x}")
        log.error("%s: %s; kept as %s.bin", self._dir.place(damage.name), damage.reason, stem)
        try:
            fd = self._disk.open(f"{stem}.bin", "w")
            try:
                self._disk.pwrite(fd, data, 0)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            self._note(stem, damage)
        except OSError as exc:
            log.error("%s: cannot be kept in quarantine: %s", self._dir.place(damage.name), exc)

    def _copy(self, damage: Damage) -> None:
        stem = self._stem(damage)
        if self._disk.identity(f"{stem}.json") is None:
            self._write(f"{stem}.bin", damage)
        elif _read_note(self._disk, f"{stem}.json").get("proven") in (True, damage.proven):
            return  # otherwise a crash tore the note; the bytes were flushed before it
        self._note(stem, damage)

    def _stem(self, damage: Damage) -> str:
        return layout.quarantined(damage.name, damage.offset)

    def _note(self, stem: str, damage: Damage) -> None:
        fields = asdict(damage) | {"found": to_datetime(self._dir.env.clock.now_us()).isoformat()}
        fd = self._disk.open(f"{stem}.json", "w")
        try:
            self._disk.truncate(fd, 0)
            self._disk.pwrite(fd, json.dumps(fields, indent=2).encode() + b"\n", 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self._disk.sync_dir(layout.QUARANTINE)

    def _write(self, name: str, damage: Damage) -> None:
        """Copy the bytes; if the source is missing, the item is empty."""
        target = self._disk.open(name, "w")
        try:
            self._disk.truncate(target, 0)
            with contextlib.suppress(FileNotFoundError):
                source = self._disk.open(damage.name, "r")
                try:
                    at = damage.offset
                    end = min(damage.end, damage.offset + _ITEM_BYTES_MAX)
                    while at < end:
                        data = self._disk.pread(source, min(_COPY_BYTES, end - at), at)
                        if not data:
                            break
                        self._disk.pwrite(target, data, at - damage.offset)
                        at += len(data)
                finally:
                    self._disk.close(source)
            self._disk.fdatasync(target)
        finally:
            self._disk.close(target)


def put_aside(directory: Directory, quarantine: Quarantine, name: str, what: str) -> str:
    """Rename a foreign object into quarantine/, with a note; return a report. Raises OSError."""
    disk = directory.disk
    there = set(disk.listdir(layout.QUARANTINE))
    n = 0
    while (aside := f"{layout.quarantined(name, 0)}.aside{n or ''}").rpartition("/")[2] in there:
        n += 1
    quarantine.note(Damage(name, 0, 0, f"{what}; put aside as {aside}", proven=True))
    disk.rename(name, aside)
    disk.sync_dir(layout.QUARANTINE)
    disk.sync_dir(name.rpartition("/")[0])
    return f"{name} was {what}, and was put aside as {aside}"


def is_foreign(directory: Directory, name: str) -> bool:
    """Return whether this name is not a regular file. Raises OSError."""
    try:
        directory.disk.close(directory.disk.open(name, "r"))
    except ForeignFile:
        return True
    except NO_DIRECTORY:
        pass
    return False


def items(directory: Directory) -> list[dict[str, object]]:
    """List the quarantine, oldest name first. Takes no lock; an unreadable note is listed by its name.

    Raises OSError when it cannot be listed.
    """
    found: list[dict[str, object]] = []
    try:
        names = sorted(directory.disk.listdir(layout.QUARANTINE))
    except NO_DIRECTORY:
        return found
    for last in names:
        if not last.endswith(".json"):
            continue
        name = f"{layout.QUARANTINE}/{last}"
        found.append(_read_note(directory.disk, name) | {"item": name})
    return found


def _read_note(disk: Disk, name: str) -> dict[str, object]:
    """Return a note's fields; none if it is unreadable (the item still counts)."""
    # It may have been removed or replaced since.
    with contextlib.suppress(FileNotFoundError, ForeignFile, ValueError, RecursionError):
        fd = disk.open(name, "r")
        try:
            fields = json.loads(disk.pread(fd, 65536, 0))
        finally:
            disk.close(fd)
        if isinstance(fields, dict):
            return fields
    return {}


def bytes_in(directory: Directory) -> int:
    """Return the bytes in quarantine, without notes. Takes no lock. Raises OSError."""
    disk = directory.disk
    try:
        names = disk.listdir(layout.QUARANTINE)
    except NO_DIRECTORY:
        return 0
    known = [disk.identity(f"{layout.QUARANTINE}/{last}") for last in names if last.endswith(".bin")]
    return sum(size for _, size, _ in filter(None, known))
