"""The mirrors of one journal: it writes each frame to them, counts the copies, and handles a mirror that fails.

The primary's roster names the mirrors and the policy for one that fails. "stale": the failure is written to the roster
before any frame is confirmed that the mirror should have held, and the mirror is left out until it has what it lacks.
"refuse": nothing more is written or confirmed until the mirror is back; an enqueue tries it again at most once a
second. A failure of a mirror is never a failure of the primary's journal.

The keeper's own journal does not insist on copies (`strict` is false): firing must not stop for a mirror, and the
replicator ships the frames that a mirror missed.
Invariant: a confirmed frame is held by as many wheels as the roster asked for, or the roster names the mirror that does
not have it.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
from collections.abc import Sequence
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.env import Condition
from filewheel.errors import UNWRITTEN, Fenced, FilewheelError, TooFewCopies, anew
from filewheel.journal.mirror import Mirror, reason
from filewheel.message import US_PER_S
from filewheel.roster.roster import Member, Roster, read_roster
from filewheel.roster.stale import mark_stale

log = logging.getLogger(__name__)

RETRY_US = US_PER_S


class Copies:
    """Writes a journal's frames to its mirrors. The journal's lock is held around `follow`, `ready` and `write`."""

    def __init__(self, directory: Directory, *, strict: bool = True) -> None:
        self._dir = directory
        self._clock = directory.env.clock
        self._strict = strict
        self._roster: Roster
        self._mirrors: tuple[Mirror, ...] = ()
        self._lock = threading.RLock()
        self._done = Condition(self._lock)
        self._mending = threading.RLock()
        """Held to change the list of mirrors. Taken after the journal's lock and before `_lock`."""
        self._trouble = False
        """`_mend` has work to do, or there are fewer mirrors than the roster asks for copies."""
        self._marked: set[str] = set()
        """Wheels that this journal marked stale, and that were not seen in another state since."""
        self._logged: set[str] = set()
        """Wheels whose failure is in the log."""

    # -- the list of mirrors ----------------------------------------------------------------------------------

    def follow(self, roster: Roster, ticket: int) -> None:
        """Write the frames after this ticket to the mirrors of this roster.

        Waits until the mirrors are open or have failed, at most for the roster's time-out. Raises Fenced, and nothing
        else, when a mirror was promoted or belongs to a wheel that was.
        """
        with self._mending:
            wanted = {m.wheel: m for m in self._latest(roster).mirrors()}
            kept = [m for m in self._mirrors if _same(m.member, wanted.get(m.member.wheel))]
            gone = [m for m in self._mirrors if m not in kept]
            self._roster = roster
            for mirror in kept:
                mirror.roster = roster
            known = {m.member.wheel for m in kept}
            new = [self._begin(w, ticket) for w in wanted.values() if w.wheel not in known]
            self._mirrors = (*kept, *new)
            self._look()
            self._logged &= known
            _end(gone)
            self._wait_open(new)
            self._check_fence()
        if self._trouble:
            self._mend()

    def _latest(self, roster: Roster) -> Roster:
        """Return this roster, or a newer one: it may have been read before a mirror was marked stale here."""
        current = {m.wheel for m in roster.mirrors()}
        if self._marked & current:  # mutant: stale-taken-back
            with contextlib.suppress(FilewheelError, OSError):
                roster = read_roster(self._dir.disk, self._dir.path) or roster
        self._marked &= {m.wheel for m in roster.members} - {m.wheel for m in roster.mirrors()}
        return roster

    def _begin(self, member: Member, since: int) -> Mirror:
        return Mirror(
            member,
            self._roster,
            since,
            lock=self._lock,
            done=self._done,
            failed=self._failed,
            env=self._dir.env,
        )

    def _wait_open(self, new: list[Mirror]) -> None:
        with self._lock:
            if not self._done.wait_for(lambda: all(m.live or m.error for m in new), self._roster.timeout_s):
                for mirror in new:
                    if not mirror.live:
                        mirror.give_up_late(waited=True)
            self._look()

    def _check_fence(self) -> None:
        for mirror in self._mirrors:
            if isinstance(mirror.error, Fenced):
                raise anew(mirror.error)

    def _failed(self, mirror: Mirror) -> None:
        self._trouble = True

    def _look(self) -> None:
        self._trouble = self._roster.copies > 1 + len(self._mirrors) or not all(m.live for m in self._mirrors)

    def close(self) -> None:
        """Flush, seal and release the mirrors' segments; a mirror that does not answer is left to its thread."""
        with self._mending:
            _end(self._mirrors)

    def release(self) -> None:
        """Close: the wheel has no mirrors any more, and calls that still wait are confirmed without them."""
        with self._mending:
            mirrors, self._mirrors = self._mirrors, ()
            self._roster = replace(self._roster, copies=0)
            _end(mirrors)

    # -- frames ------------------------------------------------------------------------------------------------

    def ready(self) -> None:
        """Raise TooFewCopies or Fenced unless enough wheels can hold a frame that is written now."""
        if not self._trouble:
            return
        self._mend(again=True)
        if self._strict and self._trouble:
            self._check_fence()
            live = 1 + sum(m.live for m in self._mirrors)
            needed = self._roster.copies or 1 + len(self._mirrors)
            if live < needed:  # mutant: broken-written-on
                raise self._too_few(live, needed, UNWRITTEN)

    def write(self, ticket: int, name: str, offset: int, frame: bytes) -> None:
        """Write a frame of the primary's segment to each open mirror that does not have it."""
        for mirror in self._mirrors:
            if mirror.live and mirror.written < ticket:  # mutant: late-given-twice
                mirror.write(ticket, name, offset, frame)
        if self._trouble:
            self._mend()  # an enqueue without a flush is confirmed next  # mutant: stale-unmarked-unflushed

    def fill(self, name: str, start: int, size: int) -> None:
        """Write the zeros that were just written ahead at the primary."""
        for mirror in self._mirrors:
            mirror.fill(name, start, size)

    def begin(self, ticket: int) -> None:
        """Wake the mirrors' threads to flush up to this frame."""
        with self._lock:
            for mirror in self._mirrors:
                mirror.ask(ticket)

    def finish(self, ticket: int) -> None:
        """Return when enough mirrors have flushed this frame; treat those that failed as the roster says."""
        with self._lock:
            in_time = self._done.wait_for(lambda: self._is_covered(ticket), self._roster.timeout_s)
            for mirror in self._mirrors:
                if mirror.lacks(ticket):
                    mirror.give_up_late(waited=not in_time)  # mutant: late-not-failed
        if self._trouble:
            self._mend()

    def _is_covered(self, ticket: int) -> bool:
        asked = self._roster.copies
        if asked and self._held(ticket, durable=True) >= asked:  # mutant: slow-waited-for
            return True
        return not any(m.lacks(ticket) for m in self._mirrors)

    def _held(self, ticket: int, *, durable: bool) -> int:
        return 1 + sum(m.holds(ticket, durable=durable) for m in self._mirrors)

    def confirm(self, ticket: int, *, durable: bool) -> int:
        """Return how many wheels hold this frame. Raises TooFewCopies."""
        held = self._held(ticket, durable=durable)
        if self._strict:
            needed = self._roster.copies or 1 + sum(m.since < ticket for m in self._mirrors)
            if held < needed:  # mutant: too-few-confirmed
                self._check_fence()
                raise self._too_few(held, needed, "it was written, and is not confirmed")
        return held

    def _too_few(self, held: int, needed: int, outcome: str) -> TooFewCopies:
        failed = [(m.member.path, reason(m.error)) for m in self._mirrors if m.error is not None]
        cannot = f"only {held} can be written"
        if failed:
            names = " and ".join(f"{path} cannot be written ({why})" for path, why in failed)
            cannot = f"the mirror{'s' if failed[1:] else ''} {names}"
        return TooFewCopies(
            f"{needed} wheels must hold a message, and {cannot}; {outcome}",
            copies=held,
            path=self._dir.path,
            hint=self._go_on([path for path, _ in failed], held),
        )

    def _go_on(self, failed: list[str], held: int) -> str:
        """Return the commands after which enqueues succeed again; none of them needs the disk that failed."""
        backup = f"filewheel -C {shlex.quote(self._dir.path)} backup"
        back = f"bring {' and '.join(failed)} back" if failed else f"`{backup} list` shows which backup is not in step"
        if self._roster.copies:
            some = [*failed, *(m.path for m in self._roster.members)]
            fewer = f"; `{backup} add {shlex.quote(some[0])} --copies {held}` asks for fewer copies" if some else ""
            return back + fewer
        removed = f"`{backup} remove {shlex.quote(failed[0])}` or " if len(failed) == 1 else ""
        stale = f"`{backup} add {shlex.quote(failed[0])} --on-failure stale`" if failed else ""
        return f"{back}, or go on without it: {removed}{stale}" if failed else back

    # -- failures ----------------------------------------------------------------------------------------------

    def _mend(self, *, again: bool = False) -> None:
        """Treat failed mirrors as the roster says; with `again`, retry those whose last try is a second old."""
        with self._mending:
            for mirror in self._mirrors:
                if mirror.error is None or isinstance(mirror.error, Fenced):
                    continue
                if mirror.member.wheel not in self._logged:
                    self._logged.add(mirror.member.wheel)
                    log.warning("%s: mirror %s failed: %s", self._dir.path, mirror.member.path, reason(mirror.error))
                now_us = self._clock.steady_us()
                before_us, mirror.tried_us = mirror.tried_us, now_us
                # mutant: broken-tried-always
                if before_us is not None and (not again or now_us - before_us < RETRY_US):
                    mirror.tried_us = before_us
                elif self._roster.on_failure == "stale":
                    if self._mark_stale(mirror):  # mutant: stale-unmarked
                        self._mirrors = tuple(m for m in self._mirrors if m is not mirror)
                elif before_us is not None:
                    self._open_again(mirror)  # mutant: broken-for-ever
            with self._lock:
                self._look()
                for mirror in self._mirrors:
                    if mirror.live and mirror.durable:
                        self._logged.discard(mirror.member.wheel)

    def _open_again(self, old: Mirror) -> None:
        """Start another life of a mirror, unless the last one still waits for its disk."""
        if not old.join():  # mutant: hung-tried
            return
        new = self._begin(old.member, old.since)
        self._mirrors = tuple(new if m is old else m for m in self._mirrors)
        live = 1 + sum(m.live for m in self._mirrors)
        if self._strict and live < (self._roster.copies or 1 + len(self._mirrors)):
            self._wait_open([new])
        if new.error is not None:
            new.tried_us = old.tried_us

    def _mark_stale(self, mirror: Mirror) -> bool:
        """Mark a mirror stale in the roster; True when the mark is durable."""
        wheel, epoch = mirror.member.wheel, self._roster.epoch
        since_us, why = self._clock.now_us(), reason(mirror.error or Exception())

        try:
            found = mark_stale(self._dir, lambda m: m.wheel == wheel, why, epoch=epoch, now_us=since_us)
        except FilewheelError as exc:
            log.warning("%s: mirror %s could not be marked stale: %s", self._dir.path, mirror.member.path, reason(exc))
            return False  # mutant: stale-unwritten-goes-on
        if found is None:
            return False  # another wheel was promoted: nothing is confirmed any more
        self._marked.add(wheel)
        return True


def _end(mirrors: Sequence[Mirror]) -> None:
    """Close mirrors side by side."""
    for mirror in mirrors:
        mirror.stop()
    for mirror in mirrors:
        mirror.join()


def _same(member: Member, wanted: Member | None) -> bool:
    return wanted is not None and member.path == wanted.path
