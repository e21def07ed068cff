"""Campaign: power cuts under sets of wheels, each on a file system of its own.

All processes are stopped, then every file system is shut down without writing anything more, unmounted and mounted
again, as in cut.py. Then a round of replicas.py is played with the same set: one of its directories meets a disaster,
within seconds of the cut. What had been confirmed with two copies must be there.
`python -m tests.crash.cut_sets NUMBER...` plays rounds by themselves.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import sys
from pathlib import Path

from tests.crash.campaign import Campaign, Tally
from tests.crash.disaster import Disaster, mount, mounted
from tests.crash.images import LOG_FLUSHED, LOG_NOT_FLUSHED, SHUTDOWN, run
from tests.crash.replicas import LOAD_S, Round, plan_of, play_round, rig, show
from tests.crash.set_cast import SetKeeper, SetProducer


def cut(wheel: Path, how: int) -> None:
    """Cut the power of the file system that a wheel is on, and mount it again."""
    device, mount_point = mounted(wheel)
    fd = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", how))
    finally:
        os.close(fd)
    run("umount", str(mount_point))
    mount(device, mount_point)


class CutRound(Round):
    """A set that lives through power cuts, and meets its disaster then."""

    def play(self) -> None:
        """Load and a cut, once or twice; then what happens in any round."""
        for _ in range(self.rng.randrange(1, 3)):
            for role in (SetProducer, SetProducer, SetKeeper, SetKeeper):
                self.cast.start(role)
            self.torment(LOAD_S * self.rng.uniform(0.5, 1.2), kills=self.rng.random() < 0.3)
            self.cut()
            self.replicator.start(self.primary)
        super().play()

    def cut(self) -> None:
        """Stop everybody, and cut the power of all file systems at once."""
        self.cast.kill(*self.cast.alive)
        self.replicator.kill()
        self.marks.tell("power cut")
        how = self.rng.choice((LOG_FLUSHED, LOG_NOT_FLUSHED, LOG_NOT_FLUSHED))
        for wheel in self.wheels:
            cut(wheel, how)


def play(number: int, tally: Tally, rig: None, *, keep: bool = False) -> None:
    """Play one round, and judge it."""
    missing = Disaster.needs() or plan_of(number).missing
    if missing:
        tally.skip(missing)
        return
    played = play_round(CutRound, number, tally, keep=keep)
    tally.count("power cuts of sets", sum(m[0] == "power cut" for m in played.told["0000-conductor"]))
    tally.count(f"{played.plan.disaster or 'kills alone'} after a cut")


CAMPAIGN = Campaign(
    name="cut-sets",
    title="power cuts of sets of wheels, and a disaster after one",
    play=play,
    share=0.05,
    targets={"power cuts of sets": 60},
    rig=rig,
    short=1,
)


def main(args: list[str]) -> int:
    """Play rounds, one after the other; tell the violations of each."""
    logging.disable(logging.CRITICAL)
    return bool(sum(show(CAMPAIGN, int(number)) for number in args))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
