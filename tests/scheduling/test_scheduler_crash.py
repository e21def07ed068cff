"""The scheduler on a machine that loses its processes, or its power, after each operation on the disk.

One program runs on a modelled machine (tests/model/machine.py). After each of its operations the state that a kill
would leave is kept, and one that a power cut may leave; from each of them the program is started again and comes to its
end. Kills of real processes: tests/crash/scheduler.py.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from filewheel import MessageId, Retry, Scheduler, Wheel, current_job
from filewheel.disk.disk import SYSTEM
from filewheel.env import Clock
from filewheel.errors import CallFailed, NotFound, ResultTimeout, WheelExists
from filewheel.message import KEY, RESULT, SCHEDULE
from tests.model.crashes import crash_at_random, digest
from tests.model.machine import Machine
from tests.model.process import ProcessDisk
from tests.model.tiny import tiny
from tests.model.world import ModelClock, make_wheel
from tests.support import some
from tests.support_wheel import US_PER_S

LINKS = 4
SEED = int(os.environ.get("FILEWHEEL_CRASH_SEED", "1"))


@dataclass
class Told:
    """What the outside knows: what was promised to it, and what was called."""

    promised: set[str] = field(default_factory=set)
    calls: list[tuple[str, int, MessageId]] = field(default_factory=list)
    """Handler, number, fire id."""
    sums: dict[MessageId, int] = field(default_factory=dict)
    """The calls of `total` whose enqueue returned, with their argument; below 0 they fail for good."""
    read: dict[MessageId, str] = field(default_factory=dict)
    """The results that were read."""

    def copy(self) -> Told:
        return Told(set(self.promised), list(self.calls), dict(self.sums), dict(self.read))

    def numbers(self, handler: str) -> set[int]:
        return {number for name, number, _ in self.calls if name == handler}


def program(path: Path, machine: Machine, clock: Clock, told: Told) -> Scheduler:
    """Return a scheduler with a chain of links, a job that fails at first, a keyed one, and recurring work."""
    scheduler = Scheduler(path, clock=clock, env=SYSTEM.using(disk=lambda path: ProcessDisk(machine, path)))
    retry = Retry(limit=3, delay_s=2, jitter=0)

    def note(handler: str, number: int) -> None:
        told.calls.append((handler, number, current_job().fire_id))

    @scheduler.on(retry=retry)
    def link(number: int) -> None:
        note("link", number)
        if number + 1 < LINKS:
            with current_job().transaction():
                link.after(1, number + 1)

    @scheduler.on(retry=retry)
    def flaky() -> None:
        note("flaky", current_job().attempt)
        if current_job().attempt < 2:
            raise ValueError("not yet")

    @scheduler.on(retry=retry)
    def keyed(number: int) -> None:
        note("keyed", number)

    @scheduler.on(retry=retry)
    def cleanup(number: int) -> None:
        note("cleanup", current_job().fire_id.due_us * 2 + number)

    @scheduler.on(retry=Retry(limit=1, delay_s=2, jitter=0), result_for="1h")
    def total(number: int) -> str:
        if number < 0 or not current_job().attempt:
            raise ValueError(f"no total of {number}")
        return f"{number} at {clock.now_us()}"  # a second run returns something else

    @scheduler.every(5)
    @scheduler.on(retry=retry)
    def tick() -> None:
        note("tick", current_job().fire_id.due_us)
        if current_job().attempt == 0 and current_job().fire_id.due_us // US_PER_S % 2:
            raise ValueError("each second one fails once")

    return scheduler


def story(scheduler: Scheduler, clock: ModelClock, told: Told) -> None:
    """Let the program run for a while."""
    scheduler.drain()
    told.promised.add("tick")
    scheduler.enqueue("link", [0])
    told.promised.add("link")
    scheduler.enqueue("flaky", delay=1)
    told.promised.add("flaky")
    for number in range(3):
        scheduler.enqueue("keyed", [number], key="only one", on_conflict="replace", delay=3)
        told.promised.add(f"keyed {number}")
        scheduler.drain()
        clock.advance(1_700_000)
    for number in (7, -7):
        told.sums[scheduler.enqueue("total", [number], delay=1)] = number
    scheduler.schedule("cleanup", 3, "cleanup", [0])
    told.promised.add("cleanup")
    for number in range(6):
        clock.advance(2 * US_PER_S)
        scheduler.drain()
        told.read |= {id_: found for id_ in told.sums if (found := result_of(scheduler, id_)) is not None}
        if number == 2:
            scheduler.schedule("cleanup", 4, "cleanup", [1])
    told.promised.remove("cleanup")
    scheduler.unschedule("cleanup")
    told.promised.add("no cleanup")
    scheduler.stop()


def result_of(scheduler: Scheduler, id_: MessageId) -> str | None:
    """Return the result of a call, or how it failed; None while it waits. Raises NotFound if it is nowhere."""
    try:
        return str(scheduler.result(id_))
    except CallFailed as exc:
        return f"failed: {exc.error}"
    except ResultTimeout:
        return None


def wrong_results(scheduler: Scheduler, told: Told, *, at_end: bool) -> Iterator[str]:
    """Say which call has neither a place among what waits nor a result, or not the one that was read before."""
    for id_, number in told.sums.items():
        try:
            found = result_of(scheduler, id_)
        except NotFound:
            yield f"the call of {number} is gone without a result"
            continue
        if found is None:
            if at_end or id_ in told.read:
                yield f"the call of {number} has no result"
        elif not found.startswith(f"failed: ValueError: no total of {number}" if number < 0 else f"{number} at "):
            yield f"the call of {number} has the result {found!r}"
        elif told.read.get(id_, found) != found:
            yield f"the result {told.read[id_]!r} was read, and now it is {found!r}"


def wrong(path: Path, machine: Machine, clock: ModelClock, told: Told) -> Iterator[str]:
    """Say what is wrong with what waits after a crash."""
    with Wheel(path, clock=clock, env=SYSTEM.using(disk=lambda path: ProcessDisk(machine, path))) as wheel:
        living = list(wheel.list())
        # A total may, it is made to fail; and a tick: after a stop its next one is soon due.
        if any(m.topic not in ("tick", "total") for m in wheel.list(dead=True)):
            yield "a dead letter"
    for key, count in Counter(m.headers[KEY] for m in living if KEY in m.headers).items():
        if count > 1:
            yield f"{count} living messages have the key {key!r}"
    topics = Counter(m.topic for m in living)
    if topics["tick"] > 1 or ("tick" in told.promised and not topics["tick"]):
        yield f"{topics['tick']} living occurrences"
    if topics["cleanup"] > ("no cleanup" not in told.promised) or topics["cleanup"] < ("cleanup" in told.promised):
        yield f"{topics['cleanup']} living occurrences of cleanup"
    if topics["link"] > 1 or ("link" in told.promised and not topics["link"] and LINKS - 1 not in told.numbers("link")):
        yield f"{topics['link']} living links"


def comes_to_its_end(path: Path, machine: Machine, clock: ModelClock, told: Told, *, kill: bool) -> Iterator[str]:
    """Start the program again, and say what does not come to its end as promised."""
    scheduler = program(path, machine, clock, told)
    yield from wrong_results(scheduler, told, at_end=False)
    for _ in range(30):
        clock.advance(5 * US_PER_S)
        scheduler.drain()
        if all(m.headers.keys() & {SCHEDULE, RESULT} for m in scheduler.wheel.list()):
            break
    else:
        yield "there is no end"
    yield from wrong(path, machine, clock, told)
    yield from wrong_results(scheduler, told, at_end=True)
    if "link" in told.promised and told.numbers("link") != set(range(LINKS)):
        yield f"links called: {told.numbers('link')}"
    if "flaky" in told.promised and 2 not in told.numbers("flaky"):
        yield f"attempts: {told.numbers('flaky')}"
    # The newest replaces the others, also when the crash came before anybody was told so.
    last = max((number for number in range(3) if f"keyed {number}" in told.promised), default=3)
    if last < 3 and not told.numbers("keyed") & {last, last + 1}:
        yield f"keyed called: {told.numbers('keyed')}, promised {last}"
    if kill:  # a power cut may take back the end of a call, and with it the id of what it had put
        fire_ids: defaultdict[tuple[str, int], set[MessageId]] = defaultdict(set)
        for handler, number, fire_id in told.calls:
            fire_ids[handler, number].add(fire_id)
        yield from (f"{what} has the fire ids {ids}" for what, ids in fire_ids.items() if len(ids) > 1)


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_after_each_operation_a_crash_leaves_one_occurrence_one_link_one_holder_and_all_that_was_promised(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL, "filewheel")
    path = tmp_path / "model.wheel"
    Wheel.create(path).close()  # for its name: what is in it is on the modelled machine, and is made there

    def is_there(path: Path, **options: object) -> None:
        raise WheelExists("there is a wheel already", path=path)

    monkeypatch.setattr("filewheel.wheel.create_directory", is_there)
    rng = random.Random(SEED)
    clock, told, machine = ModelClock(), Told(), Machine()
    make_wheel(machine, clock, rng.randbytes)
    states: dict[bytes, tuple[int, str, Machine, int, Told]] = {}

    def keep(kind: str, name: str) -> None:
        mode = "all" if how == "kill" else rng.choice(["none", "some", "some"])
        after = crash_at_random(machine, rng, mode)
        states.setdefault(digest(after), (machine.ops, f"{kind} {name}", after, clock.wall_us, told.copy()))

    with tiny():
        machine.on_op = keep
        story(program(path, machine, clock, told), clock, told)
        machine.on_op = None
        assert told.numbers("link") == set(range(LINKS))
        assert len(states) > 100
        for number, op, after, now_us, known in some(states.values(), one_of=12):
            later = ModelClock(now_us)
            found = itertools.chain(
                wrong(path, after, later, known), comes_to_its_end(path, after, later, known, kill=how == "kill")
            )
            assert not list(found), f"after operation {number}, {op}"
