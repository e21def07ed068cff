"""`python -m tests.kafka.model SEED [SHORTCUT]` plays one schedule; `find SHORTCUT` prints the first seeds that see it.

`python -m tests.crash --only kafka --budget 5m` plays as many schedules as fit.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

from tests.kafka.model.cluster import Violation
from tests.kafka.model.shortcut import Shortcut
from tests.kafka.model.world import play


def seeds_that_see(shortcut: Shortcut) -> Iterator[tuple[int, str]]:
    """Yield each seed whose schedule breaks with a shortcut, and how. Never ends."""
    for seed in itertools.count():
        try:
            play(seed, shortcut=shortcut)
        except Violation as exc:
            yield seed, str(exc)


if sys.argv[1] == "find":
    for _, text in itertools.islice(seeds_that_see(Shortcut[sys.argv[2]]), 3):
        print(text, flush=True)
else:
    print(play(int(sys.argv[1]), shortcut=Shortcut[sys.argv[2]] if sys.argv[2:] else None))
