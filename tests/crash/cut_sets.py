"""Campaign: power cuts under sets of wheels, each on a file system of its own.

All processes are stopped, then every file system is shut down without writing anything more, unmounted and mounted
again, as in cut.py. Then a round of replicas.py is played with the same set: one of its directories meets a disaster,
within seconds of the cut. What had been confirmed with two copies must be there. A power cut makes another boot of the
machine, which the machine here does not have: the backups' bookmarks, which name the boot, are taken away instead.
`python -m tests.crash.cut_sets NUMBER...` plays rounds by themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import shutil
import struct
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from filewheel import layout
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.disaster import Disaster, mount, mounted, place
from tests.crash.images import LOG_FLUSHED, LOG_NOT_FLUSHED, SHUTDOWN, run
from tests.crash.marks import Marks, read_marks
from tests.crash.replicas import LOAD_S, ReplicatorProcess, Round, SetKeeper, SetProducer, plan_of, rig, waiting
from tests.crash.verdict_set import judge


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
            with contextlib.suppress(FileNotFoundError):
                (wheel / layout.FOLLOWS).unlink()


def play(number: int, tally: Tally, rig: None, *, keep: bool = False) -> None:
    """Play one round, and judge it."""
    missing = Disaster.needs()
    if missing:
        tally.skip(missing)
        return
    plan = plan_of(number)
    folder = Path(tempfile.mkdtemp(prefix="filewheel-set-"))
    (folder / "marks").mkdir()
    try:
        with ExitStack() as stack:
            wheels = [stack.enter_context(place()) for _ in range(plan.backups + 1)]
            marks = Marks(folder / "marks" / "0000-conductor")
            replicator = ReplicatorProcess(folder, marks)
            stack.callback(replicator.end)
            cast = stack.enter_context(Cast(folder / "primary", folder / "marks", number))
            round_ = CutRound(plan, random.Random(number), folder, wheels, cast, marks, replicator, keep)
            round_.make()
            round_.play()
            round_.drain()
            told = read_marks(folder / "marks")
            pending = waiting(round_.primary)
            wrong = [*round_.wrong, *judge(told, pending, plan.policy)]
        for text in wrong[:10]:
            tally.violation(f"{plan}: {text}")
        tally.count("power cuts of sets", sum(m[0] == "power cut" for m in told["0000-conductor"]))
        tally.count(f"{plan.disaster or 'kills alone'} after a cut")
        tally.count("enqueues", sum(m[0] == "put" for lines in told.values() for m in lines))
    finally:
        if keep:
            print(folder)
        else:
            shutil.rmtree(folder)


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
    violations = 0
    for number in map(int, args):
        tally = Tally(CAMPAIGN.name, number)
        with rig():
            play(number, tally, None)
        print(number, plan_of(number), dict(tally.counts), dict(tally.skipped), flush=True)
        for violation in tally.violations:
            print("!", violation.text, flush=True)
        violations += len(tally.violations)
    return bool(violations)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
