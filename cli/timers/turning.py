"""A hierarchical wheel that a trace turns, tick by tick, with what happens at each.

A timer that stopped leaves its slot at once. When the hand reaches a slot of a higher level, its timers move down: they
are demoted. Invariant: an event is reported once, at its tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from filewheel.timers import Entry, Hierarchical

from .trace import TraceStep


@dataclass(frozen=True)
class TraceEvent:
    """What happened to a timer. `place` is the level and the slot where it waits now, and `before` those of before."""

    tick: int
    what: str
    name: str
    due: int
    place: tuple[int, int] | None = None
    before: tuple[int, int] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the event as an object."""
        level, slot = self.place or (None, None)
        return {
            "tick": self.tick,
            "event": self.what,
            "timer": self.name,
            "due": self.due,
            "level": level,
            "slot": slot,
        }

    def text(self) -> str:
        """Return the event as a line."""
        if self.what == "start":
            return f"start   {self.name}, due {self.due}: {_shown(self.place)}"
        if self.what == "demote":
            return f"demote  {self.name}, due {self.due}: {_shown(self.before)} → {_shown(self.place)}"
        return f"{self.what:<7} {self.name}" + (f", due {self.due}" if self.what == "stop" else "")


def _shown(place: tuple[int, int] | None) -> str:
    return "fires at once" if place is None else f"level {place[0]} slot {place[1]}"


class TracePlayer:
    """The wheel of a trace. `frames` plays it; after each the picture may be drawn from `wheel`."""

    def __init__(self, steps: Sequence[TraceStep], slots: int, levels: int) -> None:
        self._steps = list(steps)
        self.wheel: Hierarchical[str] = Hierarchical((slots,) * levels, now=steps[0].tick)
        self._entries: dict[str, Entry[str]] = {}
        self._due: dict[str, int] = {}
        self.fired = 0

    def frames(self) -> Iterator[list[TraceEvent]]:
        """Play the trace to the last timer; yield the events of each tick that has any."""
        wheel = self.wheel
        while self._steps or len(wheel):
            events = self._advance()
            while self._steps and self._steps[0].tick <= wheel.now:
                events.append(self._do(self._steps.pop(0)))
            if events:
                yield events
            if self._steps or len(wheel):
                self._to = self._next_tick()

    _to: int | None = None

    def _next_tick(self) -> int:
        """Return the next tick at which something may happen: a step, a due, or a slot of a higher level."""
        wheel = self.wheel
        found = [self._steps[0].tick] if self._steps else []
        for entry in wheel:
            found.append(max(entry.due, wheel.now + 1))
            if (place := _place(entry)) is not None and place[0] > 1:
                span = wheel.spans[place[0] - 1]
                found.append((wheel.now // span + 1) * span)
        return min(found)

    def _advance(self) -> list[TraceEvent]:
        wheel = self.wheel
        now = wheel.now if self._to is None else self._to
        before = {name: place for name, entry in self._entries.items() if (place := _place(entry)) is not None}
        fired: list[TraceEvent] = []
        wheel.advance(now, lambda entry: fired.append(TraceEvent(now, "fire", entry.item, self._due[entry.item])))
        self.fired += len(fired)
        for event in fired:
            self._entries.pop(event.name)
        moved = [
            TraceEvent(now, "demote", name, self._due[name], place, before[name])
            for name, entry in self._entries.items()
            if (place := _place(entry)) is not None and name in before and before[name] != place
        ]
        return moved + fired

    def _do(self, step: TraceStep) -> TraceEvent:
        if step.delay is None:
            entry = self._entries.pop(step.name, None)
            if entry is None or not self.wheel.stop(entry):
                return TraceEvent(step.tick, "stop", f"{step.name} (it has fired)", self._due[step.name])
            return TraceEvent(step.tick, "stop", step.name, self._due[step.name])
        due = self._due[step.name] = step.tick + step.delay
        entry = self._entries[step.name] = self.wheel.start(due, step.name)
        return TraceEvent(step.tick, "start", step.name, due, _place(entry))


def _place(entry: Entry[str]) -> tuple[int, int] | None:
    slot = entry.slot
    return None if slot is None or slot.level < 1 else (slot.level, slot.index)
