"""The wheel at a glance, as one object: what the page gets each second, and what `top` prints when it is piped.

Invariant: a part that cannot be read is None, and its reason is in `troubles`; the others are there all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from filewheel.errors import FilewheelError
from filewheel.live.backups import set_fields
from filewheel.live.pause_fields import all_fields
from filewheel.live.run_fields import running_fields
from filewheel.live.stats_fields import stats_fields
from filewheel.live.wheel_view import WheelView
from filewheel.message import US_PER_S
from filewheel.tools.dump import iso

T = TypeVar("T")

RUNS_SHOWN = 20
"""Of what runs, so many are in each tick."""


class _Parts:
    """Reads parts of a view, and notes those that cannot be read."""

    def __init__(self) -> None:
        self.troubles: list[dict[str, Any]] = []

    def read(self, name: str, part: Callable[[], T]) -> T | None:
        try:
            return part()
        except FilewheelError as exc:
            place = f"{exc.path}: " if exc.path else ""
            self.troubles.append({"part": name, "error": exc.kind, "message": f"{place}{exc.what}", "hint": exc.hint})
            return None


def live_fields(view: WheelView) -> dict[str, Any]:
    """Return what changes from second to second.

    Cost: a few milliseconds, and what of the view is old. Raises as opening the wheel does.
    """
    wheel = view.wheel()
    parts = _Parts()
    stats = parts.read("stats", view.stats)
    turning = parts.read("turning", view.turning)
    rates = parts.read("rates", view.rates)
    running = parts.read("running", view.running)
    backups = parts.read("backups", view.backups)
    pauses = parts.read("paused", view.paused)
    now_us = view.now_us()
    counts = None if stats is None else stats_fields(stats.value) | {"age_s": stats.age_us(now_us) / US_PER_S}
    return {
        "now": iso(now_us),
        "now_us": now_us,
        "wheel": view.path,
        "stats": counts,
        "paused": all_fields(pauses),
        "lag_s": None if turning is None else turning.value.lag_us / US_PER_S,
        "turning": None if turning is None else turning.value.to_json(),
        "rates": None if rates is None else rates.to_json(),
        "running": None if running is None else running_fields(running.value, now_us, RUNS_SHOWN),
        "set": None if backups is None or backups.value is None else set_fields(backups.value),
        "notes": wheel.notes,
        "troubles": parts.troubles,
    }


def ahead_fields(view: WheelView) -> dict[str, Any]:
    """Return the time ahead. Raises FilewheelError."""
    seen = view.ahead()
    return seen.value.to_json() | {"age_s": seen.age_us(view.now_us()) / US_PER_S, "took_s": seen.took_us / US_PER_S}


def overview_fields(view: WheelView) -> dict[str, Any]:
    """Return all that `top` shows. Raises as opening the wheel does."""
    fields = live_fields(view)
    parts = _Parts()
    fields["ahead"] = parts.read("ahead", lambda: ahead_fields(view))
    fields["troubles"] += parts.troubles
    return fields
