"""The keeper for asyncio: claims, acknowledges and waits without blocking the event loop.

It has two threads, for any number of messages and tasks: one makes the calls (open, acknowledge, put back, close), one
sleeps in `Keeper.wait` when nothing is due, so that no call waits behind it. A standby's thread sleeps until the
keeper's process ends, not on the lock, because a cancellation could not wake it there.
Invariant: a message that was claimed for a cancelled task is given to the next one, and is not acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial, update_wrapper
from itertools import islice
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from filewheel.aio.due import Due
from filewheel.aio.thread import LoopThread, close_each
from filewheel.checks import check_bounds, check_first, check_flag, check_items, check_keeper, check_path, check_whole
from filewheel.disk.disk import SYSTEM
from filewheel.disk.hint import UNHEARD_S, StandbySleep
from filewheel.env import SYSTEM_CLOCK, Clock, Env, check_env
from filewheel.errors import BadArgument, Closed, FilewheelError, Locked, NotClaimed
from filewheel.firing.batch import Batch, ids_in
from filewheel.firing.ready import READY_BUDGET
from filewheel.format.settings import Sync
from filewheel.journal.columns import At
from filewheel.keeper import Keeper
from filewheel.laps.window import Budget, check_budget
from filewheel.message import US_PER_S, Message
from filewheel.timespec import bound_us

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_TOGETHER_US = 1000
_TOGETHER_MAX = 32


def _derived(
    method: Callable[Concatenate[Keeper, P], T], *, wakes: bool = False
) -> Callable[Concatenate[AsyncKeeper, P], Coroutine[Any, Any, T]]:
    """Return a method that makes the Keeper's call in a thread. It has the same options and docstring.

    One that `wakes` ends the sleep of a claim: that may wait until a later message is due.
    """

    async def call(self: AsyncKeeper, /, *args: P.args, **options: P.kwargs) -> T:
        keeper, calls, _ = self._opened()

        def made() -> T:
            result = method(keeper, *args, **options)
            if wakes:
                keeper.wake()
            return result

        return await calls.call(made)

    update_wrapper(call, method).__qualname__ = f"AsyncKeeper.{method.__name__}"
    return call


def _adopted(keeper: Keeper) -> Keeper:
    keeper._check()
    return keeper


class _Wish:
    """Whether the task of a claim was cancelled. Set in the loop, read in the thread."""

    __slots__ = ("withdrawn",)

    def __init__(self) -> None:
        self.withdrawn = False


class AsyncKeeper:
    """Fires a wheel's messages in an event loop. Belongs to the loop that opened it.

    Use it in an `async with`, or call `open` and `close`. Options are Keeper's, for a path; an open Keeper has its own:
    `AsyncKeeper(keeper)` uses it, and closes it in the end. Opening waits for the present keeper to
    end, and can be cancelled; with `wait=False` it raises Locked instead. As with Keeper, do not acknowledge calls of a
    Scheduler's handlers: the call is lost, and its schedule ends.
    """

    _keeper: Keeper | None = None
    _calls: LoopThread | None = None
    _waits: LoopThread | None = None
    _sleep: StandbySleep | None = None
    _closing = False

    def __init__(
        self,
        keeper: Keeper | str | os.PathLike[str],
        *,
        wait: bool = True,
        on_jump: str = "fire",
        force: bool = False,
        flush_interval_s: float = 0.02,
        keep_dead_s: float | None = None,
        budget: Budget = READY_BUDGET,
        history: int | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        """Prepare an open keeper, or one of the wheel at a path, without touching the disk. Raises BadArgument."""
        own: dict[str, Any] = {"on_jump": on_jump, "force": force, "flush_interval_s": flush_interval_s}
        own |= {"keep_dead_s": keep_dead_s, "history": history}
        check_keeper(wait=wait, **own)
        check_budget(budget)
        env = check_env(env).using(clock=clock)
        self._make: Callable[[], Keeper]
        if isinstance(keeper, Keeper):
            defaults = AsyncKeeper.__init__.__kwdefaults__ or {}
            if any(given != defaults[name] for name, given in (own | {"budget": budget, "env": env}).items()):
                raise BadArgument("an open keeper has its options already", hint="AsyncKeeper(Keeper(path, ...))")
            env = keeper.directory.env
            self._path, self._make = keeper.directory.path, partial(_adopted, keeper)
        else:
            self._path = check_path(keeper)
            self._make = partial(Keeper, self._path, wait=False, budget=budget, env=env, **own)
        self._env = env
        self._wait = wait
        self._life = asyncio.Lock()
        self._refill = asyncio.Lock()
        self._ready: deque[Message] = deque()
        """Claimed for iterations, and not handed out yet."""
        self._begun = 0
        """How many of these, from the first, have begun."""
        self._began_us = 0
        self._together = 1
        """How many begin together."""
        self._is_timed = False
        """Whether `_look_at_begun` is scheduled."""
        self._done: deque[bytes] = deque()
        """Ids that the thread has to acknowledge."""
        self._failure: FilewheelError | None = None
        """The error of an acknowledgement that no task waited for."""

    # -- life ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncKeeper {self._path}{'' if self.is_open else ' (not open)'}>"

    def __del__(self) -> None:
        calls, waits, keeper = self._calls, self._waits, self._keeper
        if calls is None or waits is None or keeper is None or self._closing:
            return
        if keeper.pid == os.getpid():
            warnings.warn(f"unclosed {self!r}", ResourceWarning, source=self, stacklevel=1)
            waits.abandon(lambda: None)
            calls.abandon(keeper.close)

    @property
    def is_open(self) -> bool:
        """Whether this is the keeper now."""
        return self._keeper is not None and not self._closing

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; it cannot be opened again."""
        return self._closing

    @property
    def is_used(self) -> bool:
        """Whether this is the keeper, or is about to become it."""
        return (self._keeper is not None or self._life.locked()) and not self._closing

    async def open(self, *, wait: bool | None = None) -> Self:
        """Become the keeper, once the present one has ended; does nothing when it is open.

        A cancelled open leaves nothing open. Cost: as opening a Keeper, in a thread. `wait` overrides the option.

        Raises the errors of Keeper; Locked without `wait`; Closed after `close`.
        """
        async with self._life:
            if self._keeper is None and not self._closing:
                await self._become(self._wait if wait is None else wait)
        self._opened()
        return self

    async def _become(self, wait: bool) -> None:
        """Try until this is the keeper, or is closed."""
        sleep = self._sleep = StandbySleep(self._path, self._env)
        calls = LoopThread("filewheel-aio-keeper", self._path)
        made: list[Keeper] = []

        def attempt() -> Locked | None:
            try:
                made.append(self._make())
            except Locked as exc:
                return exc.with_traceback(None)  # the traceback would keep the attempt's open files
            return None

        try:
            while not self._closing and (locked := await calls.call(attempt)) is not None:
                if not wait:
                    raise locked
                try:
                    await calls.call(sleep.wait)
                except OSError:  # no room for an open file
                    await asyncio.sleep(UNHEARD_S)
            waits = LoopThread("filewheel-aio-due", self._path) if made else None
        except BaseException:
            # Cancelled, perhaps while the thread was opening the keeper, or asleep.
            sleep.end()
            await calls.finish(partial(close_each, made))
            raise
        if waits is None:
            await calls.finish(lambda: None)
        else:
            self._keeper, self._calls, self._waits = made[0], calls, waits

    async def close(self) -> None:
        """Flush, deal, and free the lock. The next keeper offers claimed messages that were not acknowledged.

        Returns when both threads have ended, even if it is cancelled. It may be called twice.
        """
        self._closing = True  # ends a standby, and a claim that waits
        if self._sleep is not None:
            self._sleep.end()
        if self._keeper is not None and os.getpid() != self._keeper.pid:
            return
        async with self._life:
            calls, waits, keeper = self._calls, self._waits, self._keeper
            if calls is None or waits is None or keeper is None:
                return
            calls.post(keeper.wake)
            try:
                # First, because it reads the pipe that `Keeper.close` closes.
                await waits.finish(lambda: None)
            finally:
                await calls.finish(keeper.close)

    def _opened(self) -> tuple[Keeper, LoopThread, LoopThread]:
        """Return the keeper, the thread for calls and the one that waits."""
        calls, waits, keeper = self._calls, self._waits, self._keeper
        if calls is None or waits is None or keeper is None or self._closing:
            if calls is not None:
                calls.check()  # raises the better error in another loop or process
            raise Closed(
                "this keeper is not open", path=self._path, hint="async with ... as keeper, or await keeper.open()"
            )
        calls.check()
        return keeper, calls, waits

    # -- claim -----------------------------------------------------------------------------------------------

    async def claim(
        self,
        limit: int = 1000,
        *,
        wait: bool = False,
        until: At | None = None,
        at_most: Mapping[str, int] | None = None,
        first: Sequence[str] = (),
        begun: bool = True,
    ) -> Batch:
        """Claim up to `limit` messages that are due, in order; an empty batch when none is (see Keeper.claim).

        With `wait` it waits until a message is due. With `until` it waits no longer than that, and claims only messages
        that are due by then. Each stays claimed until it is acknowledged, put back or buried. When the task is
        cancelled, its messages are offered to the next `claim`. Cost: Keeper.claim's, and two changes of thread.

        Raises Closed when the keeper is closed during the call.
        """
        keeper, calls, waits = self._opened()
        check_whole("limit", limit)
        check_flag("wait", wait)
        if until is not None:
            bound_us("until", until)
        check_bounds(at_most)
        check_first(first)
        wish = _Wish()
        claim = partial(keeper.claim, limit, until=until, at_most=at_most, first=first, begun=begun)
        future = (waits if wait else calls).call(partial(self._claim, keeper, claim, wait, until, wish))
        try:
            batch = await asyncio.shield(future)
        except asyncio.CancelledError:
            wish.withdrawn = True
            future.add_done_callback(self._take_back)
            raise
        if batch is None:
            raise Closed("this keeper was closed", path=self._path, hint="open another AsyncKeeper")
        return batch

    def _claim(
        self, keeper: Keeper, claim: Callable[[], Batch], wait: bool, until: At | None, wish: _Wish
    ) -> Batch | None:
        """In a thread: claim, and wait for due messages; None when the task was cancelled or the keeper closes."""
        until_us = None if until is None else bound_us("until", until)
        while not (wish.withdrawn or self._closing):
            self._raise_failure()
            left_s = None if until_us is None else (until_us - keeper.now_us()) / US_PER_S
            batch = claim()
            for _ in batch:  # a damaged record is quarantined on disk: here, not in the event loop
                pass
            if batch or not wait or (left_s is not None and left_s <= 0):
                return batch
            keeper.check_drained()
            keeper.wait(left_s)
        return None

    def _take_back(self, claimed: asyncio.Future[Batch | None]) -> None:
        """Give back the messages of a cancelled task, which wakes a claim that waits."""
        batch = None if claimed.cancelled() or claimed.exception() is not None else claimed.result()
        if batch and self._calls is not None and self._keeper is not None:
            self._calls.post(partial(_give_back, self._keeper, batch))

    def due(self, limit: int = 100, *, wait: bool = True) -> Due:
        """Iterate over messages as they become due; asking for the next one acknowledges the previous one (see Due).

        Up to `limit` are claimed at once. Several tasks may iterate: each message goes to one of them.
        """
        return Due(lambda _: self.open(), limit, wait, clock=self._env.clock)

    async def next_message(self, limit: int, *, wait: bool) -> Message | None:
        """Return the next message for an iteration; None when the keeper is closed, or without `wait` at the end."""
        while True:
            self._raise_failure()
            if self._ready and not self._closing:
                if self._next_begins():
                    return self._ready.popleft()
                message = self._ready.popleft()
                if await self._begins(message):
                    return message
                continue
            # One task claims for all iterations; when it is cancelled, the next one takes over.
            async with self._refill if wait else contextlib.nullcontext():
                if self._ready and not self._closing:
                    continue
                try:
                    batch = await self.claim(limit, wait=wait, begun=False)
                except Closed:
                    return None
                self._ready.extend(batch)
                if not self._ready:
                    return None

    async def begin(self, what: Batch | Message | bytes | Iterable[Message | bytes]) -> set[bytes]:
        """Begin the work on claimed messages; return those that must not begin (see Keeper.begin)."""
        keeper, calls, _ = self._opened()
        what = what if isinstance(what, (Batch, Message, bytes)) else list(check_items("messages", what))
        return await calls.call(partial(keeper.begin, what))

    def _next_begins(self) -> bool:
        """Return whether the next message begins, if that can be decided in memory.

        Messages requested within a millisecond begin together: a begin for each would halve the rate.
        """
        keeper, _, _ = self._opened()
        is_soon = self._begun_for_us() < _TOGETHER_US
        if self._begun and not is_soon:
            self._unbegin(keeper)
        if not self._begun:
            self._together = min(2 * self._together, _TOGETHER_MAX) if is_soon else 1
            ids = [m.id for m in islice(self._ready, self._together)]
            if not keeper.may_begin(*ids):
                self._together = 1
                return False
            self._begun, self._began_us = len(ids), SYSTEM_CLOCK.steady_us()
            if len(ids) > 1 and not self._is_timed:
                self._is_timed = True
                asyncio.get_running_loop().call_later(_TOGETHER_US / US_PER_S, self._look_at_begun, keeper)
        self._begun -= 1
        return True

    def _begun_for_us(self) -> int:
        """Return how long ago the last begin was."""
        return SYSTEM_CLOCK.steady_us() - self._began_us

    def _look_at_begun(self, keeper: Keeper) -> None:
        """Undo the begin of messages that still wait after a millisecond: the loop's body is slow."""
        left_us = _TOGETHER_US - self._begun_for_us()
        self._is_timed = self._begun > 0 and left_us > 0
        if self._is_timed:
            asyncio.get_running_loop().call_later(left_us / US_PER_S, self._look_at_begun, keeper)
        elif self._begun:
            self._unbegin(keeper)

    def _unbegin(self, keeper: Keeper) -> None:
        keeper.unbegin(*(m.id for m in islice(self._ready, self._begun)))
        self._begun = 0

    async def _begins(self, message: Message) -> bool:
        """Return whether a message may be handed out. If the task is cancelled, the next task gets the message."""
        keeper, calls, _ = self._opened()

        def put_back(asked: asyncio.Future[set[bytes]]) -> None:
            if asked.exception() is None and not asked.result():
                calls.post(partial(_give_back, keeper, message))

        future = calls.call(partial(keeper.begin, message))
        try:
            return not await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(put_back)
            raise
        except NotClaimed:  # another task has put it back or buried it
            return False

    # -- settle ----------------------------------------------------------------------------------------------

    async def ack(self, what: Batch | Message | bytes | Iterable[Message | bytes], *, sync: Sync = "never") -> int:
        """Acknowledge a batch, a message or its id, or several; return how many (see Keeper.ack)."""
        keeper, calls, _ = self._opened()
        what = what if isinstance(what, Batch) else ids_in(what)
        return await calls.call(partial(keeper.ack, what, sync=sync))

    settle = _derived(Keeper.settle, wakes=True)
    nack = _derived(Keeper.nack, wakes=True)
    bury = _derived(Keeper.bury)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def ack_soon(self, message: Message) -> None:
        """Acknowledge a message without waiting for it; the next request for a message raises an error.

        A message that was put back or buried stays so.
        """
        _, calls, _ = self._opened()
        self._done.append(message.id)
        if len(self._done) == 1:  # else the thread was called already, and takes this one too
            calls.post(self._ack_done)

    def _ack_done(self) -> None:
        """In the thread: acknowledge all messages in `_done`."""
        keeper = self._keeper
        ids: list[bytes] = []
        with contextlib.suppress(IndexError):
            while True:
                ids.append(self._done.popleft())
        if keeper is None or not ids:
            return
        try:
            try:
                keeper.ack(ids)
            except NotClaimed:
                for id_ in ids:
                    with contextlib.suppress(NotClaimed):
                        keeper.ack(id_)
        except FilewheelError as exc:
            # They stay claimed, and the next keeper offers them again. A task that waits for a message raises this.
            log.error("%s: %d messages were not acknowledged: %s", self._path, len(ids), exc)
            self._failure = exc
            keeper.wake()
            return
        try:
            # mutant: claimed-handed-out
            keeper.check_may_fire()  # after a promotion, claimed messages must not be handed out
        except FilewheelError as exc:
            self._failure = exc

    def give_back(self, message: Message) -> None:
        """Put back an unhandled message. From any thread; does nothing when the keeper is closed."""
        keeper, calls = self._keeper, self._calls
        if keeper is not None and calls is not None:
            calls.post(partial(_nack_quietly, keeper, message))


def _give_back(keeper: Keeper, what: Batch | Message) -> None:
    with contextlib.suppress(NotClaimed, Closed):
        keeper.give_back(what)


def _nack_quietly(keeper: Keeper, message: Message) -> None:
    with contextlib.suppress(NotClaimed, Closed):
        keeper.nack(message)
        keeper.wake()
