"""The campaigns, a few rounds of each: what `make test` can afford. `make crash` runs them as long as it is told.

Always the same rounds, so that a change is judged by its own effect. FILEWHEEL_CRASH_SEED starts at another round,
FILEWHEEL_CRASH_S gives each campaign so many seconds, and plays those too whose rounds are too long for `make test`.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.crash.campaign import Campaign
from tests.crash.campaigns import campaigns
from tests.crash.shard import numbers, play

BUDGET_S = float(os.environ.get("FILEWHEEL_CRASH_S", "0.3"))
SEED = int(os.environ.get("FILEWHEEL_CRASH_SEED", "1"))
CHOSEN = [c for c in campaigns() if c.short or "FILEWHEEL_CRASH_S" in os.environ]


@pytest.mark.parametrize("campaign", CHOSEN, ids=lambda c: c.name)
def test_a_short_campaign_finds_nothing(campaign: Campaign) -> None:
    missing = campaign.missing()
    if missing:
        pytest.skip(missing)
    end = time.monotonic() + BUDGET_S
    with campaign.rig() as rig:
        for played, number in enumerate(numbers(campaign, SEED, 1), 1):
            tally = play(campaign, number, rig)
            assert not tally.violations, f"{tally.violations[0].again}\n{tally.violations[0].text}"
            if played >= campaign.short and time.monotonic() > end:
                break
