"""Hooks: what a program does around each call of its handlers: open a database session, set a field of the log.

A hook is a generator function that yields once, or returns a context manager. It gets the list of the call's jobs: one,
or several for a batch handler. A plain hook surrounds plain handlers, in threads, in processes and in `drain`; an
`async` hook surrounds coroutine handlers, in their event loop, so that no hook blocks the loop by accident.
Invariant: a call that failed stays failed: an exception that a hook swallows is raised again, also for the hooks
outside of it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from filewheel.checks import AWAIT, returned_by, shown
from filewheel.errors import BadArgument
from filewheel.scheduling.job import Job

Hook = Callable[
    [list[Job]],
    "Iterator[None] | AbstractContextManager[Any] | AsyncIterator[None] | AbstractAsyncContextManager[Any]",
]
"""A function that surrounds calls."""


class Hooks:
    """The hooks of one scheduler, in the order of their declaration: the first is the outermost."""

    def __init__(self) -> None:
        self.plain: tuple[Hook, ...] = ()
        """For plain handlers."""
        self.of_coroutines: tuple[Hook, ...] = ()

    def add(self, hook: Hook) -> None:
        """Add a hook."""
        if is_async(hook):
            self.of_coroutines += (hook,)
        else:
            self.plain += (hook,)


def check_hook(hook: Hook) -> None:
    """Raise BadArgument unless this can surround a call."""
    if not callable(hook):
        raise BadArgument(f"a hook is a function, not {shown(hook)}", hint="write @scheduler.around")
    if returned_by(hook) == AWAIT:
        raise BadArgument(
            f"the hook {_name(hook)} never yields", hint="put a `yield` where the call is made: async def ...: yield"
        )
    try:
        inspect.signature(hook).bind([])
    except TypeError:
        raise BadArgument(f"the hook {_name(hook)} takes the list of the call's jobs", hint="def hook(jobs)") from None
    except ValueError:  # it has no signature to look at
        pass


def is_async(hook: Hook) -> bool:
    """Return whether a hook surrounds coroutine handlers."""
    function = inspect.unwrap(hook)
    return any(map(inspect.isasyncgenfunction, (function, type(function).__call__))) or hasattr(hook, "__aenter__")


def target_of(hook: Callable[..., Any]) -> str:
    """Return the place from which another process imports a hook: "module:qualname"."""
    return f"{getattr(hook, '__module__', '?')}:{getattr(hook, '__qualname__', repr(hook))}"


def _name(hook: object) -> str:
    return getattr(hook, "__qualname__", repr(hook))


def _entered(hook: Hook, jobs: list[Job]) -> Any:
    """Return the context manager of a hook, whatever kind of function made its generator."""
    made = hook(jobs)
    if inspect.isgenerator(made):
        return contextmanager(lambda: made)()
    return asynccontextmanager(lambda: made)() if inspect.isasyncgen(made) else made


def surrounded(hooks: Sequence[Hook], jobs: list[Job], call: Callable[[], object]) -> object:
    """Make a call within its hooks; return what it returned."""
    if not hooks:
        return call()
    value: object = None
    raised: BaseException | None = None
    with _entered(hooks[0], jobs):
        try:
            value = surrounded(hooks[1:], jobs, call)
        except BaseException as exc:
            raised = exc
            raise
    if raised is not None:
        raise raised
    return value


async def surrounded_async(hooks: Sequence[Hook], jobs: list[Job], call: Callable[[], Awaitable[object]]) -> object:
    """Await a call within its hooks; return what it returned."""
    if not hooks:
        return await call()
    value: object = None
    raised: BaseException | None = None
    async with _entered(hooks[0], jobs):
        try:
            value = await surrounded_async(hooks[1:], jobs, call)
        except BaseException as exc:
            raised = exc
            raise
    if raised is not None:
        raise raised
    return value
