"""What a node looks at for its health: the units of the watchdog, and the problems whose reason is known at once.

Invariant: nothing here waits for a lock of a wheel: a disk that hangs is what must be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from filewheel.errors import WheelFull
from filewheel.kafka.node.clock_guard import ClockGuard
from filewheel.kafka.node.health import NodeHealth, Problem
from filewheel.kafka.node.owner import Owned, PartitionState
from filewheel.kafka.node.watch import LogFigures
from filewheel.kafka.node.watchdog import Unit
from filewheel.message import US_PER_S


def health_of(
    owned: Sequence[Owned],
    figures: Mapping[int, LogFigures],
    clock: ClockGuard,
    stuck: Sequence[Problem],
    steady_us: int,
) -> NodeHealth:
    """Return the health of a node. `stuck`: what the watchdog found."""
    problems: list[Problem] = []
    if clock.is_off:
        reason = f"the clock of this node is {(clock.offset_us or 0) / US_PER_S:+.1f} s off the brokers'"
        problems.append(Problem("clock", "warning" if clock.may_fire else "failing", reason))
    for one in owned:
        problems += _problems_of(one, figures.get(one.partition), steady_us)
    known = {problem.partition for problem in problems if problem.severity == "failing"} - {None}
    return NodeHealth([*problems, *(problem for problem in stuck if problem.partition not in known)])


def _problems_of(owned: Owned, figures: LogFigures | None, steady_us: int) -> Iterator[Problem]:
    if owned.state is PartitionState.FAILED:
        yield Problem("failed", "failing", str(owned.error), owned.partition)
    elif isinstance(owned.error, WheelFull):
        yield Problem("disk_full", "failing", str(owned.error), owned.partition)
    for topic, why in owned.firing.refusals(steady_us) if owned.firing is not None else ():
        yield Problem("target", "warning", f"target {topic} refuses records: {why}", owned.partition)
    if figures is not None and figures.is_short:
        when = (
            "the log deleted"
            if figures.margin_s is None or figures.margin_s < 0
            else (f"in {figures.margin_s:.0f} s the log deletes")
        )
        reason = f"{when} records that still wait: a lost wheel cannot be rebuilt then"
        yield Problem("retention", "warning", reason, owned.partition)


def units_of(owned: Owned, figures: LogFigures | None, now_us: int | None) -> Iterator[Unit]:
    """Return the units of a partition. `now_us` is None while nothing may fire."""
    wheel, firing = owned.wheel, owned.firing
    if owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE):
        return
    name = f"partition {owned.partition}"
    ingested = None if wheel is None else wheel.ingested
    waits_for = _to_take_in(owned, ingested, figures)
    yield Unit(f"{name} took nothing in", (owned.state, ingested), waits_for, owned.partition)
    if firing is not None and now_us is not None:
        yield Unit(f"{name} delivered nothing", firing.marker.steps, firing.waits_for(now_us), owned.partition)


def _to_take_in(owned: Owned, ingested: int | None, figures: LogFigures | None) -> str | None:
    """Return what a partition has to read, or what keeps it from that; None if it has read everything."""
    if owned.error is not None:
        return str(owned.error)
    if owned.state is PartitionState.RESTORING:
        return "it waits to be opened" if ingested is None else f"its log is read from {ingested} to {owned.end}"
    if owned.queue:
        return f"{owned.queued} records were read, and are not in its wheel"
    if figures is not None and figures.end != ingested:
        return f"it has read its log up to offset {ingested}, and the log ends at {figures.end}"
    return None
