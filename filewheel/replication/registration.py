"""A backup's entry in the rosters of its set, as its link reads and changes it.

The primary's roster is authoritative; the backup's copy decides whether it may be promoted after the primary is lost.
A promotion follows a fenced primary, with fewer checks.
Invariant: an entry is not changed if the backup no longer belongs to this primary, or if another process has marked it
since it was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.errors import Fenced, NoWheel
from filewheel.format import layout
from filewheel.roster.roster import WHY_MAX, Member, Roster, State, change_roster, read_roster


class Registration:
    """The entry of one backup in its primary's roster and its own. Not thread-safe."""

    def __init__(self, source: Directory, wheel: str, *, fenced: bool) -> None:
        """Read the primary's roster. Raises Fenced when it is no primary, Damaged, OSError."""
        self._source = source
        self._wheel = wheel
        self._clock = source.env.clock
        self.fenced = fenced
        """Whether a promotion follows the fenced primary for the last time."""
        self.roster = self._read()
        self.epoch = self.roster.epoch
        self._target: Directory | None = None

    def _read(self) -> Roster:
        roster = read_roster(self._source.disk, self._source.path)
        if roster is None or (roster.role != "primary" and not self.fenced):
            raise Fenced(
                "this wheel is not the primary of a set", path=self._source.path, hint="`filewheel backup list`"
            )
        return roster

    @property
    def member(self) -> Member:
        """The backup's entry. Raises Fenced when it was removed."""
        member = self.roster.member(self._wheel)
        if member is None:
            raise Fenced("a backup was removed from the set", path=self._source.path, hint="`filewheel backup list`")
        return member

    @property
    def is_current(self) -> bool:
        """Whether the backup's state is "current"."""
        return self.member.state == "current"

    def check(self, target: Directory) -> None:
        """Raise unless this directory is the backup. Raises NoWheel, Fenced, Damaged, OSError."""
        self._take_back(target)  # mutant: promote-left-promoting
        roster = read_roster(target.disk, target.path)
        if target.settings.id != self._wheel:
            raise NoWheel(
                "another wheel is here than the backup that was registered",
                path=target.path,
                hint="`filewheel backup remove` it and add this one, or mount the right disk",
            )
        if roster is None or roster.set != self.roster.set or (roster.role != "backup" and not self.fenced):
            raise Fenced(
                "this wheel is not a backup of the set", path=target.path, hint="`filewheel backup add` it again"
            )
        if roster.epoch > self.epoch and not self.fenced:
            raise Fenced("this wheel has a higher epoch than its primary", path=target.path, hint="`filewheel rejoin`")
        self._target = target

    def _take_back(self, target: Directory) -> None:
        """Undo a promotion that was killed before it raised the epoch; a running one holds the lock."""

        def take_back(mine: Roster | None) -> Roster | None:
            if mine is None or mine.role != "promoting" or mine.set != self.roster.set or mine.epoch > self.epoch:
                return mine
            return replace(mine, role="backup")

        theirs = None if self.fenced else read_roster(target.disk, target.path)
        if theirs is None or theirs.role != "promoting":
            return
        fd = target.disk.open(layout.PROMOTE_LOCK, "rw")
        try:
            if target.disk.lock(fd, wait=False):  # mutant: promote-taken-back
                change_roster(target, take_back)
        finally:
            target.disk.close(fd)

    def look(self) -> Member:
        """Read the primary's roster again, and copy it to the backup. Raises Fenced when the set has changed."""
        roster = self._read()
        if roster.epoch != self.epoch:
            raise Fenced("the epoch has changed", path=self._source.path)
        self.roster = roster
        self._copy_roster()
        return self.member

    def _copy_roster(self) -> None:
        """Copy the roster to the backup. Raises Fenced when it is no longer a backup of this primary."""
        target = self._target
        if self.fenced or target is None:
            return
        mine = replace(self.roster, role="backup")
        theirs = read_roster(target.disk, target.path)
        if theirs is None or theirs.role != "backup" or theirs.epoch > self.epoch:
            raise Fenced("this backup is being promoted, or was removed from its set", path=target.path)
        if theirs != mine:
            change_roster(target, lambda old: mine if old is not None and old.role == "backup" else old)

    def enter(self, member: Member, state: State) -> None:
        """Change the backup's state, unless another process has marked it since the last `look`."""
        now_us = self._clock.now_us()
        self.change(member, lambda known: replace(known, state=state, since_us=now_us, why=""))

    def mark_stale(self, why: str) -> None:
        """Mark the backup as stale: it does not count as a copy until it is healed."""
        member = self.member
        since_us = max(self._clock.now_us(), member.since_us + 1)  # later than before: a mark is recognised by its time
        self.change(member, lambda known: replace(known, state="stale", since_us=since_us, why=why[:WHY_MAX]))

    def change(self, member: Member, change: Callable[[Member], Member]) -> None:
        """Change the backup's entry, unless another process has marked it since the last `look`."""

        def change_known(roster: Roster | None) -> Roster | None:
            known = None if roster is None else roster.member(member.wheel)
            if roster is None or known is None or known.since_us != member.since_us:
                return roster
            return roster.with_member(change(known))

        changed = change_roster(self._source, change_known)
        if changed is not None:
            self.roster = changed
            # If the primary is lost now, the backup's copy decides whether it may be promoted.
            self._copy_roster()  # mutant: current-untold
