"""The list of campaigns, and how to get one by its name.

A module of this package that is named here holds one `CAMPAIGN` (or several in `CAMPAIGNS`).
"""

from __future__ import annotations

import importlib

from tests.crash.campaign import Campaign

MODULES: list[str] = [
    "mutant", "fault", "sweep", "fault_cli", "kill", "scheduler", "cut", "full", "flip", "tools", "fuzz", "foreign",
    "clock", "zones", "replicas", "cut_sets", "admins", "pairs", "pairs_scheduler",
    "cancels", "movers", "model", "model_sets", "model_kafka", "schedule_kafka", "kafka_cluster",
]  # fmt: skip


def campaigns() -> list[Campaign]:
    """Return every campaign, in the order of the report."""
    found: list[Campaign] = []
    for name in MODULES:
        module = importlib.import_module(f"tests.crash.{name}")
        found += getattr(module, "CAMPAIGNS", None) or [module.CAMPAIGN]
    return found


def by_name(name: str) -> Campaign:
    """Return one campaign. Raises KeyError with the names there are."""
    table = {c.name: c for c in campaigns()}
    if name not in table:
        raise KeyError(f"no campaign {name!r}; there are {', '.join(table)}")
    return table[name]
