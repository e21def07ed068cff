"""The link: keeps one backup in step with its primary, in one thread.

It holds the backup's lock and knows its office: the primary's roster says that this wheel is its backup in this epoch,
and the backup's own roster agrees. A wheel of another line (a former primary, or a backup that another one was promoted
over) first gives what only it has, and is cleared. Then ticks bring over what is new (copy.py), and from time to time a
scrub compares what both have (scrub.py).

A backup is current after a tick that found all. A mirror is filled first: then its producers write to it, and it is
current after a tick that began when all of them do.
Invariant: a tick is written only while the backup's roster names this primary and epoch (W2).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.env import Env
from filewheel.errors import Damaged, Fenced, Locked, NoWheel, disk_error
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.far import FOLLOWED_US, FarNote, read_note, write_note
from filewheel.roster.fence import LOOK_US, yield_to
from filewheel.roster.roster import WHY_MAX, Member, Roster, State, change_roster, read_roster
from filewheel.sets.absorb import Absorption
from filewheel.sets.copy import TICKS_AT_ONCE, Copied, Copy, Progress
from filewheel.sets.forks import first_not_in, forks_if_whole, names_of, read_forks
from filewheel.sets.lag import why_no_copy
from filewheel.sets.pauses import copy_pauses
from filewheel.sets.remote import RemoteDisk, RemoteTarget, clear_place, open_place
from filewheel.sets.scrub import Mending, Scrub, adopt
from filewheel.sets.source import Source
from filewheel.sets.target import DirectoryTarget, Target

log = logging.getLogger(__name__)

LOOK_FAR_US = US_PER_S
"""How often a link looks at the roster and the pauses of a backup on another machine, which costs round trips."""
SCRUB_US = 24 * 3600 * US_PER_S
MEASURE_US = 10 * US_PER_S
"""How often a link looks which files the copy has."""
_SETTLED_US = LOOK_US * 5 // 4
"""So long after a roster was written every producer has read it."""


@dataclass(frozen=True)
class LinkReport:
    """The state of one link."""

    path: str
    wheel: str
    mode: str
    state: str
    """`"copying"`, `"following"`, `"unreachable"`, `"failed"`."""
    copied_bytes: int = 0
    """Bytes that the link brought over."""
    healed: int = 0
    """Frames of the backup that were damaged, and were written again."""
    returned: int = 0
    """Messages that were given back to a damaged primary, or to a new one by a wheel of another line."""
    error: str = ""


class Link:
    """Keeps one backup in step. Not thread-safe. Close it; after an error, `abandon` it and make a new one."""

    def __init__(self, primary: str, member: Member, *, progress: Progress | None = None, env: Env = SYSTEM) -> None:
        """Open both wheels and take the backup's lock.

        Raises NoWheel, Locked, Fenced when the set has changed, Damaged, DiskError.
        """
        self.report = LinkReport(member.path, member.wheel, member.mode, "copying")
        self._clock = env.clock
        self._progress = progress
        self._source = open_directory(primary, write=False, env=env)
        self._copy: Copy | None = None
        self._scrub: Scrub | None = None
        try:
            self._target = open_place(member.path, write=True, env=env)
        except BaseException:
            self._source.disk.release()
            raise
        self._lock = KeeperLock(self._target)
        try:
            self._begin(member)
        except BaseException as exc:
            self.abandon()
            if isinstance(exc, OSError):
                raise disk_error(exc, member.path) from exc
            raise

    def _begin(self, member: Member) -> None:
        if self._target.settings.id != member.wheel:
            raise NoWheel(
                "another wheel is here than the backup that was registered",
                path=self._target.path,
                hint="`filewheel backup remove` it and add this one, or mount the right disk",
            )
        self._roster = self._read_primary()
        self._epoch = self._roster.epoch
        self._wheel, self._is_far = member.wheel, member.is_far
        if self._target.settings.salt != self._source.settings.salt:
            raise Damaged(
                "this backup was made by filewheel 0.2 or for another wheel: its files cannot be those of the primary",
                path=self._target.path,
                hint="`filewheel backup remove` it, and `filewheel backup add` an empty directory",
            )
        self._lock.take("backup", wait=False)
        if read_roster(self._target.disk, self._target.path) is None:
            self._check_whole(member)
        self._take_back()
        self._check_office()
        self._looked_us: int | None = None
        self._filled_us: int | None = None
        """When this mirror was seen to be filled, by the steady clock."""
        self._beat_us: int | None = None
        self._measured_us = self._clock.steady_us()
        self._mending = Mending(self._source, self._target)
        self._aside = self._items()
        self._scrubbed_us = self._clock.steady_us()
        self._follow_line()
        self._check_whole(member)
        disk = self._target.disk
        self._place: DirectoryTarget = Target(self._target, self._check_office)
        if isinstance(disk, RemoteDisk):
            self._place = RemoteTarget(self._target, disk, self._roster.set, self._epoch)
        self._copy = Copy(
            Source(self._source),
            self._place,
            is_mirror=self._is_mirror,
            mend=self._mend,
            adopt=self._adopt,
            progress=self._progress,
        )
        self._mark_short()

    def _check_whole(self, member: Member) -> None:
        """Raise Damaged when the backup lacks what says which of its bytes count."""
        broken = why_no_copy(self._target)
        if broken:
            raise Damaged(broken, path=self._target.path, hint=member.copied_anew(self._source.path))

    def _mark_short(self) -> None:
        """Mark the backup stale while it lacks files: it is not to be promoted. The next tick brings them."""
        if self._copy is not None and self._copy.short and self.member.state == "current":
            self._enter("stale", why=f"{self._copy.short} of its files are missing")  # mutant: lacking-current

    @property
    def member(self) -> Member:
        """The backup's entry in the primary's roster. Raises Fenced when it was removed."""
        member = self._roster.member(self._wheel)
        if member is None:
            raise Fenced("a backup was removed from the set", path=self._source.path, hint="`filewheel backup list`")
        return member

    @property
    def _is_mirror(self) -> bool:
        return self.member.mode == "mirror"

    # -- who may write here ----------------------------------------------------------------------------------

    def _read_primary(self) -> Roster:
        roster = read_roster(self._source.disk, self._source.path)
        if roster is None or roster.role != "primary":
            raise Fenced(
                "this wheel is not the primary of a set", path=self._source.path, hint="`filewheel backup list`"
            )
        return roster

    def _take_back(self) -> None:
        """Undo a promotion that was killed before it raised the epoch; a running one holds the lock."""

        def take_back(mine: Roster | None) -> Roster | None:
            if mine is None or mine.role != "promoting" or mine.set != self._roster.set or mine.epoch > self._epoch:
                return mine
            return replace(mine, role="backup")

        theirs = read_roster(self._target.disk, self._target.path)
        if theirs is None or theirs.role != "promoting":
            return
        fd = self._target.disk.open(layout.PROMOTE_LOCK, "rw")
        try:
            if self._target.disk.lock(fd, wait=False):  # mutant: promote-taken-back
                change_roster(self._target, take_back)
        finally:
            self._target.disk.close(fd)

    def _check_office(self) -> None:
        """Raise Fenced unless the backup is this primary's, in this epoch. Cost: a read of its roster."""
        try:
            check_office(self._target, self._roster.set, self._epoch)
        except Fenced:
            if self._is_far:
                self._heed_promotion()
            raise

    def _heed_promotion(self) -> None:
        """Fence the primary if this backup, which no keeper can ask, says that another wheel was promoted.

        An announcement does not count: nobody would tell this wheel how it ended.
        """
        theirs = read_roster(self._target.disk, self._target.path)
        if theirs is not None and theirs.set == self._roster.set and theirs.held == theirs.epoch > self._epoch:
            known = self._roster.member(theirs.primary_wheel)  # its path there is one of the other machine
            yield_to(self._source, theirs if known is None else replace(theirs, primary=known.path))

    def _look(self) -> None:
        """Read the primary's roster again, and copy it to the backup. Raises Fenced when the set has changed."""
        roster = self._read_primary()
        if roster.epoch != self._epoch:
            raise Fenced("the epoch has changed", path=self._source.path)
        self._roster = roster
        _ = self.member
        self._copy_roster()

    def _copy_roster(self) -> None:
        mine = replace(self._roster, role="backup")
        self._check_office()
        if read_roster(self._target.disk, self._target.path) != mine:
            change_roster(self._target, lambda old: mine if old is not None and old.role == "backup" else old)

    def _enter(self, state: State, *, is_filled: bool = False, why: str = "") -> None:
        """Change the backup's entry in the primary's roster, unless another process has marked it since the look."""
        before, now_us = self.member, self._clock.now_us()
        since_us = max(now_us, before.since_us + 1)  # a state is recognised by its time

        def change(roster: Roster | None) -> Roster | None:
            known = None if roster is None else roster.member(self._wheel)
            if roster is None or known is None or known.since_us != before.since_us:
                return roster
            now = replace(known, state=state, is_filled=is_filled, absorb=False, since_us=since_us, why=why[:WHY_MAX])
            return roster.with_member(now)

        changed = change_roster(self._source, change)
        if changed is not None:
            self._roster = changed
            self._copy_roster()  # if the primary is lost now, the backup's own roster decides

    # -- another line ----------------------------------------------------------------------------------------

    def _follow_line(self) -> None:
        """Absorb and clear a wheel whose files are of another line than the primary's."""
        ours, theirs = read_forks(self._source), forks_if_whole(self._target)
        if names_of(ours) == names_of(theirs):
            return
        fork = first_not_in(ours, theirs)
        if fork is None:
            raise Fenced(
                "this wheel was promoted, and its primary does not know of that",
                path=self._target.path,
                hint="`filewheel backup list`; `filewheel promote` the wheel that should fire",
            )
        if self.member.absorb:
            done = Absorption(self._target, self._source, fork, progress=self._progress).run()
            self.report = replace(self.report, returned=done.kept)
            for note in done.notes:
                log.warning("%s: %s", self._source.path, note)
        self._enter("joining")  # before it is empty: it is not to be promoted
        clear_place(self._target)

    # -- ticks -----------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do one step of work; return whether there was any.

        Raises Fenced when the set has changed and this link is no longer needed, and other library errors when a disk
        fails. After an error, abandon the link and make a new one later.
        """
        try:
            return self._tick()
        except OSError as exc:
            raise disk_error(exc, self._target.path) from exc

    def _tick(self) -> bool:
        assert self._copy is not None
        now_us = self._clock.steady_us()
        look_us = LOOK_FAR_US if self._is_far else LOOK_US
        if self._looked_us is None or not 0 <= now_us - self._looked_us < look_us:
            self._looked_us = now_us
            self._look()
            with contextlib.suppress(Locked):  # copied with a later look
                copy_pauses(self._source, self._target)
            self._begin_scrub(now_us)
            if not 0 <= now_us - self._measured_us < MEASURE_US:
                self._measured_us = now_us
                self._copy.look_at_files()
                self._mark_short()
        done = self._copy.tick()
        if self._scrub is not None:
            self._go_on_scrub(self._scrub)
        elif not done.lacks:
            self._advance(now_us)
        if not done.lacks and (self._beat_us is None or not 0 <= now_us - self._beat_us < US_PER_S):
            self._beat_us = now_us
            self._copy.beat()
            if self._is_far:
                self._leave_note(self._copy)
        self._note(done)
        return done.bytes > 0 or self._scrub is not None

    def _leave_note(self, copy: Copy) -> None:
        """Note at the primary what a backup at a URL has, for those who cannot look there."""
        now_us, checkpoint = self._clock.now_us(), copy.checkpoint
        note = FarNote(
            now_us, "", self.member.since_us, now_us, checkpoint.deal, checkpoint.keeper, copy.sizes, checkpoint.deal
        )
        write_note(self._source, self._wheel, note)

    def _note(self, done: Copied) -> None:
        if done.bytes:
            self.report = replace(self.report, copied_bytes=self.report.copied_bytes + done.bytes)
        state = "following" if self.member.state == "current" and self._scrub is None else "copying"
        error = f"{self._source.path} lacks {done.lacks[0]}, which its checkpoint names" if done.lacks else ""
        if (state, error) != (self.report.state, self.report.error):
            self.report = replace(self.report, state=state, error=error)

    def _advance(self, began_us: int) -> None:
        """Enter the next state after a tick that brought over all that the primary had when it began."""
        member = self.member
        if member.state == "current":
            return
        if member.mode == "mirror" and not member.is_filled:
            self._enter("joining", is_filled=True)
            self._filled_us = None
        elif member.mode == "mirror" and self._filled_us is None:
            self._filled_us = self._clock.steady_us()
        # Producers that have not read that they write to it wrote to the primary alone until now.
        elif self._filled_us is None or began_us - self._filled_us >= _SETTLED_US:  # mutant: mirror-current-at-once
            self._enter("current")
            self._filled_us = None

    def catch_up(self, pause: Callable[[], object]) -> None:
        """Call `tick` until the backup is current and has all that the primary holds now; call `pause` in between.

        Ends early when `pause` returns True. Raises the errors of `tick`.
        """
        # A tick brings all that was there when it began. Under a load that never pauses each one has something.
        ticks = 1
        while (self.tick() and ticks < TICKS_AT_ONCE) or self._scrub is not None or self.member.state != "current":
            if self.report.error or pause() is True:
                return
            ticks += 1

    # -- the scrub -------------------------------------------------------------------------------------------

    def _mend(self, missing: list[str]) -> None:
        """Give back what the primary has put aside since the last call, and what is pending in these files."""
        returned = self._mending.run(missing)
        self.report = replace(self.report, returned=self.report.returned + returned)

    def _adopt(self, name: str, start: int) -> None:
        """Give back what only the copy has of a segment."""
        returned = adopt(self._source, self._target, name, start)
        self.report = replace(self.report, returned=self.report.returned + returned)

    def _items(self) -> list[str]:
        """Return the names in the primary's quarantine. Cost: a listing."""
        return sorted(self._source.disk.listdir(layout.QUARANTINE))

    def _begin_scrub(self, now_us: int) -> None:
        """Begin to compare both wheels: once a day, and when the primary has something new in its quarantine."""
        if self._scrub is not None or self._copy is None:
            return
        aside = self._items()
        if aside != self._aside:
            self._mend([])
        if aside != self._aside or self._copy.has_damage or now_us - self._scrubbed_us > SCRUB_US:
            self._aside = aside
            self.scrub()

    def scrub(self) -> None:
        """Begin to compare all that both wheels should have; the next ticks do it."""
        assert self._copy is not None
        self._scrubbed_us = self._clock.steady_us()
        self._copy.forget_damage()
        self._scrub = Scrub(self._source, self._place, self._copy.sizes)

    def _go_on_scrub(self, scrub: Scrub) -> None:
        if scrub.step():
            return
        self._scrub = None
        self.report = replace(
            self.report,
            healed=self.report.healed + scrub.healed,
            returned=self.report.returned + scrub.returned,
        )

    # -- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the backup."""
        if self._copy is not None and self._is_far:
            # Nobody takes this for a replicator that runs.
            note = read_note(self._source.disk, self._wheel)
            write_note(self._source, self._wheel, replace(note, noted_us=note.noted_us - FOLLOWED_US))
        with contextlib.suppress(Fenced):  # the set has changed, and another process has written the roster
            try:
                self._look()
            except OSError as exc:
                raise disk_error(exc, self._target.path) from exc
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Release the backup after an error."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        self._lock.release()
        self._target.disk.release()
        self._source.disk.release()


def check_office(backup: Directory, set_: str, epoch: int) -> None:
    """Raise Fenced unless a wheel is a backup of this set, in this epoch. Cost: a read of its roster."""
    theirs = read_roster(backup.disk, backup.path)
    if theirs is None or theirs.set != set_ or theirs.role != "backup":
        raise Fenced(
            "this wheel is not a backup of the set, or is being promoted",
            path=backup.path,
            hint="`filewheel backup list`; `filewheel backup add` it again if it was removed",
        )
    if theirs.epoch > epoch:  # mutant: tick-after-promotion
        raise Fenced("this wheel has a higher epoch than its primary", path=backup.path, hint="rejoin")
