"""The messages of many tasks, committed together: each is checked separately, many are written as one frame.

Messages gather in the event loop and are given to the writing thread as one batch; while it writes, the next batch
gathers. Without room a task waits in line. A mistake in one message must not fail another, so `check_put` finds every
mistake without touching the disk. `put_all` raises only disk errors, for each message concerned.
Invariants: a message whose id is returned is as durable as its own `sync` says; a message that is withdrawn before its
batch is handed over is not written; every other one gets an id or an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from filewheel.aio.thread import LoopThread, call_soon, fail, resolve
from filewheel.changes import HINT_AHEAD_US
from filewheel.errors import BadArgument, Closed, anew
from filewheel.format.frame import portions
from filewheel.format.limits import bytes_of, check_headers, check_topic
from filewheel.format.record import pack_middle, pack_payload
from filewheel.format.settings import Sync, check_sync
from filewheel.journal.columns import At, Delay, Headers
from filewheel.journal.journal import BATCH_BYTES, Journal
from filewheel.keys import unique
from filewheel.message import KEY, MessageId, receipt
from filewheel.timespec import due_from
from filewheel.wheel import Wheel

_PUT_BYTES = 64
"""The most bytes of a packed put without its middle and payload. A portion is one frame, written as a whole or not."""


@dataclass(slots=True)
class Put:
    """A checked message that waits for its commit."""

    due_us: int
    now_us: int
    middle: bytes
    payload: bytes
    sync: Sync
    key: str | None
    on_conflict: str


Waiting = tuple[asyncio.Future[MessageId], Put]
"""A future of a task that waits for its message's id, and the message."""


def check_put(
    wheel: Wheel,
    payload: bytes,
    delay: Delay | None,
    at: At | None,
    topic: str,
    headers: Headers,
    sync: Sync | None,
    key: str | None = None,
    on_conflict: str = "reject",
) -> Put:
    """Check one message as `enqueue` does, without touching the disk. Its delay counts from now."""
    wheel._check()
    payload = bytes_of(payload, wheel._payload_bytes_max)
    now_us = wheel._clock.now_us()
    due_us = due_from(now_us, delay=delay, at=at)
    check_topic(topic)
    unique.check_policy(on_conflict)
    key = unique.key_named(key, headers)
    if key is None and on_conflict != "reject":
        raise BadArgument("on_conflict goes with a key", hint='key="..."')
    named = headers if key is None else {**(headers or {}), KEY: key}
    middle = pack_middle(now_us, topic, check_headers(named) if named else None)
    return Put(due_us, now_us, middle, payload, wheel._sync if sync is None else check_sync(sync), key, on_conflict)


def put_all(wheel: Wheel, puts: Sequence[Put]) -> list[MessageId | BaseException]:
    """Write messages, those with the same `sync` as one frame, with one flush; return the id or error of each."""
    journal = wheel._writer()
    results: list[MessageId | BaseException] = [MessageId()] * len(puts)
    groups: dict[Sync, list[int]] = {}
    for n, put in enumerate(puts):
        groups.setdefault(put.sync, []).append(n)
    for sync, group in groups.items():
        sizes = [_PUT_BYTES + len(puts[n].middle) + len(puts[n].payload) for n in group]
        for start, end in portions(sizes, BATCH_BYTES):
            some = group[start:end]
            keyed = [n for n in some if puts[n].key is not None]
            plain = [n for n in some if puts[n].key is None] if keyed else some
            later: Sync = "never" if sync == "always" else sync
            if plain:
                _put_some(journal, puts, plain, later, results)
            if keyed:
                _put_keyed(wheel, journal, puts, keyed, later, results)
    waiting = [n for n in groups.get("always", ()) if not isinstance(results[n], BaseException)]
    if waiting:
        try:
            copies = journal.flush()
        except Exception as exc:
            _tell_all(exc, waiting, results)
        else:
            _note_copies(copies, waiting, results)
    near = [p.due_us for p, r in zip(puts, results, strict=True) if not isinstance(r, BaseException)]
    now_us = wheel._clock.now_us()
    if near and min(near) < now_us + HINT_AHEAD_US:
        wheel._hint.send(now_us)
    return results


def _put_some(
    journal: Journal, puts: Sequence[Put], group: list[int], sync: Sync, results: list[MessageId | BaseException]
) -> None:
    some = [puts[n] for n in group]
    try:
        made = journal.put_many(
            [p.due_us for p in some], [p.middle for p in some], [p.payload for p in some], sync=sync
        )
    except Exception as exc:
        _tell_all(exc, group, results)
    else:
        for n, id_ in zip(group, made, strict=True):
            results[n] = id_


def _put_keyed(
    wheel: Wheel,
    journal: Journal,
    puts: Sequence[Put],
    group: list[int],
    sync: Sync,
    results: list[MessageId | BaseException],
) -> None:
    asks = [
        unique.Ask(p.key, p.on_conflict, p.due_us, p.middle + pack_payload(p.payload))
        for p in map(puts.__getitem__, group)
    ]
    try:
        made, ticket = unique.put_all(wheel._keys, journal, asks)
        copies = 1 if ticket is None else journal.wait_durable(ticket, sync)
    except Exception as exc:
        _tell_all(exc, group, results)
    else:
        for n, id_ in zip(group, made, strict=True):
            results[n] = receipt(id_, copies) if isinstance(id_, MessageId) else id_


def _note_copies(copies: int, group: Sequence[int], results: list[MessageId | BaseException]) -> None:
    """Lower `copies` of the ids to the number of wheels that held the batch after its flush."""
    for n in group:
        id_ = results[n]
        if isinstance(id_, MessageId) and id_.copies > copies:
            results[n] = receipt(id_, copies)


def _tell_all(exc: Exception, group: Sequence[int], results: list[MessageId | BaseException]) -> None:
    """Give each task its own copy of an error: a shared one would collect the tracebacks of all tasks."""
    for n in group:
        results[n] = anew(exc)


def commit(
    wheel: Wheel,
    batch: Sequence[Waiting],
    loop: asyncio.AbstractEventLoop,
    written: Callable[[Sequence[Waiting], Sequence[MessageId | BaseException]], None],
) -> None:
    """In the writing thread: write a batch, and pass the results to the loop."""
    results: Sequence[MessageId | BaseException]
    try:
        results = put_all(wheel, [put for _, put in batch])
    except BaseException as exc:  # any class, because tasks wait for it
        results = [anew(exc) for _ in batch]
    call_soon(loop, written, batch, results)


class Batcher:
    """Gathers messages into batches, and bounds them. Used in the writer's loop only."""

    def __init__(self, wheel: Wheel, writer: LoopThread, room: int) -> None:
        self._wheel = wheel
        self._writer = writer
        self._room = room
        self._gathering: list[Waiting] = []
        self._busy = False
        """A batch is being written, or its hand-over is scheduled."""
        self._line: deque[asyncio.Future[None]] = deque()
        """The tasks that wait for room, in order. It is empty while there is room."""

    async def put(self, put: Put) -> MessageId:
        """Add a message to the next batch; return its id once it is as durable as its `sync` says."""
        if self._room:
            self._room -= 1
        else:
            await self._wait_for_room()
        future: asyncio.Future[MessageId] = self._writer.loop.create_future()
        self._gathering.append((future, put))
        if not self._busy:
            self._busy = True
            # Not at once, so that tasks that run in this iteration of the loop join the batch.
            self._writer.loop.call_soon(self._hand_over)
        return await future

    def end(self) -> None:
        """Hand over the gathered messages, and refuse the tasks that wait for room."""
        self._hand_over()
        line, self._line = self._line, deque()
        for gate in line:
            closed = Closed(
                "this wheel was closed; nothing of this call was enqueued", path=self._wheel.path, hint="open it again"
            )
            fail(gate, closed)

    async def _wait_for_room(self) -> None:
        """Wait in line. On return the room is taken."""
        gate: asyncio.Future[None] = self._writer.loop.create_future()
        self._line.append(gate)
        try:
            await gate
            self._writer.check()
        except BaseException:
            if gate.done() and not gate.cancelled() and gate.exception() is None:
                self._give_room(1)  # the room is not used
            raise

    def _give_room(self, count: int) -> None:
        self._room += count
        while self._room and self._line:
            gate = self._line.popleft()
            if not gate.done():
                self._room -= 1
                gate.set_result(None)

    def _hand_over(self) -> None:
        """Give the gathered messages to the thread, without those whose tasks were cancelled."""
        batch = [waiting for waiting in self._gathering if not waiting[0].done()]
        withdrawn = len(self._gathering) - len(batch)
        self._gathering = []
        self._busy = bool(batch)
        if withdrawn:
            self._give_room(withdrawn)
        if batch:
            self._writer.post(partial(commit, self._wheel, batch, self._writer.loop, self._written))

    def _written(self, batch: Sequence[Waiting], results: Sequence[MessageId | BaseException]) -> None:
        """In the loop: hand over the next batch first, then answer the tasks of this one."""
        self._hand_over()
        for (future, _), result in zip(batch, results, strict=True):
            if isinstance(result, BaseException):
                fail(future, result)
            else:
                resolve(future, result)
        self._give_room(len(batch))
