"""Whether a node is well, and if not, why: a list of problems, each with a partition, a sentence and a severity.

`failing`: something is not served, and stays so until somebody acts or the cluster answers. `warning`: all is served,
and it may hurt later. What stands still for another reason than those here is found by watchdog.py.
Invariant: reading the health changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be."""

    kind: str
    """A short name for it: `failed`, `disk_full`, `stuck`, `target`, `clock`, `retention`."""
    severity: Literal["failing", "warning"]
    reason: str
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class NodeHealth:
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
