"""The declarations of a program: its handlers and its schedules.

Both schedulers declare through this class. A declaration opens no wheel, so a module with declarations can be imported
anywhere. Every argument is checked at the declaration, not when the first call is enqueued.
Invariant: a declared handler can be called and enqueued as it was declared.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

from filewheel.checks import shown
from filewheel.errors import BadArgument
from filewheel.message import US_PER_S, MessageId
from filewheel.metrics.metrics import Metrics
from filewheel.schedules.definition import GRACE_US, When
from filewheel.schedules.definition import ScheduleTerms as ScheduleTerms
from filewheel.schedules.planting import Plant
from filewheel.schedules.recurrence import Missed
from filewheel.scheduling.arguments import PLAIN, Codec
from filewheel.scheduling.around import Hook, check_hook, is_async
from filewheel.scheduling.call import ANY, call_plant
from filewheel.scheduling.handler import Handler, Handlers, P, R, Sender, Terms, Where, where_of
from filewheel.scheduling.job import Job
from filewheel.scheduling.options import At, CallOptions
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.pools import check_pool
from filewheel.scheduling.results import check_result_for
from filewheel.scheduling.runners.processes import check_reachable

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Hook)


class HandlerOptions(TypedDict, total=False):
    """The options of `on`, for type checkers; its signature has their defaults."""

    where: Where | None
    retry: Retry | None
    timeout_s: float | None
    concurrency: int | None
    rate_per_s: float | None
    skip_late_s: float | None
    coalesce: str | bool | None
    pool: str | None
    priority: int
    catch_up_per_s: float | None
    result_for: str | float | timedelta | None


class ScheduleOptions(TypedDict, total=False):
    """The options of `every`, for type checkers."""

    tz: str
    name: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    missed: Missed
    grace_s: float
    jitter_s: float
    start: At | None
    end: At | None
    count: int | None


class Definitions(Sender[MessageId]):
    """The handlers and schedules of one program."""

    def __init__(self, metrics: Metrics, pools: Collection[str] = (), codec: Codec = PLAIN) -> None:
        """`pools` are the named pools, as `place_of` writes them."""
        super().__init__(Handlers(), codec)
        self._pools = pools
        self.metrics = metrics
        """Counters and histograms of this process."""
        self._schedules: dict[str, Plant] = {}

    @property
    def handlers(self) -> list[Handler[..., Any]]:
        """The handlers that are registered."""
        return list(self._handlers)

    @overload
    def on(
        self, name: str | None = None, *, batch: None = None, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[P, R]], Handler[P, R]]: ...
    @overload
    def on(
        self, name: str | None = None, *, batch: int, **options: Unpack[HandlerOptions]
    ) -> Callable[[Callable[[list[Job]], R]], Handler[..., R]]: ...
    def on(
        self,
        name: str | None = None,
        *,
        where: Where | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
        concurrency: int | None = None,
        rate_per_s: float | None = None,
        batch: int | None = None,
        skip_late_s: float | None = None,
        coalesce: str | bool | None = None,
        pool: str | None = None,
        priority: int = 0,
        catch_up_per_s: float | None = None,
        result_for: str | float | timedelta | None = None,
        **unknown: object,
    ) -> Callable[..., Handler[..., Any]]:
        """Register a function as the handler of a name (its own by default), or with "*" of all unregistered names.

        `where` is "thread", "process" or "loop" (for coroutine functions, and their default). `timeout_s` bounds one
        call, `concurrency` how many run at once, `rate_per_s` how many start per second. With `batch` the function
        gets a list of up to that many Jobs; each call is enqueued by itself, with its own arguments. `skip_late_s` and
        `coalesce` are the defaults for enqueued calls. `pool` is a named pool of threads or processes. Of the due calls
        of a pool those of a higher `priority` start first; one start of ten ignores it. `catch_up_per_s` bounds the
        starts of this handler's backlog, in place of the scheduler's. `result_for` ("1h", seconds or a timedelta) is
        for how long what a call returns is kept, for `Scheduler.result`.

        Raises BadArgument for a wrong argument, and when another function has the name.
        """
        check_known(self.on, unknown)
        terms = Terms(
            "thread",
            Retry() if retry is None else retry,
            timeout_s,
            concurrency,
            rate_per_s,
            batch,
            pool,
            priority,
            catch_up_per_s,
            check_result_for(result_for),
        )
        options = CallOptions(skip_late_s=skip_late_s, coalesce=coalesce)

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            if isinstance(function, Handler):
                raise BadArgument(
                    f"this function is the handler {function.name!r} already",
                    hint="write @scheduler.every above @scheduler.on, and one name for each function",
                )
            if not callable(function):
                raise BadArgument(f"a handler is a function, not {shown(function)}")
            own = getattr(function, "__name__", "")
            at = where_of(function, where)
            placed = replace(terms, where=at, pool=check_pool(at, pool, self._pools))
            handler = Handler(own if name is None else name, function, placed, self, options)
            if placed.where == "process":
                check_reachable(handler, self._handlers.hooks.plain)
            self._handlers.add(handler)
            if handler.name != ANY:  # its calls are counted under their own names
                self.metrics.reserve([handler.name])
            return handler

        if callable(name):
            raise BadArgument("`on` is called: write @scheduler.on() or @scheduler.on('name')")
        terms.check()
        options.check()
        return decorate

    def around(self, hook: H) -> H:
        """Surround each call with a hook: a function that yields once, or that returns a context manager.

        It gets the list of the call's jobs: one, or several for a batch handler. A plain hook surrounds plain handlers,
        in threads and processes; an `async` hook surrounds coroutine handlers. The first that is declared is the
        outermost. If a hook raises, the attempt has failed; a hook that swallows the exception of a call changes
        nothing.

        Raises BadArgument, also for a hook that the process of a handler cannot import.
        """
        check_hook(hook)
        for handler in self._handlers:
            if handler.terms.where == "process" and not is_async(hook):
                check_reachable(handler, [hook])
        self._handlers.hooks.add(hook)
        return hook

    def every(
        self,
        when: When,
        *,
        tz: str = "UTC",
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        missed: Missed = "once",
        grace_s: float = GRACE_US / US_PER_S,
        jitter_s: float = 0,
        start: At | None = None,
        end: At | None = None,
        count: int | None = None,
    ) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Call a function repeatedly: at an interval in seconds, or by a cron expression in a time zone.

        Put it above `on` to give the handler its own terms. `missed` is for occurrences that passed while no scheduler
        ran: "once" calls once for all of them, "all" calls each, "skip" calls none that is later than `grace_s`.
        Each occurrence is due up to `jitter_s` later than its time. None is due before `start` or after `end`; an
        interval counts from `start`. `count` is the number of calls, from `start` on; one that is missed is not a call.
        A changed definition replaces the waiting occurrence; the schedule ends when a program without its definition
        fires.

        Raises BadArgument.
        """
        if callable(when) or isinstance(when, Handler):
            raise BadArgument("every takes a time between calls, or a cron expression", hint="@every(60)")
        options = ScheduleTerms(tz, missed, grace_s, jitter_s, start, end, count)
        options.defined("a name", when, is_declared=True)  # raises at once

        def decorate(function: Callable[P, R]) -> Handler[P, R]:
            handler = function if isinstance(function, Handler) else self.on()(function)
            own = handler.name if name is None else name
            definition = options.defined(own, when, is_declared=True)
            schedule = call_plant(definition, handler.name, args, kwargs or {}, self.codec.encode)
            handler.check(args, kwargs or {})
            if self._schedules.setdefault(own, schedule) != schedule:
                raise BadArgument(f"two schedules are named {own!r}", hint="give one of them a name=")
            return handler

        return decorate


def shows(original: Callable[..., object]) -> Callable[[F], F]:
    """Give a method that forwards its options the signature of the method that takes them, for help and completion."""

    def decorate(function: F) -> F:
        function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
        return function

    return decorate


def check_known(method: Callable[..., object], unknown: Mapping[str, object]) -> None:
    """Raise TypeError, as Python does, for an option that a method does not have; suggest the closest name."""
    *known, _ = inspect.signature(method).parameters
    for name in unknown.keys() - known:
        owner = type(getattr(method, "__self__", None)).__name__
        near = difflib.get_close_matches(name, known, 1)
        hint = f". Try: {near[0]}=" if near else ""
        raise TypeError(f"{owner}.{method.__name__}() got an unexpected keyword argument {name!r}{hint}")
