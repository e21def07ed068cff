"""Arguments that are checked where they are given: counts, yes or no, a choice of words, a length of time.

What is wrong raises BadArgument with the argument's name, in the call that was given it, and never a bare TypeError
later on.
Invariant: what a function here returns is what it was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TypeVar

from filewheel.errors import BadArgument

Text = TypeVar("Text", bound=str)


def check_whole(name: str, value: int, *, least: int = 1) -> int:
    """Return a whole number that is not below `least`. Raises BadArgument."""
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
    """Return a finite number above a bound, or from a least one on, or any. Raises BadArgument."""
    fits = isinstance(value, (int, float)) and not isinstance(value, bool) and -inf < value < inf
    bound = ""
    if least is not None:
        bound, fits = f" from {least:g}", fits and value >= least
    elif above is not None:
        bound, fits = f" above {above:g}", fits and value > above
    if not fits:
        raise BadArgument(f"{name} is a number{bound}, not {value!r}")
    return value
