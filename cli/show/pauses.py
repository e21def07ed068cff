"""What is paused, for people and as JSON; and the lines with which a firing command reports a pause and a resume.

Invariant: names and reasons come from anywhere, so every text is made safe where it is printed.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from filewheel import Damaged, Pause, Pauses, Wheel
from filewheel.live.pause_fields import all_fields as all_fields
from filewheel.live.pause_fields import held_fields as held_fields
from filewheel.live.pause_fields import pause_fields as pause_fields

from .. import times
from .output import Output
from .text import away, second_time

_ROWS = 8


def pauses_of(wheel: Wheel) -> Pauses:
    """Return what is paused; nothing if that cannot be read, which `stats` counts as damage."""
    try:
        return wheel.paused()
    except Damaged:
        return Pauses()


def names(pauses: Iterable[Pause]) -> str:
    """Name pauses in a sentence."""
    return ", ".join(map(str, pauses))


def pause_text(pause: Pause, now_us: int) -> str:
    """Write a pause in a line: what, since when, and why."""
    why = f": {pause.why}" if pause.why else ""
    return f"{pause}, since {second_time(pause.since_us)}, {away(pause.since_us - now_us)}{why}"


def pause_rows(pauses: Pauses | None, now_us: int) -> list[str]:
    """Return a line for each pause, and one for those that are too many to show."""
    if pauses is None:
        return ["unknown: paused.json is damaged, and no keeper starts; `filewheel repair`"]
    rows = [pause_text(pause, now_us) for pause in list(pauses)[:_ROWS]]
    return rows if len(pauses) <= _ROWS else [*rows, f"and {len(pauses) - _ROWS} more; --json has them all"]


def resume_command(pause: Pause) -> str:
    """Return the command that ends a pause."""
    if pause.what == "wheel":
        return "`filewheel resume`"
    return f"`filewheel resume --{pause.what} {shlex.quote(pause.name)}`"


class Reporter:
    """Prints a line on stderr for each pause and each resume that a keeper has seen."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._before = Pauses()

    def look(self, now: Pauses) -> None:
        """Print what has changed since the last call."""
        if now is self._before:
            return
        before, self._before = self._before, now
        for pause in before:
            if now.find(pause) is None:
                self._out.note(f"resumed: {pause}")
        for pause in now:
            if before.find(pause) is None:
                self._out.note(f"paused: {pause_text(pause, times.now_us())}; {resume_command(pause)} ends it")
