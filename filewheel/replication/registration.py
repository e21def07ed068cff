"""A backup's entry in the rosters of its set, as its link reads and changes it.

The primary's roster is authoritative; the backup's copy says whether it may be promoted after the primary is lost. A
promotion follows a primary that is fenced already, and then fewer checks apply.
Invariant: nothing is changed for a backup that is no longer one of this primary's, or that another process has marked
since the entry was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.errors import Fenced, NoWheel
from filewheel.format import layout
from filewheel.roster.roster import WHY_MAX, Member, Roster, State, change_roster, read_roster


class Registration:
    """One backup in the rosters of its primary and its own. Not thread-safe."""

    def __init__(self, source: Directory, wheel: str, *, fenced: bool) -> None:
        """Read the primary's roster. Raises Fenced when it is none, Damaged, OSError."""
        self._source = source
        self._wheel = wheel
        self._clock = source.env.clock
        self.fenced = fenced
        """The primary was fenced, and is followed for the last time."""
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
        """How the backup is registered. Raises Fenced when it is not any more."""
        member = self.roster.member(self._wheel)
        if member is None:
            raise Fenced("a backup was taken out of the set", path=self._source.path, hint="`filewheel backup list`")
        return member

    @property
    def is_current(self) -> bool:
        """Whether the backup counts as in step."""
        return self.member.state == "current"

    def check(self, target: Directory) -> None:
        """Raise unless this directory is the backup. Raises NoWheel, Fenced, Damaged, OSError."""
        self._take_back(target)  # mutant: promote-left-promoting
        roster = read_roster(target.disk, target.path)
        if target.settings.id != self._wheel:
            raise NoWheel(
                "another wheel is here than the backup that was registered", path=target.path,
                hint="`filewheel backup remove` it and add this one, or mount the right disk",
            )  # fmt: skip
        if roster is None or roster.set != self.roster.set or (roster.role != "backup" and not self.fenced):
            raise Fenced(
                "this wheel is not a backup of the set", path=target.path, hint="`filewheel backup add` it anew"
            )
        if roster.epoch > self.epoch and not self.fenced:
            raise Fenced("this wheel has a higher epoch than its primary", path=target.path, hint="`filewheel rejoin`")
        self._target = target

    def _take_back(self, target: Directory) -> None:
        """Make a backup again of one whose promotion ended before it had told anybody: who promotes holds a lock."""

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
        """Read the primary's roster anew, and give the backup a copy. Raises Fenced when the set has changed."""
        roster = self._read()
        if roster.epoch != self.epoch:
            raise Fenced("the epoch has changed", path=self._source.path)
        self.roster = roster
        self._tell()
        return self.member

    def _tell(self) -> None:
        """Give the backup a copy of the roster. Raises Fenced when it is no backup of this primary any more."""
        target = self._target
        if self.fenced or target is None:
            return
        mine = replace(self.roster, role="backup")
        theirs = read_roster(target.disk, target.path)
        if theirs is None or theirs.role != "backup" or theirs.epoch > self.epoch:
            raise Fenced("this backup is being promoted, or was taken out of its set", path=target.path)
        if theirs != mine:
            change_roster(target, lambda old: mine if old is not None and old.role == "backup" else old)

    def enter(self, member: Member, state: State) -> None:
        """Note that the backup has come into another state, unless someone has marked it meanwhile."""
        now_us = self._clock.now_us()
        self.change(member, lambda known: replace(known, state=state, since_us=now_us, why=""))

    def mark_stale(self, why: str) -> None:
        """Note that the backup lacks something, so that nobody counts on it until it has been healed."""
        member = self.member
        since_us = max(self._clock.now_us(), member.since_us + 1)  # another time than before: a mark is known by it
        self.change(member, lambda known: replace(known, state="stale", since_us=since_us, why=why[:WHY_MAX]))

    def change(self, member: Member, change: Callable[[Member], Member]) -> None:
        """Change how the backup is registered, unless someone has marked it meanwhile."""

        def change_known(roster: Roster | None) -> Roster | None:
            known = None if roster is None else roster.member(member.wheel)
            if roster is None or known is None or known.since_us != member.since_us:
                return roster
            return roster.with_member(change(known))

        changed = change_roster(self._source, change_known)
        if changed is not None:
            self.roster = changed
            # If the primary is lost now, this is the copy that says whether the backup may be promoted.
            self._tell()  # mutant: current-untold
