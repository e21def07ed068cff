"""The rules of the protocol, each with the operation that switches it off, and the test that fails then.

The tags in capitals are the rules of docs/adr/0002-the-protocol.md; F is also a failed flush, U are unique keys (ADR 78),
V moves (ADR 28), B backups (ADR 16), M mirrored copies, C the delay service on Kafka. Other safeguards have no mark: a
test holds them. A mark in the source, `# mutant: NAME`, stands on
the statement that a mutant changes (tests/crash/mutate.py); tests/crash/operations.py has the changes. `killer` is what a
mutant is known to fall to: "word N" is workload N of tests/model/exhaustive.py, "seed N" a random history, "play NAME" a
directed script (tests/model/directed.py), "race NAME N" one of tests/model/races.py, "set N" and "saga N" histories of
sets (tests/crash/model_sets.py), "copy N" one of a copy (tests/model/copies.py), anything else a test; "@N" says how many states the search (hunt.py) had tried when it
fell. The campaign in mutant.py plays it again, and the mutant must fall.
Imports nothing of the library: this is read before it is loaded.
"""

from __future__ import annotations

from tests.crash.mutants import (
    backups,
    copies,
    disk,
    firing,
    journal,
    kafka,
    kafka_calls,
    kafka_people,
    keys,
    laps,
    limits,
    links,
    reading,
    scheduling,
    sets,
)
from tests.crash.mutants.entry import Mutant

__all__ = ["MUTANTS", "Mutant", "by_name"]

MUTANTS: list[Mutant] = [
    *journal.MUTANTS,
    *copies.MUTANTS,
    *laps.MUTANTS,
    *firing.MUTANTS,
    *keys.MUTANTS,
    *disk.MUTANTS,
    *scheduling.MUTANTS,
    *limits.MUTANTS,
    *reading.MUTANTS,
    *backups.MUTANTS,
    *sets.MUTANTS,
    *links.MUTANTS,
    *kafka.MUTANTS,
    *kafka_calls.MUTANTS,
    *kafka_people.MUTANTS,
]


def by_name(name: str) -> Mutant:
    """Return one mutant."""
    return next(m for m in MUTANTS if m.name == name)
