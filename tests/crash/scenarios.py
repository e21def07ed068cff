"""The scenarios of the fault sweep: what a wheel is used for, each once, small enough that every call can be failed.

A scenario has a part that prepares a wheel, which always works, and a part that runs while one system call fails.
Segments, fills and deals are so small (`tiny`) that a dozen calls meet all their edges. Threads run when they are
waited for, so that each run makes the same calls in the same order.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filewheel.disk.ballast
import filewheel.laps.tidy
from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.runs.kills import Asked
from filewheel.tools import dump
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.crash.actor import Actor
from tests.support import timed

LAP_S = 60


@dataclass(frozen=True)
class Scenario:
    """One use of a wheel."""

    name: str
    run: Callable[[Any], None]
    prepare: Callable[[Any], None] | None
    """None: the run makes the wheel."""
    damages: bool = False
    """The wheel is damaged on purpose, so what is in quarantine or unreadable is no violation."""
    is_set: bool = False
    """It has several wheels, and a SetActor to play it."""


class LateThread:
    """A thread that runs when somebody asks whether it is done."""

    def __init__(self, *, target: Callable[..., Any], args: Any = (), kwargs: Any = None, **_: Any) -> None:
        self._work: Callable[[], Any] | None = lambda: target(*args, **(kwargs or {}))

    def start(self) -> None:
        """Be ready to run."""

    def join(self, timeout: float | None = None) -> None:
        """Run now, if it has not. What leaves a thread is a traceback on stderr, so it must not."""
        work, self._work = self._work, None
        if work is not None:
            try:
                work()
            except Exception as exc:
                raise RuntimeError("a thread ended with a traceback") from exc

    def is_alive(self) -> bool:
        """Run; then it is not."""
        self.join()
        return False


@contextlib.contextmanager
def tiny() -> Iterator[None]:
    """Make everything small, for good in a process that does nothing else."""
    journal = {**Journal.__init__.__kwdefaults__, "segment_bytes": 700, "fill_bytes": 300}
    patches: list[tuple[Any, str, Any]] = [
        (Journal.__init__, "__kwdefaults__", journal),
        (Deal.__init__, "__kwdefaults__", {**Deal.__init__.__kwdefaults__, "chunk_records": 6}),
        (filewheel.disk.ballast, "BALLAST_BYTES", 64 << 10),
        (filewheel.laps.tidy, "TIDY_SEGMENTS", 3),
        # A producer tidies in a thread, with the keeper's lock: at a moment of its own it keeps a keeper out.
        (filewheel.laps.tidy, "threading", SimpleNamespace(Lock=threading.Lock, Thread=LateThread)),
    ]  # fmt: skip
    before = [(target, name, getattr(target, name)) for target, name, _ in patches]
    try:
        for target, name, value in patches:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in before:
            setattr(target, name, value)


# -- preparing ------------------------------------------------------------------------------------------------------


def empty(actor: Actor) -> None:
    """An empty wheel."""
    actor.create()


def undealt(actor: Actor) -> None:
    """Messages near and far, in a journal."""
    actor.create()
    actor.enqueue(0, 1, 30, 70, 400)
    actor.enqueue(1)


def dealt(actor: Actor) -> None:
    """Messages in slots and laps, and some in a journal."""
    undealt(actor)
    actor.keep_house(seconds=31)
    actor.close()
    actor.enqueue(-40, 2, 75, 410)


def far(actor: Actor) -> None:
    """Messages in lap files that come near."""
    actor.create()
    actor.enqueue(200, 201, 201, 210, 400)
    actor.keep_house(seconds=31)
    actor.close()


def littered(actor: Actor) -> None:
    """Segments of producers that have gone."""
    actor.create()
    for delay in (1, 70, 400):
        actor.enqueue(delay)
        actor._wheel, wheel = None, actor._wheel  # no `close`, which would tidy up
        if wheel is not None and wheel._journal is not None:
            wheel._journal.close()


def abandoned(actor: Actor) -> None:
    """A producer and a keeper that died in the middle of things."""
    dealt(actor)
    ids = actor.claim()
    actor.ack(*ids[:2])
    if len(ids) > 3:
        actor.nack(ids[2], 5)
    actor.enqueue(3)
    journals = sorted(Path(actor.path, "journal").iterdir(), key=lambda p: p.stat().st_mtime_ns)
    with journals[-1].open("ab") as file:
        file.write(b"\xf5FW1" + bytes(range(60)))  # half a commit
    Path(actor.path, "checkpoint.tmp").write_bytes(b"half")
    Path(actor.path, "laps", "99.lap").write_bytes(b"a deal that never completed")


def hurt(actor: Actor) -> None:
    """Damaged settings, and a lap file with a byte that is wrong."""
    far(actor)
    actor.enqueue(5)
    actor.close()
    settings = Path(actor.path, "wheel.json")
    settings.write_bytes(settings.read_bytes().replace(b"slots", b"slotz"))
    laps = sorted(Path(actor.path, "laps").glob("*.lap"))
    data = bytearray(laps[-1].read_bytes())
    data[100] ^= 1
    laps[-1].write_bytes(data)
    actor.say({"op": "hurt", "phase": "end", "payloads": [f"p{n}" for n in range(1, 6)]})


def copied(actor: Actor) -> None:
    """A wheel, and the dump of another."""
    dealt(actor)
    with Wheel(actor.path, clock=actor.clock) as wheel:
        lines = [dump.to_json(m) for m in dump.dump(wheel)]
    Path(actor.path, "..", "dump.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(actor.path)
    actor.say({"op": "removed", "phase": "end"})
    actor.create()


# -- running --------------------------------------------------------------------------------------------------------


def create(actor: Actor) -> None:
    """Make a wheel, and use it once."""
    if actor.create():
        actor.enqueue(5)


def enqueue(actor: Actor) -> None:
    """Enqueue durable messages one by one; the third commit writes zeros ahead."""
    for delay in (0, 1, 5, 70, 400):
        actor.enqueue(delay, size=20)


def enqueue_many(actor: Actor) -> None:
    """Enqueue batches, one of them larger than a segment."""
    actor.enqueue(0, 1, 2)
    actor.enqueue(*range(12), size=60)
    actor.enqueue(3, 70)


def enqueue_loosely(actor: Actor) -> None:
    """Enqueue with the other kinds of `sync`; a thread flushes some of it."""
    actor.enqueue(1, sync="never")
    actor.enqueue(2, 3, sync="never")
    actor.flush()
    actor.enqueue(4, sync=0.002)
    wheel = actor._wheel
    end = time.monotonic() + 5
    while wheel is not None and wheel._journal is not None and time.monotonic() < end:
        appender = wheel._journal.appender
        if appender._durable >= appender.written or appender.broken is not None:
            break
        time.sleep(0.001)
    actor.close()
    actor.enqueue(5, sync="never")


def cancel(actor: Actor) -> None:
    """Cancel messages that lie in a slot, a lap and a journal."""
    actor.cancel(actor.ids[1])
    actor.cancel(actor.ids[4], actor.ids[7], sync="never")
    actor.enqueue(7)
    actor.cancel(actor.ids[-1])


def reschedule(actor: Actor) -> None:
    """Move messages that lie in a slot, a lap and a journal."""
    actor.reschedule(actor.ids[1], 90)
    actor.reschedule(actor.ids[4], 1)
    actor.reschedule(actor.ids[7], 500, sync="never")


def rotate(actor: Actor) -> None:
    """Fill several segments; what they held is dealt by the producer, as no keeper runs."""
    for delay in (1, 70, 400, 2, 71, 401):
        actor.enqueue(delay, size=200)


def fire(actor: Actor) -> None:
    """Claim and acknowledge, with every `sync`."""
    ids = actor.claim()
    actor.ack(*ids[:1], sync="always")
    actor.ack(*ids[1:])
    actor.keep_house()
    actor.clock.advance(40)
    actor.ack(*actor.claim(1))


def retry(actor: Actor) -> None:
    """Put back, bury, and cancel what is claimed."""
    actor.clock.advance(10)
    ids = actor.claim()
    actor.nack(ids[0], 3) if ids else None
    actor.bury(ids[1]) if len(ids) > 1 else None
    if len(ids) > 2:
        actor.cancel(ids[2])
        actor.nack(ids[2], 3, sync="always")
    actor.keep_house(seconds=5)
    actor.claim()


def deal(actor: Actor) -> None:
    """Deal journals into laps and slots twice: new files, and files that are there already."""
    actor.claim(1)
    actor.keep_house(seconds=31)
    actor.enqueue(1, 41, 75, 400)
    actor.keep_house(seconds=31)


def open_lap(actor: Actor) -> None:
    """Deal a lap that has come near into its seconds."""
    actor.clock.advance(120)
    actor.enqueue(15, 300)
    actor.keep_house(seconds=31)


def expire(actor: Actor) -> None:
    """Finish seconds whole, so that their files go."""
    actor.clock.advance(100)
    actor.ack(*actor.claim(), sync="always")
    actor.keep_house(seconds=31)
    actor.clock.advance(400)
    actor.ack(*actor.claim())
    actor.keep_house(seconds=31)


def observed(actor: Actor) -> None:
    """Fire while what runs is published and the history is written, and while somebody asks to end a run."""
    actor.history = 2
    ids = actor.claim()
    actor.look("kill", lambda w: Asked(w._dir, ids[0], "cancel") if ids else None)
    for some in (ids[:1], ids[1:3], ids[3:]):
        actor.do("observe", lambda given: actor.keeper().observer.look())
        actor.ack(*some)
        actor.clock.advance(70)
    actor.look("running", lambda w: w.running())
    actor.look("history", lambda w: w.history())
    actor.keep_house()
    actor.close()


def close_keeper(actor: Actor) -> None:
    """Close a keeper that has something to flush and to deal."""
    actor.ack(*actor.claim()[:2])
    actor.enqueue(2, 100)
    actor.close()


def tidy(actor: Actor) -> None:
    """Close the last of several producers, which deals for all of them."""
    actor.enqueue(2)
    actor.close()
    actor.enqueue(90)
    actor.close()


def take_over(actor: Actor) -> None:
    """Become the keeper after one that died."""
    ids = actor.claim()
    actor.ack(*ids)
    actor.keep_house(seconds=31)


def mend(actor: Actor) -> None:
    """Repair."""

    def call(wheel: Wheel) -> None:
        directory = open_directory(actor.path, write=True)
        try:
            repair(timed(directory, actor.clock))
        finally:
            directory.disk.release()

    actor.look("repair", call)


def load(actor: Actor) -> None:
    """Load a dump."""
    with contextlib.suppress(OSError):  # the dump itself is no file of the wheel
        lines = Path(os.path.dirname(actor.path), "dump.jsonl").read_bytes().splitlines()
        actor.add(list(dump.load([*lines, dump.last_line(len(lines))])))


def read(actor: Actor) -> None:
    """Look in every way; all that is pending must be seen, or an error be raised."""
    seen = actor.look("list", lambda w: [(m.id.hex(), m.payload.decode(), m.due_us) for m in dump.dump(w)])
    if seen is not None:
        actor.say({"op": "seen", "phase": "end", "pending": seen})
    actor.look("get", lambda w: w.get(actor.ids[0]))
    actor.look("stats", lambda w: w.stats())
    actor.look("topics", lambda w: w.topics())
    actor.look("verify", lambda w: verify(open_directory(actor.path, write=False)))


SCENARIOS = {
    s.name: s
    for s in (
        Scenario("create", create, None),
        Scenario("enqueue", enqueue, empty),
        Scenario("enqueue-many", enqueue_many, empty),
        Scenario("enqueue-loosely", enqueue_loosely, empty),
        Scenario("cancel", cancel, dealt),
        Scenario("reschedule", reschedule, dealt),
        Scenario("rotate", rotate, empty),
        Scenario("fire", fire, dealt),
        Scenario("retry", retry, dealt),
        Scenario("deal", deal, undealt),
        Scenario("open-lap", open_lap, far),
        Scenario("expire", expire, dealt),
        Scenario("observed", observed, dealt),
        Scenario("close", close_keeper, undealt),
        Scenario("tidy", tidy, littered),
        Scenario("take-over", take_over, abandoned),
        Scenario("repair", mend, hurt, damages=True),
        Scenario("load", load, copied),
        Scenario("read", read, dealt),
    )
}
