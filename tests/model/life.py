"""What histories of sets and sagas do alike: who lives with a set of wheels, how all of it fires, and the command line.

Invariant: it draws nothing; what happens comes from the seed of whoever calls.
"""

from __future__ import annotations

from collections.abc import Callable

from filewheel.keeper import Keeper
from filewheel.message import US_PER_S
from filewheel.roster.roster import Mode
from tests.model.several import SetWorld
from tests.model.tiny import SLOTS
from tests.model.volumes import Process

Actor = tuple[str, Process, Callable[[], None]]


def actors_of(world: SetWorld) -> list[Actor]:
    """Return those who are in every life: two producers, a keeper, a replicator, each a process of its own."""

    def actor(name: str, body: Callable[[Process], None]) -> Actor:
        process = Process(world.volumes)
        return name, process, lambda: body(process)

    return [
        actor("producer 1", world.produce),
        actor("producer 2", world.produce),
        actor("keeper", world.keep),
        actor("replicator", world.replicate),
    ]


def fire_all(world: SetWorld, keeper: Keeper) -> set[bytes]:
    """Let the time of everything come, fire and acknowledge it; return the payloads."""
    oracle = world.oracle
    world.clock.advance(SLOTS * 12 * US_PER_S)
    fired = set()
    while batch := keeper.claim(7):
        for message in batch:
            oracle.fired(message, world.clock.wall_us, oracle.cancelled)
            fired.add(message.payload)
        keeper.ack(batch)
    return fired


def mode_of(word: str | None) -> Mode:
    """Return what a command line names: mirrors, unless it says "ship"."""
    return "ship" if word == "ship" else "mirror"
