"""The wheel for asyncio: enqueue, read and fire without blocking the event loop, or a thread for each message.

One thread makes all writes. Messages that tasks enqueue at the same time are given to it as one batch (batching.py):
one frame, one flush, and one call back into the loop for all of them. Reads have a thread of their own, made at the
first read: a read of a large backlog takes long, and an enqueue must not wait for it.

When a task is cancelled, a message that still gathers is withdrawn; a message that the thread already has is enqueued,
and its id is dropped. The task cannot distinguish the two, so a retry may enqueue twice.
Invariant: no call does disk work in the thread of the event loop. Before each message `due` reads 16 bytes of a file
there, which are usually in memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from functools import partial, update_wrapper
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from filewheel.aio.batching import Batcher, check_put
from filewheel.aio.due import Due, DueKeeper, SharedKeeper
from filewheel.aio.keeper import AsyncKeeper
from filewheel.aio.thread import LoopThread, close_each
from filewheel.changes import CLEAR_AT_ONCE, Revived
from filewheel.checks import check_flag, check_function, check_items, check_path, check_whole
from filewheel.disk.begun import CancelledIds
from filewheel.disk.disk import SYSTEM
from filewheel.env import Clock, Env, check_env
from filewheel.errors import BadArgument, Closed
from filewheel.firing.ready import READY_BUDGET
from filewheel.format.ids import Ids
from filewheel.format.settings import PAYLOAD_BYTES_MAX_DEFAULT, SLOTS_DEFAULT, Sync, check_limits, check_sync
from filewheel.journal.columns import At, Delay, Headers
from filewheel.laps.window import Budget
from filewheel.message import Message, MessageId
from filewheel.reader import one_or_many
from filewheel.runs.kills import POLL_S, TIMEOUT_S, Killed
from filewheel.runs.run import Then
from filewheel.schedules.plain import PlainSchedule
from filewheel.wheel import OnConflict, Wheel

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

WAITING_MAX = 16_384
_LIST_AT_ONCE = 256


def _writes(
    method: Callable[Concatenate[Wheel, P], T],
) -> Callable[Concatenate[AsyncWheel, P], Coroutine[Any, Any, T]]:
    """Return a method that calls the Wheel's in the thread that writes. It has the same options and docstring."""

    async def call(self: AsyncWheel, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._write(lambda wheel: method(wheel, *args, **options))

    return _named_like(method, call)


def _reads(
    method: Callable[Concatenate[Wheel, P], T],
) -> Callable[Concatenate[AsyncWheel, P], Coroutine[Any, Any, T]]:
    """Return a method that calls the Wheel's in the thread that reads."""

    async def call(self: AsyncWheel, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._read(lambda wheel: method(wheel, *args, **options))

    return _named_like(method, call)


def _adopted(wheel: Wheel) -> Wheel:
    wheel._check()
    return wheel


def _aside(
    method: Callable[Concatenate[Wheel, P], T],
) -> Callable[Concatenate[AsyncWheel, P], Coroutine[Any, Any, T]]:
    """Return a method that calls the Wheel's in a thread of its own: it may take long. Cancelled, it ends first."""

    async def call(self: AsyncWheel, /, *args: P.args, **options: P.kwargs) -> T:
        wheel, _ = self._open()
        thread = LoopThread("filewheel-aio-aside", self._path)
        try:
            return await thread.call(lambda: method(wheel, *args, **options))
        finally:
            await thread.finish(lambda: None)

    return _named_like(method, call)


def _named_like(method: Callable[..., object], call: F) -> F:
    update_wrapper(call, method).__qualname__ = f"AsyncWheel.{method.__name__}"
    return call


class AsyncWheel:
    """A wheel to use from an event loop: the one that opened it. Any number of tasks, and of processes, at once.

    Use it in an `async with`, or call `open` and `close`. `waiting_max` bounds the messages that gather or are being
    written; further enqueues wait for room. The other options are Wheel's, for a path. An open Wheel has its own:
    `AsyncWheel(wheel)` uses it, and closes it in the end.
    """

    _wheel: Wheel | None = None
    _writer: LoopThread | None = None

    def __init__(
        self,
        wheel: Wheel | str | os.PathLike[str],
        *,
        sync: Sync | None = None,
        force: bool = False,
        waiting_max: int = WAITING_MAX,
        on_flush: Callable[[int], None] | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        """Prepare an open wheel, or the one at a path, without touching the disk. Raises BadArgument.

        `on_flush` is called with the microseconds of each flush, in the thread that writes. It must not raise.
        """
        check_whole("waiting_max", waiting_max)
        check_flag("force", force)
        if sync is not None:
            check_sync(sync)
        env = check_env(env).using(clock=clock)
        self._make: Callable[[], Wheel]
        if isinstance(wheel, Wheel):
            if sync is not None or force or on_flush is not None or env != SYSTEM:
                raise BadArgument("an open wheel has its options already", hint="AsyncWheel(Wheel(path, sync=...))")
            self._path, self._make, force, env = wheel.path, partial(_adopted, wheel), wheel._force, wheel._dir.env
        else:
            self._path = check_path(wheel)
            if on_flush is not None:
                check_function("on_flush", on_flush)
            self._make = partial(Wheel, self._path, sync=sync, force=force, on_flush=on_flush, env=env)
        self._clock = env.clock
        self._make_keeper = partial(AsyncKeeper, self._path, force=force, env=env)
        self._life = asyncio.Lock()
        self._reader: LoopThread | None = None
        self._keepers: list[AsyncKeeper] = []
        """Keepers that may be open; at most one is."""
        self._shared = SharedKeeper()
        self._lists: set[Iterator[Message]] = set()
        self._waiting_max = waiting_max
        self._batcher: Batcher | None = None
        """Set while the wheel is open."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        slots: int = SLOTS_DEFAULT,
        sync: Sync = "always",
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        exist_ok: bool = False,
        force: bool = False,
        waiting_max: int = WAITING_MAX,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> Self:
        """Prepare a wheel that is made at `path` when it is opened; the options are those of Wheel.create.

        Opening raises WheelExists when the path exists, unless it is a wheel and `exist_ok`.
        """
        check_sync(sync)
        check_limits(slots, payload_bytes_max)
        check_flag("exist_ok", exist_ok)
        env = check_env(env).using(clock=clock)
        self = cls(path, force=force, waiting_max=waiting_max, env=env)
        self._make = partial(
            Wheel.create,
            self._path,
            slots=slots,
            sync=sync,
            payload_bytes_max=payload_bytes_max,
            exist_ok=exist_ok,
            force=force,
            env=env,
        )
        return self

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        sync: Sync | None = None,
        slots: int = SLOTS_DEFAULT,
        payload_bytes_max: int = PAYLOAD_BYTES_MAX_DEFAULT,
        force: bool = False,
        waiting_max: int = WAITING_MAX,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> Self:
        """Prepare the wheel at `path`; if it is missing, opening makes it (see Wheel.open_or_create)."""
        check_limits(slots, payload_bytes_max)
        env = check_env(env).using(clock=clock)
        self = cls(path, sync=sync, force=force, waiting_max=waiting_max, env=env)
        self._make = partial(
            Wheel.open_or_create,
            self._path,
            sync=sync,
            slots=slots,
            payload_bytes_max=payload_bytes_max,
            force=force,
            env=env,
        )
        return self

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncWheel {self._path}{'' if self._wheel is not None else ' (not open)'}>"

    def __del__(self) -> None:
        writer, wheel = self._writer, self._wheel
        if writer is not None and wheel is not None and writer.is_running:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
            if self._reader is not None:
                self._reader.abandon(lambda: None)
            writer.abandon(wheel.close)

    @property
    def path(self) -> str:
        """The directory."""
        return self._path

    @property
    def payload_bytes_max(self) -> int:
        """How large a payload may be; Closed before the wheel is open."""
        return self._open()[0].payload_bytes_max

    @property
    def is_new(self) -> bool:
        """Whether opening it made the wheel; Closed before it is open."""
        return self._open()[0].is_new

    async def open(self) -> Self:
        """Open the wheel in its thread; does nothing when it is open. A cancelled open leaves nothing open.

        Raises the errors of Wheel; Closed after `close`.
        """
        async with self._life:
            if self._writer is None:
                writer = LoopThread("filewheel-aio", self._path)
                made: list[Wheel] = []
                try:
                    await writer.call(lambda: made.append(self._make()))
                except BaseException:
                    await writer.finish(partial(close_each, made))
                    raise
                self._wheel, self._writer = made[0], writer
                self._batcher = Batcher(made[0], writer, self._waiting_max)
        self._open()
        return self

    async def close(self) -> None:
        """Write the gathered messages, flush, and end the threads and the keeper. It may be called twice.

        Returns when no thread is left, even if it is cancelled. Tasks that wait for room get Closed.
        """
        async with self._life:
            writer, wheel = self._writer, self._wheel
            if writer is None or wheel is None or not writer.is_running:
                return
            try:
                for keeper in self._keepers:
                    await keeper.close()
            finally:
                try:
                    if self._reader is not None:
                        await self._reader.finish(self._close_lists)
                finally:
                    if self._batcher is not None:
                        self._batcher.end()
                    await writer.finish(wheel.close)

    @property
    def _is_finished(self) -> bool:
        """Whether each further write raises: it was closed, or a flush failed."""
        return self._wheel is not None and self._wheel._is_finished

    def _open(self) -> tuple[Wheel, LoopThread]:
        """Return the wheel and the thread that writes."""
        wheel, writer = self._wheel, self._writer
        if wheel is None or writer is None:
            raise Closed("this wheel is not open", path=self._path, hint="async with AsyncWheel(...) as wheel")
        writer.check()
        return wheel, writer

    async def _write(self, function: Callable[[Wheel], T]) -> T:
        """Have the thread that writes call a function with the wheel."""
        wheel, writer = self._open()
        return await writer.call(partial(function, wheel))

    async def _read(self, function: Callable[[Wheel], T]) -> T:
        """Have the thread that reads call a function with the wheel."""
        wheel, _ = self._open()
        if self._reader is None:
            self._reader = LoopThread("filewheel-aio-read", self._path)
        return await self._reader.call(partial(function, wheel))

    flush = _writes(Wheel.flush)

    # -- enqueue ---------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        payload: bytes,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        topic: str = "",
        headers: Headers = None,
        sync: Sync | None = None,
        key: str | None = None,
        on_conflict: OnConflict = "reject",
    ) -> MessageId:
        """Enqueue one message and return its id (see Wheel.enqueue); its delay counts from the call.

        Tasks that enqueue at the same time share one commit. A wrong argument raises at once, and fails no other
        message. Without room the task waits in line. A cancellation withdraws a message that still gathers; a message
        that the thread already has is enqueued. Messages with a unique key share an index look-up and one more flush.

        Raises BadArgument, TooLarge, WheelFull, ReadOnly, Unsafe, Poisoned, Closed; with a key also KeyHeld, Locked.
        """
        wheel, _ = self._open()
        gathering = self._batcher
        assert gathering is not None
        put = check_put(wheel, payload, delay, at, topic, headers, sync, key, on_conflict)
        return await gathering.put(put)

    async def enqueue_many(
        self,
        payloads: Iterable[bytes],
        *,
        delay: Delay | Sequence[Delay] | None = None,
        at: At | Sequence[At] | None = None,
        topic: str | Sequence[str] = "",
        headers: Headers | Sequence[Headers] = None,
        sync: Sync | None = None,
        keys: Sequence[str | None] | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Ids:
        """Enqueue many messages as one commit and return their ids, in order (see Wheel.enqueue_many)."""
        bodies = list(check_items("payloads", payloads))
        put = partial(Wheel.enqueue_many, payloads=bodies, delay=delay, at=at, topic=topic, headers=headers)
        return await self._write(lambda w: put(w, sync=sync, keys=keys, on_conflict=on_conflict))

    # -- cancel and reschedule -------------------------------------------------------------------------------

    cancel = _writes(Wheel.cancel)
    reschedule = _writes(Wheel.reschedule)
    update = _writes(Wheel.update)
    pause = _writes(Wheel.pause)
    resume = _writes(Wheel.resume)

    schedule = _writes(Wheel.schedule)
    edit_schedule = _writes(Wheel.edit_schedule)
    unschedule = _writes(Wheel.unschedule)

    async def schedule_many(
        self, schedules: Iterable[PlainSchedule], *, sync: Sync | None = None
    ) -> Sequence[MessageId]:
        """Start schedules, all of them in one commit or none (see Wheel.schedule_many)."""
        plans = [*check_items("schedules", schedules)]
        return await self._write(lambda w: w.schedule_many(plans, sync=sync))

    async def revive(
        self,
        ids: Iterable[MessageId | str | bytes] | MessageId | str | bytes,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        sync: Sync | None = None,
    ) -> Revived:
        """Move dead letters, or one, back among the pending messages (see Wheel.revive)."""
        wanted = list(one_or_many(ids))
        return await self._write(lambda w: w.revive(wanted, delay=delay, at=at, sync=sync))

    async def cancel_many(
        self, ids: Iterable[MessageId | str | bytes] = (), *, keys: Iterable[str] = (), sync: Sync | None = None
    ) -> CancelledIds:
        """Cancel messages, by ids or unique keys, in one commit; return those that were pending (see Wheel)."""
        wanted, names = list(check_items("ids", ids)), list(check_items("keys", keys))
        return await self._write(lambda w: w.cancel_many(wanted, keys=names, sync=sync))

    async def clear(self, *, topic: str | None = None, dead: bool = False, sync: Sync | None = None) -> int:
        """Cancel all pending messages, those of a topic (or glob), or all dead letters; return how many.

        Other calls may run in between (see Wheel.clear).
        """
        sync = None if sync is None else check_sync(sync)
        count = 0
        async with contextlib.aclosing(self.list(topic=topic, dead=dead)) as found:
            some: list[MessageId] = []
            async for message in found:
                some.append(message.id)
                if len(some) == CLEAR_AT_ONCE:
                    count += len(await self.cancel_many(some, sync=sync))
                    some = []
            if some:
                count += len(await self.cancel_many(some, sync=sync))
        return count

    # -- look ------------------------------------------------------------------------------------------------

    purge = _aside(Wheel.purge)
    get = _reads(Wheel.get)
    peek = _reads(Wheel.peek)
    next_due = _reads(Wheel.next_due)
    stats = _reads(Wheel.stats)
    running = _reads(Wheel.running)
    history = _reads(Wheel.history)
    schedules = _reads(Wheel.schedules)
    overdue = _reads(Wheel.overdue)
    paused = _reads(Wheel.paused)
    is_drained = _reads(Wheel.is_drained)

    async def kill(
        self,
        id_: MessageId | str | bytes | None = None,
        *,
        key: str | None = None,
        then: Then = "cancel",
        timeout_s: float = TIMEOUT_S,
    ) -> Killed:
        """End the attempt of a message that runs now (see Wheel.kill). A cancelled task withdraws the request."""
        asked = await self._read(lambda wheel: wheel._ask_kill(id_, key, then, timeout_s))
        try:
            async with asyncio.timeout(timeout_s):
                while (answer := await self._read(lambda _: asked.look())) is None:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return Killed.TIMED_OUT
        finally:
            if self._reader is not None:
                self._reader.post(asked.close)
        return answer

    async def list(
        self,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Yield pending messages in firing order (see Wheel.list), read in chunks of a few hundred."""
        begin = partial(Wheel.list, after=after, before=before, topic=topic, limit=limit, dead=dead)
        async with contextlib.aclosing(self._read_each(begin)) as found:
            async for message in found:
                yield message

    async def dead(
        self,
        *,
        after: At | None = None,
        before: At | None = None,
        topic: str | None = None,
        error: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Yield dead letters (see Wheel.dead), read in chunks of a few hundred."""
        begin = partial(Wheel.dead, after=after, before=before, topic=topic, error=error, limit=limit)
        async with contextlib.aclosing(self._read_each(begin)) as found:
            async for message in found:
                yield message

    async def _read_each(self, begin: Callable[[Wheel], Iterator[Message]]) -> AsyncGenerator[Message, None]:
        begun: list[Iterator[Message]] = []  # opened and closed in the thread that reads

        def read(wheel: Wheel) -> Sequence[Message]:
            if not begun:
                begun.append(begin(wheel))
                self._lists.add(begun[0])
            return [*islice(begun[0], _LIST_AT_ONCE)]

        try:
            while chunk := await self._read(read):
                for message in chunk:
                    yield message
        finally:
            if self._reader is not None:
                self._reader.post(lambda: self._close_lists(*begun) if begun else None)

    def _close_lists(self, *lists: Iterator[Message]) -> None:
        """In the thread that reads: close the files of these lists, or of all."""
        for found in lists or tuple(self._lists):
            self._lists.discard(found)
            if isinstance(found, Generator):  # not one from memory
                found.close()

    # -- fire ------------------------------------------------------------------------------------------------

    def keeper(
        self,
        *,
        wait: bool = True,
        on_jump: str = "fire",
        flush_interval_s: float = 0.02,
        keep_dead_s: float | None = None,
        budget: Budget = READY_BUDGET,
        history: int | None = None,
    ) -> AsyncKeeper:
        """Prepare this wheel's keeper: `async with wheel.keeper() as keeper`. Closing the wheel closes it too.

        Raises BadArgument when it is open already.
        """
        self._open()
        if any(k.is_used for k in self._keepers):
            raise BadArgument("this wheel's keeper is open already", hint="use that one, or close it first")
        keeper = self._make_keeper(
            wait=wait,
            on_jump=on_jump,
            flush_interval_s=flush_interval_s,
            keep_dead_s=keep_dead_s,
            budget=budget,
            history=history,
        )
        self._keepers = [*(k for k in self._keepers if not k.is_closed), keeper]
        return keeper

    def due(self, limit: int = 100, *, wait: bool = True) -> Due:
        """Iterate over messages as they become due: `async for message in wheel.due()`.

        Asking for the next one acknowledges the previous one; when the body raises or breaks, the present one is put
        back (see Due). It opens the wheel's keeper if needed, as a standby if another process is the keeper. The keeper
        is closed when the last such iteration is closed (`async with wheel.due() as due`), or with the wheel. Up to
        `limit` messages are claimed at once. Without `wait` it ends when nothing is due now. Several tasks may iterate
        at once; each message goes to one of them.

        Raises Locked, without `wait`, when another process is the keeper.
        """
        return Due(partial(self._begin_due, wait), limit, wait, self._shared.end, clock=self._clock)

    async def _begin_due(self, wait: bool, due: Due) -> DueKeeper:
        self._open()
        return await self._shared.begin(due, lambda: self._keepers, self.keeper, wait=wait)
