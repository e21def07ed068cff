"""The wheels of a set, as JSON and as gauges: its epoch, and for each backup its state and how far it is behind.

Invariant: an unknown value of a backup that cannot be reached is None, and no sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from filewheel.metrics.metrics import PREFIX
from filewheel.metrics.prometheus import GAUGE, Family, Sample, gauge
from filewheel.tools.dump import iso
from filewheel.wheel import Wheel

if TYPE_CHECKING:  # loaded only where there is a set
    from filewheel.sets.status import MemberStatus, SetStatus

_STATES = ("joining", "current", "stale", "fenced", "damaged", "unreachable")


def set_of(wheel: Wheel) -> SetStatus | None:
    """Return the set of a wheel, with the wheel's own role; None when it stands alone.

    Cost: that of `set_status`; alone, one look-up of a missing file. Raises FilewheelError, OSError.
    """
    own = wheel.roster()
    if own is None:
        return None
    from filewheel.sets.status import set_status

    status = set_status(wheel.path)
    # The status may come from the primary; the role of this wheel comes from its own roster.
    return None if status is None else replace(status, roster=own)


def state_of(one: MemberStatus) -> str:
    """Return a backup's state, as far as it is visible now."""
    if one.is_broken or (one.reachable and one.lacks):
        return "damaged"
    return one.member.state if one.reachable else "unreachable"


def trouble_of(one: MemberStatus) -> str:
    """Return why a backup is no current copy that is followed; the empty string when it is."""
    state = state_of(one)
    why = one.why or one.member.why
    if state != "current":
        return f"{state} ({why})" if why else state
    if not one.following:
        return unfollowed(one)
    # Just after it became reachable again, the replicator has not compared it.
    return "not compared yet" if one.lag_bytes is None else ""


def is_read_only(one: MemberStatus) -> bool:
    """Return whether a backup is reachable but read-only: then even a running replicator cannot follow it."""
    return one.reachable and os.path.isdir(one.member.path) and not os.access(one.member.path, os.W_OK)


def unfollowed(one: MemberStatus) -> str:
    """Describe a backup that no replicator follows."""
    return "it cannot be written, so no replicator follows it" if is_read_only(one) else "no replicator follows it"


def member_fields(one: MemberStatus) -> dict[str, Any]:
    """Return a backup's JSON fields."""
    return {
        "path": one.member.path,
        "wheel": one.member.wheel,
        "mode": one.member.mode,
        "state": state_of(one),
        "since": iso(one.member.since_us) if one.member.since_us else None,
        "lag_messages": one.lag_messages,
        "lag_bytes": one.lag_bytes,
        "lag_s": one.lag_s,
        "following": one.following,
        "why": one.why or one.member.why,
    }


def set_fields(status: SetStatus) -> dict[str, Any]:
    """Return a set's JSON fields."""
    return {
        "role": status.roster.role,
        "epoch": status.roster.epoch,
        "primary": status.primary,
        "backups": [member_fields(one) for one in status.members],
    }


# -- gauges ----------------------------------------------------------------------------------------------------


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
