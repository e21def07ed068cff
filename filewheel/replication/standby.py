"""The standby: promotes a backup by itself when the primary's wheel is gone, or its disk fails.

It looks at the primary as a producer would: is the wheel there, under its path, with its id, and can a small file be
written and flushed in it? Only when the answer has been no, without a break, for `after_s` it promotes. It does not ask
whether a keeper runs: another keeper on the same wheel takes over from one that dies, without a promotion.
A primary that this process cannot see but others can goes on firing until it sees the new epoch: what is due meanwhile
fires twice, and nothing is lost.
Invariant: a primary that answered within the last `after_s` is never fenced.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable

from filewheel import layout
from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import DiskFactory, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, FilewheelError
from filewheel.message import US_PER_S
from filewheel.replication.promote import Promotion, promote
from filewheel.roster import Roster, read_roster
from filewheel.writer import Entropy

AFTER_S = 5.0
_PROBE_BYTES = 64 << 10
_PROBES = 5
"""How often it looks within `after_s`."""


class Standby:
    """Watches a backup's primary. `run` is for one thread; `stop` may be called from anywhere."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        after_s: float = AFTER_S,
        clock: Clock = SYSTEM_CLOCK,
        disk: DiskFactory = OsDisk,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        """Watch for the backup at `path`. Raises BadArgument when it is none."""
        if not 0.05 <= after_s <= 86_400:
            raise BadArgument(f"after_s is 0.05 to 86400, not {after_s!r}")
        self._path = os.path.abspath(os.fspath(path))
        self._after_s = after_s
        self._clock = clock
        self._disk = disk
        self._entropy = entropy
        self._stopping = threading.Event()
        self._roster()

    def stop(self) -> None:
        """End `run`."""
        self._stopping.set()

    def run(self, on_event: Callable[[str], None] | None = None) -> Promotion | None:
        """Wait until the primary has failed for `after_s`, then promote; None when stopped before.

        `on_event` is told what changes, in words. Raises what `promote` does.
        """
        tell = on_event or (lambda _: None)
        failing_us: int | None = None
        said = ""
        while not self._stopping.is_set():
            roster = self._roster()
            if roster.role == "primary":
                return Promotion(roster.epoch, self._path, caught_up=True, notes=["it was promoted by someone else"])
            why = self._look(roster)
            now_us = self._clock.steady_us()
            if why != said:
                tell(f"{roster.primary}: {why}" if why else f"{roster.primary} is well")
                said = why
            if not why:
                failing_us = None
            elif failing_us is None:
                failing_us = now_us
            elif now_us - failing_us >= self._after_s * US_PER_S:
                tell(f"promoting {self._path}")
                return promote(self._path, clock=self._clock, disk=self._disk, entropy=self._entropy)
            self._stopping.wait(self._after_s / _PROBES)
        return None

    def _roster(self) -> Roster:
        directory = open_directory(self._path, write=False, disk=self._disk)
        try:
            roster = read_roster(directory.disk, self._path)
        finally:
            directory.disk.release()
        if roster is None or roster.role == "fenced":
            raise BadArgument(f"{self._path} is no backup", hint="`filewheel backup add`, or `filewheel rejoin`")
        return roster

    def _look(self, roster: Roster) -> str:
        """Return what is wrong with the primary, in words; nothing when it is well.

        In a thread of its own: a disk that hangs answers never, and that is an answer too.
        """
        answer: list[str] = []
        thread = threading.Thread(
            target=lambda: answer.append(self._probe(roster)), name="filewheel-probe", daemon=True
        )
        thread.start()
        thread.join(self._after_s)
        return answer[0] if answer else "its disk does not answer"

    def _probe(self, roster: Roster) -> str:
        try:
            directory = open_directory(roster.primary, write=False, disk=self._disk)
        except (FilewheelError, OSError) as exc:
            return str(exc)
        disk = directory.disk
        try:
            if directory.settings.id != roster.primary_wheel:
                return "another wheel is in its place"
            theirs = read_roster(disk, roster.primary)
            if theirs is None:
                return "its roster is gone"
            fd = disk.open(layout.PROBE, "rw")
            try:
                disk.pwrite(fd, bytes(_PROBE_BYTES), 0)
                disk.fdatasync(fd)
            finally:
                disk.close(fd)
                with contextlib.suppress(OSError):
                    disk.unlink(layout.PROBE)
        except (FilewheelError, OSError) as exc:
            return str(exc)
        finally:
            disk.release()
        return ""
