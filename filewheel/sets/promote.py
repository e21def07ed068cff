"""Promoting a backup: it becomes the primary, and the former primary is fenced.

The order of the steps makes it safe:

1. The backup's roster says "promoting", and its lock is taken, so that no replicator writes to it.
2. The new epoch is written here and into every other wheel that can be reached. From then on the old primary's keeper
   stops before its next claim, if it can read any of them.
3. A last tick brings over what the old primary has, if it can be read.
4. The copy becomes a whole wheel: with an index of keys, and with a note of what it holds (forks.py).
5. The role becomes "primary": only then may a keeper fire here, or a producer write.

A crash before the last step leaves a set without a primary; promoting again completes it.
Invariant: an epoch has one primary, and its epoch is above that of every readable wheel.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from filewheel.checks import check_flag, check_number, check_path
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM, is_scarce
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env
from filewheel.errors import BadArgument, Damaged, Fenced, FilewheelError, Locked, disk_errors, said_of
from filewheel.format import layout
from filewheel.format.pauses import Pauses
from filewheel.roster.fence import let_producers_look, was_in_set
from filewheel.roster.roster import MEND, Member, Role, Roster, change_roster, read_roster
from filewheel.sets.copy import TICKS_AT_ONCE, Copy
from filewheel.sets.forks import line_of, names_of, note_fork, read_forks
from filewheel.sets.lag import missing_files, why_no_copy
from filewheel.sets.members import finish_copy
from filewheel.sets.pauses import take_over
from filewheel.sets.peers import PeerRoster, Peers, skip_unreachable, when_free
from filewheel.sets.scrub import Mending
from filewheel.sets.source import Source
from filewheel.sets.target import Target

log = logging.getLogger(__name__)

WAIT_S = 5.0


@dataclass
class Promotion:
    """The result of a promotion."""

    epoch: int
    old_primary: str
    fenced: list[str] = field(default_factory=list)
    """The wheels into which the new epoch was written."""
    unreachable: list[str] = field(default_factory=list)
    caught_up: bool = False
    """The old primary was read to its end and everything is here, except for undetectable damage."""
    was_mirror: bool = False
    """It was a current mirror, and each enqueue waited for all mirrors: it has every confirmed message, except those
    enqueued after this mirror was marked stale in the old primary."""
    paused: Pauses = field(default_factory=Pauses)
    """What is paused in the new primary, as it was in the old one."""
    notes: list[str] = field(default_factory=list)


def promote(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    env: Env = SYSTEM,
) -> Promotion:
    """Make a backup the primary of its set. On return a keeper may be opened on it, and producers may write to it.

    Waits up to `wait_s` for the old primary's keeper to end, which it does before its next claim. `force` promotes a
    backup that is known to lack messages. Cost: a copy of what it lacks, and a walk over all that is pending.

    Raises BadArgument when the wheel is no backup or lacks messages; Locked when its replicator does not release it, or
    another promotion of the set is running; DiskError, also when this process is short of files, memory or threads;
    Damaged.
    """
    check_flag("force", force)
    check_number("wait_s", wait_s, least=0)
    where = check_path(path)
    with disk_errors(where), opened(where, env) as here:  # mutant: promote-bare-errors
        act = Promoting.of(here)
        if act.is_done():
            return Promotion(act.epoch, here.path, caught_up=True, notes=["it was the primary already"])
        with act.alone():  # mutant: promote-together
            act.check_complete(force=force)
            return act.run(wait_s)


def _taken_out(path: str) -> BadArgument:
    return BadArgument(f"{path} was removed from its set", hint="`filewheel backup add` it again")


def _was_fenced(path: str) -> BadArgument:
    return BadArgument(f"{path} was fenced", hint="`filewheel rejoin` it first, or promote a backup")


class Promoting:
    """One promotion: its wheel, what is known of its set, and the steps."""

    def __init__(self, here: Directory, roster: Roster, me: Member) -> None:
        self._here = here
        self._roster = roster
        self._me = me
        self._env = here.env
        self._others: list[tuple[str, str]] = []
        self._ask = Peers(here.env)
        self._know(roster)
        self._done = Promotion(0, self._old)
        self._lacked: list[str] = []
        """Why this wheel lacked messages at the start of a forced promotion."""
        self._broken = ""
        """Why no tick can be brought over."""
        self._backups: set[str] = set()
        """Wheels whose own roster says "backup"; after a recent rejoin, this wheel's roster may still say "fenced"."""

    @classmethod
    def of(cls, here: Directory) -> Self:
        """Return the promotion of an open wheel. Raises BadArgument when it is no member of a set."""
        roster = read_roster(here.disk, here.path)
        if roster is None and was_in_set(here.disk):
            raise Damaged(f"{layout.ROSTER} is missing", path=here.path, hint=MEND)
        if roster is None:
            raise BadArgument(f"{here.path} is in no set of wheels", hint="`filewheel backup add DIR`")
        me = roster.member(here.settings.id)
        if roster.primary_wheel == here.settings.id:
            me = me or Member(here.path, here.settings.id, state="current")
        elif roster.role == "fenced":  # mutant: promote-over-a-successor
            raise _was_fenced(here.path)
        if me is None:
            raise _taken_out(here.path)
        return cls(here, roster, me)

    @property
    def epoch(self) -> int:
        """The epoch that this wheel's roster has."""
        return self._roster.epoch

    def is_done(self) -> bool:
        """Return whether this wheel is the primary already, as far as any wheel of the set knows."""
        return self._roster.role == "primary" and not self.is_outdone()

    def _know(self, roster: Roster) -> None:
        self._roster = roster
        self._old, self._old_wheel = roster.primary, roster.primary_wheel
        found = [(roster.primary, roster.primary_wheel), *roster.wheels(), *self._others]
        self._others = [one for one in dict.fromkeys(found) if one[1] != self._me.wheel]

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Exclude other promotions of the set. Raises Locked when there is one."""
        return self._ask.alone([(self._here.path, self._me.wheel), *self._others])

    def _seen(self) -> list[PeerRoster]:
        return self._ask.seen(self._others, self._roster.set)

    def is_outdone(self) -> bool:
        """Return whether another wheel has a higher epoch: then this wheel is fenced, although its roster differs."""
        return any(one.roster.epoch > self._roster.epoch for one in self._seen())

    def check_complete(self, *, force: bool) -> None:
        """Find the last primary. Raise if a readable roster says that this wheel lacks messages."""
        was_primary = self._roster.primary_wheel == self._me.wheel
        fresher = self._roster
        latest, says = (self._roster.held, False, self._me.since_us), self._here.path
        for path, wheel, theirs in self._seen():
            me = theirs.member(self._me.wheel)
            # A wheel in promotion is not the primary: its roster still names the previous one.
            is_primary = theirs.primary_wheel == wheel and theirs.role in ("primary", "fenced")
            if theirs.held > fresher.held or (is_primary and theirs.primary_wheel == fresher.primary_wheel):
                fresher = replace(theirs, epoch=theirs.held, office=0)
            if me is None and is_primary and theirs.held >= self._roster.held:  # mutant: promote-removed
                raise _was_fenced(self._here.path) if was_primary else _taken_out(self._here.path)
            if me is not None and (theirs.held, is_primary, me.since_us) > latest:  # mutant: promote-by-own-word
                latest, says, self._me = (theirs.held, is_primary, me.since_us), path, me
        if was_primary and fresher.primary_wheel != self._me.wheel:
            raise _was_fenced(self._here.path)
        # A new member may not be in this wheel's roster yet.
        self._know(fresher.announced(max(fresher.held, self._roster.epoch), self._roster.role))
        self._done.old_primary = self._old
        if self._me.state != "current" and not force:  # mutant: promote-incomplete
            raise BadArgument(
                f"{self._here.path} is {self._me.state}, says {says}: it lacks messages that were enqueued",
                hint="wait until it is in step (`filewheel backup list`), promote another, or force it (`--force`)",
            )
        if self._me.state != "current":
            self._lacked.append(f"it was {self._me.state}")
        self._check_files(force=force)

    def _check_files(self, *, force: bool) -> None:
        """Raise if files are missing that this wheel's checkpoint names, or if nobody knows which bytes count."""
        self._broken = "" if self._old_wheel == self._me.wheel else why_no_copy(self._here)
        if self._broken and not force:
            raise BadArgument(
                f"{self._here.path}: {self._broken}",
                hint=f"promote another, or copy it anew: {self._me.copied_anew(self._old)}; or `--force` it",
            )
        if self._broken:
            self._lacked.append(self._broken)
        lacks = missing_files(self._here)
        if lacks and not force:  # mutant: lacking-promoted
            raise BadArgument(
                f"{self._here.path} lacks {len(lacks)} files that its checkpoint names, {lacks[0]} among them",
                hint="let `filewheel replicate` copy them again, or restore them; promote another, or `--force` it",
            )
        if lacks:
            self._lacked.append(f"{len(lacks)} of its files are missing")

    def run(self, wait_s: float) -> Promotion:
        """Promote."""
        was = self._roster.role
        # Without the new epoch: if this wheel's lock cannot be taken, nothing has changed.
        self._say("promoting", self._roster.epoch)
        lock = KeeperLock(self._here)
        try:
            when_free(max(wait_s, 10.0), lambda: lock.take("promote", wait=False))
        except BaseException as exc:
            if was != "promoting":
                self._say(was, self._roster.epoch)
            if isinstance(exc, Locked):
                exc.hint = "stop the process that holds it (a replicator releases it by itself), and promote again"
            raise
        try:
            return self._run(wait_s)
        finally:
            lock.release()

    def _run(self, wait_s: float) -> Promotion:
        begun = max([self._roster.epoch, *(one.roster.epoch for one in self._seen())])
        self._was_begun = begun > self._roster.held
        epoch = self._done.epoch = 1 + begun  # mutant: promote-lower-epoch
        # Here first: an old primary that this process cannot reach may still read it here.
        self._say("promoting", epoch)
        for path, wheel in self._others:  # mutant: promote-unfenced
            self._fence(path, wheel, epoch)
        with self._keeper_stopped(wait_s):  # mutant: promote-then-copy
            if self._old in self._done.fenced:
                # Messages are confirmed until its producers look: these must be written before the last read.
                let_producers_look()  # mutant: promote-in-haste
            self._catch_up()  # mutant: promote-behind
        self._note_lacks()
        finish_copy(self._here)
        # W4: before a keeper deals or deletes anything here.
        note_fork(self._here, epoch, self._roster.held)  # mutant: fork-unnoted
        self._done.paused, said = take_over(self._here, self._others, self._ask)
        self._done.notes += said
        # mutant: promote-few-copies
        self._done.was_mirror = self._me.mode == "mirror" and self._me.state == "current" and not self._roster.copies
        self._check_seen()
        self._check_alone(epoch)  # mutant: promote-then-copy.2
        self._become_primary(epoch)  # mutant: promote-then-copy.3
        for path, wheel in self._others:
            self._announce(path, wheel, epoch)
        return self._done

    def _note_lacks(self) -> None:
        """Add a note for each reason why a forced promotion lacked messages."""
        is_whole = self._done.caught_up and self._old_wheel != self._me.wheel
        became = f"were copied from {self._old}" if is_whole else "are not in it"
        self._done.notes += [f"{why}: the messages that it lacked {became}" for why in self._lacked]

    def _check_seen(self) -> None:
        """Add a note if an earlier promotion was started: an unreachable wheel may be the primary since."""
        hidden = [path for path in self._done.unreachable if path != self._old]
        if self._was_begun and hidden:  # mutant: promote-hidden-unsaid
            self._done.caught_up = self._done.was_mirror = False
            self._done.notes.append(
                f"an earlier promotion was started, and {', '.join(hidden)} cannot be reached: if it was promoted, "
                "messages that only it has are not here"
            )

    def _say(self, role: Role, epoch: int) -> None:
        """Write this wheel's role. Raises Fenced when another process has changed it."""

        def change(old: Roster | None) -> Roster:
            known = self._roster if old is None else old
            # Once the role is "promoting", only another promotion makes it a backup again.
            begins = role == "promoting" and epoch == self._roster.epoch
            allowed = (self._roster.role, "promoting") if begins else ("promoting",)
            if known.epoch > epoch or known.role not in allowed:  # mutant: promote-unlocked
                raise self._overtaken(known.primary, known.epoch)
            return (self._roster if begins else known).announced(epoch, role)

        change_roster(self._here, change)

    def _overtaken(self, path: str, epoch: int) -> Fenced:
        return Fenced(
            f"{path} is being promoted at the same time",
            primary=path,
            epoch=epoch,
            path=self._here.path,
            hint="`filewheel backup list` shows the primary",
        )

    def _fence(self, path: str, wheel: str, epoch: int) -> None:
        """Write the new epoch into another wheel's roster."""

        def change(old: Roster | None) -> Roster | None:
            if old is None or old.set != self._roster.set or old.epoch >= epoch:
                return old
            # A former primary that has not rejoined may have messages that no other wheel has.
            # mutant: promote-fenced-forgotten
            was_backup = old.role in ("backup", "promoting") and wheel != self._old_wheel
            role: Role = "backup" if was_backup else "fenced"
            if was_backup:
                self._backups.add(wheel)
            # The roster still names the old primary: if this promotion fails, the next one needs it.
            return old.announced(epoch, role)  # mutant: promote-announces-itself

        def write() -> None:
            with opened(path, self._env) as there:
                if there.settings.id != wheel:
                    raise BadArgument("another wheel is in its place")
                change_roster(there, change)

        try:
            self._ask.ask(path, write)
            self._done.fenced.append(path)
        except (FilewheelError, OSError) as exc:
            if is_scarce(exc):  # mutant: scarce-unfenced
                raise
            self._done.unreachable.append(path)
            self._done.notes.append(f"{path} cannot be reached: {said_of(exc, path)}")

    @contextlib.contextmanager
    def _keeper_stopped(self, wait_s: float) -> Iterator[None]:
        """Hold the old primary's keeper lock, if it is free within `wait_s`: then no acknowledgements are written."""
        with contextlib.ExitStack() as stack:
            if self._old_wheel != self._me.wheel:
                with skip_unreachable():  # it was noted already
                    self._ask.check_answers(self._old)
                    there = stack.enter_context(opened(self._old, self._env))
                    lock = KeeperLock(there)
                    try:
                        when_free(wait_s, lambda: lock.take("promote", wait=False))
                        stack.callback(lock.release)
                    except Locked:
                        self._done.notes.append(f"the keeper of {self._old} still runs; it ends before its next claim")
            yield

    def _catch_up(self) -> None:
        """Bring over what the old primary has, and note what could not be read there.

        Raises DiskError when this process is short of files, memory or threads.
        """
        if self._old_wheel == self._me.wheel:
            self._done.caught_up = True  # this wheel was the last primary
            return
        if self._broken:
            self._done.notes.append(f"nothing was brought over from {self._old}: `filewheel rejoin` it")
            return
        try:
            self._ask.check_answers(self._old)
            with opened(self._old, self._env) as old:
                self._done.caught_up = self._tick_from(old)
        except (FilewheelError, OSError) as exc:
            if is_scarce(exc):
                raise
            if self._old not in self._done.unreachable:
                self._done.notes.append(f"{self._old} could not be read to its end: {said_of(exc, self._old)}")

    def _tick_from(self, old: Directory) -> bool:
        """Do the last ticks; return whether everything of the old primary is here, except for undetectable damage."""
        if old.settings.id != self._old_wheel or names_of(read_forks(old)) != names_of(
            line_of(self._here, self._roster.held)
        ):
            raise Fenced(
                "its messages are of another line than those here", path=old.path, hint="`filewheel rejoin` it"
            )
        mend = Mending(old, self._here).run  # mutant: promote-unmended
        copy = Copy(Source(old), Target(self._here), is_mirror=self._me.mode == "mirror", mend=mend)
        try:
            lacks = copy.tick().lacks
            for _ in range(TICKS_AT_ONCE):
                if lacks or not copy.tick().bytes:
                    break  # its producers may have been in the middle of a call
            if copy.has_damage or lacks:
                self._done.notes.append(f"{old.path} is damaged: messages that could not be read there are not here")
            return not (copy.has_damage or lacks)
        finally:
            copy.close()

    def _check_alone(self, epoch: int) -> None:
        """Raise when another wheel is being promoted too: if both can read each other, one continues.

        Each has written "promoting" before this check. The wheel with the lower id yields. The other one writes the
        role "backup" into that wheel's roster, which stops it if it checked too early.
        """
        rivals: list[tuple[str, int]] = []

        def settle(path: str, wheel: str, theirs: Roster | None) -> Roster | None:
            if theirs is None or theirs.set != self._roster.set or theirs.epoch < epoch:
                return theirs
            is_rival = theirs.role == "promoting" and wheel > self._me.wheel
            if theirs.epoch > epoch or theirs.role == "primary" or is_rival:
                rivals.append((path, theirs.epoch))
                return theirs
            if theirs.role == "promoting":  # mutant: promote-not-alone promote-looked-too-early
                return replace(theirs, role="backup")
            return theirs

        def look(path: str, wheel: str) -> None:
            with opened(path, self._env) as there:
                if there.settings.id == wheel:
                    change_roster(there, functools.partial(settle, path, wheel))

        for path, wheel in self._others:
            with skip_unreachable():
                self._ask.ask(path, functools.partial(look, path, wheel))
        if rivals:  # mutant: promote-not-alone.2
            path, higher = rivals[0]
            self._say("backup", epoch)
            raise self._overtaken(path, higher)

    def _become_primary(self, epoch: int) -> None:
        now_us = self._env.clock.now_us()
        old = Member(self._old, self._old_wheel, self._me.mode, "fenced", now_us, "it was the primary before")

        def change(mine: Roster | None) -> Roster:
            known = mine or self._roster
            if known.role != "promoting" or known.epoch != epoch:  # mutant: promote-unlocked.2
                raise self._overtaken(known.primary, known.epoch)
            now = known.without_member(self._me.wheel)
            members = tuple(
                m if m.state == "fenced" and m.wheel not in self._backups else _joining(m, now_us) for m in now.members
            )
            now = replace(
                now,
                role="primary",
                epoch=epoch,
                office=0,
                primary=self._here.path,
                primary_wheel=self._me.wheel,
                members=members,
            )
            return now if self._old_wheel == self._me.wheel else now.with_member(old)

        # From here on this wheel fires.
        change_roster(self._here, change)

    def _announce(self, path: str, wheel: str, epoch: int) -> None:
        """Write the new primary into another wheel's roster. If that fails, a replicator does it later."""

        def change(old: Roster | None) -> Roster | None:
            if old is None or old.set != self._roster.set or old.epoch != epoch or old.role == "primary":
                return old
            return replace(old, office=0, primary=self._here.path, primary_wheel=self._me.wheel)

        def write() -> None:
            with opened(path, self._env) as there:
                if there.settings.id == wheel:
                    change_roster(there, change)

        with contextlib.suppress(FilewheelError, OSError):
            self._ask.ask(path, write)


def _joining(member: Member, now_us: int) -> Member:
    """Return a backup's entry in the new primary's roster.

    One that was in step may have messages that only it has. One that was not has messages that ended long ago.
    """
    was_in_step = member.absorb or member.state == "current" or member.is_filled
    return replace(member, state="joining", since_us=now_us, is_filled=False, absorb=was_in_step)
