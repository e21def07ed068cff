"""Whether a node is well, and if not, why: a list of problems, each with a partition, a sentence and a severity.

`failing`: something is not served, and stays so until somebody acts or the cluster answers. `warning`: all is served,
and it may hurt later.
Invariant: a problem is derived from the state of the node at this moment; nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from filewheel.errors import WheelFull
from filewheel.kafka.node.clock_guard import ClockGuard
from filewheel.kafka.node.fire import Stage
from filewheel.kafka.node.owner import Owned, State
from filewheel.kafka.node.watch import LogFigures
from filewheel.message import US_PER_S

SILENT_S = 30.0
"""A thread of the service that made no turn for so long is stuck. Brokers that gave no answer for so long are away."""
UNCONFIRMED_S = 10.0
"""A unit that had no answer for so long is reported. One that goes well has it in milliseconds."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be."""

    kind: str
    """A short name for it: `failed`, `disk_full`, `waits_for_cluster`, `stalled`, `unconfirmed`, `retention`,
    `stuck`, `clock`, `no_answer`."""
    severity: Literal["failing", "warning"]
    reason: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong with a node; nothing when `problems` is empty."""

    problems: Sequence[Problem]

    @property
    def is_serving(self) -> bool:
        """Whether everything that this node owns is served."""
        return not any(problem.severity == "failing" for problem in self.problems)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object for JSON."""
        status = "ok" if not self.problems else "warning" if self.is_serving else "failing"
        keys = ("kind", "severity", "partition", "reason")
        return {"status": status, "problems": [{key: getattr(p, key) for key in keys} for p in self.problems]}


def health_of(
    owned: Sequence[Owned],
    figures: Mapping[int, LogFigures],
    silent_s: Mapping[str, float],
    clock: ClockGuard,
    brokers: tuple[float, str] | None,
    steady_us: int,
) -> Health:
    """Return the health of a node: of its partitions, its logs and its threads.

    `brokers` says for how long none of them has answered, and why.
    """
    problems = [
        Problem("stuck", "failing", f"the {name} thread made no turn for {seconds:.0f} s")
        for name, seconds in silent_s.items()
        if seconds > SILENT_S
    ]
    if brokers is not None and brokers[0] > SILENT_S:
        problems.append(Problem("no_answer", "failing", f"no broker has answered for {brokers[0]:.0f} s: {brokers[1]}"))
    if clock.is_off:
        reason = f"the clock of this node is {(clock.offset_us or 0) / US_PER_S:+.1f} s off the brokers'"
        problems.append(Problem("clock", "warning" if clock.may_fire else "failing", reason))
    for one in owned:
        problems += _problems_of(one, figures.get(one.partition), steady_us)
    return Health(problems)


def _problems_of(owned: Owned, figures: LogFigures | None, steady_us: int) -> Iterator[Problem]:
    partition, error, firing = owned.partition, owned.error, owned.firing
    if owned.state is State.FAILED:
        yield Problem("failed", "failing", str(error), partition)
    elif isinstance(error, WheelFull):
        yield Problem("disk_full", "failing", str(error), partition)
    elif owned.state is State.RESTORING and error is not None:
        yield Problem("waits_for_cluster", "failing", str(error), partition)
    if firing is not None and firing.stage is Stage.BACKING_OFF:
        yield Problem("stalled", "warning", firing.reason, partition)
    waits_s = 0.0 if firing is None else firing.waits_us(steady_us) / US_PER_S
    if waits_s > UNCONFIRMED_S:  # mutant: kafka-unconfirmed-unseen
        reason = f"the brokers have not confirmed a unit for {waits_s:.0f} s; the records behind it wait"
        yield Problem("unconfirmed", "warning", reason, partition)
    if figures is not None and figures.is_short:
        when = (
            "the log deleted"
            if figures.margin_s is None or figures.margin_s < 0
            else (f"in {figures.margin_s:.0f} s the log deletes")
        )
        reason = f"{when} records that still wait: a lost wheel cannot be rebuilt then"
        yield Problem("retention", "warning", reason, partition)
