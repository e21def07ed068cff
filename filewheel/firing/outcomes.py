"""The outcomes of claimed messages, as a consumer reports them: acknowledged, put back, or buried.

The half of a Keeper that writes settlements (settler.py) and forgets the claims. Cost and durability are stated at each
call.
Invariant: a message is acknowledged, put back or buried once, by the keeper that claimed it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from filewheel.checks import check_function, check_items, shown
from filewheel.disk.quarantine import Damage
from filewheel.errors import BadArgument, Closed, Damaged, FilewheelError, anew
from filewheel.firing.batch import Batch
from filewheel.firing.head import Head
from filewheel.firing.housekeeper import Housekeeper
from filewheel.firing.old_dead import Dropped
from filewheel.firing.reserve import Reserve
from filewheel.firing.settler import Settler
from filewheel.format.record import ACKED, ID, SET_ASIDE
from filewheel.format.settings import Sync, check_sync
from filewheel.journal.settlement import Settlement
from filewheel.laps.slot import second_of
from filewheel.laps.store import Store
from filewheel.message import Message, MessageId


class Outcomes:
    """The settling half of a Keeper, which has the attributes declared here."""

    _broken: FilewheelError | None
    _head: Head
    _housekeeper: Housekeeper
    _store: Store
    _lock: threading.RLock
    _reserve: Reserve
    _settler: Settler

    def _check(self, *, settling: bool = False) -> None:
        """Raise unless this keeper can go on; one that was succeeded can still settle claimed messages."""
        raise NotImplementedError

    def now_us(self) -> int:
        """Return the time that this keeper fires by."""
        raise NotImplementedError

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

    def on_flush(self, told: Callable[[int], None]) -> None:
        """Call a function with the microseconds of each flush of the keeper's own journal. It must not raise."""
        check_function("told", told)
        self._store.own.appender.on_flush = told

    def on_dead_dropped(self, told: Dropped) -> None:
        """Call a function with id → topic of the dead letters that were dropped for their age. It must not raise."""
        check_function("told", told)
        if self._housekeeper.old_dead is not None:
            self._housekeeper.old_dead.on_dropped = told

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
