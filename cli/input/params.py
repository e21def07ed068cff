"""The parameter types of the command line, which convert values for the library.

`filewheel.timespec` parses durations and times; this module adds the local zone.
Invariant: a wrong value is refused before any action, with an example of a valid one.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

import click

from filewheel import BadArgument, MessageId
from filewheel.timespec import at_us, check_due, parse_duration, parse_time

from .. import times
from ..times import US_PER_S, to_datetime

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic for type checkers, and from click 8.5 on also at run time
else:
    ParamType = click.ParamType


class Local(tzinfo):
    """The zone of this machine, with its rules: a date in summer always gets the summer offset.

    Around a clock change it follows PEP 495 in every version of Python: an ambiguous time is the first of the two, and
    a skipped time uses the offset before the change.
    """

    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        if dt is None:
            return None
        wall_s = calendar.timegm(dt.timetuple())
        before, after = _offset_s(wall_s - _DAY_S), _offset_s(wall_s + _DAY_S)
        fits = [offset for offset in (before, after) if _offset_s(wall_s - offset) == offset] or [before, after]
        return timedelta(seconds=fits[-1] if dt.fold else fits[0])

    def dst(self, dt: datetime | None) -> timedelta | None:
        return None

    def tzname(self, dt: datetime | None) -> str | None:
        return None

    def fromutc(self, dt: datetime) -> datetime:
        offset = timedelta(seconds=_offset_s(calendar.timegm(dt.timetuple())))
        found = dt + offset
        # The second occurrence of this hour, if the first has another offset.
        return found if self.utcoffset(found) == offset else found.replace(fold=1)


_DAY_S = 86_400


def _offset_s(epoch_s: int) -> int:
    return time.localtime(epoch_s).tm_gmtoff


LOCAL = Local()
_POSIX_ZONE = re.compile(r"(<[^>]+>|[A-Za-z]{3,})[+-]?\d")


def check_own_zone() -> None:
    """Raise BadArgument when TZ names a zone that this machine lacks: the system takes UTC then, and is silent."""
    name = os.environ.get("TZ", "").lstrip(":")
    if not name or name == "localtime" or name.startswith("/") or _POSIX_ZONE.match(name):
        return
    from filewheel.scheduling.cron import Zone  # most machines have no TZ, and most commands read no local time

    try:
        Zone(name)
    except BadArgument as exc:
        raise BadArgument(
            f"TZ={name}: {exc.what}", hint="a name of `timedatectl list-timezones`, or install tzdata"
        ) from exc


@dataclass(frozen=True)
class When:
    """A time from the command line."""

    due_us: int
    is_local: bool
    """It has no zone, so the machine's is used."""


def read_time(text: str, now_us: int | None = None, zone: tzinfo = LOCAL) -> When:
    """Read a time; one without a zone is in `zone`. Raises BadArgument."""
    now = to_datetime(times.now_us() if now_us is None else now_us).astimezone(zone)
    try:
        due_us = check_due(at_us(parse_time(text, now)))
    except BadArgument:
        raise
    except (OverflowError, ValueError, OSError):  # outside the calendar
        raise BadArgument(f"{text!r} is outside of the years 1970 to 9999") from None
    is_local = _names_no_zone(text.strip())
    if is_local and zone is LOCAL:
        check_own_zone()
    return When(due_us, is_local)


def _names_no_zone(text: str) -> bool:
    if text == "now" or text.startswith(("@", "in ")):
        return False
    try:
        return datetime.fromisoformat(text).tzinfo is None
    except ValueError:
        return True  # HH:MM


class _Type(ParamType):
    """A parameter whose reader raises BadArgument."""

    def read(self, text: str) -> Any:
        """Parse the text. Each type has its own."""
        return text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except BadArgument as exc:
            self.fail(exc.what, param, ctx)


def read_delay(text: str) -> int:
    """Read a duration; it may be negative, because a script's time may have passed. Raises BadArgument."""
    text = text.strip()
    return -parse_duration(text[1:]) if text.startswith("-") else parse_duration(text)


class _Duration(_Type):
    name = "duration"
    parse = staticmethod(parse_duration)

    def read(self, text: str) -> int:
        us = self.parse(text)
        if us >= 10_000 * 366 * 86_400 * US_PER_S:
            raise BadArgument(f"{text!r} leads past the year 9999")
        return us


_TODAY = re.compile(r"\b(today|yesterday)\b", re.IGNORECASE)


class BareSeconds(int):
    """A duration in microseconds that was given as a number without a unit."""


class _Delay(_Duration):
    """How long from now."""

    parse = staticmethod(read_delay)

    def read(self, text: str) -> int:
        us = super().read(text)
        return BareSeconds(us) if text.strip()[-1:].isdigit() else us


class _Time(_Type):
    name = "time"

    def read(self, text: str) -> When:
        return read_time(text)


class _Due(_Time):
    """When a message is due: of today only what is still to come."""

    def read(self, text: str) -> When:
        now_us = times.now_us()
        found = read_time(text, now_us)
        if found.due_us < now_us and _TODAY.search(text):
            clock = " ".join(_TODAY.sub(" ", text).split())
            raise BadArgument(
                f"{text.strip()!r} has passed: write 'tomorrow {clock}', or {clock} for the next one; --in 0 is now"
            )
        return found


class _MessageId(_Type):
    name = "id"

    def read(self, text: str) -> MessageId:
        return MessageId.parse(text.strip())


class _Sync(_Type):
    name = "sync"

    def read(self, text: str) -> float | str:
        if text in ("always", "never"):
            return text
        try:
            return parse_duration(text) / US_PER_S
        except BadArgument:
            raise BadArgument(f"{text!r} is not always, never or a duration such as 250ms or 0.5 (seconds)") from None


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMG]?)(i?B?)")
_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3}


class _Size(_Type):
    """Bytes, as dd(1) reads them: 64K and 64KiB are 65536, 64kB is 64000."""

    name = "size"

    def read(self, text: str) -> int:
        match = _SIZE.fullmatch(text.strip())
        if match is None or match[3] == "i" or (match[3] == "iB" and not match[2]):
            raise BadArgument(f"{text!r} is not a size: write 65536, 64K, 64KiB or 1MB")
        base = 1000 if match[2] and match[3] == "B" else 1024
        return int(float(match[1]) * base ** _POWER[match[2]])


class _Backoff(_Type):
    """The shortest and the longest wait before another try: 1s..5m."""

    name = "backoff"

    def read(self, text: str) -> tuple[int, int]:
        low, dots, high = text.partition("..")
        if not dots:
            high = low
        bounds = parse_duration(low), parse_duration(high)
        if bounds[0] > bounds[1]:
            raise BadArgument(f"{text!r}: the longest wait is shorter than the shortest")
        return bounds


class _Header(_Type):
    name = "header"

    def read(self, text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise BadArgument(f"{text!r} is not a header: write KEY=VALUE")
        return key, value


def pack_json(arguments: object) -> bytes:
    """Pack the JSON arguments of a call: a list is positional, an object has keyword arguments.

    Raises BadArgument for any other value.
    """
    if not isinstance(arguments, (list, dict)):
        shown = json.dumps(arguments)[:40]
        raise BadArgument(f"args are a JSON list, or an object of keyword arguments, not {shown}", hint='["ann", 2]')
    call = [arguments, {}] if isinstance(arguments, list) else [[], arguments]
    try:
        return json.dumps(call, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as exc:  # NaN, which is not JSON, or a lone surrogate
        raise BadArgument(f"args cannot be stored: {exc}") from None


class _JsonArgs(_Type):
    """The arguments of a handler."""

    name = "json"

    def read(self, text: str) -> bytes:
        try:
            return pack_json(json.loads(text))
        except ValueError as exc:
            if isinstance(exc, BadArgument):
                raise
            raise BadArgument(f"not JSON: {exc}") from None


DURATION = _Duration()
DELAY = _Delay()
TIME = _Time()
DUE = _Due()
MESSAGE_ID = _MessageId()
SYNC = _Sync()
SIZE = _Size()
BACKOFF = _Backoff()
HEADER = _Header()
JSON_ARGS = _JsonArgs()


def one_due(in_us: int | None, when: When | None, now_us: int) -> int | None:
    """Return the due time from --in or --at; None without both."""
    if in_us is not None and when is not None:
        raise click.UsageError("give --in or --at, not both")
    if in_us is not None:
        return check_due(now_us + in_us)
    return None if when is None else when.due_us


def require_due(in_us: int | None, when: When | None, now_us: int) -> int:
    """Return the due time from --in or --at; raise without both."""
    due_us = one_due(in_us, when, now_us)
    if due_us is None:
        raise click.UsageError("when? Give --in DUR or --at TIME (`--in 0` is now)")
    return due_us
