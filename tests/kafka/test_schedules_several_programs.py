"""Several programs of one group of workers: what became due is handed out, whoever joins and whatever node is away.

The histories and the property are those of programs on one wheel (tests/scheduling/programs.py). Here all programs run
at once, each with a clock of its own, and the delay service is away at times. To a worker whose clock is behind, an
occurrence may not be due yet: one that declares the schedule with other times replaces it, as the page says.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings

from filewheel import Event, Job
from filewheel.kafka.records.record import Outgoing, Record
from filewheel.kafka.scheduling.call import message_of
from filewheel.message import DUE, US_PER_S
from tests.kafka.workers import Worker, a_cluster, a_scheduler
from tests.scheduling.programs import AHEAD_MAX_S, Ledger, Op, Program, declare, histories, instant_of, play
from tests.support import FakeClock, seeds

AHEAD_S = (0, AHEAD_MAX_S, -7200)
"""How far the clock of each program's machine is ahead."""


class OtherClock:
    """The clock of a machine that is ahead, or behind."""

    def __init__(self, clock: FakeClock, ahead_s: int) -> None:
        self._clock = clock
        self._ahead_us = ahead_s * US_PER_S

    def now_us(self) -> int:
        return self._clock.now_us() + self._ahead_us

    def steady_us(self) -> int:
        return self._clock.steady_us()


class TopicWorld:
    """Programs on one delay topic."""

    is_exact = False

    def __init__(self, *, exactly_once: bool) -> None:
        self.cluster = a_cluster(exactly_once=exactly_once)
        self.clock = self.cluster.clock
        self.ledger = Ledger()
        self.workers: dict[int, Worker] = {}
        self.declared: dict[int, set[str]] = {}
        """The schedules of each worker."""
        self.node_is_up = True

    def start(self, program: Program) -> None:
        if program.number not in self.workers:
            clock = OtherClock(self.clock, AHEAD_S[program.number])
            self.ledger.owed -= {
                one for one in self.ledger.owed if one[0] in program.schedules and one[1] > clock.now_us()
            }
            self.declared[program.number] = set(program.schedules)
            scheduler = a_scheduler(self.cluster, clock=clock)
            declare(scheduler, program, self._called)
            scheduler.on_event(self._missed, ["missed"])
            self.workers[program.number] = Worker(scheduler, self.cluster, holds=True)

    def _called(self, job: Job) -> None:
        self.ledger.called.append((job.message.topic, instant_of(job.message)))

    def _missed(self, event: Event) -> None:
        self.ledger.missed.add((event.handler, int(event.headers.get(DUE, event.due_us))))

    def stop(self, number: int) -> None:
        worker = self.workers.pop(number, None)
        if worker is not None:
            while worker.held.calls:
                worker.held.end()
            worker.dispatcher.settle_all()
            worker.keeper.poll(0)
            worker.keeper.close()

    def kill(self, number: int) -> None:
        worker = self.workers.pop(number, None)
        if worker is not None:
            worker.killed()

    def turn(self) -> None:
        for worker in self.workers.values():
            worker.turn(fire=self.node_is_up)

    def end_calls(self) -> None:
        for worker in self.workers.values():
            while worker.held.calls:
                worker.held.end()
        self.turn()

    def living(self) -> Iterator[tuple[str, int]]:
        for waiting in self.cluster.waiting:
            message = message_of(record_of(waiting))
            name, instant_us = message.topic, instant_of(message)
            nows_us = [worker.clock.now_us() for n, worker in self.workers.items() if name in self.declared[n]]
            if instant_us > self.clock.now_us() or instant_us <= min(nows_us, default=instant_us):
                yield name, instant_us

    def disturb(self, number: int) -> None:
        """Let the delay service go away, or come back."""
        self.node_is_up = number < 0 or number % 2 == 0


def record_of(out: Outgoing) -> Record:
    return Record(0, 0, out.key, out.value, out.headers, 0)


NODE_AWAY = [("start", 0, 0), ("turn", 0, 0), ("disturb", 0, 1), ("pass", 0, 150), ("start", 2, 0), ("turn", 0, 0)]
"""The machine of a delay node is away when an occurrence comes due, and a worker is given partitions then."""


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
@given(history=histories)
@example(history=NODE_AWAY)
@example(history=[*NODE_AWAY, ("start", 1, 0), ("turn", 0, 0)])
@example(history=[("start", 0, 0), ("turn", 0, 0), ("kill", 0, 0), ("start", 2, 0), ("pass", 0, 100), ("turn", 0, 0)])
@settings(max_examples=seeds(8, all_of=60).stop, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_became_due_is_called_or_reported_as_missed_whoever_joins_and_whatever_node_is_away(
    exactly_once: bool, history: list[Op]
) -> None:
    play(TopicWorld(exactly_once=exactly_once), history)
