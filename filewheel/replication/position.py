"""A backup's position in its primary's journals: the file follows.json in the backup.

The file is replaced by rename and never flushed, because every small step would cost a flush. After a power cut it may
be older than the last write, or no JSON at all. It has the id of the machine's boot, so a reader after a restart
ignores it and heals. A killed process leaves the old file or the new one.

A mirror may still lack some frames that were read from the primary. A position is held back until everything below it
has arrived.
Invariants: a parsed file was written as it is. Every position in it is covered by records in the backup.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.disk import ForeignFile
from filewheel.disk.replace import replace_file
from filewheel.env import Disk
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
class FollowsFile:
    """The content of follows.json: a position in all journals of a primary."""

    primary_wheel: str
    """The id of the primary's wheel."""
    epoch: int
    """The epoch of the set at the time of writing."""
    overflow: int
    """The primary's overflow counter. If it changes, the backup may have missed segments."""
    boot: str
    """The boot of the machine at the time of writing."""
    positions: dict[str, Position]
    """By writer: everything below is in the backup."""
    at_us: int
    """The time of writing."""
    in_step_us: int
    """The last time when the backup was in step; 0 for never."""
    clean: bool
    """Whether the link was closed in order, with everything flushed."""

    def to_json(self) -> bytes:
        """Return the bytes of follows.json, with the checksum at the end."""
        fields = {name: getattr(self, name) for name in _TYPES}
        return seal({"follows": _VERSION, **fields}, lines=False)


def parse_follows(data: bytes) -> FollowsFile:
    """Parse follows.json. Raises ValueError when the checksum or a field is wrong."""
    try:
        fields = unseal(data, lines=False)
        if fields.pop("follows") != _VERSION or fields.keys() != _TYPES.keys():
            raise ValueError("another version")
        if any(type(fields[name]) is not kind for name, kind in _TYPES.items()):
            raise ValueError("a field of another type")
        follows = FollowsFile(**fields)
        return replace(follows, positions={w: _position(w, p) for w, p in follows.positions.items()})
    except (TypeError, KeyError, AttributeError) as exc:
        raise ValueError(f"not a position file ({exc})") from exc


def _position(writer: str, found: object) -> Position:
    if not layout.is_writer(writer) or not isinstance(found, list) or [type(n) for n in found] != [int] * 3:
        raise ValueError(f"no position: {writer!r}: {found!r}")
    position = Position(*found)
    if position.segment < 1 or position.offset < 0 or position.number < UNKNOWN:
        raise ValueError(f"no position: {writer!r}: {found!r}")
    return position


def read_follows(disk: Disk, path: str) -> FollowsFile | None:
    """Read a backup's follows.json; None when there is no valid one: the backup must heal. Raises OSError."""
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


def write_follows(disk: Disk, follows: FollowsFile) -> None:
    """Replace follows.json, without a flush. Everything below its positions must be durable. Raises OSError."""
    replace_file(disk, layout.FOLLOWS, layout.FOLLOWS_TMP, follows.to_json(), flush=False)


NOTE_US = 250_000
OVERFLOW_UNKNOWN = -2
NEVER = -1
"""The overflow counter of no primary: such a file has only the time when the backup was last in step."""


class Bookmark:
    """Reads and writes follows.json for one backup and one primary. Not thread-safe."""

    def __init__(self, source: Directory, target: Directory, epoch: int, boot: str) -> None:
        """Read the file. Raises OSError."""
        self._source = source
        self._target = target
        self._epoch = epoch
        self._boot = boot
        clock = self._clock = source.env.clock
        self.positions: dict[str, Position] = {}
        """The positions that were stored last."""
        self.in_step_us = clock.now_us()
        """The last known time when the backup was in step."""
        self._next: tuple[dict[str, Position], int] | None = None
        self._wrote_us = clock.steady_us()
        self.found = read_follows(target.disk, target.path)
        if self.found is not None and self.found.primary_wheel == source.settings.id:
            self.in_step_us = self.found.in_step_us

    def go_on(self, overflow: int, *, clean: bool = False) -> bool:
        """Take the stored positions; return whether a link can resume from them.

        With `clean`, only if the previous link was closed in order. The file is not marked clean afterwards.
        """
        found = self.found
        if (
            found is None
            or not self.has_all(overflow)
            or not found.boot
            or found.boot != self._boot
            or (clean and not found.clean)
        ):
            return False
        self.positions = dict(found.positions)
        if found.clean:
            self._write(self.positions, overflow, clean=False)
        return True

    def has_all(self, overflow: int) -> bool:
        """Return whether this primary has retained every journal since the stored position, by its overflow counter."""
        found = self.found
        if found is None or found.primary_wheel != self._source.settings.id:
            return False
        return 0 <= found.overflow == overflow

    def forget(self) -> None:
        """Store that there is no valid position: after a crash the next link heals from the start."""
        self._next = None
        self._write({}, NEVER, clean=False)

    def note(
        self,
        positions: dict[str, Position],
        overflow: int,
        now_us: int,
        *,
        owed_us: int | None,
        in_step_us: int | None,
        at_once: bool,
        clean: bool,
    ) -> None:
        """Store positions if it is time to, or `at_once`.

        `owed_us` is the read time of the oldest frame that the backup lacks; `in_step_us` the time at which the backup
        was in step, if it is; `clean` marks the last position of a link that is closed in order.
        """
        if self._next is None or (at_once and owed_us is None):
            self._next = positions, now_us
        positions, at_us = self._next
        if owed_us is not None and owed_us <= at_us:
            return
        if not at_once and 0 <= now_us - self._wrote_us < NOTE_US:
            return
        self._next = None
        self._wrote_us = now_us
        if in_step_us is not None:
            self.in_step_us = in_step_us
        self._write(positions, overflow, clean=clean)
        self.positions = positions

    def _write(self, positions: dict[str, Position], overflow: int, *, clean: bool) -> None:
        write_follows(
            self._target.disk,
            FollowsFile(
                primary_wheel=self._source.settings.id,
                epoch=self._epoch,
                overflow=overflow,
                boot=self._boot,
                positions=positions,
                at_us=self._clock.now_us(),
                in_step_us=self.in_step_us,
                clean=clean,
            ),
        )


Positions = Mapping[str, Position]


def place_of(backup: Directory, primary: Directory, boot: str) -> Positions:
    """Return a backup's valid positions in a primary's journals; none when there is no valid file. Raises OSError."""
    found = read_follows(backup.disk, backup.path)
    if found is None or found.primary_wheel != primary.settings.id or not boot or found.boot != boot:
        return {}
    return found.positions
