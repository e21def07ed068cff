"""Campaign: a set of wheels under load, of which one directory meets a disaster, and what its processes were told.

The processes are those of set_cast.py. Every directory lies on a file system of its own. A round: load and kills; a
disaster at some moment; what a person does about it (a promotion, a repair, a new backup), as the runbook of
docs/replication.md says; more load; the set is made whole, and its wheels are compared; a last keeper fires what is
left. What went wrong is told by verdict_set.py, how long it took by figures_set.py.
`python -m tests.crash.replicas NUMBER... [--keep] [--figures FILE]` plays rounds by themselves.

Invariant: when a round ends, none of its processes lives, and nothing of it is mounted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from filewheel.errors import FilewheelError
from filewheel.roster.roster import Mode, OnFailure
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.disaster import DISASTERS, Corrupted, Disaster, place
from tests.crash.figures_set import measure
from tests.crash.images import ends_cleanly
from tests.crash.marks import Mark, Marks, read_marks, serial_of
from tests.crash.set_cast import Failed, ReplicatorProcess, SetDrain, SetKeeper, SetProducer, filewheel
from tests.crash.verdict_set import Policy, judge

LOAD_S = 1.5
TIMEOUT_S = 1.0
DRAIN_S = 60
IN_STEP_S = 20.0
SLOTS = 60
SHIP_LAG_S = 0.5
"""The replicator looks every 20 ms; an acknowledgement waits for one look more, and all of it for a busy machine."""
NEEDS_UNMOUNT = ("read-only", "fails each flush", "dead")
"""Disasters that can be undone only when nobody has a file open there."""


# -- a round -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a round is made of: all of it is drawn from its number."""

    mode: Mode
    backups: int
    on_failure: OnFailure
    disaster: str
    """Its name in DISASTERS, or "" for kills alone."""
    victim: Literal["primary", "backup"]

    @property
    def policy(self) -> Policy:
        lag_s = 0.0 if self.mode == "mirror" else SHIP_LAG_S
        return Policy(self.mode, self.on_failure, timeout_s=TIMEOUT_S, lag_s=lag_s)

    @property
    def missing(self) -> str | None:
        """What this machine lacks for its disaster, or None."""
        return DISASTERS[self.disaster].needs() if self.disaster else None


def plan_of(number: int) -> Plan:
    """Draw a round: the disasters in turn, each of them in every kind of set."""
    names = ["", *DISASTERS]
    rest, disaster = divmod(number, len(names))
    rest, victim = divmod(rest, 2)
    rest, mode = divmod(rest, 3)  # mirrors more often: they promise more
    rest, backups = divmod(rest, 2)
    return Plan(
        "ship" if mode == 2 else "mirror",
        backups + 1,
        "refuse" if rest % 2 else "stale",
        names[disaster],
        "backup" if victim else "primary",
    )


@dataclass
class Round:
    """One set, from its making to its last message."""

    plan: Plan
    rng: random.Random
    folder: Path
    wheels: list[Path]
    cast: Cast
    marks: Marks
    replicator: ReplicatorProcess
    keep: bool = False
    """Whether wheels that differ are copied to the folder of the marks."""
    wrong: list[str] = field(default_factory=list)

    @property
    def where(self) -> Path:
        return self.folder / "primary"

    def say_primary(self, path: Path) -> None:
        new = self.folder / "primary.new"
        new.write_text(str(path))
        new.rename(self.where)
        self.primary = path

    def make(self) -> None:
        """Make the set, and bring it in step."""
        first, *others = self.wheels
        Wheel.create(first, slots=SLOTS).close()
        for other in others:
            filewheel(
                first, "backup", "add", str(other), f"--{self.plan.mode}",
                "--on-failure", self.plan.on_failure, "--timeout", f"{TIMEOUT_S}s",
            )  # fmt: skip
        self.marks.tell("primary", str(first))
        self.say_primary(first)
        self.replicator.start(first)
        self.wait_in_step()

    def play(self) -> None:
        """Load, a disaster, what is done about it, load; then the set is whole again."""
        repairs = self.rng.random() < 0.5
        for role in (SetProducer, SetProducer, SetKeeper, SetKeeper):
            self.cast.start(role)
        self.torment(LOAD_S * self.rng.uniform(0.5, 1.5))
        victim = self.wheels[0 if self.plan.victim == "primary" else -1]
        disaster = self.strike(victim)
        self.torment(LOAD_S * self.rng.uniform(0.2, 0.6), kills=disaster is None)
        mended = False
        if disaster is not None and victim == self.primary:
            mended = isinstance(disaster, Corrupted) and repairs and self.repair(victim)
            if not mended:
                self.promote(victim)
        self.torment(LOAD_S)
        if disaster is not None and victim != self.primary and disaster.name not in NEEDS_UNMOUNT:
            self.put_right(disaster, victim)
            mended = True
            self.torment(LOAD_S)
        self.marks.tell("quiet")
        self.cast.kill(*self.cast.alive)
        if disaster is not None and not mended:
            self.replicator.kill()
            self.put_right(disaster, victim)
        self.compare()

    def torment(self, seconds: float, *, kills: bool = True) -> None:
        """Let time pass; kill a process now and then, and start it again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(min(0.05 + self.rng.expovariate(6), max(0, end - time.monotonic())))
            if not kills:
                continue
            victim = self.rng.choice([*self.cast.alive, 0])
            if victim:
                role = self.cast.alive[victim]
                self.cast.kill(victim)
                self.cast.start(role)
            else:
                self.replicator.kill()
                self.replicator.start(self.primary)

    def strike(self, victim: Path) -> Disaster | None:
        if not self.plan.disaster:
            return None
        disaster = DISASTERS[self.plan.disaster](self.rng)
        since = time.monotonic_ns()
        disaster.apply(victim)
        self.marks.tell("disaster", disaster.name, str(victim), disaster.loses, since=since)
        return disaster

    def repair(self, victim: Path) -> bool:
        """Repair the primary while producers go on, as the runbook says; False when it is too badly hurt for that."""
        keepers = [pid for pid, role in self.cast.alive.items() if role is SetKeeper]
        self.cast.kill(*keepers)
        try:
            filewheel(victim, "repair", "--yes")
        except Failed as exc:
            self.marks.tell("beyond repair", str(exc))
            return False
        finally:
            for _ in keepers:
                self.cast.start(SetKeeper)
        self.marks.tell("repaired", str(victim))
        return True

    def promote(self, old: Path) -> None:
        """Promote a backup, and tell everybody."""
        since = time.monotonic_ns()
        errors = []
        for new in self.wheels[1:]:
            try:
                said = json.loads(filewheel(new, "promote", "--yes"))
            except Failed as exc:
                errors.append(str(exc))
                continue
            self.marks.tell("promoted", str(new), str(old), said["caught_up"], since=since)
            self.say_primary(new)
            self.replicator.kill()
            self.replicator.start(new)
            return
        self.wrong += [f"no backup can be promoted: {errors}"]

    def put_right(self, disaster: Disaster, victim: Path) -> None:
        """Undo the disaster, and make the set whole again: with what has come back, or with a new wheel."""
        since = time.monotonic_ns()
        disaster.undo()
        if disaster.loses:
            self.replace(victim)
        elif self.plan.victim == "primary" and victim != self.primary:
            filewheel(victim, "rejoin", "--yes")
        self.marks.tell("undone", str(victim), since=since)
        if not self.replicator.runs:
            self.replicator.start(self.primary)

    def replace(self, victim: Path) -> None:
        """Take out a wheel that was lost, and put a new one in its place."""
        filewheel(self.primary, "backup", "remove", str(victim))
        while victim.exists():  # who had it as a mirror may just be writing
            shutil.rmtree(victim, ignore_errors=True)
        filewheel(self.primary, "backup", "add", str(victim), f"--{self.plan.mode}")

    def compare(self) -> None:
        """Wait until all is in step. That means: no message is in one of two wheels alone."""
        if not self.replicator.runs:
            self.replicator.start(self.primary)
        self.wait_in_step()
        self.replicator.kill()
        for other in self.wheels:
            if other != self.primary:
                try:
                    filewheel(self.primary, "diff", str(self.primary), str(other))
                except Failed as exc:
                    self.wrong.append(str(exc))
        if self.wrong and self.keep:
            for n, wheel in enumerate(self.wheels):
                shutil.copytree(wheel, self.folder / f"{n}.wheel", dirs_exist_ok=True)

    def wait_in_step(self) -> None:
        """Wait until the replicator follows every backup, and is known to have nothing left to ship."""
        from filewheel.sets.status import set_status

        end, members = time.monotonic() + IN_STEP_S, []
        while time.monotonic() < end:
            with contextlib.suppress(FilewheelError):
                status = set_status(str(self.primary))
                members = [] if status is None else status.members
                if all(m.member.state == "current" and m.following and m.lag_bytes == 0 for m in members):
                    return
            time.sleep(0.05)
        self.wrong.append(f"the set is not in step after {IN_STEP_S} s: {members}")

    def drain(self) -> None:
        """Let a last keeper fire everything that is in the primary."""
        if not self.cast.wait(self.cast.start(SetDrain), DRAIN_S):
            self.wrong.append(f"the last keeper did not end in {DRAIN_S} s")


@dataclass(frozen=True)
class Played:
    """What came of a round."""

    plan: Plan
    told: dict[str, list[Mark]]
    """The marks of its processes."""
    pending: set[int]
    """The serials that wait in the primary at the end."""
    wrong: list[str]
    kills: int


def play_round(kind: type[Round], number: int, tally: Tally, *, keep: bool = False) -> Played:
    """Play one round of this kind from its set's making to its end, judge it, and count what any round counts."""
    plan = plan_of(number)
    folder = Path(tempfile.mkdtemp(prefix="filewheel-set-"))
    (folder / "marks").mkdir()
    try:
        with ExitStack() as stack:
            wheels = [stack.enter_context(home(folder, n)) for n in range(plan.backups + 1)]
            marks = Marks(folder / "marks" / "0000-conductor")
            replicator = ReplicatorProcess(folder, marks)
            stack.callback(replicator.end)
            cast = stack.enter_context(Cast(folder / "primary", folder / "marks", number))
            round_ = kind(plan, random.Random(number), folder, wheels, cast, marks, replicator, keep)
            round_.make()
            round_.play()
            round_.drain()
            told = read_marks(folder / "marks")
            pending = waiting(round_.primary)
            wrong = [*round_.wrong, *judge(told, pending, plan.policy)]
    finally:
        if keep:
            print(folder)
        else:
            shutil.rmtree(folder)
    for text in wrong[:10]:
        tally.violation(f"{plan}: {text}")
    tally.count("enqueues", sum(m[0] == "put" for lines in told.values() for m in lines))
    return Played(plan, told, pending, wrong, cast.kills)


def play(number: int, tally: Tally, rig: None, *, keep: bool = False, figures: Path | None = None) -> None:
    """Play one round, and judge it; add how it went to a file of `figures`."""
    missing = plan_of(number).missing
    if missing:
        tally.skip(missing)
        return
    played = play_round(Round, number, tally, keep=keep)
    tally.count("kills", played.kills)
    tally.count(played.plan.disaster or "kills alone")
    if figures is not None:
        measured = asdict(measure(played.told, played.pending))
        row = {"round": number, "wrong": len(played.wrong), **asdict(played.plan), **measured}
        with figures.open("a") as file:
            file.write(json.dumps(row) + "\n")


@contextlib.contextmanager
def home(folder: Path, n: int) -> Iterator[Path]:
    """Yield where a wheel may be made: on a file system of its own, or beside the others where none can be mounted."""
    if Disaster.needs() is None:
        with place() as path:
            yield path
    else:
        yield folder / f"{n}.wheel"


def waiting(path: Path) -> set[int]:
    """Return the serials of what waits in a wheel."""
    with Wheel(path) as wheel:
        return {serial_of(m.payload) for m in wheel.list()}


@contextlib.contextmanager
def rig() -> Iterator[None]:
    """Be sure that what was mounted is unmounted, however this ends."""
    with ends_cleanly():
        yield None


CAMPAIGN = Campaign(
    name="replicas",
    title="sets of wheels, one of which meets a disaster",
    play=play,
    share=0.1,
    targets={"enqueues": 40_000},
    rig=rig,
    short=1,
)


def show(campaign: Campaign, number: int, **options: Any) -> int:
    """Play one round of a campaign by itself, and print what came of it; return how many violations there were."""
    tally = Tally(campaign.name, number)
    with campaign.rig() as rig:
        campaign.play(number, tally, rig, **options)
    print(number, plan_of(number), dict(tally.counts), dict(tally.skipped), flush=True)
    for violation in tally.violations:
        print("!", violation.text, flush=True)
    return len(tally.violations)


def main(args: list[str]) -> int:
    """Play rounds, one after the other; tell the violations of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="+")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--figures", type=Path)
    options = parser.parse_args(args)
    logging.disable(logging.CRITICAL)
    return bool(sum(show(CAMPAIGN, n, keep=options.keep, figures=options.figures) for n in options.rounds))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
