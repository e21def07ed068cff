"""A message as the call of a handler: its arguments, its schedule and its attempts, as JSON and as a line of text.

Messages may come from anywhere, so an unreadable call is shown as a plain message. The keys of the JSON are a public
API (docs/cli.md).
Invariant: nothing here raises for a message that the library could read.
"""

from __future__ import annotations

import base64
import json
import math
import re
from dataclasses import replace
from datetime import date, time, timedelta
from typing import Any

from filewheel import message as names
from filewheel.errors import Damaged
from filewheel.message import ARGS, US_PER_S, Message
from filewheel.schedules.cron import Cron
from filewheel.schedules.definition import StoredSchedule, schedule_of
from filewheel.schedules.recurrence import Once, Recurrence, Unreadable
from filewheel.scheduling.call import call_of
from filewheel.timespec import parse_duration, span
from filewheel.tools.dump import iso, to_json

_DAY_US = 86_400 * US_PER_S
NEST_MAX = 100
"""Arguments that are nested deeper are shown as a payload."""
ROW_CHARS = 200
"""How much of a payload, or of a call, a row shows."""
PAYLOAD_SHOWN = 1 << 16
"""How many bytes of a payload the view of one message has; a longer one is not read as a call."""


def arguments_of(message: Message) -> tuple[list[Any], dict[str, Any]] | None:
    """Return a message's positional and keyword arguments; None if it has none that can be read."""
    if ARGS not in message.headers:
        return None
    try:
        _, args, kwargs = call_of(message)
    except Damaged:
        return None
    return (args, kwargs) if _is_shallow([args, kwargs]) else None


def _is_shallow(value: object) -> bool:
    """Return whether a value is nested less than NEST_MAX: Python writes none as text that is nested too deeply."""
    inner: list[Any] = [value]
    for _ in range(NEST_MAX):
        inner = [
            part
            for one in inner
            for part in (one.values() if isinstance(one, dict) else one)
            if isinstance(part, (list, dict))
        ]
        if not inner:
            return True
    return False


def call_text(message: Message) -> str | None:
    """Write a message's call as Python would: email('ann', times=2)."""
    arguments = arguments_of(message)
    if arguments is None:
        return None
    return names.call_text(message.topic, *arguments)


def message_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message, as each form of `inspect` prints them."""
    fields = to_json(message) | {"size": len(message.payload)} | call_fields(message)
    return fields if message.died_us is None else fields | {"died": iso(message.died_us)}


def row_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message as a row of a list: `text` is the beginning of its call or payload."""
    call = _short_call(message)
    text = shown_payload(message)[:ROW_CHARS].decode("utf-8", "backslashreplace") if call is None else call
    fields: dict[str, Any] = {
        "id": str(message.id),
        "due": iso(message.due_us),
        "due_us": message.due_us,
        "topic": message.topic,
        "key": message.key,
        "text": text[:ROW_CHARS],
        "is_call": call is not None,
        "size": len(message.payload),
        "attempt": message.attempt,
    }
    if message.schedule_name is not None:
        fields["schedule"] = message.schedule_name
    if message.waits is not None:
        fields["waits"] = message.waits
    if message.died_us is not None:
        fields |= {"died": iso(message.died_us), "died_us": message.died_us, "reason": message.reason}
    return fields


def _short_call(message: Message) -> str | None:
    if ARGS in message.headers and len(message.payload) > PAYLOAD_SHOWN:
        return f"{message.topic}(... {len(message.payload):,} bytes)"
    return call_text(message)


def whole_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of one message, as `inspect ID` does; of a long payload only the beginning."""
    size = len(message.payload)
    if size > PAYLOAD_SHOWN:
        headers = {name: value for name, value in message.headers.items() if name != ARGS}
        message = replace(message, payload=message.payload[:PAYLOAD_SHOWN], headers=headers)
    fields = message_fields(message) | {"size": size, "payload_cut": size > PAYLOAD_SHOWN}
    text = call_text(message)
    return fields if text is None else fields | {"call": text[:PAYLOAD_SHOWN]}


def call_fields(message: Message) -> dict[str, Any]:
    """Return the JSON fields of a message's call."""
    fields: dict[str, Any] = {}
    arguments = arguments_of(message)
    if arguments is not None:
        fields["args"], fields["kwargs"] = map(json_of, arguments)
    attempts = message.attempts
    if attempts:
        fields["attempts"] = [
            {"at": iso(a.at_us), "attempt": a.attempt, "error": a.error, "details": a.details} for a in attempts
        ]
    definition = schedule_of(message)
    if definition is not None:
        fields["schedule"] = schedule_fields(definition)
    elif message.schedule_name is not None:
        fields["schedule"] = {"name": message.schedule_name}
    return fields


_ENVIRONMENT = re.compile(
    rb"""(?:(?:export[ ]+)?[A-Za-z_][A-Za-z0-9_]*=(?:'[^'\n]*'|"[^"\n]*"|[^\s'"`$;&|<>()])*\n)+(?=.)""", re.DOTALL
)


def shown_payload(message: Message) -> bytes:
    """Return the payload as a list shows it: of a schedule without the variables that its crontab sets first."""
    found = _ENVIRONMENT.match(message.payload) if message.schedule_name is not None else None
    return message.payload if found is None else message.payload[found.end() :]


def json_of(value: Any) -> Any:
    """Return a stored value as JSON has it: texts in the place of other kinds, of odd keys, and of NaN and infinity."""
    if isinstance(value, dict):
        return {_key_of(key): json_of(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_of(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _key_of(key: Any) -> str:
    if isinstance(key, bytes):
        return key.decode("utf-8", "backslashreplace")
    return key if isinstance(key, str) else json.dumps(key)


# -- recurring work -------------------------------------------------------------------------------------------


def when_of(recurrence: Recurrence | Unreadable) -> tuple[str, str | None]:
    """Return a recurrence as `filewheel when` takes it, or a single time, and the zone; only cron has one."""
    if isinstance(recurrence, Cron):
        return recurrence.text, recurrence.tz
    if isinstance(recurrence, Unreadable):
        return recurrence.text, None
    if isinstance(recurrence, Once):
        return f"at {iso(recurrence.at_us).replace('.000000Z', 'Z')}", None
    us = recurrence.interval_us
    if us % _DAY_US == 0:
        return f"every {us // _DAY_US}d", None  # a year is not read: it has no fixed length
    text = span(us).replace(" ", "") if us % US_PER_S == 0 and us < 365 * _DAY_US else ""
    # `span` shows two units; an interval with more is written in seconds.
    return f"every {text if text and parse_duration(text) == us else f'{us / US_PER_S:.15g}s'}", None


def schedule_fields(definition: StoredSchedule) -> dict[str, Any]:
    """Return the JSON fields of a schedule's definition; `start` to `waits` are missing where they are not set."""
    when, zone = when_of(definition.recurrence)
    more: dict[str, Any] = {
        "start": None if definition.start_us is None else iso(definition.start_us),
        "end": None if definition.end_us is None else iso(definition.end_us),
        "jitter_s": definition.jitter_us / US_PER_S or None,
        "count": definition.count,
        "left": definition.left,
        "source": definition.source or None,
        "unreadable": definition.unreadable or None,
        "waits": definition.occurrence.waits,
    }
    return {
        "name": definition.name,
        "when": when,
        "tz": zone,
        "missed": definition.missed,
        "declared": definition.is_declared,
        **{name: value for name, value in more.items() if value is not None},
    }
