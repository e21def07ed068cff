"""The other wheels of a set during a promotion. Each is accessed in a thread, because its disk may hang.

Promotions of one set exclude each other by a kernel lock in each reachable wheel, taken in the order of their ids: when
two share a wheel, only one continues. If they share none, the epochs decide (promote.py).
Invariant: a wheel whose disk did not answer is not accessed again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar

from filewheel.disk.directory import open_directory, opened
from filewheel.disk.disk import is_scarce
from filewheel.disk.threads import started
from filewheel.env import Disk, Env, Event
from filewheel.errors import FilewheelError, Locked
from filewheel.format import layout
from filewheel.roster.roster import Roster, read_roster

T = TypeVar("T")

_PAUSE_S = 0.02
ANSWER_S = 5.0
"""Another wheel's disk that takes longer than this counts as unreachable."""


class PeerRoster(NamedTuple):
    """A wheel of the set, and its roster."""

    path: str
    wheel: str
    roster: Roster


@contextlib.contextmanager
def skip_unreachable() -> Iterator[None]:
    """Suppress the errors of an unreachable wheel. Raises when this process is short of files, memory or threads."""
    try:
        yield
    except (FilewheelError, OSError) as exc:
        if is_scarce(exc):  # mutant: scarce-unreachable
            raise


class Peers:
    """The other wheels of one set, for one promotion. Not thread-safe."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self._hanging: set[str] = set()
        """The wheels whose disks did not answer."""

    def ask(self, path: str, act: Callable[[], object]) -> None:
        """Call `act` for another wheel. Raises its errors; TimeoutError if the disk hangs, then at each later call."""
        self.check_answers(path)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as exc:
                raised.append(exc)

        thread = started(threading.Thread(target=run, name="filewheel-promote", daemon=True))
        thread.join(ANSWER_S)  # mutant: promote-hangs
        if thread.is_alive():
            self._hanging.add(path)
            self.check_answers(path)
        if raised:
            raise raised[0]

    def check_answers(self, path: str) -> None:
        """Raise TimeoutError when this wheel's disk did not answer."""
        if path in self._hanging:
            raise TimeoutError(errno.ETIMEDOUT, "its disk does not answer", path)

    def seen(self, wheels: Iterable[tuple[str, str]], set_: str) -> list[PeerRoster]:
        """Return the readable rosters of this set. Raises when this process is short of resources."""
        found: list[PeerRoster] = []

        def look(path: str, wheel: str) -> None:
            with opened(path, self._env) as there:
                theirs = read_roster(there.disk, path)
                if theirs is not None and there.settings.id == wheel and theirs.set == set_:
                    found.append(PeerRoster(path, wheel, theirs))

        for path, wheel in wheels:
            with skip_unreachable():
                self.ask(path, functools.partial(look, path, wheel))
        return list(found)

    @contextlib.contextmanager
    def alone(self, wheels: Iterable[tuple[str, str]]) -> Iterator[None]:
        """Exclude other promotions of these wheels inside the `with`. Raises Locked when there is one.

        Skips a wheel that cannot be reached or written to. Raises DiskError, OSError when short of files.
        """
        with contextlib.ExitStack() as stack:
            for path, wheel in sorted(set(wheels), key=lambda one: one[1]):
                hold = _Hold(path, wheel, self._env)
                stack.callback(hold.let_go)
                try:
                    self.ask(path, hold.take)
                except (FilewheelError, OSError) as exc:
                    if isinstance(exc, Locked) or is_scarce(exc):
                        raise
            yield


class _Hold:
    """The lock in one wheel that excludes other promotions."""

    def __init__(self, path: str, wheel: str, env: Env) -> None:
        self._path = path
        self._wheel = wheel
        self._env = env
        self._held: list[tuple[Disk, int]] = []
        self._is_over = False

    def take(self) -> None:
        there = open_directory(self._path, write=True, env=self._env)
        fd = -1
        try:
            if there.settings.id != self._wheel:
                raise FilewheelError("another wheel is in its place", path=self._path)
            fd = there.disk.open(layout.PROMOTE_LOCK, "rw")
            if not there.disk.lock(fd, wait=False):
                raise Locked(
                    "another promotion of this set is running",
                    role="promote",
                    path=there.place(layout.PROMOTE_LOCK),
                    hint="wait until it is done, or end it and promote again; `filewheel backup list` shows the set",
                )
        except BaseException:
            if fd >= 0:
                there.disk.close(fd)
            there.disk.release()
            raise
        self._held.append((there.disk, fd))
        if self._is_over:
            self.let_go()  # its disk answered too late

    def let_go(self) -> None:
        self._is_over = True
        while self._held:
            disk, fd = self._held.pop()
            disk.close(fd)
            disk.release()


def when_free(wait_s: float, act: Callable[[], T]) -> T:
    """Call `act` until the lock that it takes is free. Raises Locked when it is not after `wait_s`."""
    pause = Event()
    waited_s = 0.0
    while True:
        try:
            return act()
        except Locked:
            if waited_s >= wait_s:
                raise
        pause.wait(_PAUSE_S)
        waited_s += _PAUSE_S
