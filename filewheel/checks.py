"""Checks arguments in the call that gets them: counts, flags, choices, numbers, paths.

A wrong argument raises BadArgument with its name at once, and never a bare TypeError or OverflowError later.
Invariant: each function returns the argument unchanged, or in its stored form.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from filewheel.errors import BadArgument

_SHOWN_MAX = 100
_NUMBER_MAX = 1e18
_ONE_US = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PORT_END = 1 << 16
Text = TypeVar("Text", bound=str)
Item = TypeVar("Item")
AWAIT = "a coroutine: await it in an `async def`"
_LOOP_OVER = "a generator: iterate over it, a call alone does nothing"
_ENTER = "a context manager: enter it in a `with`"
_CALL = "a function: call it"
_HANDED_BACK: dict[type, str] = {
    types.CoroutineType: AWAIT,
    types.GeneratorType: _LOOP_OVER,
    types.AsyncGeneratorType: _LOOP_OVER,
    **dict.fromkeys((map, filter, zip, enumerate), _LOOP_OVER),
    contextlib._GeneratorContextManager: _ENTER,
    contextlib._AsyncGeneratorContextManager: _ENTER,
    types.FunctionType: _CALL,
    types.MethodType: _CALL,
    types.BuiltinFunctionType: _CALL,
    functools.partial: _CALL,
}
"""What a function may hand back in place of its work, and how the work is done."""
_SIGNS = ("__await__", "add_done_callback", "communicate", "is_alive")
"""Methods of work that may go on: of awaitables, futures, processes and threads."""
_POOL = "multiprocessing.pool"
"""Its results, of `apply_async` and others, are futures without a method that only futures have."""


def shown(value: object) -> str:
    """Return a wrong argument as an error shows it: the start of its repr, or the size of a huge integer."""
    if isinstance(value, int) and value.bit_length() > 4 * _SHOWN_MAX:  # Python refuses to write out a huge one
        return f"an integer of {value.bit_length()} bits"
    try:
        text = repr(value)
    except Exception:  # of a class of the program; a huge integer in a tuple
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def check_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text and absolute: a program may change its directory while a wheel is open.

    In a directory that was removed it stays relative. A URL is returned as it is: a backup may be at one.
    Raises BadArgument for anything that no file system takes.
    """
    try:
        where = os.fsdecode(path)
        if b"\0" in os.fsencode(where):
            raise BadArgument(f"a path has no zero byte, as {shown(where)} has")
    except TypeError:
        raise BadArgument(f"a path is a str or a PathLike, not {shown(path)}") from None
    except UnicodeEncodeError:
        raise BadArgument(f"the path {shown(path)} is not valid Unicode") from None
    if "://" in where and scheme_of(where):
        return where
    with contextlib.suppress(FileNotFoundError):
        return os.path.abspath(where)
    return where


def scheme_of(where: str) -> str:
    """Return the scheme of a URL, "ssh" of "ssh://host/path"; an empty string for a path of this machine."""
    scheme, is_url, _ = where.partition("://")
    return scheme if is_url and re.fullmatch("[a-z][a-z0-9]*", scheme) else ""


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, `[::1]:PORT` or `PORT`; without a host it is this machine only.

    Raises BadArgument.
    """
    host, _, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if not (port.isascii() and port.isdecimal()) or int(port) >= _PORT_END:
        raise BadArgument(f"{shown(text)} is no address to listen at", hint="HOST:PORT, such as 127.0.0.1:9464")
    return host, int(port)


def check_whole(name: str, value: int, *, least: int = 1) -> int:
    """Return an integer of at least `least`, and at most the system's largest size. Raises BadArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadArgument(f"{name} is a count from {least}, not {shown(value)}")
    if value > sys.maxsize:
        raise BadArgument(f"{name} is a count from {least} to {sys.maxsize}, not {shown(value)}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return True or False. Raises BadArgument for anything else."""
    if not isinstance(value, bool):
        raise BadArgument(f"{name} is True or False, not {shown(value)}")
    return value


def check_choice(name: str, value: Text, choices: Sequence[str]) -> Text:
    """Return one of these words. Raises BadArgument for anything else."""
    if not isinstance(value, str) or value not in choices:
        words = [f'"{word}"' for word in choices]
        raise BadArgument(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {shown(value)}")
    return value


def check_number(
    name: str, value: float, *, above: float | None = 0, least: float | None = None, most: float | None = None
) -> float:
    """Return a finite number: above a bound, or of at least `least`, or any; at most `most`. Raises BadArgument.

    One with a lower bound is at most 1e18, and its reciprocal too: in microseconds it still has a float.
    """
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    bound = ""
    if fits and most is None and (least, above) != (None, None) and value > _NUMBER_MAX:
        most = _NUMBER_MAX
    if least is not None:
        bound, fits = f" from {least:g}", fits and value >= least
    elif above is not None:
        bound, fits = f" above {above:g}", fits and value > above and value - above >= 1 / _NUMBER_MAX
    if most is not None:
        bound, fits = f"{bound} to {most:g}", fits and value <= most
    if not fits:
        raise BadArgument(f"{name} is a number{bound}, not {shown(value)}")
    return value


def check_items(name: str, values: Iterable[Item]) -> Iterable[Item]:
    """Return an iterable that is not text or bytes. Raises BadArgument."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, bytearray, memoryview)):
        raise BadArgument(f"{name} are a list or another iterable, not {shown(values)}")
    return values


def utf8(text: str, what: str) -> bytes:
    """Return text in bytes. Raises BadArgument for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadArgument(f"{what} {text[:40]!r} is not valid Unicode") from None


def check_bounds(at_most: Mapping[str, int] | None) -> dict[bytes, int]:
    """Return the claim limit of each topic, by the topic in bytes; none for None. Raises BadArgument."""
    if at_most is None:
        return {}
    if not isinstance(at_most, Mapping) or not all(isinstance(topic, str) for topic in at_most):
        raise BadArgument(f"at_most maps topics to counts, not {shown(at_most)}", hint='{"slow": 10}')
    return {utf8(topic, "a topic"): check_whole("at_most", count, least=0) for topic, count in at_most.items()}


def check_first(first: Sequence[str]) -> list[bytes]:
    """Return the topics and globs that a claim puts first, in bytes. Raises BadArgument."""
    if not isinstance(first, Sequence) or isinstance(first, (str, bytes)) or not all(isinstance(t, str) for t in first):
        raise BadArgument(f"first is a list of topics and globs, not {shown(first)}", hint='["urgent*"]')
    return [utf8(topic, "a topic") for topic in first]


def check_keep_dead(keep_dead_s: float | None) -> float | None:
    """Return how long dead letters are kept, in seconds, or None. Raises BadArgument."""
    return None if keep_dead_s is None else check_number("keep_dead_s", keep_dead_s)


def check_keeper(
    *,
    wait: bool,
    on_jump: str,
    force: bool,
    flush_interval_s: float,
    keep_dead_s: float | None = None,
    background: bool = True,
    history: int | None,
) -> None:
    """Raise BadArgument unless a keeper can be opened with these arguments."""
    check_keep_dead(keep_dead_s)
    check_flag("wait", wait)
    check_choice("on_jump", on_jump, ("fire", "hold"))
    check_flag("force", force)
    check_flag("background", background)
    check_number("flush_interval_s", flush_interval_s, least=0, most=3600)
    if history is not None:
        check_whole("history", history, least=0)


def span_us(span: timedelta) -> int:
    """Return a length of time in microseconds, whatever arithmetic its subclass has (pendulum's, pandas')."""
    return timedelta.__floordiv__(span, _ONE_US)


def moment_us(at: datetime) -> int:
    """Return an aware datetime, or one of a subclass, in microseconds since the epoch. Raises BadArgument."""
    try:
        offset = None if at.tzinfo is None else datetime.utcoffset(at)
    except Exception as exc:  # of a zone of the program
        raise BadArgument(f"the zone of {shown(at)} has no offset: {type(exc).__name__}: {exc}") from exc
    if offset is None:
        raise BadArgument(
            f"{shown(at)} has no time zone, so it names no moment",
            hint="datetime.now(timezone.utc), or .replace(tzinfo=ZoneInfo('Europe/Berlin'))",
        )
    return span_us(datetime.__sub__(at, _EPOCH))


def returned_by(function: object) -> str:
    """Return what each call of a function hands back in place of its work, and how that is done; "" if it works."""
    while isinstance(function, functools.partial):
        function = function.func
    if type(function) is types.FunctionType and not function.__dict__:  # most are, and this is ten times as fast
        flags = function.__code__.co_flags
        if not flags & (inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR):
            return ""
    if not callable(function):
        return ""
    marker = getattr(sys.modules.get("asyncio.coroutines"), "_is_coroutine", None)  # of Cython, and of decorators
    for one in (function, type(function).__call__):
        if inspect.iscoroutinefunction(one) or (marker and getattr(one, "_is_coroutine", None) is marker):
            return AWAIT
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            return _LOOP_OVER
    return ""


def check_function(name: str, function: object) -> None:
    """Raise BadArgument unless this is a function that works when it is called, as far as that is known."""
    if not callable(function):
        raise BadArgument(f"{name} is a function, not {shown(function)}")
    if what := returned_by(function):
        raise BadArgument(f"{name} is a plain function, and {shown(function)} returns {what}")


def check_done(who: str, value: object) -> None:
    """Raise TypeError for a value that a function has handed back in place of its work, or that has such a value in it.

    Functions in a list, tuple, set or dict are data. Coroutines are closed. Cost: the kind of each item.
    """
    inside: Collection[object] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        inside = value
    kinds = {type(value), *map(type, inside)}
    if not any(map(_may_be_left, kinds)):
        return
    left = [_left(value), *(what for one in inside if (what := _left(one)) != _CALL)]
    for one in (value, *inside):
        if isinstance(one, types.CoroutineType):
            one.close()  # or Python warns that it was never awaited
    for what in filter(None, left):
        raise TypeError(f"{who} returned work that is not done, {what}")


@functools.lru_cache(256)
def _may_be_left(kind: type) -> bool:
    """Return whether a value of this kind may be work that is not done."""
    return kind in _HANDED_BACK or kind.__module__ == _POOL or any(hasattr(kind, sign) for sign in _SIGNS)


def _left(value: object) -> str:
    """Return how the work is done that a value stands for; "" when there is none left."""
    kind = type(value)
    if kind in _HANDED_BACK:
        return _HANDED_BACK[kind]
    if hasattr(kind, "__await__") or hasattr(kind, "add_done_callback") or kind.__module__ == _POOL:
        return "a future: wait for its result"
    if hasattr(kind, "communicate") and getattr(value, "returncode", 0) is None:
        return "a process: wait for its end"
    is_thread = hasattr(kind, "is_alive") and hasattr(kind, "join")
    if is_thread and (getattr(value, "ident", 0) is None or cast(Any, value).is_alive()):
        return "a thread or process: start it, and wait for its end"
    return ""
