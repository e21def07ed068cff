"""The options of a single call: its key, its headers, its lateness policy, and its own retry and time-out.

A policy is stored in the message's headers, so it applies in any process that fires the message.
Invariant: `LatenessPolicy.of` reads the headers that `headers_of` wrote; an unreadable header is no policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal, get_args

from filewheel import message as names
from filewheel.checks import check_choice, check_number, shown
from filewheel.errors import BadArgument
from filewheel.format.limits import check_headers, check_new_key
from filewheel.format.settings import Sync, check_sync
from filewheel.message import US_PER_S
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.own_terms import own_terms
from filewheel.timespec import bound_us

OnConflict = Literal["reject", "keep", "replace"]
Delay = float | timedelta
At = datetime | float


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of a single call."""

    key: str | None = None
    on_conflict: OnConflict = "reject"
    headers: Mapping[str, str] | None = None
    deadline: At | None = None
    skip_late_s: float | None = None
    coalesce: str | bool | None = None
    sync: Sync | None = None
    retry: Retry | None = None
    timeout_s: float | None = None

    def check(self) -> None:
        """Raise BadArgument unless a call can be enqueued with these."""
        self.stored()
        check_choice("on_conflict", self.on_conflict, get_args(OnConflict))
        if self.key is not None:
            check_new_key(self.key, None)
        elif self.on_conflict != "reject":
            raise BadArgument("on_conflict goes with a key", hint='key="..."')
        if self.sync is not None:
            check_sync(self.sync)

    def stored(self) -> dict[str, str]:
        """Return the headers that store these options. Raises BadArgument."""
        return headers_of(
            headers=self.headers,
            deadline=self.deadline,
            skip_late_s=self.skip_late_s,
            coalesce=self.coalesce,
            retry=self.retry,
            timeout_s=self.timeout_s,
        )

    def over(self, default: CallOptions) -> CallOptions:
        """Return these options, with the handler's lateness policy where they have none."""
        return replace(
            self,
            skip_late_s=default.skip_late_s if self.skip_late_s is None else self.skip_late_s,
            coalesce=default.coalesce if self.coalesce is None else self.coalesce,
        )


_EMPTY: dict[str, str] = {}


def headers_of(
    *,
    headers: Mapping[str, str] | None,
    deadline: datetime | float | None,
    skip_late_s: float | None,
    coalesce: str | bool | None,
    retry: Retry | None = None,
    timeout_s: float | None = None,
) -> dict[str, str]:
    """Return the headers that store these options.

    Raises BadArgument.
    """
    if headers is not None and not isinstance(headers, Mapping):
        raise BadArgument(f"headers map str to str; this is a {type(headers).__name__}")
    made = dict(headers) if headers else {}
    for name in made:
        if isinstance(name, str) and name.startswith(names.PREFIX):
            raise BadArgument(f"the header {name!r} is filewheel's own", hint="use the option that sets it")
    if deadline is not None:
        made[names.DEADLINE] = str(bound_us("deadline", deadline))
    if skip_late_s is not None:
        made[names.SKIP_LATE] = repr(float(check_number("skip_late_s", skip_late_s, least=0)))
    if coalesce is not None and coalesce is not False:
        if coalesce is not True and not isinstance(coalesce, str):
            raise BadArgument(f"coalesce is a name, or True, not {shown(coalesce)}")
        made[names.COALESCE] = "" if coalesce is True else coalesce
    made |= own_terms(retry, timeout_s)
    check_headers(made)
    return made


@dataclass(slots=True, frozen=True)
class LatenessPolicy:
    """The lateness policy of a message."""

    deadline_us: int | None = None
    skip_late_us: int | None = None
    coalesce: str | None = None
    was_due_us: int | None = None
    """When it was first due, if it was deferred."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> LatenessPolicy:
        """Read a message's headers."""
        return cls(
            _number(headers.get(names.DEADLINE), 1),
            _number(headers.get(names.SKIP_LATE), US_PER_S),
            headers.get(names.COALESCE),
            _number(headers.get(names.DUE), 1),
        )

    def too_late(self, due_us: int, now_us: int) -> str | None:
        """Return why a message is too late to start, or None."""
        due_us = due_us if self.was_due_us is None else self.was_due_us
        if self.deadline_us is not None and now_us >= self.deadline_us:
            return f"skipped: {_seconds(now_us - self.deadline_us)} after its deadline"
        if self.skip_late_us is not None and now_us - due_us > self.skip_late_us:
            return f"skipped: {_seconds(now_us - due_us)} late, where {_seconds(self.skip_late_us)} are allowed"
        return None


def _number(text: str | None, unit: int) -> int | None:
    """Read a number; None for other text, because an unreadable policy must not lose a message."""
    try:
        number = None if text is None else float(text) if unit != 1 else int(text)
        return None if number is None else int(number * unit)
    except (ValueError, OverflowError):
        return None


def _seconds(us: int) -> str:
    return f"{us / US_PER_S:.3g} s" if us < 100 * US_PER_S else f"{us // US_PER_S} s"
