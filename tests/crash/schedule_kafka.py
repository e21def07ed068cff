"""The campaign on the nodes of the delay service: two of them, with wheels on disk, on a cluster in memory.

Even rounds promise each record at least once, odd ones exactly once.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.kafka.schedule import Broken, play


def play_schedule(number: int, tally: Tally, rig: Any) -> None:
    """Play one schedule; its seed is the round."""
    tally.count("schedules")
    logging.disable(logging.CRITICAL)  # each trouble of a schedule is one line
    try:
        with tempfile.TemporaryDirectory() as directory:
            happened = play(number, Path(directory))
    except Broken as exc:
        tally.violation(str(exc))
        return
    finally:
        logging.disable(logging.NOTSET)
    for event, count in happened.items():
        tally.count(event, count)


CAMPAIGN = Campaign(
    name="kafka-nodes",
    title="the delay service's nodes: kills, zombies, rebalances, unknown commits, lost disks, targets that refuse",
    play=play_schedule,
    share=0.03,
    targets={},
    short=4,
)
