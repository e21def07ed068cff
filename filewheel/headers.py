"""The headers that filewheel itself reads and writes: their names, and whom a message is for.

Headers are a message's own small map of text to text. Whatever starts with `filewheel.` belongs to filewheel; the
rest is the user's and is passed on untouched.
Invariant: each name stands here once, so that two modules cannot mean different things by it.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "filewheel."

REASON = "filewheel.reason"
"""Of a dead letter: why it died."""

HISTORY = "filewheel.history"
"""What became of earlier attempts: a JSON list of [when in µs, attempt, error text], the oldest first, bounded."""

ARGS = "filewheel.args"
"""How the payload holds a handler's arguments: "msgpack" is a packed [args, kwargs], "json" the same as JSON."""

KEY = "filewheel.key"
"""The unique key that the message holds while it lives."""

SKIP_LATE = "filewheel.skip_late_s"
"""How many seconds late it may start; later than that it is not fired but kept with the dead letters."""

COALESCE = "filewheel.coalesce"
"""A name: of the messages of one handler with this name that are overdue together, only the first is fired."""

DEADLINE = "filewheel.deadline_us"
"""The time, in microseconds since the epoch, from which on it must not be started."""

DUE = "filewheel.due_us"
"""Of a message that a limit of its handler put off: when it was due, in microseconds. SKIP_LATE counts from it."""

SCHEDULE = "filewheel.schedule"
"""Of an occurrence of recurring work: the definition that the next one is computed from, as JSON."""

TRACEPARENT = "traceparent"
"""W3C trace context, passed from whoever enqueued to the handler, and on to what the handler enqueues."""


def is_call(headers: Mapping[str, str]) -> bool:
    """Tell whether a message is a call of a handler or an occurrence of a schedule, so that a scheduler must fire it.

    Anything else that acknowledges it loses the call, and ends the schedule: only a scheduler writes what comes next.
    """
    return ARGS in headers or SCHEDULE in headers  # mutant: run-eats-calls
