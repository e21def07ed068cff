"""The processes of a set of wheels: producers and keepers that go where the primary is, and the command line.

A file outside of all wheels says where the primary is, as a service's configuration would. Producers and keepers are
forked from this process; the replicator, promotions and all that a person would type go through `filewheel`.
Invariant: whatever a wheel promised to one of these processes is marked with the wheel's path.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

from filewheel.env import SystemClock
from filewheel.errors import FilewheelError, TooFewCopies, WheelFull
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, to_datetime
from filewheel.wheel import Wheel
from tests.crash.actors import Actor, AheadClock
from tests.crash.marks import Marks, body, serial_of

REPO = Path(__file__).parents[2]
PAUSE_S = 0.02


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
                time.sleep(PAUSE_S)
            else:
                self.marks.tell("put", [[self.serial, id_.hex()]], id_.copies, path, since=since)
            time.sleep(self.rng.random() * 0.006)
        if wheel is not None:
            self.let_go(wheel)

    @staticmethod
    def let_go(wheel: Wheel) -> None:
        with contextlib.suppress(FilewheelError):
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
                keeper.wait(PAUSE_S)
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
    """A command ended with another code than it should."""


def filewheel(path: Path, *args: str, timeout_s: float = 60, codes: tuple[int, ...] = (0,)) -> str:
    """Run a verb on a wheel; return what it printed. Raises Failed unless it ends with one of these codes."""
    command = [sys.executable, "-m", "cli", "-C", str(path), *args]
    try:
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as exc:
        raise Failed(f"`{' '.join(args)}` did not end in {timeout_s} s") from exc
    if done.returncode not in codes or "Traceback" in done.stderr:
        raise Failed(f"`{' '.join(args)}` ended with {done.returncode}: {done.stderr.strip()[-1500:]}")
    return done.stdout


class ReplicatorProcess:
    """`filewheel replicate`, started again when it was killed. Its marks say when it was at work."""

    def __init__(self, folder: Path, marks: Marks) -> None:
        self._log = (folder / "replicate.log").open("ab")
        self._marks = marks
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, path: Path) -> None:
        command = [sys.executable, "-m", "cli", "-C", str(path), "replicate"]
        self._process = subprocess.Popen(
            command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
        )
        self._marks.tell("replicator", True)

    def kill(self) -> None:
        if self._process is not None:
            self._marks.tell("replicator", False)
            self._process.kill()
            self._process.wait()
            self._process = None

    def end(self) -> None:
        self.kill()
        self._log.close()
