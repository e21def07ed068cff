"""Campaign: SIGKILL of processes that run the same scheduler, while chains, keyed jobs and recurring work go on.

A round is one wheel and two seconds. What calls saw is in marks outside of the wheel, with the fire id of each call.
A kill loses nothing that was written, so a link of a chain may be called twice but has one fire id, for ever; so has an
occurrence of each time. Now and then everything is stopped, and what waits is looked at: at most one message with a
key, at most one link of each chain, exactly one occurrence. Some calls keep a result (kept.py).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filewheel.errors import KeyHeld
from filewheel.message import ARGS, KEY, RESULT, SCHEDULE, Message
from filewheel.scheduling.job import current_job
from filewheel.scheduling.outcome import Retry
from filewheel.scheduling.scheduler import Scheduler
from filewheel.values import unpack_call
from filewheel.wheel import Wheel
from tests.crash import kept
from tests.crash.actors import LAP_S, Actor, quick
from tests.crash.campaign import Campaign, Tally
from tests.crash.cast import Cast
from tests.crash.images import ends_cleanly
from tests.crash.marks import Mark, read_marks

KILLING_S = 2.0
KILLS_PER_S = 20
LOOKS_SHARE = 0.15
LINKS = 12
KEYS = 6
TICK_S = 0.05
END_TIMEOUT_S = 60


class Fires(Actor):
    """Runs the scheduler: fires, or stands by."""

    def run(self) -> None:
        scheduler = self.defined()
        scheduler.start()
        while self.lasts():
            time.sleep(0.01)
        scheduler.stop()

    def defined(self) -> Scheduler:
        """Return the scheduler with its handlers; each call is marked before it does anything."""
        in_flight = self.rng.choice([1, 4, 50])
        scheduler = Scheduler(self.path, threads=3, in_flight=in_flight, sync="never")
        again = Retry(limit=50, delay_s=0.005, delay_max_s=0.02)

        def told(*what: object) -> None:
            job = current_job()
            self.marks.tell("call", *what, str(job.fire_id), str(job.id))

        @scheduler.on(retry=again)
        def link(chain: int, number: int) -> None:
            told("link", chain, number)
            if self.rng.random() < 0.1:
                raise ValueError("try again")
            if number + 1 < LINKS:
                with current_job().transaction():
                    link.after(self.rng.choice([0, 0, 0.01]), chain, number + 1)
            if self.rng.random() < 0.05:
                raise ValueError("after the transaction")

        @scheduler.on(retry=again, concurrency=2)
        def keyed(key: str) -> None:
            told("keyed", key, 0)
            if self.rng.random() < 0.3:
                raise ValueError("try again")

        @scheduler.every(TICK_S)
        @scheduler.on(retry=again)
        def tick() -> None:
            due_us = current_job().fire_id.due_us
            told("tick", due_us, 0)
            if self.rng.random() < 0.2:
                raise ValueError("try again")

        kept.keeps(scheduler, self)
        return scheduler


class Enqueues(Actor):
    """Begins chains, and enqueues jobs with keys that are often held."""

    def run(self) -> None:
        scheduler = Scheduler(self.path, sync="never")
        chain = self.serial
        while self.lasts():
            act = self.rng.random()
            if act < 0.3:
                self.marks.tell("try-chain", chain)
                scheduler.enqueue("link", [chain, 0])
                self.marks.tell("chain", chain)
                chain += 1
            else:
                self.enqueue_keyed(scheduler)
            time.sleep(self.rng.random() * 0.02)
        scheduler.stop()

    def enqueue_keyed(self, scheduler: Scheduler) -> None:
        """Enqueue with a key. Those that may be replaced have names of their own: no call of one is promised."""
        name = f"k{self.rng.randrange(KEYS)}"
        how: Any = self.rng.choice(["reject", "keep", "replace"])
        key = f"replaced-{name}" if how == "replace" else name
        delay = self.rng.choice([0, 0.02, 0.3])
        with contextlib.suppress(KeyHeld):
            id_ = scheduler.enqueue("keyed", [key], key=key, on_conflict=how, delay=delay)
            self.marks.tell(f"keyed {how}", key, str(id_))


class Ends(Fires):
    """Fires until nothing waits but the next occurrence and results."""

    def run(self) -> None:
        scheduler = self.defined()
        with scheduler, Wheel(self.path) as wheel:
            while any(not m.headers.keys() & {SCHEDULE, RESULT} for m in wheel.list()):
                time.sleep(0.02)


def play(number: int, tally: Tally, places: list[Path]) -> None:
    """Kill the processes of one wheel for a while, let one end its work, and compare the marks."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-scheduler-", dir=places[number % len(places)]))
    try:
        path, marks = folder / "jobs.wheel", folder / "marks"
        marks.mkdir()
        Wheel.create(path, slots=LAP_S).close()
        with Cast(path, marks, number) as cast:
            torment(cast, random.Random(number), path, marks, tally)
            tally.count("kills", cast.kills)
            ended = cast.wait(cast.start(Ends), END_TIMEOUT_S)
            tally.check(ended, f"the last scheduler did not end in {END_TIMEOUT_S} s")
            asked = not ended or cast.wait(cast.start(kept.AsksAll), END_TIMEOUT_S)
            tally.check(asked, f"the last questions were not answered in {END_TIMEOUT_S} s")
        told = [mark for some in read_marks(marks).values() for mark in some]
        for text in look(path, told):
            tally.violation(f"at the end: {text}")
        if ended:
            judge(told, tally)
            kept.judge(told, tally)
    finally:
        shutil.rmtree(folder)


def torment(cast: Cast, rng: random.Random, path: Path, marks: Path, tally: Tally) -> None:
    """Kill and start processes at random, and look at what waits; at the end all of them are killed."""
    for role in (Fires, Fires, Enqueues, kept.Asks, kept.Asks):
        cast.start(role)
    end = time.monotonic() + KILLING_S
    while time.monotonic() < end:
        time.sleep(rng.expovariate(KILLS_PER_S))
        if rng.random() < LOOKS_SHARE:
            cast.freeze(*cast.alive)
            told = [mark for some in read_marks(marks).values() for mark in some]
            for text in look(path, told):
                tally.violation(text)
            tally.count("looks")
            cast.go_on(*cast.alive)
        victims = [p for p, role in cast.alive.items() if role is Fires or (role is Enqueues and rng.random() < 0.2)]
        for pid in rng.sample(victims, min(len(victims), rng.choice([1, 1, 1, 2]))):
            role = cast.alive[pid]
            cast.kill(pid)
            cast.start(role, lasts_s=rng.uniform(0.1, 0.6) if rng.random() < 0.2 else 3600)
        for role in cast.ended():
            cast.start(role)
    cast.kill(*cast.alive)


def look(path: Path, told: list[Mark]) -> Iterator[str]:
    """Say what is wrong with what waits, while nothing runs."""
    with Wheel(path) as wheel:
        living, dead = list(wheel.list()), list(wheel.list(dead=True))
    if any(m.topic not in ("tick", "never") for m in dead):
        yield f"a job died: {dead}"
    keys = Counter(m.headers[KEY] for m in living if KEY in m.headers)
    for key, count in keys.items():
        if count > 1:
            yield f"{count} living messages have the key {key!r}"
    occurrences = sum(SCHEDULE in m.headers for m in living)
    has_begun = any(mark[0] == "call" for mark in told)
    if occurrences > 1 or (has_begun and not occurrences):
        yield f"{occurrences} living occurrences"
    links: Counter[int] = Counter(_args(m)[0] for m in living if m.topic == "link")
    for chain, count in links.items():
        if count > 1:
            yield f"{count} living links of chain {chain}"
    may_be_done = {mark[4] for mark in told if mark[0] == "call" and mark[3] == "link" and mark[5] == LINKS - 1}
    for mark in told:
        if mark[0] == "chain" and mark[3] not in links and mark[3] not in may_be_done:
            yield f"chain {mark[3]} is lost"
    yield from kept.wrong_places(living, dead, told, time.monotonic_ns())


def _args(message: Message) -> list[Any]:
    return unpack_call(message.payload, message.headers[ARGS])[0]


def judge(told: list[Mark], tally: Tally) -> None:
    """Compare what was promised with what was called."""
    calls = [mark[3:] for mark in told if mark[0] == "call"]
    fire_ids: defaultdict[tuple[object, ...], set[str]] = defaultdict(set)
    for kind, what, number, fire_id, _ in calls:
        if kind in ("link", "tick"):
            fire_ids[kind, what, number].add(fire_id)
    for what, ids in fire_ids.items():
        tally.check(len(ids) == 1, f"{what} has {len(ids)} fire ids")
    begun = {mark[3] for mark in told if mark[0] == "chain"}
    for chain in begun:
        missing = [n for n in range(LINKS) if ("link", chain, n) not in fire_ids]
        tally.check(not missing, f"chain {chain} lacks the links {missing}")
    called = {id_ for _, _, _, *ids in calls for id_ in ids}
    in_order = sorted(told, key=lambda mark: mark[2])
    key_called_ns = {mark[4]: mark[2] for mark in in_order if mark[0] == "call" and mark[3] == "keyed"}
    for kind, since_ns, _, *what in told:
        if kind == "keyed reject":
            tally.check(what[1] in called, f"the job {what[1]} with the key {what[0]} was never called")
        elif kind == "keyed keep" and what[1] not in called:
            # The id may be one that it had between two attempts; then it was called later under another.
            tally.check(key_called_ns.get(what[0], 0) > since_ns, f"the job {what[1]} with the key {what[0]} is lost")
    for mark in told:
        tally.check(mark[0] != "error", f"a process ended with an error: {mark[3:]}")
    tally.count("chains", len(begun))
    tally.count("links", sum(kind == "link" for kind, _, _ in fire_ids))
    tally.count("occurrences", sum(kind == "tick" for kind, _, _ in fire_ids))
    tally.count("calls", len(calls))
    # A retry has an id of its own, so a call that repeats one was begun again after a kill.
    tally.count("called again", len(calls) - len({id_ for *_, id_ in calls}))


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
    name="scheduler",
    title="SIGKILL of schedulers: chains, keys, recurring work, results",
    play=play,
    share=0.03,
    targets={"kills": 3_000},
    rig=rig,
    short=1,
)
