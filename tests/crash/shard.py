"""One process that plays rounds of one campaign until its time is up, and says once a second what it has counted.

`python -m tests.crash.shard NAME --first N --step K --seconds S` prints JSON lines: the counts and violations since the
line before. The runner (runner.py) starts one for each core. Invariant: a round's number alone decides what it does.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import tests.crash.mutate  # noqa: F401  a mutant goes in before the library is imported
from tests.crash.campaign import Campaign, Tally
from tests.crash.campaigns import by_name

SAY_EVERY_S = 1.0


def numbers(campaign: Campaign, first: int, step: int) -> Iterator[int]:
    """Count the rounds of this shard; where there are only so many, each once, from a different place each run."""
    if campaign.rounds is None:
        yield from itertools.count(first, step)
        return
    lane, start = first % step, first // step
    mine = range(lane, campaign.rounds, step)
    for i in range(len(mine)):
        yield mine[(start + i) % len(mine)]


def play(campaign: Campaign, number: int, rig: Any) -> Tally:
    """Play one round; an error that escapes it is a violation."""
    tally = Tally(campaign.name, number)
    try:
        campaign.play(number, tally, rig)
    except Exception:
        tally.violation(traceback.format_exc())
    tally.count("rounds")
    return tally


def say(tally: Tally) -> None:
    """Print what has been counted since the last time."""
    line = {
        "counts": tally.counts,
        "violations": [asdict(v) for v in tally.violations],
        "skipped": tally.skipped,
    }
    print(json.dumps(line), flush=True)


def main(args: list[str]) -> int:
    """Play rounds until the time is up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("campaign")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args(args)
    campaign = by_name(options.campaign)
    end = time.monotonic() + options.seconds
    sum_ = Tally(campaign.name)
    said = time.monotonic()
    with campaign.rig() as rig:
        for number in numbers(campaign, options.first, options.step):
            sum_.add(play(campaign, number, rig))
            now = time.monotonic()
            if now - said > SAY_EVERY_S or sum_.violations:
                say(sum_)
                sum_, said = Tally(campaign.name), now
            if now > end:
                break
    say(sum_)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
