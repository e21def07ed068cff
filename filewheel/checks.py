"""Checks arguments in the call that gets them: counts, flags, choices, numbers.

A wrong argument raises BadArgument with its name at once, and never a bare TypeError later.
Invariant: each function returns the argument unchanged, or in its stored form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TypeVar

from filewheel.errors import BadArgument

Text = TypeVar("Text", bound=str)
Item = TypeVar("Item")


def check_whole(name: str, value: int, *, least: int = 1) -> int:
    """Return an integer of at least `least`. Raises BadArgument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise BadArgument(f"{name} is a count from {least}, not {value!r}")
    return value


def check_flag(name: str, value: bool) -> bool:
    """Return True or False. Raises BadArgument for anything else."""
    if not isinstance(value, bool):
        raise BadArgument(f"{name} is True or False, not {value!r}")
    return value


def check_choice(name: str, value: Text, choices: Sequence[str]) -> Text:
    """Return one of these words. Raises BadArgument for anything else."""
    if not isinstance(value, str) or value not in choices:
        words = [f'"{word}"' for word in choices]
        raise BadArgument(f"{name} is {', '.join(words[:-1])} or {words[-1]}, not {value!r}")
    return value


def check_number(name: str, value: float, *, above: float | None = 0, least: float | None = None) -> float:
    """Return a finite number: above a bound, or of at least `least`, or any. Raises BadArgument."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -inf < value < inf
    bound = ""
    if least is not None:
        bound, fits = f" from {least:g}", fits and value >= least
    elif above is not None:
        bound, fits = f" above {above:g}", fits and value > above
    if not fits:
        raise BadArgument(f"{name} is a number{bound}, not {value!r}")
    return value


def check_items(name: str, values: Iterable[Item]) -> Iterable[Item]:
    """Return an iterable that is not text or bytes. Raises BadArgument."""
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, bytearray, memoryview)):
        raise BadArgument(f"{name} are a list or another iterable, not {values!r}")
    return values


def check_bounds(at_most: Mapping[str, int]) -> dict[bytes, int]:
    """Return the claim limit of each topic, by the topic in bytes. Raises BadArgument."""
    if not isinstance(at_most, Mapping) or not all(isinstance(topic, str) for topic in at_most):
        raise BadArgument(f"at_most maps topics to counts, not {at_most!r}", hint='{"slow": 10}')
    return {topic.encode(): check_whole("at_most", count, least=0) for topic, count in at_most.items()}


def check_keeper(*, wait: bool, on_jump: str, force: bool, flush_interval_s: float) -> None:
    """Raise BadArgument unless a keeper can be opened with these arguments."""
    check_flag("wait", wait)
    check_choice("on_jump", on_jump, ("fire", "hold"))
    check_flag("force", force)
    check_number("flush_interval_s", flush_interval_s, least=0)
