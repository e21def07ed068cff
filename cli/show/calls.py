"""A message as the call of a handler: its arguments, its schedule and its attempts, for people and as JSON.

Messages may come from anywhere, so an unreadable call is shown as a plain message.
Invariant: nothing here raises for a message that the library could read.
"""

from __future__ import annotations

import base64
import json
from datetime import datetime
from typing import Any

from filewheel import Cron, Damaged, Message, StoredSchedule, Wheel, call_of, history_of, schedule_of
from filewheel.message import ARGS, SCHEDULE
from filewheel.scheduling.cron import Recurrence
from filewheel.timespec import parse_duration
from filewheel.tools.calls import count_calls, first_call
from filewheel.tools.dump import iso, to_json

from ..failure import Failure
from ..times import US_PER_S, to_datetime
from .text import RUN, WORK, count, span

_LOOKED_AT = 100_000


def pending_call(wheel: Wheel) -> Message | None:
    """Return the first pending message that only a scheduler may fire. Cost: reads the next 100,000 at most."""
    return first_call(wheel, _LOOKED_AT)


def overdue_advice(wheel: Wheel, overdue: int, now_us: int) -> list[str]:
    """Name the command that fires the overdue messages, a line each for calls of handlers and plain messages.

    Cost: that of `pending_call`, and of the next 100,000 where calls wait.
    """
    if pending_call(wheel) is None:
        return [f"{count(overdue, 'message')}; {RUN} fires {_them(overdue)}"]
    if overdue > _LOOKED_AT:
        return [f"{count(overdue, 'message')}; {WORK} fires the calls among them"]
    calls = count_calls(wheel, to_datetime(now_us))
    plain = overdue - calls
    lines = [f"{count(calls, 'call')}; {WORK} fires {_them(calls)}"] if calls else []
    if plain:
        lines.append(f"{count(plain, 'plain message')}; `work` fires those that have a handler of their topic")
    return lines


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def who_fires(wheel: Wheel) -> str:
    """Return the command that fires this wheel: `work` where calls of handlers wait. Cost: that of `pending_call`."""
    return RUN if pending_call(wheel) is None else WORK


def refused(message: Message) -> Failure:
    """Return why `run` does not fire a message: firing it here would lose the call, and end its schedule."""
    what = "an occurrence of a schedule" if SCHEDULE in message.headers else "a call of a handler"
    rest = f", or `filewheel cancel {message.id}`; `filewheel run --raw` would acknowledge it without calling it"
    if SCHEDULE in message.headers:
        rest = "; a cancel, or `filewheel run --raw`, would end the schedule"
    return Failure(
        "usage", f"message {message.id} is {what} ({message.topic}): only a scheduler may fire it", hint=WORK + rest
    )


def arguments_of(message: Message) -> tuple[list[Any], dict[str, Any]] | None:
    """Return a message's positional and keyword arguments; None if it has none that can be read."""
    if ARGS not in message.headers:
        return None
    try:
        _, args, kwargs = call_of(message)
        return args, kwargs
    except Damaged:
        return None


def call_text(message: Message) -> str | None:
    """Write a message's call as Python would: email('ann', times=2)."""
    arguments = arguments_of(message)
    if arguments is None:
        return None
    args, kwargs = arguments
    return f"{message.topic}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"


def message_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message, as each form of `inspect` prints them."""
    fields = to_json(message) | {"size": len(message.payload)} | call_fields(message)
    return fields if message.died_us is None else fields | {"died": iso(message.died_us)}


def call_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message's call."""
    fields: dict[str, Any] = {}
    arguments = arguments_of(message)
    if arguments is not None:
        fields["args"], fields["kwargs"] = (json.loads(json.dumps(part, default=_plain)) for part in arguments)
    attempts = history_of(message.headers)
    if attempts:
        fields["history"] = [{"at": iso(a.at_us), "attempt": a.attempt, "error": a.error} for a in attempts]
    definition = schedule_of(message)
    if definition is not None:
        fields["schedule"] = schedule_fields(definition)
    return fields


def _plain(value: object) -> object:
    """Convert a value of msgpack that JSON does not have."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    return value.isoformat() if isinstance(value, datetime) else repr(value)


# -- recurring work -------------------------------------------------------------------------------------------


def when_of(recurrence: Recurrence) -> tuple[str, str | None]:
    """Return a recurrence as `filewheel when` takes it, and its zone; an interval has none."""
    if isinstance(recurrence, Cron):
        return recurrence.text, recurrence.tz
    us = recurrence.interval_us
    text = span(us).replace(" ", "") if us % US_PER_S == 0 else ""
    # `span` shows two units; an interval with more is written in seconds.
    return f"every {text if _parsed_us(text) == us else f'{us / US_PER_S:.15g}s'}", None


def _parsed_us(text: str) -> int:
    return parse_duration(text) if text else -1


def schedule_fields(definition: StoredSchedule) -> dict[str, Any]:
    """Return the JSON fields of a schedule's definition."""
    when, zone = when_of(definition.recurrence)
    return {
        "name": definition.name,
        "when": when,
        "tz": zone,
        "missed": definition.missed,
        "declared": definition.is_declared,
    }


def schedule_text(definition: StoredSchedule) -> str:
    """Write a schedule's definition in a line."""
    when, zone = when_of(definition.recurrence)
    origin = "declared in a program" if definition.is_declared else "started at run time"
    return f"{definition.name}: {when}{f' in {zone}' if zone else ''}; missed: {definition.missed}; {origin}"
