"""Every workload of up to three operations, from an empty wheel and from one that has lived.

Most crash bugs of file systems need no more than three operations after a flush (CrashMonkey, OSDI'18): what is small
enough to be tried whole should be. Workload `n` is a word over OPERATIONS; those of which an operation has nothing to
work on (acknowledge with nothing claimed) are no workloads and are passed over. The power is cut after every disk
operation of the last operation only: the others are the last of a shorter word.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from filewheel.message import MessageId
from tests.model.history import Result
from tests.model.stage import Stage
from tests.model.sweep import Sweep


class NothingToDo(Exception):
    """The operation has nothing to work on."""


@dataclass
class Scene:
    """A stage, and the ids that operations speak of."""

    stage: Stage
    new: list[MessageId] = field(default_factory=list)
    old: list[MessageId] = field(default_factory=list)


def last(ids: list[MessageId]) -> MessageId:
    if not ids:
        raise NothingToDo
    return ids[-1]


def need(found: object) -> None:
    if not found:
        raise NothingToDo


def _put(in_s: float) -> Callable[[Scene], None]:
    return lambda s: s.new.append(s.stage.put("A", in_s))


def _move(ids: Callable[[Scene], list[MessageId]], in_s: float) -> Callable[[Scene], None]:
    def move(s: Scene) -> None:
        new = s.stage.move("B", last(ids(s)), in_s)
        if new is not None:
            s.new.append(new)

    return move


def _claimed(act: Callable[[Stage], object]) -> Callable[[Scene], None]:
    def do(s: Scene) -> None:
        need(s.stage.claimed)
        act(s.stage)

    return do


def _if_kept(act: Callable[[Stage], object]) -> Callable[[Scene], None]:
    def do(s: Scene) -> None:
        need(s.stage.keeper)
        act(s.stage)

    return do


def _if_open(act: Callable[[Stage], object]) -> Callable[[Scene], None]:
    def do(s: Scene) -> None:
        need(s.stage.wheels)
        act(s.stage)

    return do


OPERATIONS: dict[str, Callable[[Scene], None]] = {
    "put past": _put(-5),
    "put now": _put(0),
    "put next lap": _put(70),
    "put far": _put(400),
    "put many": lambda s: s.new.extend(s.stage.put_many("A", -1, 1, 200)),
    "cancel new": lambda s: s.stage.cancel("B", last(s.new)),
    "cancel old": lambda s: s.stage.cancel("B", last(s.old)),
    "move new": _move(lambda s: s.new, 130),
    "move old": _move(lambda s: s.old, 2),
    "close": _if_open(lambda stage: stage.close("A")),
    "kill": _if_open(lambda stage: stage.kill("A")),
    "claim": lambda s: need(s.stage.claim()),
    "ack": _claimed(lambda stage: stage.ack()),
    "ack durably": _claimed(lambda stage: stage.ack(durable=True)),
    "retry at once": _claimed(lambda stage: stage.nack()),
    "retry later": _claimed(lambda stage: stage.nack(delay=70)),
    "bury": _claimed(lambda stage: stage.bury()),
    "deal": lambda s: s.stage.deal(),
    "tidy": lambda s: s.stage.deal(spread=False, finished=False),
    "look": _if_kept(lambda stage: stage.look()),
    "close keeper": _if_kept(lambda stage: stage.close_keeper()),
    "kill keeper": _if_kept(lambda stage: stage.kill_keeper()),
    "a lap later": lambda s: s.stage.wait(60),
}
NAMES = list(OPERATIONS)
LENGTHS = (1, 2, 3)
WORDS: list[tuple[str, ...]] = [w for n in LENGTHS for w in itertools.product(NAMES, repeat=n)]
BEGINNINGS = ("empty", "lived")
COUNT = len(WORDS) * len(BEGINNINGS)


def describe(number: int) -> str:
    """Return workload `number` in words."""
    return f"{BEGINNINGS[number // len(WORDS) % len(BEGINNINGS)]}: {', '.join(WORDS[number % len(WORDS)])}"


def begin(scene: Scene, beginning: str) -> None:
    """Make the wheel that the workload starts from."""
    if beginning == "empty":
        return
    stage = scene.stage
    stage.put("C", 0)
    stage.put("C", 0.5)
    scene.old.append(stage.put("C", 200))
    scene.old.append(stage.put("C", 30))
    stage.deal()
    stage.close("C")
    stage.wait(1)
    stage.claim(1)
    stage.ack(durable=True)
    stage.close_keeper()


def play_longer(number: int, *, limit: int = 40, deep: float = 0.15) -> Result:
    """Play a random workload of four to nine operations, watched from the first; what has no object is left out."""
    rng = random.Random(f"longer {number}")
    beginning = rng.choice(BEGINNINGS)
    word = [rng.choice(NAMES) for _ in range(rng.randrange(4, 10))]

    def script(stage: Stage) -> None:
        scene = Scene(stage)
        begin(scene, beginning)
        for name in word:
            with contextlib.suppress(NothingToDo):
                OPERATIONS[name](scene)

    return Sweep(number, limit=limit, deep=deep).play(script, name=f"{beginning}: {', '.join(word)}")


def play(number: int, *, limit: int = 24, deep: float = 0.15) -> Result | None:
    """Play workload `number`; None when it is none."""
    word = WORDS[number % len(WORDS)]
    beginning = BEGINNINGS[number // len(WORDS) % len(BEGINNINGS)]
    sweep = Sweep(number + 1, limit=limit, deep=deep)
    scene: Scene | None = None

    def before(stage: Stage) -> None:
        nonlocal scene
        scene = Scene(stage)
        begin(scene, beginning)
        for name in word[:-1]:
            OPERATIONS[name](scene)

    def script(stage: Stage) -> None:
        assert scene is not None
        OPERATIONS[word[-1]](scene)

    try:
        return sweep.play(script, before=before, name=f"{beginning}: {', '.join(word)}")
    except NothingToDo:
        return None
