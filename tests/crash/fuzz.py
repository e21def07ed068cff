"""Campaign: a fuzzer of everything that is read: files, records, JSON lines, ids, times.

Two thirds of the cases open a whole wheel of which one file is havoc or forged (hostile.py), and do everything that
can be done to it; the others feed one parser. Whatever comes in, what comes out is a result or a member of the
FilewheelError tree, soon, and without taking memory that the input does not explain.
Invariant: an input is under 1 MiB; a case may take a second and 64 MiB more than the process had.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import FilewheelError
from filewheel.format.frame import Frame, Scanner
from filewheel.format.record import records_of, split, unpack_put
from filewheel.format.settings import parse_settings
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.message import DUE_LIMIT_US, ID_MIN, US_PER_S, MessageId, id_floor
from filewheel.timespec import parse_duration, parse_time
from filewheel.tools.dissect import Dissector
from filewheel.tools.dump import last_line, load
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.crash.campaign import Campaign, Tally
from tests.crash.flip import listening
from tests.crash.hostile import Forger, pack
from tests.crash.judge import Said
from tests.crash.memory import Image, MemoryDisk
from tests.crash.population import Population, populate
from tests.model.world import ModelClock

CASES = 100
SECONDS_MAX = 1.0
KIB_MAX = 64 << 10
POPULATIONS = 4
WORDS = [
    *"1.hmsw-:T@+Z ",
    "ms",
    "0",
    "00",
    "2027-01-01",
    "W",
    "²",
    "\u0661",
    "\x00",
    "09:00",
    "now",
    "e9",
    "inf",
    "nan",
]
WORDS += ["24:00", ",5"]
NOW = datetime(2027, 3, 28, 1, 30, tzinfo=UTC)


@lru_cache(maxsize=POPULATIONS)
def _population(number: int) -> Population:
    return populate(number)


class TooSlow(BaseException):
    """A case took too long. Not an Exception: nobody on the way may take it for one of theirs."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what takes too long: by the processor's time, which others do not lengthen, and by the wall's."""

    def give_up(number: int, frame: object) -> None:
        raise TooSlow

    timers = [(signal.SIGPROF, signal.ITIMER_PROF, SECONDS_MAX), (signal.SIGALRM, signal.ITIMER_REAL, 20 * SECONDS_MAX)]
    before = [signal.signal(number, give_up) for number, _, _ in timers]
    for _, timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def peak_kib() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Fuzzer:
    """Plays the cases of one round."""

    def __init__(self, number: int, tally: Tally, base_kib: int) -> None:
        self.base_kib = base_kib
        self.rng = random.Random(f"fuzz {number}")
        self.forger = Forger(self.rng)
        self.tally = tally
        self.population = _population(self.rng.randrange(POPULATIONS))
        self.files = {n: d for n, d in self.population.image.files.items() if d and n != "keeper.lock"}
        self.frames_in = [n for n in self.files if n.startswith(("journal/", "laps/"))]

    def play(self) -> None:
        kinds: list[tuple[Callable[[], Callable[[], object]], int]] = [
            (self.havoc, 6), (self.forged_frames, 6), (self.resealed, 6), (self.forged_checkpoint, 5),
            (self.forged_settings, 2), (self.names, 4),
            (self.frames, 3), (self.records, 3), (self.lines, 4), (self.words, 4),
        ]  # fmt: skip
        makers = self.rng.choices([k for k, _ in kinds], [w for _, w in kinds], k=CASES)
        for i, make in enumerate(makers):
            case = make()
            self.tally.count("fuzzed inputs")
            begun = time.process_time()
            try:
                with limited():
                    case()
            except FilewheelError:
                self.tally.count("of them refused")
            except (Exception, TooSlow):
                self.tally.violation(f"case {i}, {make.__name__}: {traceback.format_exc()[-1500:]}")
            took = time.process_time() - begun
            grown = peak_kib() - self.base_kib
            self.tally.check(took < SECONDS_MAX, f"case {i}, {make.__name__}: took {took:.1f} s")
            if grown > KIB_MAX:
                self.tally.violation(f"case {i}, {make.__name__}: took {grown} KiB")
                self.base_kib = peak_kib()

    # -- whole wheels ----------------------------------------------------------------------------------------

    def havoc(self) -> Callable[[], object]:
        changes = {}
        for name in self.rng.sample(sorted(self.files), self.rng.choice([1, 1, 3])):
            changes[name] = self.forger.havoc(self.files[name], list(self.files.values()))
        return lambda: self.use(changes)

    def forged_frames(self) -> Callable[[], object]:
        name = self.rng.choice(self.frames_in)
        data = self.forger.frames(self.population, name, self.rng.randrange(1, 6))
        return lambda: self.use({name: data})

    def resealed(self) -> Callable[[], object]:
        name = self.rng.choice(self.frames_in)
        data = self.forger.resealed(self.population, name)
        return lambda: self.use({name: data})

    def names(self) -> Callable[[], object]:
        """Return a case of foreign files, half of them with no checkpoint that says what is ours."""
        found = self.forger.names(self.population)
        if self.rng.random() < 0.5:
            found |= {n: self.rng.randbytes(90) for n in self.files if n.startswith("checkpoint")}
        return lambda: self.use(found)

    def forged_checkpoint(self) -> Callable[[], object]:
        changes = {"checkpoint": self.forger.checkpoint(self.population)}
        if self.rng.random() < 0.2:
            changes = {"checkpoint": b"", "checkpoint.old": changes["checkpoint"]}
        return lambda: self.use(changes)

    def forged_settings(self) -> Callable[[], object]:
        data = self.forger.settings(self.population)
        return lambda: (parse_settings(data, "wheel.json"), self.use({"wheel.json": data, "wheel.json.copy": data}))

    def use(self, changes: dict[str, bytes]) -> None:
        """Do everything that can be done to a wheel, each on what there was in the beginning."""
        image = self.population.image
        if changes.keys() - image.files.keys():
            image = Image(image.files | changes, filter(None, image.entries), image.locked)
        uses: list[Callable[[MemoryDisk], None]] = [self._keep, self._look, self._inspect, self._verify, self._repair]
        refused: FilewheelError | None = None
        for use in uses:
            try:
                use(MemoryDisk(image, changes))
            except FilewheelError as exc:
                refused = exc
        if refused is not None:
            raise refused

    def _clock(self) -> ModelClock:
        return ModelClock(self.population.now_us + 3 * US_PER_S)

    def _keep(self, disk: MemoryDisk) -> None:
        disk.let_go()
        clock = self._clock()
        keeper = Keeper(
            "memory.wheel",
            clock=clock,
            env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
            background=False,
        )
        for i, message in enumerate(keeper.claim(50)):
            with contextlib.suppress(FilewheelError):
                (keeper.ack, keeper.nack, keeper.bury)[i % 3](message)
        with contextlib.suppress(OSError):  # which the housekeeper turns into a DiskError
            Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        clock.advance(100 * US_PER_S)
        list(keeper.claim(50))
        keeper.close()

    def _look(self, disk: MemoryDisk) -> None:
        with Wheel(
            "memory.wheel", env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes), clock=self._clock()
        ) as wheel:
            ids = [m.id for m in wheel.list(limit=100)]
            list(wheel.list(dead=True, limit=100))
            wheel.stats()
            wheel.histogram([0.0, 1.8e9, 1.9e9])
            wheel.topics()
            for id_ in ids[:2]:
                wheel.get(id_)
                wheel.cancel(id_)

    def _inspect(self, disk: MemoryDisk) -> None:
        dissector = Dissector(open_directory("memory.wheel", write=False, env=SYSTEM.using(disk=lambda path: disk)))
        for name in dissector.segments():
            dissector.segment(name)
        for entry in dissector.entries(self.frames_in):
            json.dumps(entry.to_json())

    def _verify(self, disk: MemoryDisk) -> None:
        verify(
            open_directory("memory.wheel", write=False, env=SYSTEM.using(disk=lambda path: disk, clock=self._clock()))
        )

    def _repair(self, disk: MemoryDisk) -> None:
        disk.let_go()
        repair(
            open_directory("memory.wheel", write=True, env=SYSTEM.using(disk=lambda path: disk, clock=self._clock()))
        )

    # -- single parsers --------------------------------------------------------------------------------------

    def frames(self) -> Callable[[], object]:
        data = self.forger.havoc(self.rng.choice(list(self.files.values())), list(self.files.values()))
        data = self.rng.choice([data, data * 40, b"\xf5FW1" * self.rng.randrange(5000), self.rng.randbytes(9000)])
        return lambda: [
            split(item.body)
            for item in Scanner(
                lambda size, offset: data[offset : offset + size], 0, len(data), self.rng.getrandbits(32)
            )
            if isinstance(item, Frame)
        ]

    def records(self) -> Callable[[], object]:
        body = b"".join(self.forger.record() for _ in range(self.rng.randrange(5))) + self.rng.choice(
            [b"", self.forger.packed(), pack(self.forger.value())]
        )
        if self.rng.random() < 0.3:
            body = self.forger.havoc(body, [body])
        frame = Frame(0, 0, 1, 0, 1, 0, ID_MIN, id_floor(DUE_LIMIT_US - 1), body)
        return lambda: [unpack_put(put) for put in records_of(frame)[0]]

    def lines(self) -> Callable[[], object]:
        fields: dict[str, Any] = {
            "id": "01K52WPZBJM0PRDCR001000002", "topic": "mail", "payload": "hello", "headers": {"to": "ann"},
            "attempt": 0, "enqueued_us": 5, "root": "01K52WPZBJM0PRDCR001000001",
        }  # fmt: skip
        rng = self.rng
        for _ in range(rng.randrange(4)):
            key = rng.choice([*fields, "payload_b64", "due"])
            fields[key] = rng.choice(
                [
                    None,
                    True,
                    -1,
                    1.5,
                    10**400,
                    "",
                    "\ud800",
                    "é" * 300,
                    "====",
                    "Z" * 26,
                    "7" * 26,
                    [],
                    {},
                    {"a": 1},
                    {"\ud800": ""},
                ]
            )
        line = json.dumps(fields).encode()
        if rng.random() < 0.4:
            line = self.forger.havoc(line, [line])
        if rng.random() < 0.1:
            line = rng.choice(
                [b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b'"\\ud800"', b"\xff\xfe{", b"NaN", b"{}"]
            )
        if rng.random() < 0.3:
            return lambda: list(load([line.decode("utf-8", "replace"), last_line(1)]))
        return lambda: list(load([line, last_line(1)]))

    def words(self) -> Callable[[], object]:
        rng = self.rng
        text = "".join(rng.choices([*WORDS, "9" * rng.randrange(1, 300)], k=rng.randrange(8)))
        now = NOW + rng.choice([timedelta(0), timedelta(days=2_900_000)])
        return rng.choice([lambda: parse_duration(text), lambda: parse_time(text, now), lambda: MessageId.parse(text)])


@dataclass
class Rig:
    """What the rounds of one process share."""

    said: Said
    base_kib: int


def play(number: int, tally: Tally, rig: Rig) -> None:
    """Play one round of cases."""
    rig.said.records.clear()
    fuzzer = Fuzzer(number, tally, rig.base_kib)
    fuzzer.play()
    rig.base_kib = fuzzer.base_kib


@contextlib.contextmanager
def warmed_up() -> Iterator[Rig]:
    """Let everything that is made once be made, so that what a case takes is its own."""
    for number in range(POPULATIONS):
        _population(number)
    with listening() as said:
        Fuzzer(0, Tally("fuzz"), peak_kib()).play()
        yield Rig(said, peak_kib())


CAMPAIGN = Campaign(
    name="fuzz",
    title="havoc, forged frames and hostile values into every reader",
    play=play,
    share=0.02,
    targets={"fuzzed inputs": 10_000},
    rig=warmed_up,
    short=1,
)
