"""The link: keeps one backup in step with its primary.

It is the backup's keeper and the reader of the primary's journals, in one thread, so a decision about the backup is
still valid when it is written. It writes to its own journal in the backup. When it cannot continue from the stored
position (the backup is new or was unreachable for too long, or power was cut), it heals: it walks over both wheels in
chunks, and follows the journals between chunks. A position is stored after the records below it are written, so a
killed link resumes a little earlier, and writes some records twice, in the same order.
Invariant: in the backup no drop comes before its put, and every stored position is covered by records in the backup.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from filewheel.disk.boot import boot_id
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import Damaged, Fenced, FilewheelError, Locked, disk_error, disk_errors
from filewheel.format.frame import Frame
from filewheel.format.record import ID, readable_records
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S
from filewheel.replication.absorb import Absorption
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.extras import EndedExtras, Extras
from filewheel.replication.follower import Follower, Pass
from filewheel.replication.heal import Heal, HealStep
from filewheel.replication.health import items_before, items_now
from filewheel.replication.mirror_match import OWED_US, Announcement, MirrorMatch
from filewheel.replication.pauses import copy_pauses
from filewheel.replication.position import OVERFLOW_UNKNOWN, Bookmark
from filewheel.replication.reconcile import GiveBack, Reconciler, give_up_missing
from filewheel.replication.registration import Registration
from filewheel.replication.shipping import PASSES, Bundle, still_pending
from filewheel.replication.status import LinkReport, Progress
from filewheel.roster.retention import Retention
from filewheel.roster.roster import IN_USE, Member, State

log = logging.getLogger(__name__)

LOOK_US = 200_000
SCRUB_US = 24 * 3600 * US_PER_S
SUSPECTS_MAX = 200_000


class Link:
    """One backup and its primary. Not thread-safe: one thread opens it, calls `tick` repeatedly, and closes it."""

    def __init__(
        self,
        primary: str,
        member: Member,
        *,
        role: str = "backup",
        fenced: bool = False,
        progress: Progress | None = None,
        env: Env = SYSTEM,
        boot: str | None = None,
    ) -> None:
        """Take the backup's lock. A promotion sets `fenced`, to follow a primary that is fenced already.

        Raises Locked, NoWheel, Fenced, Damaged, DiskError.
        """
        self.report = LinkReport(member.path, member.wheel, member.mode, "following")
        self._clock = env.clock
        self._progress = progress
        self._fenced = fenced
        self._boot = boot_id() if boot is None else boot
        self.source = open_directory(primary, write=False, env=env)
        self._keeper: BackupKeeper | None = None
        self._journal: Journal | None = None
        self._give_back = GiveBack(self.source)
        self._follower: Follower | None = None
        self._match: MirrorMatch | None = None
        self._announcement: Announcement | None = None
        try:
            self.registration = Registration(self.source, member.wheel, fenced=fenced)
            self.keeper = self._keeper = BackupKeeper(member.path, role=role, on_frame=self._read_in_backup, env=env)
            self.target = self._keeper.dir
            self.registration.check(self.target)
            self.journal = self._journal = Journal(self.target)
            self._reconciler = Reconciler(self.source, self._keeper, self._journal, self._give_back)
            self._extras = Extras(self.source, self.target, self.registration.epoch)
            self._ended = EndedExtras(self.source, self.target, self._journal)
            self._retention = Retention(self.source, limit_bytes=self.registration.roster.retain_bytes)
            self._begin()
        except OSError as exc:
            self._release()
            raise disk_error(exc, member.path) from exc
        except BaseException:
            self._release()
            raise

    # -- life ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Continue from the stored position if it is valid; otherwise start to heal."""
        give_up_missing(self.keeper, self.registration)
        self._passes = self._healed_pass = 0
        self._scrubbed_us = self._clock.steady_us()
        self._looked_us = self._scrubbed_us - LOOK_US  # check at once: the set may have changed before this link
        self._replays = 0
        self._met_damage = False
        self._heal = Heal(self.source, self.keeper, self._progress)
        self._lost = self._must_heal = False
        self._state_us = self.registration.member.since_us
        self._overflow = self._read_overflow()
        self.bookmark = Bookmark(self.source, self.target, self.registration.epoch, self._boot)
        # The first check finds the files that were quarantined since the backup was in step.
        self._sound_us = self.bookmark.in_step_us
        self._aside = [items_before(wheel, self._sound_us) for wheel in (self.source, self.target)]
        self._known = self._aside[0]
        member = self.registration.member
        if member.absorb and not self._fenced:  # mutant: not-absorbed
            self._absorb(member)
        is_known = member.state == "current" or self._fenced
        is_mirror = member.mode == "mirror" and member.state in IN_USE  # mutant: matching-unmatched
        if is_mirror:
            self._match = MirrorMatch()
        # A killed link may have waited for frames that the mirror lacked: a comparison finds them.
        if is_known and self.bookmark.go_on(self._overflow, clean=is_mirror):
            self.follower = self._follower = Follower(self.source, self.bookmark.positions)
            self._replays = PASSES
        else:
            self.follower = self._follower = Follower(self.source)
            self.follower.skip()
            self._replays = PASSES  # the last may move a message that the first dropped
            self.heal()

    def _absorb(self, member: Member) -> None:
        """Give the primary the messages that only this backup has; both followed another primary before."""
        absorbed = Absorption(
            self.target,
            self.source,
            overflow=member.overflow,
            progress=self._progress,
        ).run()
        if absorbed.kept or absorbed.dropped:
            log.warning(
                "%s: added %d messages that only %s had, dropped %d that it had fired",
                self.source.path,
                absorbed.kept,
                self.target.path,
                absorbed.dropped,
            )
        self.report = replace(self.report, returned=self.report.returned + absorbed.kept)
        # After a crash before this line, the next link absorbs again, which changes nothing.
        self.registration.change(member, lambda known: replace(known, absorb=False))

    def heal(self, *, scrub: bool = False, by_id: bool = False) -> None:
        """Start to compare both wheels from the first id, and repair each difference; following continues.

        A `scrub` is the daily check, and keeps the stored position. `by_id` checks each message that only the backup
        has, even if the primary has nothing of the same lap.
        """
        self._heal.begin(by_id=by_id or self._fenced)
        if not scrub:
            self.bookmark.forget()
        self._scrubbed_us = self._clock.steady_us()
        self._set_state("healing")

    def close(self) -> None:
        """Release the backup, and store its position if that is certain."""
        try:
            if self._journal is not None:
                self._journal.flush()
                if self._follower is not None:
                    self._follower.forget_gone()  # or the next link would treat them as deleted
                self._note(self._clock.steady_us(), clean=True)
                with contextlib.suppress(Fenced):  # the set has changed, and another process has written the roster
                    self.registration.look()
        except OSError as exc:
            raise disk_error(exc, self.target.path) from exc
        finally:
            self._release(deal=not self._fenced)  # mutant: promote-deals-last

    def abandon(self) -> None:
        """Release the backup after an error: nothing more is written to it."""
        self._release()

    def _release(self, *, deal: bool = False) -> None:
        keeper, self._keeper = self._keeper, None
        self._give_back.close()
        journal, self._journal = self._journal, None
        if journal is not None:
            with contextlib.suppress(FilewheelError, OSError):
                journal.close()
        if self._follower is not None:
            self._follower.close()
        try:
            if keeper is not None:
                keeper.close(deal=deal)
        finally:
            self.source.disk.release()

    def catch_up(self, pause: Callable[[], object]) -> None:
        """Call `tick` until the backup has everything that the primary holds now; call `pause` in between.

        Ends early when `pause` returns True. Raises the errors of `tick`.
        """
        first, now_us = self._passes, self._clock.steady_us()
        while not (
            self.is_in_step(now_us) and self._passes >= first + 3 and (self._fenced or self.registration.is_current)
        ):
            busy = self.tick()
            if not (busy and self._heal.is_on) and pause() is True:
                return
        with disk_errors(self.target.path):
            self._note(self._clock.steady_us(), clean=True)

    # -- one tick --------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Do one step of work; return whether there was any.

        Raises Fenced when the set has changed and this link is no longer needed, and other library errors when a disk
        fails. After an error, abandon the link and make a new one later.
        """
        try:
            return self._tick()
        except OSError as exc:
            raise disk_error(exc, self.target.path) from exc

    def _tick(self) -> bool:
        now_us = self._clock.steady_us()
        if not 0 <= now_us - self._looked_us < LOOK_US:
            self._looked_us = now_us
            self._look(now_us)
        if self._must_heal:
            self._must_heal = False
            self.heal()
        if self._heal.is_on and len(self._extras) < SUSPECTS_MAX:
            busy = self._heal_on(now_us)
        else:
            busy = self._follow(self.follower.step(now_us), now_us)
        # A fenced primary may have lost a drop that this backup has; a deal would forget it before the primary is read.
        self.keeper.tick(deal=not self._fenced)  # mutant: promote-deals-meanwhile
        if self._match is not None:
            busy = self._complete_mirror(self._match, now_us) or busy
        busy = self._decide_extras(now_us) or busy
        self.journal.flush()
        self._note(now_us)
        return busy

    def _follow(self, step: Pass, now_us: int) -> bool:
        self._ship(step, now_us)
        return step.frames > 0

    def _ship(self, frames: Iterable[Frame], now_us: int) -> None:
        """Write the frames of a pass to the backup; a mirror gets them from its producers."""
        if self._replays and self._match is None:
            frames = still_pending(self.source, frames)
        bundle = Bundle(self.journal)
        for frame in frames:
            if self._match is not None:
                self._match.in_source(frame, now_us)
            else:
                bundle.add(frame)
        bundle.write()
        self._replays = max(0, self._replays - 1)
        self._stepped(bundle.records, now_us)

    def _stepped(self, records: int, now_us: int) -> None:
        self._passes += 1
        if self.follower.vanished:
            log.warning("%s: journals of %d writers were deleted", self.source.path, len(self.follower.vanished))
            self.follower.vanished.clear()
            self._extras.wait(now_us)
            # Their undealt messages are in the backup only.
            self._lost = self._must_heal = True
        self._count(records)

    def _count(self, records: int) -> None:
        if records:
            self.report = replace(self.report, shipped=self.report.shipped + records)

    def _heal_on(self, now_us: int) -> bool:
        """Repair one part: read it, then the journals, and write both in that order."""
        part = self._heal.next()
        self._met_damage |= part.damaged
        step = self.follower.step(now_us)
        frames = list(step)
        self._add_missing(part, step)
        self._add_extras(part.extra)
        self._extras.add_files(part.absent)
        self._ship(frames, now_us)
        if not self._heal.is_on:
            self._healed_pass = self._passes
            if self.registration.is_current:
                self._set_state("following")
        return True

    def _add_missing(self, part: HealStep, step: Pass) -> None:
        """Write the messages that the backup lacks, without those dropped since the part was read."""
        gone: set[bytes] = set()
        for frame in step.dropped:
            gone.update(r[ID] for r in readable_records(frame)[1])
        puts = [put for put in part.puts if put[ID] not in gone] if gone else part.puts
        bundle = Bundle(self.journal, self._expected())
        bundle.add_puts(puts)
        bundle.add_drops(part.drops)
        bundle.write()
        if puts or part.copied:
            self.report = replace(self.report, healed_puts=self.report.healed_puts + len(puts) + part.copied)

    # -- a mirror --------------------------------------------------------------------------------------------

    def _read_in_backup(self, frame: Frame) -> None:
        if self._match is not None:
            self._match.in_target(frame, self._clock.steady_us())

    def _expected(self) -> Callable[[Frame], None] | None:
        return None if self._match is None else self._match.expect

    def _complete_mirror(self, matcher: MirrorMatch, now_us: int) -> bool:
        """Write the frames that the mirror lacks, and treat puts that only the mirror has as extras."""
        owed = matcher.owed(now_us)
        if owed:
            self._count(self._reconciler.supply(owed, matcher.expect))
        for frame in matcher.surplus(now_us):
            if frame.puts:
                self._add_extras(p[ID] for p in readable_records(frame)[0])
        return bool(owed)

    # -- extras: messages that only the backup has -----------------------------------------------------------

    def _add_extras(self, ids: Iterable[bytes]) -> None:
        """Add messages that only the backup seems to have.

        A fenced primary may have lost messages, so its drops alone decide.
        """
        if self._fenced:  # mutant: fenced-suspects
            self._ended.add(ids)
        else:
            self._extras.add(ids)

    def _decide_extras(self, now_us: int) -> bool:
        if self._ended.is_due(at_end=not self._heal.is_on):
            self._ended.drop(self._expected())
            return True
        decision = self._extras.decide(
            now_us, self._passes, known=self._known, has_lost=self.follower.has_lost, all_lost=self._lost
        )
        if decision is None:
            return len(self._extras) > 0
        done = self._reconciler.carry_out(decision, self._heal.moved, self._expected())
        self.report = replace(
            self.report,
            healed_drops=self.report.healed_drops + done.dropped,
            returned=self.report.returned + done.returned,
        )
        if done.by_id:
            self.heal(by_id=True)
        return True

    # -- the set ---------------------------------------------------------------------------------------------

    def is_in_step(self, us: int) -> bool:
        """Return whether the backup holds everything that the primary held at a (steady) time.

        While the primary is in use, drops of the last pass always wait for the next one. A fenced primary must be read
        to its end.
        """
        owed_us = None if self._match is None else self._match.owed_since_us()
        if self._fenced and not (self.follower.is_idle and owed_us is None):
            return False
        settled = self.follower.is_idle or self._passes >= self._healed_pass + 2
        even = owed_us is None or owed_us > us
        is_repaired = not (self._heal.is_on or self._must_heal or self._extras or self._ended)
        return is_repaired and settled and even

    @property
    def has_met_damage(self) -> bool:
        """Whether durable bytes of the primary were unreadable."""
        return self._met_damage or bool(self.follower.damage)

    @property
    def undecided(self) -> int:
        """The number of messages that only the backup has, and that a fenced primary may have finished.

        0 if the primary retained all journals since the backup was in step: then a message without a drop is pending.
        """
        return 0 if self.bookmark.has_all(self._overflow) else self._ended.undecided

    def has_read(self, writer: str, segment: int) -> bool:
        """Return whether a segment of the primary was read to its end, and a position behind it is stored."""
        position = self.bookmark.positions.get(writer)
        if position is None:
            return False
        return position.segment > segment or (position.segment == segment and self.follower.has_ended(writer, position))

    def look(self) -> None:
        """Check the set for changes, and copy the roster to the backup. Raises the errors of `tick`."""
        try:
            self._look(self._clock.steady_us())
        except OSError as exc:
            raise disk_error(exc, self.target.path) from exc

    def _look(self, now_us: int) -> None:
        """Check the set for changes, and both wheels for damage or losses; heal if there are any."""
        give_up_missing(self.keeper, self.registration)
        member = self.registration.look()
        if not self._fenced:
            with contextlib.suppress(Locked):  # copied with a later look
                copy_pauses(self.source, self.target)
        if member.state != "current" and member.since_us != self._state_us:
            # A producer marked it stale and no longer writes to it, or its mode has changed.
            self._state_us = member.since_us
            self._match = self._announcement = None
            self.heal()  # mutant: mode-uncompared
        overflow = self._read_overflow()
        looked_us = self._clock.now_us()
        aside = [items_now(wheel) for wheel in (self.source, self.target)]
        is_new = any(new - old for new, old in zip(aside, self._aside, strict=True))
        if overflow != self._overflow or self.follower.damage or is_new:
            self._met_damage |= bool(self.follower.damage)
            self.follower.damage.clear()
            self._overflow = overflow
            self.heal()
        elif now_us - self._scrubbed_us > SCRUB_US:
            self.heal(scrub=True)
        self._sound_us, self._aside = looked_us, aside
        if member.state != "current" and not self._fenced:
            self._advance(member, now_us)

    def _advance(self, member: Member, now_us: int) -> None:
        """Advance the backup's state to current when it is in step; a mirror is "matching" before that."""
        if member.mode == "mirror" and self._announcement is None:
            if self.is_in_step(0):  # even with owed frames: the announcement waits for the relevant ones
                # Before producers read the new state: frames that they write to both wheels must not be shipped too.
                self._match = self._match or MirrorMatch()
                self._enter(member, "matching")
                self._announcement = Announcement(self._clock.steady_us())
            return
        # mutant: mirror-current-at-once
        since_us = now_us if self._announcement is None else self._announcement.complete_us(now_us, self._passes)
        if since_us is not None and self.is_in_step(since_us):
            self._announcement = None
            self._enter(member, "current")
            self._set_state("following")

    def _enter(self, member: Member, state: State) -> None:
        self.registration.enter(member, state)
        if self.registration.member.state == state:  # else it was marked stale in between, and must heal
            self._state_us = self.registration.member.since_us

    def _set_state(self, state: str) -> None:
        self.report = replace(self.report, state=state)

    def _read_overflow(self) -> int:
        try:
            return self._retention.overflow()
        except Damaged:
            return OVERFLOW_UNKNOWN

    # -- the stored position ---------------------------------------------------------------------------------

    def _note(self, now_us: int, *, clean: bool = False) -> None:
        """Store the backup's position, unless it is healing."""
        if not self._heal.is_on and not self._must_heal and not len(self._extras):
            self._lost = False
            self._known = self._aside[0]  # their messages have been given back
            self.bookmark.note(
                self.follower.positions(),
                self._overflow,
                now_us,
                owed_us=None if self._match is None else self._match.owed_since_us(),
                in_step_us=self._sound_us if self.is_in_step(now_us - OWED_US) else None,
                at_once=clean,
                clean=clean and not (self._match is not None and self._match.has_surplus),
            )
