"""Campaigns on the modelled machine: small workloads all of them, races, directed scripts, random histories.

The product's code runs unchanged on a disk in memory that can lose power after any operation (tests/model).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.model import directed, exhaustive, keyed, races
from tests.model.history import Result, run_history

FIRST_STATES, FIRST_DEEP = 3, 0.1
"""The states of a moment, and the part of them with a second crash, in the first turn, which `make test` plays."""


def counted(tally: Tally, what: str, run: Callable[[], Result | None]) -> None:
    """Run something on the model, and count its states."""
    logging.disable(logging.CRITICAL)
    try:
        result = run()
    finally:
        logging.disable(logging.NOTSET)
    if result is None:
        return
    tally.count("crash states", result.states)
    tally.count("double crashes", result.double)
    tally.count(what)
    for text in result.violations:
        tally.violation(text)


def play_history(number: int, tally: Tally, rig: Any) -> None:
    """Run one history; its seed is the round."""
    counted(tally, "histories", lambda: run_history(number))


def play_race(number: int, tally: Tally, rig: Any) -> None:
    """Run each race once, in the order that the round draws."""
    for name in (*races.NAMES, "movers", "begins"):
        counted(tally, "races", lambda name=name: races.run_race(name, number))  # type: ignore[misc]


def play_word(number: int, tally: Tally, rig: Any) -> None:
    """Play one small workload."""
    counted(tally, "workloads", lambda: exhaustive.play(number))


def play_longer(number: int, tally: Tally, rig: Any) -> None:
    """Play one longer workload."""
    counted(tally, "workloads", lambda: exhaustive.play_longer(number))


def play_script(number: int, tally: Tally, rig: Any) -> None:
    """Play one directed script; in the first turn, which `make test` plays, with a smaller sample of each moment."""
    names = list(directed.SCRIPTS)
    turn, which = divmod(number, len(names))
    limit, deep = (directed.STATES, 0.3) if turn else (FIRST_STATES, FIRST_DEEP)
    counted(tally, "scripts", lambda: directed.play(names[which], seed=turn + 1, limit=limit, deep=deep))


def play_keys(number: int, tally: Tally, rig: Any) -> None:
    """Play one small workload with unique keys, and a race for them."""
    counted(tally, "workloads", lambda: keyed.play_word(number * 7919 % keyed.COUNT))
    for name in ("keys", "key_threads", "key_batches", "key_flushes"):
        counted(tally, "races", lambda name=name: races.run_race(name, number))  # type: ignore[misc]


CAMPAIGNS = [
    Campaign(
        name="word",
        title="modelled power cuts: every workload of up to three operations",
        play=play_word,
        share=0.08,
        targets={"workloads": exhaustive.COUNT},
        rounds=exhaustive.COUNT,
        short=20,
    ),
    Campaign(
        name="script",
        title="modelled power cuts: a schedule for each hazard",
        play=play_script,
        share=0.01,
        targets={},
        rounds=len(directed.SCRIPTS) * 20,
        short=len(directed.SCRIPTS),
    ),
    Campaign(
        name="longer",
        title="modelled power cuts: longer workloads, at random",
        play=play_longer,
        share=0.08,
        targets={},
    ),
    Campaign(
        name="keys",
        title="modelled power cuts: unique keys",
        play=play_keys,
        share=0.04,
        targets={},
    ),
    Campaign(
        name="race",
        title="modelled power cuts: races",
        play=play_race,
        share=0.1,
        targets={},
    ),
    Campaign(
        name="model",
        title="modelled power cuts: random histories, I/O errors, full disks, kills",
        play=play_history,
        share=0.1,
        targets={"crash states": 4_000_000},
    ),
]
