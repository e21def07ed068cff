"""Campaign: every flipped bit, every truncation, and blocks and files that are zeroed, moved and exchanged.

A population (population.py) has some 70,000 bits. All that can be done to it is one list; a round plays every
127th of that list, so 127 rounds with consecutive numbers leave nothing out, and any of them meets all kinds of files.
The numbers after that do the same to the next population. Each case goes through the whole product (judge.py).
Invariant: what a round does is given by its number alone, and is a single fault.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from unittest import mock

from tests.crash.campaign import Campaign, Tally
from tests.crash.judge import Judge, Said
from tests.crash.population import Population, populate
from tests.crash.rot import play_commands
from tests.crash.truth import Truth

CHUNKS = 127
DEEP_EVERY = 61
COMMANDS_EVERY = 16

Case = tuple[str, str, Callable[[], dict[str, bytes]]]
"""What is counted, how it is called, and the files that it changes."""


class Cases:
    """Everything that can be done to one population: flips first, by number, then the others."""

    def __init__(self, population: Population) -> None:
        self.files = {n: d for n, d in population.image.files.items() if d}
        self._other = populate(population.number + 1_000_003).image.files
        self._names = list(self.files)
        self._ends = list(itertools.accumulate(8 * len(d) for d in self.files.values()))
        self._rest = list(self._others())

    def __len__(self) -> int:
        return self._ends[-1] + len(self._rest)

    def chunk(self, lane: int) -> Iterator[Case]:
        """Yield every CHUNKS-th case from `lane` on."""
        at = 0
        for number in range(lane, self._ends[-1], CHUNKS):
            while number >= self._ends[at]:
                at += 1
            name = self._names[at]
            yield self._flip(name, number - self._ends[at] + 8 * len(self.files[name]))
        first = -(self._ends[-1] - lane) % CHUNKS
        yield from self._rest[first::CHUNKS]

    def _flip(self, name: str, bit: int) -> Case:
        def change() -> dict[str, bytes]:
            data = bytearray(self.files[name])
            data[bit >> 3] ^= 1 << (bit & 7)
            return {name: bytes(data)}

        return "flips", f"{name} bit {bit}", change

    def _others(self) -> Iterator[Case]:
        for name, data in self.files.items():
            for size in range(len(data)):
                yield (
                    "truncations",
                    f"{name} cut to {size}",
                    lambda name=name, size=size: {name: self.files[name][:size]},
                )
            yield from self._blocks(name, data)
        yield from self._exchanges()

    def _blocks(self, name: str, data: bytes) -> Iterator[Case]:
        for block in (512, 4096):
            for at in range(0, len(data), block):
                zeroed = data[:at] + bytes(len(data[at : at + block])) + data[at + block :]
                yield "blocks", f"{name} zeroed at {at} for {block}", lambda name=name, new=zeroed: {name: new}
        # Blocks of 512 bytes, and of the places where frames may start: eight of them make most frames.
        for size, step in ((512, 512), (120, 8)):
            places = range(0, len(data) - size + 1, step)
            for a, b in itertools.permutations(places, 2):
                if step == 512 or (a * 31 + b) % 53 == 0:
                    moved = data[:b] + data[a : a + size] + data[b + size :]
                    yield "blocks", f"{name} {a} copied to {b} for {size}", lambda name=name, new=moved: {name: new}

    def _exchanges(self) -> Iterator[Case]:
        def kind(name: str) -> str:
            return name.split("/")[0] + name[-4:]

        for a, b in itertools.permutations(self.files, 2):
            if kind(a) == kind(b):
                yield "files", f"{a} in the place of {b}", lambda a=a, b=b: {b: self.files[a]}
                if a < b:
                    yield (
                        "files",
                        f"{a} and {b} exchanged",
                        lambda a=a, b=b: {a: self.files[b], b: self.files[a]},
                    )
        for name in self.files:
            if not name.startswith("wheel.json"):  # another wheel's is as good as its own
                for other in self._other:
                    if kind(other) == kind(name):
                        yield (
                            "files",
                            f"{name} of another wheel: {other}",
                            lambda name=name, other=other: {name: self._other[other]},
                        )


@lru_cache(maxsize=1)
def _ready(number: int, said: Said) -> tuple[Population, Truth, Cases]:
    population = populate(number)
    truth = Truth(population.image)
    told = {m.id: m.payload for m in truth.view.pending(frozenset())}
    assert told == population.told, "the second reader does not see what callers were told"
    return population, truth, Cases(population)


def play(number: int, tally: Tally, said: Said) -> None:
    """Play one chunk of one population."""
    population, truth, cases = _ready(number // CHUNKS, said)
    judge = Judge(population, truth, said, random.Random(number))
    for i, (what, how, change) in enumerate(cases.chunk(number % CHUNKS)):
        changes = change()
        if all(truth.image.files[n] == d for n, d in changes.items()):
            continue
        tally.count(what)
        deep = i % DEEP_EVERY == 0
        tally.count("of them repaired and gone on with", deep)
        try:
            wrong = judge.judge(changes, how, deep=deep)
        except Exception as exc:
            raise AssertionError(f"population {population.number}, {how}") from exc
        for text in wrong:
            tally.violation(text)
    if number % COMMANDS_EVERY == 0:
        play_commands(number, tally, population, cases.chunk(number % CHUNKS))


@contextlib.contextmanager
def listening() -> Iterator[Said]:
    """Hear what the library logs, and keep it off stderr."""
    log, said = logging.getLogger("filewheel"), Said()
    log.addHandler(said)
    log.propagate = False
    try:
        # The note in keeper.lock costs reading /proc, as much as the rest of opening a keeper.
        with mock.patch("filewheel.disk.keeper_lock._started", return_value=""):
            yield said
    finally:
        log.propagate = True
        log.removeHandler(said)


CAMPAIGN = Campaign(
    name="flip",
    title="flipped bits, truncations, blocks and files moved about",
    play=play,
    share=0.22,
    targets={"flips": 1_000_000},
    rig=listening,
    short=1,
)
