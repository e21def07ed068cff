"""Cancels pending messages, moves them to another time, and pauses them.

The part of a Wheel that takes the locks of ids (disk/locks.py) and of keys (keys/). Each call finds its message and
writes its frame under these locks, and waits for the flush without them.
Invariant: when several calls move or cancel one message at once, one succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import NamedTuple, overload

from filewheel.checks import check_flag, check_items
from filewheel.disk import locks
from filewheel.disk.forks import IMPORTS
from filewheel.disk.hint import HintSender
from filewheel.env import Clock
from filewheel.errors import BadArgument, FilewheelError, KeyHeld, NotFound
from filewheel.firing.cancelled import BegunLook, Cancelled, CancelledIds
from filewheel.format.limits import bytes_of, check_key
from filewheel.format.pauses import Pause, new_pause
from filewheel.format.record import CANCELLED, RESCHEDULED, key_of, pack_drop, unpack_put
from filewheel.format.settings import Sync, check_sync
from filewheel.journal.columns import At, Delay
from filewheel.journal.journal import Journal
from filewheel.keys import unique
from filewheel.message import ID_LIMIT, US_PER_S, Message, MessageId, due_of, receipt
from filewheel.reader import Reader, one_of, one_or_many
from filewheel.timespec import due_from

HINT_AHEAD_US = US_PER_S
"""A message that is due later than this wakes no keeper: each keeper checks twice a second anyway."""
CLEAR_AT_ONCE = 10_000
"""How many messages `clear` cancels in one commit."""
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
    """The changing part of a Wheel, which provides the attributes declared here."""

    _sync: Sync
    _clock: Clock
    _hint: HintSender

    def _writer(self) -> Journal:
        """Return this handle's journal."""
        raise NotImplementedError

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


def _pauses() -> ModuleType:
    with IMPORTS:  # on demand: a producer that never pauses does not load what sets need
        from filewheel.sets import pauses
    return pauses
