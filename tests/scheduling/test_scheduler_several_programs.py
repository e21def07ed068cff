"""Several programs on one wheel: what became due is handed out, whoever fires, and whatever each declares."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings

from filewheel import Event, Job, Keeper, Scheduler, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.message import DUE
from tests.conftest import assert_whole
from tests.scheduling.programs import MISSED, PLAIN, Ledger, Op, Program, declare, histories, instant_of, play
from tests.scheduling.stage import Stage
from tests.support import FakeClock, seeds


class UnflushedDisk(OsDisk):
    """A disk whose power never fails."""

    def fdatasync(self, fd: int) -> None:
        pass

    def sync_all(self) -> None:
        pass

    def sync_dir(self, name: str) -> None:
        pass


class WheelWorld:
    """Programs on one wheel: one fires, the others stand by."""

    is_exact = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.ledger = Ledger()
        self.env = SYSTEM.using(disk=UnflushedDisk, clock=self.clock)
        self.wheel = Wheel.create(path, sync="never", env=self.env)
        self.running: dict[int, Scheduler] = {}
        """In the order of their starts: the first fires."""
        self.stage: Stage | None = None

    def start(self, program: Program) -> None:
        if program.number in self.running:
            return
        scheduler = Scheduler(self.path, sync="never", env=self.env)
        declare(scheduler, program, self._called)
        scheduler.on_event(self._missed, ["missed"])
        self.running[program.number] = scheduler
        if self.stage is None:
            self._take_over()
        else:
            scheduler._new_engine()._declare_missing()

    def _called(self, job: Job) -> None:
        self.ledger.called.append((job.message.topic, instant_of(job.message)))

    def _missed(self, event: Event) -> None:
        self.ledger.missed.add((event.handler, int(event.headers.get(DUE, event.due_us))))

    def _take_over(self) -> None:
        scheduler = next(iter(self.running.values()), None)
        if scheduler is not None:
            keeper = Keeper(self.path, wait=False, background=False, env=self.env)
            self.stage = Stage(scheduler, self.clock, keeper)
            scheduler._plant_all("replace")

    def stop(self, number: int) -> None:
        if self._fires(number):
            self.end_calls()
        self.kill(number)

    def kill(self, number: int) -> None:
        fires = self._fires(number)
        scheduler = self.running.pop(number, None)
        if scheduler is None:
            return
        if fires and self.stage is not None:
            self.stage.keeper.close()
            self.stage = None
        scheduler.stop()
        if fires:
            self._take_over()

    def _fires(self, number: int) -> bool:
        return next(iter(self.running), None) == number

    def turn(self) -> None:
        if self.stage is not None:
            self.stage.step()

    def end_calls(self) -> None:
        if self.stage is not None:
            self.stage.finish()
            self.stage.dispatcher.settle_all()

    def living(self) -> Iterator[tuple[str, int]]:
        for stored in self.wheel.schedules():
            yield stored.name, stored.first_due_us

    def disturb(self, number: int) -> None:
        """Let an administrator change a schedule, or the one that fires plan again as after a wrong clock."""
        if number >= 0 and number % 3 == 0 and self.stage is not None:
            self.stage.scheduler._plant_all("replace")
        elif number > 0:
            runs = [m for call in self.stage.runner.calls for m in call.messages] if self.stage is not None else []
            self.wheel.schedule(PLAIN, 30 + number % 90, b"%d" % number, topic=PLAIN, missed=MISSED[number % 2])
            # What runs when its schedule is changed goes on to its end, and is not tried again.
            self.ledger.called += [(PLAIN, instant_of(m)) for m in runs if m.topic == PLAIN]

    def close(self) -> None:
        for number in list(self.running):
            self.stop(number)
        self.wheel.close()
        assert_whole(self.path)


@given(history=histories)
@example(history=[("start", 0, 0), ("start", 1, 0), ("pass", 0, 150), ("kill", 0, 0), ("turn", 0, 0), ("end", 0, 0)])
@settings(max_examples=seeds(8, all_of=60).stop, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_became_due_is_called_or_reported_as_missed_whoever_fires_and_whatever_each_declares(
    history: list[Op],
) -> None:
    with tempfile.TemporaryDirectory() as place:
        world = WheelWorld(Path(place) / "jobs.wheel")
        play(world, history)
        world.close()
