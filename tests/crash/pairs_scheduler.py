"""Campaign: every pair of public methods of one Scheduler, called by threads at the same time.

As in pairs.py: a round is one pair, with or without unique keys, while others enqueue and the scheduler fires; a call
may raise what its docstring names, and nothing else. At the end it is stopped and its lock is free, nothing broke off
in the background, and what was enqueued was called, was cancelled, or is called by the next one.
Invariant: what a round counts as gone is what a call said that it did.
"""

from __future__ import annotations

import itertools
import logging
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.errors import BadArgument, Closed, FilewheelError, KeyHeld, Locked
from filewheel.keeper import Keeper
from filewheel.message import SCHEDULE, MessageId
from filewheel.scheduling.job import current_job
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.scheduler import Scheduler
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.crash.pairs import KEYS, Act, Calls, rig

AGAIN = Retry(limit=50, delay_s=0.002, delay_max_s=0.005)
END_S = 30.0


class Broken(logging.Handler):
    """Keeps what is logged as an error: whatever broke off in a thread of the scheduler's own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class Stage:
    """One wheel, one scheduler that all threads share, and what became of its calls."""

    def __init__(self, path: Path, rng: random.Random, *, keyed: bool) -> None:
        Wheel.create(path, slots=60, sync="never").close()
        self.path = path
        self.rng = rng
        self.keyed = keyed
        self.other = Wheel(path)
        """Looks for the round, and is closed by none of its threads."""
        self.known: list[MessageId] = []
        self.serial_of: dict[bytes, int] = {}
        self.enqueued: set[int] = set()
        self.called: set[int] = set()
        self.gone: set[int] = set()
        """Serials of what was cancelled or replaced, or may have been."""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self.scheduler = self.defined()

    def defined(self) -> Scheduler:
        """Return a scheduler with a handler that counts its calls, and one that recurs."""
        scheduler = Scheduler(self.path, threads=2, sync="never", in_flight=20)

        @scheduler.on("job", retry=AGAIN)
        def job(serial: int) -> None:
            self.called.add(serial)
            if serial % 5 == 0 and current_job().attempt == 0:
                raise ValueError("try again")

        scheduler.on("tick", retry=AGAIN)(lambda: None)
        self.job = job
        return scheduler

    # -- what threads do ---------------------------------------------------------------------------------------

    def _put(self, put: Callable[[int], MessageId]) -> None:
        serial = next(self._numbers)
        id_ = put(serial)
        with self._lock:
            self.enqueued.add(serial)
            self.serial_of[id_] = serial
            self.known = [*self.known[-50:], id_]

    def enqueue(self) -> None:
        self._put(lambda n: self.scheduler.enqueue("job", [n], delay=self.rng.choice([0, 0, 0.01, 0.2])))

    def enqueue_keyed(self) -> None:
        """Enqueue with a key, of what `replace` does not touch; without keys, by the handler."""
        if self.keyed:
            key = f"k{self.rng.randrange(KEYS)}"
            self._put(lambda n: self.scheduler.enqueue("job", [n], key=key))
        else:
            self._put(lambda n: self.job.after(self.rng.choice([0, 0.01]), n))

    def replace(self) -> None:
        """Replace whatever has one of a few keys: any of those may be gone."""

        def put(serial: int) -> MessageId:
            self.gone.add(serial)
            return self.scheduler.enqueue("job", [serial], key=f"r{serial % 4}", on_conflict="replace", delay=0.01)

        self._put(put)

    def cancel(self) -> None:
        known = self.known
        if known:
            id_ = self.rng.choice(known)
            self.gone.add(self.serial_of[id_])
            self.scheduler.cancel(id_)

    def define(self) -> None:
        self.scheduler.on(f"late-{next(self._numbers)}")(lambda: None)

    def subscribe(self) -> None:
        self.scheduler.on_event(lambda event: None)()

    def resize(self) -> None:
        self.scheduler.threads = self.rng.choice([1, 2, 3])

    # -- the list ----------------------------------------------------------------------------------------------

    def methods(self) -> dict[str, Act]:
        """Return what is called, by name: all that a Scheduler offers."""
        scheduler = self.scheduler
        return {
            "enqueue": self.enqueue, "enqueue-keyed": self.enqueue_keyed, "replace": self.replace,
            "cancel": self.cancel, "cancel-key": lambda: scheduler.cancel(key=f"r{self.rng.randrange(4)}"),
            "schedule": lambda: scheduler.schedule("often", 0.02, "tick"),
            "unschedule": lambda: scheduler.unschedule("often"), "define": self.define, "threads": self.resize,
            "handlers": lambda: scheduler.handlers, "wheel": lambda: scheduler.wheel.get(MessageId.make(1, 2, 3)),
            "on_event": self.subscribe, "prometheus": scheduler.prometheus,
            "wait_until_keeper": lambda: scheduler.wait_until_keeper(0.002), "start": scheduler.start,
            "stop": lambda: scheduler.stop(0.05), "drain": scheduler.drain,
        }  # fmt: skip

    def end(self) -> None:
        """Call what is left."""
        scheduler = self.defined()
        with scheduler:
            end = time.monotonic() + END_S
            while any(SCHEDULE not in m.headers for m in self.other.list()) and time.monotonic() < end:
                time.sleep(0.005)


NAMES = [
    "enqueue", "enqueue-keyed", "replace", "cancel", "cancel-key", "schedule", "unschedule", "define", "threads",
    "handlers", "wheel", "on_event", "prometheus", "wait_until_keeper", "start", "stop", "drain",
]  # fmt: skip
PAIRS = [(a, b, keyed) for a, b in itertools.combinations_with_replacement(NAMES, 2) for keyed in (False, True)]
MAY_RAISE: dict[str, tuple[type[FilewheelError], ...]] = {
    "start": (BadArgument,), "drain": (BadArgument, Locked), "enqueue-keyed": (KeyHeld,),
}  # fmt: skip


def play(number: int, tally: Tally, places: list[Path]) -> None:
    """Call one pair of methods from threads while the scheduler fires, and look at what is left."""
    one, two, keyed = PAIRS[number * 53 % len(PAIRS)]  # neighbours are of different kinds
    folder = Path(tempfile.mkdtemp(prefix="filewheel-pairs-", dir=places[number % len(places)]))
    broken = Broken()
    log = logging.getLogger("filewheel")
    log.addHandler(broken)
    try:
        stage = Stage(folder / "jobs.wheel", random.Random(number), keyed=keyed)
        calls = Calls()
        methods = stage.methods()
        if "drain" not in (one, two):
            stage.scheduler.start()
        closed = (Closed,) if "stop" in (one, two) else ()
        calls.go("enqueue beside", stage.enqueue, pause_s=0.002, may_raise=closed)
        calls.go("keyed beside", stage.enqueue_keyed, pause_s=0.002, may_raise=(*closed, KeyHeld))
        for name in (one, two, two):
            calls.go(name, methods[name], pause_s=0.0005, may_raise=(*closed, *MAY_RAISE.get(name, ())))
        calls.end()
        stage.scheduler.stop()
        found = [*calls.wrong, *look(stage), *broken.texts]
        stage.other.close()
        for text in found:
            tally.violation(f"{one} beside {two}{', with keys' if keyed else ''}: {text}")
        tally.count("pairs")
        tally.count("calls", calls.calls)
    finally:
        log.removeHandler(broken)
        shutil.rmtree(folder)


def look(stage: Stage) -> Iterator[str]:
    """Say what is wrong with what is left."""
    with Keeper(stage.path, wait=False, background=False):
        pass  # the lock is free
    stage.end()
    lost = stage.enqueued - stage.called - stage.gone
    if lost:
        yield f"{len(lost)} of {len(stage.enqueued)} calls are lost: {sorted(lost)[:3]}"
    directory = open_directory(stage.path, write=False)
    if damage := verify(directory).damage:
        yield f"damage: {damage[:2]}"
    directory.disk.release()


CAMPAIGN = Campaign(
    name="pairs-scheduler",
    title="every pair of methods of one scheduler, called by threads at once",
    play=play,
    share=0.02,
    targets={"pairs": len(PAIRS)},
    rig=rig,
    short=2,
)
