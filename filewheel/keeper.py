"""The keeper: the one process that fires.

It holds the kernel lock, reads what producers write, keeps the head of what is pending in memory, hands out what is
due and records what became of it. Between `claim` and `ack` a message is claimed in memory only: if the process
dies, the next keeper offers it again. That is at least once, and never early.

A claim makes one pass over all journals before anything starts (F1), so a cancel that returned before the pass is
never started; it compares with the wall clock at that moment (F2). Dealing, flushing and deleting run in a thread of
their own (housekeeper.py), off the firing path.
Invariant: every message below the frontier is in `ready`, in `claims`, or dropped.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from filewheel import headers, layout
from filewheel.batch import Batch
from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.directory import DiskFactory, Sync, open_directory
from filewheel.disk import OsDisk
from filewheel.errors import BadArgument, Closed, Damaged, DiskError, FilewheelError, Forked, NotClaimed, disk_error
from filewheel.head import Head
from filewheel.housekeeper import Housekeeper
from filewheel.keys import Keys, key_of
from filewheel.ledger import Ledger
from filewheel.message import DEAD_US, DUE_LIMIT_US, US_PER_S, Message, MessageId
from filewheel.owner import Owner
from filewheel.record import (
    ACKED,
    BURIED,
    ID,
    RETRIED,
    SET_ASIDE,
    pack_drop,
    pack_message,
    unpack_put,
)
from filewheel.tail import Damage
from filewheel.timespec import due_from
from filewheel.window import Budget
from filewheel.writer import Entropy

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How long the keeper sleeps at most before it looks at the journals, in case a hint was lost."""
READY_BUDGET = Budget(records=1 << 16, bytes=12 << 20)
JUMP_LIMIT_US = 3600 * US_PER_S


class Keeper:
    """Fires a wheel's messages. Thread-safe; one for each wheel, enforced by a kernel lock.

    Opening waits for the present keeper to end (a hot standby), or raises Locked with `wait=False`. Opening costs
    reading the checkpoint and the undealt part of the journals, not the backlog.

    `on_jump` says what a forward step of the wall clock by more than an hour does: "fire" (log it and fire what is
    due by the new time) or "hold" (fire by the time that really passed, until the keeper is opened again).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        wait: bool = True,
        on_jump: str = "fire",
        force: bool = False,
        flush_interval_s: float = 0.02,
        budget: Budget = READY_BUDGET,
        background: bool = True,
        clock: Clock = SYSTEM_CLOCK,
        disk: DiskFactory = OsDisk,
        entropy: Entropy = secrets.token_bytes,
    ) -> None:
        if on_jump not in ("fire", "hold"):
            raise BadArgument(f'on_jump is "fire" or "hold", not {on_jump!r}')
        self._dir = open_directory(path, write=True, force=force, disk=disk)
        self._disk = self._dir.disk
        self._clock = clock
        self._pid = os.getpid()
        self._closed = False
        self._broken: FilewheelError | None = None
        self._hold = on_jump == "hold"
        self._looked: tuple[int, int] | None = None
        self._held_us = 0
        self._hints: int | None = None
        self._owner = Owner(self._dir)
        self._owner.take("keeper", wait=wait)
        self._ledger = Ledger(self._dir, clock, entropy=entropy)
        self._head = Head(self._ledger, budget)
        self._lock = self._ledger.lock
        try:
            self._ledger.recover()
            self._hints = self._disk.open_hints(layout.HINT)
        except BaseException as exc:
            with contextlib.suppress(OSError, FilewheelError):
                self._ledger.close()
            self._owner.release()
            self._disk.release()
            if isinstance(exc, OSError):
                raise disk_error(exc, self._dir.path) from exc
            raise
        for note in self._ledger.notes:
            log.warning("%s", note)
        self._keys = Keys(self._dir)
        self._later: dict[bytes, MessageId] = {}
        """Claimed messages with a key that were put back while its lock was taken, with their new ids."""
        self._housekeeper = Housekeeper(
            self._ledger, self._keys, self._head.finished, flush_interval_s=flush_interval_s, on_failure=self._fail
        )
        if background:
            self._housekeeper.start()

    # -- life ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush, deal what is undealt, and let the next keeper in. What was claimed is offered again then."""
        if self._closed or os.getpid() != self._pid:
            return
        if self._broken is None:
            self._put_back()
        self._closed = True
        self.wake()
        self._housekeeper.stop()
        try:
            if self._broken is None:
                self._ledger.own.flush()
                with self._lock:
                    self._ledger.ingest(test_locks=True)
                self._housekeeper.deal_all()
        except OSError as exc:
            raise disk_error(exc, self._dir.path) from exc
        finally:
            try:
                self._ledger.close()
            finally:
                if self._hints is not None:
                    self._disk.close(self._hints)
                    self._hints = None
                self._owner.release()
                self._disk.release()

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._closed:
            raise Closed("this keeper is closed", path=self._dir.path)
        if os.getpid() != self._pid:
            raise Forked(
                "this keeper was opened by the parent process",
                path=self._dir.path, hint="open it after the fork",
            )  # fmt: skip

    def _fail(self, exc: FilewheelError) -> None:
        """Stop for good: the housekeeper met what it cannot go on from."""
        log.critical("%s", exc)
        self._broken = exc
        self.wake()

    # -- what goes out ---------------------------------------------------------------------------------------

    def claim(self, limit: int = 1000) -> Batch:
        """Claim up to `limit` messages that are due, in order; an empty batch when none is.

        Each stays claimed until it is acknowledged, put back or buried. Cost: one look at each journal, and about
        0.5 µs a message.
        """
        if limit < 1:
            raise BadArgument(f"limit is at least 1, not {limit}")
        self._put_back()
        with self._lock:
            self._check()
            now_us = self._now_us()
            try:
                self._head.refresh(now_us)
            except OSError as exc:
                raise disk_error(exc, self._dir.path) from exc
            return Batch(self._head.claim(now_us, limit), self._set_aside)

    def batches(self, limit: int = 1000, *, wait: bool = True) -> Iterator[Batch]:
        """Yield batches of what is due, sleeping in between; without `wait`, end when nothing is due now.

        Ends when the keeper is closed, also from another thread.
        """
        while not self._closed:
            try:
                batch = self.claim(limit)
            except Closed:
                return
            if batch:
                yield batch
            elif not wait:
                return
            else:
                self.wait()

    def wait(self, timeout_s: float | None = None) -> None:
        """Sleep until a message is due, something new was written, `wake` was called, or the time is up."""
        self._check()
        limit_s = LOOK_S if timeout_s is None else min(timeout_s, LOOK_S)
        with self._lock:
            next_us = self._head.ready.next_due_us()
        if next_us is not None:
            limit_s = min(limit_s, (next_us - self._clock.now_us()) / US_PER_S)
        if limit_s > 0:
            self._disk.wait_hint(self._hints, limit_s)

    def wake(self) -> None:
        """End a `wait` in another thread."""
        if self._hints is not None:
            self._disk.ring(self._hints)

    def next_due(self) -> datetime | None:
        """Return when the next message that is in memory is due; None when the next few seconds hold none."""
        with self._lock:
            self._check()
            due_us = self._head.ready.next_due_us()
        return None if due_us is None else Message(MessageId.make(due_us, 0, 0), b"").due

    @property
    def pid(self) -> int:
        """The process that opened this keeper."""
        return self._pid

    # -- what became of it -----------------------------------------------------------------------------------

    def ack(self, what: Batch | Message | bytes | Iterable[Message | bytes], *, sync: Sync = "never") -> int:
        """Acknowledge a batch, a message or its id, or several; return how many that were.

        Of a batch, those that are still claimed. It is in the journal on return, so it survives this process; it
        survives a power cut after the next flush (20 ms), or on return with `sync="always"`.

        Raises NotClaimed for a message that is not claimed.
        """
        with self._lock:
            self._check()
            ids = self._ids_of(what)
            if ids:
                self._housekeeper.drop(ids, ACKED)
                self._head.settle(ids)
        if sync == "always":
            self._ledger.own.flush()
        return len(ids)

    def nack(
        self,
        message: Message | bytes,
        *,
        delay: float | timedelta = 0,
        sync: Sync = "never",
    ) -> MessageId | None:
        """Put a claimed message back, to fire again after `delay`, with its attempt raised by one.

        Returns its new id; None when it was cancelled meanwhile. Drop and put are one commit: both or neither.

        A message with a unique key keeps it, for one more flush. While another process is busy with that key, the
        commit waits for the next `claim`; until then the message stays what it was, and would be offered as that to the
        next keeper.
        """
        due_us = due_from(self._clock.now_us(), delay=delay, at=None)
        with self._lock:
            self._check()
            (id_,) = self._ids_of(message)
            key = key_of(self._head.claims[id_])
            if key is not None:
                self._later[id_] = new = self._ledger.own.new_id(due_us)
        if key is None:
            return self._move(message, due_us, RETRIED, None, sync)
        try:
            moved = self._move_with_key(id_, new, key)
        except BaseException:
            self._later.pop(id_, None)  # nothing was done: it is claimed, as before
            raise
        if sync == "always":
            self._ledger.own.flush()
        return new if moved else None

    def _put_back(self) -> None:
        """Put back what could not be while another process was busy with its key."""
        if not self._later:
            return
        self._check()
        for id_, new in list(self._later.items()):
            put = self._head.claims.get(id_)
            key = None if put is None else key_of(put)
            if key is not None:
                # A full disk must not keep what is due from being claimed; the next claim tries again.
                with contextlib.suppress(DiskError):
                    self._move_with_key(id_, new, key)

    def _move_with_key(self, id_: bytes, new: MessageId, key: str) -> bool:
        """Put a message with a key back under its new id, now or later; False when it was cancelled meanwhile."""
        # U1, without waiting: whoever has the lock may have been stopped. A moment later will do.
        with self._keys.hold([key], wait_s=0) as hold:
            if hold.busy:
                return True
            hold.look(key, self._clock.now_us())
            self._housekeeper.spend(lambda: hold.note([(key, new)], self._ledger.own))
            with self._lock:
                if self._later.pop(id_, None) is None:
                    return True
                return self._move(id_, new.due_us, RETRIED, None, "never", new) is not None

    def bury(self, message: Message | bytes, *, reason: str = "", sync: Sync = "never") -> MessageId | None:
        """Move a claimed message to the dead letters, where it waits until it is rescheduled or cancelled."""
        due_us = min(DEAD_US + self._clock.now_us(), DUE_LIMIT_US - 1)
        return self._move(message, due_us, BURIED, reason, sync)

    def _move(
        self, what: Message | bytes, due_us: int, why: int, reason: str | None, sync: Sync, new: MessageId | None = None
    ) -> MessageId | None:
        with self._lock:
            self._check()
            try:
                self._ledger.ingest()
            except OSError as exc:
                raise disk_error(exc, self._dir.path) from exc
            (id_,) = self._ids_of(what)
            if id_ in self._head.cancelled:
                # A2: cancelled while it ran. The drop is written already; nothing is put.
                self._finish([id_], [], 0)
                return None
            message = unpack_put(self._head.claims[id_])
            message.root = message.root or message.id
            message.attempt += 1
            if reason is not None:
                message.headers = {**message.headers, headers.REASON: reason[:1000]}
            message.id = new or self._ledger.own.new_id(due_us)
            put = pack_message(message)
            self._finish([id_], [pack_drop(id_, why), put], 1)
            if message.id < self._head.ready.frontier:
                self._head.ready.add([put])
        if sync == "always":
            self._ledger.own.flush()
        return message.id

    def _ids_of(self, what: Batch | Message | bytes | Iterable[Message | bytes]) -> list[bytes]:
        claims = self._head.claims
        if isinstance(what, Batch):
            return [i for i in filter(claims.__contains__, what.ids) if i not in self._later]
        items = [what] if isinstance(what, (Message, bytes)) else list(what)
        ids = [bytes(i.id) if isinstance(i, Message) else bytes(i) for i in items]
        for id_ in ids:
            if id_ not in claims or id_ in self._later:
                name = str(MessageId(id_)) if len(id_) == 16 else repr(id_)
                raise NotClaimed(
                    f"message {name} is not claimed by this keeper",
                    path=self._dir.path, hint="acknowledge each message once, by the keeper that claimed it",
                )  # fmt: skip
        return ids

    def _finish(self, ids: list[bytes], records: list[bytes], puts: int) -> None:
        """Write what became of claimed messages, then forget them. Nothing is forgotten if writing fails."""
        if records:
            self._housekeeper.write(records, puts)
        self._head.settle(ids)

    def _set_aside(self, put: bytes, exc: Damaged) -> None:
        """Keep a record that is not a message, and go on without it."""
        with self._lock:
            id_ = put[ID]
            if id_ in self._head.claims:
                name = layout.slot(
                    self._dir.settings.lap_of(MessageId(id_).due_us // US_PER_S),
                    MessageId(id_).due_us // US_PER_S,
                )
                self._ledger.quarantine.keep_bytes(Damage(name, 0, len(put), exc.what, proven=True), put)
                self._finish([id_], [pack_drop(id_, SET_ASIDE)], 0)

    # -- time ------------------------------------------------------------------------------------------------

    def _now_us(self) -> int:
        """Return the wall time, watching for a step that no passing of time explains."""
        now, steady = self._clock.now_us(), self._clock.steady_us()
        if self._looked is not None:
            step = (now - self._looked[0]) - (steady - self._looked[1])
            if step > JUMP_LIMIT_US:
                log.critical(
                    "%s: the clock jumped ahead by %d s; %s", self._dir.path, step // US_PER_S,
                    "holding what that makes due until this keeper is opened again"
                    if self._hold else "firing what that makes due",
                )  # fmt: skip
                if self._hold:
                    self._held_us += step
            elif step < -US_PER_S:
                log.warning("%s: the clock went back by %d s; nothing fires twice", self._dir.path, -step // US_PER_S)
                self._held_us = max(0, self._held_us + step)
        self._looked = (now, steady)
        return now - self._held_us
