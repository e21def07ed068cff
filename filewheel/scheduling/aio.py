"""The scheduler for asyncio: handlers run in the caller's event loop, and enqueueing is awaited.

It has a Scheduler, which declares and fires in its own thread, and an AsyncWheel, which enqueues. Coroutine functions
run as tasks of the loop that started it, and all disk work happens in other threads. Code that cannot await (plain
functions in threads, scripts) uses the Scheduler, `blocking`.
Invariant: no call touches the disk in the thread of the event loop, except the hint that wakes the engine: one byte
into a pipe that never blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import Context
from functools import partial, update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from filewheel.aio.thread import LoopThread, call_soon, to_the_end
from filewheel.aio.wheel import WAITING_MAX, AsyncWheel
from filewheel.checks import AWAIT, check_done, check_function, check_number, check_whole, returned_by
from filewheel.disk.begun import Cancelled
from filewheel.disk.disk import SYSTEM
from filewheel.env import Clock, Env, check_env
from filewheel.errors import BadArgument, Closed, FilewheelError
from filewheel.format.ids import Ids
from filewheel.format.settings import Sync
from filewheel.message import Message, MessageId
from filewheel.metrics.metrics import Metrics
from filewheel.reader import given, one_of
from filewheel.runs.history import KEPT
from filewheel.schedules.definition import When
from filewheel.scheduling import bulk
from filewheel.scheduling.arguments import Decode
from filewheel.scheduling.call import new_call, transaction_of
from filewheel.scheduling.definitions import H, HandlerOptions, ScheduleOptions, check_known, shows
from filewheel.scheduling.engine import Engine, State
from filewheel.scheduling.events import Callback, Event
from filewheel.scheduling.handler import AsyncHandler, P, R, Sender, Soon
from filewheel.scheduling.job import Job, Transaction, present_job
from filewheel.scheduling.life import STOP_S
from filewheel.scheduling.options import At, CallOptions, Delay
from filewheel.scheduling.results import FIRST_WAIT_S, LAST_WAIT_S, ResultLook, value_of
from filewheel.scheduling.runners.pool import Recycle
from filewheel.scheduling.scheduler import Named, Scheduler, is_job, topic_of
from filewheel.values import Encode

T = TypeVar("T")
Q = ParamSpec("Q")

_LOOK_S = 0.5


def _aside(
    method: Callable[Concatenate[Scheduler, Q], T],
) -> Callable[Concatenate[AsyncScheduler, Q], Coroutine[Any, Any, T]]:
    """Return a method that calls the Scheduler's in another thread."""

    async def call(self: AsyncScheduler, /, *args: Q.args, **options: Q.kwargs) -> T:
        return await self._aside(partial(method, self.blocking, *args, **options))

    return update_wrapper(call, method)


class AsyncScheduler(Sender[Soon]):
    """A Scheduler for one event loop: the loop that starts it, or that first enqueues.

    Use it in an `async with`, which fires in the background, or await `run`. `stop_s` is the time that running calls
    have to end when it stops; then they are cancelled, and offered again. `waiting_max` is AsyncWheel's; the other
    options are Scheduler's. Defining a scheduler opens nothing, and needs no loop.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int | Mapping[str, int] = 4,
        processes: int | Mapping[str, int] | None = None,
        in_flight: int = 1000,
        catch_up_per_s: float | None = None,
        unknown: str = "wait",
        sync: Sync | None = None,
        create: bool = True,
        on_jump: str = "fire",
        tracebacks: bool = True,
        keep_dead_s: float | None = None,
        history: int = KEPT,
        recycle: Recycle | None = None,
        encode: Encode | None = None,
        decode: Decode | None = None,
        stop_s: float = STOP_S,
        waiting_max: int = WAITING_MAX,
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        env = check_env(env).using(clock=clock)
        self.blocking = Scheduler(
            path,
            threads=threads,
            processes=processes,
            in_flight=in_flight,
            catch_up_per_s=catch_up_per_s,
            unknown=unknown,
            sync=sync,
            create=create,
            on_jump=on_jump,
            tracebacks=tracebacks,
            keep_dead_s=keep_dead_s,
            history=history,
            recycle=recycle,
            encode=encode,
            decode=decode,
            metrics=metrics,
            env=env,
        )
        """The scheduler for code that cannot await: handlers in threads and processes, scripts. It shares everything
        except the event loop; only the AsyncScheduler starts and stops it."""
        super().__init__(self.blocking._handlers, self.blocking.codec)
        self._telemetry = self.blocking._telemetry
        self._stop_s = check_number("stop_s", stop_s, least=0)
        check_whole("waiting_max", waiting_max)
        self._clock = env.clock
        path = self.blocking.path
        flushed = self._telemetry.flushed
        self._prepare = partial(AsyncWheel, path, sync=sync, waiting_max=waiting_max, on_flush=flushed, env=env)
        self._wheel: AsyncWheel | None = None
        self._opening = asyncio.Lock()
        self._home: tuple[asyncio.AbstractEventLoop, int] | None = None
        """The loop and the process that opened the wheel."""
        self._asked: asyncio.Event | None = None
        """Set to end `run`."""
        self._ends_drained = False
        """Whether the engine ends when the wheel is drained: `run` returns then."""
        self._telling: set[asyncio.Future[Any]] = set()
        """The tasks of subscribers, which asyncio itself does not keep."""
        self._ending: asyncio.Task[None] | None = None
        self._engine: Engine | None = None
        """The latest engine: a second stop or cancellation ends its grace time."""

    def __repr__(self) -> str:
        return f"<AsyncScheduler {self.path}>"

    @property
    def path(self) -> str:
        """The wheel's directory."""
        return self.blocking.path

    @property
    def wheel(self) -> AsyncWheel:
        """The wheel, to list, count and reschedule in this loop. Closed before the start or the first enqueue."""
        if self._wheel is None or self._home != (asyncio.get_running_loop(), os.getpid()):
            raise Closed("this scheduler is not open in this loop", path=self.path, hint="async with the scheduler")
        return self._wheel

    @property
    def state(self) -> State:
        """What this process does for the wheel (see Scheduler.state)."""
        return self.blocking.state

    def stalled_s(self) -> float:
        """Return for how many seconds the threads that fire have not come around (see Scheduler.stalled_s).

        The event loop does not count: a coroutine that blocks it is a handler that takes long.
        """
        return self.blocking.stalled_s()

    @property
    def metrics(self) -> Metrics:
        """Counters and histograms of this process."""
        return self.blocking.metrics

    # -- definitions -------------------------------------------------------------------------------------------

    @overload
    def on(
        self, name: str | None = None, *, batch: None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[P, R]], AsyncHandler[P, R]]: ...
    @overload
    def on(
        self, name: str | None = None, *, batch: int, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[list[Job]], R]], AsyncHandler[..., R]]: ...
    @shows(Scheduler.on)
    def on(
        self, name: str | None = None, *, batch: int | None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[..., AsyncHandler[..., Any]]:
        """Register a function, `async def` or plain, as the handler of a name (see Scheduler.on)."""
        check_known(self.on, options)
        register = self.blocking.on(name, batch=batch, **options)

        def decorate(function: Callable[..., Any]) -> AsyncHandler[..., Any]:
            known = function.blocking if isinstance(function, AsyncHandler) else function
            return AsyncHandler(register(known), self)

        return decorate

    def around(self, hook: H) -> H:
        """Surround each call with a hook (see Scheduler.around): an `async` one for coroutines, in their loop."""
        return self.blocking.around(hook)

    @shows(Scheduler.every)
    def every(self, when: When, **options: Unpack[ScheduleOptions]) -> Callable[[Callable[P, R]], AsyncHandler[P, R]]:
        """Call a function repeatedly: at an interval in seconds, or by a cron expression (see Scheduler.every)."""
        declare = self.blocking.every(when, **options)

        def decorate(function: Callable[P, R]) -> AsyncHandler[P, R]:
            handler = function if isinstance(function, AsyncHandler) else self.on()(function)
            declare(handler.blocking)
            return handler

        return decorate

    # -- enqueue -----------------------------------------------------------------------------------------------

    async def send(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> MessageId:
        """Enqueue a call, within the caller's open transaction if there is one."""
        call = new_call(name, args, kwargs, options, self.codec.encode, self._positional(name))
        wheel = await self._opened()
        self.blocking._opener.warn_if_made()
        transaction = transaction_of(self.path)
        if transaction is not None:
            return (await self._join(transaction, bulk.alone(call, delay, at)))[0]
        id_ = await wheel.enqueue(
            call.payload, delay=delay, at=at, topic=name, headers=call.headers, sync=options.sync, **call.unique
        )
        self._telemetry.enqueued(name, id_)
        return id_

    async def send_many(self, name: str, rows: Sequence[bulk.Row], options: CallOptions, columns: bulk.Columns) -> Ids:
        """Enqueue calls together, within the caller's open transaction if there is one."""
        calls = bulk.new_calls(name, rows, options, columns, self.codec.encode, self._positional(name))
        wheel = await self._opened()
        self.blocking._opener.warn_if_made()
        transaction = transaction_of(self.path)
        if transaction is not None:
            return await self._join(transaction, calls)
        ids = await wheel.enqueue_many(calls.payloads, sync=options.sync, **calls.arguments)
        self._telemetry.enqueued_all(name, ids)
        return ids

    async def _join(self, transaction: Transaction, calls: bulk.NewCalls) -> Ids:
        """Add calls to a transaction, which reports them when they are written; return their ids."""
        wheel = await self._opened()
        held = {key: await wheel.get(key=key) for key in calls.rejects}
        return calls.join(transaction, self._clock.now_us(), held, wheel.payload_bytes_max)

    schedule = _aside(Scheduler.schedule)
    schedules = _aside(Scheduler.schedules)
    pause = _aside(Scheduler.pause)
    resume = _aside(Scheduler.resume)
    unschedule = _aside(Scheduler.unschedule)
    cancel_all = _aside(Scheduler.cancel_all)
    prometheus = _aside(Scheduler.prometheus)

    async def _opened(self) -> AsyncWheel:
        """Return the wheel to enqueue into, opened at the first use, in another loop, and after a failed flush."""
        home = self._home
        if home is None or home[0].is_closed() or home[1] != os.getpid():
            self._home, self._wheel = (asyncio.get_running_loop(), os.getpid()), None
            self._opening = asyncio.Lock()
        if (wheel := self._wheel) is not None and not wheel._is_finished:
            return wheel
        async with self._opening:
            old = self._wheel
            if old is not None and not old._is_finished:
                return old
            await self._aside(self.blocking._opener.prepare)
            wheel = self._prepare()
            await wheel.open()
            self._wheel = wheel
            if old is not None:
                with contextlib.suppress(FilewheelError):  # a caller has got it
                    await old.close()
            return wheel

    async def _aside(self, function: Callable[[], T]) -> T:
        """Call a blocking function in a new thread. It runs to its end, also when the task is cancelled."""
        returned: list[T] = []
        await LoopThread("filewheel-aside", self.path).finish(lambda: returned.append(function()))
        return returned[0]

    # -- the jobs that wait (see Scheduler) --------------------------------------------------------------------

    async def list(
        self,
        handler: Named | None = None,
        *,
        after: At | None = None,
        before: At | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> AsyncGenerator[Message, None]:
        """Yield the jobs that wait, in due order (see Scheduler.list), read in chunks of a few hundred."""
        topic = topic_of(handler)
        if limit is not None:
            check_whole("limit", limit, least=0)
        wheel = await self._opened()
        left = sys.maxsize if limit is None else limit
        async with aclosing(wheel.list(after=after, before=before, topic=topic, dead=dead)) as found:
            while left and (message := await anext(found, None)) is not None:
                if is_job(message):
                    left -= 1
                    yield message

    async def get(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Message | None:
        """Return the job with this id or key, or None (see Scheduler.get)."""
        wheel = await self._opened()
        return await wheel.get(**given(id_, key))

    async def reschedule(
        self,
        id_: MessageId | str | None = None,
        *,
        key: str | None = None,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> MessageId:
        """Move a job, by its id or key, to another time; return its new id (see Scheduler.reschedule)."""
        wheel = await self._opened()
        return await wheel.reschedule(**given(id_, key), delay=delay, at=at)

    async def cancel(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Cancelled:
        """Cancel a call by its id or its key; return whether it was stopped in time, had begun, or was not found.

        The result is true when it was pending. A call that has begun continues, and is not retried.
        """
        wheel = await self._opened()
        done = await wheel.cancel(**given(id_, key))
        if done:
            self._telemetry.cancelled(one_of(id_, key), done)
        return done

    async def result(self, id_: MessageId | str, *, timeout_s: float = 0) -> Any:
        """Return what a call has returned; wait for it for `timeout_s` seconds (see Scheduler.result)."""
        look = ResultLook(id_)
        check_number("timeout_s", timeout_s, least=0, most=1e9)
        wheel = await self._opened()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        pause_s = FIRST_WAIT_S
        while (found := await wheel._read(look.look)) is None:
            left_s = end_s - loop.time()
            if left_s <= 0:
                raise look.timed_out(wheel.path, timeout_s)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, LAST_WAIT_S)
        return value_of(found)

    # -- firing ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start firing in the background, or stand by while another process fires. A cancelled start has no effect."""
        if self._is_firing:
            raise BadArgument("this scheduler has been started already")
        await self._opened()
        self.blocking._use_loop(asyncio.get_running_loop())
        try:
            await self._aside(
                partial(self.blocking._start, partial(self.blocking._new_engine, ends_drained=self._ends_drained))
            )
            self._engine = self.blocking._engine
        except BaseException:
            await self._finish(0)
            raise

    @property
    def _is_firing(self) -> bool:
        engine = self.blocking._engine
        return engine is not None and engine.is_alive

    async def stop(self, timeout_s: float | None = None) -> None:
        """Stop firing: running calls have until the timeout to end; then they are cancelled, and offered again.

        Returns when no task and no thread is left; a cancellation ends the grace time. In a handler it returns at once,
        because that handler is one of the running calls. It may be called twice.
        """
        if self._asked is not None:
            self._asked.set()
        if self._ending is None or self._ending.done():
            ending = self._finish(self._stop_s if timeout_s is None else timeout_s)
            self._ending = asyncio.create_task(ending, context=Context())  # not in the context of a job
        job = present_job()
        if job is not None and job.wheel == self.path:
            return
        task = self._ending
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._engine is not None:
                self._engine.hurry()
            with contextlib.suppress(asyncio.CancelledError):
                await to_the_end(task)
            raise

    async def _finish(self, timeout_s: float) -> None:
        try:
            await self._aside(partial(self.blocking.stop, timeout_s))
        finally:
            self.blocking._use_loop(None)
            is_home = self._home == (asyncio.get_running_loop(), os.getpid())
            async with self._opening if is_home else contextlib.nullcontext():
                wheel, self._wheel = self._wheel, None
                if wheel is not None and is_home:
                    await wheel.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def run(self, *, stop_s: float | None = None) -> None:
        """Fire until SIGINT or SIGTERM, `stop`, or a cancellation; then let running calls end, and return or raise.

        They have `stop_s` to end, by default that of the scheduler.
        A second signal or cancellation ends the grace time. So does one before the start has finished; a call that
        started just before it is offered again. A loop that handles no signals leaves them unchanged. It also returns
        when the wheel is drained, once running calls have ended.

        Raises Fenced when the wheel is a backup, or when another wheel of its set is promoted.
        """
        if stop_s is not None:
            check_number("stop_s", stop_s, least=0)
        asked = asyncio.Event()
        with self._signals(asked):  # first, because a handler may be called before `start` returns
            self._ends_drained = True
            try:
                await self.start()
            finally:
                self._ends_drained = False
            self._asked = asked
            try:
                while self._is_firing and not asked.is_set():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_S):
                            await asked.wait()
            finally:
                try:
                    await self.stop(stop_s)
                finally:
                    self._asked = None
        if self._engine is not None:
            self._engine.check()

    @contextlib.contextmanager
    def _signals(self, asked: asyncio.Event) -> Iterator[None]:
        """Let SIGINT and SIGTERM set an event, and the second signal end the grace time, if the loop supports it."""
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if asked.is_set() and self._engine is not None:
                self._engine.hurry()
            asked.set()

        before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler is None or handler is signal.SIG_IGN:  # for example by nohup(1)
                continue
            # Outside of the main thread, or in a loop without signals, the owner of the signals cancels the task.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, ask)
                before[number] = handler
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    async def wait_until_keeper(self, timeout_s: float | None = None) -> bool:
        """Wait until this process fires; return whether it does. Raises Fenced when it never will."""
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, above=None)
        took_over = asyncio.Event()
        loop, engine = asyncio.get_running_loop(), self.blocking._engine
        if engine is None:
            return False
        forget = self.blocking.on_event(lambda _: call_soon(loop, took_over.set), ["took_over"])
        try:
            if not engine.is_keeper.is_set():
                async with asyncio.timeout(timeout_s):
                    while not took_over.is_set():
                        engine.check()
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(_LOOK_S):
                                await took_over.wait()
        except TimeoutError:
            return False
        finally:
            forget()
        return True

    async def drain(self) -> int:
        """Call all due messages, one after another, without waiting; return how many messages were settled.

        Coroutine functions run in this loop, others in one thread. For tests, and for programs that a timer starts. A
        cancelled drain continues to its end. Raises Locked when another process fires, and Scheduler.drain's errors.
        """
        return await self._inline(self.blocking.drain)

    async def _inline(self, function: Callable[[], T]) -> T:
        """Call a function in another thread; the handlers that it calls run there, coroutine functions in this loop."""
        if self._is_firing:
            raise BadArgument(
                "this scheduler was started: it fires or stands by", hint="stop() first, or leave out start()"
            )
        self.blocking._use_loop(asyncio.get_running_loop())
        try:
            return await self._aside(function)
        finally:
            self.blocking._use_loop(None)

    def on_event(self, callback: Callback, kinds: Sequence[str] | None = None) -> Callable[[], None]:
        """Call a function in the event loop with each event (of these kinds); return how to unsubscribe it.

        A coroutine that it returns becomes a task of the loop. Before the scheduler has a loop, no coroutine can run,
        and the event is logged as a failure of the subscriber.
        """
        if returned_by(callback) != AWAIT:
            check_function("a subscriber", callback)

        def tell(event: Event) -> None:
            value = callback(event)
            if inspect.isawaitable(value):
                self._telling.add(task := asyncio.ensure_future(value))
                task.add_done_callback(self._telling.discard)
            else:
                check_done("a subscriber", value)

        def pass_on(event: Event) -> object:
            if self._home is None:
                return callback(event)
            call_soon(self._home[0], tell, event)
            return None

        return self.blocking.on_event(pass_on, kinds)
