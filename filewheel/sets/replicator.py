"""The replicator: a service that keeps all backups of a primary in step, with a thread for each.

It needs no keeper and no signal from producers: it reads files. A failed backup is retried, and does not delay the
others. When another wheel of the set is promoted, the replicator follows that wheel.
Invariant: a backup has at most one link, and a link ends when its primary is the primary no more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from filewheel.checks import check_function, check_number, check_path
from filewheel.disk.directory import opened
from filewheel.disk.disk import SYSTEM
from filewheel.disk.threads import started
from filewheel.env import Env, Event, check_env
from filewheel.errors import BadArgument, Damaged, Fenced, FilewheelError, Locked, NoWheel, disk_errors, said, said_of
from filewheel.message import US_PER_S
from filewheel.roster.far import read_note, write_note
from filewheel.roster.roster import Member, Roster
from filewheel.sets.bucket_link import BucketLink
from filewheel.sets.bucket_target import Replaced
from filewheel.sets.copy import Progress
from filewheel.sets.failure_log import FailureLog
from filewheel.sets.link import Link, LinkReport
from filewheel.sets.places import link_for
from filewheel.sets.status import NoPrimary, find_primary

log = logging.getLogger(__name__)

INTERVAL_S = 0.02
IDLE_S = 0.1
RETRY_S = 1.0
BUCKET_RETRY_S = 60.0
"""A bucket that fails is tried again after longer and longer times, at most this: each time costs requests."""
LOOK_S = 0.2
PROMOTION_S = 60.0
"""A promotion that leaves the set without a primary for this long is logged as a failure."""
FENCED_S = 10.0
"""A backup that belongs to another primary for this long is logged; during a promotion that is normal for a moment."""
FAR_END_S = 0.5
_PRIMARY = "primary"

OnChange = Callable[[LinkReport], None]


class Replicator:
    """Keeps the backups of one set in step. Use it in a `with`, or call `stop`. `run` and `once` are for one thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        interval_s: float = INTERVAL_S,
        on_change: OnChange | None = None,
        env: Env = SYSTEM,
    ) -> None:
        """Serve the set of the wheel at `path`. `on_change` is called with a link's report when its state changes.

        Raises NoWheel, BadArgument when the wheel is in no set.
        """
        check_number("interval_s", interval_s, least=0.001, most=60)
        self._path = check_path(path)
        self._interval_s = interval_s
        if on_change is not None:
            check_function("on_change", on_change)
        self._on_change = on_change
        self._env = check_env(env)
        self._stopped = False
        self._stopping = Event()
        self._turned_us: int | None = None
        """When `run` last came around; None before it and after it."""
        self._links: dict[str, _Service] = {}
        self.failures = FailureLog(env.clock)
        with disk_errors(self._path):
            self._known = find_primary(self._path, env)[1]
        """The last known roster, because the wheel at `path` may itself be lost."""

    def __enter__(self) -> Replicator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End `run` within a second; each link finishes its current tick. May be called from a signal handler."""
        self._stopped = True  # an Event has a lock, which the main thread may hold when the signal comes

    def status(self) -> list[LinkReport]:
        """Return a report for each backup."""
        return [s.report for s in list(self._links.values())]

    def stalled_s(self) -> float:
        """Return for how many seconds `run` has not come around: well below one, unless a disk hangs, or a defect.

        The links do not count: each waits for its own disk, and the others go on. Takes no lock.
        """
        turned_us = self._turned_us
        return 0.0 if turned_us is None else max(0, self._env.clock.steady_us() - turned_us) / US_PER_S

    def run(self) -> None:
        """Keep the backups in step until `stop` is called. Raises BadArgument when the set has been dissolved."""
        try:
            while not self._stopped:
                self._turned_us = self._env.clock.steady_us()
                try:
                    self._turn()
                except BadArgument:
                    raise
                except NoPrimary as exc:
                    self.failures.failed(_PRIMARY, str(exc), after_s=PROMOTION_S if exc.promoting else 0)
                except (FilewheelError, OSError) as exc:
                    self.failures.failed(_PRIMARY, str(exc))  # retried: it may be temporary
                self._stopping.wait(LOOK_S)
        finally:
            self._turned_us = None
            self._stopping.set()
            for service in list(self._links.values()):
                service.stop()
            for service in list(self._links.values()):
                service.end()

    def _turn(self) -> None:
        primary, roster = find_primary(self._path, self._env, self._known)  # mutant: replicator-loses-its-place
        if roster.epoch != self._known.epoch:
            log.info("%s is the primary now, epoch %d", primary, roster.epoch)
        self._known = roster
        self._serve(primary, roster)
        self.failures.over(_PRIMARY, f"{primary}: the primary of this set can be read again")

    def _serve(self, primary: str, roster: Roster) -> None:
        """Start a thread for each new backup, and stop the threads of former ones."""
        wanted = {m.wheel: m for m in roster.members if m.state != "fenced"}
        for wheel, service in list(self._links.items()):
            if service.primary != primary or not service.is_for(wanted.get(wheel)) or not service.is_alive():
                service.stop()
                service.end()
                del self._links[wheel]
                if wheel not in wanted:
                    self.failures.over(wheel)
        for wheel, member in wanted.items():
            if wheel not in self._links:
                self._links[wheel] = started(_Service(self, primary, member))

    def once(self, progress: Progress | None = None) -> list[LinkReport]:
        """Bring every reachable backup in step, one after the other, and return a report for each.

        A backup that cannot be brought in step has an `error` in its report. Ends early when `stop` is called.

        Raises BadArgument, NoWheel when no primary can be read, DiskError, Damaged.
        """
        with disk_errors(self._path):
            return self._once(progress)

    def _once(self, progress: Progress | None) -> list[LinkReport]:
        primary, roster = find_primary(self._path, self._env, self._known)
        reports: list[LinkReport] = []
        with contextlib.ExitStack() as open_links:
            links = [
                self._bring(primary, member, progress, reports)
                for member in roster.members
                if member.state != "fenced" and not self._stopped
            ]
            for link in links:
                if link is not None:  # at the end each backup gets a copy of the final roster
                    open_links.callback(link.close)
        return reports

    def _bring(
        self, primary: str, member: Member, progress: Progress | None, reports: list[LinkReport]
    ) -> Link | BucketLink | None:
        link: Link | BucketLink | None = None
        try:
            link = link_for(primary, member, progress=progress, env=self._env)
            link.catch_up(lambda: self._stopping.wait(self._interval_s) or self._stopped)
        except BaseException as exc:
            report = LinkReport(member.path, member.wheel, member.mode, "failed") if link is None else link.report
            if link is not None:
                link.abandon()
            if not isinstance(exc, FilewheelError):
                raise
            note_failure(primary, member, exc, self._env)
            reports.append(replace(report, state=_state_of(exc), error=_told(exc, member)))
            return None
        reports.append(link.report)
        return link


def note_failure(primary: str, member: Member, exc: FilewheelError, env: Env) -> None:
    """Note at the primary why a backup at a URL cannot be served. Never raises."""
    # With a lock there, another replicator serves it, and leaves notes of its own.
    if member.is_far and not isinstance(exc, Locked):
        with contextlib.suppress(FilewheelError, OSError), opened(primary, env) as here:
            note = read_note(here.disk, member.wheel)
            write_note(here, member.wheel, note.failed(said_of(exc, member.path), env.clock.now_us()))


def _told(exc: FilewheelError, member: Member) -> str:
    """Return an error for a report; with its hint for a backup at a URL, which nobody else asks."""
    return str(exc) if member.is_far else said(exc)


def _state_of(exc: FilewheelError) -> str:
    return "unreachable" if isinstance(exc, NoWheel) else "failed"


class _Service(threading.Thread):
    """The thread of one backup: opens a link, and a new one after a failure."""

    def __init__(self, replicator: Replicator, primary: str, member: Member) -> None:
        super().__init__(name=f"filewheel-link-{member.path}", daemon=True)
        self._of = replicator
        self.primary = primary
        self._member = member
        self._ending = Event()
        self._failed_times = 0
        """How often in a row."""
        self.report = LinkReport(member.path, member.wheel, member.mode, "unreachable")

    def is_for(self, member: Member | None) -> bool:
        """Return whether this serves the backup as it is registered now."""
        return member is not None and (member.path, member.mode, member.keep_us) == (
            self._member.path,
            self._member.mode,
            self._member.keep_us,
        )

    def stop(self) -> None:
        """End the thread after the current tick."""
        self._ending.set()

    def end(self) -> None:
        """Wait for the end of the thread. One that waits for another machine is left, and ends when that answers."""
        self.join(FAR_END_S if self._member.is_far else None)

    def run(self) -> None:
        """Serve until `stop` is called, or the set has changed."""
        while not self._is_ending():
            retry_s = RETRY_S
            try:
                self._serve()
            except Fenced as exc:
                self._failed(exc, after_s=FENCED_S)
                self._ending.wait(LOOK_S)
                return  # the replicator looks for the new primary
            except FilewheelError as exc:
                retry_s = self._retry_s(exc)
                is_changing = isinstance(exc, Locked) and exc.role in ("promote", "rejoin")
                self._failed(exc, after_s=FENCED_S if is_changing else 0)
            except Exception as exc:
                log.exception("%s: replicating failed", self._member.path)
                self._report(replace(self.report, state="failed", error=repr(exc)))
            if not self._is_ending():
                self._ending.wait(retry_s)

    def _retry_s(self, exc: FilewheelError) -> float:
        if self._member.is_wheel:
            return RETRY_S
        times, self._failed_times = self._failed_times, min(10, self._failed_times + 1)
        return BUCKET_RETRY_S if isinstance(exc, Replaced) else min(BUCKET_RETRY_S, RETRY_S * 2**times)

    def _is_ending(self) -> bool:
        return self._ending.is_set() or self._of._stopped

    def _serve(self) -> None:
        of = self._of
        link = link_for(self.primary, self._member, env=of._env)
        try:
            while not self._is_ending():
                busy = link.tick()
                self._report(link.report)
                if not (busy and link.report.state == "copying"):
                    self._ending.wait(of._interval_s if busy else max(IDLE_S, of._interval_s))
        except BaseException:
            link.abandon()
            raise
        link.close()

    def _failed(self, exc: FilewheelError, *, after_s: float) -> None:
        """Log and report that the backup cannot be served; a missing directory is reported as the reason."""
        gone = exc if isinstance(exc, NoWheel) else self._missing_wheel()
        shown = gone or exc
        path = self._member.path
        has_way = self._member.is_far or (isinstance(exc, (Damaged, Fenced)) and not gone)
        hint = f". Try: {exc.hint}" if has_way and exc.hint else ""
        cannot = (
            "cannot be reached" if gone else "cannot be followed" if isinstance(exc, Fenced) else "cannot be written"
        )
        self._of.failures.failed(self._member.wheel, f"{path} {cannot}: {said_of(shown, path)}{hint}", after_s=after_s)
        note_failure(self.primary, self._member, shown, self._of._env)
        self._report(replace(self.report, state=_state_of(shown), error=_told(shown, self._member)))

    def _missing_wheel(self) -> NoWheel | None:
        if self._member.is_far:
            return None
        try:
            with opened(self._member.path, self._of._env):
                return None
        except NoWheel as exc:
            return exc
        except (FilewheelError, OSError):
            return None  # the first error says more

    def _report(self, report: LinkReport) -> None:
        changed = (report.state, report.error) != (self.report.state, self.report.error)
        self.report = report
        if not report.error:
            self._failed_times = 0
            self._of.failures.over(self._member.wheel)
        if changed and self._of._on_change is not None:
            self._of._on_change(report)
