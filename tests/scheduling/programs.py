"""Several programs that share their recurring work, moved by hand: the property of each scheduler, and its histories.

A world is a wheel, or a cluster, with programs that declare different schedules. A history starts, stops and kills
them, changes what they declare, lets time pass and sets the clock. `play` holds it to one property: an occurrence that
became due is handed out, or reported as missed, and none vanishes. `test_scheduler_several_programs.py` here and
`tests/kafka/test_schedules_several_programs.py` play the same histories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from hypothesis import strategies as st

from filewheel import Job, Message, current_job
from filewheel.message import DUE
from tests.support import FakeClock

NAMES = ("a", "b", "c")
PROGRAMS = 3
AHEAD_MAX_S = 3600
"""How far a clock is ahead at most: what a program defers by it waits for so much longer."""
PLAIN = "p"
"""The schedule of an administrator, and its topic: each program has a handler of that."""
MISSED: tuple[Literal["once", "all", "skip"], ...] = ("once", "all", "skip")

Op = tuple[str, int, int]
"""What happens, to which program, and a number more."""


class Declared(NamedTuple):
    """What a program declares for a name."""

    every_s: int
    missed: Literal["once", "all", "skip"]


@dataclass
class Program:
    """What one program declares, and which handlers it has; it changes with the next deploy."""

    number: int
    schedules: dict[str, Declared]
    handlers: set[str] = field(default_factory=set)


@dataclass
class Ledger:
    """What became due, and what became of it."""

    owed: set[tuple[str, int]] = field(default_factory=set)
    """Occurrences that were due while they lived: the schedule's name, and the time."""
    called: list[tuple[str, int]] = field(default_factory=list)
    missed: set[tuple[str, int]] = field(default_factory=set)
    started: set[str] = field(default_factory=set)
    """Schedules that were seen, and that nobody ended."""

    @property
    def open(self) -> set[tuple[str, int]]:
        """What is still owed."""
        return self.owed - set(self.called) - self.missed


class World(Protocol):
    """A place where programs run."""

    clock: FakeClock
    ledger: Ledger
    is_exact: bool
    """Whether `living` has everything that lives."""

    def start(self, program: Program) -> None:
        """Start a program, which may have to stand by."""

    def stop(self, number: int) -> None:
        """Let it end in order."""

    def kill(self, number: int) -> None:
        """Kill it: what it was calling has not ended."""

    def turn(self) -> None:
        """Let each do what it can do, but end no call."""

    def end_calls(self) -> None:
        """End the calls that run."""

    def living(self) -> Iterable[tuple[str, int]]:
        """Return the occurrences that live: name and time."""

    def disturb(self, number: int) -> None:
        """Make a trouble of this world's own; below 0 end it."""


def instant_of(message: Message) -> int:
    """Return the time that an occurrence stands for."""
    if DUE in message.headers:
        return int(message.headers[DUE])
    return (message.root or message.id).due_us


def declare(scheduler: Any, program: Program, called: Callable[[Job], None]) -> None:
    """Give a scheduler the handlers and schedules of a program."""

    def handle(*_: object) -> None:
        called(current_job())

    for name in [*program.handlers, PLAIN]:
        handler = scheduler.on(name)(lambda *_: handle())
        if name in program.schedules:
            every_s, missed = program.schedules[name]
            scheduler.every(every_s, name=name, missed=missed, grace_s=30)(handler)


def programs() -> list[Program]:
    """Return three programs: of two that declare a name each calls it otherwise, and one declares nothing."""
    first = Program(0, {"a": Declared(100, "once"), "b": Declared(60, "all")}, {"a", "b"})
    second = Program(1, {"b": Declared(60, "all"), "c": Declared(90, "skip")}, {"b", "c", "a"})
    return [first, second, Program(2, {}, {"a"})]


def change(program: Program, name: str, number: int) -> None:
    """Deploy another version: it declares the name with other times, or not at all."""
    if number % 4 == 0:
        program.schedules.pop(name, None)
        if number % 8 == 0:
            program.handlers.discard(name)
    else:
        program.schedules[name] = Declared(40 + number * 7 % 150, MISSED[number % 3])
        program.handlers.add(name)


OPS = ("start", "stop", "kill", "turn", "end", "pass", "pass", "step", "change", "disturb")
histories = st.lists(
    st.tuples(st.sampled_from(OPS), st.integers(0, PROGRAMS - 1), st.integers(0, 400)), min_size=4, max_size=40
)


def play(world: World, history: Sequence[Op]) -> None:
    """Play a history, let each program fire at the end, and assert that nothing that was due is missing."""
    known = programs()
    for op, number, amount in history:
        program = known[number]
        if op == "start":
            world.start(program)
        elif op == "stop":
            world.stop(number)
        elif op == "kill":
            world.kill(number)
        elif op == "turn":
            world.turn()
        elif op == "end":
            world.end_calls()
        elif op == "pass":
            world.clock.advance(amount)
        elif op == "step":
            world.clock.step((amount - 200) * 60)
            now_us = world.clock.now_us()
            world.ledger.owed -= {one for one in world.ledger.owed if one[1] > now_us}
        elif op == "change":
            change(program, NAMES[amount % len(NAMES)], amount)
        else:
            world.disturb(amount)
        look(world)
    finish(world, known)


def look(world: World) -> None:
    """Note what is due now; nothing that is owed, and no schedule, may have vanished."""
    living, ledger = list(world.living()), world.ledger
    now_us = world.clock.now_us()
    ledger.owed.update((name, us) for name, us in living if us <= now_us)
    if world.is_exact:
        names = [name for name, _ in living]
        assert sorted(names) == sorted(set(names)), f"two occurrences live: {living}"
        assert ledger.started <= set(names), f"a schedule has vanished: {ledger.started - set(names)}"
        assert ledger.open <= set(living), f"an occurrence has vanished: {ledger.open - set(living)}"
        ledger.started.update(names)


def finish(world: World, known: Sequence[Program]) -> None:
    """Let each program fire alone, with every schedule that lives declared by one of them."""
    world.disturb(-1)
    for number in range(PROGRAMS):
        world.stop(number)
    for program in known:
        for name in NAMES:  # a schedule that was dropped has a program again
            program.schedules.setdefault(name, Declared(100, "once"))
            program.handlers.add(name)
        world.start(program)
        for seconds in (0, 301, AHEAD_MAX_S + 301):
            world.clock.advance(seconds)
            fire(world)
        world.stop(program.number)
    assert not world.ledger.open, f"it was due, and nobody called it: {world.ledger.open}"


def fire(world: World) -> None:
    """Let everything happen that can happen without time."""
    ledger, before = world.ledger, -1
    while before != len(ledger.called) + len(ledger.missed):
        before = len(ledger.called) + len(ledger.missed)
        for _ in range(2):
            world.turn()
            world.end_calls()
        look(world)
