"""When a call that failed is tried again, and when no more.

A value that belongs to a handler. Delays grow by a factor up to a bound and are spread by chance, so that what failed
together does not come back together (the formula of many systems; here the spread only adds, so that no retry comes
earlier than the delay says).
Invariant: a delay is finite and at least 0, whatever the attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

from filewheel.checks import check_number, check_whole
from filewheel.errors import BadArgument
from filewheel.message import US_PER_S
from filewheel.scheduling.failure import name_of


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed call is tried again, and after how long.

    After `limit` retries the message is a dead letter. The delay is `delay_s` after the first failure, `factor` times
    more after each further one, at most `delay_max_s`; up to `jitter` times the delay is added by chance. Exceptions
    in `never` are not tried again.
    """

    limit: int = 5
    delay_s: float = 1.0
    factor: float = 2.0
    delay_max_s: float = 3600.0
    jitter: float = 0.25
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        check_whole("limit of a Retry", self.limit, least=0)
        for name in ("delay_s", "delay_max_s", "jitter"):
            check_number(f"{name} of a Retry", getattr(self, name), least=0)
        check_number("factor of a Retry", self.factor, least=1)
        if not isinstance(self.never, tuple) or not all(
            isinstance(t, type) and issubclass(t, BaseException) for t in self.never
        ):
            raise BadArgument(
                f"never of a Retry is a tuple of exception classes, not {self.never!r}", hint="never=(KeyError,)"
            )

    def delay_us(self, attempt: int, chance: Callable[[], float]) -> int:
        """Return how long to wait after the failure of an attempt, counted from 0. `chance` gives 0.0 to 1.0."""
        try:
            delay_s = self.delay_s * self.factor**attempt
        except OverflowError:
            delay_s = self.delay_max_s
        delay_s = min(delay_s, self.delay_max_s)
        return math.ceil(delay_s * (1 + self.jitter * chance()) * US_PER_S)

    def forbids(self, ancestry: Collection[str]) -> bool:
        """Tell whether an exception with these classes, by their qualified names, is never tried again."""
        return any(name_of(t) in ancestry for t in self.never)


NO_RETRY = Retry(limit=0)
