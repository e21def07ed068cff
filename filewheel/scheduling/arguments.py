"""The arguments of a call as its handler wants them: an Enum, a dataclass or a tuple where its annotation says so.

What is stored has no classes (values.py). The annotations of the handler's function, in the process that calls it, say
which one a value becomes. `Codec` is the program's own pair of functions: `encode` at the enqueue, `decode` before the
call.
Invariant: a class comes from an annotation of the program, never from what is stored.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import logging
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from filewheel.checks import check_done, check_function
from filewheel.scheduling.scalars import Convert, reader_of
from filewheel.values import Encode

log = logging.getLogger("filewheel.scheduling")

Decode = Callable[[Any, Any], Any]
"""Turns a stored argument and the annotation of its parameter into the argument."""

_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_SETS: dict[Any, type] = {set: set, frozenset: frozenset, collections.abc.Set: frozenset}


@dataclasses.dataclass(frozen=True, slots=True)
class Codec:
    """A program's own way to store arguments and results."""

    encode: Encode | None = None
    decode: Decode | None = None

    def __post_init__(self) -> None:
        for name in ("encode", "decode"):
            function = getattr(self, name)
            if function is not None:
                check_function(name, function)


PLAIN = Codec()


class Unfit(Exception):
    """An argument does not fit the annotation of its parameter."""


class Parameters:
    """The parameters of a function, with the conversion of each."""

    def __init__(self, function: Callable[..., Any], decode: Decode | None) -> None:
        self._function = function
        self._decode = decode

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(_plain_function(self._function))
        except Exception as exc:  # a name that is imported for type checkers only
            log.warning(
                "the annotations of %s cannot be read, and its arguments come as they are stored: %s",
                getattr(self._function, "__qualname__", self._function),
                exc,
            )
            return {}

    @cached_property
    def _converted(self) -> tuple[list[tuple[str, bool]], dict[str, Convert], bool]:
        """The positional parameters (name, whether it takes all further ones), and the conversions by name."""
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except (TypeError, ValueError):
            return [], {}, False
        ordered = [(p.name, p.kind is p.VAR_POSITIONAL) for p in parameters if p.kind is not p.KEYWORD_ONLY]
        found = {name: made for name in self._hints if (made := self._conversion(name)) is not None}
        rest = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        if rest in found:
            found[""] = found.pop(rest)  # of any other keyword
        return [(name, many) for name, many in ordered if name != rest], found, bool(found)

    @property
    def positional(self) -> list[str]:
        """The names of the positional parameters, without one that takes all further ones."""
        return [name for name, many in self._converted[0] if not many]

    def _conversion(self, name: str) -> Convert | None:
        hint, decode = self._hints[name], self._decode
        built_in = conversion_to(hint)
        if decode is None:
            return built_in

        def decoded(value: Any) -> Any:
            made = decode(value if built_in is None else built_in(value), hint)
            if inspect.iscoroutine(made):
                check_done("decode=", made)
            return made

        return decoded

    def convert(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments as the annotations want them. Cost without such annotations: 0.1 µs.

        Raises Unfit.
        """
        ordered, by_name, is_needed = self._converted
        if not is_needed:
            return args, kwargs
        named = [name for name, _ in ordered]
        if ordered and ordered[-1][1]:
            named += [ordered[-1][0]] * max(0, len(args) - len(ordered))
        found = [self._one(name, by_name.get(name), value) for name, value in zip(named, args, strict=False)]
        rest = by_name.get("")
        return found + args[len(found) :], {
            name: self._one(name, by_name.get(name, rest if name not in named else None), value)
            for name, value in kwargs.items()
        }

    def _one(self, name: str, convert: Convert | None, value: Any) -> Any:
        if convert is None:
            return value
        try:
            return convert(value)
        except Exception as exc:
            raise Unfit(f"the argument {name!r} cannot be decoded: {type(exc).__name__}: {exc}") from exc


def _plain_function(function: Callable[..., Any]) -> Any:
    is_object = not inspect.isroutine(function) and not isinstance(function, type)
    return type(function).__call__ if is_object else function


def conversion_to(hint: Any) -> Convert | None:
    """Return how a stored value becomes what an annotation says; None where it stays as it is."""
    if isinstance(hint, NewType):
        return conversion_to(hint.__supertype__)
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return _to_union(parts)
    if not isinstance(origin, type):
        return None
    if (read := reader_of(origin)) is not None:
        return read
    if issubclass(origin, Enum):
        return lambda value: value if value is None or isinstance(value, origin) else origin(value)
    if dataclasses.is_dataclass(origin):
        return lambda value: _dataclass_of(origin, value) if isinstance(value, dict) else value
    if origin is tuple:
        return _to_tuple(parts)
    if origin in _SETS and (parts or origin in (set, frozenset)):
        return _to_set(_SETS[origin], parts)
    if parts and origin in _LISTS and (each := conversion_to(parts[0])) is not None:
        return lambda value: [each(item) for item in value] if isinstance(value, list) else value
    if parts and origin in _MAPS:
        return _to_map(*parts)
    return None


def _same(value: Any) -> Any:
    return value


def _to_tuple(parts: tuple[Any, ...]) -> Convert:
    if len(parts) == 2 and parts[1] is ...:
        each = conversion_to(parts[0]) or _same
        return lambda value: tuple(map(each, value)) if isinstance(value, list) else value
    all_of = [conversion_to(part) or _same for part in parts]

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return tuple(f(v) for f, v in zip(all_of, value, strict=True)) if all_of else tuple(value)

    return convert


def _to_set(kind: type, parts: tuple[Any, ...]) -> Convert:
    each = (conversion_to(parts[0]) if parts else None) or _same
    return lambda value: kind(map(each, value)) if isinstance(value, list) else value


def _to_map(key: Any, item: Any) -> Convert | None:
    to_key, to_item = conversion_to(key), conversion_to(item)
    if to_key is None and to_item is None:
        return None
    one, other = to_key or _same, to_item or _same
    return lambda value: {one(k): other(v) for k, v in value.items()} if isinstance(value, dict) else value


def _to_union(parts: tuple[Any, ...]) -> Convert | None:
    """Try the members in order; a value that a member without a conversion takes stays as it is.

    So does one that only a member without text, such as a dataclass, lets through. Text that no member reads is wrong.
    """
    found = [made for part in parts if (made := conversion_to(part)) is not None]
    if not found:
        return None
    plain = tuple(p for p in parts if isinstance(p, type) and conversion_to(p) is None)

    def convert(value: Any) -> Any:
        if isinstance(value, plain):
            return value
        errors: list[Exception] = []
        for made in found:
            try:
                if (converted := made(value)) is not value:
                    return converted
            except (ValueError, TypeError, Unfit) as exc:
                errors.append(exc)
        if errors and (len(errors) == len(found) or isinstance(value, str)):
            raise errors[0]
        return value

    return convert


def _dataclass_of(kind: Any, value: Mapping[Any, Any]) -> Any:
    """Make a dataclass of a map of its fields. Raises Unfit, and what the class raises."""
    hints = get_type_hints(kind)
    fields = {f.name for f in dataclasses.fields(kind) if f.init}
    if unknown := value.keys() - fields:
        raise Unfit(f"{kind.__name__} has no field {min(map(str, unknown))!r}")
    return kind(**{name: _field_of(kind, name, hints[name], item) for name, item in value.items()})


def _field_of(kind: type, name: str, hint: Any, value: Any) -> Any:
    try:
        return (conversion_to(hint) or _same)(value)
    except (ValueError, TypeError) as exc:
        raise Unfit(f"{kind.__name__}.{name}: {exc}") from exc
