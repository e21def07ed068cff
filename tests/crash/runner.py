"""Runs campaigns within a budget: one after the other, each on all cores, what one leaves goes to those after it.

Each shard is a process group of its own, so what a round leaves running is killed with it, and a shard that hangs
or dies is itself a violation. Invariant: nothing that was counted or found is lost when a shard dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.campaign import Campaign, Tally, Violation

REPO = Path(__file__).parents[2]
HANGS_AFTER_S = 120.0
"""How long a shard may go on after its time: the last round, and cleaning up."""


@dataclass
class Outcome:
    """What a campaign came to."""

    campaign: Campaign
    tally: Tally
    seconds: float = 0.0
    first: int = 0
    missing: str | None = None


@dataclass
class Shard:
    """A process that plays rounds."""

    process: subprocess.Popen[bytes]
    partial: bytes = b""


@dataclass
class Run:
    """A run of several campaigns."""

    campaigns: list[Campaign]
    budget_s: float
    seed: int
    jobs: int = field(default_factory=lambda: os.cpu_count() or 1)
    progress: Callable[[Campaign, Tally, float], None] = lambda campaign, tally, left_s: None

    def run(self) -> list[Outcome]:
        """Run all campaigns; return what each came to, in their order."""
        end = time.monotonic() + self.budget_s
        outcomes: dict[str, Outcome] = {}
        able = []
        for campaign in self.campaigns:
            outcomes[campaign.name] = outcome = Outcome(campaign, Tally(campaign.name), missing=campaign.missing())
            if outcome.missing is None:
                able.append(campaign)
        # Those with only so many rounds first: the time that they leave is used by the others.
        able.sort(key=lambda c: c.rounds is None)
        for i, campaign in enumerate(able):
            left = end - time.monotonic()
            part = campaign.share / sum(c.share for c in able[i:])
            self._campaign(outcomes[campaign.name], max(left * part, 1.0))
        return list(outcomes.values())

    def _campaign(self, outcome: Outcome, seconds: float) -> None:
        begun = time.monotonic()
        outcome.first = self.seed
        jobs = min(self.jobs, outcome.campaign.jobs_max or self.jobs)
        shards = {lane: self._start(outcome.campaign, lane, jobs, seconds) for lane in range(jobs)}
        try:
            self._listen(outcome, shards, begun + seconds)
        finally:
            for shard in shards.values():
                stop(shard.process)
        outcome.seconds = time.monotonic() - begun

    def _start(self, campaign: Campaign, lane: int, jobs: int, seconds: float) -> Shard:
        command = [sys.executable, "-m", "tests.crash.shard", campaign.name, "--seconds", str(seconds)]
        first = self.seed - self.seed % jobs + lane
        command += ["--first", str(first), "--step", str(jobs)]
        return Shard(subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, start_new_session=True))

    def _listen(self, outcome: Outcome, shards: dict[int, Shard], end: float) -> None:
        with selectors.DefaultSelector() as selector:
            for shard in shards.values():
                assert shard.process.stdout is not None
                selector.register(shard.process.stdout, selectors.EVENT_READ, shard)
            while selector.get_map():
                for key, _ in selector.select(timeout=0.5):
                    shard = key.data
                    data = os.read(key.fd, 1 << 20)
                    shard.partial += data
                    *lines, shard.partial = shard.partial.split(b"\n")
                    for line in lines:
                        outcome.tally.add(parse(outcome.campaign, line))
                    if not data:
                        selector.unregister(key.fileobj)
                        self._ended(outcome, shard)
                self.progress(outcome.campaign, outcome.tally, end - time.monotonic())
                if time.monotonic() > end + HANGS_AFTER_S:
                    outcome.tally.violation("a shard hangs: the round that it is in does not end")
                    return

    def _ended(self, outcome: Outcome, shard: Shard) -> None:
        code = shard.process.wait()
        if code:
            outcome.tally.violation(f"a shard ended with {code}: see its last words on stderr")


def parse(campaign: Campaign, line: bytes) -> Tally:
    """Read a line that a shard printed."""
    data = json.loads(line)
    tally = Tally(campaign.name)
    tally.counts.update(data["counts"])
    tally.skipped.update(data["skipped"])
    tally.violations = [Violation(**v) for v in data["violations"]]
    return tally


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a shard and everything that it started."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
