"""The campaign on the model of the delay service: one partition, three nodes, everything that may fail between steps.

Even rounds promise each record at least once, odd ones exactly once.
"""

from __future__ import annotations

from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.kafka.model.cluster import Violation
from tests.kafka.model.world import play


def play_schedule(number: int, tally: Tally, rig: Any) -> None:
    """Play one schedule; its seed is the round."""
    tally.count("schedules")
    try:
        happened = play(number)
    except Violation as exc:
        tally.violation(str(exc))
        return
    for event, count in happened.items():
        tally.count(event, count)


CAMPAIGN = Campaign(
    name="kafka",
    title="the delay service's protocol: crashes, lost disks, zombies, rebalances, unknown commits",
    play=play_schedule,
    share=0.03,
    targets={},
    short=10,
)
