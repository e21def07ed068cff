"""A handler, which is a function with a name and terms for its calls, and the handlers of one program.

A stored message has the name of its handler, not the place of its code, so a function may move to another module
while messages wait for it. The decorated function stays callable as before.
Invariant: one name has one handler; the arguments of a call are checked when it is enqueued.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, TypeVar, get_args, overload

from filewheel.checks import AWAIT, check_choice, check_number, check_whole, returned_by, shown
from filewheel.errors import BadArgument
from filewheel.format.ids import Ids
from filewheel.format.limits import check_topic
from filewheel.format.settings import Sync
from filewheel.message import US_PER_S, MessageId
from filewheel.scheduling.arguments import PLAIN, Codec, Parameters
from filewheel.scheduling.around import Hooks
from filewheel.scheduling.bulk import Columns, Kwargs, Row, in_call, rows_of
from filewheel.scheduling.call import ANY, Positional, check_call
from filewheel.scheduling.options import At, CallOptions, Delay, OnConflict
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.pools import place_of
from filewheel.timespec import at_us, delay_us

P = ParamSpec("P")
R = TypeVar("R")
Sent = TypeVar("Sent")
"""The result of an enqueue: an id, or a coroutine that returns one."""
Soon = Coroutine[Any, Any, MessageId]

Where = Literal["thread", "process", "loop"]
_NAMED = 5
_YEAR_US = 365 * 86_400 * US_PER_S


class Sender(Generic[Sent]):
    """Enqueues calls of handlers: a scheduler. This one refuses them, in a process of the pool."""

    def __init__(self, handlers: Handlers, codec: Codec = PLAIN) -> None:
        self._handlers = handlers
        self.codec = codec
        """The program's own way to store arguments and results."""

    def send(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        options: CallOptions,
        *,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> Sent:
        """Enqueue a call by name."""
        raise BadArgument(f"{name!r} cannot be enqueued here", hint="enqueue it through its scheduler")

    def send_many(self, name: str, rows: Sequence[Row], options: CallOptions, columns: Columns) -> Any:
        """Enqueue calls by name, as one commit; return their Ids, or a coroutine that does."""
        raise BadArgument(f"{name!r} cannot be enqueued here", hint="enqueue it through its scheduler")

    def _positional(self, name: str) -> Positional:
        """Return a function that returns the names of a handler's positional parameters, for an error."""

        def names() -> list[str]:
            handler = self._handlers.get(name)
            return [] if handler is None or handler.parameters is None else handler.parameters.positional

        return names

    def enqueue(
        self,
        name: str | BaseHandler[..., Any, Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        delay: Delay | None = None,
        at: At | None = None,
        key: str | None = None,
        on_conflict: OnConflict = "reject",
        headers: Mapping[str, str] | None = None,
        deadline: At | None = None,
        skip_late_s: float | None = None,
        coalesce: str | bool | None = None,
        sync: Sync | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Sent:
        """Enqueue a call of a handler by its name, which need not be defined here; return its id.

        It is due after `delay`, `at` a time, or now. The other options are those of `Handler.options`. Await it on an
        AsyncScheduler: tasks that enqueue at the same time share one commit; a cancelled enqueue may have been written.
        """
        name = name.name if isinstance(name, BaseHandler) else name
        options = CallOptions(key, on_conflict, headers, deadline, skip_late_s, coalesce, sync, retry, timeout_s)
        handler = self._handlers.get(name)
        if handler is not None:
            options = handler.options_by_name(args, kwargs or {}, options)
        return self.send(name, args, kwargs or {}, options, delay=delay, at=at)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a handler is called: where, how often at once, and how it is retried."""

    where: Where = "thread"
    retry: Retry = field(default_factory=Retry)
    timeout_s: float | None = None
    concurrency: int | None = None
    rate_per_s: float | None = None
    batch: int | None = None
    """The most jobs that one call gets, as a list; None to call it for each job, with the job's arguments."""
    pool: str | None = None
    """The named pool of threads or processes; None for the default one."""
    priority: int = 0
    """Among the calls of a pool that are due, a higher one starts first."""
    catch_up_per_s: float | None = None
    result_for_us: int | None = None
    """For how long the results of its calls are kept."""

    @property
    def place(self) -> str:
        """The name of the runner."""
        return place_of(self.where, self.pool)

    def check(self) -> None:
        """Raise BadArgument unless these terms are valid."""
        for name in ("timeout_s", "rate_per_s", "catch_up_per_s"):
            if (number := getattr(self, name)) is not None:
                check_number(name, number)
        for name in ("concurrency", "batch"):
            if (count := getattr(self, name)) is not None:
                check_whole(name, count)
        check_choice("where", self.where, get_args(Where))
        if not isinstance(self.priority, int) or isinstance(self.priority, bool):
            raise BadArgument(f"priority is an integer, not {shown(self.priority)}")
        if not isinstance(self.retry, Retry):
            raise BadArgument(f"retry is a Retry, not {shown(self.retry)}", hint="Retry(limit=3, delay_s=10)")
        if self.batch is not None and self.result_for_us is not None:
            raise BadArgument("a batch handler returns one value for several calls: it has no results to keep")
        if self.batch is not None and self.where == "process":
            raise BadArgument("a batch handler runs in a thread or in the event loop, not in a process")


class Bound(Generic[P, Sent]):
    """Enqueues calls of one handler, with options."""

    def __init__(
        self, name: str, sender: Sender[Sent], options: CallOptions, signature: inspect.Signature | None
    ) -> None:
        self._name = name
        self.sender = sender
        """The scheduler that enqueues the calls."""
        self._options = options
        self._signature = signature

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Sent:
        """Enqueue a call that is due now; return its id."""
        self.check(args, kwargs)
        return self.sender.send(self._name, args, kwargs, self._options)

    def after(self, delay: Delay, /, *args: P.args, **kwargs: P.kwargs) -> Sent:
        """Enqueue a call that is due after a delay: seconds or a timedelta."""
        delay_us(delay)  # raises for None too
        self.check(args, kwargs)
        return self.sender.send(self._name, args, kwargs, self._options, delay=delay)

    def at(self, time: At, /, *args: P.args, **kwargs: P.kwargs) -> Sent:
        """Enqueue a call that is due at a time: an aware datetime, or seconds since the epoch.

        Raises BadArgument, also for seconds in the year 1970: they are a delay.
        """
        if 0 <= at_us(time) < _YEAR_US and not isinstance(time, datetime):
            raise BadArgument(f"at({time}, ...) is in the year 1970", hint=f"did you mean after({time}, ...)?")
        self.check(args, kwargs)
        return self.sender.send(self._name, args, kwargs, self._options, at=time)

    @overload
    def map(
        self: Bound[P, MessageId],
        calls: Iterable[Any],
        *,
        kwargs: Kwargs | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        at: At | Sequence[At] | None = None,
        keys: Sequence[str | None] | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Ids: ...
    @overload
    def map(
        self: Bound[P, Soon],
        calls: Iterable[Any],
        *,
        kwargs: Kwargs | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        at: At | Sequence[At] | None = None,
        keys: Sequence[str | None] | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Coroutine[Any, Any, Ids]: ...
    def map(
        self,
        calls: Iterable[Any],
        *,
        kwargs: Kwargs | None = None,
        delay: Delay | Sequence[Delay] | None = None,
        at: At | Sequence[At] | None = None,
        keys: Sequence[str | None] | None = None,
        on_conflict: OnConflict = "reject",
    ) -> Any:
        """Enqueue many calls in one commit, all or none; return their ids, in order.

        Each of `calls` has the arguments of one call: a tuple its positional ones, anything else the only one. `kwargs`
        (by name), `delay` and `at` are one value for all, or a list with one for each. `keys` has a unique key or None
        for each. If a key is held, "reject" raises KeyHeld, "keep" returns the id of the holder, "replace" cancels the
        holder. Every call is checked before one is written. More than 8 MiB are several commits.

        Raises BadArgument, TooLarge, KeyHeld, and the errors of Wheel.enqueue_many.
        """
        rows = rows_of(calls, kwargs)
        for at_, (args, named) in enumerate(rows):
            with in_call(at_):
                check_call(args, named)
                self.check(args, named)
        return self.sender.send_many(self._name, rows, self._options, Columns(delay, at, keys, on_conflict))

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raise BadArgument for arguments that the function does not take: at the enqueue, not at the call."""
        if self._signature is not None:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as exc:
                raise BadArgument(f"{self._name}{self._signature}: {exc}") from None


class BaseHandler(Bound[P, Sent], Generic[P, R, Sent]):
    """A decorated function: call it as before, or enqueue a call of it."""

    def __init__(
        self, name: str, function: Callable[P, R], terms: Terms, sender: Sender[Sent], options: CallOptions
    ) -> None:
        functools.update_wrapper(self, function)  # first: the function's own attributes must not replace those below
        super().__init__(name, sender, options, None if terms.batch else _signature_of(function))
        self.name = name
        self.function = function
        self.terms = terms
        self.parameters = None if terms.batch else Parameters(function, sender.codec.decode)
        """How stored arguments become those of the function; None for one that takes jobs."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def options(
        self,
        *,
        key: str | None = None,
        on_conflict: OnConflict = "reject",
        headers: Mapping[str, str] | None = None,
        deadline: At | None = None,
        skip_late_s: float | None = None,
        coalesce: str | bool | None = None,
        sync: Sync | None = None,
        retry: Retry | None = None,
        timeout_s: float | None = None,
    ) -> Bound[P, Sent]:
        """Return this handler with options for the calls that are enqueued through it.

        `key`: at most one living message has it; `on_conflict` is for a key that is in use: "reject" (raises KeyHeld),
        "keep" that message, or "replace" it. `deadline`: the call does not start from then on. `skip_late_s`: the call
        does not start when it is later than this. `coalesce`: only the first of the overdue calls with this name runs.
        `retry` and `timeout_s` hold for these calls in place of the handler's own.
        """
        given = CallOptions(key, on_conflict, headers, deadline, skip_late_s, coalesce, sync, retry, timeout_s)
        given.check()
        self._check_own(given)
        return Bound(self._name, self.sender, given.over(self._options), self._signature)

    def _check_own(self, given: CallOptions) -> None:
        """Raise BadArgument for options of a call that this handler cannot keep."""
        if given.timeout_s is not None and self.terms.batch is not None:
            raise BadArgument(
                f"{self.name!r} takes several jobs in one call, which has one time-out", hint="@on(timeout_s=...)"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Handler(BaseHandler[P, R, MessageId]):
    """A decorated function: call it as before, or enqueue a call of it."""

    @classmethod
    def plain(cls, name: str, function: Callable[P, R], codec: Codec = PLAIN) -> Handler[P, R]:
        """Return a handler that can be called but not enqueued, for a process of the pool."""
        return cls(name, function, Terms(), Sender(Handlers(), codec), CallOptions())

    def options_by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any], given: CallOptions) -> CallOptions:
        """Return the options of a call that is enqueued by this handler's name: the same as through the handler.

        Raises BadArgument for arguments that the function does not take.
        """
        check_call(args, kwargs)
        self.check(args, kwargs)
        self._check_own(given)
        return given.over(self._options)


class AsyncHandler(BaseHandler[P, R, Soon]):
    """A decorated function: call it as before, or await the enqueue of a call of it."""

    def __init__(self, blocking: Handler[P, R], sender: Sender[Soon]) -> None:
        super().__init__(blocking.name, blocking.function, blocking.terms, sender, blocking._options)
        self.blocking = blocking
        """The same handler for code that cannot await: its `enqueue`, `after` and `at` block until it is written."""


class Handlers:
    """The handlers of one scheduler, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Handler[..., Any]] = {}
        self.hooks = Hooks()
        """What surrounds the calls."""
        self.has_pools = False
        """A handler has a pool or a priority."""

    def add(self, handler: Handler[..., Any]) -> None:
        """Register a handler.

        Raises BadArgument when the name is taken by another function, or cannot be a topic.
        """
        check_topic(handler.name)
        if not handler.name:
            raise BadArgument("a handler has a name")
        known = self._by_name.get(handler.name)
        if known is not None and _place_of(known.function) != _place_of(handler.function):
            raise BadArgument(
                f"two handlers are named {handler.name!r}: {_place_of(known.function)}, {_place_of(handler.function)}",
                hint="give one of them another name",
            )
        handler.terms.check()
        if handler.name == ANY:
            _check_any(handler.terms)
        self._by_name[handler.name] = handler
        self.has_pools = self.has_pools or handler.terms.pool is not None or handler.terms.priority != 0

    def get(self, name: str) -> Handler[..., Any] | None:
        """Return the handler with this name."""
        return self._by_name.get(name) if isinstance(name, str) else None

    def find(self, name: str) -> Handler[..., Any] | None:
        """Return the handler with this name, or else the handler for any name."""
        return self._by_name.get(name) or self._by_name.get(ANY)

    def named(self) -> str:
        """Return the handlers' names as text for an error, at most the first few."""
        names = sorted(self._by_name)
        if not names:
            return "there is none"
        shown = ", ".join(map(repr, names[:_NAMED]))
        return f"there is {shown}" + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")

    def __iter__(self) -> Iterator[Handler[..., Any]]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)


def check_used(handlers: Handlers, places: Collection[str], in_flight: int) -> None:
    """Raise BadArgument for a named pool without a handler, and for more pools and priorities than may be claimed."""
    used = {handler.terms.place for handler in handlers}
    for place in places:
        if place not in used:
            where, _, pool = place.partition(":")
            kind = "threads" if where == "thread" else "processes"
            raise BadArgument(
                f"no handler uses the pool {pool!r} of {kind}", hint=f"@on(pool={pool!r}), or leave it out of {kind}="
            )
    groups = {(handler.terms.place, handler.terms.priority) for handler in handlers} if handlers.has_pools else ()
    if len(groups) >= in_flight:
        raise BadArgument(
            f"in_flight={in_flight} is too little for {len(groups)} pairs of pool and priority, each with its share",
            hint=f"in_flight={len(groups) * 100}",
        )


def where_of(function: Callable[..., Any], where: Where | None) -> Where:
    """Return where a function runs: `where`, or the default for its kind.

    A lambda, or a decorator's plain wrapper around a coroutine function, may run in the loop: its result is awaited.

    Raises BadArgument for a function with `yield`, a coroutine function elsewhere, and another plain one in the loop.
    """
    what = returned_by(function)
    if what and what != AWAIT:
        raise BadArgument(f"{shown(function)} is no handler: it returns {what}")
    if where is None:
        return "loop" if what else "thread"
    if what and where != "loop":
        raise BadArgument(f"a coroutine function cannot run in a {where}")
    is_lambda = getattr(function, "__name__", "") == "<lambda>"
    if where == "loop" and not (what or is_lambda or returned_by(inspect.unwrap(function)) == AWAIT):
        raise BadArgument("a plain function cannot run in the loop", hint="an `async def` that awaits what it returns")
    return where


def _check_any(terms: Terms) -> None:
    """Raise BadArgument for terms that only a handler of one name can have."""
    if terms.where == "process" or (terms.concurrency, terms.rate_per_s, terms.batch) != (None, None, None):
        raise BadArgument(
            f"the handler for any name ({ANY!r}) has no concurrency, rate_per_s or batch, and runs in no process",
            hint="register the names that need that, each with a handler of its own",
        )


def _place_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
