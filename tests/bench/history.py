"""What the history of runs costs: fire-and-acknowledge with and without it, taking turns in one run.

    python -m tests.bench.history [DIR [ROUNDS [MESSAGES]]]

DIR is where the wheels are made: put it on the disk that is meant. Each round fires one backlog with the history and
one without, in an order that changes. Printed are the medians, and the median of the ratios of the rounds: by the
clock, and by the processor's time, which does not depend on what else the machine does.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from filewheel import Keeper, Wheel
from filewheel.runs.history import KEPT

PAYLOAD = b"x" * 100
BATCH = 1000


class Later:
    """The system's clock, and some seconds."""

    def now_us(self) -> int:
        return time.time_ns() // 1000 + 700_000_000

    def steady_us(self) -> int:
        # The processor's time of this process: the keeper looks as often as on a machine that does nothing else.
        return time.process_time_ns() // 1000


def rates_of(where: str, count: int, history: int, batch: int = BATCH) -> tuple[float, float]:
    """Return how many messages are claimed and acknowledged in a second, and in a second of the processor.

    The second does not depend on what else the machine does. They come from a backlog in the laps.
    """
    with tempfile.TemporaryDirectory(dir=where) as made:
        path = Path(made) / "w"
        now = time.time()
        with Wheel.create(path, sync="never") as wheel, Keeper(path, history=0):
            for n in range(count // 1000):
                dues = [now + 60 + 0.6 * i for i in range(1000)]
                wheel.enqueue_many([PAYLOAD] * 1000, at=dues, topic=f"mail-{n % 7}")
        with Keeper(path, clock=Later(), history=history) as keeper:
            begun, used = time.perf_counter(), time.process_time()
            fired = 0
            for some in keeper.batches(limit=batch, wait=False):
                fired += keeper.ack(some)
            took, used = time.perf_counter() - begun, time.process_time() - used
    assert fired == count // 1000 * 1000
    return fired / took, fired / used


def main(where: str, rounds: int, count: int) -> None:
    """Measure and print."""
    found: dict[int, list[tuple[float, float]]] = {0: [], KEPT: []}
    for n in range(rounds):
        for history in (KEPT, 0) if n % 2 else (0, KEPT):
            found[history].append(rates_of(where, count, history))
    print(f"{rounds} rounds of {count:,} messages, batches of {BATCH:,}; medians")
    for at, unit in enumerate(("messages/s", "messages/s of the processor")):
        without, kept = ([rates[at] for rates in found[history]] for history in (0, KEPT))
        ratio = statistics.median(b / a for a, b in zip(without, kept, strict=True))
        print(f"without {statistics.median(without):,.0f}, with {statistics.median(kept):,.0f} {unit}: {ratio:.3f}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(given[0] if given else tempfile.gettempdir(), int((given[1:] or ["9"])[0]), int((given[2:] or ["500000"])[0]))
