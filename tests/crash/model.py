"""Campaign: random histories on the modelled machine, with a power cut after any operation."""

from __future__ import annotations

import logging
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.model.history import run_history


def play(number: int, tally: Tally, rig: Any) -> None:
    """Run one history; its seed is the round."""
    logging.disable(logging.CRITICAL)
    try:
        result = run_history(number)
    finally:
        logging.disable(logging.NOTSET)
    tally.count("crash states", result.states)
    tally.count("double crashes", result.double)
    tally.count("histories")
    for text in result.violations:
        tally.violation(text)


CAMPAIGN = Campaign(
    name="model",
    title="power cuts of a modelled machine, random histories",
    play=play,
    share=0.5,
    targets={"crash states": 4_000_000},
)
