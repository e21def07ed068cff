"""Campaign: hundreds of foreign files in every directory of a real wheel, and everything real fires all the same.

A round makes a wheel on a real disk with messages in journals, slots and laps, scatters what is not its own all over it
(clutter.py), and lets a forked child live a keeper's life in it: readers, verify, claims, acknowledgements, deals. The
parent looks at what the child fired, and at every foreign thing.
Invariant: the child tells only what it fired; what is expected and what may not change is known before it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

from filewheel.disk.directory import open_directory
from filewheel.env import Clock
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S, to_datetime
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.crash.clutter import Clutter
from tests.crash.rot import REPO
from tests.model.world import ModelClock

SLOTS = 60
THINGS = 300
LIFE_S = 10
KIB_MAX = 64 << 10
COMMANDS_EVERY = 8
COMMANDS = [["verify"], ["inspect"], ["stats"], ["inspect", "list"]]
AHEAD_S = [-5, 0, 1, 1, 2, 30, SLOTS + 10, SLOTS * 4 + 3, SLOTS * 9]


def play(number: int, tally: Tally, rig: Any) -> None:
    """Play one wheel full of what is not its own."""
    rng = random.Random(f"foreign {number}")
    folder = Path(tempfile.mkdtemp(prefix="filewheel-foreign-"))
    try:
        path, clock = folder / "jobs.wheel", ModelClock()
        expected = furnish(path, clock, rng)
        clutter = Clutter(path, folder / "outside", rng)
        clutter.scatter(places(path, clock, rng), THINGS)
        tally.count("foreign files", len(clutter.placed))
        for reason in clutter.skipped:
            tally.skip(reason)
        told = in_a_child(lambda: live(path, clock))
        for wrong in told["wrong"]:
            tally.violation(wrong)
        fired = told.get("fired", [])
        tally.count("messages fired among them", len(fired))
        if not told["wrong"]:
            tally.check(sorted(fired) == sorted(expected), f"fired {sorted(fired)}, expected {sorted(expected)}")
            tally.check(told["kib"] < KIB_MAX, f"took {told['kib']} KiB more")
        for wrong in clutter.changed():
            tally.violation(f"not left alone: {wrong}")
        if number % COMMANDS_EVERY == 0:
            command(path, rng.choice(COMMANDS), tally)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- what is there -------------------------------------------------------------------------------------------------


def furnish(path: Path, clock: ModelClock, rng: random.Random) -> list[str]:
    """Make a wheel with messages in slots, laps and journals; return the payloads."""
    payloads: list[str] = []

    def put(wheel: Wheel, count: int) -> None:
        for _ in range(count):
            payloads.append(f"message {len(payloads)}")
            due_us = clock.now_us() + rng.choice(AHEAD_S) * US_PER_S + rng.randrange(US_PER_S)
            wheel.enqueue(payloads[-1].encode(), at=to_datetime(due_us), sync="never")

    with Wheel.create(path, slots=SLOTS, clock=clock, sync="never") as wheel:
        put(wheel, 20)
        wheel.close()
    Keeper(path, clock=clock, background=False).close()
    with Wheel(path, clock=clock) as wheel:
        put(wheel, 10)
    with Wheel(path, clock=clock) as wheel:
        put(wheel, 10)
    return payloads


def places(path: Path, clock: Clock, rng: random.Random) -> dict[str, list[bytes]]:
    """Return the wheel's directories, each with valid names that none of its own files will need."""
    now_s = clock.now_us() // US_PER_S
    far = [rng.randrange(10**6) for _ in range(20)]
    found = {
        "": [b"hint", b"ballast"],
        "journal": [b"%08d-%06d.log" % (n, rng.choice([1, 2, 10**12 - 1])) for n in far]
        + [b".%08d-000001.tmp" % n for n in far],
        "laps": [b"%d.lap" % n for n in far] + [b"%d" % n for n in far],
        "quarantine": [b"%d.json" % n for n in far],
    }
    for entry in os.scandir(path / "laps"):
        if entry.is_dir():
            lap = int(entry.name)
            used = {now_s + ahead + late for ahead in AHEAD_S for late in (0, 1, 2)}
            free = [s for s in range(lap * SLOTS, (lap + 1) * SLOTS) if s not in used]
            found[f"laps/{lap}"] = [b"%d.slot" % s for s in free]
    return found


# -- the life in it ------------------------------------------------------------------------------------------------


def live(path: Path, clock: ModelClock) -> list[str]:
    """Look at everything, then fire everything; return the payloads in the order of firing."""
    with Wheel(path, clock=clock) as wheel:
        listed = sorted(m.payload.decode() for m in wheel.list())
        wheel.stats()
        wheel.topics()
        wheel.histogram([0.0, 1.8e9])
    verify(open_directory(path, write=False))
    fired: list[str] = []
    for wait_s in (0, 3, 40, SLOTS, SLOTS * 10):
        clock.advance(wait_s * US_PER_S)
        with Keeper(path, clock=clock, background=False) as keeper:
            while batch := keeper.claim(7):
                fired += [m.payload.decode() for m in batch]
                keeper.ack(batch)
    if listed != sorted(fired):
        raise AssertionError(f"listed {listed}, and fired {sorted(fired)}")
    return fired


def in_a_child(life: Any) -> dict[str, Any]:
    """Live in a forked child: with an end to its time, and to its memory; return what it told."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        told: dict[str, Any] = {"wrong": []}
        try:
            os.close(reader)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LIFE_S)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with mock.patch("logging.Logger._log"):
                told["fired"] = life()
            told["kib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        except BaseException:
            told["wrong"].append(traceback.format_exc()[-2500:])
        with contextlib.suppress(BaseException):
            with os.fdopen(writer, "w") as out:
                json.dump(told, out)
        os._exit(0)
    os.close(writer)
    begun = time.monotonic()
    with os.fdopen(reader) as lines:
        text = lines.read()
    _, status = os.waitpid(child, 0)
    if not text:
        took = time.monotonic() - begun
        return {"wrong": [f"the child ended with {os.waitstatus_to_exitcode(status)} after {took:.1f} s"]}
    return dict(json.loads(text))


def command(path: Path, verb: list[str], tally: Tally) -> None:
    """Run a verb of the command line: an exit code that is documented, and no bytes that steer a terminal."""
    tally.count("commands")
    run = subprocess.run(
        [sys.executable, "-m", "cli", "-C", str(path), *verb], cwd=REPO, capture_output=True, timeout=20, check=False
    )
    said = run.stdout + run.stderr
    if run.returncode not in {0, 3, 12} or b"Traceback" in said or b"\x1b" in said or b"\x07" in said:
        tally.violation(f"{' '.join(verb)} ended with {run.returncode}: {said[-2000:]!r}")


CAMPAIGN = Campaign(
    name="foreign",
    title="foreign files, links, pipes and holes in every directory",
    play=play,
    share=0.02,
    targets={"foreign files": 10_000},
)
