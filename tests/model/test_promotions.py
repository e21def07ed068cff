"""Promotions that are cut short, or cross each other, modelled: an announcement is not an office.

The words: a promotion *announces* (it raises the epoch), *fences* the primary, *takes over* its messages, and takes the
*office*; it may be *interrupted* before each disk operation, and a *second promoter* may come then, or at any moment.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from filewheel.errors import FilewheelError
from filewheel.roster.roster import Mode
from tests.model.saga import Saga
from tests.model.several import NAMES, SetWorld, tiny_set
from tests.model.volumes import Process

A, B, C = NAMES[:3]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def a_set(seed: int, mode: Mode) -> Saga:
    """A set of three in which some was enqueued, and some of that cancelled, and no replicator has run."""
    world = SetWorld(seed, mode=mode, backups=2)

    def produce(process: Process) -> None:
        wheel = world.open_wheel(process)
        for _ in range(6):
            world.enqueue(wheel)
        for id_ in world.ids[:2]:
            world.oracle.cancelling(id_)
            wheel.cancel(id_)
            world.oracle.is_cancelled(id_)

    world.act("producer", produce)
    return Saga(seed, world, None)


def interrupt(saga: Saga, target: str, at: int) -> bool:
    """Promote a wheel, killed before an operation; tell whether it was."""
    process = Process(saga.world.volumes)
    saga.world.volumes.on_op = saga.killer(process, at)
    try:
        saga.world.run(("promote", process, lambda: saga.promote_in(process, target)))
    finally:
        saga.world.volumes.on_op = None
    was_killed = not process.alive
    process.kill()
    saga.check_alone()
    return was_killed


def judge(saga: Saga, primary: str, context: object) -> None:
    """The whole set comes in step, and holds what was promised."""
    world = saga.world
    world.primary = primary
    pending = world.pending(world.volumes, primary)
    assert pending is not None
    world.oracle.check_pending(pending, f"promoted, {context}")
    assert not world.oracle.violations
    saga.rejoin_all()
    saga.settle()
    saga.check_whole()
    assert not saga.world.oracle.violations, context


@pytest.mark.parametrize("mode", ["ship", "mirror"])
@pytest.mark.parametrize("second", [B, A])
def test_whatever_a_promotion_was_cut_short_at_another_wheel_that_is_promoted_reads_the_real_primary(
    mode: Mode, second: str
) -> None:
    killed = 0
    for at in range(0, 400, 7):
        with tiny_set():
            saga = a_set(at, mode)
            was_killed = interrupt(saga, C, at)
            if saga.roster(C).role == "primary":
                judge(saga, C, at)
                if not was_killed:
                    break
                continue
            killed += 1
            done = []
            saga.world.act("promote", lambda p, s=saga, d=done: d.append(s.promote_in(p, second)))  # type: ignore[misc]
            assert done[0].caught_up, at
            saga.check_alone()
            judge(saga, second, at)
    assert killed > 5


def test_after_two_that_were_cut_short_a_third_reads_the_real_primary() -> None:
    for at in range(40, 200, 23):
        with tiny_set():
            saga = a_set(at, "ship")
            was_killed = interrupt(saga, C, at)
            if saga.roster(C).role == "primary":  # nothing was left to do but to tell the others
                judge(saga, C, at)
                break
            if not (was_killed and interrupt(saga, B, at)):
                break
            primaries = [path for path in (B, C) if saga.roster(path).role == "primary"]
            third = primaries[0] if primaries else C
            saga.world.act("promote", lambda p, s=saga, t=third: s.promote_in(p, t))  # type: ignore[misc]
            judge(saga, third, at)


@pytest.mark.parametrize("mode", ["ship", "mirror"])
@pytest.mark.parametrize("seed", range(12))
def test_of_two_promoters_at_once_one_takes_the_office_and_nothing_is_lost(seed: int, mode: Mode) -> None:
    with tiny_set():
        saga = a_set(seed, mode)
        world = saga.world
        processes = {target: Process(world.volumes) for target in (B, C)}
        done: list[str] = []

        def body(target: str) -> None:
            with contextlib.suppress(FilewheelError):
                saga.promote_in(processes[target], target)
                done.append(target)

        world.run(*((t, p, lambda t=t: body(t)) for t, p in processes.items()))  # type: ignore[misc]
        for process in processes.values():
            process.kill()
        saga.check_alone()
        assert len(done) <= 1
        primary = done[0] if done else B
        if not done:  # each has given way to the other
            world.act("promote", lambda p: saga.promote_in(p, B))
        judge(saga, primary, done)
