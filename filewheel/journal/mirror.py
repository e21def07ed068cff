"""One mirror as a writer sees it: a wheel on another disk, and a journal of this handle's own in it.

Frames are written where the primary's are, in the caller's thread, so that they come in the same order. All that may
take long is done in a thread of the mirror's own: opening, flushing, going on in another segment. So flushes run side
by side, and a disk that does not answer costs the caller a time that has a bound. A `Mirror` is one life: it begins
with the opening and ends with the first failure. A flush that failed is never tried again (F0): who wants to go on
begins another life, with a writer of another name.

Owns its directory, its journal and its thread. Tickets count the frames of the primary's journal.
Invariant: `durable` is never above what a flush that returned has covered, and frames that this life was not given
count as not held.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

from filewheel.clock import SYSTEM_CLOCK
from filewheel.disk.directory import Directory, DiskFactory, open_directory
from filewheel.disk.started import started
from filewheel.errors import UNWRITTEN, FilewheelError, Unsafe
from filewheel.format import layout
from filewheel.format.id_source import Entropy
from filewheel.journal.appender import Appender
from filewheel.message import US_PER_S
from filewheel.roster.fence import fenced
from filewheel.roster.roster import Member, Roster, read_roster

_LOOK_US = 20_000
"""How long flushes go on without a look whether what they flush still has its name."""

Failed = Callable[["Mirror"], None]


class Mirror:
    """One life of a mirror. `write` is called with the journal's lock held; `lock` guards the rest."""

    def __init__(
        self,
        member: Member,
        roster: Roster,
        since: int,
        *,
        lock: threading.Lock,
        done: threading.Condition,
        failed: Failed,
        disk: DiskFactory,
        entropy: Entropy,
    ) -> None:
        """Begin to open it. `done` is notified of all that becomes of it, `failed` called once, with the lock held."""
        self.member = member
        self.since = since
        """Frames after this one belong here, whichever life of the mirror is the present one."""
        self.start: int | None = None
        """Frames after this one were given to this life."""
        self.written = 0
        self.durable = 0
        self.live = False
        """It is open, and nothing has failed."""
        self.error: Exception | None = None
        self.ended = False
        """Its thread is done, and its files are closed."""
        self.hung = False
        """It did not answer in time: its thread may hold its disk for ever."""
        self.tried_us: int | None = None
        """When whoever keeps it last tried to put things right."""
        self.roster = roster
        """The primary's: it says how long an answer may take."""
        self._factory = disk
        self._entropy = entropy
        self._failed = failed
        self._lock = lock
        self._work = threading.Condition(lock)
        self._done = done
        self._stopping = False
        self._wanted = 0
        self._room = 0
        self._busy_us: int | None = SYSTEM_CLOCK.steady_us()
        self._dir: Directory | None = None
        self._identity: tuple[int, int, int] | None = None
        self._looked_us = 0
        self._writer: Appender
        self._thread: threading.Thread | None = None
        try:
            self._thread = started(threading.Thread(target=self._live, name="filewheel-mirror", daemon=True))
        except OSError as exc:
            self.fail(exc)
            self.ended = True

    # -- for the writer ----------------------------------------------------------------------------------------

    def write(self, ticket: int, body: bytes, puts: int, drops: int, first: bytes, last: bytes) -> None:
        """Write a frame of the primary. It fails for itself, and raises nothing."""
        try:
            if not self._writer.has_room(len(body)) and not self._make_room(len(body)):
                return
            self._writer.copy(body, puts, drops, first, last)
        except Exception as exc:
            self.fail(exc)
            return
        if self.start is None:
            self.start = ticket - 1
        self.written = ticket

    def _make_room(self, body_bytes: int) -> bool:
        """Have the thread make room; False when that failed, or took too long."""
        with self._lock:
            self._room = max(1, body_bytes)
            self._work.notify()
            if not self._done.wait_for(lambda: not self._room or not self.live, self.roster.timeout_s):
                self._give_up(self._late())
            return self.live and not self._room

    def ask(self, ticket: int) -> None:
        """Have it flushed up to this frame. With the lock held."""
        if self.lacks(ticket):
            self._wanted = min(ticket, self.written)
            self._work.notify()

    def lacks(self, ticket: int) -> bool:
        """Tell whether this frame was written here and is not durable yet."""
        return self.live and self.start is not None and self.start < ticket and self.durable < min(ticket, self.written)

    def holds(self, ticket: int, *, durable: bool) -> bool:
        """Tell whether this frame is here."""
        return self.start is not None and self.start < ticket <= (self.durable if durable else self.written)

    # -- failing -----------------------------------------------------------------------------------------------

    def fail(self, exc: Exception) -> None:
        """End this life."""
        with self._lock:
            self._give_up(exc)

    def give_up_late(self, *, waited: bool) -> None:
        """End this life if it does one thing for longer than a failure takes, or was waited for so long.

        With the lock held.
        """
        busy = self._busy_us
        if waited or (busy is not None and SYSTEM_CLOCK.steady_us() - busy >= self.roster.timeout_s * US_PER_S):
            self._give_up(self._late())

    def _late(self) -> Exception:
        self.hung = True
        return TimeoutError(f"the disk has not answered for {self.roster.timeout_s:g} s")

    def _give_up(self, exc: Exception) -> None:
        if self.error is None and not self.ended:
            self.error = exc
            self.live = False
            self._stopping = True
            self._failed(self)
            self._work.notify()
            self._done.notify_all()

    # -- the end -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin to end this life without a failure."""
        with self._lock:
            self._stopping = True
            self._work.notify()

    def join(self) -> bool:
        """Wait until its files are closed, but not for a disk that does not answer; tell whether they are."""
        if self._thread is not None and not self.hung:
            self._thread.join(self.roster.timeout_s)
        return self.ended

    # -- the thread --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._open()
            while self._step():
                pass
        except BaseException as exc:  # whatever it is: who waits for this mirror must not do so for ever
            self.fail(exc if isinstance(exc, Exception) else RuntimeError(f"the thread of a mirror ended ({exc!r})"))
        finally:
            if self._dir is not None:
                with contextlib.suppress(Exception):
                    self._writer.close()  # which flushes nothing after a flush that failed
                self._dir.disk.release()
            with self._lock:
                self.live = False
                self.ended = True
                self._done.notify_all()

    def _open(self) -> None:
        directory = open_directory(self.member.path, write=True, disk=self._factory)
        try:
            self._identity = directory.disk.identity(layout.ROSTER)
            check_mirror(directory, self.member, self.roster)
            self._writer = Appender(directory, entropy=self._entropy)
        except BaseException:
            directory.disk.release()
            raise
        self._dir = directory
        with self._lock:
            self._busy_us = None
            self.live = self.error is None and not self._stopping
            self._done.notify_all()

    def _look(self) -> None:
        """Raise when this wheel has gone, or is no mirror any more: what was deleted can be flushed all the same."""
        assert self._dir is not None
        identity = self._dir.disk.identity(layout.ROSTER)
        if identity != self._identity:
            check_mirror(self._dir, self.member, self.roster)
            self._identity = identity
        if not self._writer.is_there():
            raise Unsafe("the journal of this handle has gone, and perhaps the wheel with it", path=self._dir.path)

    def _step(self) -> bool:
        """Do one thing that was asked for; False when this life is over."""
        with self._lock:
            while not (self._stopping or self._room or self._wanted > self.durable):
                self._work.wait()
            if self._stopping:
                return False
            room, target = self._room, self.written
            self._busy_us = begun_us = SYSTEM_CLOCK.steady_us()
        if room:
            self._writer.make_room(room)
        else:
            self._writer.fill_ahead()
            self._writer.flush()
            if begun_us - self._looked_us >= _LOOK_US:
                self._looked_us = begun_us
                self._look()
        with self._lock:
            self._busy_us = None
            if room:
                self._room = 0
            else:
                self.durable = target
            self._done.notify_all()
        return True


def check_mirror(directory: Directory, member: Member, roster: Roster) -> None:
    """Raise unless this directory is the wheel that a primary with this roster may write to as a mirror."""
    if directory.settings.id != member.wheel:
        raise Unsafe("another wheel is in the mirror's place", path=directory.path, hint="look what was mounted there")
    try:
        theirs = read_roster(directory.disk, directory.path)
    except OSError as exc:
        raise Unsafe(f"its roster cannot be read ({exc})", path=directory.path) from exc
    if theirs is None or theirs.set != roster.set:
        raise Unsafe("this wheel is in another set, or in none", path=directory.path, hint="remove it, and add it anew")
    if theirs.epoch > roster.epoch:
        raise fenced(replace(theirs, role="fenced"), roster.primary)
    # A promotion that has not raised the epoch yet may fail still, and fires what has no drop here.
    if theirs.role not in ("backup", "promoting"):
        raise Unsafe(f"this wheel is no backup ({theirs.role})", path=directory.path, hint="`filewheel rejoin`")


def reason(exc: Exception) -> str:
    """Say in a few words what became of a mirror; what the call came to is for the whole set to say."""
    return exc.what.removesuffix(f"; {UNWRITTEN}") if isinstance(exc, FilewheelError) else str(exc) or repr(exc)
