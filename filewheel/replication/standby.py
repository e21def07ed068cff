"""The standby: promotes a backup by itself when the primary's wheel is gone, or its disk fails.

It looks at the primary as a producer would: is the wheel there, under its path, with its id, and can a small file be
written and flushed in it? Only when the answer has been no, without a break, for `after_s` it promotes. It does not ask
whether a keeper runs: another keeper on the same wheel takes over from one that dies, without a promotion. Nor does it
promote in the place of a primary that is well and has another backup, or none, or of one that was promoted meanwhile.
A primary that this process cannot see but others can goes on firing until it sees the new epoch: what is due meanwhile
fires twice, and nothing is lost.
Invariant: a primary that answered within the last `after_s` is never fenced.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from filewheel.disk.directory import opened
from filewheel.disk.disk import SYSTEM, is_scarce
from filewheel.disk.threads import started
from filewheel.env import Env
from filewheel.errors import BadArgument, Fenced, FilewheelError, Locked, said
from filewheel.message import US_PER_S
from filewheel.replication.health import why_not_durable
from filewheel.replication.promote import Promotion, promote
from filewheel.roster.roster import Roster, read_roster, roster_at

AFTER_S = 5.0
_REST_S = 0.2
_PROBES = 5
"""How often it looks within `after_s`."""


class Standby:
    """Watches a backup's primary. `run` is for one thread; `stop` may be called from anywhere."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        after_s: float = AFTER_S,
        env: Env = SYSTEM,
    ) -> None:
        """Watch for the backup at `path`. Raises BadArgument when it is none."""
        if not 0.05 <= after_s <= 86_400:
            raise BadArgument(f"after_s is 0.05 to 86400, not {after_s!r}")
        self._path = os.path.abspath(os.fspath(path))
        self._after_s = after_s
        self._env = env
        self._clock = env.clock
        self._stopped = False
        self._pause = threading.Event()
        self._asked: dict[str, threading.Thread] = {}
        """For each wheel, who waits for its disk: a disk that hangs is not asked again and again."""
        self._watched = self._roster()

    def stop(self) -> None:
        """End `run` at its next look. May be called from a signal handler."""
        self._stopped = True  # an Event has a lock, which the main thread may hold when the signal comes

    def run(self, on_event: Callable[[str], None] | None = None) -> Promotion | None:
        """Wait until the primary has failed for `after_s`, then promote; None when stopped before.

        `on_event` is told what changes, in words. Raises what `promote` does.
        """
        tell = on_event or (lambda _: None)
        failing_us: int | None = None
        told = ""
        while not self._stopped:
            roster = self._roster()
            if roster.role == "primary":
                return Promotion(roster.epoch, self._path, caught_up=True, notes=["it was promoted by someone else"])
            if roster.epoch >= self._watched.epoch:
                self._watched = roster
            roster = self._watched
            began_us = self._clock.steady_us()
            why = self._look(roster)
            now_us = self._clock.steady_us()
            if why != told:
                tell(f"{roster.primary}: {why}" if why else f"{roster.primary} is well")
                told = why
            if not why:
                failing_us = None  # mutant: standby-sums-up
            elif failing_us is None:
                failing_us = began_us  # a disk that hangs has not answered since then
            # mutant: standby-at-once
            if failing_us is not None and now_us - failing_us >= self._after_s * US_PER_S and not self._stopped:
                self._watched, failing_us = self._newer(roster) or roster, None  # mutant: standby-over-another
                if self._watched is roster:
                    tell(f"promoting {self._path}")
                    try:
                        return promote(self._path, env=self._env)
                    except (Fenced, BadArgument, Locked) as exc:
                        if isinstance(exc, Locked) and exc.role != "promote":
                            raise
                        # Another backup was faster, and says that this one has to be compared: it is watched then.
                        # It has told this one, as a rule; asked, it may answer too late.
                        ours = self._roster()
                        # mutant: standby-asks-only
                        self._watched = ours if ours.epoch > roster.epoch else self._newer(roster) or roster
                        if isinstance(exc, BadArgument) and self._watched is roster:
                            raise
                        tell(said(exc))
                continue
            self._rest()
        return None

    def _rest(self) -> None:
        left_s = self._after_s / _PROBES
        while left_s > 0 and not self._stopped:
            self._pause.wait(min(left_s, _REST_S))
            left_s -= _REST_S

    def _newer(self, roster: Roster) -> Roster | None:
        """Return the roster of a wheel that was promoted since this one was written."""
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
        roster = roster_at(self._path, self._env)
        if roster is None or roster.role == "fenced":
            raise BadArgument(f"{self._path} is no backup", hint="`filewheel backup add`, or `filewheel rejoin`")
        return roster

    def _look(self, roster: Roster) -> str:
        """Return what is wrong with the primary, in words; nothing when it is well.

        In a thread of its own: a disk that hangs answers never, and that is an answer too.
        """
        answer: list[str] = []
        try:
            self._ask(roster.primary, lambda: answer.append(self._probe(roster)))
        except OSError:
            return ""  # no thread to be had here: of the primary that says nothing
        return answer[0] if answer else "its disk does not answer"

    def _ask(self, path: str, what: Callable[[], object]) -> None:
        """Do something with a wheel, and wait for it no longer than `after_s`. Raises OSError without a thread."""
        thread = self._asked.get(path)
        if thread is None or not thread.is_alive():
            thread = started(threading.Thread(target=what, name="filewheel-probe", daemon=True))
            self._asked[path] = thread
        thread.join(self._after_s)

    def _probe(self, roster: Roster) -> str:
        try:
            with opened(roster.primary, self._env) as directory:
                if directory.settings.id != roster.primary_wheel:
                    return "another wheel is in its place"
                theirs = read_roster(directory.disk, roster.primary)
                if theirs is None or theirs.set != roster.set:
                    return ""  # it is there, and was taken out of this set: it goes on firing alone
                if theirs.held < theirs.epoch or theirs.role == "promoting":
                    return "a promotion has begun, and has not ended"
                if theirs.role != "primary":
                    return f"{theirs.primary} was promoted in its place"
                return why_not_durable(directory)
        except (FilewheelError, OSError) as exc:
            # Want of files or memory here says nothing about the primary, and is no reason to take its place.
            return "" if is_scarce(exc) else said(exc)  # mutant: scarce-is-failure
