"""What runs, and how it ended, as JSON. The keys are a public API (docs/cli.md).

Invariant: an unknown time or place is None.
"""

from __future__ import annotations

from typing import Any

from filewheel.message import US_PER_S, Message
from filewheel.runs.run import Ended, Run, Running
from filewheel.tools.dump import iso


def run_fields(run: Run, now_us: int) -> dict[str, Any]:
    """Return the JSON fields of a claimed message."""
    return {
        "id": str(run.id),
        "first_id": str(run.first_id),
        "topic": run.topic,
        "key": run.key,
        "schedule": run.schedule,
        "state": run.state,
        "due": iso(run.due_us),
        "due_us": run.due_us,
        "attempt": run.attempt,
        "running_since_us": run.begun_us,
        "runs_s": None if run.begun_us is None else max(0, now_us - run.begun_us) / US_PER_S,
        "where": None if run.place is None else str(run.place),
    }


def running_fields(running: Running, now_us: int, limit: int) -> dict[str, Any]:
    """Return the JSON fields of what a keeper has claimed: counts, and the first that run."""
    return {
        "keeper": running.has_keeper,
        "running": running.begun,
        "claimed": running.claimed,
        "age_s": running.age_us(now_us) / US_PER_S,
        "stale": running.is_stale(now_us),
        "runs": [run_fields(run, now_us) for run in running[:limit]],
    }


def ended_fields(ended: Ended) -> dict[str, Any]:
    """Return the JSON fields of the end of an attempt."""
    return {
        "id": str(ended.id),
        "first_id": str(ended.first_id),
        "topic": ended.topic,
        "key": ended.key,
        "schedule": ended.schedule,
        "outcome": ended.outcome,
        "error": ended.error,
        "attempt": ended.attempt,
        "where": ended.place or None,
        "due": iso(ended.due_us),
        "due_us": ended.due_us,
        "begun": None if ended.begun_us is None else iso(ended.begun_us),
        "begun_us": ended.begun_us,
        "ended": iso(ended.ended_us),
        "ended_us": ended.ended_us,
        "took_us": ended.took_us,
        "moved_to": None if ended.moved_to is None else str(ended.moved_to),
    }


def state_fields(message: Message, running: Running) -> dict[str, Any]:
    """Return the JSON fields of a pending message's state."""
    state = running.pending_state(message.id)
    fields: dict[str, Any] = {"state": state}
    run = running.find(message.id) if state == "running" else None
    if run is not None and run.begun_us is not None and run.place is not None:
        fields |= {
            "running_since": iso(run.begun_us),
            "running_since_us": run.begun_us,
            "where": run.place.kind,
            "thread": run.place.name or None,
            "pid": run.place.pid,
        }
    return fields
