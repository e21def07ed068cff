"""Campaigns on several modelled disks: histories of a set, crashed aside all along, and sagas of several lives.

The product's code runs unchanged on disks in memory, each of which may lose power, fail, or go away (tests/model).
"""

from __future__ import annotations

import itertools
from typing import Any

from filewheel.roster.roster import Mode, OnFailure
from tests.crash.campaign import Campaign, Tally
from tests.crash.model import counted
from tests.model.history import Result
from tests.model.saga import WHATS, run_saga
from tests.model.set_history import run_set
from tests.model.volumes import CONDITIONS

KINDS: list[tuple[Mode, int, OnFailure, int]] = [
    ("mirror", 1, "stale", 0),
    ("ship", 2, "stale", 0),
    ("mirror", 2, "refuse", 2),
    ("ship", 1, "stale", 0),
    ("mirror", 2, "stale", 2),
    ("mirror", 1, "refuse", 0),
]
"""(mode, backups, what an enqueue does when a mirror fails, copies)"""

DISASTERS = list(itertools.product((None, *CONDITIONS), KINDS))
SAGAS = list(itertools.product(WHATS, KINDS))


def set_of(number: int) -> Result:
    """Play one history of a set; each kind of set meets each disaster in turn."""
    seed, which = divmod(number, len(DISASTERS))
    disaster, (mode, backups, on_failure, _) = DISASTERS[which * 5 % len(DISASTERS)]
    return run_set(seed, mode=mode, backups=backups, on_failure=on_failure, disaster=disaster)


def saga_of(number: int) -> Result:
    """Play one saga; each kind of set meets each kind of round in turn."""
    seed, which = divmod(number, len(SAGAS))
    what, (mode, backups, on_failure, copies) = SAGAS[which * 7 % len(SAGAS)]
    return run_saga(seed, mode=mode, backups=backups, on_failure=on_failure, copies=copies, what=what)


def play_set(number: int, tally: Tally, rig: Any) -> None:
    """Play one history of a set."""
    counted(tally, "histories", lambda: set_of(number))


def play_saga(number: int, tally: Tally, rig: Any) -> None:
    """Play one saga."""
    counted(tally, "sagas", lambda: saga_of(number))


CAMPAIGNS = [
    Campaign(
        name="set",
        title="modelled disks: one life of a set, power cuts and the loss of any disk at any moment",
        play=play_set,
        share=0.04,
        targets={},
        short=10,
    ),
    Campaign(
        name="saga",
        title="modelled disks: promotions, rejoins and disasters, one after the other",
        play=play_saga,
        share=0.06,
        targets={},
        short=10,
    ),
]
