"""How far a backup has followed its primary's journals: follows.json in the backup.

It is replaced whole, by rename, and never flushed: that would cost a flush each time that the backup has come a little
further. After a power cut it may be older than what was written, or no JSON at all. It names the boot that it was
written in, so whoever reads it then does not go by it, and heals. A process that is killed leaves the old or the new.
Invariant: what is read is what was written, or None.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from filewheel.disk.checkpoint import Position
from filewheel.disk.disk import Disk, ForeignFile
from filewheel.disk.replace import replace_file
from filewheel.format import layout
from filewheel.format.sealed import seal, unseal
from filewheel.journal.gaps import UNKNOWN

log = logging.getLogger(__name__)

_VERSION = 1
_BYTES_MAX = 64 << 20
_TYPES = {
    "primary_wheel": str,
    "epoch": int,
    "overflow": int,
    "boot": str,
    "positions": dict,
    "at_us": int,
    "in_step_us": int,
    "clean": bool,
}


@dataclass(frozen=True)
class Follows:
    """A place in all journals of a primary."""

    primary_wheel: str
    """The id of the wheel that is followed."""
    epoch: int
    """The epoch of the set when this was written."""
    overflow: int
    """The primary's count of segments that went too early; once it is another one, something may have been missed."""
    boot: str
    """The boot of the machine in which this was written."""
    positions: dict[str, Position]
    """For each writer: everything below is in the backup."""
    at_us: int
    """When this was written."""
    in_step_us: int
    """When the backup last had everything that the primary had; 0 for never."""
    clean: bool
    """Whether whoever followed has stopped in order, with everything flushed."""

    def to_json(self) -> bytes:
        """Write follows.json, with its checksum at the end."""
        fields = {name: getattr(self, name) for name in _TYPES}
        return seal({"follows": _VERSION, **fields}, lines=False)


def parse_follows(data: bytes) -> Follows:
    """Read follows.json. Raises ValueError when it is not what was written."""
    try:
        fields = unseal(data, lines=False)
        if fields.pop("follows") != _VERSION or fields.keys() != _TYPES.keys():
            raise ValueError("another version")
        if any(type(fields[name]) is not kind for name, kind in _TYPES.items()):
            raise ValueError("a field of another type")
        follows = Follows(**fields)
        return replace(follows, positions={w: _position(w, p) for w, p in follows.positions.items()})
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"not a place in journals ({exc})") from exc


def _position(writer: str, found: object) -> Position:
    if not layout.is_writer(writer) or not isinstance(found, list) or [type(n) for n in found] != [int] * 3:
        raise ValueError(f"no position: {writer!r}: {found!r}")
    position = Position(*found)
    if position.segment < 1 or position.offset < 0 or position.number < UNKNOWN:
        raise ValueError(f"no position: {writer!r}: {found!r}")
    return position


def read_follows(disk: Disk, path: str) -> Follows | None:
    """Read how far a backup has followed; None when that is not known, and then it must heal. Raises OSError."""
    try:
        fd = disk.open(layout.FOLLOWS, "r")
    except FileNotFoundError:
        return None
    except ForeignFile as exc:
        log.warning("%s/%s: %s; the backup heals", path, layout.FOLLOWS, exc.strerror)
        return None
    try:
        return parse_follows(disk.pread(fd, min(disk.size(fd), _BYTES_MAX), 0))
    except ValueError as exc:
        log.warning("%s/%s: %s; the backup heals", path, layout.FOLLOWS, exc)
        return None
    finally:
        disk.close(fd)


def write_follows(disk: Disk, follows: Follows) -> None:
    """Replace follows.json, without a flush. What it vouches for must be durable before. Raises OSError."""
    replace_file(disk, layout.FOLLOWS, layout.FOLLOWS_TMP, follows.to_json(), flush=False)


def boot_id() -> str:
    """Return what tells this boot of the machine from any other; "" where the system has no such thing.

    Two empty ones say nothing: a place that was written in an unknown boot is not to be gone by.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""  # unlike any other: the backup heals
