"""Workers of a scheduler moved by hand: their calls run in the test's thread, on a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from filewheel.env import Clock
from filewheel.kafka import KafkaScheduler
from filewheel.kafka.scheduling.call import CallTopics
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.runners.inline import Inline
from filewheel.scheduling.runners.runner import Call
from tests.kafka.fake_calls import CallCluster, FakeCalls, FakeCallSource
from tests.support import FakeClock

TOPICS = CallTopics("delays", "calls")


def a_cluster(**options: Any) -> CallCluster:
    return CallCluster(TOPICS, FakeClock(), **options)


def a_scheduler(cluster: CallCluster, *, clock: Clock | None = None, **options: Any) -> KafkaScheduler:
    if cluster.exactly_once:
        options = {"exactly_once": True, "name": "w", **options}
    return KafkaScheduler(
        "host:9092", topic="delays", calls="calls", keyed=cluster.keyed, clock=clock or cluster.clock,
        transport=FakeCalls(cluster), **options,
    )  # fmt: skip


class Held:
    """A runner whose calls end when the test says so."""

    starts_anywhere = False

    def __init__(self, inline: Inline) -> None:
        self.inline = inline
        self.calls: list[Call] = []

    def start(self, call: Call) -> None:
        self.calls.append(call)

    def end(self) -> None:
        """Run the oldest call."""
        self.inline.start(self.calls.pop(0))


class Worker:
    """One worker: a keeper, and a dispatcher whose calls run at once, or when `held` says so."""

    def __init__(self, scheduler: KafkaScheduler, cluster: CallCluster, *, holds: bool = False) -> None:
        self.cluster = cluster
        self.clock = scheduler._clock
        runners: dict[str, Any] = {}
        self.engine = scheduler._new_engine()
        self.keeper = self.engine._keeper = self.engine.join()
        self.dispatcher: Dispatcher = self.engine.dispatcher(self.keeper, runners)
        inline = Inline(self.dispatcher.begin, self.dispatcher.finish, self.clock, scheduler._path)
        self.held = Held(inline)
        runner: Any = self.held if holds else inline
        runners |= {"thread": runner, "loop": runner, "process": runner}
        self.keeper.on_drain = self._drain

    def _drain(self) -> None:
        self.cluster.clock.advance(1)
        self.dispatcher.step(fire=False)

    @property
    def source(self) -> FakeCallSource:
        source = self.keeper._source
        assert isinstance(source, FakeCallSource)
        return source

    def turn(self, *, fire: bool = True) -> None:
        """Poll, and run what was read, until nothing happens any more."""
        for _ in range(6):
            self.dispatcher.step(claim=True)
            self.keeper.poll(0)
            if fire:
                self.cluster.fire()

    def after(self, seconds: float) -> None:
        self.cluster.clock.advance(seconds)
        self.cluster.fire()
        self.turn()

    def killed(self) -> None:
        """Leave the group as a killed process does: without a word."""
        self.keeper._outbox.close()
        self.cluster.expire(self.source)


def until(workers: list[Worker], condition: Callable[[], bool]) -> None:
    """Take turns until a condition holds."""
    for _ in range(100):
        if condition():
            return
        for worker in workers:
            worker.turn()
    raise AssertionError("it never holds")
