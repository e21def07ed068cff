"""Metrics of the command line: each has the wheel's path as a label, so that one monitor can watch many wheels.

It adds the gauges of a set of wheels.

Invariant: no label can control the terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from filewheel.metrics import GAUGE, PREFIX, Family, Sample, gauge, with_labels

from .members import state_of
from .text import safe

if TYPE_CHECKING:
    from filewheel import MemberStatus, SetStatus

_STATES = ("joining", "matching", "current", "stale", "fenced", "damaged", "unreachable")


def of_wheel(families: Iterable[Family], path: str) -> list[Family]:
    """Return families with the wheel as a label, and every label safe to print."""
    found = []
    for family in with_labels(families, {"wheel": os.path.abspath(path)}):
        # Two handlers may be equal after escaping, and a scraper refuses a text with a duplicate sample.
        samples = {(s.name, labels): Sample(s.name, labels, s.value) for s in family.samples for labels in [_safe(s)]}
        found.append(family._replace(samples=list(samples.values())))
    return found


def _safe(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple((name, safe(value)) for name, value in sample.labels)


# -- a set of wheels ------------------------------------------------------------------------------------------


def set_gauges(status: SetStatus) -> list[Family]:
    """Return the gauges of a set: its epoch, and for each backup its state and how far it is behind.

    An unknown value of a backup that cannot be reached is left out.
    """
    members = status.members
    states = [
        _sample("backup_state", one, int(state_of(one) == state), ("state", state))
        for one in members
        for state in _STATES
    ]
    return [
        gauge(f"{PREFIX}epoch", "The epoch of the wheel's set: raised with each promotion.", status.roster.epoch),
        gauge(f"{PREFIX}primary", "Whether this wheel is the one that fires.", int(status.roster.role == "primary")),
        _family("backup_state", "The state of a backup: 1 for the one that it is in.", states),
        _each("backup_following", "Whether a replicator follows.", members, lambda m: int(m.following)),
        _each("backup_lag_messages", "How many messages a backup is behind.", members, lambda m: m.lag_messages),
        _each("backup_lag_bytes", "How many bytes of journals a backup is behind.", members, lambda m: m.lag_bytes),
        _each("backup_lag_seconds", "How long a backup has been behind.", members, lambda m: m.lag_s),
    ]


def _each(
    name: str, help_: str, members: Iterable[MemberStatus], value_of: Callable[[MemberStatus], float | None]
) -> Family:
    found = [(one, value_of(one)) for one in members]
    return _family(name, help_, [_sample(name, one, value) for one, value in found if value is not None])


def _family(name: str, help_: str, samples: list[Sample]) -> Family:
    return Family(PREFIX + name, GAUGE, help_, samples)


def _sample(name: str, one: MemberStatus, value: float, *more: tuple[str, str]) -> Sample:
    return Sample(PREFIX + name, (("path", one.member.path), ("mode", one.member.mode), *more), value)
