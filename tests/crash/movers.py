"""Campaign: looks at a wheel while three processes move its messages, and a keeper deals them.

Each message has a unique key. The processes replace, reschedule and update them all the time; none is ever ended. So
whatever a look shows, at whatever moment, has each key once. What a dump shows can be loaded into an empty wheel.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from filewheel.disk.directory import opened
from filewheel.errors import KeyHeld, NotFound
from filewheel.keeper import Keeper
from filewheel.laps.window import Budget
from filewheel.lookup import snapshot
from filewheel.message import Message
from filewheel.tools.diff import differences
from filewheel.tools.dump import dump
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.actors import LAP_S, Actor, quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.marks import read_marks

LASTS_S = 3.0
KEYS = 40
MOVERS = 3


class Moves(Actor):
    """Replaces, reschedules and updates the holders of keys."""

    def run(self) -> None:
        with Wheel(self.path, sync=self.rng.choice(["never", "never", 0.02, "always"])) as wheel:
            while self.lasts():
                key, delay = f"k{self.rng.randrange(KEYS)}", self.rng.choice([0, 1, 2, 3, 5, 60, 3600])
                act = self.rng.random()
                if act < 0.5:
                    wheel.enqueue(b"x" * self.rng.randrange(300), key=key, on_conflict="replace", delay=delay)
                elif act < 0.9:
                    wheel.reschedule(key=key, delay=delay)
                else:
                    wheel.update(key=key, payload=b"updated")


class Deals(Actor):
    """Is the keeper, and fires nothing."""

    def run(self) -> None:
        while self.lasts():
            with Keeper(self.path):
                time.sleep(self.rng.random())


def play(number: int, tally: Tally, _: None) -> None:
    """Look in every way while messages move: in odd rounds nothing is dealt, and all journals are read each time.

    In even rounds a walk takes several windows, between which files are dealt anew and removed.
    """
    if number % 2:
        play_one(number, tally)
        return
    before, snapshot.WALK_BUDGET = snapshot.WALK_BUDGET, Budget(records=KEYS // 4, bytes=1 << 20)
    try:
        with quick():
            play_one(number, tally)
    finally:
        snapshot.WALK_BUDGET = before


def play_one(number: int, tally: Tally) -> None:
    """Play a round."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-movers-"))
    try:
        path, marks = folder / "jobs.wheel", folder / "marks"
        marks.mkdir()
        with Wheel.create(path, slots=60 if number % 2 else LAP_S) as wheel:
            for n in range(KEYS):
                wheel.enqueue(b"first", delay=n, key=f"k{n}")
        with Cast(path, marks, number) as cast, Wheel(path) as wheel:
            for role in (*[Moves] * MOVERS, *([] if number % 2 else [Deals])):
                cast.start(role)
            end = time.monotonic() + LASTS_S
            while time.monotonic() < end:
                look(wheel, tally)
                with Wheel(path) as fresh:
                    look(fresh, tally)
        for told in read_marks(marks).values():
            for mark in told:
                tally.check(mark[0] != "error", f"{mark}")
        load_again(path, folder, tally)
    finally:
        shutil.rmtree(folder)


def look(wheel: Wheel, tally: Tally) -> None:
    """Look once in each way."""
    looks: dict[str, Callable[[], Iterable[Message]]] = {
        "dump": lambda: dump(wheel),
        "slow dump": lambda: slowly(dump(wheel)),
        "list": wheel.list,
        "limited list": lambda: wheel.list(limit=KEYS + 10),
        "peek": lambda: wheel.peek(KEYS + 10),
    }
    for name, messages in looks.items():
        found = Counter(message.key for message in messages())
        tally.count("looks")
        twice = [key for key, count in found.items() if count > 1]
        tally.check(not twice, f"{name} shows {twice} twice")
        lost = [n for n in range(KEYS) if f"k{n}" not in found]
        tally.check(not lost, f"{name} does not show {lost}")
    pending = wheel.stats().pending
    tally.check(pending == KEYS, f"stats count {pending}")
    dead = sum(1 for _ in wheel.dead())
    tally.check(not dead, f"{dead} dead letters")
    with opened(wheel.path) as directory:
        report = verify(directory)
    tally.check(not report.damage, f"verify: {report.damage}")
    with Wheel(wheel.path) as other:
        found = Counter(difference.kind for difference in differences(wheel, other))
    tally.count("differences of messages on their way", sum(found.values()))
    tally.check(not found["not the same"], f"diff: {found}")
    tally.count("looks", 4)


def slowly(messages: Iterable[Message]) -> Iterator[Message]:
    """Yield messages, with time for a deal or two in between."""
    for message in messages:
        yield message
        time.sleep(0.01)


def load_again(path: Path, folder: Path, tally: Tally) -> None:
    """Load what a dump shows into an empty wheel."""
    with Wheel(path) as wheel, Wheel.create(folder / "copy.wheel") as copy:
        try:
            copy.add(dump(wheel))
        except (KeyHeld, NotFound) as exc:
            tally.violation(f"a dump cannot be loaded: {exc}")


CAMPAIGN = Campaign(
    name="movers",
    title="looks of every kind beside processes that move messages with keys",
    play=play,
    share=0.03,
    targets={"looks": 20_000},
    short=1,
)
