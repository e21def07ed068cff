"""The keeper: the one process that fires.

It holds the kernel lock, reads the producers' journals, keeps the next pending messages in memory, hands out due
messages and records their outcomes. Between `claim` and `ack` a message is claimed in memory only: if the process dies,
the next keeper offers it again. So a message fires at least once, and never early.

A claim reads all journals once before anything starts (F1), so a message whose cancel returned before that never
starts; it compares with the wall clock at that moment (F2). First it checks whether another wheel of the set was
promoted: then it hands out nothing more, and writes only acknowledgements of claimed messages. Deals, flushes and
deletions run in a thread of their own (housekeeper.py), off the firing path.
Messages that a pause holds are neither claimed nor begun (pauses.py).
Invariant: each claim first checks that this process holds the lock, and that no other wheel was promoted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from filewheel.checks import (
    check_bounds,
    check_first,
    check_flag,
    check_function,
    check_items,
    check_keeper,
    check_number,
    check_whole,
    shown,
)
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.hint import Hints
from filewheel.disk.keeper_lock import KeeperLock
from filewheel.disk.quarantine import Damage
from filewheel.env import Clock, Env, check_env
from filewheel.errors import (
    BadArgument,
    Closed,
    Damaged,
    Fenced,
    FilewheelError,
    Forked,
    Locked,
    anew,
    disk_error,
)
from filewheel.firing.batch import Batch
from filewheel.firing.begins import Begins
from filewheel.firing.head import Head
from filewheel.firing.housekeeper import Housekeeper
from filewheel.firing.jumps import Jumps
from filewheel.firing.observer import Observer
from filewheel.firing.old_dead import Dropped
from filewheel.firing.pauses import KnownPauses
from filewheel.firing.ready import READY_BUDGET
from filewheel.firing.settler import Settler
from filewheel.firing.shares import NO_BOUNDS, Bounds
from filewheel.format.limits import check_topic
from filewheel.format.pauses import Pauses
from filewheel.format.record import ACKED, ID, SET_ASIDE
from filewheel.format.settings import Sync, check_sync
from filewheel.journal.columns import At
from filewheel.journal.settlement import Settlement
from filewheel.keys.index import Keys
from filewheel.laps.slot import second_of
from filewheel.laps.window import Budget, check_budget
from filewheel.message import US_PER_S, Message, MessageId
from filewheel.roster.fence import Fence
from filewheel.roster.roster import Roster
from filewheel.runs.run import Worker
from filewheel.timespec import bound_us

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""The longest sleep before the keeper checks the journals, in case a hint was lost."""
LATER_S = 0.02
"""The longest sleep while a settlement waits for a lock that a producer holds."""
_SUCCEEDED = (Fenced, Locked)
"""Errors after which another keeper fires: claimed messages may be acknowledged, but not put back."""


class Keeper:
    """Fires a wheel's messages. Thread-safe; one for each wheel, enforced by a kernel lock.

    Opening waits until the present keeper ends (a hot standby), or raises Locked with `wait=False`. Opening reads the
    checkpoint and the undealt part of the journals, not the backlog. In a set of wheels it raises Fenced on a wheel
    that is not the primary, also when that changed during the wait.

    `history` is how many ends of runs are kept (`Wheel.history`), 10,000 by default; with 0 none. Keeping them costs a
    few percent of the rate of acknowledgements. With background=False nothing is published, and no history is kept
    unless `history` says so.

    `on_jump` is for a wall clock that steps forward by more than an hour: "fire" logs it and fires by
    the new time; "hold" fires by the elapsed time, until the keeper is reopened.

    With `keep_dead_s` dead letters that are older are dropped, a thousand at a time, by a thread of the keeper. By
    default they are kept for ever. `on_dead_dropped` is called with id → topic of those that were dropped, `on_flush`
    with the microseconds of each flush of the keeper's own journal. Neither may raise.

    To a Keeper, a Scheduler's call is a message like any other. If you acknowledge it, the call is lost; if you
    acknowledge or bury an occurrence of a schedule, the schedule ends, because only a Scheduler writes the next
    occurrence. Use a Scheduler to fire a wheel that holds calls.
    """

    _followed: Roster | None = None
    """The roster that the store follows."""
    unwritten: FilewheelError | None = None
    """After `close`: why some settlements were not written; their messages fire again."""
    _closed = False
    _broken: FilewheelError | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait: bool = True,
        on_jump: str = "fire",
        force: bool = False,
        flush_interval_s: float = 0.02,
        keep_dead_s: float | None = None,
        budget: Budget = READY_BUDGET,
        background: bool = True,
        history: int | None = None,
        on_flush: Callable[[int], None] | None = None,
        on_dead_dropped: Dropped | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        check_keeper(
            wait=wait, on_jump=on_jump, force=force, flush_interval_s=flush_interval_s, keep_dead_s=keep_dead_s,
            background=background, history=history,
        )  # fmt: skip
        check_budget(budget)
        for name, function in (("on_flush", on_flush), ("on_dead_dropped", on_dead_dropped)):
            if function is not None:
                check_function(name, function)
        self._dir = open_directory(path, write=True, force=force, env=check_env(env).using(clock=clock))
        self._disk = self._dir.disk
        clock = self._clock = self._dir.env.clock
        self._pid = os.getpid()
        self._jumps = Jumps(clock, self._dir.path, hold=on_jump == "hold")
        self._hints = Hints(self._disk)
        self._closing = threading.RLock()
        self._fence = Fence(self._dir)
        self._keeper_lock = KeeperLock(self._dir)
        try:
            self._fence.check_may_fire(clock.now_us())  # mutant: backup-fires
            self._fence.close()  # other wheels do not stay open while this one waits
            # Before the wait: a standby ends with the keeper that is drained.
            self._pauses = KnownPauses(self._dir)
            self._drains = self.paused.drains
            self._keeper_lock.take("keeper", wait=wait, drains=self._pauses.drains)
            self._head = Head(self._dir, self._fence, budget, self._pauses, on_flush)
            self._store = self._head.store
            self._lock = self._store.lock
            self._begins = Begins(self._store, self._head)
            self.observer = Observer(
                self._store, self._head, self._begins, self._keeper_lock, history, is_used=background
            )
            # Again: a standby may have waited through a promotion.
            self._check_office(clock.now_us())  # mutant: standby-fires
            self._store.recover()
            self._hints.open()
            _warn_of(self._store.notes)
            self._keys = Keys(self._dir)
            moving = threading.RLock()
            self._housekeeper = Housekeeper(
                self._store, self._keys, self._head.finished, flush_interval_s=flush_interval_s,
                on_failure=self._fail, check=self._keeper_lock.check, look=self.observer.look,
                publish=self.observer.publish, moving=moving, keep_dead_s=keep_dead_s, on_dead_dropped=on_dead_dropped,
            )  # fmt: skip
            self._reserve = self._housekeeper.reserve
            self._settler = Settler(self._store, self._head, self._reserve, self._keys, self.observer.history, moving)
            if background:
                self._housekeeper.start()
        except BaseException as exc:
            self._give_up(fails=True)
            if isinstance(exc, OSError):
                raise disk_error(exc, self._dir.path) from exc
            raise

    def _give_up(self, *, fails: bool) -> None:
        """Close all files and end the thread, whatever was opened and is still open. May be called again."""
        self._closed = True
        if "_housekeeper" in vars(self):
            self._housekeeper.stop()
        try:
            if "_store" in vars(self):
                # mutant: fenced-close
                passed_over = (OSError, FilewheelError) if fails or isinstance(self._broken, _SUCCEEDED) else ()
                with contextlib.suppress(*passed_over), self._store.lock:
                    self._store.close()
        finally:
            self._release()

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, *, deal: bool = True) -> None:
        """Flush, deal the undealt records, and release the lock. The next keeper offers claimed messages again.

        Without `deal` it leaves little for a later keeper to deal: up to 256 KiB in 8 journals, and 8 finished files.

        After Fenced or Locked it deals nothing and does not raise: the new primary, or the next keeper, again offers
        messages whose acknowledgement was not flushed.
        """
        if os.getpid() != self._pid:
            return
        with self._closing:  # a second call returns when the first has closed
            try:  # mutant: half-closed
                if not self._closed:
                    self._end(deal=deal)
            finally:  # each step of it can be done twice: the next close finishes one that Ctrl-C cut off
                self._give_up(fails=False)

    def _is_primary(self) -> bool:
        """Return whether this wheel is in no set, or is its primary. Else its journals stay for a rejoin to read."""
        try:
            self._fence.check_may_fire(self._clock.now_us())
        except FilewheelError:
            return False
        return True

    def _end(self, *, deal: bool) -> None:
        """Write the remaining settlements, and close the journal after any error."""
        try:
            try:
                if self._broken is None and self._settler.later:
                    self._settler.settle_later(self._check)
                    self.unwritten = self._settler.unwritten()
                    if self.unwritten is not None:
                        log.error("%s", self.unwritten)
            finally:
                with self._lock:  # calls that hold it finish first
                    self._closed = True
                self._settler.wait_for_others()
                self.wake()
                self._housekeeper.stop()
                self.observer.close()
            if self._broken is None:
                self._store.own.flush()
                with self._lock:
                    self._store.ingest(test_locks=True)
                if self._is_primary():
                    self._housekeeper.deal_all(even_little=deal)
        except OSError as exc:
            raise disk_error(exc, self._dir.path) from exc

    def _release(self) -> None:
        """Close all files: the lock before the pipe, because standbys sleep on the pipe until the lock is free."""
        if "_begins" in vars(self):  # not when the opening failed before
            self._begins.close()
        self._fence.close()
        self._keeper_lock.release()
        self._hints.close()
        self._disk.release()

    def _check(self, *, settling: bool = False) -> None:
        """Raise unless this keeper can continue; after Fenced or Locked it can still settle claimed messages."""
        if self._broken is not None and not (settling and isinstance(self._broken, _SUCCEEDED)):
            raise anew(self._broken)
        if self._closed:
            raise Closed("this keeper is closed", path=self._dir.path, hint="open another Keeper")
        if os.getpid() != self._pid:
            raise Forked(
                "this keeper was opened by the parent process",
                path=self._dir.path,
                hint="open it after the fork",
            )

    def _fail(self, exc: FilewheelError) -> None:
        """Stop for good: another wheel fires now, or the housekeeper met an error that it cannot recover from."""
        log.critical("%s", exc)
        if self._broken is None:
            self._broken = anew(exc)
        self.wake()

    def _stop_for(self, exc: Damaged) -> None:
        """Stop for good: an undealt journal is missing. Raises Locked or Fenced if that is the reason."""
        self._check_office(self._jumps.now_us())
        self._fail(exc)  # mutant: vanished-goes-on

    def check_may_fire(self) -> None:
        """Raise unless this wheel may fire now: for a consumer that starts messages long after it claimed them.

        It also looks at what is paused. Cost: three stats, and one for each wheel of the set. Raises, for good, Fenced
        when another wheel was promoted, and Locked when keeper.lock was removed or replaced.
        """
        with self._lock:
            self._check()
            self._check_office(self._jumps.now_us())
            self._head.look_at_pauses()

    def _check_office(self, now_us: int) -> None:
        """Check that this wheel may fire, and have its journal write for the set in its roster."""
        try:
            self._keeper_lock.check()
            self._fence.check_may_fire(now_us)
        except _SUCCEEDED as exc:
            self._fail(exc)  # mutant: fenced-for-a-moment
            raise
        if self._fence.roster is not self._followed:
            self._store.follow(self._fence.roster)  # mutant: keeper-mirrors-untold
            self._followed = self._fence.roster

    # -- going out -------------------------------------------------------------------------------------------

    def claim(
        self,
        limit: int = 1000,
        *,
        wait: bool = False,
        until: At | None = None,
        at_most: Mapping[str, int] | None = None,
        first: Sequence[str] = (),
        begun: bool = True,
    ) -> Batch:
        """Claim up to `limit` due messages, in order; the batch is empty when none is due.

        With `until` (an aware datetime or epoch seconds), claim only messages that are due by then; a time in the
        future makes no message due early. With `wait`, sleep until a message is due, but not beyond `until`. `at_most`
        limits how many are claimed of some topics: further ones are passed over, and wait in order for a later claim.
        A key of it may be a glob, for all the topics together that fit it and are no key themselves; "*" is for all
        others. Topics in `first`, or that fit a glob in it, are claimed before the others, those of its first item
        before those of the second, also when a long backlog of others is due earlier; while any of them is due, no
        other is claimed. Give each claim the same globs: after a change, what was passed over is read again.

        A message stays claimed until it is acknowledged, put back or buried. With `begun=False` it begins when `begin`
        is called, for a consumer that queues claimed messages: a cancel reports whether a message had begun. Cost: a
        check of each journal and of each roster of the set, and about 0.5 µs a message; with `at_most` 1 µs, also for
        each message that is passed over.

        On a full disk without a ballast it claims one at a time, and raises WheelFull when not even one acknowledgement
        finds room.

        Messages that are paused are passed over. Raises Fenced when another wheel of the set was promoted, Locked when
        keeper.lock was removed or replaced: this keeper can only acknowledge from then on. Raises Damaged, for good,
        when an undealt journal is missing; Closed, also when another thread closes the keeper during the wait, and
        instead of a wait when the wheel is drained.
        """
        check_whole("limit", limit)
        check_flag("wait", wait)
        check_flag("begun", begun)
        until_us = None if until is None else bound_us("until", until)
        is_plain = at_most is None and first == ()
        bounds = NO_BOUNDS if is_plain else Bounds(check_bounds(at_most), check_first(first))
        while True:
            # Before the claim: it sees every message that is due up to here.
            left_s = None if until_us is None else (until_us - self.now_us()) / US_PER_S
            batch = self._claim(limit, until_us, bounds, begun)
            if batch or not wait or (left_s is not None and left_s <= 0):
                return batch
            self.check_drained()
            self.wait(left_s)

    def _claim(self, limit: int, until_us: int | None, bounds: Bounds, begun: bool) -> Batch:
        """Claim messages that are due now and by `until_us`; see `claim`."""
        self.observer.asked()
        if self._settler.later:
            self._settler.settle_later(self._check)
        while True:
            with self._lock:  # released between the parts of a long backlog that is passed over
                self._check()
                now_us = self._jumps.now_us()
                self._check_office(now_us)  # mutant: claim-unlooked
                by_us = now_us if until_us is None else min(now_us, max(until_us, -1))  # mutant: until-early
                try:
                    puts, ids = self._begins.claim(now_us, by_us, limit, bounds, self._reserve.room_for, begun=begun)
                except OSError as exc:
                    raise disk_error(exc, self._dir.path) from exc
                except Damaged as exc:
                    self._stop_for(exc)
                    raise
                if puts or not self._head.is_behind(by_us):  # mutant: backlog-hides
                    return Batch(puts, ids, self._set_aside)

    def begin(self, what: Batch | Message | bytes | Iterable[Message | bytes]) -> set[bytes]:
        """Begin the work on claimed messages; return the ids of those that must not begin.

        These were cancelled, moved, replaced or paused after the claim, by a call that has returned; they are no longer
        claimed, and a paused one is offered again after its resume. For a consumer that queues claimed messages. Cost:
        one write and one read; after a cancel, a check of each journal.

        Raises NotClaimed, before anything begins.
        """
        with self._lock:
            self._check()
            ids = self._settler.ids_of(what)
            try:
                return self._begins.begin(ids)
            except OSError as exc:
                raise disk_error(exc, self._dir.path) from exc
            except Damaged as exc:
                self._stop_for(exc)
                raise

    def may_begin(self, *ids: bytes) -> bool:
        """Begin claimed messages if that needs no check of the journals; False when `begin` must be called."""
        return self._begins.may_begin(ids)

    def unbegin(self, *ids: bytes) -> None:
        """Undo `begin` for messages that must wait after all; they stay claimed."""
        self._begins.unbegin(ids)

    def give_back(self, what: Batch | Message | bytes | Iterable[Message | bytes]) -> None:
        """Offer claimed messages that have not begun again, unchanged. Writes nothing.

        Raises NotClaimed.
        """
        with self._lock:
            self._check()
            self._begins.give_back(self._settler.ids_of(what))
        self.wake()

    def batches(self, limit: int = 1000, *, wait: bool = True, begun: bool = True) -> Iterator[Batch]:
        """Yield batches of due messages, and sleep in between; without `wait`, end when none is due now (see `claim`).

        Ends when the keeper is closed, also from another thread, and when the wheel is drained.
        """
        with contextlib.suppress(Closed):
            while not self._closed and not self.is_drained:
                batch = self.claim(limit, begun=begun)
                if batch:
                    yield batch
                    if len(batch) == limit or self._closed:
                        continue
                elif not wait:
                    return
                if wait:
                    self.wait()  # also after a batch: each claim checks every journal

    def wait(self, timeout_s: float | None = None, *, due: bool = True) -> bool:
        """Sleep until a message is due, a producer has written, `wake` was called, or the time is up.

        Returns whether a claim is worthwhile: False when only `timeout_s` has passed. Without `due`, due messages do
        not end the sleep: for a consumer that has no room for them.
        """
        self._check()
        self.observer.asked()
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, above=None)
        natural_s = LATER_S if self._settler.later else LOOK_S
        if due and not self._head.is_whole_paused():
            with self._lock:
                next_us = self._head.next_us()
            now_us = self._clock.now_us() - self._jumps.held_us  # while a jump is held, it makes no message due
            natural_s = min(natural_s, (next_us - now_us) / US_PER_S)
        limit_s = natural_s if timeout_s is None else min(timeout_s, natural_s)
        hinted = limit_s > 0 and self._hints.wait(limit_s)
        return hinted or limit_s >= natural_s

    def wake(self) -> None:
        """End a `wait` in another thread."""
        self._hints.wake()

    def stalled_s(self) -> float:
        """Return for how many seconds the background thread has not come around: well below one in a healthy keeper.

        More than some seconds means that the disk hangs, or a defect. Takes no lock: for a watchdog in another thread.
        """
        return self.observer.stalled_s()

    def next_due(self) -> datetime | None:
        """Return when the next message in memory is due; None when none is due in the next few seconds."""
        with self._lock:
            self._check()
            due_us = self._head.ready.first_due_us()
        return None if due_us is None else Message(MessageId.make(due_us, 0, 0), b"").due

    def set_worker(self, worker: Worker) -> None:
        """Say who works on claimed messages: `Wheel.running` and the history show where. For a consumer of your own."""
        self.observer.worker, self.observer.history.place = worker, worker.kind

    @property
    def directory(self) -> Directory:
        """The wheel's directory, open for writing."""
        return self._dir

    @property
    def pid(self) -> int:
        """The process that opened this keeper."""
        return self._pid

    # -- coming back: the outcomes of claimed messages -------------------------------------------------------

    def ack(self, what: Batch | Message | bytes | Iterable[Message | bytes], *, sync: Sync = "never") -> int:
        """Acknowledge a batch, a message or its id, or several; return how many that were.

        Of a batch, the messages still claimed. On return the acknowledgement is in the journal, so it survives this
        process; it survives a power cut after the next flush (20 ms), or on return with `sync="always"`.

        Raises NotClaimed for a message that is not claimed.
        """
        check_sync(sync)
        with self._lock:
            self._check(settling=True)  # mutant: fenced-ack
            ids = self._settler.ids_of(what)
            if ids:
                self._reserve.drop(ids, ACKED)
                self._settler.history.acked(self._head.release(ids))
        if sync == "always":  # mutant: ack-durable-unflushed
            self._flush()
        return len(ids)

    def nack(
        self,
        message: Message | bytes,
        *,
        delay: float | timedelta = 0,
        failed: str | None = None,
        details: str | bytes = "",
        sync: Sync = "never",
    ) -> MessageId | None:
        """Put a claimed message back, to fire again after `delay`, with its attempt raised by one.

        Returns its new id; None when it was cancelled. Drop and put are one commit: both or neither. `failed`, and the
        last 4 KiB of `details`, are kept as its latest attempt (`Message.attempts`).

        A message with a unique key keeps it, for one more flush. While another process is in the middle of moving or
        cancelling a message (one lock serves one id in 16), or is busy with that key, the commit waits for the next
        `claim`, with any `sync`. Until then the message is unchanged, also for the next keeper. If the other
        process wins, no message is ever pending under the returned id.
        """
        outcome = Settlement(self._id_of(message), "retried", delay=delay, failed=failed, details=details)
        return self.settle([outcome], sync=sync)[0]

    def bury(
        self,
        message: Message | bytes,
        *,
        reason: str = "",
        failed: str | None = None,
        details: str | bytes = "",
        sync: Sync = "never",
    ) -> MessageId | None:
        """Move a claimed message to the dead letters, where it waits until it is rescheduled or cancelled.

        `failed` and `details` are kept as its last attempt, as `nack` does.
        """
        if not isinstance(reason, str):
            raise BadArgument(f"a reason is a str, not {shown(reason)}")
        outcome = Settlement(self._id_of(message), "buried", reason=reason, failed=failed, details=details)
        return self.settle([outcome], sync=sync)[0]

    def settle(self, settlements: Sequence[Settlement], *, sync: Sync = "never") -> list[MessageId | None]:
        """Write the outcomes of claimed messages; return for each its new id, also as a dead letter.

        Each settlement is whole in one frame, with the messages that it enqueues; a `delay` counts from here on. None
        stands for a message that is acknowledged, or was cancelled. When writing fails, messages whose outcome was not
        written are still claimed (`holds`). One that moves its message, or enters a unique key, may have
        to wait for the next `claim`, as `nack` says. Many share a lookup and a flush.

        After Fenced, or Locked, only acknowledgements are written. The other messages stay pending, and the new
        keeper fires them.

        Raises NotClaimed before anything is written, WheelFull, Poisoned; Fenced or Locked when some could not be
        written.
        """
        check_sync(sync)
        if not all(isinstance(s, Settlement) for s in check_items("settlements", settlements)):
            raise BadArgument(f"settlements are a list of Settlement, not {shown(settlements)}")
        now_us = self.now_us()  # mutant: delay-by-the-wall
        settlements = [s.timed(now_us) for s in settlements]
        fenced = self._broken
        allowed = (
            settlements if fenced is None else [s for s in settlements if s.what == "acked"]
        )  # mutant: fenced-retry

        def check() -> None:
            self._check(settling=True)
            self._settler.ids_of([s.id for s in settlements])

        moved_to = self._settler.settle(allowed, check)
        if sync == "always":
            self._flush()
        if fenced is not None and len(allowed) < len(settlements):
            raise anew(fenced)
        return moved_to

    def _flush(self) -> None:
        with contextlib.suppress(Closed):  # another thread has closed the keeper, and flushed everything
            self._store.own.flush()

    def holds(self, id_: bytes) -> bool:
        """Return whether a message is claimed, and not settled yet."""
        return id_ in self._head.claims and id_ not in self._settler.later

    def _set_aside(self, put: bytes, exc: Damaged) -> None:
        """Move a record that is not a message into quarantine, and drop it."""
        with self._lock:
            id_ = put[ID]
            if id_ in self._head.claims:
                name = second_of(self._store.dir.settings, id_)
                self._store.quarantine.keep_bytes(Damage(name, 0, len(put), exc.what, proven=True), put)
                self._reserve.drop([id_], SET_ASIDE)
                self._head.release([id_])

    def _id_of(self, what: Message | bytes) -> bytes:
        with self._lock:
            self._check()
            (id_,) = self._settler.ids_of([what])
        return id_

    # -- what it does not hand out ---------------------------------------------------------------------------

    @property
    def paused(self) -> Pauses:
        """What is paused, as this keeper knows it since its last claim."""
        return self._pauses.held.pauses

    @property
    def is_drained(self) -> bool:
        """Whether the wheel was drained since this keeper was opened: close it once its claims are settled."""
        return self.paused.has_drained(self._drains)

    def check_drained(self) -> None:
        """Raise Closed when the wheel was drained since this keeper was opened: it hands out nothing more."""
        if self.is_drained:
            raise Closed(
                "the wheel was drained: this keeper hands out nothing more",
                path=self._dir.path,
                hint="close it; the next keeper fires after a `filewheel resume`",
            )

    def has_passed_over(self, topic: str) -> bool:
        """Return whether due messages wait because of a claim's `at_most`; they do not end a `wait`.

        Of a topic, or of those with which it shares a bound.
        """
        check_topic(topic)
        name = topic.encode()
        with self._lock:
            aside = self._head.ready.aside
            return aside.layout.of(name) in aside and not self._pauses.held.holds_topic(name)

    # -- time ------------------------------------------------------------------------------------------------

    def now_us(self) -> int:
        """Return this keeper's firing time: the wall clock, minus a jump that it holds."""
        with self._lock:
            return self._jumps.now_us()


def _warn_of(notes: list[str]) -> None:
    for note in notes:
        log.warning("%s", note)
