"""One mirror of a journal: the same frames at the same places of a file of the same name, on another disk.

The caller's thread writes each frame right after the primary's (M1). A thread of the mirror does everything that may
take long: it opens the wheel and the next file, and flushes. So the flushes run side by side (M3), and a disk that does
not answer delays the caller for a bounded time only. A `Mirror` is one life: it starts with the opening and ends with
the first failure. A flush that failed is never repeated (F0): to go on, start another life. The replicator fills what
lies before a life, or between two.

Owns its directory, its file and its thread. Tickets count the frames of the primary's journal.
Invariant: every frame up to `durable` was covered by a flush that returned; a frame that this life was not given counts
as not held.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace

from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.threads import started
from filewheel.env import SYSTEM_CLOCK, Condition, Env
from filewheel.errors import UNWRITTEN, FilewheelError, Unsafe, anew
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.fence import fenced
from filewheel.roster.roster import Member, Roster, read_roster

_LOOK_US = 20_000
"""How long flushes continue without a check that the flushed file still has its name."""

Failed = Callable[["Mirror"], None]


class Mirror:
    """One life of a mirror. `write` is called with the journal's lock held; `lock` guards the rest."""

    def __init__(
        self,
        member: Member,
        roster: Roster,
        since: int,
        *,
        lock: threading.RLock,
        done: Condition,
        failed: Failed,
        env: Env,
    ) -> None:
        """Start to open it. `done` is notified of every change; `failed` is called once, with the lock held."""
        self.member = member
        self.since = since
        """Frames after this ticket belong into the mirror, in this life or an earlier one."""
        self.start: int | None = None
        """Frames after this ticket were given to this life."""
        self.written = 0
        self.durable = 0
        self.live = False
        """Open, and nothing has failed."""
        self.error: Exception | None = None
        self.ended = False
        """Its thread has ended and its files are closed."""
        self.hung = False
        """Its disk did not answer in time; its thread may never end."""
        self.tried_us: int | None = None
        """When `Copies` last tried to repair it."""
        self.roster = roster
        """The primary's roster, which has the time-out."""
        self._env = env
        self._failed = failed
        self._lock = lock
        self._work = Condition(lock)
        self._done = done
        self._stopping = False
        self._wanted = 0
        self._busy_us: int | None = SYSTEM_CLOCK.steady_us()
        self._dir: Directory | None = None
        self._identity: tuple[int, int, int] | None = None
        self._looked_us = 0
        self._fd = -1
        self._name = ""
        """The segment in use, and its file."""
        self._writing = threading.Lock()
        """Held to write to the file or to close it: the number of a closed one may be another file's."""
        self._next = ""
        """The segment that the thread is asked to open."""
        self._thread: threading.Thread | None = None
        try:
            self._thread = started(threading.Thread(target=self._live, name="filewheel-mirror", daemon=True))
        except OSError as exc:
            self.fail(exc)
            self.ended = True

    # -- for the writer ----------------------------------------------------------------------------------------

    def write(self, ticket: int, name: str, offset: int, frame: bytes) -> None:
        """Write a frame of the primary at its place. An error ends this life and is not raised."""
        try:
            if name != self._name and not self._change(name):
                return
            self._write(frame, offset)
        except Exception as exc:
            self.fail(exc)
            return
        if self.start is None:
            self.start = ticket - 1
        self.written = ticket

    def fill(self, name: str, start: int, size: int) -> None:
        """Write zeros ahead, where the primary has no frame yet (M2): a tick may have copied all that it has."""
        if self.live and name == self._name:
            with contextlib.suppress(OSError):  # there is no room for zeros; a frame may still find some
                self._write(bytes(size), start)

    def _write(self, data: bytes, offset: int) -> None:
        with self._writing:
            if self._dir is None or self._fd < 0:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # this life has ended
            self._dir.disk.pwrite(self._fd, data, offset)

    def _change(self, name: str) -> bool:
        """Have the thread open the next segment; False when that failed or took too long."""
        with self._lock:
            self._next = name
            self._work.notify()
            if not self._done.wait_for(lambda: not self._next or not self.live, self.roster.timeout_s):
                self._give_up(self._late())
            return self.live and not self._next

    def ask(self, ticket: int) -> None:
        """Ask the thread to flush up to this frame. With the lock held."""
        if self.lacks(ticket):
            self._wanted = min(ticket, self.written)
            self._work.notify()

    def lacks(self, ticket: int) -> bool:
        """Return whether this frame was written here and is not durable yet."""
        return self.live and self.start is not None and self.start < ticket and self.durable < min(ticket, self.written)

    def holds(self, ticket: int, *, durable: bool) -> bool:
        """Return whether the mirror has this frame."""
        # mutant: lost-counts-as-held
        return self.start is not None and self.start < ticket <= (self.durable if durable else self.written)

    # -- failing -----------------------------------------------------------------------------------------------

    def fail(self, exc: Exception) -> None:
        """End this life."""
        with self._lock:
            self._give_up(exc)

    def give_up_late(self, *, waited: bool) -> None:
        """End this life if its thread has been busy with one thing for the time-out, or `waited` for that long.

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
            self.error = anew(exc)
            self.live = False
            self._stopping = True
            self._failed(self)
            self._work.notify()
            self._done.notify_all()

    # -- the end -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Start to end this life without a failure."""
        with self._lock:
            self._stopping = True
            self._work.notify()

    def join(self) -> bool:
        """Wait until its files are closed, unless its disk does not answer; return whether they are."""
        if self._thread is not None and not self.hung:
            self._thread.join(self.roster.timeout_s)
        return self.ended

    # -- the thread --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._open()
            while self._step():
                pass
        except BaseException as exc:  # of any kind: callers that wait for this mirror must not wait for ever
            self.fail(exc if isinstance(exc, Exception) else RuntimeError(f"the thread of a mirror ended ({exc!r})"))
        finally:
            if self._dir is not None:
                with contextlib.suppress(OSError):
                    self._leave_file(flush=self.error is None)
                self._dir.disk.release()
            with self._lock:
                self.live = False
                self.ended = True
                self._done.notify_all()

    def _open(self) -> None:
        directory = open_directory(self.member.path, write=True, env=self._env)
        try:
            self._identity = directory.disk.identity(layout.ROSTER)
            check_mirror(directory, self.member, self.roster)
        except BaseException:
            directory.disk.release()
            raise
        self._dir = directory
        with self._lock:
            self._busy_us = None
            self.live = self.error is None and not self._stopping
            self._done.notify_all()

    def _look(self) -> None:
        """Raise when this wheel was deleted or is no mirror any more: a flush of deleted files still succeeds."""
        assert self._dir is not None
        identity = self._dir.disk.identity(layout.ROSTER)
        if identity != self._identity:  # mutant: mirror-promoted-meanwhile
            check_mirror(self._dir, self.member, self.roster)
            self._identity = identity
        if self._fd >= 0 and not self._dir.disk.is_named(self._fd, self._name):  # mutant: mirror-journal-deleted
            raise Unsafe(
                "the journal of this handle is missing, and perhaps the wheel too",
                path=self._dir.path,
                hint="`filewheel verify`, then open the wheel again",
            )

    def _open_next(self, name: str) -> None:
        """Open a segment, or make it: a tick may have been first. Its name is durable before a frame in it counts."""
        assert self._dir is not None
        self._leave_file(flush=True)  # O1
        fd = self._dir.disk.open(name, "rw")
        try:
            self._dir.disk.sync_dir(layout.JOURNAL)  # mutant: mirror-name-unflushed
        except BaseException:
            self._dir.disk.close(fd)
            raise
        self._fd, self._name = fd, name

    def _leave_file(self, *, flush: bool) -> None:
        assert self._dir is not None
        if self._fd < 0:
            return
        try:
            if flush:
                self._dir.disk.fdatasync(self._fd)
        finally:
            with self._writing:
                fd, self._fd, self._name = self._fd, -1, ""
                self._dir.disk.close(fd)

    def _step(self) -> bool:
        """Do the next thing that was asked for; False when this life is over."""
        with self._lock:
            while not (self._stopping or self._next or self._wanted > self.durable):
                self._work.wait()
            if self._stopping:
                return False
            name, target = self._next, self.written
            self._busy_us = begun_us = SYSTEM_CLOCK.steady_us()
        if name:
            self._open_next(name)
        else:
            assert self._dir is not None
            self._dir.disk.fdatasync(self._fd)  # mutant: mirror-flush-not-done
            if begun_us - self._looked_us >= _LOOK_US:
                self._looked_us = begun_us
                self._look()  # mutant: mirror-deleted
        with self._lock:
            self._busy_us = None
            if name:
                self._next = ""
            else:
                self.durable = target
            self._done.notify_all()
        return True


def check_mirror(directory: Directory, member: Member, roster: Roster) -> None:
    """Raise unless a primary with this roster may write to this directory as a mirror."""
    if directory.settings.id != member.wheel:  # mutant: mirror-other-wheel
        raise Unsafe("another wheel is in the mirror's place", path=directory.path, hint="check what is mounted there")
    try:
        theirs = read_roster(directory.disk, directory.path)
    except OSError as exc:
        raise Unsafe(f"its roster cannot be read ({exc})", path=directory.path) from exc
    if theirs is None or theirs.set != roster.set:  # mutant: mirror-other-set
        raise Unsafe(
            "this wheel is in another set, or in none", path=directory.path, hint="remove it, and add it again"
        )
    if theirs.epoch > roster.epoch:  # mutant: mirror-promoted
        raise fenced(replace(theirs, role="fenced"), roster.primary)
    # A promotion that has not raised the epoch yet may still fail; if it succeeds, it fires all that has no drop here.
    if theirs.role not in ("backup", "promoting"):  # mutant: mirror-let-go-early mirror-no-backup
        raise Unsafe(f"this wheel is no backup ({theirs.role})", path=directory.path, hint="`filewheel rejoin`")


def reason(exc: Exception) -> str:
    """Return why a mirror failed, in a few words, without the outcome of the call: other mirrors decide that too."""
    return exc.what.removesuffix(f"; {UNWRITTEN}") if isinstance(exc, FilewheelError) else str(exc) or repr(exc)
