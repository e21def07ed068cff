"""Schedules for people and as JSON: what is planted, and the list of all.

`schedule list` and `inspect schedules` are this list.
Invariant: a damaged place is reported, after the rest was printed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from filewheel import Pauses, Running, StoredSchedule, Wheel, schedule_of
from filewheel.tools.dump import iso

from .. import times
from ..failure import Failure, check_damage
from .calls import call_text, schedule_fields, shown_payload, when_of
from .output import Column, Output
from .pauses import held_fields, pauses_of
from .runs import running_of, state_words
from .text import away, full_time, short_time, show_bytes

_WHOLE = 110
"""A narrower terminal omits how far away the next one is, and FROM; JSON has them."""


def list_schedules(out: Output, name: str | None) -> None:
    """Print the schedules of this name or glob. Reads every pending message."""
    with out.wheel() as wheel, wheel.snapshot() as snapshot, out.progress("looking", None) as progress:

        def each() -> Iterator[StoredSchedule]:
            for number, message in enumerate(snapshot.messages()):
                progress.at(number)
                stored = schedule_of(message)
                if stored is not None and (name is None or stored.name == name or fnmatchcase(stored.name, name)):
                    yield stored

        found = [*each()]
        places = len(snapshot.problems())
        pauses = pauses_of(wheel)
        running = running_of(out, wheel) if found else Running()
    if out.wants_json:
        for stored in found:
            out.record(fields_of(stored) | held_fields(stored.occurrence, pauses))
    elif found:
        _print_table(out, found, pauses, running)
    check_damage(places)
    if not found and name is not None and not any(c in name for c in "*?["):
        raise Failure("not-found", f"there is no schedule {name!r}", hint="`filewheel schedule list` shows them")
    if not found and not out.wants_json:
        out.note("no recurring work" if name is None else "no recurring work of that name")


def fields_of(stored: StoredSchedule) -> dict[str, object]:
    """Return the JSON fields of a schedule and its next occurrence."""
    message = stored.occurrence
    return {
        **schedule_fields(stored),
        "handler": message.topic,
        "topic": message.topic,
        "body": show_bytes(message.payload) if stored.is_plain else call_text(message),
        "next": iso(message.due_us),
        "next_us": message.due_us,
        "attempt": message.attempt,
        "id": str(message.id),
    }


def print_planted(out: Output, wheel: Wheel, name: str, done: str) -> None:
    """Print a schedule that was planted: a line, or JSON with what was `done`."""
    found = wheel.schedules(name)
    for stored in found:
        if out.wants_json:
            out.record({**fields_of(stored), "done": done})
        else:
            due_us = stored.occurrence.due_us
            out.write(f"{done} {stored.name}: next {full_time(due_us)}, {away(due_us - times.now_us())}")
    if not found:
        out.note(f"{done} {name}: its last occurrence has fired already")


def _print_table(out: Output, found: list[StoredSchedule], pauses: Pauses, running: Running) -> None:
    now_us = times.now_us()
    wide = not out.stdout_is_terminal or out.columns >= _WHOLE
    columns = [
        Column("NAME", 30), Column("WHEN", 30), Column("ZONE", 20), Column.date("NEXT (local)"),
        *([Column.away("")] if wide else []),
        Column("TOPIC", 30), Column("MISSED"), *([Column("FROM", 30)] if wide else []), Column("BODY", 60),
    ]  # fmt: skip
    rows = []
    for stored in found:
        message = stored.occurrence
        when, zone = when_of(stored.recurrence)
        due_us = message.due_us
        is_paused = bool(pauses.of(message))
        state = state_words(message, running, now_us)
        state = "paused" if state == "waiting" and is_paused else state
        next_ = short_time(due_us, now_us) if wide or state == "waiting" else state
        away_ = away(due_us - now_us) if state == "waiting" else state
        origin = "program" if stored.is_declared else stored.source or "run time"
        body = show_bytes(shown_payload(message)) if stored.is_plain else call_text(message) or ""
        rows.append(
            (stored.name, when, zone or "", next_, *([away_] if wide else []), message.topic,
             stored.missed, *([origin] if wide else []), body.strip())
        )  # fmt: skip
    out.table(columns, rows)
    for stored in found:
        if why := stored.occurrence.waits or stored.unreadable:
            out.warn(f"{stored.name}: {why}")
