"""The standby: promotes a backup automatically when the primary's wheel is missing or its disk fails.

It probes the primary as a producer would use it: is the wheel at its path, with its id, and can a small file be written
and flushed in it? It promotes only when every probe has failed for `after_s`. It does not check for a running keeper:
when a keeper dies, another one on the same wheel takes over without a promotion. It does not replace a primary that
works but has other backups now, or one that was promoted since.

A primary that only this process cannot reach continues to fire until its keeper reads the new epoch: messages that are
due in that time fire twice, and none is lost.
Invariant: a primary that answered within the last `after_s` is never fenced.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from filewheel.checks import check_function, check_number, check_path
from filewheel.disk.directory import Directory, opened
from filewheel.disk.disk import SYSTEM, is_scarce
from filewheel.disk.threads import started
from filewheel.env import Env, Event, check_env
from filewheel.errors import BadArgument, Fenced, FilewheelError, Locked, said
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.roster import Roster, read_roster
from filewheel.sets.promote import Promotion, promote

AFTER_S = 5.0
_REST_S = 0.2
_PROBE_BYTES = 64 << 10
_PROBES = 5
"""The number of probes within `after_s`."""


class Standby:
    """Watches a backup's primary. `run` is for one thread; `stop` may be called from anywhere."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        after_s: float = AFTER_S,
        env: Env = SYSTEM,
    ) -> None:
        """Watch the primary of the backup at `path`. Raises BadArgument when it is no backup."""
        check_number("after_s", after_s, least=0.05, most=86_400)
        self._path = check_path(path)
        self._after_s = after_s
        self._env = check_env(env)
        self._clock = env.clock
        self._stopped = False
        self._pause = Event()
        self._asked: dict[str, threading.Thread] = {}
        """By wheel, the thread that waits for its disk: a disk that hangs is accessed only once."""
        self._watched = self._roster()

    def stop(self) -> None:
        """End `run` at its next probe. May be called from a signal handler."""
        self._stopped = True  # an Event has a lock, which the main thread may hold when the signal comes

    def run(self, on_event: Callable[[str], None] | None = None) -> Promotion | None:
        """Wait until the primary has failed for `after_s`, then promote; return None if stopped before.

        `on_event` is called with a sentence for each change. Raises the errors of `promote`.
        """
        report = on_event or (lambda _: None)
        check_function("on_event", report)
        failing_us: int | None = None
        reported, epoch = "", 0
        while not self._stopped:
            roster = self._roster()
            if roster.role == "primary":
                return Promotion(roster.epoch, self._path, caught_up=True, notes=["another process promoted it"])
            if roster.epoch >= self._watched.epoch:
                self._watched = roster
            roster = self._watched
            if roster.epoch != epoch:  # mutant: standby-inherits
                epoch, failing_us = roster.epoch, None  # the former primary failed, not this one
            began_us = self._clock.steady_us()
            why = self._look(roster)
            now_us = self._clock.steady_us()
            if why != reported:
                report(f"{roster.primary}: {why}" if why else f"{roster.primary} works")
                reported = why
            if not why:
                failing_us = None  # mutant: standby-sums-up
            elif failing_us is None:
                failing_us = began_us  # a hanging disk has not answered since then
            # mutant: standby-at-once
            if failing_us is not None and now_us - failing_us >= self._after_s * US_PER_S and not self._stopped:
                self._watched, failing_us = self._newer(roster) or roster, None  # mutant: standby-over-another
                if self._watched is roster:
                    report(f"promoting {self._path}")
                    try:
                        return promote(self._path, env=self._env)
                    except (Fenced, BadArgument, Locked) as exc:
                        if isinstance(exc, Locked) and exc.role != "promote":
                            raise
                        # Another backup was promoted first; this standby now watches that one. Usually its promotion
                        # has written to this roster; its own roster may be read too late.
                        ours = self._roster()
                        # mutant: standby-asks-only
                        self._watched = ours if ours.epoch > roster.epoch else self._newer(roster) or roster
                        if isinstance(exc, BadArgument) and self._watched is roster:
                            raise
                        report(said(exc))
                continue
            self._rest()
        return None

    def _rest(self) -> None:
        left_s = self._after_s / _PROBES
        while left_s > 0 and not self._stopped:
            self._pause.wait(min(left_s, _REST_S))
            left_s -= _REST_S

    def _newer(self, roster: Roster) -> Roster | None:
        """Return the roster of a wheel that was promoted after this roster was written."""
        for member in roster.members:
            found: list[Roster] = []
            if member.path != self._path:
                with contextlib.suppress(OSError):
                    self._ask(member.path, lambda found=found, at=member.path: found.extend(self._primary_at(at)))  # type: ignore[misc]
            if found and found[0].set == roster.set and found[0].epoch > roster.epoch:
                return found[0]
        return None

    def _primary_at(self, path: str) -> list[Roster]:
        with contextlib.suppress(FilewheelError, OSError):
            with opened(path, self._env) as directory:
                roster = read_roster(directory.disk, path)
            if roster is not None and roster.role == "primary":
                return [replace(roster, primary=path, primary_wheel=directory.settings.id)]
        return []

    def _roster(self) -> Roster:
        with opened(self._path, self._env) as directory:
            roster = read_roster(directory.disk, self._path)
        if roster is None or roster.role == "fenced":
            raise BadArgument(f"{self._path} is no backup", hint="`filewheel backup add`, or `filewheel rejoin`")
        me = roster.member(directory.settings.id)
        if me is not None and me.is_far:
            raise BadArgument(
                f"{self._path} is on another machine than its primary, and cannot tell a lost machine from a lost line",
                hint="make sure that the other machine fires no more, and `filewheel promote` it",
            )
        return roster

    def _look(self, roster: Roster) -> str:
        """Return the primary's problem as a sentence; an empty string if it works.

        The probe runs in its own thread, because a hanging disk never answers, which is a failure too.
        """
        answer: list[str] = []
        try:
            self._ask(roster.primary, lambda: answer.append(self._probe(roster)))
        except OSError:
            return ""  # this process has no thread left, which says nothing about the primary
        return answer[0] if answer else "its disk does not answer"

    def _ask(self, path: str, act: Callable[[], object]) -> None:
        """Call `act` for a wheel, and wait at most `after_s`. Raises OSError when no thread can be started."""
        thread = self._asked.get(path)
        if thread is None or not thread.is_alive():
            thread = started(threading.Thread(target=act, name="filewheel-probe", daemon=True))
            self._asked[path] = thread
        thread.join(self._after_s)

    def _probe(self, roster: Roster) -> str:
        try:
            with opened(roster.primary, self._env) as directory:
                if directory.settings.id != roster.primary_wheel:
                    return "another wheel is in its place"
                theirs = read_roster(directory.disk, roster.primary)
                if theirs is None or theirs.set != roster.set:
                    return ""  # it works, and was removed from this set: it continues alone
                if theirs.held < theirs.epoch or theirs.role == "promoting":
                    return "a promotion has started and not ended"
                if theirs.role != "primary":
                    return f"{theirs.primary} was promoted in its place"
                return why_not_durable(directory)
        except (FilewheelError, OSError) as exc:
            # A shortage of files or memory here says nothing about the primary.
            return "" if is_scarce(exc) else said(exc)  # mutant: scarce-is-failure


def why_not_durable(directory: Directory) -> str:
    """Write and flush a probe; return why that failed, or an empty string.

    If a disk fails to flush, data that was read from it may be missing at the next read. Raises OSError when this
    process is short of files or memory.
    """
    disk = directory.disk
    try:
        fd = disk.open(layout.PROBE, "w")
        try:
            disk.pwrite(fd, bytes(_PROBE_BYTES), 0)
            disk.fdatasync(fd)  # mutant: standby-writes-nothing
        finally:
            disk.close(fd)
            with contextlib.suppress(OSError):
                disk.unlink(layout.PROBE)
    except OSError as exc:
        if is_scarce(exc):
            raise
        return exc.strerror or str(exc)
    return ""
