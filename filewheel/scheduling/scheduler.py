"""The scheduler that a program embeds: handlers by name, calls of them that are due later, recurring work.

It has a wheel to enqueue into and an engine that fires. Nothing is opened before it is needed, so a module can define
a scheduler at its top level and be imported anywhere: by the program that fires, by programs that only enqueue, and by
the processes of its own pool.
Invariant: an enqueued call is on disk only; the scheduler keeps no copy of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from filewheel.changes import ids_at_once
from filewheel.checks import check_choice, check_flag, check_keep_dead, check_number, check_path, check_whole, shown
from filewheel.disk.begun import Cancelled
from filewheel.disk.disk import SYSTEM
from filewheel.env import Clock, Env, check_env
from filewheel.errors import BadArgument, KeyHeld
from filewheel.format.ids import Ids
from filewheel.format.pauses import Pause, check_schedule
from filewheel.format.settings import Sync, check_sync
from filewheel.message import RESULT, SCHEDULE, US_PER_S, Message, MessageId
from filewheel.metrics.gauges import disk_gauges, overdue_of
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.prometheus import render
from filewheel.reader import given, one_of
from filewheel.runs.history import KEPT
from filewheel.schedules.definition import GRACE_US, OneOrMore, StoredSchedule
from filewheel.schedules.definition import ScheduleTerms as ScheduleTerms
from filewheel.schedules.occurrences import Occurrences
from filewheel.schedules.recurrence import Missed
from filewheel.scheduling.arguments import Codec, Decode
from filewheel.scheduling.bulk import Columns, NewCalls, Row, alone, new_calls
from filewheel.scheduling.call import ANY, call_plant, new_call, transaction_of
from filewheel.scheduling.engine import Engine, Limits, State
from filewheel.scheduling.events import Callback, Events, Telemetry
from filewheel.scheduling.handler import BaseHandler, check_used
from filewheel.scheduling.job import Transaction
from filewheel.scheduling.life import STOP_S, Firing
from filewheel.scheduling.options import At, CallOptions, Delay, OnConflict
from filewheel.scheduling.pools import read_pools
from filewheel.scheduling.results import ResultLook, value_of
from filewheel.scheduling.runners.pool import Recycle
from filewheel.values import Encode
from filewheel.wheel import Wheel

log = logging.getLogger("filewheel.scheduling")


Named = str | BaseHandler[..., Any, Any]
"""A handler, its name, or a glob of names."""


def topic_of(handler: Named | None) -> str | None:
    """Return the topic of a handler's jobs. Raises BadArgument for the handler of any name, whose jobs have others."""
    name = handler.name if isinstance(handler, BaseHandler) else handler
    if isinstance(handler, BaseHandler) and name == ANY:
        raise BadArgument("the handler for any name has no jobs of its own", hint="give their name, or a glob")
    return name


def is_job(message: Message) -> bool:
    """Return whether a message is a job, and not the result of one."""
    return RESULT not in message.headers


class Scheduler(Firing[Engine]):
    """Calls handlers when their messages are due. Thread-safe. Any number of processes share one wheel; one fires.

    Defining a scheduler opens nothing. A missing wheel is made at `path` when it is first needed, and the first enqueue
    into it logs a warning; with create=False a missing wheel raises NoWheel, for example when a disk is not mounted.

    `threads` call plain functions, `processes` those with where="process"; coroutine functions run in an event loop.
    Either is a count, or maps the names of pools to counts: {"default": 4, "slow": 2} is for @on(pool="slow").
    `in_flight` bounds the messages that are claimed at once. `catch_up_per_s` bounds the rate at which a backlog is
    called after a long stop. `unknown` is for messages without a handler: "wait" (checked again every five minutes) or
    "bury" (moved to the dead letters). `sync` applies to enqueued calls, and to a new wheel. `on_jump` and `history`
    (how many ends of calls are kept, 0 for none) are the Keeper's.
    With `tracebacks` a failed attempt is stored with the end of its traceback, 4 KiB at most. With `keep_dead_s` dead
    letters are dropped when they are older. `recycle` says when a process of a pool makes room for another.

    `encode(value)` is called for each argument, or part of one, of a type that cannot be stored, and returns one that
    can. `decode(value, annotation)` is called with each argument whose parameter has an annotation when a call begins,
    and returns what the handler gets.
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
        metrics: Metrics | None = None,
        clock: Clock | None = None,
        env: Env = SYSTEM,
    ) -> None:
        if not isinstance(metrics, Metrics | None):
            raise BadArgument(f"metrics are a Metrics, not {shown(metrics)}")
        if not isinstance(recycle, Recycle | None):
            raise BadArgument(f"recycle is a Recycle, not {shown(recycle)}")
        threads, processes, pools = read_pools(threads, processes)
        made = Metrics() if metrics is None else metrics
        super().__init__(check_path(path), made, pools, Codec(encode, decode))
        check_whole("in_flight", in_flight)
        if catch_up_per_s is not None:
            check_number("catch_up_per_s", catch_up_per_s)
        check_choice("unknown", unknown, ("wait", "bury"))
        check_choice("on_jump", on_jump, ("fire", "hold"))
        check_whole("history", history, least=0)
        sync = None if sync is None else check_sync(sync)
        env = check_env(env).using(clock=clock)
        check_flag("tracebacks", tracebacks)
        check_keep_dead(keep_dead_s)
        self._limits = Limits(
            threads, processes, in_flight, catch_up_per_s, unknown, on_jump, tracebacks, keep_dead_s, history, pools,
            recycle,
        )  # fmt: skip
        self._env = env
        self._clock = env.clock
        self._events = Events(env.clock)
        self._telemetry = Telemetry(self.metrics, self._events)
        check_flag("create", create)
        self._opener = WheelOpener(self._path, create=create, sync=sync, on_flush=self._telemetry.flushed, env=env)
        self._lock = threading.Lock()
        self._wheel: Wheel | None = None
        self._wheel_pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<Scheduler {self._path}>"

    @property
    def path(self) -> str:
        """The wheel's directory."""
        return self._path

    @property
    def threads(self) -> int:
        """How many threads the default pool has, for plain functions. A new number applies from the next start."""
        return self._limits.threads

    @threads.setter
    def threads(self, count: int) -> None:
        """Set the number of threads. Raises BadArgument unless it is an integer from 1."""
        self._limits = replace(self._limits, threads=check_whole("threads", count))

    @property
    def keep_dead_s(self) -> float | None:
        """How long dead letters are kept, in seconds; None for ever. A new time applies from the next start."""
        return self._limits.keep_dead_s

    @keep_dead_s.setter
    def keep_dead_s(self, keep_dead_s: float | None) -> None:
        """Set how long they are kept. Raises BadArgument unless it is a number above 0, or None."""
        self._limits = replace(self._limits, keep_dead_s=check_keep_dead(keep_dead_s))

    @property
    def processes(self) -> int:
        """How many processes the default pool has. A new number applies from the next start."""
        return self._limits.processes

    @processes.setter
    def processes(self, count: int) -> None:
        """Set the number of processes. Raises BadArgument unless it is an integer from 1."""
        self._limits = replace(self._limits, processes=check_whole("processes", count))

    @property
    def wheel(self) -> Wheel:
        """The wheel that this process enqueues into; the first use opens it, and makes a missing one.

        So does the next use after a flush has failed, which finishes a handle.
        """
        with self._lock:
            old = self._wheel if self._wheel_pid == os.getpid() else None
            if old is not None and not old._is_finished:
                return old
            self._wheel = wheel = self._opener.open()
            self._wheel_pid = os.getpid()
            if old is not None:
                old._end_writing()
            return wheel

    # -- enqueue -----------------------------------------------------------------------------------------------

    def send(
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
        wheel = self.wheel
        self._opener.warn_if_made()
        transaction = transaction_of(self._path)
        if transaction is not None:
            return self._join(transaction, alone(call, delay, at))[0]
        id_ = wheel.enqueue(
            call.payload, delay=delay, at=at, topic=name, headers=call.headers, sync=options.sync, **call.unique
        )
        self._telemetry.enqueued(name, id_)
        return id_

    def send_many(self, name: str, rows: Sequence[Row], options: CallOptions, columns: Columns) -> Ids:
        """Enqueue calls together, within the caller's open transaction if there is one."""
        calls = new_calls(name, rows, options, columns, self.codec.encode, self._positional(name))
        wheel = self.wheel
        self._opener.warn_if_made()
        transaction = transaction_of(self._path)
        if transaction is not None:
            return self._join(transaction, calls)
        ids = wheel.enqueue_many(calls.payloads, sync=options.sync, **calls.arguments)
        self._telemetry.enqueued_all(name, ids)
        return ids

    def _join(self, transaction: Transaction, calls: NewCalls) -> Ids:
        """Add calls to a transaction, which reports them when they are written; return their ids."""
        wheel = self.wheel
        held = {key: wheel.get(key=key) for key in calls.rejects}
        return calls.join(transaction, self._clock.now_us(), held, wheel.payload_bytes_max)

    # -- recurring work at run time ----------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        when: OneOrMore,
        handler: str | BaseHandler[..., Any, Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        tz: str = "UTC",
        missed: Missed = "once",
        grace_s: float = GRACE_US / US_PER_S,
        jitter_s: float = 0,
        start: At | None = None,
        end: At | None = None,
        count: int | None = None,
    ) -> MessageId:
        """Start recurring work, or replace the schedule of this name; return the id of its next occurrence.

        Any process may call it. The schedule lasts until `unschedule`, its `end` or its last call, with any program
        that fires. `when` may be a single time too, a datetime. The options are those of `every`; without a `start`,
        `count` counts from this call.

        Raises BadArgument, also when no time is left; KeyHeld when a program declares the name, or plain messages have
        it.
        """
        target = handler.name if isinstance(handler, BaseHandler) else handler
        options = ScheduleTerms(tz, missed, grace_s, jitter_s, start, end, count)
        definition = options.defined(name, when, is_declared=False)
        schedule = call_plant(definition, target, args, kwargs or {}, self.codec.encode)
        known = self._handlers.get(target)
        if known is not None:
            known.check(args, kwargs or {})
        self.wheel  # noqa: B018  made if it is missing
        self._opener.warn_if_made()
        return self.wheel._plant([name], lambda _: [schedule], None)[0]

    def unschedule(self, name: str) -> bool:
        """End a schedule; return whether there was one of this name. A running call is the last one."""
        return bool(self.wheel.unschedule(name))

    def schedules(self, pattern: str | None = None) -> Sequence[StoredSchedule]:
        """Return the schedules with a name (or glob), by the due of their next occurrence (see Wheel.schedules)."""
        return self.wheel.schedules(pattern)

    def pause(self, schedule: str, *, why: str = "") -> Pause:
        """Pause a schedule by its name; return the pause. Its occurrence waits, and `resume` ends that.

        Another program may have the schedule, or start it later. `wheel.pause` pauses a topic, which is a handler's
        name, or everything. Raises as Wheel.pause.
        """
        return self.wheel.pause(schedule=check_schedule(schedule), why=why)

    def resume(self, schedule: str) -> tuple[Pause, ...]:
        """End the pause of a schedule; return it, or nothing when it was not paused by its name.

        Its occurrence follows its `missed` policy, as after a stop of this length. Raises as Wheel.resume.
        """
        return self.wheel.resume(schedule=check_schedule(schedule))

    def _plant_all(self, on_conflict: OnConflict) -> None:
        """Plant the declared schedules. One whose times are over has none; one whose name is taken is logged."""
        for name, schedule in self._schedules.items():
            plants = [replace(schedule, on_conflict=on_conflict)]
            try:
                self.wheel._plant([name], lambda _, plants=plants: plants, None)  # type: ignore[misc]
            except BadArgument as exc:
                log.debug("the schedule %r is over: %s", name, exc.what)
            except KeyHeld as exc:
                log.error("the schedule %r of this program is not started: %s", name, exc)

    def _heed(self) -> None:
        if self._wheel is not None and self._wheel_pid == os.getpid():
            self._wheel._heed()

    # -- the jobs that wait: no call here ends a schedule, but a cancel of the one occurrence that it names --------

    def list(
        self,
        handler: Named | None = None,
        *,
        after: At | None = None,
        before: At | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> Iterator[Message]:
        """Yield the jobs that wait, in due order: of a handler (a name, or a glob of names), or all.

        Each is a Message with `args`, `kwargs`, `key`, `attempts`, and a dead one with its `reason`. Those that run now
        are among them (`wheel.running()` names those), and so is the next occurrence of each schedule. The other
        arguments are those of Wheel.list. Memory: one window, for any backlog.

        Raises BadArgument at once.
        """
        if limit is not None:
            check_whole("limit", limit, least=0)
        found = self.wheel.list(after=after, before=before, topic=topic_of(handler), dead=dead)
        return islice((message for message in found if is_job(message)), limit)

    def get(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Message | None:
        """Return the job with this id or key, also one that runs or is dead; None when there is none.

        A retry and a reschedule change the id; the key stays. Raises BadArgument.
        """
        return self.wheel.get(**given(id_, key))

    def reschedule(
        self,
        id_: MessageId | str | None = None,
        *,
        key: str | None = None,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> MessageId:
        """Move a job, by its id or key, to a time, by a delay from now, or to now; return its new id.

        A dead letter comes back to life. A job that runs continues, and is called again at the new time.

        Raises NotFound, KeyHeld (see Wheel.reschedule), BadArgument.
        """
        return self.wheel.reschedule(**given(id_, key), delay=delay, at=at)

    def cancel(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Cancelled:
        """Cancel a call by its id or its key; return whether it was stopped in time, had begun, or was not found.

        The result is true when it was pending. A call that has begun continues, and is not retried.
        """
        done = self.wheel.cancel(**given(id_, key))
        if done:
            self._telemetry.cancelled(one_of(id_, key), done)
        return done

    def result(self, id_: MessageId | str, *, timeout_s: float = 0) -> Any:
        """Return what a call has returned, by the id of its enqueue; wait for it for `timeout_s` seconds.

        Its handler keeps results: @on(result_for="1h"). What has a class comes back as in `Message.args`. Cost: two
        look-ups, several times a second; for a call that was retried or moved, a read of every pending message.

        Raises ResultTimeout while the call waits, runs, or is to be retried; CallFailed; ResultNotKept; NotFound when
        the id is not that of a call, or its result has expired; BadArgument.
        """
        look = ResultLook(id_)
        check_number("timeout_s", timeout_s, least=0, most=1e9)
        return value_of(look.wait(self.wheel, timeout_s))

    def cancel_all(self, handler: Named) -> int:
        """Cancel the jobs of a handler (a name, or a glob of names) that wait; return how many. "*" is all of them.

        Those that have begun continue, and are not retried. The occurrences of schedules stay: `unschedule` ends one.
        Dead letters stay. Cost and commits: those of Wheel.clear.

        Raises BadArgument.
        """
        if not isinstance(handler, (str, BaseHandler)) or not topic_of(handler):
            raise BadArgument(
                "name the handler whose jobs are to be cancelled", hint='cancel_all("*") is for all of them'
            )
        count = 0
        for ids in ids_at_once(message for message in self.list(handler) if SCHEDULE not in message.headers):
            for id_, outcome in self.wheel.cancel_many(ids).outcomes.items():
                self._telemetry.cancelled(id_, outcome)
                count += 1
        return count

    # -- firing ------------------------------------------------------------------------------------------------

    def _use_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run coroutine functions in this event loop from the next start on; None for a loop of the engine's own."""
        self._loop = loop

    def _new_engine(self, *, ends_drained: bool = False) -> Engine:
        """Return what fires; with `ends_drained` it ends when the wheel is drained: `run` returns then."""
        check_used(self._handlers, self._limits.pools, self._limits.in_flight)
        self.wheel  # noqa: B018  made if it is missing
        return Engine(
            self._path,
            self._handlers,
            Occurrences(self._schedules, self._clock),
            self._limits,
            self._telemetry,
            env=self._env,
            declare=self._plant_all,
            heed=self._heed,
            loop=self._loop,
            ends_drained=ends_drained,
        )

    def start(self) -> None:
        """Start firing in the background, or stand by while another process fires.

        After a drain of the wheel it gives the lock back, and fires again after the resume. Raises BadArgument when it
        has been started already.
        """
        self._start(self._new_engine)

    def _close(self) -> None:
        with self._lock:
            wheel, self._wheel = self._wheel, None
        if wheel is not None and self._wheel_pid == os.getpid():
            wheel.close()

    def run(self, *, stop_s: float = STOP_S) -> None:
        """Fire until SIGINT or SIGTERM, give running calls `stop_s` to end, and return. A second signal ends that wait.

        It also returns after a drain of the wheel (`wheel.pause(drain=True)`), once running calls have ended. In a
        thread other than the main one no signals are handled: it runs until `stop` is called.
        Raises Fenced when the wheel is a backup, or when another wheel of its set is promoted.
        """
        self._run(stop_s, partial(self._new_engine, ends_drained=True))

    def wait_until_keeper(self, timeout_s: float | None = None) -> bool:
        """Wait until this process fires; return whether it does. Raises Fenced when it never will."""
        if timeout_s is not None:
            check_number("timeout_s", timeout_s, above=None)
        engine = self._engine
        return engine is not None and engine.wait_until_keeper(timeout_s)

    @property
    def state(self) -> State:
        """What this process does for the wheel: it is "firing", "standby" while another process fires, "starting".

        "failing" when it cannot fire and tries again (the log has the reason), "fenced" when another wheel of the set
        fires, "stopped" before a start and after a stop. The state of a firing process says nothing of others.
        """
        engine = self._engine
        return engine.state if engine is not None and (engine.is_alive or engine.state == "fenced") else "stopped"

    def stalled_s(self) -> float:
        """Return for how many seconds the threads that fire have not come around: about a second at most.

        More than some seconds means that the disk hangs, or a defect; a handler that takes long does not count. 0 when
        nothing was started. Takes no lock: for a watchdog in another thread.
        """
        engine = self._engine
        return 0.0 if engine is None else engine.stalled_s()

    def drain(self) -> int:
        """Call all due messages in this thread, without waiting; return how many messages were settled.

        For tests, and for programs that a timer starts. A failed call is retried by a later drain, when it is due.

        Raises Locked when another process fires. When outcomes could not be written, it raises the reason at the end
        (WheelFull, DiskError, Poisoned, or Locked when a producer has a lock): those calls run again.
        """
        return self._inline_engine().drain()

    def _inline_engine(self) -> Engine:
        """Return an engine that calls handlers in the calling thread."""
        if self._engine is not None:
            raise BadArgument(
                "this scheduler was started: it fires or stands by", hint="stop() first, or leave out start()"
            )
        return self._new_engine()

    def prometheus(self) -> str:
        """Return the metrics of this process and the gauges of the wheel as Prometheus text. Cost: counts the wheel."""
        wheel, now_us = self.wheel, self._clock.now_us()
        stats = wheel.stats()
        return render(self.metrics.families() + disk_gauges(stats, overdue_of(wheel, stats, now_us), now_us))

    def on_event(self, callback: Callback, kinds: Sequence[str] | None = None) -> Callable[[], None]:
        """Call a function with each event (of these kinds); return a function that unsubscribes it."""
        return self._events.subscribe(callback, kinds)


class WheelOpener:
    """Opens the wheel of a scheduler, or makes a missing one and warns once. Thread-safe."""

    def __init__(
        self, path: str, *, create: bool, sync: Sync | None, on_flush: Callable[[int], None], env: Env
    ) -> None:
        self.path = path
        self._create = create
        self._sync = sync
        self._on_flush = on_flush
        self._env = env
        self._made = False
        """The wheel was made here, and no warning was logged yet."""

    def prepare(self) -> None:
        """Make a missing wheel, if `create` allows it; if not, opening it raises NoWheel."""
        if self._create:
            self.open().close()

    def open(self) -> Wheel:
        """Open the wheel, or make a missing one. Raises NoWheel for a missing one without `create`."""
        opened = Wheel.open_or_create if self._create else Wheel
        made = opened(self.path, sync=self._sync, on_flush=self._on_flush, env=self._env)
        self._made = self._made or made.is_new
        return made

    def warn_if_made(self) -> None:
        """Log a warning once, before the first enqueue into a wheel that this process made.

        A wrong path (another working directory, a disk that is not mounted) makes a wheel that no other process reads.
        """
        if self._made:
            self._made = False
            log.warning(
                "%s was missing: this process made a new wheel, and enqueues into it; if it should exist, "
                "check the working directory and the mounts, and pass create=False",
                self.path,
            )
