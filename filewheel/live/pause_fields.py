"""Pauses as JSON. The keys are a public API (docs/cli.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from filewheel.format.pauses import Pause, Pauses
from filewheel.message import Message
from filewheel.tools.dump import iso


def pause_fields(pause: Pause) -> dict[str, Any]:
    """Return the JSON fields of a pause."""
    return {
        "what": pause.what,
        "name": pause.name,
        "since": iso(pause.since_us),
        "since_us": pause.since_us,
        "why": pause.why,
    }


def all_fields(pauses: Iterable[Pause] | None) -> list[dict[str, Any]] | None:
    """Return the JSON of all pauses; None if they cannot be read."""
    return None if pauses is None else [pause_fields(pause) for pause in pauses]


def held_fields(message: Message, pauses: Pauses) -> dict[str, Any]:
    """Return the JSON field of a pending message that is paused: the pauses that hold it."""
    held = () if message.is_dead else pauses.of(message)
    return {"paused_by": [str(pause) for pause in held]} if held else {}
