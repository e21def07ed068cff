"""Campaign: every call on a wheel's files fails with every error that the kernel may return for it, once and for good.

The scenarios and the judge are those of the campaign of faults (fault.py); here nothing tears and nothing is killed,
but listings, looks and locks fail as writes and flushes do, for want of files, memory, room, permission, or a handle
that is stale.
Invariant: afterwards nothing confirmed is lost, nothing finished is back, and the error was one of our tree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.crash import fault, shim
from tests.crash.campaign import Campaign, Tally
from tests.crash.fault import Sweep

ROUNDS = 2500


@contextlib.contextmanager
def rig() -> Iterator[Sweep]:
    """Prepare as the campaign of faults does."""
    with fault.rig(shim.SWEEP) as sweep:
        yield sweep


def play(number: int, tally: Tally, sweep: Sweep) -> None:
    """Play every ROUNDS-th point, from the number on."""
    fault.play(number, tally, sweep, ROUNDS)


CAMPAIGN = Campaign(
    name="sweep",
    title="calls of every kind that fail with every error, once and for good",
    play=play,
    share=0.04,
    targets={"points": 8_000},
    rig=rig,
    missing=shim.missing,
    rounds=ROUNDS,
)
