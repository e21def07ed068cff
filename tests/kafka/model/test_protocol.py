"""The protocol holds in some schedules, and breaks with each shortcut. `make crash` plays many more."""

from __future__ import annotations

import pytest

from tests.kafka.model.cluster import Violation
from tests.kafka.model.shortcut import Shortcut
from tests.kafka.model.world import play

SEEN: dict[Shortcut, int] = {
    Shortcut.MARKER_BEFORE_FENCE: 5,
    Shortcut.TWO_STEPS: 1331,
    Shortcut.STANDBY_BY_ID: 38,
    Shortcut.COLD_START_AT_COMMIT: 0,
    Shortcut.UNKNOWN_IS_ABORTED: 5,
    Shortcut.UNKNOWN_IS_COMMITTED: 5,
    Shortcut.POSITION_BEFORE_FLUSH: 81,
    Shortcut.POSITION_AFTER_FLUSH: 8,
    Shortcut.DROP_BEFORE_MARKER: 0,
    Shortcut.NO_FILTER: 5,
    Shortcut.DONE_CANCELS_NOTHING: 224,
    Shortcut.LOW_IS_NO_FACT: 1004,
    Shortcut.FIRES_BEFORE_END: 67,
    Shortcut.FIRES_UNREAD: 2183,
    Shortcut.REOPENS_WITHOUT_READING: 2183,
    Shortcut.CANCEL_IN_MEMORY: 8603,
    Shortcut.INGESTED_AFTER_CLAIM: 10,
    Shortcut.FIRES_WITHIN_THE_TICK: 4,
    Shortcut.REPEATS_THE_STALE: 5,
}
"""A seed that sees each shortcut. After a change of the model: `python -m tests.kafka.model find SHORTCUT`."""


FIRES_EARLY = (1795896399, 1795898063)
"""Schedules in which a node on a full disk fires before it has read again what a power cut took."""


@pytest.mark.parametrize("seed", [*range(40), *FIRES_EARLY])
def test_a_random_schedule_loses_nothing_and_doubles_nothing_that_is_promised_once(seed: int) -> None:
    assert play(seed)["records"]


@pytest.mark.parametrize("shortcut", Shortcut, ids=lambda shortcut: shortcut.name)
def test_a_shortcut_breaks_the_protocol(shortcut: Shortcut) -> None:
    seed = SEEN[shortcut]
    with pytest.raises(Violation, match=f"seed {seed} "):
        play(seed, shortcut=shortcut)
    assert play(seed)["records"]


def test_a_seed_is_a_schedule() -> None:
    assert play(3) == play(3)
