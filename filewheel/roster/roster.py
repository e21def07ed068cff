"""The roster: the wheels of a set, the primary among them, and the epoch.

Each wheel of a set has a copy as roster.json, with a checksum. It is replaced by rename and durable on return. The
primary's copy is the one that counts; with a backup's copy a promotion finds the other wheels. A wheel without a roster
is in no set. A change holds the kernel lock of roster.lock from the read to the rename.

The epoch says which wheel may fire: each promotion raises it, and a wheel that finds a higher epoch than its own stops.
Invariant: a roster that was read is one that was written, and the epoch in a wheel's file never falls.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

from filewheel.checks import scheme_of
from filewheel.disk.directory import Directory, check_writable, opened
from filewheel.disk.disk import SYSTEM
from filewheel.disk.replace import replace_file
from filewheel.env import Disk, Env
from filewheel.errors import Damaged, disk_error
from filewheel.format import layout
from filewheel.format.sealed import Unsealed, seal, unseal

Mode = Literal["mirror", "ship"]
"""`"mirror"`: producers write to it themselves; `"ship"`: the replicator does, later."""

State = Literal["joining", "current", "stale", "fenced"]
"""`"joining"`: being filled; `"current"`: has all messages; `"stale"`: misses some; `"fenced"`: a former primary."""

Role = Literal["primary", "backup", "promoting", "fenced"]
"""`"promoting"`: a backup whose promotion has started, and may have been interrupted."""

OnFailure = Literal["refuse", "stale"]
"""The effect of a failed mirror: enqueues are refused, or the mirror is marked stale and they continue."""

TIMEOUT_S = 5.0
TIMEOUT_MAX_S = 3600
COPIES_MAX = 16
MEMBERS_MAX = 100
WHY_MAX = 1000
VERSION = 2
"""Version 1 is of filewheel 0.2, whose backups had a salt of their own: they are added anew."""
_OLD = "a backup of filewheel 0.2: remove it, and add it anew"
_BYTES_MAX = 1 << 20
_ID_MAX = 64
_PATH_MAX = 4096
_INT_END = 1 << 63
_MARK = b"1\n"
"""The content of roster.lock while there is a roster."""
MEND = (
    "copy the roster.json of a backup of its set, then `filewheel promote` the wheel that should fire; "
    "if this wheel never had a backup, remove roster.json and roster.lock"
)


@dataclass(frozen=True)
class Member:
    """Another wheel of the set, as the primary sees it."""

    path: str
    """Its absolute path, or its URL."""
    wheel: str
    """Its id in wheel.json, so that another wheel at the same path is not taken for it."""
    mode: Mode = "ship"
    state: State = "joining"
    since_us: int = 0
    """When it entered this state."""
    why: str = ""
    """Why it was marked stale."""
    is_filled: bool = False
    """A mirror that joins has what the primary had: producers write to it, and it is current once all of them do."""
    keep_us: int = 0
    """In a bucket: for how long a restore can go back to an earlier time."""
    absorb: bool = False
    """It was current when another one was promoted: what only it has goes to the new primary before it is cleared."""

    @property
    def is_far(self) -> bool:
        """Whether it is at a URL: only its replicator reads and writes it."""
        return self.path[:1] != "/"

    @property
    def is_wheel(self) -> bool:
        """Whether it is a wheel, and no bucket: that is restored, not promoted."""
        return scheme_of(self.path) in ("", "ssh")

    @property
    def is_mirror(self) -> bool:
        """Whether producers write to it."""
        return self.mode == "mirror" and (self.state == "current" or self.is_filled)

    def copied_anew(self, primary: str) -> str:
        """Return the commands that make this backup anew."""
        at, path = f"`filewheel -C {shlex.quote(primary)} backup", shlex.quote(self.path)
        return f"{at} remove {path}`, delete that directory, {at} add {path} --{self.mode}`"


@dataclass(frozen=True)
class Roster:
    """A set of wheels that hold the same messages."""

    set: str
    """The id of the set."""
    epoch: int
    role: Role
    """The role of the wheel that this copy belongs to."""
    primary: str
    """The absolute path of the wheel that fires."""
    primary_wheel: str
    """Its id."""
    members: tuple[Member, ...] = ()
    """All other wheels."""
    on_failure: OnFailure = "refuse"
    copies: int = 0
    """How many wheels hold a message before its enqueue returns; 0 means the primary and every current mirror."""
    timeout_s: float = TIMEOUT_S
    """How long an enqueue waits for a mirror before the mirror counts as failed."""
    office: int = 0
    """The epoch in which `primary` became the primary, if a promotion has raised `epoch` since; else 0."""

    @property
    def held(self) -> int:
        """The epoch in which `primary` became the primary. If it is below `epoch`, a promotion has started since."""
        return self.office or self.epoch

    def announced(self, epoch: int, role: Role) -> Roster:
        """Return the roster of a promotion that starts: a higher epoch, and still the same primary."""
        return replace(self, role=role, epoch=epoch, office=self.held if self.held < epoch else 0)

    def member(self, wheel: str) -> Member | None:
        """Return the member with this wheel id."""
        return next((m for m in self.members if m.wheel == wheel), None)

    def member_at(self, path: str) -> Member | None:
        """Return the member with this path."""
        return next((m for m in self.members if m.path == path), None)

    def wheels(self) -> list[tuple[str, str]]:
        """Return path and id of the members that are wheels."""
        return [(m.path, m.wheel) for m in self.members if m.is_wheel]

    def mirrors(self) -> list[Member]:
        """Return the members that producers write to."""
        return [m for m in self.members if m.is_mirror]

    def promotable(self) -> list[Member]:
        """Return the members known to hold the same messages as the primary: mirrors first."""
        found = [m for m in self.members if m.state == "current" and m.wheel != self.primary_wheel and m.is_wheel]
        return sorted(found, key=lambda m: m.mode != "mirror")

    def with_member(self, member: Member) -> Roster:
        """Return the roster with this member, which replaces the one with the same wheel id."""
        if self.member(member.wheel) is None:
            return replace(self, members=(*self.members, member))
        return replace(self, members=tuple(member if m.wheel == member.wheel else m for m in self.members))

    def without_member(self, wheel: str) -> Roster:
        """Return the roster without the member with this wheel id."""
        return replace(self, members=tuple(m for m in self.members if m.wheel != wheel))

    def to_json(self) -> bytes:
        """Write roster.json, with its checksum as the last line."""
        fields = asdict(self)
        if not self.office:
            del fields["office"]
        return seal({"roster": VERSION, **fields})


def parse_roster(data: bytes, path: str) -> Roster:
    """Read roster.json. Raises Damaged when its content is invalid."""
    try:
        fields = unseal(data)
        version = fields.pop("roster")
        if version == 1:
            fields = _of_version_1(fields)
        elif version != VERSION:
            raise ValueError("another version")
        members = tuple(Member(**m) for m in fields.pop("members"))
        roster = Roster(members=members, **fields)
        _check(roster)  # mutant: roster-unbounded
    except Unsealed as exc:
        raise Damaged("the roster fails its checksum", path=path, hint=MEND) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise Damaged(f"not a roster ({exc})", path=path, hint=f"upgrade filewheel, or {MEND}") from exc
    return roster


def _of_version_1(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a roster of filewheel 0.2 as those of a set whose backups have to be added anew."""
    known = {name: fields[name] for name in fields if name not in ("members", "retain_bytes")}
    members = [
        {
            "path": m["path"],
            "wheel": m["wheel"],
            "mode": m["mode"],
            "state": "stale",
            "since_us": m["since_us"],
            "why": _OLD,
        }
        for m in fields["members"]
    ]
    return {**known, "members": members}


def _check(roster: Roster) -> None:
    """Raise ValueError unless this library may have written every value."""
    wheels = [m.wheel for m in roster.members]
    _that(len(wheels) <= MEMBERS_MAX and len({*wheels}) == len(wheels), "members", len(wheels))
    _that(roster.role in get_args(Role), "role", roster.role)
    _that(roster.on_failure in get_args(OnFailure), "on_failure", roster.on_failure)
    _that(_is_int(roster.epoch, 0), "epoch", roster.epoch)
    _that(_is_int(roster.office, 0) and roster.office <= roster.epoch, "office", roster.office)
    _that(_is_int(roster.copies, 0) and roster.copies <= COPIES_MAX, "copies", roster.copies)
    _that(
        type(roster.timeout_s) in (int, float) and 0 < roster.timeout_s <= TIMEOUT_MAX_S, "timeout_s", roster.timeout_s
    )
    for value in (roster.set, roster.primary_wheel, *wheels):
        _that(isinstance(value, str) and len(value) <= _ID_MAX, "id", value)
    for value in (roster.primary, *(m.path for m in roster.members)):
        is_path = isinstance(value, str) and (value.startswith("/") or scheme_of(value)) and "\0" not in value
        _that(bool(is_path) and len(os.fsencode(value)) <= _PATH_MAX, "path", value)
    for member in roster.members:
        _that(member.mode in get_args(Mode), "mode", member.mode)
        _that(member.state in get_args(State), "state", member.state)
        _that(_is_int(member.since_us, 0), "since_us", member.since_us)
        _that(isinstance(member.why, str) and len(member.why) <= WHY_MAX, "why", member.why)
        _that(type(member.is_filled) is bool, "is_filled", member.is_filled)
        if member.keep_us:
            _that(_is_int(member.keep_us, 0), "keep_us", member.keep_us)
        _that(type(member.absorb) is bool, "absorb", member.absorb)


def _is_int(value: object, least: int) -> bool:
    return type(value) is int and least <= value < _INT_END


def _that(is_so: bool, key: str, value: object) -> None:
    if not is_so:
        raise ValueError(f"{key} is {str(value)[:100]!r}")


def read_roster(disk: Disk, path: str) -> Roster | None:
    """Read a wheel's roster; None when it is in no set. Raises Damaged, OSError."""
    try:
        fd = disk.open(layout.ROSTER, "r")
    except FileNotFoundError:
        return None
    try:
        return parse_roster(disk.pread(fd, _BYTES_MAX, 0), f"{path}/{layout.ROSTER}")
    finally:
        disk.close(fd)


def roster_at(path: str | os.PathLike[str], env: Env = SYSTEM) -> Roster | None:
    """Read the roster of the wheel at `path`; None when it is in no set. Raises as `open_directory`, and OSError."""
    with opened(path, env) as directory:
        return read_roster(directory.disk, directory.path)


def write_roster(disk: Disk, roster: Roster) -> None:
    """Replace a wheel's roster. On return it is durable. The caller holds roster.lock. Raises OSError."""
    replace_file(disk, layout.ROSTER, layout.ROSTER_TMP, roster.to_json())


@contextlib.contextmanager
def roster_locked(disk: Disk) -> Iterator[int]:
    """Hold roster.lock inside the `with`, and yield its descriptor: one at a time changes what belongs to the set."""
    fd = disk.open(layout.ROSTER_LOCK, "rw")
    try:
        disk.lock(fd, wait=True)  # mutant: roster-unlocked
        yield fd
    finally:
        disk.close(fd)


def change_roster(directory: Directory, change: Callable[[Roster | None], Roster | None]) -> Roster | None:
    """Replace a wheel's roster by the result of `change`, under the lock, and return it. None removes the roster.

    A change that would lower the epoch is ignored. Raises Unsafe, Damaged, DiskError, and the errors of `change`.
    """
    disk = directory.disk
    check_writable(directory.path, disk, force=True)
    try:
        with roster_locked(disk) as fd:
            old = read_roster(disk, directory.path)
            new = change(old)
            if new == old or (old is not None and new is not None and new.epoch < old.epoch):  # mutant: epoch-falls
                return old
            if new is None:
                # Durable first: a wheel with the mark and without a roster counts as one that lost its roster.
                disk.truncate(fd, 0)  # mutant: roster-mark-stays
                disk.fdatasync(fd)  # mutant: roster-mark-stays.2
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(layout.ROSTER)
                disk.sync_dir("")
            else:
                write_roster(disk, new)
                if not disk.size(fd):
                    # Without the mark, a roster that is lost later seems never written; the next change tries again.
                    with contextlib.suppress(OSError):
                        disk.pwrite(fd, _MARK, 0)
            return new
    except OSError as exc:
        raise disk_error(exc, directory.place(layout.ROSTER)) from exc
