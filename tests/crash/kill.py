"""Campaign: SIGKILL of real producers, keepers, standbys and consumers, at random moments, about twenty times a second.

A round is one wheel: two seconds of killing, stopping and starting processes, then a last keeper fires what is left.
What a process was told is in its marks, outside of the wheel; tests/crash/promises.py judges them. A kill loses
nothing that was written, whatever its `sync`, so every promise counts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.message import DEAD_US, US_PER_S
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.actors import LAP_S, Actor, Drain, KeeperActor, Looker, Producer, quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.images import available, ends_cleanly, image, sizes
from tests.crash.marks import read_marks, serial_of
from tests.crash.verdict import Pending, Promises

KILLING_S = 2.0
KILLS_PER_S = 26
DRAIN_TIMEOUT_S = 60
CAST: list[type[Actor]] = [Producer, Producer, Producer, KeeperActor, KeeperActor]


def play(number: int, tally: Tally, places: list[Path]) -> None:
    """Kill the processes of one wheel for a while, then compare it with what they were told."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-kill-", dir=places[number // 2 % len(places)]))
    try:
        path, marks = folder / "jobs.wheel", folder / "marks"
        marks.mkdir()
        Wheel.create(path, slots=LAP_S).close()
        promises = Promises()
        with Cast(path, marks, number) as cast:
            torment(cast, random.Random(number))
            tally.count("kills", cast.kills)
            drained = drain(cast, tally)
        promises.take(read_marks(marks))
        if drained:
            promises.check_drained(pending_of(path))
            for text in left_over(path):
                promises.broken(text)
        for text in promises.violations:
            tally.violation(text)
        tally.count("acknowledged", promises.acked)
        tally.count("fired", promises.fires)
    finally:
        shutil.rmtree(folder)


def torment(cast: Cast, rng: random.Random) -> None:
    """Kill, stop and start processes at random; at the end all of them are killed."""
    for role in [*CAST, *([Looker] if rng.random() < 0.3 else [])]:
        cast.start(role)
    end = time.monotonic() + KILLING_S
    while time.monotonic() < end:
        time.sleep(rng.expovariate(KILLS_PER_S))
        strike(cast, rng)
        for role in cast.ended():
            cast.start(role, lasts_s=life(rng))
    cast.kill(*cast.alive)


def life(rng: random.Random) -> float:
    """Draw how long a process lasts that nobody kills: most would go on for ever, some close."""
    return rng.uniform(0.05, 0.6) if rng.random() < 0.3 else 3600


def strike(cast: Cast, rng: random.Random) -> None:
    """Kill one process, or both keepers, or all; or stop one for a while. The killed ones are started again."""
    act = rng.random()
    keepers = [p for p, role in cast.alive.items() if role is KeeperActor]
    if act < 0.1:
        victims = keepers
    elif act < 0.13:
        victims = list(cast.alive)
    elif act < 0.2:
        pid = rng.choice(list(cast.alive))
        cast.freeze(pid)
        time.sleep(rng.random() * 0.1)
        victims = [pid] if rng.random() < 0.5 and pid in cast.alive else []
        cast.go_on(pid)
    elif act < 0.6:
        victims = keepers[:1] if rng.random() < 0.6 else keepers[-1:]
    else:
        victims = [rng.choice(list(cast.alive))]
    roles = [cast.alive[pid] for pid in victims]
    cast.kill(*victims)
    for role in roles:
        cast.start(role, lasts_s=life(rng))


def drain(cast: Cast, tally: Tally) -> bool:
    """Let a last keeper fire everything, and one more life cover what the last one wrote; tell whether they ended."""
    for _ in range(2):
        if not cast.wait(cast.start(Drain), DRAIN_TIMEOUT_S):
            tally.violation(f"the last keeper did not end in {DRAIN_TIMEOUT_S} s")
            return False
    return True


def pending_of(path: Path) -> Pending:
    """Return what a reader sees."""
    with Wheel(path) as wheel:
        messages = [*wheel.list(), *wheel.list(dead=True)]
    return {m.id.hex(): (serial_of(m.payload), m.root.hex() if m.root else None) for m in messages}


def left_over(path: Path, lap_s: int = LAP_S) -> Iterator[str]:
    """Name what a drained wheel should not have: damage, held locks, files that nobody removes."""
    directory = open_directory(path, write=False)
    for finding in verify(directory).findings:
        yield f"drained: verify says {finding}"
    directory.disk.release()
    dead_lap = DEAD_US // US_PER_S // lap_s
    for name in os.listdir(path / layout.LAPS):
        file = layout.parse_lap_file(name)
        lap = layout.parse_lap_dir(name) if file is None else file[0]
        if lap is None or lap < dead_lap:
            yield f"drained: laps/{name} is left"
    for folder in (layout.JOURNAL, layout.QUARANTINE):
        for name in os.listdir(path / folder):
            yield f"drained: {folder}/{name} is left"
    with open(path / layout.LOCK, "rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield "drained: keeper.lock is held by nobody's process"


@contextlib.contextmanager
def rig() -> Iterator[list[Path]]:
    """Make everything small, so that seconds meet rotation, deals, expiry and tidying; return where to put wheels.

    On tmpfs a flush is nothing, so that kills fall on the library's own steps; on a disk they also fall into flushes.
    btrfs, where it can be mounted, because its directories are unlike others: one that stays open does not change.
    """
    places = [Path(tempfile.gettempdir())]
    if os.path.isdir("/dev/shm"):
        places.append(Path("/dev/shm"))
    with ExitStack() as stack:
        stack.enter_context(ends_cleanly())
        for kind in available("btrfs"):
            places.append(stack.enter_context(image(kind, sizes(kind))).mount_point)
        stack.enter_context(quick())
        yield places


CAMPAIGN = Campaign(
    name="kill",
    title="SIGKILL of producers, keeper and standby",
    play=play,
    share=0.07,
    targets={"kills": 10_000},
    rig=rig,
    short=1,
)
