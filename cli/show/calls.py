"""A message as the call of a handler: its arguments, its schedule and its attempts, for people and as JSON.

Messages may come from anywhere, so an unreadable call is shown as a plain message.
Invariant: nothing here raises for a message that the library could read.
"""

from __future__ import annotations

from collections.abc import Callable

from filewheel import Message, Overdue, PlainOccurrences, StoredSchedule, Wheel, schedule_of
from filewheel.live.message_fields import arguments_of as arguments_of
from filewheel.live.message_fields import call_fields as call_fields
from filewheel.live.message_fields import call_text as call_text
from filewheel.live.message_fields import message_fields as message_fields
from filewheel.live.message_fields import schedule_fields as schedule_fields
from filewheel.live.message_fields import shown_payload as shown_payload
from filewheel.live.message_fields import when_of as when_of
from filewheel.message import SCHEDULE
from filewheel.tools.calls import count_calls, first_call

from ..failure import Failure
from ..times import to_datetime
from .text import RUN, RUN_JOBS, WORK, count

_LOOKED_AT = 100_000


def pending_call(wheel: Wheel, is_call: Callable[[Message], bool] = PlainOccurrences.refuses) -> Message | None:
    """Return the first pending message that only a scheduler may fire. Cost: reads the next 100,000 at most."""
    return first_call(wheel, _LOOKED_AT, is_call)


def is_work(message: Message) -> bool:
    """Return whether a message is a call, or an occurrence: to write its body to stdout is not to do it."""
    return SCHEDULE in message.headers or PlainOccurrences.refuses(message)


def overdue_advice(wheel: Wheel, due: Overdue, now_us: int) -> list[str]:
    """Name the command that fires the overdue messages, a line each for calls of handlers and plain messages.

    Cost: that of `pending_call`, and of the next 100,000 where calls wait.
    """
    overdue = due.count
    if pending_call(wheel) is None:
        return [f"{count(overdue, 'message')}; {who_fires(wheel)} fires {_them(overdue)}"]
    if due.paused:
        return [f"{count(overdue, 'message')} beside the paused; {WORK} fires the calls among them"]
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
    if pending_call(wheel) is not None:
        return WORK
    return RUN if pending_call(wheel, is_work) is None else RUN_JOBS


def refused(message: Message) -> Failure:
    """Return why `run` does not fire a message: firing it here would lose the call or the work, or end its schedule."""
    stored = schedule_of(message)
    if stored is not None and stored.is_plain:
        return Failure(
            "usage", f"message {message.id} is an occurrence of the schedule {stored.name!r}: without a COMMAND its "
            "body would be written to stdout, and count as done",
            hint="`filewheel run -- sh` runs it; `filewheel run --raw` writes it, and the schedule goes on",
        )  # fmt: skip
    what = "an occurrence of a schedule" if SCHEDULE in message.headers else "a call of a handler"
    rest = f", or `filewheel cancel {message.id}`; `filewheel run --raw` would acknowledge it without calling it"
    if SCHEDULE in message.headers:
        rest = "; a cancel, or `filewheel run --raw`, would end the schedule"
    return Failure(
        "usage", f"message {message.id} is {what} ({message.topic}): only a scheduler may fire it", hint=WORK + rest
    )


def schedule_text(definition: StoredSchedule) -> str:
    """Write a schedule's definition in a line, or why it cannot be read."""
    if definition.unreadable:
        return f"{definition.name}: cannot be read: {definition.unreadable}"
    when, zone = when_of(definition.recurrence)
    origin = "declared in a program" if definition.is_declared else "started at run time"
    return f"{definition.name}: {when}{f' in {zone}' if zone else ''}; missed: {definition.missed}; {origin}"
