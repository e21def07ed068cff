"""Races: a few actors that do just what a hazard needs, in every order that chance brings, with power cuts in between.

Random histories rarely bring two rare things together; a race has nothing else in it. Each is named for what
meets what; its number draws the order in which the actors are exchanged, at every disk call.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

from filewheel.disk.begun import Cancelled
from filewheel.errors import KeyHeld, NotFound
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S, MessageId
from tests.model.consumer import Consumer
from tests.model.crashes import crash_at_random
from tests.model.history import MODES, Checker, Result
from tests.model.machine import Machine
from tests.model.process import ProcessDisk
from tests.model.producer import Producer, read
from tests.model.sched import Scheduler, paused
from tests.model.tiny import tiny
from tests.model.world import World, exact

Actors = list[tuple[str, ProcessDisk, Callable[[], None]]]


class Race:
    """What the actors of a race share."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.oracle = world.oracle
        self.actors: Actors = []
        self.dues: set[int] = set()
        """Every due that a message with a key was ever asked to have."""

    def process(self, name: str, body: Callable[[ProcessDisk], None]) -> ProcessDisk:
        """Add a process with one thread."""
        disk = ProcessDisk(self.world.machine)
        self.actors.append((name, disk, lambda: body(disk)))
        return disk

    def thread(self, name: str, disk: ProcessDisk, body: Callable[[], None]) -> None:
        """Add another thread to a process."""
        self.actors.append((name, disk, body))

    def put(self, producer: Producer, in_s: float, *, sync: str = "always") -> MessageId:
        """Enqueue through a producer's handle."""
        if producer.wheel is None:
            producer.wheel = self.world.open_wheel(producer.disk)
        due_us = self.world.clock.wall_us + round(in_s * US_PER_S)
        told = self.oracle.new(due_us)
        before = list(producer.unflushed)
        id_ = producer.wheel.enqueue(told.payload, at=exact(due_us), sync=sync)  # type: ignore[arg-type]
        producer.enqueued(told, id_, sync, before)  # type: ignore[arg-type]
        return id_

    def putting(self, count: int, in_s: float, *, sync: str = "always", end: str = "close") -> Callable[..., None]:
        """Return the body of a producer that enqueues, and then closes, or dies."""

        def body(disk: ProcessDisk) -> None:
            producer = Producer(self.world, disk)
            for _ in range(count):
                self.put(producer, in_s, sync=sync)
            if end == "close":
                producer.close()
            else:
                disk.kill()

        return body

    def dropping(self, how: str, count: int = 2) -> Callable[[ProcessDisk], None]:
        """Return the body of one who cancels or reschedules what others enqueue, as soon as it is there."""

        def body(disk: ProcessDisk) -> None:
            wheel = self.world.open_wheel(disk)
            done: set[bytes] = set()
            for _ in range(40):
                disk.wait_hint(None, 0)
                fresh = [i for i in self.world.ids if i not in done]
                if not fresh:
                    continue
                id_ = fresh[0]
                done.add(id_)
                if how == "cancel":
                    self.oracle.cancelling(id_)
                    came_to = wheel.cancel(id_)
                    self.oracle.is_cancelled(id_, found=bool(came_to))
                    if came_to is Cancelled.STOPPED:
                        self.oracle.said_stopped(id_)
                else:
                    due_us = self.world.clock.wall_us + 200 * US_PER_S
                    self.oracle.moving(id_, due_us)
                    try:
                        self.oracle.is_moved(id_, wheel.reschedule(id_, at=exact(due_us)))
                    except NotFound:
                        continue
                if len(done) >= count:
                    break
            wheel.close()

        return body

    def keeping(self, *acts: str, times: int = 4) -> Callable[[ProcessDisk], None]:
        """Return the body of a keeper that does these acts over and over."""

        def body(disk: ProcessDisk) -> None:
            consumer = Consumer(self.world, disk)
            consumer.lets_wait = "begin" in acts
            keeper = self.world.open_keeper(disk)
            for _ in range(times):
                for act in acts:
                    if act == "claim":
                        consumer.claim(keeper)
                    elif act == "finish" and consumer.claimed:
                        consumer.finish_one(keeper, consumer.claimed.pop(0))
                    elif act == "begin" and consumer.claimed:
                        consumer.begin(keeper)
                    elif act == "retry" and consumer.claimed:
                        self.retry(consumer, keeper)
                    elif act == "compact":
                        self.compact(keeper)
                    elif act == "deal":
                        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
                    elif act == "look":
                        consumer.housekeep(keeper)
                    elif act == "wait":
                        self.world.clock.advance(US_PER_S)
            self.oracle.closes(disk)
            keeper.close()
            self.oracle.flushed()

        return body

    def compact(self, keeper: Keeper) -> None:
        """Compact what there is of the index of keys."""
        for bucket in {keeper._keys.hash_of(key)[0] for key in self.oracle.keys}:
            if keeper._keys.read(bucket):
                keeper._housekeeper._keys.compact(bucket, self.world.clock.wall_us)

    def batching(self, count: int) -> Callable[[ProcessDisk], None]:
        """Return the body of a producer that enqueues batches with the keys of others and one of its own."""
        world, oracle, rng = self.world, self.oracle, self.world.rng

        def body(disk: ProcessDisk) -> None:
            producer = Producer(world, disk)
            wheel = producer.wheel = world.open_wheel(disk)
            for _ in range(count):
                keys = ["one", "two", f"its own {rng.randrange(10**9)}"]
                oracle.keys.update(keys)
                due_us = world.clock.wall_us + rng.choice([0, 1, 70]) * US_PER_S
                tolds = [oracle.new(due_us) for _ in keys]
                for told in tolds:
                    told.dues = self.dues
                    told.dues.add(due_us)
                    told.may_be_gone = True
                ids = wheel.enqueue_many(
                    [told.payload for told in tolds],
                    at=exact(due_us),
                    sync=rng.choice(["always", "never"]),
                    keys=keys,
                    on_conflict="replace",
                )
                oracle.of_id.update(zip(ids, (told.payload for told in tolds), strict=True))
            disk.kill()

        return body

    def keying(self, count: int, *, replacing: bool, shared: Producer | None = None) -> Callable[[ProcessDisk], None]:
        """Return the body of a producer, or a thread of one that is `shared`, that does things with two keys."""
        world, oracle, rng = self.world, self.oracle, self.world.rng

        def body(disk: ProcessDisk) -> None:
            producer = shared or Producer(world, disk)
            wheel = producer.wheel or world.open_wheel(disk)
            producer.wheel = wheel
            for _ in range(count):
                how, key = rng.random(), rng.choice(["one", "two"])
                oracle.keys.add(key)
                due_us = world.clock.wall_us + rng.choice([0, 0, 1, 70]) * US_PER_S
                replaces = replacing and how < 0.5
                if how < 0.7:
                    told = oracle.new(due_us)
                    told.dues = self.dues  # whoever moves by key moves what has it then
                    told.dues.add(due_us)
                    # With someone who replaces, nobody knows whose message will be there in the end.
                    told.may_be_gone = replacing
                    sync, before = rng.choice(["always", "never"]), list(producer.unflushed)
                    policy: Any = "replace" if replaces else "reject"
                    try:
                        id_ = wheel.enqueue(told.payload, at=exact(due_us), sync=sync, key=key, on_conflict=policy)
                    except KeyHeld:
                        del oracle.messages[told.payload]
                    else:
                        producer.enqueued(told, id_, sync, before)
                elif how < 0.9 or not replacing:
                    self.dues.add(due_us)
                    with contextlib.suppress(NotFound):
                        wheel.reschedule(key=key, at=exact(due_us))
                else:
                    wheel.cancel(key=key)
            if shared is not None:
                return  # the others go on
            if rng.random() < 0.5:
                producer.close()
            else:
                disk.kill()

        return body

    def replacing(self, count: int) -> Callable[[ProcessDisk], None]:
        """Return the body of one who replaces, moves and cancels by key what it enqueued with that key before."""
        world, oracle, rng = self.world, self.oracle, self.world.rng

        def body(disk: ProcessDisk) -> None:
            producer = Producer(world, disk)
            producer.wheel = wheel = world.open_wheel(disk)
            ids: list[MessageId] = []
            oracle.keys.add("one")
            for _ in range(count):
                how = rng.choice(["replace", "replace", "update", "reschedule", "cancel"])
                due_us = world.clock.wall_us + rng.choice([0, 0, 70]) * US_PER_S
                self.dues.add(due_us)
                told = oracle.new(due_us)
                told.dues, told.may_be_gone = self.dues, True
                before = set(ids)
                oracle.ending |= before
                at = exact(due_us)
                with contextlib.suppress(NotFound):
                    if how == "replace":
                        ids.append(wheel.enqueue(told.payload, at=at, key="one", on_conflict="replace"))
                    elif how == "update":
                        ids.append(wheel.update(key="one", payload=told.payload, at=at))
                    elif how == "reschedule":
                        wheel.reschedule(key="one", at=at)
                    else:
                        wheel.cancel(key="one")
                oracle.of_id.update(dict.fromkeys(set(ids) - before, told.payload))
                oracle.cancelled |= before
            wheel.close()

        return body

    def pausing(self, count: int) -> Callable[[ProcessDisk], None]:
        """Return the body of one who pauses all there is, in one way or another, and resumes it."""
        ways: list[dict[str, Any]] = [{}, {"topic": ""}, {"topic": "*"}]

        def body(disk: ProcessDisk) -> None:
            wheel = self.world.open_wheel(disk)
            for _ in range(count):
                way = self.world.rng.choice(ways)
                self.oracle.pausing()
                wheel.pause(**way)
                self.oracle.is_paused()
                for _ in range(self.world.rng.randrange(20)):
                    disk.wait_hint(None, 0)
                self.oracle.resuming()
                wheel.resume(**way)
                self.oracle.is_resumed()
                for _ in range(self.world.rng.randrange(10)):
                    disk.wait_hint(None, 0)
            wheel.close()

        return body

    def killing(self, disk: ProcessDisk, victims: list[ProcessDisk]) -> None:
        """Kill one of some processes, after a while."""
        for _ in range(self.world.rng.randrange(1, 60)):
            disk.wait_hint(None, 0)
        self.world.rng.choice(victims).kill()

    def retry(self, consumer: Consumer, keeper: Keeper) -> None:
        """Put a claimed message back at once."""
        id_ = consumer.claimed.pop(0)
        told = self.oracle.of(id_)
        told.dues.add(self.world.clock.wall_us)
        new = keeper.nack(id_)
        if id_ in keeper._settler.later:
            return  # it waits for a producer that is busy with its key, and is what it was
        told.acked.add(id_)
        if new is not None:
            self.oracle.wins(id_, "retry")
            self.oracle.unflushed.append(id_)
            self.oracle.of_id[new] = told.payload


def begin(race: Race) -> None:
    """A producer makes its first segment while a keeper starts and sweeps."""
    race.process("producer", race.putting(2, 5))
    race.process("keeper", race.keeping("claim", times=1))
    race.process("standby", race.keeping("claim", "deal", times=1))


def threads(race: Race) -> None:
    """Three threads share a journal whose segments are soon full."""
    producer: list[Producer] = []

    def first(disk: ProcessDisk) -> None:
        producer.append(Producer(race.world, disk))
        for _ in range(6):
            race.put(producer[0], 5)

    def more() -> None:
        while not producer or producer[0].wheel is None:
            disk.wait_hint(None, 0)
        for _ in range(5):
            race.put(producer[0], 5)

    disk = race.process("thread 1", first)
    race.thread("thread 2", disk, more)
    race.thread("thread 3", disk, more)


def rotation(race: Race) -> None:
    """Writers go from segment to segment, and end, while a keeper reads and deals."""
    race.process("producer 1", race.putting(9, 90))
    race.process("producer 2", race.putting(9, 0, end="die"))
    race.process("keeper", race.keeping("claim", "deal", "look", times=5))


def cancel(race: Race) -> None:
    """What one enqueues another cancels, while the keeper claims and deals."""
    race.process("producer 1", race.putting(4, 0))
    race.process("producer 2", race.putting(3, 90))
    race.process("canceller", race.dropping("cancel", 5))
    race.process("keeper", race.keeping("claim", "deal", "finish", "claim", times=4))


def move(race: Race) -> None:
    """What one enqueues another reschedules, while the keeper claims, lets go of files, and deals."""
    race.process("producer 1", race.putting(4, 0))
    race.process("mover", race.dropping("move", 4))
    race.process("keeper", race.keeping("deal", "claim", "wait", "look", times=4))


def retry(race: Race) -> None:
    """What is running is cancelled and put back at the same time."""
    race.process("producer", race.putting(4, 0))
    race.process("canceller", race.dropping("cancel", 4))
    race.process("keeper", race.keeping("claim", "retry", "retry", "deal", "retry", times=4))


def arrival(race: Race) -> None:
    """Messages that are due arrive while the second that they belong to is being let go."""
    race.process("producer 1", race.putting(5, 0))
    race.process("producer 2", race.putting(5, -1))
    race.process("keeper", race.keeping("claim", "finish", "finish", "deal", "wait", "claim", times=5))


def reader(race: Race) -> None:
    """A reader lists, without a lock, while deals move what it reads."""
    race.process("producer", race.putting(7, 90))
    race.process("keeper", race.keeping("deal", "claim", times=6))

    def body(disk: ProcessDisk) -> None:
        race.world.steps_max = 12
        read(race.world, disk)

    race.process("reader", body)


def takeover(race: Race) -> None:
    """Keepers follow one another while producers of every kind go on."""
    race.process("producer 1", race.putting(5, 0, sync="never", end="die"))
    race.process("producer 2", race.putting(5, 70))
    race.process("mover", race.dropping("move", 3))
    for name in ("keeper 1", "keeper 2"):
        race.process(name, race.keeping("claim", "finish", "deal", "wait", times=2))


def keys(race: Race) -> None:
    """Producers enqueue, replace, move and cancel by key, while keepers retry and compact, and processes are killed."""
    replacing = race.world.rng.random() < 0.7
    for name in ("producer 1", "producer 2", "producer 3"):
        race.process(name, race.keying(6, replacing=replacing))
    for name in ("keeper 1", "keeper 2"):
        race.process(name, race.keeping("claim", "finish", "retry", "compact", "wait", "claim", "deal", times=3))
    if race.world.rng.random() < 0.5:
        reaper = ProcessDisk(race.world.machine)
        victims = [disk for _, disk, _ in race.actors]
        race.thread("reaper", reaper, lambda: race.killing(reaper, victims))


def key_batches(race: Race) -> None:
    """Batches take keys at once, beside producers that take them one by one, and keepers that retry and compact."""
    for name in ("batch 1", "batch 2"):
        race.process(name, race.batching(4))
    race.process("producer", race.keying(6, replacing=True))
    for name in ("keeper 1", "keeper 2"):
        race.process(name, race.keeping("claim", "deal", "retry", "compact", "claim", "retry", "deal", times=3))
    if race.world.rng.random() < 0.5:
        reaper = ProcessDisk(race.world.machine)
        victims = [disk for _, disk, _ in race.actors]
        race.thread("reaper", reaper, lambda: race.killing(reaper, victims))


def key_threads(race: Race) -> None:
    """Threads of one producer share the commits of their keys, beside another producer and a keeper."""
    replacing = race.world.rng.random() < 0.7
    disk = ProcessDisk(race.world.machine)
    producer = Producer(race.world, disk)
    producer.wheel = race.world.open_wheel(disk)
    for name in ("thread 1", "thread 2", "thread 3"):
        race.thread(name, disk, lambda: race.keying(5, replacing=replacing, shared=producer)(disk))
    race.process("producer", race.keying(4, replacing=replacing))
    race.process("keeper", race.keeping("claim", "finish", "retry", "compact", "wait", "deal", times=3))


def key_flushes(race: Race) -> None:
    """A thread takes keys without a flush, and others flush the journal that they share, exchanged at every lock."""
    assert race.world.sched is not None
    race.world.sched.at_locks = True
    disk = ProcessDisk(race.world.machine)
    producer = Producer(race.world, disk)
    producer.wheel = race.world.open_wheel(disk)

    def flushing() -> None:
        for _ in range(6):
            race.put(producer, 90)

    for name in ("thread 1", "thread 2"):
        race.thread(name, disk, lambda: race.keying(4, replacing=False, shared=producer)(disk))
    race.thread("thread 3", disk, flushing)
    if race.world.rng.random() < 0.5:
        race.process("keeper", race.keeping("claim", "finish", "retry", "compact", "deal", times=3))


def movers(race: Race) -> None:
    """Several reschedule, and one cancels, the same messages at once, while a keeper puts them back and deals."""
    race.process("producer", race.putting(3, race.world.rng.choice([0, 90])))
    for name in ("mover 1", "mover 2", "mover 3"):
        race.process(name, race.dropping("move", 3))
    race.process("canceller", race.dropping("cancel", 3))
    race.process("keeper", race.keeping("claim", "retry", "deal", "retry", times=2))


def begins(race: Race) -> None:
    """What was claimed a while ago is cancelled, moved and replaced before it begins, and keepers are killed."""
    race.process("producer", race.putting(4, 0))
    race.process("canceller", race.dropping("cancel", 3))
    race.process("mover", race.dropping("move", 3))
    race.process("replacer", race.replacing(5))
    acts = ("claim", "begin", "claim", "wait", "begin", "retry", "begin", "deal")
    keepers = [race.process(name, race.keeping(*acts, times=3)) for name in ("keeper 1", "keeper 2")]
    if race.world.rng.random() < 0.5:
        reaper = ProcessDisk(race.world.machine)
        race.thread("reaper", reaper, lambda: race.killing(reaper, keepers))


def pauses(race: Race) -> None:
    """An administrator pauses and resumes the wheel, while keepers claim, begin and deal, and are killed."""
    race.process("producer", race.putting(5, 0))
    race.process("canceller", race.dropping("cancel", 2))
    race.process("administrator", race.pausing(3))
    acts = ("claim", "begin", "claim", "wait", "begin", "finish", "look", "begin", "deal")
    keepers = [race.process(name, race.keeping(*acts, times=4)) for name in ("keeper 1", "keeper 2")]
    if race.world.rng.random() < 0.5:
        reaper = ProcessDisk(race.world.machine)
        race.thread("reaper", reaper, lambda: race.killing(reaper, keepers))


RACES: dict[str, Callable[[Race], None]] = {
    f.__name__: f for f in (begin, threads, rotation, cancel, move, retry, arrival, reader, takeover)
}
NAMES = list(RACES)
# Not among the names: the order in which mutants are searched for stays what it was.
RACES["keys"] = keys
RACES["key_threads"] = key_threads
RACES["key_batches"] = key_batches
RACES["key_flushes"] = key_flushes
RACES["movers"] = movers
RACES["begins"] = begins
RACES["pauses"] = pauses


def run_race(name: str, number: int, *, crash_rate: float = 0.2) -> Result:
    """Run one race in one order; the result holds the violations."""
    result = Result(number)
    checker = Checker(number, result)
    rng = random.Random(f"race {name} {number}")
    with tiny():
        world = World(number)
        world.sched = Scheduler(world.rng, switch=rng.choice([0.1, 0.3, 0.6]))
        race = Race(world)
        RACES[name](race)

        def on_op(kind: str, what: str) -> None:
            if rng.random() < crash_rate and not world.oracle.violations:
                with paused():
                    checker.check(world, f"{name} {number} op {world.machine.ops} after {kind} {what}")

        world.machine.on_op = on_op
        world.run(*race.actors)
        for _, disk, _ in race.actors:
            disk.kill()
        if not world.oracle.violations:
            _end(world, checker, rng, name)
        result.ops = world.machine.ops
        result.switches = world.sched.switches
        result.violations = world.oracle.violations
    return result


def _end(world: World, checker: Checker, rng: random.Random, name: str) -> None:
    """Nobody runs any more: what is pending is what was promised, and all of it fires."""
    machine: Machine = world.machine
    if rng.random() < 0.5:
        machine = crash_at_random(machine, rng, rng.choice(MODES))
        world.oracle.power_cut()
    checker.check_state(machine, world.oracle, world.clock, f"{name} after its end", deep=1.0, again=False)
