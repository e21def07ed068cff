"""The former primary of a set, during the promotion of one of its backups.

Its keeper is stopped first, then its messages are copied: until then it could acknowledge a message that the promoted
wheel fires again. It may be damaged, or away with its disk; the notes of the promotion then say which messages may be
missing.
Invariant: nothing of what it confirmed is left behind without a note.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from filewheel.disk.boot import boot_id
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import is_scarce
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env, Event
from filewheel.errors import FilewheelError, Locked, said_of
from filewheel.replication.link import Link
from filewheel.replication.peers import Peers, skip_unreachable
from filewheel.replication.position import Positions, place_of
from filewheel.replication.shipping import carry_drops
from filewheel.roster.roster import IN_USE, Member

T = TypeVar("T")

_PAUSE_S = 0.02


class OldPrimary:
    """The former primary at a path. Not thread-safe."""

    def __init__(self, path: str, peers: Peers, notes: list[str], env: Env) -> None:
        """Missing messages are noted in `notes`."""
        self._path = path
        self._peers = peers
        self._notes = notes
        self._env = env

    @contextlib.contextmanager
    def keeper_stopped(self, wait_s: float) -> Iterator[None]:
        """Hold its keeper lock, if it is free within `wait_s`: then no more acknowledgements are written."""
        with contextlib.ExitStack() as stack:
            with skip_unreachable():  # it was noted already
                self._peers.check_answers(self._path)
                there = stack.enter_context(opened(self._path, self._env))
                keeper_lock = KeeperLock(there)
                try:
                    when_free(wait_s, lambda: keeper_lock.take("promote", wait=False))
                    stack.callback(keeper_lock.release)
                except Locked:
                    self._notes.append(f"the keeper of {self._path} still runs; it ends before its next claim")
            yield

    def copy_to(self, here: Directory, me: Member, others: Sequence[Member], wait_s: float, *, is_noted: bool) -> bool:
        """Copy its messages that a wheel lacks, and its drops that the other members may lack.

        Return whether everything of it is there, except for undetectable damage. An unreachable one is noted, unless
        it `is_noted` already. Raises DiskError when this process is short of files, memory or threads.
        """
        link: Link | None = None
        pause = Event()
        try:
            self._peers.check_answers(self._path)
            link = self._link(me, wait_s)
            link.catch_up(lambda: pause.wait(_PAUSE_S))
            link.close()
            self._carry_drops(here, others)  # mutant: drops-not-carried
            if link.undecided:
                self._notes.append(
                    f"{self._path} has not retained all journals: {link.undecided} messages that only "
                    f"{here.path} has may have fired there already, and will fire here"
                )
            if link.has_met_damage:
                self._notes.append(f"{self._path} is damaged: messages that could not be read there are not here")
            # mutant: promote-says-all promote-undecided-unsaid
            return not (link.has_met_damage or link.undecided)
        except (FilewheelError, OSError) as exc:
            if link is not None:
                link.abandon()
            if is_scarce(exc):
                raise
            if not is_noted:
                self._notes.append(f"{self._path} could not be read to its end: {said_of(exc, self._path)}")
            return False

    def _link(self, me: Member, wait_s: float) -> Link:
        """Open the link from it; a replicator that holds the lock releases it at its next check."""

        def link() -> Link:
            return Link(self._path, me, role="promote", fenced=True, env=self._env)

        return when_free(max(wait_s, 1.0), link)

    def _carry_drops(self, here: Directory, others: Sequence[Member]) -> None:
        """Write its drops that another backup may lack to the promoted wheel."""
        wheels = [m for m in others if m.state in IN_USE or m.absorb]
        if not wheels:
            return
        places: list[Positions] = []

        def look(path: str, old: Directory) -> None:
            with opened(path, self._env) as there:
                places.append(place_of(there, old, boot_id()))

        with opened(self._path, self._env) as old:
            for member in wheels:
                count = len(places)
                with skip_unreachable():
                    self._peers.ask(member.path, functools.partial(look, member.path, old))
                if len(places) == count:
                    places.append({})  # unreachable: it may lack any drop
            carry_drops(old, here, places)


def when_free(wait_s: float, act: Callable[[], T]) -> T:
    """Call `act` until the lock that it takes is free. Raises Locked when it is not after `wait_s`."""
    pause = Event()
    waited_s = 0.0
    while True:
        try:
            return act()
        except Locked:
            if waited_s >= wait_s:
                raise
        pause.wait(_PAUSE_S)
        waited_s += _PAUSE_S
