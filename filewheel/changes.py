"""Cancels pending messages, moves them to another time, pauses them, and keeps schedules of plain messages.

The part of a Wheel that owns the journal of the handle, and takes the locks of ids (disk/locks.py) and of keys (keys/).
Each call finds its message and writes its frame under these locks, and waits for the flush without them. A schedule is
a message with a key: its calls plant the next occurrence (schedules/planting.py) in one frame with the end of the last.
Invariant: when several calls move or cancel one message at once, one succeeds. Of two calls for one schedule at once,
the later one sees what the earlier one wrote.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import NamedTuple, overload

from filewheel.checks import check_flag, check_items, shown
from filewheel.disk import locks
from filewheel.disk.begun import BegunLook, Cancelled, CancelledIds, Marks
from filewheel.disk.directory import Directory, check_writable
from filewheel.disk.forks import IMPORTS
from filewheel.disk.hint import HintSender
from filewheel.disk.threads import one_call
from filewheel.errors import BadArgument, FilewheelError, KeyHeld, Locked, NotFound
from filewheel.format.limits import bytes_of, check_key
from filewheel.format.pauses import Pause, new_pause
from filewheel.format.record import CANCELLED, RESCHEDULED, key_of, pack_drop, unpack_put
from filewheel.format.settings import Sync, check_sync
from filewheel.journal.columns import At, Delay
from filewheel.journal.journal import Journal
from filewheel.keys import unique
from filewheel.laps.tidy import Tidier, is_untidy, tidy
from filewheel.message import ID_LIMIT, US_PER_S, Message, MessageId, due_of, receipt
from filewheel.reader import Reader, one_of, one_or_many
from filewheel.roster.fence import LOOK_US, Fence
from filewheel.schedules.definition import (
    GRACE_US,
    UNSET,
    OneOrMore,
    StoredSchedule,
    Time,
    Unset,
    check_name,
    schedule_key,
    schedule_of,
)
from filewheel.schedules.edit import Edit
from filewheel.schedules.plain import PlainSchedule, checked
from filewheel.schedules.planting import Plant, decide
from filewheel.schedules.recurrence import Missed
from filewheel.timespec import due_from

HINT_AHEAD_US = US_PER_S
"""A message that is due later than this wakes no keeper: each keeper checks twice a second anyway."""
CLEAR_AT_ONCE = 10_000
"""How many messages `clear` cancels in one commit."""
_PLANT_TRIES = 100
_NEVER_US = -(1 << 62)
REVIVE_AT_ONCE = 1000
"""How many dead letters `revive` looks up under one lock."""


class Revived(NamedTuple):
    """The outcome of `revive`."""

    moved: dict[MessageId, MessageId]
    """The new id of each dead letter that came back to life."""
    failed: dict[MessageId, FilewheelError]
    """Why the others did not: NotFound, or KeyHeld for one whose unique key another message has now."""


def ids_at_once(messages: Iterable[Message]) -> Iterator[list[MessageId]]:
    """Yield the ids of messages in portions for one commit each."""
    some: list[MessageId] = []
    for message in messages:
        some.append(message.id)
        if len(some) == CLEAR_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


class Changes(Reader):
    """The part of a Wheel that has a journal, and ends or moves what is pending."""

    def __init__(
        self,
        directory: Directory,
        anew: Callable[[], object] | None,
        *,
        sync: Sync,
        force: bool,
        on_flush: Callable[[int], None] | None,
    ) -> None:
        """`force` allows a network file system. `anew` is for a forked child, as of Reader."""
        super().__init__(directory, anew)
        self._force = force
        self._sync = sync
        self._clock = directory.env.clock
        self._journal: Journal | None = None
        self._looked_us = _NEVER_US
        """When the roster last allowed this handle to write."""
        self._on_flush = on_flush
        self._opening = threading.RLock()
        self._tidier: Tidier | None = None
        """Made with the journal, whose segments it follows."""
        self._hint = HintSender(directory.disk)

    # -- the journal -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Make everything enqueued durable, and close the journal. A second call ends what Ctrl-C cut off."""
        if os.getpid() != self._pid:
            self._closed = self._closed or self._anew is not None  # an inherited handle is not opened again
            return
        if self._journal is not None:
            self._journal.appender.one_call()  # raises before anything changes
        self._closed = True
        if self._tidier is not None:
            self._tidier.join()
        try:
            if self._journal is not None:
                self._journal.close()
                if is_untidy(self._dir):
                    tidy(self._dir)
        finally:
            self._finder.forget()
            self._hint.close()
            self._dir.disk.release()

    @property
    def _is_finished(self) -> bool:
        """Whether each further write raises: it was closed, or a flush failed. For an owner that opens it anew."""
        return self._closed or (self._journal is not None and self._journal.appender.broken is not None)

    def _end_writing(self) -> None:
        """Release the journal of a handle that is finished. Who has the handle can read on."""
        with contextlib.suppress(FilewheelError):  # a caller has got it
            if self._journal is not None:
                self._journal.close()

    def flush(self) -> None:
        """Make everything enqueued through this handle durable, for any `sync`."""
        self._check()
        if self._journal is not None:
            self._journal.flush()

    def _writer(self) -> Journal:
        """Return this handle's journal, which the first call makes."""
        self._check()
        if self._journal is None:
            with one_call(self._opening, self._dir.path):
                if self._journal is None:
                    check_writable(self._dir.path, self._dir.disk, force=self._force)
                    self._tidier = tidier = Tidier(self._dir)
                    self._journal = Journal(
                        self._dir,
                        fence=Fence(self._dir),
                        marks=Marks(self._dir),
                        on_segment_end=tidier.segment_ended,
                        on_flush=self._on_flush,
                    )
        now_us = self._clock.now_us()
        if not 0 <= now_us - self._looked_us < LOOK_US:  # mutant: backup-written
            self._look(self._journal, now_us)
        return self._journal

    def _heed(self) -> None:
        """Do what each write does first, for an owner that may rest for long: a purge waits for it. Raises nothing."""
        if self._journal is not None:
            with contextlib.suppress(FilewheelError):  # the next write raises it
                self._writer()

    def _look(self, journal: Journal, now_us: int) -> None:
        """Check the roster, and write for the set in it from now on. Raises Fenced, Damaged."""
        journal.look()  # mutant: refused-once.2 follow-once.2
        # Set last, so that after an error the next call checks again.
        self._looked_us = now_us

    # -- cancel and move ---------------------------------------------------------------------------------------

    @overload
    def cancel(self, id_: MessageId | str | bytes, *, sync: Sync | None = None) -> Cancelled: ...
    @overload
    def cancel(self, *, key: str, sync: Sync | None = None) -> Cancelled: ...
    def cancel(
        self, id_: MessageId | str | bytes | None = None, *, key: str | None = None, sync: Sync | None = None
    ) -> Cancelled:
        """Cancel a message by its id or unique key; return whether it was stopped in time, had begun, or was not found.

        A stopped message does not begin, even if a keeper has claimed it. The result is true when a message was
        pending. A message that has moved (retried, rescheduled) has a new id: its old id is not found, and the message
        stays. Its key always finds it.
        """
        wanted = one_of(id_, key)
        found = self._cancel([check_key(key)] if wanted is None else [], [] if wanted is None else [wanted], sync)
        return next(iter(found.outcomes.values()), Cancelled.NOT_FOUND)

    def cancel_many(
        self, ids: Iterable[MessageId | str | bytes] = (), *, keys: Iterable[str] = (), sync: Sync | None = None
    ) -> CancelledIds:
        """Cancel messages by their ids or unique keys, in one commit; return the ids of those that were pending.

        `outcomes` of the result maps each id to whether it was stopped in time or had begun. Cost: about 80 µs, 2 µs a
        message and 30 µs a key, a read of new journal frames, and one flush.
        """
        wanted = [MessageId.parse(i) for i in check_items("ids", ids)]
        names = list(dict.fromkeys(check_key(key) for key in check_items("keys", keys)))
        return self._cancel(names, wanted, sync)

    def _cancel(self, names: list[str], wanted: list[MessageId], sync: Sync | None) -> CancelledIds:
        """Cancel the holders of keys, and messages by their ids."""
        sync = self._sync if sync is None else check_sync(sync)  # mutant: cancel-then-check
        journal = self._writer()
        now_us = self._clock.now_us()
        look = BegunLook(self._dir)  # before the search for pending messages
        found: set[MessageId] = set()
        ticket, left = None, list(wanted)
        while left or names:
            holders = self._keys.find(names) if names else {}
            held = {holder.id: name for name, holder in holders.items() if holder.id is not None}
            some, last = self._drop(journal, [*left, *held])
            found, ticket, left = found | some, last or ticket, []
            wanted += held
            # A message that was moved between the look and the drop has its key under another id now.
            names = [name for id_, name in held.items() if id_ not in some]  # mutant: key-cancelled-once
        if ticket is None:
            return CancelledIds({})
        is_marked = journal.mark_drops()
        # After the mark, so that a keeper or this call sees the other.
        outcomes = look.outcomes(found) if is_marked else dict.fromkeys(found, Cancelled.MAYBE_BEGUN)
        journal.wait_durable(ticket, sync)  # mutant: cancel-then-check.2
        if due_of(min(wanted)) < now_us + HINT_AHEAD_US:
            self._hint.send(now_us)
        return CancelledIds(outcomes)

    def _drop(self, journal: Journal, wanted: Sequence[MessageId]) -> tuple[set[MessageId], int | None]:
        """Write drops as one frame; return the ids that were pending, and the ticket to wait with."""
        # Also for an id that was not found: its file may be missing only for a while.
        ids: list[bytes] = [i for i in dict.fromkeys(wanted) if i < ID_LIMIT]
        if not ids:
            return set(), None
        with locks.holding_ids(self._dir, wanted):  # mutant: id-locked-late
            pending = self._finder.pending(wanted)
            ticket = journal.drop(ids, CANCELLED)
        return {i for i in wanted if i in pending}, ticket

    def clear(self, *, topic: str | None = None, dead: bool = False, sync: Sync | None = None) -> int:
        """Cancel all pending messages, those of a topic (or glob), or all dead letters; return how many.

        A message that is enqueued or moved during the call may stay. Each commit cancels 10,000; if the call raises,
        earlier commits stay. Memory: one commit and one window, for any backlog. Cost: that of `list` and
        `cancel_many`.
        """
        sync = None if sync is None else check_sync(sync)
        portions = ids_at_once(self.list(topic=topic, dead=dead))
        return sum(len(self.cancel_many(ids, sync=sync)) for ids in portions)  # mutant: clear-counts-all

    def revive(
        self, ids: Iterable[MessageId | str | bytes] | MessageId | str | bytes, *, delay: Delay | None = None,
        at: At | None = None, sync: Sync | None = None,
    ) -> Revived:  # fmt: skip
        """Move dead letters, or one, back among the pending: at a time, after a delay, or now; return their outcomes.

        Each starts again with attempt 0 and a new id, as by `reschedule`. Up to 1,000 are one commit; if the call
        raises, earlier commits stay. Each message with a unique key is a commit of its own. Cost: about 30 µs a
        message, and one flush for all.

        Raises BadArgument for an id that is no dead letter's; nothing was done.
        """
        wanted = list(dict.fromkeys(MessageId.parse(i) for i in one_or_many(ids)))
        for id_ in wanted:
            if not id_.is_dead:
                raise BadArgument(f"{id_} is not the id of a dead letter", hint="reschedule moves a pending message")
        now_us = self._clock.now_us()
        due_us = due_from(now_us, delay=delay, at=at)
        sync = self._sync if sync is None else check_sync(sync)
        journal = self._writer()
        revived = Revived({}, {})
        ticket = 0
        for start in range(0, len(wanted), REVIVE_AT_ONCE):
            keyed, ticket = self._revive(journal, wanted[start : start + REVIVE_AT_ONCE], due_us, revived, ticket)
            each: Sync = "never" if sync == "always" else sync
            for old, key in keyed:
                try:
                    revived.moved[old] = unique.move(self._keys, journal, key, old, due_us, sync=each)
                except (KeyHeld, NotFound) as exc:
                    revived.failed[old] = exc
        if revived.moved and sync == "always":
            journal.flush()  # mutant: revived-unflushed
        elif ticket:
            journal.wait_durable(ticket, sync)
        self._hint.send(now_us)
        return revived

    def _revive(
        self, journal: Journal, ids: Sequence[MessageId], due_us: int, revived: Revived, ticket: int
    ) -> tuple[list[tuple[MessageId, str]], int]:
        """Move dead letters as one commit, but for those with a key; return these, and the last ticket."""
        keyed: list[tuple[MessageId, str]] = []
        with locks.holding_ids(self._dir, ids):  # mutant: revive-unlocked
            puts = self._finder.find(ids)
            rests: dict[MessageId, bytes] = {}
            for old in ids:
                if (put := puts.get(old)) is None:
                    revived.failed[old] = unique.not_found(None, old, self._dir.path)
                elif (key := key_of(put)) is not None:
                    keyed.append((old, key))
                else:
                    rests[old] = unique.moved_rest(unpack_put(put))
            for moved, last in journal.moves(due_us, rests):
                revived.moved.update(moved)
                ticket = last
        return keyed, ticket

    def update(
        self,
        *,
        key: str,
        payload: bytes,
        delay: Delay | None = None,
        at: At | None = None,
        sync: Sync | None = None,
    ) -> MessageId:
        """Replace the payload, and optionally the time, of the message that holds a unique key; return its new id.

        One commit, like `reschedule`; unlike `enqueue(on_conflict="replace")` it never creates a message.

        Raises NotFound when no message holds the key.
        """
        now_us = self._clock.now_us()
        due_us = None if delay is None and at is None else due_from(now_us, delay=delay, at=at)
        payload = bytes_of(payload, self.payload_bytes_max)
        sync = self._sync if sync is None else check_sync(sync)
        journal = self._writer()
        new = unique.move(self._keys, journal, check_key(key), None, due_us, sync=sync, payload=payload)
        self._hint.send(now_us)
        return new

    @overload
    def reschedule(
        self,
        id_: MessageId | str | bytes,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        sync: Sync | None = None,
    ) -> MessageId: ...
    @overload
    def reschedule(
        self, *, key: str, delay: Delay | None = None, at: At | None = None, sync: Sync | None = None
    ) -> MessageId: ...
    def reschedule(
        self,
        id_: MessageId | str | bytes | None = None,
        *,
        key: str | None = None,
        delay: Delay | None = None,
        at: At | None = None,
        sync: Sync | None = None,
    ) -> MessageId:
        """Move a pending message (by its id or its unique key), or a dead letter, to another time; return its new id.

        The drop of the old id and the put of the new one are one commit: both or neither. A dead letter starts again,
        without its scheduler deadline. If work on the message has begun, it continues, and the message fires again at
        its new time; only `cancel` reports that.

        Raises NotFound when no message is pending under this id or key, KeyHeld when another message now has the key
        of a dead letter.
        """
        old = one_of(id_, key)
        now_us = self._clock.now_us()
        due_us = due_from(now_us, delay=delay, at=at)
        journal = self._writer()
        sync = self._sync if sync is None else check_sync(sync)
        if old is not None:
            with locks.holding_ids(self._dir, [old]):
                put = self._finder.find([old]).get(old)
                if put is None:
                    raise unique.not_found(None, old, self._dir.path)
                key = key_of(put)
                if key is None:
                    new, ticket = journal.move(due_us, unique.moved_rest(unpack_put(put)), pack_drop(old, RESCHEDULED))
        if key is None:
            new = receipt(new, journal.wait_durable(ticket, sync))
        else:
            new = unique.move(self._keys, journal, check_key(key), old, due_us, sync=sync)
        self._hint.send(now_us)
        return new

    # -- pause -------------------------------------------------------------------------------------------------

    def pause(
        self, *, topic: str | None = None, schedule: str | None = None, why: str = "", drain: bool = False
    ) -> Pause:
        """Pause the whole wheel, a topic (or glob), or a schedule by its name; return the pause.

        On return it survives a power cut, and no message that it holds begins, in any keeper. What runs goes on. Paused
        messages keep their due; after `resume` they fire, or follow their lateness policy. A pause that exists keeps
        its time, and gets a new `why`. `drain` is for the whole wheel: what fires finishes what runs and ends.

        Raises BadArgument, TooLarge, Fenced in a backup, Locked, Damaged, WheelFull, ReadOnly, DiskError.
        """
        if check_flag("drain", drain) and (topic is not None or schedule is not None):
            raise BadArgument("only the whole wheel is drained", hint="leave out the topic and the schedule")
        self._check()
        made: Pause = _pauses().pause(self._dir, new_pause(topic, schedule, why, self._clock.now_us()), drain=drain)
        self._hint.send(self._clock.now_us())
        return made

    def resume(
        self, *, topic: str | None = None, schedule: str | None = None, everything: bool = False
    ) -> tuple[Pause, ...]:
        """End the pause of the whole wheel, of a topic or glob as it was paused, of a schedule, or all; return them.

        Nothing when it was not paused by this name. What another pause holds stays paused. Raises as `pause`.
        """
        which = new_pause(topic, schedule)
        if check_flag("everything", everything) and which.what != "wheel":
            raise BadArgument("everything is resumed, or one name", hint="leave one of them out")
        self._check()
        ended: tuple[Pause, ...] = _pauses().resume(self._dir, lambda pause: everything or pause.is_for(which))
        self._hint.send(self._clock.now_us())
        return ended

    # -- schedules -------------------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        when: OneOrMore,
        payload: bytes = b"",
        *,
        topic: str = "",
        headers: Mapping[str, str] | None = None,
        tz: str = "UTC",
        missed: Missed = "once",
        grace_s: float = GRACE_US / US_PER_S,
        jitter_s: float = 0,
        start: Time | None = None,
        end: Time | None = None,
        count: int | None = None,
        on_conflict: str = "replace",
        sync: Sync | None = None,
    ) -> MessageId:
        """Start recurring work whose occurrences are this message; return the id of the next one.

        `when` is an interval (seconds, "90s"), a cron expression in a zone, or a single time. `filewheel run` fires the
        occurrences, and so does a scheduler that has a handler of this topic. `missed` and the other options are those
        of Scheduler.schedule. If there is such a schedule already, "replace" replaces it, "keep" keeps it, "reject"
        raises KeyHeld. The same again changes nothing (`kept` of the id is true), nor the number of calls that are
        left. An occurrence that is due already keeps its due, whatever the new times are, and is called before them.

        Raises BadArgument, also when no time is left; KeyHeld when a program declares the name, or calls a handler
        under it.
        """
        plan = PlainSchedule(
            name, when, payload, topic, headers, tz, missed, grace_s, jitter_s, start, end, count, on_conflict
        )
        return self.schedule_many([plan], sync=sync)[0]

    def schedule_many(self, schedules: Iterable[PlainSchedule], *, sync: Sync | None = None) -> list[MessageId]:
        """Start schedules as `schedule` does, all of them in one commit or none; return the ids of their occurrences.

        Raises BadArgument when two have one name, and the error of the first that is refused.
        """
        plans = [*check_items("schedules", schedules)]
        if not all(isinstance(plan, PlainSchedule) for plan in plans):
            raise BadArgument(f"schedules are a list of PlainSchedule, not {shown(plans)}")
        plants = [plan.plant(self.payload_bytes_max) for plan in plans]
        names = [plant.definition.name for plant in plants]
        for name, number in Counter(names).items():
            if number > 1:
                raise BadArgument(f"two schedules of this call are named {name!r}")
        return self._plant(names, lambda _: plants, sync) if names else []

    def edit_schedule(
        self,
        name: str,
        *,
        when: OneOrMore | Unset = UNSET,
        payload: bytes | Unset = UNSET,
        topic: str | Unset = UNSET,
        headers: Mapping[str, str] | Unset = UNSET,
        change_headers: Mapping[str, str | None] | Unset = UNSET,
        tz: str | Unset = UNSET,
        missed: Missed | Unset = UNSET,
        grace_s: float | Unset = UNSET,
        jitter_s: float | Unset = UNSET,
        start: Time | Unset | None = UNSET,
        end: Time | Unset | None = UNSET,
        count: int | Unset | None = UNSET,
        sync: Sync | None = None,
    ) -> MessageId:
        """Change what is given of a schedule; return the id of its next occurrence.

        None takes a start, an end or a count away. A count that is given counts from now. `headers` replace all but
        its own retry and time-out; `change_headers` sets some, or takes away those whose value is None. Of two edits at
        once each keeps what the other has changed.
        Raises NotFound; KeyHeld for a schedule that a program declares; BadArgument.
        """
        edit = Edit(when, payload, topic, headers, change_headers, tz, missed, grace_s, jitter_s, start, end, count)
        check_name(name)

        def edited(stored: Sequence[StoredSchedule | None]) -> list[Plant]:
            if stored[0] is None:
                raise NotFound(
                    f"there is no schedule {name!r}", path=self.path, hint="`filewheel schedule list` shows them"
                )
            if stored[0].is_declared:
                raise KeyHeld(
                    f"a program declares the schedule {name!r}",
                    key=schedule_key(name),
                    id=stored[0].occurrence.id,
                    path=self.path,
                    hint="change it in the program",
                )
            return [checked(edit.of(stored[0]), self.payload_bytes_max)]

        return self._plant([name], edited, sync)[0]

    def unschedule(self, name: str, *, sync: Sync | None = None) -> Cancelled:
        """End a schedule; return whether its occurrence was stopped in time, had begun, or there is none.

        A running occurrence goes on, and is the last. A schedule that a program declares begins again when it starts:
        call this when no program declares it any more.
        """
        return self.cancel(key=schedule_key(check_name(name)), sync=sync)

    def _plant(
        self,
        names: Sequence[str],
        plants_of: Callable[[Sequence[StoredSchedule | None]], Sequence[Plant]],
        sync: Sync | None,
    ) -> list[MessageId]:
        """Plant schedules in one frame, all or none; return the ids of their next occurrences, `kept` where they stay.

        `plants_of` returns them, given what is stored of these names now. Two administrators and a keeper may do this
        at once: the frame is written only if the messages that were read still have the keys; else all is done again.
        Raises the error of the first that is refused.
        """
        sync = self._sync if sync is None else check_sync(sync)
        keys = [schedule_key(name) for name in names]
        for _ in range(_PLANT_TRIES):
            living, now_us = self._holders(keys), self._clock.now_us()
            plants = plants_of([None if m is None else schedule_of(m) for m in living])
            decided = [
                decide(plant, message, now_us=now_us, has_begun=self._has_begun, path=self.path)
                for plant, message in zip(plants, living, strict=True)
            ]
            asks = [one for one in decided if isinstance(one, unique.Ask)]
            made = iter(self._put_all(asks, sync) if asks else ())
            ids = [next(made) if isinstance(one, unique.Ask) else one for one in decided]
            found = [one for one in ids if isinstance(one, MessageId)]
            if len(found) == len(names):
                return found
            for each in ids:
                if isinstance(each, Locked):
                    raise each
            # The message that had a key is another now: it fired, or someone else planted.
        raise KeyHeld(
            f"the schedule {names[0]!r} changes faster than it can be replaced",
            key=keys[0],
            path=self.path,
            hint="try again",
        )

    def _has_begun(self, message: Message) -> bool:
        """Return whether the work on a message has begun; False if that is not known: it may be done twice then."""
        return BegunLook(self._dir).outcomes([message.id])[message.id] is Cancelled.BEGUN

    def _put_all(self, asks: Sequence[unique.Ask], sync: Sync) -> list[MessageId | KeyHeld | Locked]:
        journal = self._writer()
        made, ticket = unique.put_all(self._keys, journal, asks, all_or_none=True)
        if ticket is None:
            return made
        copies = journal.wait_durable(ticket, sync)
        self._hint.send(self._clock.now_us())
        return [receipt(one, copies) if isinstance(one, MessageId) else one for one in made]


def _pauses() -> ModuleType:
    with IMPORTS:  # on demand: a producer that never pauses does not load what sets need
        from filewheel.sets import pauses
    return pauses
