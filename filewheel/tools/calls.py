"""The pending messages that only a scheduler may fire: calls of handlers, and occurrences of schedules of calls.

Invariant: an unreadable message is not a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice

from filewheel.errors import Damaged
from filewheel.format.record import unpack_put
from filewheel.lookup.snapshot import Filter
from filewheel.message import ARGS, SCHEDULE, Message, MessageId
from filewheel.reader import Reader
from filewheel.schedules.occurrences import only_a_scheduler_fires

_MARKS = (ARGS.encode(), SCHEDULE.encode())


def _calls(puts: Iterable[bytes], is_call: Callable[[Message], bool] = only_a_scheduler_fires) -> Iterator[Message]:
    for put in puts:
        if any(mark in put for mark in _MARKS):  # a filter: few other messages are unpacked
            with contextlib.suppress(Damaged):
                message = unpack_put(put)
                if is_call(message):
                    yield message


def first_call(wheel: Reader, limit: int, is_call: Callable[[Message], bool]) -> Message | None:
    """Return the first call among the next `limit` messages, or occurrence that counts as one; None without any."""
    with wheel.snapshot() as snapshot:
        return next(_calls(islice(snapshot.puts(), limit), is_call), None)


def count_calls(wheel: Reader, before: datetime | float) -> int:
    """Count the calls that are due before a time. Cost: reads every message that is due before it."""
    with wheel.snapshot() as snapshot:
        which = Filter.of(before=before)
        return sum(1 for _ in _calls(snapshot.puts(which.lo, which.hi)))


def calls_among(wheel: Reader, ids: Iterable[MessageId]) -> dict[MessageId, Message]:
    """Return the calls among the messages with these ids. Cost: as `Snapshot.find`."""
    with wheel.snapshot() as snapshot:
        return {message.id: message for message in _calls(snapshot.find(ids).values())}
