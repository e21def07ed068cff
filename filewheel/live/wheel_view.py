"""One wheel as its viewers see it: opened when it can be, and each part remembered for as long as it was dear.

It takes no lock, is no keeper, and writes nothing. A wheel that is missing, or that is replaced by another, is opened
at the first call that finds it. Any number of threads may ask.
Invariant: a part comes from the wheel that is at the path now, or was CHECK_S seconds ago.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from filewheel.checks import check_flag, check_path, check_whole
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Clock, Env, check_env
from filewheel.errors import BadArgument, FilewheelError, NoWheel, disk_errors
from filewheel.format import layout
from filewheel.format.pauses import Pauses
from filewheel.live.ahead import CountsAhead
from filewheel.live.backups import set_of
from filewheel.live.health import MAX_LAG_S, Health, check_health
from filewheel.live.pages import Page, Query, read_page
from filewheel.live.rates import RateMeter, Rates, rates_of_ends
from filewheel.live.remembered import Remembered, Seen
from filewheel.live.schedules import Schedules, find_schedules, refreshed
from filewheel.live.turning import Turning, turning
from filewheel.lookup.stats import Stats
from filewheel.message import US_PER_S, Message, MessageId, to_datetime
from filewheel.metrics.published import Published, read_published
from filewheel.reader import given
from filewheel.runs.history import read_history
from filewheel.runs.run import Ended, Running
from filewheel.wheel import Wheel

if TYPE_CHECKING:
    from filewheel.sets.status import SetStatus

HISTORY_MAX = 500
"""The most ends that are shown at once."""
CHECK_S = 2.0
"""How often it looks whether the wheel at the path is still the one that it has open."""


class _Opened:
    """One opened wheel, and what was seen of it."""

    def __init__(self, path: str, env: Env, *, force: bool) -> None:
        self.wheel = Wheel(path, force=force, env=env)
        self.directory: Directory = open_directory(path, write=False, force=force, env=env)
        clock = self.clock = env.clock
        self.meter = RateMeter()
        self.stats = Remembered(self.wheel.stats, clock, least_s=0.5)
        self.turning = Remembered(partial(turning, self.wheel, clock), clock, least_s=0.9)
        self.ahead = Remembered(self._ahead, clock, least_s=5)
        self.schedules = Remembered(self._schedules, clock, least_s=10)
        self.topics = Remembered(self.wheel.topics, clock, least_s=10)
        self.backups = Remembered(partial(set_of, self.wheel), clock, least_s=2)
        self.rates = Remembered(self._rates, clock, least_s=1)
        self.running = Remembered(self.wheel.running, clock, least_s=0.9)

    def identity(self) -> tuple[str, object]:
        return self.directory.settings.id, self.directory.disk.identity(layout.SETTINGS)

    def forget(self) -> None:
        for part in (self.stats, self.turning, self.ahead, self.backups, self.running):
            part.forget()

    def close(self) -> None:
        self.wheel.close()
        self.directory.disk.release()

    def _ahead(self) -> CountsAhead:
        ahead = CountsAhead(self.clock.now_us())
        ahead.fill(self.wheel.histogram([to_datetime(us) for us in ahead.edges_us]))
        return ahead

    def _schedules(self) -> Schedules:
        return find_schedules(self.wheel, self.directory)

    def _rates(self) -> tuple[Published | None, Rates | None]:
        published = read_published(self.directory)
        now_us = self.clock.now_us()
        rates = self.meter.rates(published, now_us, self.stats.get().value.keeper_pid)
        if rates is None or rates.is_stale:
            rates = rates_of_ends(read_history(self.directory), now_us) or rates
        return published, rates


class WheelView:
    """What can be seen of the wheel at a path. Thread-safe. Close it, or use it in a `with`."""

    def __init__(self, path: str | os.PathLike[str], *, force: bool = False, env: Env = SYSTEM) -> None:
        """Open nothing yet: a missing wheel is an error of the first call. Raises BadArgument."""
        self._path = check_path(path)
        self._force = force
        check_flag("force", force)
        self._env = check_env(env)
        self._lock = threading.Lock()
        self._opened: _Opened | None = None
        self._checked_us = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The absolute path."""
        return self._path

    @property
    def clock(self) -> Clock:
        """The clock of its times."""
        return self._env.clock

    def now_us(self) -> int:
        """Return the wall time."""
        return self._env.clock.now_us()

    def close(self) -> None:
        """Close the wheel. The next call opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.close()

    # -- the wheel -------------------------------------------------------------------------------------------

    def wheel(self) -> Wheel:
        """Return the open wheel. Raises as opening one does."""
        return self._open().wheel

    def _open(self) -> _Opened:
        with self._lock, disk_errors(self._path):
            steady_us = self._env.clock.steady_us()
            if self._opened is not None:
                is_due = steady_us - self._checked_us >= CHECK_S * US_PER_S
                if self._opened.wheel._is_finished or (is_due and self._is_other()):
                    opened, self._opened = self._opened, None
                    with contextlib.suppress(OSError, FilewheelError):
                        opened.close()
                self._checked_us = steady_us if is_due else self._checked_us
            if self._opened is None:
                self._opened = _Opened(self._path, self._env, force=self._force)
                self._checked_us = steady_us
            return self._opened

    def _is_other(self) -> bool:
        """Return whether another wheel, or none, is at the path."""
        assert self._opened is not None
        try:
            there = open_directory(self._path, write=False, force=self._force, env=self._env)
        except NoWheel:
            return True
        try:
            return (there.settings.id, there.disk.identity(layout.SETTINGS)) != self._opened.identity()
        finally:
            there.disk.release()

    # -- its parts -------------------------------------------------------------------------------------------

    def stats(self) -> Seen[Stats]:
        """Return the counts. Raises FilewheelError."""
        return self._open().stats.get()

    def turning(self) -> Seen[Turning]:
        """Return the next seconds. Raises FilewheelError."""
        return self._open().turning.get()

    def ahead(self) -> Seen[CountsAhead]:
        """Return the time ahead: minute, hour, day and beyond. Raises FilewheelError."""
        return self._open().ahead.get()

    def topics(self) -> Seen[dict[str, int]]:
        """Return the pending messages by topic. Reads every message. Raises FilewheelError."""
        return self._open().topics.get()

    def backups(self) -> Seen[SetStatus | None]:
        """Return the set of the wheel; None when it stands alone. Raises FilewheelError."""
        return self._open().backups.get()

    def rates(self) -> Rates | None:
        """Return the rates of the scheduler; None when none publishes. Raises FilewheelError."""
        return self._open().rates.get().value[1]

    def running(self) -> Seen[Running]:
        """Return what the keeper has claimed, as it last published it. Raises FilewheelError."""
        return self._open().running.get()

    def paused(self) -> Pauses:
        """Return what is paused now. Cost: one small file. Raises Damaged, DiskError."""
        return self._open().wheel.paused()

    def history(
        self, *, topic: str | None = None, failed: bool = False, id_: MessageId | None = None, limit: int = 50
    ) -> Sequence[Ended]:
        """Return how the last attempts ended, the newest first. Raises FilewheelError.

        Cost: 10 µs for each that is kept, up to the last that is wanted.
        """
        check_whole("limit", limit)
        if limit > HISTORY_MAX:
            raise BadArgument(f"at most {HISTORY_MAX} ends are shown, not {limit:,}")
        return self._open().wheel.history(topic=topic, failed=failed, id=id_, limit=limit)

    def health(
        self,
        *,
        max_lag_s: float = MAX_LAG_S,
        needs_keeper: bool = True,
        backups: bool = False,
        max_dead: int | None = None,
    ) -> Health:
        """Return whether a message that comes due now would fire in time. Raises FilewheelError."""
        return check_health(
            self._path,
            max_lag_s=max_lag_s,
            needs_keeper=needs_keeper,
            backups=backups,
            max_dead=max_dead,
            force=self._force,
            env=self._env,
        )

    def published(self) -> Published | None:
        """Return the last published metrics of a scheduler. Raises FilewheelError."""
        return self._open().rates.get().value[0]

    def schedules(self) -> Seen[Schedules]:
        """Return the schedules: found at the time given, with their next times of now. Raises FilewheelError."""
        opened = self._open()
        seen = opened.schedules.get()
        if seen.age_us(self.now_us()) > US_PER_S:
            return Seen(refreshed(opened.wheel, seen.value), seen.at_us, seen.took_us)
        return seen

    def page(self, query: Query) -> Page:
        """Return a page of messages or dead letters. Raises FilewheelError."""
        return read_page(self._open().wheel, query, self.clock)

    def message(self, id_: MessageId | None = None, *, key: str | None = None) -> Message | None:
        """Return a pending message or dead letter by its id or key. Raises FilewheelError."""
        return self._open().wheel.get(**given(id_, key))

    def forget(self) -> None:
        """Look again at the next call: this process has changed the wheel."""
        self._open().forget()
