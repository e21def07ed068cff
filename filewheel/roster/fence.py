"""The fence: stops a handle from writing or firing after another wheel of the set was promoted.

A producer checks its roster every fifth of a second, which costs one stat. A keeper checks before each claim: its own
roster and those of the other wheels, because a promotion may have reached only one of them. A keeper that finds a
higher epoch than its own stops, and records that in its own roster if it can be written.
Invariant: `check_may_fire` returns only if no reachable wheel of the set has a higher epoch than this one.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from typing import NoReturn

from filewheel.checks import scheme_of
from filewheel.disk.directory import Directory
from filewheel.disk.disk import is_scarce
from filewheel.env import Disk, Env, pause
from filewheel.errors import Damaged, Fenced, FilewheelError, disk_error
from filewheel.format import layout
from filewheel.roster.roster import Roster, change_roster, read_roster

log = logging.getLogger(__name__)

LOOK_US = 200_000
"""How long a producer writes without checking the roster."""
_FENCE_S = LOOK_US / 1_000_000 * 1.25
_FORGET_US = 1_000_000
"""How long another wheel's directory stays open: a check must not keep a mount busy."""

Identity = tuple[int, int, int] | None


def was_in_set(disk: Disk) -> bool:
    """Return whether a wheel must have a roster: it was in a set and was not removed from it. Raises OSError."""
    known = disk.identity(layout.ROSTER_LOCK)
    return known is not None and known[1] > 0


class Fence:
    """The fence of one handle. Not thread-safe: its owner guards it."""

    def __init__(self, directory: Directory) -> None:
        """Read the roster. Raises Damaged, DiskError."""
        self._dir = directory
        self.roster: Roster | None = None
        """The wheel's own roster; None when the wheel is in no set."""
        self._identity: Identity = None
        self._others: dict[str, _Other] = {}
        self.look()
        # Check again: the first roster and the mark may have been written between the two reads.
        if self.roster is None and self._is_marked() and not self.look():  # mutant: roster-unmarked
            raise _roster_gone(directory.path)

    def _is_marked(self) -> bool:
        try:
            return was_in_set(self._dir.disk)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(layout.ROSTER_LOCK)) from exc

    # -- its own roster --------------------------------------------------------------------------------------

    def look(self) -> bool:
        """Read the roster if it was replaced; return whether it was. Cost: one stat.

        Raises Fenced when it is missing: the wheel was deleted, or the roster was removed by hand. Also Damaged and
        DiskError.
        """
        disk, path = self._dir.disk, self._dir.path
        try:
            identity = disk.identity(layout.ROSTER)
            if identity == self._identity:
                return False
            if identity is None and self.roster is not None:  # mutant: roster-gone
                raise _roster_gone(path)
            self.roster = read_roster(disk, path)
        except OSError as exc:
            raise disk_error(exc, self._dir.place(layout.ROSTER)) from exc
        self._identity = identity
        return True

    def check_may_write(self) -> None:
        """Raise Fenced unless this wheel is in no set, or is the primary of its set by its own roster."""
        roster = self.roster
        if roster is not None and roster.role != "primary":
            raise fenced(roster, self._dir.path)

    # -- the other wheels' rosters ---------------------------------------------------------------------------

    def check_may_fire(self, now_us: int) -> None:
        """Raise Fenced unless this wheel may fire now. Cost: one stat, and one for each other wheel of the set."""
        self.look()
        self.check_may_write()
        roster = self.roster
        if roster is None or not roster.members:
            return
        for member in roster.members:
            if member.is_far:
                continue  # its replicator fences this wheel when that one was promoted
            other = self._others.get(member.path)
            if other is None:
                other = self._others[member.path] = _Other(member.path, self._dir.env)
            theirs = other.look(now_us)
            if (  # mutant: others-unseen rivals other-set-heeded
                theirs is not None
                and theirs.set == roster.set
                and (theirs.epoch > roster.epoch or _is_rival(theirs, roster))
            ):
                yield_to(self._dir, theirs)

    def close(self) -> None:
        """Close the other wheels' directories."""
        for other in self._others.values():
            other.forget()
        self._others.clear()


def yield_to(directory: Directory, theirs: Roster) -> NoReturn:
    """Record in a primary that another wheel was promoted, and raise Fenced."""

    def fence(mine: Roster | None) -> Roster | None:
        if mine is None or not (mine.epoch < theirs.epoch or _is_rival(theirs, mine)):
            return mine
        # A wheel in the middle of its promotion is not the primary yet: the next promotion reads this roster.
        # mutant: yield-to-an-announcement
        latest = mine if mine.held >= theirs.held and not _is_rival(theirs, mine) else theirs
        known = replace(mine, primary=latest.primary, primary_wheel=latest.primary_wheel, epoch=latest.held, office=0)
        return known.announced(theirs.epoch, "fenced")

    # `theirs` may be the roster of a third wheel.
    error = fenced(replace(theirs, role="fenced"), directory.path)
    log.critical("%s: %s; this wheel fires nothing more", directory.path, error.what)
    with contextlib.suppress(FilewheelError):  # its disk may have failed; it stops either way
        change_roster(directory, fence)  # mutant: fence-unwritten
    raise error


def _roster_gone(path: str) -> Fenced:
    return Fenced(
        "the roster of this wheel is gone, and perhaps the wheel too",
        path=path,
        hint=f"use another wheel of its set; if it should stand alone, remove {path}/{layout.ROSTER_LOCK}",
    )


def _is_rival(theirs: Roster, mine: Roster) -> bool:
    """Return whether both were promoted to the same epoch, without seeing each other, and this wheel has to yield."""
    return (
        theirs.role == mine.role == "primary"
        and theirs.epoch == mine.epoch
        and theirs.primary_wheel > mine.primary_wheel
    )


class _Other:
    """The roster of another wheel, read by its path."""

    def __init__(self, path: str, env: Env) -> None:
        self._path = path
        self._env = env
        self._disk: Disk | None = None
        self._opened_us = 0
        self._identity: Identity = None
        self._roster: Roster | None = None

    def look(self, now_us: int) -> Roster | None:
        """Return its present roster; None when it cannot be reached.

        Raises DiskError when this process has no files or memory left: a keeper that could not check must not fire.
        """
        if self._disk is not None and not 0 <= now_us - self._opened_us < _FORGET_US:  # mutant: mount-kept-busy
            self.forget()
        try:
            if self._disk is None:
                self._disk = self._env.disk(self._path)
                self._opened_us = now_us
            identity = self._disk.identity(layout.ROSTER)
            if identity != self._identity:
                self._roster = read_roster(self._disk, self._path)
                self._identity = identity
        except (OSError, Damaged) as exc:
            self.forget()
            if isinstance(exc, OSError) and is_scarce(exc):  # mutant: scarce-unseen
                raise disk_error(exc, self._path) from exc
            return None  # its disk cannot be reached, or the wheel was deleted
        return None if identity is None else self._roster

    def forget(self) -> None:
        """Close its directory."""
        if self._disk is not None:
            self._disk.release()
        self._disk = None


def let_producers_look() -> None:
    """Wait until every producer of a newly fenced wheel has checked its roster."""
    pause(_FENCE_S)


def fenced(roster: Roster, path: str) -> Fenced:
    """Return the error for a wheel that may not be written to, or fired from, because of this roster."""
    if roster.role == "backup":
        return Fenced(
            f"this wheel is a backup of {roster.primary}",
            primary=roster.primary,
            epoch=roster.epoch,
            path=path,
            hint=f"use {roster.primary}, or `filewheel promote` this one",
        )
    if roster.role == "promoting":
        return Fenced(
            "this wheel is being promoted",
            primary=roster.primary,
            epoch=roster.epoch,
            path=path,
            hint="wait a moment; if it was interrupted, `filewheel promote` it again",
        )
    if roster.held < roster.epoch:
        return Fenced(
            f"another wheel of this set is being promoted (epoch {roster.epoch})",
            epoch=roster.epoch,
            path=path,
            hint="wait a moment; if it was interrupted, `filewheel promote` this or another wheel of the set",
        )
    scheme = scheme_of(roster.primary)
    if scheme not in ("", "ssh"):
        return Fenced(
            f"another wheel has taken over {roster.primary} (epoch {roster.epoch})",
            primary=roster.primary,
            epoch=roster.epoch,
            path=path,
            hint=f"use that wheel; if this one is to fire: `filewheel backup add --take-over {roster.primary}`",
        )
    return Fenced(
        f"{roster.primary} was promoted in place of this wheel (epoch {roster.epoch})",
        primary=roster.primary,
        epoch=roster.epoch,
        path=path,
        hint=f"use it on its machine; `filewheel backup add ssh://HOST{path}` there makes this wheel its backup"
        if scheme
        else f"use {roster.primary}; `filewheel rejoin` makes this wheel a backup of it",
    )
