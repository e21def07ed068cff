"""The schedules of a wheel, found without reading every message.

An occurrence names its schedule in a header, so a frame without the header's name is skipped by one search in its
bytes. That is about a second for five million messages; reading each would take six.
Invariant: every schedule whose occurrence was pending throughout is found, up to SCHEDULES_MAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from filewheel.disk.directory import Directory
from filewheel.errors import Damaged
from filewheel.format.pauses import Pauses
from filewheel.format.record import ID, readable_records, unpack_put
from filewheel.laps.window import spans_of
from filewheel.live.message_fields import schedule_fields
from filewheel.live.pause_fields import held_fields
from filewheel.lookup.snapshot import DEAD_FLOOR, Snapshot
from filewheel.message import SCHEDULE
from filewheel.schedules.definition import StoredSchedule, schedule_of
from filewheel.tools.dump import iso
from filewheel.wheel import Wheel

SCHEDULES_MAX = 2_000
"""More than this are not shown."""
_MARK = SCHEDULE.encode()
_TRIES = 4


@dataclass
class Schedules:
    """Schedules, each with the message that waits for its next time, or runs; the next to come is first."""

    found: list[StoredSchedule] = field(default_factory=list)
    is_cut: bool = False
    """There are more."""

    def to_json(self, pauses: Pauses) -> dict[str, Any]:
        """Return all fields."""
        found = [_fields(stored) | held_fields(stored.occurrence, pauses) for stored in self.found]
        return {"schedules": found, "cut": self.is_cut}


def _fields(stored: StoredSchedule) -> dict[str, Any]:
    message = stored.occurrence
    return {
        **schedule_fields(stored),
        "handler": message.topic,
        "next": iso(message.due_us),
        "next_us": message.due_us,
        "attempt": message.attempt,
        "id": str(message.id),
    }


def find_schedules(wheel: Wheel, directory: Directory) -> Schedules:
    """Find the schedules. Cost: reads every file, and the messages of the frames that name a schedule.

    Raises DiskError.
    """
    for _ in range(_TRIES):
        with wheel.snapshot() as snapshot:
            deal = snapshot.checkpoint.deal
            found = _sorted(snapshot, set(_candidates(snapshot, directory)))
            if snapshot.checkpoint.deal == deal:  # else a lap was opened while this read
                break
    return found


def refreshed(wheel: Wheel, known: Schedules) -> Schedules:
    """Return known schedules with their present occurrences. Cost: a look-up of a key each."""
    return Schedules([*wheel.schedules([stored.name for stored in known.found])], known.is_cut)


def _candidates(snapshot: Snapshot, directory: Directory) -> Iterator[bytes]:
    """Yield the ids of messages that may be occurrences; some may have ended."""
    for span in [*snapshot.journals, *spans_of(directory, snapshot.checkpoint, hi=DEAD_FLOOR)]:
        for frame in snapshot.frames(span):
            if _MARK in frame.body:
                yield from (put[ID] for put in readable_records(frame)[0] if _MARK in put and put[ID] < DEAD_FLOOR)


def _sorted(snapshot: Snapshot, ids: set[bytes]) -> Schedules:
    found = []
    for put in snapshot.find(ids).values():
        with contextlib.suppress(Damaged):
            stored = schedule_of(unpack_put(put))
            if stored is not None:
                found.append(stored)
    found.sort(key=lambda stored: (stored.occurrence.due_us, stored.name))
    return Schedules(found[:SCHEDULES_MAX], len(found) > SCHEDULES_MAX)
