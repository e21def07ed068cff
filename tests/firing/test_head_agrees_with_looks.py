"""What looks call pending is what a keeper hands out, whatever was called before."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from filewheel import Keeper, KeyHeld, Message, NotFound, Wheel
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S
from filewheel.tools.dump import dump
from tests.conftest import assert_whole
from tests.support import FakeClock, seeds

KEYS = st.sampled_from([None, None, None, "a", "b"])
WHO = st.integers(0, 1)


class Anything(RuleBasedStateMachine):
    """Two handles, a keeper, and a reader that is kept over the whole life of the wheel."""

    @initialize(small=st.booleans())
    def begin(self, small: bool) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.path = Path(self.home.name) / "w"
        self.clock = FakeClock()
        self.budget = Budget(records=4, bytes=1 << 20) if small else Budget()
        Wheel.create(self.path, slots=60, clock=self.clock).close()
        self.wheels = [self.open(), self.open()]
        self.reader = self.open()
        self.keeper = self.open_keeper()
        self.claimed: dict[bytes, Message] = {}
        self.ever: dict[bytes, Message] = {}

    def open(self) -> Wheel:
        return Wheel(self.path, clock=self.clock, sync="never")

    def open_keeper(self) -> Keeper:
        return Keeper(self.path, clock=self.clock, background=False, budget=self.budget)

    def one(self, data: st.DataObject, among: Any) -> Any:
        return data.draw(st.sampled_from(sorted(among))) if among else None

    def remember(self) -> None:
        """Note all messages that are there now, to be named or added later."""
        self.ever |= {m.id: m for m in dump(self.reader)}

    # -- calls -----------------------------------------------------------------------------------------------

    @rule(who=WHO, delay=st.integers(-5, 200), key=KEYS, how=st.sampled_from(["replace", "keep", "reject"]))
    def enqueue(self, who: int, delay: int, key: str | None, how: Any) -> None:
        at = self.clock.wall_us / US_PER_S + delay
        with contextlib.suppress(KeyHeld):
            self.wheels[who].enqueue(b"x", at=at, key=key, on_conflict="reject" if key is None else how)
        self.remember()

    @rule(who=WHO, delays=st.lists(st.integers(0, 200), min_size=1, max_size=12))
    def enqueue_many(self, who: int, delays: list[int]) -> None:
        self.wheels[who].enqueue_many([b"x"] * len(delays), delay=list(delays))
        self.remember()

    @rule(who=WHO, data=st.data())
    def cancel(self, who: int, data: st.DataObject) -> None:
        if (id_ := self.one(data, self.ever)) is not None:
            self.wheels[who].cancel(id_)

    @rule(who=WHO, key=st.sampled_from(["a", "b"]))
    def cancel_by_key(self, who: int, key: str) -> None:
        self.wheels[who].cancel(key=key)

    @rule(who=WHO, data=st.data(), delay=st.integers(0, 200))
    def reschedule(self, who: int, data: st.DataObject, delay: int) -> None:
        if (id_ := self.one(data, self.ever)) is not None:
            with contextlib.suppress(NotFound, KeyHeld):
                self.wheels[who].reschedule(id_, delay=delay)
        self.remember()

    @rule(who=WHO, key=st.sampled_from(["a", "b"]))
    def update(self, who: int, key: str) -> None:
        with contextlib.suppress(NotFound):
            self.wheels[who].update(key=key, payload=b"updated")
        self.remember()

    @rule(who=WHO, data=st.data())
    def add(self, who: int, data: st.DataObject) -> None:
        """Add messages that were cancelled, moved, acknowledged, buried or never gone."""
        if not self.ever:
            return
        ids = data.draw(st.lists(st.sampled_from(sorted(self.ever)), min_size=1, max_size=4, unique=True))
        messages = [self.ever[id_] for id_ in ids]
        with contextlib.suppress(KeyHeld):
            added = self.wheels[who].add(messages)
            assert added == sum(self.reader.get(id_) is not None for id_ in ids)

    @rule(who=WHO, data=st.data())
    def revive(self, who: int, data: st.DataObject) -> None:
        dead = [m.id for m in self.reader.dead()]
        if dead:
            self.wheels[who].revive(self.one(data, dead), delay=1)
        self.remember()

    @rule(limit=st.integers(1, 6))
    def claim(self, limit: int) -> None:
        """Claim, and see whether it is what looks say."""
        due_s = (self.clock.wall_us + 1) / US_PER_S
        waits = [m.id for m in self.reader.list(before=due_s) if m.id not in self.claimed]
        found = list(self.keeper.claim(limit))
        assert [m.id for m in found] == waits[: len(found)]
        assert bool(found) == bool(waits)  # with a small budget it may be fewer than the limit
        self.claimed |= {m.id: m for m in found}

    @rule(data=st.data(), how=st.sampled_from(["ack", "nack", "bury", "give back"]), delay=st.integers(0, 30))
    def settle(self, data: st.DataObject, how: str, delay: int) -> None:
        id_ = self.one(data, self.claimed)
        if id_ is None:
            return
        message = self.claimed.pop(id_)
        if how == "ack":
            self.keeper.ack(message)
        elif how == "nack":
            self.keeper.nack(message, delay=delay)
        elif how == "bury":
            self.keeper.bury(message, reason="no")
        else:
            self.keeper.give_back([message])
        self.remember()

    @rule(seconds=st.integers(1, 120))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule()
    def deal(self) -> None:
        Deal(self.keeper._store, spread=True, finished=self.keeper._head.finished).run()

    @rule()
    def begin_again(self) -> None:
        self.keeper.close()
        self.claimed.clear()
        self.keeper = self.open_keeper()

    @rule(who=WHO)
    def open_again(self, who: int) -> None:
        self.wheels[who].close()
        self.wheels[who] = self.open()

    # -- what holds --------------------------------------------------------------------------------------------

    @invariant()
    def all_looks_agree(self) -> None:
        if not hasattr(self, "reader"):
            return
        for wheel in (self.reader, self.wheels[0]):
            listed = [m.id for m in wheel.list()]
            with wheel.snapshot() as snapshot:
                assert [m.id for m in snapshot.messages()] == listed
            dead = [m.id for m in wheel.dead()]
            stats = wheel.stats()
            assert (stats.pending, stats.dead) == (len(listed), len(dead))
            assert {id_ for id_ in self.ever if wheel.get(id_) is not None} == {*listed, *dead}
            assert [m.id for m in wheel.peek(3)] == listed[:3]
            next_due = wheel.next_due()
            assert (None if next_due is None else round(next_due.timestamp() * US_PER_S)) == (
                listed[0].due_us if listed else None
            )

    def teardown(self) -> None:
        if not hasattr(self, "reader"):
            return
        self.clock.advance(100_000)
        waits = {m.id for m in self.reader.list()} - self.claimed.keys()
        found: set[bytes] = set()
        while batch := self.keeper.claim(5):
            found |= {m.id for m in batch}
        assert found == waits
        self.keeper.close()
        for wheel in (*self.wheels, self.reader):
            wheel.close()
        assert_whole(self.path)
        self.home.cleanup()


def test_whatever_is_called_a_keeper_hands_out_what_looks_call_pending() -> None:
    run_state_machine_as_test(
        Anything,
        settings=settings(
            max_examples=seeds(15, all_of=300).stop,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
        ),
    )


def test_a_cancelled_message_that_is_added_again_stays_gone(wheel_dir: Path, clock: FakeClock) -> None:
    with (
        Wheel(wheel_dir, clock=clock) as wheel,
        Keeper(wheel_dir, clock=clock, background=False) as keeper,
    ):
        id_ = wheel.enqueue(b"x", delay=1)
        (message,) = wheel.list()
        assert not keeper.claim()
        wheel.cancel(id_)
        assert not keeper.claim()
        assert wheel.add([message]) == 0
        clock.advance(2)
        assert not keeper.claim()
        assert wheel.get(id_) is None


@pytest.mark.parametrize("dealt", [True, False])
def test_a_put_that_another_process_adds_of_what_was_cancelled_does_not_fire(
    wheel_dir: Path, clock: FakeClock, dealt: bool
) -> None:
    """As by an older version, or where the cancel came between the look and the put."""
    from filewheel.format.record import pack_message

    with (
        Wheel(wheel_dir, clock=clock) as wheel,
        Keeper(wheel_dir, clock=clock, background=False) as keeper,
    ):
        id_ = wheel.enqueue(b"x", delay=1)
        stays = wheel.enqueue(b"y", delay=1)
        (message, _) = wheel.list()
        assert not keeper.claim()
        wheel.cancel(id_)
        if dealt:
            Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        assert not keeper.claim()
        with Wheel(wheel_dir, clock=clock) as other:
            other._writer().write([pack_message(message)], 1)
            clock.advance(2)
            assert [m.id for m in other.list()] == [m.id for m in keeper.claim()]
        assert wheel.get(stays) is not None


def test_a_cancel_of_what_is_claimed_counts_though_the_frontier_went_back_below_it(
    wheel_dir: Path, tmp_path: Path, clock: FakeClock
) -> None:
    """A message that another wheel had is added: what is due after it is read again from disk."""
    with Wheel.create(tmp_path / "other", clock=clock) as other:
        other.enqueue(b"earlier", delay=1)
        added = list(other.list())
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        id_ = wheel.enqueue(b"x", delay=2)
        clock.advance(3)
        (message,) = keeper.claim(begun=False)
        wheel.add(added)
        assert wheel.cancel(id_)
        assert [m.payload for m in keeper.claim(1)] == [b"earlier"]
        keeper.give_back(message)
        assert not keeper.claim()
