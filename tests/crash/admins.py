"""Campaign: administrators who promote, interrupt, promote another, and rejoin, while producers and keepers work.

No disk fails here. Promotions run as `filewheel promote`; some are ended by SIGINT or SIGKILL at a random moment, some
begin within 0.4 s of another, some the moment a backup is current; keepers are stopped by SIGSTOP meanwhile. Fenced
wheels rejoin in any order. In the end one wheel is the primary and all others are its backups, equal to it.
verdict_admins.py says what must hold then. `python -m tests.crash.admins NUMBER... [--keep]` plays rounds.

Invariant: when a round ends, none of its processes lives.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from filewheel.errors import FilewheelError
from filewheel.message import MessageId, to_datetime
from filewheel.roster.roster import Roster, roster_at
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.marks import Marks, body, read_marks
from tests.crash.replicas import Plan, Round, waiting
from tests.crash.set_cast import REPO, Failed, ReplicatorProcess, SetKeeper, SetProducer, filewheel
from tests.crash.verdict_admins import judge

ACTS = 3
WHEELS = 3
ENDED_S = 40.0


class CancellingProducer(SetProducer):
    """Enqueues, and cancels some of what it enqueued before that is not due yet."""

    def run(self) -> None:
        wheel: Wheel | None = None
        path = ""
        mine: list[tuple[int, MessageId]] = []
        while self.lasts():
            self.serial += 1
            due_us = time.time_ns() // 1000 + self.rng.choice((0, 1_000_000, 4_000_000, 30_000_000))
            self.marks.tell("try-put", [[self.serial, due_us]])
            since = time.monotonic_ns()
            try:
                if wheel is None:
                    path = self.primary()
                    wheel = Wheel(path)
                id_ = wheel.enqueue(body(self.serial), at=to_datetime(due_us), sync="always")
                self.marks.tell("put", [[self.serial, id_.hex()]], id_.copies, path, since=since)
                mine.append((self.serial, id_))
                if self.rng.random() < 0.3:
                    serial, gone = mine.pop(self.rng.randrange(len(mine)))
                    self.marks.tell("try-cancel", serial)
                    since = time.monotonic_ns()
                    if wheel.cancel(gone):
                        self.marks.tell("cancelled", serial, path, since=since)
            except FilewheelError as exc:
                self.marks.tell("refused", self.serial, f"{type(exc).__name__}: {exc}"[:200], path, since=since)
                if wheel is not None:
                    self.let_go(wheel)
                wheel = None
                time.sleep(0.05)
            time.sleep(self.rng.random() * 0.01)
        if wheel is not None:
            self.let_go(wheel)


class AdminRound(Round):
    """One set and its administrators."""

    def play(self) -> None:
        """Let them act, and then put the set in order."""
        for role in (CancellingProducer, CancellingProducer, SetKeeper, SetKeeper):
            self.cast.start(role)
        time.sleep(self.rng.uniform(0.3, 1))
        acts = (self.change, self.interrupt, self.interrupt, self.two_at_once, self.as_soon_as_current)
        for _ in range(ACTS):
            self.rng.choice(acts)()
            time.sleep(self.rng.uniform(0, 0.6))
            if self.rng.random() < 0.7:
                self.rejoin()
        self.find()
        time.sleep(0.5)
        self.marks.tell("quiet")
        self.cast.kill(*self.cast.alive)
        self.rejoin()
        self.compare()

    # -- what administrators do ---------------------------------------------------------------------------------

    def change(self) -> None:
        """Promote a backup in good order."""
        self.end(self.begin(self.rng.choice(self.wheels)))
        self.find()

    def interrupt(self) -> None:
        """Promote a backup and end that at some moment, a keeper stopped perhaps."""
        keepers = [pid for pid, role in self.cast.alive.items() if role is SetKeeper]
        stopped = keepers if self.rng.random() < 0.6 else []
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            began = self.begin(self.rng.choice(self.wheels))
            time.sleep(self.rng.uniform(0.3, 3))
            self.end(began, self.rng.choice((signal.SIGINT, signal.SIGKILL)))
            if self.rng.random() < 0.7:
                self.end(self.begin(self.rng.choice(self.wheels)))
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        self.find()

    def two_at_once(self) -> None:
        """Promote two wheels within 0.4 s, one of them interrupted perhaps."""
        first, second = self.rng.sample(self.wheels, 2)
        one = self.begin(first)
        time.sleep(self.rng.uniform(0, 0.4))
        other = self.begin(second)
        if self.rng.random() < 0.3:
            time.sleep(self.rng.uniform(0.3, 1.5))
            self.end(other, signal.SIGKILL)
        self.end(one)
        self.end(other)
        self.find()

    def as_soon_as_current(self) -> None:
        """Bring everything in step, and promote a backup the moment it is current."""
        self.rejoin()
        end = time.monotonic() + 10
        while time.monotonic() < end:
            roster = self.roster(self.primary)
            ready = [] if roster is None else [m.path for m in roster.members if m.state == "current"]
            if ready:
                time.sleep(self.rng.uniform(0, 0.3))
                self.end(self.begin(Path(self.rng.choice(ready))))
                break
            time.sleep(0.01)
        self.find()

    # -- pieces ---------------------------------------------------------------------------------------------------

    def begin(self, path: Path) -> tuple[Path, int, subprocess.Popen[str]]:
        """Begin to promote a wheel."""
        command = [sys.executable, "-m", "cli", "-C", str(path), "promote", "--yes", "--json", "--wait", "5s"]
        process = subprocess.Popen(
            command, cwd=REPO, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        return path, time.monotonic_ns(), process

    def end(self, began: tuple[Path, int, subprocess.Popen[str]], how: signal.Signals | None = None) -> None:
        """Wait until a promotion has ended, or end it; say what came of it."""
        path, since, process = began
        if how is not None:
            process.send_signal(how)
        try:
            said, errors = process.communicate(timeout=ENDED_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
            self.wrong.append(f"`promote` of {path} did not end in {ENDED_S} s")
        if "Traceback" in errors and how is None:
            self.wrong.append(f"`promote` of {path}: {errors[-1500:]}")
        self.marks.tell("attempt", str(path), process.returncode, since=since)
        if process.returncode == 0 and said:
            done = json.loads(said)
            if "it was the primary already" not in done["notes"]:
                held = sorted(waiting(path)) if done["caught_up"] else []
                self.marks.tell("held", str(path), held, done["caught_up"], since=since)

    def roster(self, path: Path) -> Roster | None:
        try:
            return roster_at(path)
        except (FilewheelError, OSError):
            return None

    def find(self) -> None:
        """Find who is the primary now; where there is none, promote until there is."""
        end = time.monotonic() + ENDED_S
        while time.monotonic() < end:
            rosters = {path: r for path in self.wheels if (r := self.roster(path)) is not None}
            found = [(r.epoch, path) for path, r in rosters.items() if r.role == "primary"]
            highest = max((r.epoch for r in rosters.values()), default=0)
            if found and max(found)[0] == highest:
                self.say_primary(max(found)[1])
                if not self.replicator.runs:
                    self.replicator.start(self.primary)
                return
            for path in self.rng.sample(self.wheels, len(self.wheels)):
                self.end(self.begin(path))
        self.wrong.append("no wheel can be promoted")

    def rejoin(self) -> None:
        """Let every wheel that is fenced rejoin, in any order."""
        for path in self.rng.sample(self.wheels, len(self.wheels)):
            roster = self.roster(path)
            if path != self.primary and roster is not None and roster.role in ("fenced", "primary"):
                try:
                    filewheel(path, "rejoin", "--yes", codes=(0, 4))
                except Failed as exc:
                    self.marks.tell("no rejoin", str(exc))


def play(number: int, tally: Tally, rig: None, *, keep: bool = False) -> None:
    """Play one round, and judge it."""
    plan = Plan("ship" if number % 3 == 2 else "mirror", WHEELS - 1, "stale", "", "primary")
    folder = Path(tempfile.mkdtemp(prefix="filewheel-admins-"))
    (folder / "marks").mkdir()
    try:
        with contextlib.ExitStack() as stack:
            marks = Marks(folder / "marks" / "0000-conductor")
            replicator = ReplicatorProcess(folder, marks)
            stack.callback(replicator.end)
            cast = stack.enter_context(Cast(folder / "primary", folder / "marks", number))
            wheels = [folder / f"{n}.wheel" for n in range(WHEELS)]
            round_ = AdminRound(plan, random.Random(number), folder, wheels, cast, marks, replicator)
            round_.make()
            round_.play()
            round_.drain()
            told = read_marks(folder / "marks")
            wrong = [*round_.wrong, *judge(told, waiting(round_.primary))]
    finally:
        if not keep:
            shutil.rmtree(folder)
    for text in wrong[:10]:
        tally.violation(f"{plan.mode}: {text}" + (f" ({folder})" if keep else ""))
    everything = [mark for lines in told.values() for mark in lines]
    tally.count("enqueues", sum(m[0] == "put" for m in everything))
    tally.count("cancels", sum(m[0] == "cancelled" for m in everything))
    tally.count("promotions tried", sum(m[0] == "attempt" for m in everything))
    tally.count("promotions done", sum(m[0] == "held" for m in everything))


CAMPAIGN = Campaign(
    name="admins",
    title="administrators who promote, interrupt and rejoin, under load",
    play=play,
    share=0.05,
    targets={"promotions tried": 200},
    short=0,
)


def main(args: list[str]) -> int:
    """Play rounds, one after the other; tell the violations of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rounds", type=int, nargs="+")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args(args)
    logging.disable(logging.CRITICAL)
    found = 0
    for number in options.rounds:
        tally = Tally(CAMPAIGN.name, number)
        play(number, tally, None, keep=options.keep)
        print(number, dict(tally.counts), *(f"\n! {v.text}" for v in tally.violations), flush=True)
        found += len(tally.violations)
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
