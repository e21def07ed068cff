"""The wheel of one partition of the delay topic: what was read waits here until it is due.

`DATA/<topic>/<partition>/` is an ordinary wheel, which verify, inspect and dump understand, with two small files of
its own (position.py). A record becomes a message whose id is its due and its offset (fate.py), so a record that is read
again is the same message. After a crash everything from the position on is read again. What went out before is known
from the marker, which all nodes share: it is neither taken in nor handed out again. So the drops of the wheel need no
flush, and one that a power cut took does no harm.

Nothing may be handed out before the log was read to its end at the assignment: a record that was replaced or cancelled
is back until its successor was read again, too. Then memory is read anew from the files, where every drop counts.
Invariants: a record is in the wheel, or done, if its offset is below `ingested`; durably, if it is below `position`. A
chunk has the least ids of all that is due, and `ingested` of the same moment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from filewheel.disk.directory import create_directory, make_parents
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import Damaged, NoWheel, WheelExists, WheelFull, disk_errors
from filewheel.format.settings import PAYLOAD_BYTES_LIMIT
from filewheel.kafka.partition.keyed import settled_keys
from filewheel.kafka.partition.log_keeper import LogKeeper
from filewheel.kafka.partition.marker import Marker, Step
from filewheel.kafka.partition.packing import Body, LogPut, Packer
from filewheel.kafka.partition.position import PositionFile, RecordOrigin, check_source
from filewheel.kafka.partition.waiting import WaitingOffsets
from filewheel.kafka.records.fate import id_of, offset_of
from filewheel.kafka.records.last_read import LastRead, later
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, Message, due_of, to_datetime

log = logging.getLogger(__name__)

FLUSH_S = 1.0
"""How long what was taken in may stay unflushed. After a power cut so much is read again."""
BUDGET = Budget(records=1 << 15, bytes=8 << 20)
"""How much of what is due in the next seconds is kept in memory."""
ROOM_BYTES = 256 << 10
"""The least free space with which a full wheel tries to take in again."""
FULL_US = 5 * US_PER_S
"""How long to wait on a full disk before drops are written again."""
BALLAST_BYTES = 256 << 10
"""Reserved for a full disk: drops of some thousand records, a journal, a checkpoint. XFS needs it for a new file."""
WALK_BUDGET = Budget(records=1 << 15, bytes=8 << 20)
_LOST = "the service reads them from the topic again"
_APPLY_AT_ONCE = 4096
_APPLY_KEPT_MAX = 1 << 16
_AHEAD_MAX = 1 << 17
"""So many records are kept aside that were not read again yet; with more nothing goes out before."""


@dataclass(frozen=True)
class Chunk:
    """Due messages that were claimed together."""

    messages: Sequence[Message]
    """In the order of their ids."""
    ids: Sequence[bytes]
    """Those of the messages."""
    ingested: int
    """Every record before this offset with an id up to `last_id` is in this chunk, or in an earlier one."""
    is_all: bool
    """No other record before this offset is due."""

    @property
    def last_id(self) -> bytes:
        """The largest id; empty if there is none."""
        return self.ids[-1] if self.ids else b""


class Partition:
    """One partition's wheel. Thread-safe by one lock; the housekeeping is done beside it. Runs no thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        source: RecordOrigin,
        *,
        keyed: bool = False,
        budget: Budget = BUDGET,
        on_work: Callable[[Partition], None] = lambda partition: None,
        env: Env = SYSTEM,
    ) -> None:
        """Open the wheel, or make it. Cost: that of a Keeper.

        `on_work` is called when `housekeep` should be called within FLUSH_S; it must not wait.

        Raises WrongSource when it has records of another topic, Locked when another process has it open, Damaged.
        """
        self._keeper = _open_keeper(os.fspath(path), budget, env)
        directory = self._keeper.directory
        self.path = directory.path
        self.source = source
        try:
            with disk_errors(self.path):
                self._keeper.limit_ballast(BALLAST_BYTES)
                self._keeper.expect_repeats()
                self._losses = self._keeper.losses()
                self._position = PositionFile(directory, self._losses.digest)
                check_source(directory, source)
        except BaseException:
            self._keeper.close()
            raise
        self._clock = directory.env.clock
        self._disk = directory.disk
        self._was_full = False
        """The last attempt to take in failed."""
        self._keyed = keyed
        self._on_work = on_work
        self._lock = threading.RLock()
        self._upkeep = threading.RLock()
        """Held by a flush, the housekeeping and the close; taken before `_lock`."""
        self._packer = Packer(keyed=keyed)
        self._waiting = WaitingOffsets()
        self._marker = Marker()
        self._in_hand: set[bytes] = set()
        """Claimed ids whose outcome is unknown."""
        self._cancelled: set[bytes] = set()
        """Those of them that were cancelled meanwhile: they are counted no more."""
        self._ahead: list[bytes] = []
        """Claimed ids of records that were taken in by an earlier handle, and that this one has yet to read."""
        self._owed: list[bytes] = []
        """Those of them that went out, and whose drops found no room on the disk."""
        self._is_owing = False
        self._ingested = self._position.offset or 0
        self.last_read: LastRead | None = self._position.last_read
        """The last record that was read and whose epoch is known: the log as it was then has it."""
        self._flushed = self._ingested
        self._flushed_us = self._clock.steady_us()
        self._is_true = False
        """Memory has been read from the files since the log was read again."""
        self._is_closed = False

    # -- where it stands -------------------------------------------------------------------------------------

    @property
    def position(self) -> int | None:
        """The offset from which to read after a power cut; None for a wheel that has none."""
        return self._position.offset

    @property
    def ingested(self) -> int:
        """The offset after the last record that was taken in."""
        return self._ingested

    @property
    def is_keyed(self) -> bool:
        """Whether a later record may replace or cancel one that waits."""
        return self._keyed

    @property
    def waiting(self) -> int | None:
        """How many records wait; None until they were counted."""
        with self._lock:
            return self._waiting.total if self._waiting.is_complete else None

    @property
    def has_lost(self) -> bool:
        """Whether files were damaged, or removed. Opened again, it has a position before all that was lost."""
        return self._losses.is_news or self.is_gone  # mutant: kafka-gone-unseen

    @property
    def is_gone(self) -> bool:
        """Whether its directory was removed. Opened again, it is a new wheel. Cost: 2 µs."""
        return not self._is_closed and self._keeper.is_gone()

    def low(self, chunk: Chunk | None = None) -> int:
        """Return an offset before which every record is done, or in the chunk: the first that waits; that of the marker
        until the waiting ones are noted."""
        with self._lock:
            # What was lost is not counted.
            if not self._waiting.is_complete or self.has_lost:  # mutant: kafka-low-too-soon
                return self._marker.low
            ids = () if chunk is None else chunk.ids
            return max(self._marker.low, self._waiting.low(self._ingested, ids))

    def next_due_us(self) -> int | None:
        """Return a time before which nothing is due; None when nothing waits. Cost: 10 ns for each second in use."""
        if len(self._ahead) > _AHEAD_MAX:  # until they were read again  # mutant: kafka-early-spins
            return None
        return self._keeper.next_due_us()

    # -- coming in -------------------------------------------------------------------------------------------

    def take_in(self, puts: Sequence[LogPut]) -> None:
        """Take in the next records, in the order of their offsets; those that are known or done are skipped.

        On return they survive this process, and a power cut after `flush`. Cost: 2 µs a record.

        Raises WheelFull or another DiskError with a part of them taken in: `ingested` says how many.
        """
        with self._lock:
            if puts and puts[0].offset < self._ingested:
                puts = [put for put in puts if put.offset >= self._ingested]
            if not puts:
                return
            self._check_room()
            self._was_full = True
            if self._keyed:
                self._take_in_keyed(puts)
            else:
                new = puts
                if puts[0].offset < self._marker.ingested:
                    new = [put for put in puts if not self._is_done(put)]
                for body in self._packer.bodies(new):
                    self._add(body)
                    self._ingested = body.end
            self._ingested = puts[-1].offset + 1
            self._was_full = False
            self._let_read()
        self._on_work(self)

    def _check_room(self) -> None:
        """Refuse what cannot be written: each attempt would end a journal and begin another. Raises WheelFull."""
        if not self._was_full:
            return
        with disk_errors(self.path):
            free = self._disk.free_bytes()
        if free < ROOM_BYTES:  # mutant: kafka-full-begins-segments
            raise WheelFull(f"{free} bytes are free", path=self.path, hint="free some space; it goes on by itself")

    def _is_done(self, put: LogPut) -> bool:
        marker = self._marker
        # mutant: kafka-taken-in-again
        return put.offset < marker.ingested and marker.done(id_of(put.due_us, put.offset), put.offset)

    def _take_in_keyed(self, puts: Sequence[LogPut]) -> None:
        for start, end in self._packer.portions(puts):
            part = puts[start:end]
            with settled_keys(self._keeper, part, self._is_done) as (kept, cancelled):
                self._add(self._packer.body(kept), cancelled)
            self._ingested = part[-1].offset + 1

    def _add(self, body: Body, cancelled: Sequence[bytes] = ()) -> None:
        """Write one frame. A crash before it leaves nothing of it, one after it all: it is read again in both cases."""
        if not body.puts and not cancelled:
            return
        first, last = min([body.first, *cancelled]), max([body.last, *cancelled])
        self._keeper.add_puts(body.data, body.puts, first, last, cancels=tuple(cancelled))
        self._waiting.remove(cancelled)
        self._cancelled.update(id_ for id_ in cancelled if id_ in self._in_hand)
        for start, count in body.runs:
            self._waiting.add_run(start, count)

    def advance(self, offset: int) -> None:
        """Note that no record before this offset is missing: the log has none there, or the marker calls them done."""
        with self._lock:
            if offset > self._ingested:
                self._ingested = offset
                self._let_read()
        self._on_work(self)

    def note_read(self, last_read: LastRead) -> None:
        """Note a record that was read, with its epoch, before it is taken in: each position that covers it names it."""
        with self._lock:
            self.last_read = later(self.last_read, last_read)

    def apply(self, marker: Marker) -> int:
        """Drop what a marker says is done, and let none of it in again; return how many were dropped.

        For the owner when it begins, before it reads, and for a standby with each marker. Cost: that of a claim of
        what is dropped.
        """
        with self._lock:
            known: set[Step] = set(self._marker.steps)
            upto = max((id_ for step in marker.steps if step not in known for _, id_ in (step,)), default=b"")
            self._marker = marker
            self._is_true = False
            dropped = self._drop_done(upto) if upto else 0
        if dropped:
            self._on_work(self)
        return dropped

    def _drop_done(self, upto: bytes) -> int:
        """Drop what is done of the messages up to an id. One that stays is dropped when it is claimed."""
        until = to_datetime(due_of(upto))
        dropped = 0
        kept: list[bytes] = []
        try:
            while len(kept) < _APPLY_KEPT_MAX:
                ids = self._keeper.claim(_APPLY_AT_ONCE, until=until, begun=False).ids
                if not ids:
                    break
                done = [id_ for id_ in ids if self._marker.done(id_, offset_of(id_))]
                kept += [id_ for id_ in ids if not self._marker.done(id_, offset_of(id_))]
                self._drop(done)
                dropped += len(done)
        finally:
            self._keeper.give_back(kept)
        return dropped

    # -- going out -------------------------------------------------------------------------------------------

    def next_chunk(self, limit: int, now_us: int | None = None) -> Chunk:
        """Claim up to `limit` due messages, and read `ingested` at the same moment.

        The first call says that the log was read to its end as it was at the assignment, or that no record cancels
        another. Nothing is early, neither by this machine's clock nor by `now_us`. What the marker calls done is
        dropped instead; what was not read again yet stays, because no marker of this chunk speaks of it.

        Cost: 2 µs a message, and 50 µs.

        Raises WheelFull when the disk has no room to hand out even one; another DiskError, Closed; Damaged when
        something was lost that may have been due: no marker may say it is done.
        """
        with self._lock:  # mutant: kafka-ingested-later
            if not self._is_true:
                self._begin()
            until = None if now_us is None else to_datetime(now_us)
            messages: list[Message] = []
            ids: list[bytes] = []
            is_all = False
            # mutant: kafka-chunk-half
            while len(messages) < limit:  # a claim of fewer does not say that nothing else is due
                if len(self._ahead) > _AHEAD_MAX:
                    break
                try:
                    batch = self._keeper.claim(limit - len(messages), until=until, begun=False)
                except WheelFull:
                    if not ids:
                        raise
                    break  # what is in hand goes out, and frees room  # mutant: kafka-full-forgets-claims
                is_all = not batch
                if is_all:
                    break
                done = [id_ for id_ in batch.ids if self._is_over(id_)]  # mutant: kafka-done-handed-out
                if done:
                    self._owed += done
                    self._pay()
                # mutant: kafka-early-ahead
                ahead = [id_ for id_ in batch.ids if offset_of(id_) >= self._ingested]
                self._ahead += ahead
                left_out = {*done, *ahead}
                self._in_hand.update(id_ for id_ in batch.ids if id_ not in left_out)
                ids += [id_ for id_ in batch.ids if id_ not in left_out]
                messages += [message for message in batch if message.id not in left_out]
            chunk = Chunk(messages, ids, self._ingested, is_all)
            if self.has_lost:  # mutant: kafka-loss-covered
                self.give_back(chunk)
                raise Damaged(
                    "waiting records were lost: see quarantine/",
                    path=self.path,
                    hint="they are read from the topic again",
                )
            return chunk

    def _let_read(self) -> None:
        """Let go of what has been read again."""
        if self._ahead:
            read = [id_ for id_ in self._ahead if offset_of(id_) < self._ingested]
            self._ahead = [id_ for id_ in self._ahead if offset_of(id_) >= self._ingested]
            self._keeper.give_back(id_ for id_ in read if self._keeper.holds(id_))

    def _is_over(self, id_: bytes) -> bool:
        offset = offset_of(id_)
        return offset < self._marker.ingested and self._marker.done(id_, offset)

    def _begin(self) -> None:
        """Read memory anew from the files, and begin to count what waits."""
        self._keeper.reload()  # mutant: kafka-memory-believed
        self._is_true = True
        if not self._waiting.is_complete and not self._waiting.is_walking:
            self._waiting.start(self._ingested)
            self._walk()
            self._on_work(self)

    def settle(self, chunk: Chunk) -> None:
        """Drop a chunk, after its marker was acknowledged. Not flushed: the marker says it again after a crash.

        On a full disk the drops are written later, by `housekeep`; the chunk is not handed out again. Raises DiskError.
        """
        with self._lock:
            self._owed += [id_ for id_ in chunk.ids if id_ in self._in_hand]
            self._pay()
        self._on_work(self)

    def _pay(self) -> bool:
        """Write the drops of what went out; return whether there is room for them.

        The last room is for a deal, which frees some: it needs no drops of what is owed.
        """
        while self._owed:
            try:
                with disk_errors(self.path):
                    if self._disk.free_bytes() < ROOM_BYTES:
                        raise WheelFull("the disk is full", path=self.path)
                self._drop(self._owed[:_APPLY_AT_ONCE])
            except WheelFull as exc:  # mutant: kafka-full-settle
                if not self._is_owing:
                    log.warning("%s: %s; what went out is dropped later", self.path, exc.what)
                self._is_owing = True
                return False
            del self._owed[:_APPLY_AT_ONCE]
        self._is_owing = False
        return True

    def _drop(self, ids: Iterable[bytes]) -> None:
        """Drop claimed messages. A crash before leaves them pending, and the marker says that they are done."""
        some = [id_ for id_ in ids if self._keeper.holds(id_)]
        self._keeper.ack(some)
        self._waiting.remove(id_ for id_ in some if id_ not in self._cancelled)
        self._let_go(some)

    def _let_go(self, ids: Iterable[bytes]) -> None:
        self._in_hand.difference_update(ids)
        if self._cancelled:
            self._cancelled.difference_update(ids)

    def give_back(self, chunk: Chunk) -> None:
        """Let a chunk be handed out again that did not go out."""
        with self._lock:
            some = [id_ for id_ in chunk.ids if self._keeper.holds(id_)]
            self._keeper.give_back(some)
            self._let_go(some)

    # -- upkeep ----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make everything durable that was taken in, and the position that says so follows. Cost: a flush.

        Raises Poisoned when the flush failed: then the position stays.
        """
        with self._upkeep, disk_errors(self.path):
            with self._lock:
                upto, last_read = self._ingested, self.last_read
            self._keeper.flush()  # mutant: kafka-position-first
            # A crash here leaves the position before: more is read again.
            if upto != (self._position.offset or 0) and not self.has_lost:
                self._position.write(upto, last_read)
            self._flushed, self._flushed_us = upto, self._clock.steady_us()

    def housekeep(self) -> int | None:
        """Flush, count and deal as far as it is time to. One thread serves many partitions this way.

        Returns after how many microseconds there may be more to do; None: not before `on_work` is called. An error
        ends the wheel: the next call raises it.
        """
        with self._upkeep:
            return None if self._is_closed else self._housekeep()

    def _housekeep(self) -> int | None:
        waits: list[int] = []
        if self._flushed != self._ingested:
            left_us = self._flushed_us + round(FLUSH_S * US_PER_S) - self._clock.steady_us()
            if left_us <= 0:
                self.flush()
            else:
                waits.append(left_us)
        with self._lock:
            if self._waiting.is_walking:
                self._walk()
                waits.append(0)
            if self._owed and not self._pay():
                waits.append(FULL_US)
            self._keeper.set_over(self._owed)
        idle_us = self._keeper.housekeep()
        if idle_us is not None:
            waits.append(idle_us)
        return min(waits, default=None)

    def _walk(self) -> None:
        """Count a part of what waits."""
        ids, upto, ends = self._keeper.pending_ids(self._waiting.walked, WALK_BUDGET)
        self._waiting.walk(ids, upto, ends=ends)

    def close(self) -> None:
        """Flush, deal, and close the wheel. What is in hand is pending for the next owner."""
        with self._upkeep:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.flush()
            finally:
                self._keeper.close()


def _open_keeper(path: str, budget: Budget, env: Env) -> LogKeeper:
    """Open the keeper of a partition's wheel; make the wheel if there is none."""

    def opened() -> LogKeeper:
        return LogKeeper(path, wait=False, background=False, flush_interval_s=FLUSH_S, budget=budget, env=env)

    try:
        return opened()
    except NoWheel:
        make_parents(path)
    with contextlib.suppress(WheelExists):  # another process made it in between: the lock decides
        create_directory(path, sync="never", payload_bytes_max=PAYLOAD_BYTES_LIMIT, now_us=env.clock.now_us(), env=env)
    return opened()
