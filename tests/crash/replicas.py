"""Campaign: a set of wheels under load, of which one directory meets a disaster, and what its processes were told.

Real producers and keepers, forked from this one; the replicator, promotions and rejoining go through the command line.
Every directory lies on a file system of its own. A file outside of them all says where the primary is, as a service's
configuration would. A round: load and kills; a disaster at some moment; a promotion, if it befell the primary; more
load; the disaster is undone and the set is made whole; a last keeper fires what is left. What went wrong is told by
verdict_set.py. `python -m tests.crash.replicas NUMBER [KEEP]` plays one round by itself; with KEEP its marks stay.

Invariant: when a round ends, none of its processes lives, and nothing of it is mounted.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from filewheel.clock import SystemClock
from filewheel.errors import FilewheelError, Poisoned, TooFewCopies, WheelFull
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, to_datetime
from filewheel.roster import Mode, OnFailure
from filewheel.wheel import Wheel
from tests.crash.actors import Actor, AheadClock
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.disaster import DISASTERS, Disaster, place
from tests.crash.images import ends_cleanly
from tests.crash.marks import Marks, body, read_marks, serial_of
from tests.crash.verdict_set import Policy, judge

REPO = Path(__file__).parents[2]
LOAD_S = 1.5
TIMEOUT_S = 1.0
DRAIN_S = 60
IN_STEP_S = 20.0
SLOTS = 60
SYNC_LAG_S = 0.1
"""An acknowledgement is flushed within 20 ms; a busy machine needs longer."""
SHIP_LAG_S = 3.0


# -- the processes -------------------------------------------------------------------------------------------------


class SetActor(Actor):
    """A process of a set: `path` is the file that says where the primary is."""

    def primary(self) -> str:
        return self.path.read_text()


class SetProducer(SetActor):
    """Enqueues, one message after another; after an error it looks where the primary is, and opens that."""

    def run(self) -> None:
        wheel: Wheel | None = None
        path = ""
        while self.lasts():
            self.serial += 1
            due_us = time.time_ns() // 1000 + self.rng.randrange(-US_PER_S, 2 * US_PER_S)
            self.marks.tell("try-put", [[self.serial, due_us]])
            since = time.monotonic_ns()
            try:
                if wheel is None:
                    path = self.primary()
                    wheel = Wheel(path)
                id_ = wheel.enqueue(body(self.serial), at=to_datetime(due_us), sync="always")
            except FilewheelError as exc:
                self.marks.tell("refused", self.serial, f"{type(exc).__name__}: {exc}"[:200], path, since=since)
                if wheel is not None and not isinstance(exc, (TooFewCopies, WheelFull)):
                    self.let_go(wheel)
                    wheel = None
                if path != self.primary() and wheel is not None:
                    self.let_go(wheel)
                    wheel = None
                time.sleep(0.02)
            else:
                self.marks.tell("put", [[self.serial, id_.hex()]], id_.copies, path, since=since)
            time.sleep(self.rng.random() * 0.006)
        if wheel is not None:
            self.let_go(wheel)

    @staticmethod
    def let_go(wheel: Wheel) -> None:
        with contextlib.suppress(FilewheelError, Poisoned):
            wheel.close()


class SetKeeper(SetActor):
    """Waits to be the keeper of the primary, wherever that is, and fires."""

    ahead = False

    def run(self) -> None:
        while self.lasts():
            path = self.primary()
            try:
                keeper = Keeper(path, wait=False, clock=AheadClock() if self.ahead else SystemClock())
            except FilewheelError:
                time.sleep(0.05)
                continue
            self.marks.tell("own", path)
            try:
                if self.fire(keeper, path):
                    return
            except FilewheelError as exc:
                self.marks.tell("stopped", type(exc).__name__, path)
            finally:
                with contextlib.suppress(FilewheelError):
                    keeper.close()

    def fire(self, keeper: Keeper, path: str) -> bool:
        """Fire until the time is up, or the primary is elsewhere; tell whether everything was fired that there is."""
        while self.lasts() and path == self.primary():
            since = time.monotonic_ns()
            batch = list(keeper.claim(50))
            if not batch:
                if self.ahead:
                    return True
                keeper.wait(0.02)
                continue
            now_us = (AheadClock() if self.ahead else SystemClock()).now_us()
            rows = [[serial_of(m.payload), m.id.hex(), m.due_us] for m in batch]
            self.marks.tell("fire", now_us, rows, path, since=since)
            time.sleep(self.rng.random() * 0.01)
            serials = [row[0] for row in rows]
            self.marks.tell("try-ack", serials, path)
            since = time.monotonic_ns()
            keeper.ack(batch)
            self.marks.tell("ack", serials, path, since=since)
        return False


class SetDrain(SetKeeper):
    """The last keeper: fires everything there is, whenever it is due."""

    ahead = True


# -- the command line ----------------------------------------------------------------------------------------------


class Failed(Exception):
    """A command ended with another code than 0."""


def filewheel(path: Path, *args: str, timeout_s: float = 60) -> str:
    """Run a verb on a wheel; return what it printed. Raises Failed."""
    command = [sys.executable, "-m", "cli", "-C", str(path), *args]
    try:
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as exc:
        raise Failed(f"`{' '.join(args)}` did not end in {timeout_s} s") from exc
    if done.returncode or "Traceback" in done.stderr:
        raise Failed(f"`{' '.join(args)}` ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout


class ReplicatorProcess:
    """`filewheel replicate`, started again when it was killed."""

    def __init__(self, folder: Path) -> None:
        self._log = (folder / "replicate.log").open("ab")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, path: Path) -> None:
        command = [sys.executable, "-m", "cli", "-C", str(path), "replicate"]
        self._process = subprocess.Popen(
            command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        self._log.close()


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
        lag_s = SYNC_LAG_S if self.mode == "mirror" else SHIP_LAG_S
        return Policy(self.mode, self.on_failure, timeout_s=TIMEOUT_S, lag_s=lag_s)


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
        """Load, a disaster, a promotion, load; then everything is put right again."""
        for role in (SetProducer, SetProducer, SetKeeper, SetKeeper):
            self.cast.start(role)
        self.torment(LOAD_S * self.rng.uniform(0.5, 1.5))
        victim = self.wheels[0 if self.plan.victim == "primary" else -1]
        disaster = self.strike(victim)
        self.torment(LOAD_S * self.rng.uniform(0.2, 0.6), kills=disaster is None)
        if disaster is not None and victim == self.primary:
            self.promote(victim)
        self.torment(LOAD_S)
        self.cast.kill(*self.cast.alive)
        self.replicator.kill()
        if disaster is not None:
            self.put_right(disaster, victim)

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

    def promote(self, old: Path) -> None:
        """Promote a backup, and tell everybody."""
        since = time.monotonic_ns()
        errors = []
        for new in self.wheels[1:]:
            try:
                filewheel(new, "promote", "--yes")
            except Failed as exc:
                errors.append(str(exc))
                continue
            self.marks.tell("promoted", str(new), str(old), since=since)
            self.say_primary(new)
            self.replicator.kill()
            self.replicator.start(new)
            return
        self.wrong += [f"no backup can be promoted: {errors}"]

    def put_right(self, disaster: Disaster, victim: Path) -> None:
        """Undo the disaster, and make the set whole again."""
        disaster.undo()
        self.marks.tell("undone", str(victim))
        if victim != self.primary and not disaster.loses:
            if self.plan.victim == "primary":
                filewheel(victim, "rejoin", "--yes")
            self.replicator.start(self.primary)
            self.wait_in_step()
            self.replicator.kill()
            self.compare(victim)

    def compare(self, other: Path) -> None:
        """In step means: no message is in one of them alone."""
        try:
            filewheel(self.primary, "diff", str(self.primary), str(other))
        except Failed as exc:
            self.wrong.append(str(exc))

    def wait_in_step(self) -> None:
        """Wait until the replicator follows every backup that can be reached, and has nothing left to ship."""
        from filewheel.replication.sets import set_status

        end = time.monotonic() + IN_STEP_S
        while time.monotonic() < end:
            with contextlib.suppress(FilewheelError):
                members = set_status(str(self.primary)).members
                if all(m.member.state == "current" and m.following and not m.lag_bytes for m in members):
                    return
            time.sleep(0.05)
        self.wrong.append(f"the set is not in step after {IN_STEP_S} s")

    def drain(self) -> None:
        """Let a last keeper fire everything that is in the primary."""
        if not self.cast.wait(self.cast.start(SetDrain), DRAIN_S):
            self.wrong.append(f"the last keeper did not end in {DRAIN_S} s")


def play(number: int, tally: Tally, rig: None, *, keep: bool = False) -> None:
    """Play one round, and judge it."""
    plan = plan_of(number)
    missing = DISASTERS[plan.disaster].needs() if plan.disaster else None
    if missing:
        tally.skip(missing)
        return
    folder = Path(tempfile.mkdtemp(prefix="filewheel-set-"))
    (folder / "marks").mkdir()
    try:
        with ExitStack() as stack:
            wheels = [stack.enter_context(home(folder, n)) for n in range(plan.backups + 1)]
            replicator = ReplicatorProcess(folder)
            stack.callback(replicator.end)
            cast = stack.enter_context(Cast(folder / "primary", folder / "marks", number))
            marks = Marks(folder / "marks" / "0000-conductor")
            round_ = Round(plan, random.Random(number), folder, wheels, cast, marks, replicator)
            round_.make()
            round_.play()
            round_.drain()
            tally.count("kills", cast.kills)
            told = read_marks(folder / "marks")
            wrong = [*round_.wrong, *judge(told, waiting(round_.primary), plan.policy)]
        for text in wrong[:10]:
            tally.violation(f"{plan}: {text}")
        tally.count("enqueues", sum(m[0] == "put" for lines in told.values() for m in lines))
        tally.count(plan.disaster or "kills alone")
    finally:
        if not keep:
            shutil.rmtree(folder)
        else:
            print(folder)


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
    name="set",
    title="sets of wheels, one of which meets a disaster",
    play=play,
    share=0.1,
    targets={"enqueues": 100_000},
    rig=rig,
    short=1,
)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    tally_ = Tally("set", int(sys.argv[1]))
    with rig():
        play(int(sys.argv[1]), tally_, None, keep="KEEP" in sys.argv)
    print(plan_of(int(sys.argv[1])), dict(tally_.counts), dict(tally_.skipped))
    for violation_ in tally_.violations:
        print(violation_.text)
    raise SystemExit(bool(tally_.violations))
