"""What a campaign is: rounds, each known by its number, that count what they tried and say what went wrong.

A round is the unit that can be had again: everything that it draws at random comes from its number, so
`python -m tests.crash --round NAME:NUMBER` repeats it. It lasts at most a few seconds, so that a budget is kept.
Invariant: a tally is plain data; what crosses processes is counts and texts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Violation:
    """Something that the design promises and that did not hold."""

    campaign: str
    round: int
    text: str

    @property
    def again(self) -> str:
        """The command that shows it again."""
        return f"python -m tests.crash --round {self.campaign}:{self.round}"


@dataclass
class Tally:
    """What was tried, and what was found."""

    campaign: str
    round: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Reasons why something could not be tried here."""

    def count(self, what: str, n: int = 1) -> None:
        """Count something that was tried: "kills", "power cuts", "flips"."""
        self.counts[what] += n

    def violation(self, text: str) -> None:
        """Note that a promise was broken in the present round."""
        self.violations.append(Violation(self.campaign, self.round, text))

    def check(self, holds: object, text: str) -> None:
        """Note a violation unless something holds."""
        if not holds:
            self.violation(text)

    def skip(self, reason: str) -> None:
        """Note that something could not be tried on this machine."""
        self.skipped[reason] += 1

    def add(self, other: Tally) -> None:
        """Add what another tally of the same campaign holds."""
        self.counts += other.counts
        self.violations += other.violations
        self.skipped += other.skipped


@contextlib.contextmanager
def nothing_to_set_up() -> Iterator[None]:
    """The rig of a campaign that needs none."""
    yield None


def nothing_missing() -> str | None:
    """Say that a campaign can run anywhere."""
    return None


@dataclass(frozen=True)
class Campaign:
    """One way of trying to break a wheel."""

    name: str
    title: str
    """What the report says: "SIGKILL of producers, keeper and standby"."""
    play: Callable[[int, Tally, Any], None]
    """Play the round of this number: count what is tried, note what breaks. The rig comes last."""
    share: float
    """Its part of the budget, in proportion to those of the other campaigns."""
    targets: dict[str, int]
    """What a 60-minute run on two cores should count."""
    rig: Callable[[], contextlib.AbstractContextManager[Any]] = nothing_to_set_up
    """Set up what the rounds of one process use (a mounted image, a compiled shim), and clean up."""
    missing: Callable[[], str | None] = nothing_missing
    """Say what this machine lacks for it, or None."""
    rounds: int | None = None
    """How many different rounds there are, numbered from 0; None when each number is a new one."""
    short: int = 1
    """How many rounds the short form in `make test` plays at least; 0: none, a round is too long for it."""
    jobs_max: int | None = None
    """How many processes play it side by side at most; None: as many as there are cores."""
