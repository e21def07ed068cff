"""Keeps one backup in a bucket in step, in one thread: a tick a second, and none when nothing is new.

Its lock is a file of the primary, so one replicator of this directory ships at a time. Against all others the bucket
decides (bucket_target.py). A primary whose bucket has a higher epoch is fenced: it fires nothing more.
Invariant: a tick is written only while this wheel is the primary, in the epoch that the link began with.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import Fenced, FilewheelError, Locked, disk_error
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.far import FarNote, make_far, read_note, write_note
from filewheel.roster.fence import LOOK_US
from filewheel.roster.roster import Member, Roster, change_roster, read_roster
from filewheel.sets.bucket import ObjectStore
from filewheel.sets.bucket_target import BucketTarget, Replaced
from filewheel.sets.copy import TICKS_AT_ONCE, Ahead, Copy, Progress
from filewheel.sets.link import LinkReport
from filewheel.sets.pack import SMALL_FILES
from filewheel.sets.source import Source
from filewheel.sets.target import Tick

log = logging.getLogger(__name__)

EVERY_US = US_PER_S
"""A tick is a request, and requests cost."""
LIST_US = 24 * 3600 * US_PER_S
"""How often it is made sure that all objects are there: a rule of the bucket may delete them."""
PURGE_US = 15 * US_PER_S
"""For so long after a purge began each new deal gives a new base: then what had ended is in no object."""


class BucketLink:
    """Keeps one bucket in step. Not thread-safe. Close it; after an error, `abandon` it and make a new one."""

    def __init__(
        self,
        primary: str,
        member: Member,
        *,
        progress: Progress | None = None,
        bucket: ObjectStore | None = None,
        env: Env = SYSTEM,
    ) -> None:
        """Open the primary, take the lock, and find out what the bucket has.

        Raises NoWheel, Locked, Fenced when the set has changed, Replaced, Damaged, DiskError.
        """
        self.report = LinkReport(member.path, member.wheel, member.mode, "copying")
        self._clock = env.clock
        self._progress = progress
        self._wheel = member.wheel
        self._primary = open_directory(primary, write=False, env=env)
        self._lock = -1
        self._purged_us: int | None = None
        self._told_us = self._listed_us = self._clock.steady_us()
        self._looked_us: int | None = None
        self._ticked_us: int | None = None
        self._source = Source(self._primary)
        try:
            self._note = read_note(self._primary.disk, member.wheel)
            self._purged = self._primary.disk.identity(layout.PURGED)
            if self._purged is not None and abs(self._clock.now_us() - self._purged[2] // 1000) < PURGE_US:
                self._purged = None  # it has just begun, and waits for this link
            self._epoch = self._look().epoch
            self._take_lock()
            opened = ObjectStore(member.path) if bucket is None else bucket
            self._target = BucketTarget(opened, self._primary, self._epoch, keep_us=member.keep_us)
            self._copy = self._open_copy()
        except BaseException as exc:
            self.abandon()
            if isinstance(exc, OSError):
                raise disk_error(exc, primary) from exc
            raise

    def _take_lock(self) -> None:
        make_far(self._primary.disk)
        name = f"{layout.far(self._wheel)}.lock"
        self._lock = self._primary.disk.open(name, "rw")
        if not self._primary.disk.lock(self._lock, wait=False):
            raise Locked("another replicator ships to this bucket", role="backup", path=self._primary.place(name))

    def _open_copy(self) -> Copy:
        with self._yielding():
            return Copy(self._source, self._target, small=SMALL_FILES, progress=self._tell)

    # -- the set ---------------------------------------------------------------------------------------------

    def _look(self) -> Roster:
        """Read the primary's roster. Raises Fenced when the set has changed."""
        roster = read_roster(self._primary.disk, self._primary.path)
        if roster is None or roster.role != "primary" or roster.member(self._wheel) is None:
            raise Fenced(
                "this wheel is not the primary, or the bucket was removed from its set",
                path=self._primary.path,
                hint="`filewheel backup list`",
            )
        if self._looked_us is not None and roster.epoch != self._epoch:
            raise Fenced("the epoch has changed", path=self._primary.path)
        self._looked_us = self._clock.steady_us()
        self._roster = roster
        return roster

    @property
    def member(self) -> Member:
        """The bucket's entry in the primary's roster."""
        member = self._roster.member(self._wheel)
        assert member is not None
        return member

    def _enter_current(self) -> None:
        before, now_us = self.member, self._clock.now_us()

        def change(roster: Roster | None) -> Roster | None:
            known = None if roster is None else roster.member(self._wheel)
            if roster is None or known is None or known.since_us != before.since_us:
                return roster
            since_us = max(now_us, before.since_us + 1)  # a state is recognised by its time
            return roster.with_member(replace(known, state="current", since_us=since_us, why=""))

        self._roster = change_roster(self._primary, change) or self._roster

    @contextlib.contextmanager
    def _yielding(self) -> Iterator[None]:
        """Fence the primary when the bucket says that another wheel has a higher epoch."""
        try:
            yield
        except Ahead as exc:
            restored = f"`filewheel restore {self.report.path} DIR` has what the bucket has"
            exc.hint = f"{restored}; then `backup add --take-over` on the wheel that is to fire"
            raise
        except Replaced as exc:
            error = exc
            if exc.epoch > self._epoch:
                log.critical("%s: %s; it fires nothing more", self._primary.path, exc.what)

                def fence(mine: Roster | None) -> Roster | None:
                    if mine is None or mine.epoch >= error.epoch:
                        return mine
                    return replace(
                        mine, role="fenced", epoch=error.epoch, office=0, primary=self.report.path, primary_wheel=""
                    )

                with contextlib.suppress(FilewheelError):
                    change_roster(self._primary, fence)  # mutant: bucket-epoch-unheeded
            raise

    # -- ticks -----------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Bring over what is new, at most once a second; return whether there was anything.

        Raises Fenced when the set has changed, Replaced when the bucket has another writer, and other library errors.
        After an error, abandon the link and make a new one later.
        """
        now_us = self._clock.steady_us()
        if self._looked_us is None or not 0 <= now_us - self._looked_us < LOOK_US:
            self._look()
        if self._ticked_us is not None and 0 <= now_us - self._ticked_us < EVERY_US:
            return False
        self._ticked_us = now_us
        return self._ship()

    def _ship(self) -> bool:
        began_us = self._clock.now_us()
        try:
            with self._yielding():
                if self._target.is_outgrown or self._is_base_due():
                    self._copy = self._open_copy()
                done = self._copy.tick()
                if self._target.needs_base:
                    self._target.commit(Tick())  # an empty wheel is something to restore, too
        except OSError as exc:
            raise disk_error(exc, self._primary.path) from exc
        error = f"{self._primary.path} lacks {done.lacks[0]}, which its checkpoint names" if done.lacks else ""
        if not error:
            if self.member.state != "current":
                self._enter_current()
            self._leave_note(began_us)
        self.report = replace(
            self.report,
            copied_bytes=self.report.copied_bytes + done.bytes,
            state="copying" if error else "following",
            error=error,
        )
        return done.bytes > 0

    def _is_base_due(self) -> bool:
        """Return whether the target was told to make a base, because objects were deleted or for a purge."""
        now_us, purged = self._clock.steady_us(), self._primary.disk.identity(layout.PURGED)
        if purged != self._purged:
            self._purged, self._purged_us = purged, now_us
        is_purge = self._purged_us is not None and 0 <= now_us - self._purged_us < PURGE_US
        is_due = is_purge and self._primary.checkpoint().deal > self._target.base_deal
        if not 0 <= now_us - self._listed_us < LIST_US:
            self._listed_us = now_us
            is_due = is_due or not self._target.is_whole()
        self._target.needs_base = self._target.needs_base or is_due
        return is_due

    def _leave_note(self, began_us: int) -> None:
        """Note at the primary what the bucket has, since a tick that began at this time."""
        checkpoint = self._copy.checkpoint
        self._write_note(
            FarNote(
                self._clock.now_us(),
                "",
                self.member.since_us,
                began_us,
                checkpoint.deal,
                checkpoint.keeper,
                self._copy.sizes,
                self._target.based,
            )
        )

    def _tell(self, path: str, done: int, total: int) -> None:
        """Say how far a tick is; a base may take long, and its replicator lives."""
        now_us = self._clock.steady_us()
        if not 0 <= now_us - self._told_us < US_PER_S:
            self._told_us = now_us
            self._write_note(replace(self._note, noted_us=self._clock.now_us()))
        if self._progress is not None:
            self._progress(path, done, total)

    def _write_note(self, note: FarNote) -> None:
        self._note = note
        with contextlib.suppress(OSError):  # the primary's disk may be full
            write_note(self._primary, self._wheel, note)

    def catch_up(self, pause: Callable[[], object]) -> None:
        """Bring over all that the primary has now; call `pause` in between. Raises the errors of `tick`."""
        for _ in range(TICKS_AT_ONCE):
            self._look()
            if not self._ship() or self.report.error or pause() is True:
                return

    def close(self) -> None:
        """Bring over the last second, if the bucket can be reached, and let go."""
        try:
            with contextlib.suppress(FilewheelError):
                self._look()
                self._ship()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go after an error."""
        self._source.close()
        if self._lock >= 0:
            self._primary.disk.close(self._lock)
            self._lock = -1
        self._primary.disk.release()
