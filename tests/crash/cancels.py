"""Campaign: cancels, reschedules and replacements of what has been claimed and waits for its turn, and SIGKILLs.

A round is one wheel and two seconds. Two processes fire, or stand by; what they claim waits for a thread, a lane, a
rate, a process, an event loop or a command. Two others enqueue and change their minds. All of them are killed, stopped
and forked at random moments. Then one more fires what is left, and the judge compares what calls noted when they began
with what their cancels had said before (verdict_cancels.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.message import KEY
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash import cancellers, firing
from tests.crash.actors import LAP_S, Actor, quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.images import ends_cleanly
from tests.crash.marks import Mark, read_marks
from tests.crash.verdict_cancels import judge

LASTS_S = 2.5
STRIKES_PER_S = 5
END_TIMEOUT_S = 60
WAYS: list[tuple[type[firing.Fires], type[cancellers.Plain], type[firing.Fires]]] = [
    (firing.FiresCalls, cancellers.OfCalls, firing.EndsCalls),
    (firing.FiresDue, cancellers.Plain, firing.Ends),
    (firing.FiresCallsInLoop, cancellers.OfCalls, firing.EndsCalls),
    (firing.FiresCommands, cancellers.Plain, firing.Ends),
    (firing.FiresCalls, cancellers.OfCalls, firing.EndsCalls),
]


def play(number: int, tally: Tally, places: list[Path]) -> None:
    """Let processes fire, enqueue and cancel for a while, under kills; then judge what they noted."""
    fires, changes, ends = WAYS[number % len(WAYS)]
    folder = Path(tempfile.mkdtemp(prefix="filewheel-cancels-", dir=places[number // len(WAYS) % len(places)]))
    try:
        path, marks = folder / "jobs.wheel", folder / "marks"
        marks.mkdir()
        Wheel.create(path, slots=LAP_S).close()
        with Cast(path, marks, number) as cast:
            with all_gone(tally):
                torment(cast, random.Random(number), fires, changes)
            tally.count("kills", cast.kills)
            ended = cast.wait(cast.start(ends), END_TIMEOUT_S)
            tally.check(ended, f"{ends.__name__} did not end in {END_TIMEOUT_S} s")
        told = read_marks(marks)
        with Wheel(path) as wheel:
            waiting = [(str(m.id), cancellers.serial_of(m), m.headers.get(KEY)) for m in wheel.list()]
            dead = {cancellers.serial_of(m) for m in wheel.list(dead=True)}
        for text in judge(told, waiting, dead):
            tally.violation(f"{fires.__name__}: {text}")
        directory = open_directory(path, write=False)
        for damage in verify(directory).damage:
            tally.violation(f"{fires.__name__}: damage: {damage}")
        directory.disk.release()
        count([mark for some in told.values() for mark in some], tally)
    finally:
        shutil.rmtree(folder)


@contextlib.contextmanager
def all_gone(tally: Tally) -> Iterator[None]:
    """At the end, wait until also those are gone that the processes of the round had forked."""
    get, put = os.pipe()
    try:
        try:
            yield
        finally:
            os.close(put)
        is_over = select.select([get], [], [], END_TIMEOUT_S)[0]
        tally.check(is_over, "a child of a process that was killed does not end")
    finally:
        os.close(get)


def torment(cast: Cast, rng: random.Random, fires: type[Actor], changes: type[Actor]) -> None:
    """Kill, stop and start processes at random; at the end all of them are killed."""
    for role in (changes, changes, fires, fires):
        cast.start(role)
    end = time.monotonic() + LASTS_S
    while time.monotonic() < end:
        time.sleep(rng.expovariate(STRIKES_PER_S))
        pid = rng.choice([p for p, role in cast.alive.items() if role is fires or rng.random() < 0.3] or [*cast.alive])
        role = cast.alive[pid]
        act = rng.random()
        if act < 0.4:
            cast.freeze(pid)
            time.sleep(rng.random() * 0.2)
            cast.go_on(pid)
        elif act < 0.8:
            cast.kill(pid)
            cast.start(role, lasts_s=rng.uniform(0.3, 1) if rng.random() < 0.3 else 3600)
        for role in cast.ended():
            cast.start(role)
    cast.kill(*cast.alive)


def count(told: list[Mark], tally: Tally) -> None:
    """Count what was tried."""
    for mark in told:
        if mark[0] == "call":
            tally.count("calls", len(mark[6]))
        elif mark[0] == "cancel":
            tally.count("cancels", len(mark[3]))
            for how in mark[4].values():
                tally.count(how)
        elif mark[0] == "move":
            tally.count("reschedules")
        elif mark[0] in ("cancel-key", "move-key") or (mark[0] == "put" and mark[6] == "replace"):
            tally.count("ends by key")


@contextlib.contextmanager
def rig() -> Iterator[list[Path]]:
    """Make everything small; return where to put wheels."""
    places = [Path(tempfile.gettempdir())]
    if os.path.isdir("/dev/shm"):
        places.append(Path("/dev/shm"))
    with ExitStack() as stack:
        stack.enter_context(ends_cleanly())
        stack.enter_context(quick())
        yield places


CAMPAIGN = Campaign(
    name="cancels",
    title="cancels, reschedules and replacements of what waits for its turn, and SIGKILLs",
    play=play,
    share=0.04,
    targets={"cancels": 20_000},
    rig=rig,
    short=1,
)
