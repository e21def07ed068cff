"""The names of the headers that filewheel itself reads and writes.

Headers are a small map of text to text in each message. Names that start with `filewheel.` belong to filewheel; all
others are the user's, and are passed on unchanged.
Invariant: each name is defined here once.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "filewheel."

REASON = "filewheel.reason"
"""Why a dead letter was buried."""

HISTORY = "filewheel.history"
"""The earlier attempts: a bounded JSON list of [time in µs, attempt, error text], the oldest first."""

ARGS = "filewheel.args"
"""The encoding of a handler's arguments in the payload: [args, kwargs] as "msgpack" or as "json"."""

KEY = "filewheel.key"
"""The unique key that the message holds while it lives."""

SKIP_LATE = "filewheel.skip_late_s"
"""How many seconds late it may start; later it becomes a dead letter instead."""

COALESCE = "filewheel.coalesce"
"""A name: when several messages of one handler with this name are overdue, only the first fires."""

DEADLINE = "filewheel.deadline_us"
"""The time, in microseconds since the epoch, from which it must not start."""

DUE = "filewheel.due_us"
"""The first due, in microseconds, of a message that a limit of its handler deferred. SKIP_LATE counts from it."""

SCHEDULE = "filewheel.schedule"
"""The definition of recurring work, as JSON: the next occurrence is computed from it."""

TRACEPARENT = "traceparent"
"""W3C trace context, passed from the enqueue to the handler, and to the messages that the handler enqueues."""


def is_call(headers: Mapping[str, str]) -> bool:
    """Return whether a message is a call of a handler or an occurrence of a schedule, so that a scheduler must fire it.

    Any other consumer that acknowledges it loses the call, or ends the schedule: only a scheduler writes the next
    occurrence.
    """
    return ARGS in headers or SCHEDULE in headers  # mutant: run-eats-calls
