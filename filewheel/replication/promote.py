"""Promoting a backup: it becomes the wheel that fires, and the one before is fenced.

The order is what makes it safe. First the backup says that it is being promoted, and its lock is taken, so that no
replicator writes to it. Then the new epoch is written here and into every other wheel that can be reached; from then on
the old primary's keeper stops before its next claim, if it sees any of them. What the old primary has and this one
lacks is copied, if it can be read. Last, the role: only then may a keeper fire here, or a producer write.
A crash anywhere before that leaves a set without a primary; promoting again goes on.
Invariant: an epoch has one primary, and its epoch is above that of every wheel that could be seen.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import Directory, DiskFactory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, Fenced, FilewheelError, Locked
from filewheel.owner import Owner
from filewheel.replication.backupkeeper import BackupKeeper
from filewheel.replication.link import Link
from filewheel.retained import Retained
from filewheel.roster import Member, Role, Roster, change_roster, read_roster
from filewheel.writer import Entropy

log = logging.getLogger(__name__)

WAIT_S = 5.0
_PAUSE_S = 0.02


@dataclass
class Promotion:
    """What a promotion did."""

    epoch: int
    old_primary: str
    fenced: list[str] = field(default_factory=list)
    """The wheels that were told of the new epoch."""
    unreachable: list[str] = field(default_factory=list)
    caught_up: bool = False
    """Everything that the old primary held could be read, and is here."""
    notes: list[str] = field(default_factory=list)


def promote(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    wait_s: float = WAIT_S,
    clock: Clock = SYSTEM_CLOCK,
    disk: DiskFactory = OsDisk,
    entropy: Entropy = secrets.token_bytes,
) -> Promotion:
    """Make a backup the primary of its set. On return a keeper may be opened on it, and producers may write to it.

    Waits up to `wait_s` for the old primary's keeper to end, which it does before its next claim. `force` promotes a
    backup that is known to lack messages. Cost: what the backup lacks, if the old primary can be read.

    Raises BadArgument when the wheel is no backup, or lacks messages; Locked when its replicator does not let go of it.
    """
    with _opened(os.path.abspath(os.fspath(path)), disk) as here:
        roster = read_roster(here.disk, here.path)
        if roster is None:
            raise BadArgument(f"{here.path} is in no set of wheels", hint="`filewheel backup add`")
        if roster.role == "primary":
            return Promotion(roster.epoch, here.path, caught_up=True, notes=["it was the primary already"])
        if roster.role == "fenced":
            raise BadArgument(f"{here.path} was fenced", hint="`filewheel rejoin` it first, or promote a backup")
        me = roster.member(here.settings.id)
        if me is None:
            raise BadArgument(f"{here.path} was taken out of its set", hint="`filewheel backup add` it anew")
        act = _Promoting(here, roster, me, clock, disk, entropy)
        act.check_complete(force=force)
        return act.run(wait_s)


class _Promoting:
    def __init__(
        self, here: Directory, roster: Roster, me: Member, clock: Clock, disk: DiskFactory, entropy: Entropy
    ) -> None:
        self._here = here
        self._roster = roster
        self._me = me
        self._clock = clock
        self._disk = disk
        self._entropy = entropy
        self._old = roster.primary
        self._old_wheel = roster.primary_wheel
        self._others = [(m.path, m.wheel) for m in roster.members if m.wheel != me.wheel]
        if roster.primary_wheel != here.settings.id:
            self._others.insert(0, (roster.primary, roster.primary_wheel))
        self._done = Promotion(0, self._old)

    def check_complete(self, *, force: bool) -> None:
        """Raise unless no wheel that can be seen says that this one lacks something."""
        for path, theirs in [(self._here.path, self._roster), *self._seen()]:
            me = theirs.member(self._me.wheel)
            if me is not None and me.state != "current" and theirs.epoch >= self._roster.epoch and not force:
                raise BadArgument(
                    f"{self._here.path} is {me.state}, says {path}: messages that were enqueued are not in it",
                    hint="wait until it is in step (`filewheel backup list`), promote another, or force it (`--force`)",
                )
        if force and self._me.state != "current":
            self._done.notes.append(f"it was {self._me.state}: what it lacked is not in it")

    def run(self, wait_s: float) -> Promotion:
        """Promote."""
        # No epoch yet: if this wheel's lock cannot be had, nothing has happened.
        self._say("promoting", self._roster.epoch)
        try:
            keeper = self._take_lock(max(wait_s, 10.0))
        except Locked:
            self._say("backup", self._roster.epoch)
            raise
        keeper.close()
        epoch = 1 + max([self._roster.epoch, *(theirs.epoch for _, theirs in self._seen())])
        self._done.epoch = epoch
        # Here first: an old primary that nobody can tell sees it here.
        self._say("promoting", epoch)
        for path, wheel in self._others:
            self._fence(path, wheel, epoch)
        with self._old_keeper_stopped(wait_s):
            self._catch_up()
        self._check_alone(epoch)
        self._become_primary(epoch)
        return self._done

    def _say(self, role: Role, epoch: int) -> None:
        def change(old: Roster | None) -> Roster:
            return replace(old or self._roster, role=role, epoch=epoch)

        change_roster(self._here, change)

    def _seen(self) -> list[tuple[str, Roster]]:
        found = []
        for path, wheel in self._others:
            with contextlib.suppress(FilewheelError, OSError), _opened(path, self._disk) as there:
                theirs = read_roster(there.disk, path)
                if theirs is not None and there.settings.id == wheel and theirs.set == self._roster.set:
                    found.append((path, theirs))
        return found

    def _take_lock(self, wait_s: float) -> BackupKeeper:
        """Take this wheel's lock; opening it as a backup's keeper enters the keys of what it has not dealt yet."""
        pause = threading.Event()
        waited_s = 0.0
        while True:
            try:
                return BackupKeeper(
                    self._here.path, role="promote", clock=self._clock, disk=self._disk, entropy=self._entropy
                )
            except Locked as exc:
                if waited_s >= wait_s:
                    exc.hint = "stop whoever holds it (a replicator lets go by itself), and promote again"
                    raise
            pause.wait(_PAUSE_S)
            waited_s += _PAUSE_S

    def _fence(self, path: str, wheel: str, epoch: int) -> None:
        """Write the new epoch into another wheel's roster."""

        def change(old: Roster | None) -> Roster | None:
            if old is None or old.set != self._roster.set or old.epoch >= epoch:
                return old
            role: Role = "fenced" if wheel == self._old_wheel else "backup"
            return replace(old, role=role, epoch=epoch, primary=self._here.path, primary_wheel=self._me.wheel)

        try:
            with _opened(path, self._disk) as there:
                if there.settings.id != wheel:
                    raise BadArgument("another wheel is in its place")
                change_roster(there, change)
                self._done.fenced.append(path)
        except (FilewheelError, OSError) as exc:
            self._done.unreachable.append(path)
            self._done.notes.append(f"{path} could not be told: {exc}")

    @contextlib.contextmanager
    def _old_keeper_stopped(self, wait_s: float) -> Iterator[None]:
        """Hold the old primary's keeper lock meanwhile, if it can be had: then what it acknowledged is all there is."""
        with contextlib.ExitStack() as stack:
            try:
                there = stack.enter_context(_opened(self._old, self._disk))
                owner = Owner(there)
                if self._wait_for(owner, wait_s):
                    stack.callback(owner.release)
                else:
                    self._done.notes.append(
                        f"the keeper of {self._old} has not ended yet; it ends before its next claim"
                    )
            except (FilewheelError, OSError):
                pass  # it is out of reach, and has been noted as such
            yield

    @staticmethod
    def _wait_for(owner: Owner, wait_s: float) -> bool:
        pause = threading.Event()
        waited_s = 0.0
        while True:
            try:
                owner.take("promote", wait=False)
            except Locked:
                if waited_s >= wait_s:
                    return False
                pause.wait(_PAUSE_S)
                waited_s += _PAUSE_S
            else:
                return True

    def _catch_up(self) -> None:
        """Copy what the old primary has and this wheel lacks."""
        if self._old_wheel == self._me.wheel:
            return  # a promotion that was cut short goes on
        link: Link | None = None
        pause = threading.Event()
        try:
            link = Link(
                self._old, self._me, role="promote", fenced=True, clock=self._clock, disk=self._disk,
                entropy=self._entropy,
            )  # fmt: skip
            link.catch_up(lambda: pause.wait(_PAUSE_S))
            link.close()
            self._done.caught_up = True
        except (FilewheelError, OSError) as exc:
            if link is not None:
                link.abandon()
            self._done.notes.append(f"{self._old} could not be read to its end: {exc}")

    def _check_alone(self, epoch: int) -> None:
        """Raise when another wheel is being promoted too: of two, each of which sees the other, one goes on.

        Each has written that it is being promoted before it looks, so not both go on.
        """
        for path, theirs in self._seen():
            rival = theirs.role in ("promoting", "primary") and theirs.epoch == epoch
            if theirs.epoch > epoch or (rival and dict(self._others)[path] > self._me.wheel):
                self._say("backup", epoch)
                raise Fenced(
                    f"{path} is promoted at the same time", primary=path, epoch=theirs.epoch, path=self._here.path,
                    hint="`filewheel backup list` shows who is the primary",
                )  # fmt: skip

    def _become_primary(self, epoch: int) -> None:
        now_us = self._clock.now_us()
        retained = Retained(self._here, limit_bytes=self._roster.retain_bytes)
        old = Member(
            self._old, self._old_wheel, self._me.mode, "fenced", now_us, "it was the primary before",
            overflow=retained.overflow(),
        )  # fmt: skip

        def change(mine: Roster | None) -> Roster:
            now = (mine or self._roster).without_member(self._me.wheel)
            members = tuple(
                m if m.state == "fenced" else replace(m, state="joining", since_us=now_us) for m in now.members
            )
            now = replace(
                now, role="primary", epoch=epoch, primary=self._here.path, primary_wheel=self._me.wheel, members=members
            )
            return now if self._old_wheel == self._me.wheel else now.with_member(old)

        # From here on this wheel fires.
        change_roster(self._here, change)


@contextlib.contextmanager
def _opened(path: str, disk: DiskFactory) -> Iterator[Directory]:
    opened = open_directory(path, write=False, disk=disk)
    try:
        yield opened
    finally:
        opened.disk.release()
