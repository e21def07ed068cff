"""Campaign: every pair of public methods of one Keeper or Wheel, called by threads at the same time.

A round is one pair, with or without unique keys: two threads call one method each, again and again, while others
enqueue and claim what they need, and at the end one of them closes the handle under the others. A call may raise what
its docstring names, and nothing else. At the end the wheel is whole, the lock is free, and each message that was
enqueued lives, or was acknowledged or cancelled.
Invariant: what a round counts as gone is what a call said that it did.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.errors import Closed, FilewheelError, KeyHeld, NotClaimed, NotFound
from filewheel.journal.settlement import Settlement
from filewheel.keeper import Keeper
from filewheel.message import Message, MessageId
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally

LASTS_S = 0.25
KEYS = 24
SWITCH_S = 20e-6
EXPECTED = (Closed, NotClaimed, NotFound, KeyHeld)

Act = Callable[[], object]


class Stage:
    """One wheel, one handle of each kind that all threads share, and what became of its messages."""

    def __init__(self, path: Path, rng: random.Random, *, keyed: bool) -> None:
        Wheel.create(path, slots=60, sync="never").close()
        self.path = path
        self.rng = rng
        self.keyed = keyed
        self.keeper = Keeper(path, wait=False, flush_interval_s=0.001)
        self.wheel = Wheel(path)
        self.other = Wheel(path)
        """Enqueues for the round, and is closed by none of its threads."""
        self.known: list[MessageId] = []
        self.claimed: list[Message] = []
        self.enqueued: set[bytes] = set()
        self.gone: set[bytes] = set()
        """The payloads of what was acknowledged or cancelled, or may have been: its call was cut short by a close."""
        self.payload_of: dict[bytes, bytes] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    # -- what threads do ---------------------------------------------------------------------------------------

    def enqueue(self, wheel: Wheel) -> None:
        number = next(self._numbers)
        key = f"k{self.rng.randrange(KEYS)}" if self.keyed and self.rng.random() < 0.8 else None
        payload = b"%d" % number
        id_ = wheel.enqueue(payload, delay=self.rng.choice([0, 0, 0.01, 60]), key=key)
        self._came(id_, payload)

    def enqueue_many(self) -> None:
        payloads = [b"%d" % next(self._numbers) for _ in range(3)]
        for id_, payload in zip(self.wheel.enqueue_many(payloads), payloads, strict=True):
            self._came(id_, payload)

    def _came(self, id_: MessageId, payload: bytes) -> None:
        with self._lock:
            self.enqueued.add(payload)
            self.payload_of[id_] = payload
            self.known = [*self.known[-50:], id_]

    def moved(self, old: bytes, new: bytes | None) -> None:
        """Note under which id a message goes on; None when it is done with."""
        payload = self.payload_of.get(old)
        if payload is None:
            return
        if new is None:
            self.gone.add(payload)
        else:
            self.payload_of[new] = payload

    def an_id(self) -> MessageId:
        known = self.known
        return self.rng.choice(known) if known else MessageId.make(1, 2, 3)

    def in_hand(self) -> Message:
        """Return a message that is claimed, or was; claim some when there is none."""
        if not self.claimed:
            self.claim()
        try:
            return self.claimed.pop(self.rng.randrange(len(self.claimed)))
        except (IndexError, ValueError):
            time.sleep(0.0005)
            id_ = self.an_id()
            return Message(id_, self.payload_of.get(id_, b""))

    def claim(self) -> None:
        for message in self.keeper.claim(5):
            self.payload_of[message.id] = message.payload
            self.claimed.append(message)
            if self.rng.random() < 0.2:
                self.claimed.append(message)  # two threads will settle it

    def _settled(self, message: Message, act: Act) -> None:
        """Settle a message. One whose call does not return may be gone."""
        try:
            act()
        except (NotClaimed, Closed):
            raise
        except BaseException:
            self.gone.add(message.payload)
            raise

    def ack(self) -> None:
        message = self.in_hand()
        self._settled(message, lambda: self.keeper.ack(message))
        self.gone.add(message.payload)

    def nack(self) -> None:
        message = self.in_hand()
        self._settled(message, lambda: self.moved(message.id, self.keeper.nack(message, delay=0.001)))

    def bury(self) -> None:
        message = self.in_hand()
        self._settled(message, lambda: self.moved(message.id, self.keeper.bury(message)))

    def settle(self) -> None:
        some = list({m.id: m for m in (self.in_hand() for _ in range(3))}.values())
        due_us = self.keeper.now_us()
        moved_to = self.keeper.settle([Settlement(m.id, "deferred", due_us) for m in some])
        for message, new in zip(some, moved_to, strict=True):
            self.moved(message.id, new)

    def cancel(self) -> None:
        id_ = self.an_id()
        self.gone.add(self.payload_of.get(id_, b""))  # a cancel that says no may yet have met what moves
        self.wheel.cancel(id_)

    def cancel_key(self) -> None:
        key = f"k{self.rng.randrange(KEYS)}"
        held = self.wheel.get(key=key)
        if held is not None:
            self.gone.add(held.payload)
            self.wheel.cancel(held.id)

    def reschedule(self) -> None:
        id_ = self.an_id()
        self.moved(id_, self.wheel.reschedule(id_, delay=self.rng.choice([0, 60])))

    # -- the list ----------------------------------------------------------------------------------------------

    def methods(self) -> dict[str, Act]:
        """Return what is called, by name: all that a Keeper and a Wheel offer."""
        keeper, wheel = self.keeper, self.wheel

        def batches() -> None:
            for batch in keeper.batches(limit=3, wait=False):
                for message in batch:
                    self.payload_of[message.id] = message.payload
                    self.claimed.append(message)

        return {
            "claim": self.claim, "batches": batches, "ack": self.ack, "nack": self.nack, "bury": self.bury,
            "settle": self.settle, "wait": lambda: keeper.wait(0.002), "wake": keeper.wake,
            "next_due": keeper.next_due, "now_us": keeper.now_us, "check_may_fire": keeper.check_may_fire,
            "holds": lambda: keeper.holds(self.an_id()), "enqueue": lambda: self.enqueue(wheel),
            "enqueue_many": self.enqueue_many, "cancel": self.cancel, "cancel-key": self.cancel_key,
            "reschedule": self.reschedule, "get": lambda: wheel.get(self.an_id()),
            "get-key": lambda: wheel.get(key=f"k{self.rng.randrange(KEYS)}"), "peek": lambda: wheel.peek(3),
            "list": lambda: list(wheel.list(limit=20)), "stats": wheel.stats, "flush": wheel.flush,
            "topics": wheel.topics, "close-keeper": lambda: None, "close-wheel": lambda: None,
        }  # fmt: skip


class Calls:
    """Threads that call until the end, and what they raised that they must not."""

    def __init__(self) -> None:
        self.wrong: list[str] = []
        self.calls = 0
        self._end = time.monotonic() + LASTS_S
        self._threads: list[threading.Thread] = []

    def go(
        self, name: str, act: Act, *, pause_s: float = 0, may_raise: tuple[type[FilewheelError], ...] = EXPECTED
    ) -> None:
        """Have a thread call until the end, or until what it calls is closed."""

        def run() -> None:
            while time.monotonic() < self._end:
                try:
                    act()
                    self.calls += 1
                except may_raise as exc:
                    if isinstance(exc, Closed):
                        return
                except FilewheelError as exc:
                    self.wrong.append(f"{name}: {type(exc).__name__}: {exc} at {_places(exc.__cause__ or exc)}")
                    return
                except BaseException as exc:
                    self.wrong.append(f"{name}: {exc!r} at {_places(exc)}")
                    return
                if pause_s:
                    time.sleep(pause_s)

        thread = threading.Thread(target=run, name=f"calls {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def half(self) -> None:
        """Sleep until half of the time has passed."""
        time.sleep(max(0, self._end - LASTS_S / 2 - time.monotonic()))

    def end(self) -> None:
        """Wait for the threads."""
        for thread in self._threads:
            thread.join(30)
            if thread.is_alive():
                self.wrong.append(f"{thread.name} does not end")


def _places(exc: BaseException) -> str:
    trace, places = exc.__traceback__, []
    while trace is not None:
        places.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " ".join(places[-6:])


NAMES = [
    "claim", "batches", "ack", "nack", "bury", "settle", "wait", "wake", "next_due", "now_us", "check_may_fire",
    "holds", "enqueue", "enqueue_many", "cancel", "cancel-key", "reschedule", "get", "get-key", "peek", "list", "stats",
    "flush", "topics", "close-keeper", "close-wheel",
]  # fmt: skip
PAIRS = [(a, b, keyed) for a, b in itertools.combinations_with_replacement(NAMES, 2) for keyed in (False, True)]


def play(number: int, tally: Tally, places: list[Path]) -> None:
    """Call one pair of methods from threads, close under them, and look at what is left."""
    one, two, keyed = PAIRS[number * 101 % len(PAIRS)]  # neighbours are of different kinds
    folder = Path(tempfile.mkdtemp(prefix="filewheel-pairs-", dir=places[number % len(places)]))
    try:
        stage = Stage(folder / "jobs.wheel", random.Random(number), keyed=keyed)
        calls = Calls()
        methods = stage.methods()
        calls.go("enqueue beside", lambda: stage.enqueue(stage.other), pause_s=0.0003)
        for name in (one, two, two):
            if not name.startswith("close"):
                calls.go(name, methods[name])
        calls.go("nack beside", stage.nack, pause_s=0.001)
        calls.half()
        if "close-keeper" in (one, two):
            calls.go("close-keeper", stage.keeper.close, pause_s=0.01)
        if "close-wheel" in (one, two):
            calls.go("close-wheel", stage.wheel.close, pause_s=0.01)
        calls.end()
        for handle in (stage.keeper, stage.wheel, stage.other):
            handle.close()
        for text in calls.wrong:
            tally.violation(f"{one} beside {two}{', with keys' if keyed else ''}: {text}")
        for text in look(stage):
            tally.violation(f"{one} beside {two}{', with keys' if keyed else ''}: {text}")
        tally.count("pairs")
        tally.count("calls", calls.calls)
    finally:
        shutil.rmtree(folder)


def look(stage: Stage) -> Iterator[str]:
    """Say what is wrong with what is left."""
    with Wheel(stage.path) as wheel:
        living = {m.payload for m in wheel.list()} | {m.payload for m in wheel.list(dead=True)}
    lost = stage.enqueued - living - stage.gone
    if lost:
        yield f"{len(lost)} of {len(stage.enqueued)} messages are lost: {sorted(lost)[:3]}"
    with Keeper(stage.path, wait=False, background=False):
        pass  # the lock is free
    report = verify(open_directory(stage.path, write=False))
    if report.damage:
        yield f"damage: {report.damage[:2]}"


@contextlib.contextmanager
def rig() -> Iterator[list[Path]]:
    """Have threads take turns often; return where to put wheels."""
    places = [Path(tempfile.gettempdir())]
    if os.path.isdir("/dev/shm"):
        places.append(Path("/dev/shm"))
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield places
    finally:
        sys.setswitchinterval(before)


CAMPAIGN = Campaign(
    name="pairs",
    title="every pair of methods of one keeper and one wheel, called by threads at once",
    play=play,
    share=0.02,
    targets={"pairs": len(PAIRS)},
    rig=rig,
    short=3,
)
