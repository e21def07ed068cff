"""Reads a wheel, without locks and without writes.

Each call takes a snapshot of its own, so it works beside a running keeper, without one, and on a damaged wheel. A
search by id uses a finder, which caches the index for the next call.
Invariant: no method here changes a byte of the wheel.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, overload

from filewheel.checks import check_choice, check_flag, check_items, check_number, check_whole
from filewheel.disk.directory import Directory
from filewheel.disk.forks import reopen
from filewheel.disk.keeper_lock import holder
from filewheel.disk.paused import read_pauses
from filewheel.errors import BadArgument, Closed, Damaged, FilewheelError, Forked, disk_errors
from filewheel.format.limits import bytes_of, check_headers, check_key, check_new_key, check_topic, matches
from filewheel.format.pauses import Pauses
from filewheel.format.record import unpack_put
from filewheel.keys.index import Keys
from filewheel.lookup.finder import Finder
from filewheel.lookup.overdue import Overdue, overdue_in
from filewheel.lookup.snapshot import DEAD_FLOOR, At, Filter, Snapshot
from filewheel.lookup.stats import Histogram, Progress, Stats, histogram_of, topics_of
from filewheel.message import KEY, SCHEDULE, US_PER_S, Message, MessageId
from filewheel.roster.roster import Roster, read_roster
from filewheel.runs.history import read_history
from filewheel.runs.kills import POLL_S, TIMEOUT_S, Asked, Killed
from filewheel.runs.run import THEN, Ended, Running, Then
from filewheel.runs.running import read_begun, read_running
from filewheel.schedules.definition import StoredSchedule, check_name, schedule_key, schedule_of
from filewheel.timespec import bound_us


def one_of(id_: MessageId | str | bytes | None, key: str | None) -> MessageId | None:
    """Return the given id, or None when a key was given. Raises BadArgument unless exactly one was given."""
    if (id_ is None) == (key is None):
        raise BadArgument("give an id or a key, and only one of them")
    return None if id_ is None else MessageId.parse(id_)


def one_or_many(ids: Iterable[MessageId | str | bytes] | MessageId | str | bytes) -> Iterable[MessageId | str | bytes]:
    """Return ids that were given as an iterable, or as one id. Raises BadArgument."""
    return [ids] if isinstance(ids, (str, bytes)) else check_items("ids", ids)


def given(id_: MessageId | str | bytes | None, key: str | None) -> dict[str, Any]:
    """Return the argument that names a message: its id or key. Raises BadArgument unless exactly one was given."""
    return {"key": check_key(key)} if one_of(id_, key) is None else {"id_": id_}


class Reader:
    """The reading part of a Wheel."""

    def __init__(self, directory: Directory, anew: Callable[[], object] | None) -> None:
        """With `anew`, which opens another one, the first call in a forked child does that, and has its inside."""
        self._dir = directory
        self._anew = anew
        self._finder = Finder(directory)
        self._keys = Keys(directory, self._finder)
        self._pid = os.getpid()
        self._closed = False

    @property
    def path(self) -> str:
        """The directory."""
        return self._dir.path

    @property
    def payload_bytes_max(self) -> int:
        """The largest payload that the wheel takes, in bytes."""
        return self._dir.settings.payload_bytes_max

    @property
    def notes(self) -> list[str]:
        """Problems that opening found and worked around."""
        return list(self._dir.notes)

    def _check(self) -> None:
        if self._anew is not None and not self._closed and os.getpid() != self._pid:
            reopen(self, self._anew, self.path)
        if self._closed:
            raise Closed("this wheel is closed", path=self._dir.path, hint="open it again")
        if os.getpid() != self._pid:
            raise Forked(
                "this wheel was opened by the parent process",
                path=self._dir.path,
                hint='open it after the fork, or with after_fork="reopen"',
            )

    # -- look ------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Take a snapshot to iterate over. The caller closes it."""
        self._check()
        return self._finder.snapshot()

    @overload
    def get(self, id_: MessageId | str | bytes) -> Message | None: ...
    @overload
    def get(self, *, key: str) -> Message | None: ...
    def get(self, id_: MessageId | str | bytes | None = None, *, key: str | None = None) -> Message | None:
        """Return the pending message (or dead letter) with this id, or the holder of this unique key, or None.

        Raises BadArgument unless exactly one of the two is given.
        """
        if (wanted := one_of(id_, key)) is not None:
            self._check()
            put = self._finder.find([wanted]).get(wanted)
        else:
            self._check()
            (held,) = self._keys.find([check_key(key)]).values()
            put = held.put
        return None if put is None else unpack_put(put)

    def _holders(self, keys: Sequence[str]) -> list[Message | None]:
        """Return the messages that have these keys."""
        self._check()
        found = self._keys.find(keys)
        return [None if (put := found[key].put) is None else unpack_put(put) for key in keys]

    def check_message(
        self, payload: bytes, *, topic: str = "", headers: Mapping[str, str] | None = None, key: str | None = None
    ) -> None:
        """Raise BadArgument or TooLarge where an enqueue of this message would. Writes nothing.

        Raises Closed or Forked too, as every call of this handle does.
        """
        self._check()
        bytes_of(payload, self.payload_bytes_max)
        check_topic(topic)
        named = {} if key is None else {KEY: check_new_key(key, headers)}
        check_headers({**check_headers(headers or {}), **named})

    def has_keeper(self) -> bool:
        """Return whether a process is the keeper of this wheel now. Cost: one check of a lock."""
        self._check()
        return holder(self._dir) is not None

    def paused(self) -> Pauses:
        """Return what is paused; empty when nothing is. Cost: one small file. Raises Damaged, DiskError."""
        self._check()
        with disk_errors(self.path):
            return read_pauses(self._dir.disk, self._dir.path)

    def is_drained(self) -> bool:
        """Return whether no process is the keeper any more that was one before the last drain.

        A keeper that was started since may wait for the resume. Raises Damaged, DiskError.
        """
        drains = self.paused().drains
        who = holder(self._dir)
        return who is None or (who.drains is not None and who.drains >= drains)

    def roster(self) -> Roster | None:
        """Return which wheels hold the same messages; None when this one is in no set. Raises Damaged, DiskError."""
        self._check()
        with disk_errors(self.path):
            return read_roster(self._dir.disk, self._dir.path)

    def schedules(self, pattern: str | Collection[str] | None = None) -> Sequence[StoredSchedule]:
        """Return the schedules with a name (or glob), those of programs too, by the due of their next occurrence.

        One that cannot be read here and now is among them: its `unreadable` says why. A collection has names, no globs.
        Cost: reads every pending message; names without * ? [ are looked up.
        """
        if isinstance(pattern, str) and not any(c in pattern for c in "*?["):
            pattern = [pattern]
        if pattern is not None and not isinstance(pattern, str):
            keys = [schedule_key(check_name(name)) for name in check_items("names of schedules", pattern)]
            messages = sorted((m for m in self._holders(keys) if m is not None), key=lambda message: message.id)
            return [stored for message in messages if (stored := schedule_of(message)) is not None]
        with self.snapshot() as snapshot:
            messages = [unpack_put(put) for put in snapshot.puts() if SCHEDULE.encode() in put]
        found = [stored for message in messages if (stored := schedule_of(message)) is not None]
        return [stored for stored in found if pattern is None or fnmatchcase(stored.name, pattern)]

    def peek(self, count: int = 1) -> list[Message]:
        """Return the messages that fire next, without claiming them.

        Up to 256 are cached: the next call reads only new journal frames.
        """
        return list(self.list(limit=check_whole("count", count, least=0)))

    def next_due(self) -> datetime | None:
        """Return when the next message is due, claimed or not; None when none is pending. Costs as `peek`."""
        return next((m.due for m in self.peek()), None)

    def list(
        self,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> Iterator[Message]:
        """Yield pending messages in firing order: due from `after` to below `before`, of a topic (or glob).

        With `dead`, yield the dead letters instead, by the time of their burial. Memory: one window, for any backlog.

        Raises BadArgument at once.
        """
        return self._list(Filter.of(after=after, before=before, topic=topic, dead=dead), limit)

    def _list(self, which: Filter, limit: int | None) -> Iterator[Message]:
        if limit is not None:
            check_whole("limit", limit, least=0)
        self._check()
        if which.hi <= DEAD_FLOOR:  # dead letters are not remembered
            with contextlib.suppress(Damaged):
                puts = self._finder.first(which, limit)
                if puts is not None:
                    return iter([*map(unpack_put, puts)])
        return self._walk(which, limit)

    def dead(
        self,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        error: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Message]:
        """Yield the dead letters that died from `after` to below `before`, of a topic (or glob), in order of death.

        With `error`, those whose reason contains this text, in any case of letters. Memory: one window.

        Raises BadArgument at once.
        """
        return self._list(Filter.of(after=after, before=before, topic=topic, error=error, dead=True), limit)

    def _walk(self, which: Filter, limit: int | None) -> Iterator[Message]:
        if limit != 0:
            with self.snapshot() as snapshot:
                yield from islice(snapshot.messages(which), limit)

    def stats(self) -> Stats:
        """Count the pending messages, and their bytes on disk.

        Cost: the first call, and the first after each checkpoint, read the undealt journals and the frame headers of
        the laps; other calls take about a millisecond and read new journal frames. In a backup or promoted wheel, about
        0.7 µs for each message in files that several commits wrote.

        Raises DiskError.
        """
        self._check()
        with disk_errors(self.path):
            return self._finder.stats()

    def histogram(self, edges: Sequence[At]) -> Histogram:
        """Count pending messages by due time, between rising `edges`. Raises BadArgument."""
        edges_us = [bound_us("an edge", e) for e in check_items("edges", edges)]
        if edges_us != sorted(edges_us):
            raise BadArgument("edges are times in rising order")
        with disk_errors(self.path), self.snapshot() as snapshot:
            return histogram_of(self._dir, snapshot, edges_us)

    def running(self) -> Running:
        """Return the messages that this wheel's keeper has claimed: those that run first, the oldest first.

        The keeper publishes the list once a second; which of them run is exact. Without a keeper the list is empty. It
        has the first thousand; `claimed` and `begun` count all. Takes no lock. Cost: two small files.

        Raises Damaged when the file is not one that a keeper wrote, DiskError.
        """
        self._check()
        return read_running(self._dir, self._is_pending)

    def _is_pending(self, id_: bytes) -> bool:
        """Return whether a message is pending; True if that cannot be known."""
        try:
            return self.get(id_) is not None
        except FilewheelError:
            return True

    def history(
        self,
        *,
        topic: str | None = None,
        schedule: str | None = None,
        failed: bool = False,
        since: At | None = None,
        id: MessageId | str | bytes | None = None,
        key: str | None = None,
        limit: int | None = None,
    ) -> Sequence[Ended]:
        """Return how the last messages ended, the newest first: of a topic (or glob), a schedule, those that failed.

        `id` is that of a message, or its first one; `key` finds all messages that had it. The keeper keeps at least the
        last 10,000 ends, and at most twice as many, and writes them once a second, without a flush. A cancel of a
        message that waits is no end of a run. Cost: reads all of them, 10 µs each.

        Raises BadArgument, DiskError.
        """
        self._check()
        if topic is not None:
            check_topic(topic)
        if limit is not None:
            check_whole("limit", limit, least=0)
        since_us = None if since is None else bound_us("since", since)
        wanted = None if id is None else MessageId.parse(id)
        if schedule is not None:
            check_name(schedule)
        if key is not None:
            check_key(key)
        check_flag("failed", failed)
        found = (
            ended
            for ended in read_history(self._dir)
            if (topic is None or matches(ended.topic, topic))
            and (schedule is None or ended.schedule == schedule)
            and (not failed or ended.failed)
            and (since_us is None or ended.ended_us >= since_us)
            and (wanted is None or wanted in (ended.id, ended.first_id, ended.moved_to))
            and (key is None or ended.key == key)
        )
        return list(islice(found, limit))

    def kill(
        self,
        id_: MessageId | str | bytes | None = None,
        *,
        key: str | None = None,
        then: Then = "cancel",
        timeout_s: float = TIMEOUT_S,
    ) -> Killed:
        """End the attempt of a message that runs now: its process, its command, or its coroutine at the next await.

        The message is named by its present id, its first one, or its unique key. `then` is its outcome: "cancel" drops
        it, "retry" is a failure for its retry policy, "bury" makes it a dead letter. A schedule goes on in any case; a
        cancelled message is dropped in any case (`Killed.CANCELLED`). It
        returns when the outcome is written, after `timeout_s` at the latest; the result is true if the attempt was
        ended. The keeper's process ends only what it has started itself, so a thread cannot be ended.

        Raises BadArgument, DiskError, WheelFull.
        """
        with self._ask_kill(id_, key, then, timeout_s) as asked:
            clock, disk = self._dir.env.clock, self._dir.disk
            end_us = clock.steady_us() + round(timeout_s * US_PER_S)
            while (answer := asked.look()) is None:
                if clock.steady_us() >= end_us:
                    return Killed.TIMED_OUT
                disk.wait_hint(None, POLL_S)
        return answer

    def _ask_kill(self, id_: MessageId | str | bytes | None, key: str | None, then: Then, timeout_s: float) -> Asked:
        """Check the arguments of a kill, and make the request."""
        wanted = one_of(id_, key)
        check_choice("then", then, THEN)
        check_number("timeout_s", timeout_s, least=0, most=1e9)
        self._check()
        running = Running()
        with contextlib.suppress(Damaged):  # a list that cannot be read hinders no kill by the present id
            running = self.running()
        if wanted is None:
            name = check_key(key)
            found = next((run.id for run in running if run.key == name and run.begun_us is not None), None)
            message = self.get(key=name) if found is None else None
            return Asked(self._dir, found if message is None else message.id, then)
        return Asked(self._dir, next((run.id for run in running if wanted in (run.id, run.first_id)), wanted), then)

    def overdue(self, at: At | None = None) -> Overdue:
        """Count the messages that are due now, or at a time: those that wait to begin, those that run, and paused ones.

        While what is paused cannot be read, none counts as paused. Cost: that of a histogram; while topics or schedules
        are paused, about 1 µs for each due message. Raises DiskError.
        """
        now_us = self._dir.env.clock.now_us() if at is None else bound_us("at", at)
        try:
            pauses = self.paused()
        except Damaged:
            pauses = Pauses()
        begun = read_begun(self._dir)
        with disk_errors(self.path), self.snapshot() as snapshot:
            return overdue_in(self._dir, snapshot, pauses, now_us, begun)

    def topics(self, progress: Progress | None = None) -> dict[str, int]:
        """Count pending messages by topic. Reads every message."""
        with self.snapshot() as snapshot:
            return topics_of(snapshot, progress)
