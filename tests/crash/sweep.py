"""Campaign: every call on a wheel's files fails with every error that the kernel may return for it, once and for good.

The scenarios and the judge are those of the campaign of faults (fault.py), and beside them those of sets of wheels
(set_scenarios.py) and of schedulers (scheduler_scenarios.py); here nothing tears and nothing is killed, but listings,
looks, locks and closes fail as writes and flushes do, for want of files, memory, room, permission, or a handle that is
stale.
The points come in an order in which each kind (scenario, call, error, once or for good) comes before any comes again,
so that whatever share of them is played has some of each.
Invariant: afterwards nothing confirmed is lost, nothing finished is back, and the error was one of our tree.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

from tests.crash import fault, shim
from tests.crash.campaign import Campaign, Tally
from tests.crash.fault import Point, Sweep
from tests.crash.scenarios import SCENARIOS
from tests.crash.scheduler_scenarios import SCHEDULER_SCENARIOS
from tests.crash.set_scenarios import SET_SCENARIOS, alone

ROUNDS = 20_000
_ORDER = 20261123


@contextlib.contextmanager
def rig() -> Iterator[Sweep]:
    """Prepare as the campaign of faults does."""
    with alone(), fault.rig(shim.SWEEP, SCENARIOS | SET_SCENARIOS | SCHEDULER_SCENARIOS) as sweep:
        sweep.points = in_turn(sweep.points)
        yield sweep


def in_turn(points: list[Point]) -> list[Point]:
    """Return the points, one of each kind, then another one of each kind, and so on; always in the same order."""
    rng = random.Random(_ORDER)
    kinds: dict[tuple[str, str, str, int], list[Point]] = defaultdict(list)
    for point in points:
        kinds[point.scenario, point.plan.kind, point.plan.action, point.plan.code].append(point)
    rows = list(kinds.values())
    rng.shuffle(rows)
    for row in rows:
        rng.shuffle(row)
    return [point for turn in itertools.zip_longest(*rows) for point in turn if point is not None]


def play(number: int, tally: Tally, sweep: Sweep) -> None:
    """Play the points of this number, which follow those of the number before."""
    size = -(-len(sweep.points) // ROUNDS)
    fault.play_points(sweep.points[number * size : (number + 1) * size], tally, sweep)


CAMPAIGN = Campaign(
    name="sweep",
    title="calls of every kind that fail with every error, once and for good",
    play=play,
    share=0.04,
    targets={"points": 8_000},
    rig=rig,
    missing=shim.missing,
    rounds=ROUNDS,
    short=1,
)
