"""What the owner of a partition says about it, for `filewheel kafka status`: a note beside the committed offset.

The group keeps a text with each committed offset, so a note needs no topic and no port, and goes with the partition.
Nothing depends on one: a node never reads it, and an offset without one is as good.
Invariant: a packed note has at most BYTES_MAX bytes, and any text is understood: as a note, or as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from filewheel.errors import FilewheelError
from filewheel.kafka.node.health import NodeHealth
from filewheel.kafka.node.owner import Owned, PartitionState
from filewheel.message import US_PER_S

VERSION = 1
BYTES_MAX = 4000
"""Brokers refuse more than offset.metadata.max.bytes, 4,096 unless somebody changed it."""
_TEXT_MAX = 400
_US_PER_MS = 1000


@dataclass(frozen=True, slots=True)
class About:
    """What a node says about itself with each partition."""

    node: str = ""
    """The client id of the member of the group."""
    host: str = ""
    pid: int = 0
    data: str = ""
    keyed: bool = False
    standby: bool = False
    delivery: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """One partition at one time, as its owner saw it."""

    node: str
    host: str
    pid: int
    data: str
    keyed: bool
    standby: bool
    """Its owner also follows the partitions of others."""
    state: str
    waiting: int | None
    """None: not counted yet."""
    low: int | None
    late_ms: int
    """How late the earliest record is that has not gone out; 0 when none is overdue."""
    problem: str
    """Why it is not served, or may hurt soon; empty if all is well."""
    at_ms: int
    """When this was written, by the owner's clock."""
    delivery: str = ""
    """How its owner delivers, in words; empty from an older release."""

    def pack(self) -> str:
        """Return the text. The version comes first."""
        fields = {"v": VERSION, **asdict(self)}
        for name in ("node", "host", "data", "problem"):
            fields[name] = str(fields[name])[:_TEXT_MAX]
        text = json.dumps(fields, separators=(",", ":"))
        while len(text) > BYTES_MAX:  # characters beyond ASCII take six bytes each  # mutant: kafka-note-too-long
            longest = max(("node", "host", "data", "problem"), key=lambda name: len(json.dumps(fields[name])))
            fields[longest] = fields[longest][: len(fields[longest]) // 2]
            text = json.dumps(fields, separators=(",", ":"))
        return text

    @classmethod
    def unpack(cls, text: str | None) -> Note | None:
        """Read a text; None if it is no note, or one of a version with other fields."""
        try:
            fields = json.loads(text or "")
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or fields.get("v") != VERSION:
            return None
        try:
            return cls(**{name: _checked(name, fields[name]) for name in cls.__slots__ if name in fields})
        except TypeError:
            return None


_TYPES: Mapping[str, tuple[type, ...]] = {
    "pid": (int,),
    "keyed": (bool,),
    "standby": (bool,),
    "waiting": (int, type(None)),
    "low": (int, type(None)),
    "late_ms": (int,),
    "at_ms": (int,),
}


def _checked(name: str, value: Any) -> Any:
    if not isinstance(value, _TYPES.get(name, (str,))):
        raise TypeError(name)
    return value


def note_of(owned: Owned, about: About, health: NodeHealth, now_us: int) -> tuple[int, Note] | None:
    """Return the offset to commit for a partition, and its note; None for one that is being given away."""
    if owned.state not in (PartitionState.RESTORING, PartitionState.ACTIVE, PartitionState.FAILED):
        return None
    wheel, firing = owned.wheel, owned.firing
    waiting = low = None
    late_us = 0
    offset = owned.marker.ingested
    if wheel is not None:
        offset = max(offset, wheel.ingested)
        try:
            waiting = wheel.waiting
            low = None if waiting is None else wheel.low()
            in_hand_us = firing.first_due_us if firing is not None else None
            dues_us = [us for us in (wheel.next_due_us(), in_hand_us) if us is not None]
            late_us = max(now_us - min(dues_us), 0) if dues_us else 0
        except FilewheelError:  # closed meanwhile, or failed: its state says so
            pass
    found = [p for p in health.problems if p.partition in (owned.partition, None)]
    first = next((p for p in found if p.severity == "failing"), found[0] if found else None)
    return offset, Note(
        **asdict(about),
        state=owned.state.value,
        waiting=waiting,
        low=low,
        late_ms=late_us // _US_PER_MS,
        problem="" if first is None else f"{first.kind}: {first.reason}",
        at_ms=now_us * 1000 // US_PER_S,
    )
