"""The link: keeps one backup in step with its primary.

It is the backup's keeper and the reader of the primary's journals in one, in one thread, so that what is decided about
the backup holds until it is written. It writes to a journal of its own in the backup. When it cannot go on from where
the backup was (it is new, it was away for too long, power was cut) it heals: a walk over both wheels in chunks, between
which it goes on following. Positions are written down after what they stand for, so a link that was killed goes on from
a little before, and writes some records twice, in the same order.
Invariant: in the backup no drop comes before its put, and every position that was written down is covered by records
that are there.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import Damaged, Fenced, FilewheelError, disk_error, disk_errors
from filewheel.format.frame import Frame
from filewheel.format.record import ID, records_of
from filewheel.journal.journal import Journal
from filewheel.message import US_PER_S
from filewheel.replication.absorb import Absorption
from filewheel.replication.backup_keeper import BackupKeeper
from filewheel.replication.extras import EndedExtras, Extras
from filewheel.replication.follower import Follower, Pass
from filewheel.replication.heal import Heal, HealStep
from filewheel.replication.health import items_before, items_now
from filewheel.replication.mirror_match import OWED_US, Announcement, MirrorMatch
from filewheel.replication.position import OVERFLOW_UNKNOWN, Bookmark, boot_id
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
    """One backup and its primary. Not thread-safe: one thread opens it, calls `tick` again and again, and closes it."""

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
        """Take the backup's lock. `fenced` follows a primary that was fenced already, as a promotion does.

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
        """Go on from where the backup was, if that is known; otherwise begin to heal."""
        give_up_missing(self.keeper, self.registration)
        self._passes = self._healed_pass = 0
        self._scrubbed_us = self._clock.steady_us()
        self._looked_us = self._scrubbed_us - LOOK_US  # at once: something may have happened while nobody looked
        self._replays = 0
        self._met_damage = False
        self._heal = Heal(self.source, self.keeper, self._progress)
        self._lost = self._must_heal = False
        self._state_us = self.registration.member.since_us
        self._overflow = self._read_overflow()
        self.bookmark = Bookmark(self.source, self.target, self.registration.epoch, self._boot)
        # What was put aside since it was in step is found by the first look.
        self._sound_us = self.bookmark.in_step_us
        self._aside = [items_before(wheel, self._sound_us) for wheel in (self.source, self.target)]
        self._known = self._aside[0]
        member = self.registration.member
        if member.absorb and not self._fenced:  # mutant: not-absorbed
            self._absorb(member)
        is_known = member.state == "current" or self._fenced
        is_mirror = member.mode == "mirror" and member.state in IN_USE  # mutant: matching-unmatched
        if is_mirror:  # mutant: heals-unmatched
            self._match = MirrorMatch()
        # A link that was killed may have known of what came to the mirror too late: it is found by comparing.
        if is_known and self.bookmark.go_on(self._overflow, clean=is_mirror):  # mutant: surplus-forgotten
            self.follower = self._follower = Follower(self.source, self.bookmark.positions)
            self._replays = PASSES
        else:
            self.follower = self._follower = Follower(self.source)
            self.follower.skip()
            self._replays = PASSES  # the last pass holds moves of what was dropped in the first  # mutant: skip-blindly
            self.heal()

    def _absorb(self, member: Member) -> None:
        """Give the primary what only this backup has: both followed another primary before."""
        absorbed = Absorption(
            self.target, self.source, overflow=member.overflow,
            progress=self._progress,
        ).run()  # fmt: skip
        if absorbed.kept or absorbed.dropped:
            log.warning("%s: %d messages that only %s had were added, %d that it had fired were dropped",
                        self.source.path, absorbed.kept, self.target.path, absorbed.dropped)  # fmt: skip
        self.report = replace(self.report, returned=self.report.returned + absorbed.kept)
        # A crash before this absorbs again, which changes nothing more.
        self.registration.change(member, lambda known: replace(known, absorb=False))

    def heal(self, *, scrub: bool = False, by_id: bool = False) -> None:
        """Begin to compare both wheels from the start, and mend what differs; the journals are followed meanwhile.

        A `scrub` is done for certainty's sake: the backup counts as it did. `by_id` looks into each message that only
        the backup has, also where the primary has nothing near it.
        """
        self._heal.begin(by_id=by_id or self._fenced)
        if not scrub:
            self.bookmark.forget()
        self._scrubbed_us = self._clock.steady_us()
        self._set_state("healing")

    def close(self) -> None:
        """Let go of the backup, and write down how far it has come if that is certain."""
        try:
            if self._journal is not None:
                self._journal.flush()
                if self._follower is not None:
                    self._follower.forget_gone()  # released meanwhile: the next link is not to miss it
                self._note(self._clock.steady_us(), clean=True)
                with contextlib.suppress(Fenced):  # the set has changed: what this backup is now, others say
                    self.registration.look()
        except OSError as exc:
            raise disk_error(exc, self.target.path) from exc
        finally:
            self._release(deal=not self._fenced)  # mutant: promote-deals-last

    def abandon(self) -> None:
        """Let go of the backup after an error: nothing more is written to it."""
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
        """Call `tick` until the backup is in step with what the primary holds now; `pause` in between.

        Raises what `tick` does.
        """
        first, now_us = self._passes, self._clock.steady_us()
        while not (
            self.is_in_step(now_us) and self._passes >= first + 3 and (self._fenced or self.registration.is_current)
        ):
            busy = self.tick()
            if not (busy and self._heal.is_on) and pause() is True:
                return  # told to stop
        with disk_errors(self.target.path):
            self._note(self._clock.steady_us(), clean=True)

    # -- one turn --------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Bring the backup a step further; tell whether there was anything to do.

        Raises Fenced when the set has changed so that this link is not wanted any more; other members of the error
        tree when a disk fails: then the link is to be abandoned, and a new one made later.
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
        # A primary that was fenced may have lost the drop of what it has: until it was read, that is remembered here.
        self.keeper.tick(deal=not self._fenced)  # mutant: promote-deals-meanwhile
        if self._match is not None:
            busy = self._level(self._match, now_us) or busy
        busy = self._judge(now_us) or busy
        self.journal.flush()
        self._note(now_us)
        return busy

    def _follow(self, step: Pass, now_us: int) -> bool:
        self._ship(step, now_us)
        return step.frames > 0

    def _ship(self, frames: Iterable[Frame], now_us: int) -> None:
        """Write what a pass gives out, or leave it to whoever mirrors."""
        if self._replays and self._match is None:  # mutant: replay-blindly
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
            log.warning("%s: journals of %d writers have vanished", self.source.path, len(self.follower.vanished))
            self.follower.vanished.clear()
            self._extras.be_uneasy(now_us)
            # What was in them and was not dealt yet is in the backup only.
            self._lost = self._must_heal = True  # mutant: gone-not-lost
        self._count(records)

    def _count(self, records: int) -> None:
        if records:
            self.report = replace(self.report, shipped=self.report.shipped + records)

    def _heal_on(self, now_us: int) -> bool:
        """Mend one part. It is read, then the journals are, and then both are written in that order."""
        part = self._heal.next()
        self._met_damage |= part.damaged
        step = self.follower.step(now_us)
        frames = list(step)
        self._add_missing(part, step)
        self._suspect(part.extra)
        self._extras.add_files(part.bygone)
        self._ship(frames, now_us)
        if not self._heal.is_on:
            self._healed_pass = self._passes
            if self.registration.is_current:
                self._set_state("following")
        return True

    def _add_missing(self, part: HealStep, step: Pass) -> None:
        """Write what the backup lacks, but the puts that were dropped while the part was looked at."""
        gone: set[bytes] = set()
        for frame in step.dropped:
            with contextlib.suppress(Damaged):
                gone.update(r[ID] for r in records_of(frame)[1])
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

    def _level(self, matcher: MirrorMatch, now_us: int) -> bool:
        """Write what the mirror was not given, and suspect what only it was given."""
        owed = matcher.owed(now_us)
        if owed:
            self._count(self._reconciler.supply(owed, matcher.expect))
        for frame in matcher.surplus(now_us):
            if frame.puts:
                with contextlib.suppress(Damaged):
                    self._suspect(p[ID] for p in records_of(frame)[0])
        return bool(owed)

    # -- what only the backup has ----------------------------------------------------------------------------

    def _suspect(self, ids: Iterable[bytes]) -> None:
        """Look into messages that only the backup seems to have; but a primary that was fenced may have failed.

        It may have lost what it does not have: only what it has a drop of goes.
        """
        if self._fenced:  # mutant: fenced-suspects
            self._ended.add(ids)
        else:
            self._extras.add(ids)

    def _judge(self, now_us: int) -> bool:
        if self._ended.is_due(at_end=not self._heal.is_on):
            self._ended.drop(self._expected())
            return True
        verdict = self._extras.judge(
            now_us, self._passes, known=self._known, has_lost=self.follower.has_lost, all_lost=self._lost
        )
        if verdict is None:
            return len(self._extras) > 0
        done = self._reconciler.carry_out(verdict, self._heal.moved, self._expected())
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
        """Tell whether the backup holds what the primary held at a (steady) time.

        A primary that is in use is never read to its end: there are always drops of the last pass that wait for the
        next. One that is fenced must have been.
        """
        owed_us = None if self._match is None else self._match.owed_since_us()
        if self._fenced and not (self.follower.is_idle and owed_us is None):
            return False
        settled = self.follower.is_idle or self._passes >= self._healed_pass + 2  # mutant: never-idle
        even = owed_us is None or owed_us > us
        is_mended = not (self._heal.is_on or self._must_heal or self._extras or self._ended)
        return is_mended and settled and even

    @property
    def has_met_damage(self) -> bool:
        """Whether the primary held something that had been durable and could not be read."""
        return self._met_damage or bool(self.follower.damage)

    @property
    def undecided(self) -> int:
        """How many messages only the backup has that a primary which was fenced may have finished all the same.

        0 where all of its journals since the backup was in step are there: then what has no drop has not ended.
        """
        return 0 if self.bookmark.has_all(self._overflow) else self._ended.undecided

    def has_read(self, writer: str, segment: int) -> bool:
        """Tell whether a segment of the primary was read to its end, and that is written down."""
        position = self.bookmark.positions.get(writer)
        if position is None:
            return False
        return position.segment > segment or (position.segment == segment and self.follower.has_ended(writer, position))

    def look(self) -> None:
        """Look what has changed in the set, and write it into the backup. Raises what `tick` does."""
        try:
            self._look(self._clock.steady_us())
        except OSError as exc:
            raise disk_error(exc, self.target.path) from exc

    def _look(self, now_us: int) -> None:
        """Look what has changed in the set, and whether anything was damaged or lost that calls for healing."""
        give_up_missing(self.keeper, self.registration)
        member = self.registration.look()
        if member.state != "current" and member.since_us != self._state_us:
            # It was marked stale, and whoever did writes to it no more; or its mode has changed.
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
            self._come_in(member, now_us)

    def _come_in(self, member: Member, now_us: int) -> None:
        """Have the backup count as in step when it is. Producers write to a mirror for a moment before that."""
        if member.mode == "mirror" and self._announcement is None:
            if self.is_in_step(0):  # whatever is owed: the entrance waits for what matters
                # Before producers learn of it: what they write to both from now on must not be shipped as well.
                self._match = self._match or MirrorMatch()
                self._enter(member, "matching")
                self._announcement = Announcement(self._clock.steady_us())
            return
        # mutant: mirror-current-at-once
        since_us = now_us if self._announcement is None else self._announcement.given_us(now_us, self._passes)
        if since_us is not None and self.is_in_step(since_us):
            self._announcement = None
            self._enter(member, "current")
            self._set_state("following")

    def _enter(self, member: Member, state: State) -> None:
        self.registration.enter(member, state)
        if self.registration.member.state == state:  # otherwise someone has marked it meanwhile, and it has to heal
            self._state_us = self.registration.member.since_us

    def _set_state(self, state: str) -> None:
        self.report = replace(self.report, state=state)

    def _read_overflow(self) -> int:
        try:
            return self._retention.overflow()
        except Damaged:
            return OVERFLOW_UNKNOWN

    # -- how far ---------------------------------------------------------------------------------------------

    def _note(self, now_us: int, *, clean: bool = False) -> None:
        """Write down how far the backup has come, unless it is healing."""
        if not self._heal.is_on and not self._must_heal and not len(self._extras):
            self._lost = False
            self._known = self._aside[0]  # what was lost with them has been given back  # mutant: damage-late
            self.bookmark.note(
                self.follower.positions(),
                self._overflow,
                now_us,
                owed_us=None if self._match is None else self._match.owed_since_us(),
                in_step_us=self._sound_us if self.is_in_step(now_us - OWED_US) else None,
                at_once=clean,
                clean=clean and not (self._match is not None and self._match.has_surplus),
            )
