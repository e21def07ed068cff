"""A set of wheels on modelled disks: producers, a keeper and a replicator, power cuts, and the loss of any one disk.

How to use it:
- `run_set(seed, mode="mirror", backups=2, on_failure="stale", disaster=None)` plays one history and returns what
  came of it (set_history.py); `python -m tests.model.set_history SEED [MODE [BACKUPS [DISASTER]]]` shows one again.
- `SetWorld` alone is for directed scripts: `world.act(name, body)` runs one process to its end, `world.run(...)`
  several, interleaved at every disk call. `body` is given a `Process`; its `open` is the `disk` of the library's `Env`.
- `check_cut`, `check_loss` and `check_equal` judge a moment; `SetOracle` says what must hold.

A mirror has a thread of its own, so wheels with mirrors are only used by actors of the scheduler.
Invariant: whatever returns to an actor is told to the oracle before anything else happens.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import SYSTEM_CLOCK
from filewheel.errors import Fenced, FilewheelError, NotFound
from filewheel.keeper import Keeper
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S, MessageId
from filewheel.roster.roster import Member, Mode, OnFailure, Role, Roster, change_roster, read_roster
from filewheel.sets.target import replay
from filewheel.wheel import Wheel
from tests.model.oracle import Oracle, Told
from tests.model.sched import ModelCondition, ModelThreading, Scheduler
from tests.model.tiny import SLOTS, tiny
from tests.model.volumes import Condition, Process, Volumes
from tests.model.world import ModelClock, exact, make_wheel

SET = "5e7" * 8
NAMES = ("/model/a.wheel", "/model/b.wheel", "/model/c.wheel")
STEPS = 40
Pending = dict[bytes, tuple[bytes, int]]
"""id → (payload, due)."""


@contextlib.contextmanager
def tiny_set() -> Iterator[list[Callable[[], str]]]:
    """Make everything small, and let the model know the locks and threads of mirrors and links.

    What is put on the list says in which boot of the machine a link is made.
    """
    import filewheel.journal.mirror
    import filewheel.sets.link
    import filewheel.sets.rejoin
    import filewheel.sets.replicator

    boots: list[Callable[[], str]] = [lambda: "model"]
    with tiny():
        ours = [
            module
            for name, module in sys.modules.items()
            if name.startswith(
                (
                    "filewheel.sets.",
                    "filewheel.journal.copies",
                    "filewheel.journal.mirror",
                    "filewheel.roster.fence",
                )
            )
            and getattr(module, "threading", None) is threading
        ]
        waiting = [module for module in ours if hasattr(module, "Condition")]
        for module in ours:
            module.threading = ModelThreading  # type: ignore[attr-defined]
        for module in waiting:
            module.Condition = ModelCondition
        # It measures how long a disk takes: by the machine's own clock no seed could be had again.
        filewheel.journal.mirror.SYSTEM_CLOCK = HastyClock(ModelClock())  # type: ignore[assignment]
        try:
            yield boots
        finally:
            filewheel.journal.mirror.SYSTEM_CLOCK = SYSTEM_CLOCK
            for module in ours:
                module.threading = threading  # type: ignore[attr-defined]
            for module in waiting:
                module.Condition = filewheel.env.Condition


class HastyClock:
    """A clock by which time passes with each look at it: who waits for it need not be helped."""

    def __init__(self, clock: ModelClock) -> None:
        self._clock = clock

    def now_us(self) -> int:
        return self._clock.now_us()

    def steady_us(self) -> int:
        self._clock.advance(US_PER_S // 100)
        return self._clock.steady_us()


class SetOracle(Oracle):
    """What callers were told by any wheel of a set, and with how many copies."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[bytes, int] = {}
        """Payload → how many wheels held it when its enqueue returned."""

    def enqueued(self, told: Told, id_: MessageId, *, durable: bool = True) -> None:
        super().enqueued(told, id_, durable=durable)
        self.copies[told.payload] = id_.copies

    def check_survivors(self, held: Mapping[str, Pending], lost: int, context: str) -> None:
        """With `lost` disks gone, what more wheels than that held is in one that may be promoted (`held`)."""
        present = {payload for pending in held.values() for payload, _ in pending.values()}
        for payload, told in self.messages.items():
            promised = told.enqueued and not told.may_be_gone and self.copies.get(payload, 0) > lost
            if promised and payload not in present:
                self.violations.append(f"{payload!r} had {self.copies[payload]} copies and is lost: {context}")
        self.check_invented(held, context)

    def check_invented(self, held: Mapping[str, Pending], context: str) -> None:
        """Nothing is pending anywhere that nobody enqueued, or at a time that nobody asked for."""
        for path, pending in held.items():
            for id_, (payload, due_us) in pending.items():
                told = self.messages.get(payload)
                if told is None or (due_us not in told.dues and not MessageId(id_).is_dead):
                    self.violations.append(f"{path} invented {payload!r} due {due_us}: {context}")

    def check_finished(self, path: str, pending: Pending, context: str) -> None:
        """What was acknowledged durably is not pending in a mirror that is current: it would fire again."""
        for id_, (payload, _) in pending.items():
            told = self.messages.get(payload)
            if told is not None and id_ in told.finished:
                self.violations.append(f"{path} would fire {payload!r} again, whose drop was durable: {context}")


class SetWorld:
    """A set of wheels, its processes, a clock, an oracle."""

    def __init__(
        self,
        seed: int,
        *,
        mode: Mode = "mirror",
        backups: int = 1,
        on_failure: OnFailure = "refuse",
        copies: int = 0,
        oracle: SetOracle | None = None,
    ) -> None:
        self.rng = random.Random(f"set {seed}")
        self.clock = ModelClock()
        self.hasty = HastyClock(self.clock)
        self.oracle = oracle or SetOracle()
        self.mode = mode
        self.volumes = Volumes(*NAMES[: backups + 1])
        self.primary = NAMES[0]
        self.steps = 0
        self.steps_max = self.steps_long = STEPS
        self.switches = 0
        self.ids: list[MessageId] = []
        self.struck: str | None = None
        """The path of the disk that a disaster befell."""
        self.boot = 0
        self.may_be_fenced = False
        """A promotion happens while everything runs: calls on the wheel that was the primary are refused."""
        self.settling = False
        """A promotion is running: what is acknowledged meanwhile may fire again."""
        self.on_failure = on_failure
        salt: str | None = None
        for volume in self.volumes.of_path.values():
            salt = make_wheel(volume, self.clock, self.rng.randbytes, salt=salt)
        self._write_rosters(mode, on_failure, copies)

    def _write_rosters(self, mode: Mode, on_failure: OnFailure, copies: int) -> None:
        process = Process(self.volumes)
        opened = {p: open_directory(p, write=True, env=SYSTEM.using(disk=process.open)) for p in self.volumes.of_path}
        members = {p: Member(p, d.settings.id, mode, "current") for p, d in opened.items()}
        for path, directory in opened.items():
            role: Role = "primary" if path == self.primary else "backup"
            backups = tuple(m for p, m in members.items() if p != self.primary)
            roster = Roster(
                SET, 1, role, self.primary, members[self.primary].wheel, backups, on_failure, copies, timeout_s=3600,
            )  # fmt: skip
            change_roster(directory, lambda _, mine=roster: mine)  # type: ignore[misc]
        process.kill()

    # -- handles and actors ----------------------------------------------------------------------------------

    def open_wheel(self, process: Process) -> Wheel:
        return Wheel(self.primary, clock=self.clock, env=SYSTEM.using(disk=process.open, entropy=self.rng.randbytes))

    def open_keeper(self, process: Process, path: str = "") -> Keeper:
        return Keeper(
            path or self.primary, clock=self.clock, env=SYSTEM.using(disk=process.open, entropy=self.rng.randbytes),
            background=False, budget=Budget(records=16, bytes=4000),
        )  # fmt: skip

    def run(self, *actors: tuple[str, Process, Callable[[], None]]) -> None:
        """Run actors to their end, exchanging them at disk calls of any disk."""
        sched = Scheduler(self.rng)
        for volume in self.volumes.of_path.values():
            volume.before_op = volume.mid_read = lambda kind, name: sched.yield_()
            volume.blocked = lambda: sched._hand_on(sched.running, must=True)
            volume.after_flush = sched.yield_
        for name, process, body in actors:
            sched.spawn(name, process, body)
        try:
            sched.run()
        finally:
            self.switches += sched.switches
            for volume in self.volumes.of_path.values():
                volume.before_op = volume.mid_read = None
                volume.blocked = volume.after_flush = None

    def act(self, name: str, body: Callable[[Process], None]) -> None:
        """Run one process to its end, then kill it."""
        process = Process(self.volumes)

        def whole() -> None:
            body(process)
            process.kill()

        self.run((name, process, whole))

    def go_on(self) -> bool:
        """Count a step; tell whether the history goes on."""
        self.steps += 1
        return self.steps < self.steps_max

    def due(self) -> int:
        now, kind = self.clock.wall_us, self.rng.randrange(4)
        span = (-30, 5, 2 * SLOTS, 4 * SLOTS)[kind]
        return now + round(span * self.rng.random() * US_PER_S)

    @property
    def may_fail(self) -> bool:
        """Whether calls may raise: a disaster has happened."""
        return self.struck is not None or self.may_be_fenced

    # -- what they do ----------------------------------------------------------------------------------------

    def produce(self, process: Process) -> None:
        """Enqueue, cancel and reschedule, through handles that are opened anew after an error."""
        wheel: Wheel | None = None
        while self.go_on():
            try:
                wheel = wheel or self.open_wheel(process)
                self._produce_one(wheel)
            except FilewheelError as exc:
                if not self.may_fail:
                    raise
                wheel = None if self.rng.random() < 0.7 or isinstance(exc, Fenced) else wheel
        process.kill()

    def _produce_one(self, wheel: Wheel) -> None:
        act = self.rng.random()
        if act < 0.65 or not self.ids:
            self.enqueue(wheel)
            return
        id_ = self.rng.choice(self.ids[-8:])
        if act < 0.85:
            self.oracle.cancelling(id_)
            wheel.cancel(id_)
            self.oracle.is_cancelled(id_)
            return
        due_us = self.due()
        self.oracle.moving(id_, due_us)
        with contextlib.suppress(NotFound):
            new = wheel.reschedule(id_, at=exact(due_us))
            self.oracle.is_moved(id_, new)
            self.ids.append(new)

    def enqueue(self, wheel: Wheel, due_us: int | None = None) -> Told:
        """Enqueue one message, durably, and tell the oracle."""
        due_us = self.due() if due_us is None else due_us
        told = self.oracle.new(due_us)
        id_ = wheel.enqueue(told.payload, at=exact(due_us), sync="always")
        self.oracle.enqueued(told, id_)
        self.ids.append(id_)
        return told

    def keep(self, process: Process) -> None:
        """Claim, acknowledge, put back, keep house; one that meets an error is opened again, but for a lost disk."""
        while self.go_on():
            try:
                path = self.primary
                keeper = self.open_keeper(process)
                claimed: list[MessageId] = []
                while self.go_on():
                    self._keep_one(keeper, claimed, path)
            except FilewheelError:
                if not self.may_fail:
                    raise
                if not self.may_be_fenced:
                    break
                process.kill_disks()
        process.kill()

    def _keep_one(self, keeper: Keeper, claimed: list[MessageId], path: str) -> None:
        act = self.rng.random()
        if act < 0.4:
            cancelled, now_us, primary = set(self.oracle.cancelled), self.clock.wall_us, self.primary
            batch = keeper.claim(self.rng.randrange(1, 6))
            if path != primary and batch:
                self.oracle.violations.append(f"{path} fires {batch[0].payload!r} after {primary} was promoted")
            claimed += [m.id for m in batch if self.oracle.fired(m, now_us, cancelled)]
        elif act < 0.65 and claimed:
            self.ack(keeper, claimed.pop(0), durable=self.rng.random() < 0.5, path=path)
        elif act < 0.7 and claimed:
            self.nack(keeper, claimed.pop(0), path=path)
        elif act < 0.85:
            house = keeper._housekeeper
            house._dirty, house._looked_us = True, -(1 << 60)
            try:
                house.step()
            except OSError:  # its thread would take it for the end of the keeper
                if not self.may_fail:
                    raise
                raise FilewheelError("the housekeeper has failed") from None
        else:
            self.clock.advance(self.rng.randrange(1, 10 * US_PER_S))

    def ack(self, keeper: Keeper, id_: MessageId, *, durable: bool, path: str) -> None:
        """Acknowledge, and tell the oracle."""
        told = self.oracle.of(id_)
        told.may_be_gone = True
        was_settling = self.settling
        keeper.ack(id_, sync="always" if durable else "never")
        if was_settling or self.settling or path != self.primary:
            return  # in flight
        told.acked.add(id_)
        if durable:
            self.oracle.finish(id_)

    def nack(self, keeper: Keeper, id_: MessageId, *, path: str) -> None:
        """Put a message back for later, and tell the oracle."""
        delay_s = self.rng.choice((0, 5, 100))
        self.oracle.moving(id_, self.clock.wall_us + delay_s * US_PER_S)
        was_settling = self.settling
        new = keeper.nack(id_, delay=delay_s)
        if id_ in keeper._settler.later:
            return  # it waits for a lock that a producer has, and is what it was
        if new is not None:
            self.oracle.of_id[new] = self.oracle.of_id[id_]
            self.ids.append(new)
        if not (was_settling or self.settling or path != self.primary):
            self.oracle.of(id_).acked.add(id_)

    def replicate(self, process: Process) -> None:
        """Serve every backup, one turn of a link at a time, until the history ends."""
        links: dict[str, Any] = {}
        while self.go_on():
            self.turn(process, links)
        process.kill()

    def turn(self, process: Process, links: dict[str, Any]) -> bool:
        """Let each backup's link do one turn; tell whether all are in step."""
        from filewheel.sets.link import Link
        from filewheel.sets.status import find_primary

        in_step = True
        try:
            primary, roster = find_primary(self.primary, SYSTEM.using(disk=process.open))
        except (FilewheelError, OSError):
            if not self.may_fail and sum(v.condition != "deleted" for v in self.volumes.of_path.values()) > 1:
                raise
            return False
        for member in roster.members:
            if member.state == "fenced":
                continue
            link = links.pop(member.wheel, None)
            try:
                if link is None:
                    link = Link(
                        primary,
                        member,
                        env=SYSTEM.using(clock=self.clock, disk=process.open, entropy=self.rng.randbytes),
                    )
                busy = link.tick()
                links[member.wheel] = link
                in_step = in_step and not busy and link.member.state == "current"
            except (FilewheelError, OSError):
                if link is not None:
                    link.abandon()
                if not self.may_fail:
                    raise
                in_step = False
        return in_step

    def on_struck(self, path: str) -> None:
        """Know what a disaster excuses: a keeper goes on without its mirrors, so does an enqueue if it may."""
        for told in self.oracle.messages.values():
            told.acked.clear()
            told.finished.clear()
        if self.on_failure == "stale":
            self.oracle.cancelled.clear()

    def on_lost(self) -> None:
        """Know what the loss of the primary excuses: what it alone held."""
        for payload, told in self.oracle.messages.items():
            if self.oracle.copies.get(payload, 0) < 2:
                told.enqueued = False
        if self.mode == "ship":
            self.on_struck(self.primary)
            self.oracle.cancelled.clear()

    def strike(self, path: str, condition: Condition) -> None:
        """Let a disaster befall one disk."""
        self.struck = path
        self.volumes[path].befall(condition)

    # -- judging ---------------------------------------------------------------------------------------------

    def pending(self, volumes: Volumes, path: str) -> Pending | None:
        """Return what a reader finds pending in a wheel; None when it cannot be read."""
        process = Process(volumes)
        try:
            with Wheel(path, clock=ModelClock(self.clock.wall_us), env=SYSTEM.using(disk=process.open)) as wheel:
                return {bytes(m.id): (m.payload, m.id.due_us) for m in (*wheel.list(), *wheel.list(dead=True))}
        except (FilewheelError, OSError):
            return None
        finally:
            process.kill()

    def replay(self, volumes: Volumes, path: str) -> None:
        """Do again what the log of a backup has, as a promotion does first: a tick writes over what a mirror has."""
        process = Process(volumes)
        try:
            replay(open_directory(path, write=True, env=SYSTEM.using(disk=process.open)))
        finally:
            process.kill()

    def promotable(self, volumes: Volumes) -> list[str]:
        """Name the backups that no roster that can be seen says to lack something."""
        process = Process(volumes)
        rosters: list[tuple[str, Roster]] = []
        for path in volumes.of_path:
            with contextlib.suppress(FilewheelError, OSError):
                roster = read_roster(process.open(path), path)
                rosters += [(path, roster)] if roster is not None else []
        process.kill()
        epoch = max((r.epoch for _, r in rosters), default=0)
        found = []
        for path, mine in rosters:
            if mine.role != "backup":
                continue
            states = [m.state for _, r in rosters if r.epoch == epoch for m in r.members if m.path == path]
            if all(state == "current" for state in states):
                found.append(path)
        return found

    def check_cut(self, volumes: Volumes, context: str) -> None:
        """After a power cut of all disks the primary holds what was promised."""
        pending = self.pending(volumes, self.primary)
        if pending is None:
            self.oracle.violations.append(f"{self.primary} cannot be read: {context}")
        else:
            self.oracle.check_pending(pending, context)

    def check_loss(self, volumes: Volumes, path: str, context: str) -> None:
        """With one disk gone whole, what had two copies is where it can be promoted, or in the primary."""
        volumes.without(path)
        if path != self.primary:
            self.check_cut(volumes, f"{path} lost, {context}")
            return
        held = {}
        for survivor in self.promotable(volumes):
            self.replay(volumes, survivor)
            pending = self.pending(volumes, survivor)
            if pending is not None:
                held[survivor] = pending
        self.oracle.check_survivors(held, 1, f"{path} lost, {context}")
        if self.mode == "mirror":
            for survivor, pending in held.items():
                self.oracle.check_finished(survivor, pending, f"{path} lost, {context}")

    def check_equal(self, context: str) -> None:
        """In a quiet set all wheels hold the same ids.

        After a power cut a backup may lack what was acknowledged or cancelled without a flush, because its drop is
        there; and it may have by a new id only what others have by the old one too, because it has the move.
        """
        found = {p: self.pending(self.volumes, p) for p, v in self.volumes.of_path.items() if v.condition == "well"}
        first = found.pop(self.primary)
        for path, pending in found.items():
            if first is None or pending is None or first.keys() != pending.keys():
                lacks = {v[0] for k, v in (first or {}).items() if k not in (pending or {})}
                if self.boot:
                    has = {payload for payload, _ in (pending or {}).values()}
                    lacks = {p for p in lacks - has if not self.oracle.messages[p].may_be_gone}
                missing = sorted(lacks)
                extra = sorted(v[0] for k, v in (pending or {}).items() if k not in (first or {}))
                if first is not None and pending is not None and not missing and not extra:
                    continue
                self.oracle.violations.append(f"{path} lacks {missing} and has {extra} too many: {context}")
