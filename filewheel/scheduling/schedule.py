"""A schedule of calls: a definition, and the handler that each occurrence calls.

A schedule has exactly one living occurrence: an ordinary message that holds the key of the schedule's name and stores
its definition (schedules/definition.py). Any number of programs may define the same schedule: the key admits one.
Invariant: a changed definition replaces what the living occurrence stores, and its due only before that has come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel.errors import BadArgument
from filewheel.format.limits import check_topic
from filewheel.message import ARGS
from filewheel.schedules.definition import Definition
from filewheel.schedules.planting import Plant
from filewheel.scheduling.call import check_callable, pack_call
from filewheel.scheduling.options import OnConflict
from filewheel.values import Encode


@dataclass(frozen=True)
class Schedule:
    """A schedule of calls."""

    definition: Definition
    handler: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    encode: Encode | None = field(default=None, compare=False)
    """The scheduler's own way to store arguments."""

    def __post_init__(self) -> None:
        check_topic(self.handler)
        if not self.handler:
            raise BadArgument("a schedule names the handler that it calls")
        check_callable(self.handler)
        self.packed()  # raises for arguments that cannot be stored

    @property
    def name(self) -> str:
        """Its name."""
        return self.definition.name

    def packed(self) -> tuple[bytes, str]:
        """Return the arguments as bytes, and how they are packed."""
        return pack_call(self.args, self.kwargs, self.encode)

    def plant(self, on_conflict: OnConflict = "replace") -> Plant:
        """Return it as a wheel plants it."""
        payload, how = self.packed()
        return Plant(self.definition, payload, self.handler, {ARGS: how}, on_conflict)
