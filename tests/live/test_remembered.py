"""What is dear to make is made by one thread at a time, and not more often than its price allows."""

from __future__ import annotations

import threading

import pytest

from filewheel.errors import Damaged
from filewheel.live.remembered import SHARE, Remembered
from tests.support import FakeClock, eventually


class Making:
    """A value that counts its makings; each takes some seconds of the clock."""

    def __init__(self, clock: FakeClock, takes_s: float = 0) -> None:
        self.clock = clock
        self.takes_s = takes_s
        self.made = 0

    def __call__(self) -> int:
        self.clock.advance(self.takes_s)
        self.made += 1
        return self.made


def test_a_value_that_took_a_second_is_made_again_after_twenty() -> None:
    clock = FakeClock()
    making = Making(clock, takes_s=1)
    remembered = Remembered(making, clock, least_s=5)
    assert remembered.get().value == 1
    clock.advance(SHARE - 0.001)
    assert remembered.get().value == 1
    clock.advance(0.002)
    assert remembered.get().value == 2


def test_a_quick_value_is_made_again_after_its_least_time() -> None:
    clock = FakeClock()
    remembered = Remembered(Making(clock), clock, least_s=5)
    assert remembered.get().value == 1
    clock.advance(4.9)
    assert remembered.get().value == 1
    clock.advance(0.2)
    seen = remembered.get()
    assert seen.value == 2
    clock.advance(3)
    assert remembered.get().age_us(clock.now_us()) == 3_000_000


def test_a_value_that_was_forgotten_is_made_at_the_next_call() -> None:
    clock = FakeClock()
    remembered = Remembered(Making(clock, takes_s=10), clock, least_s=60)
    assert remembered.get().value == 1
    remembered.forget()
    assert remembered.get().value == 2


def test_while_one_thread_makes_a_value_the_others_get_the_one_before() -> None:
    clock = FakeClock()
    goes_on, began = threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> int:
        made.append(len(made))
        if len(made) == 2:
            began.set()
            assert goes_on.wait(60)
        return len(made)

    remembered = Remembered(make, clock, least_s=1)
    assert remembered.get().value == 1
    clock.advance(2)
    slow = threading.Thread(target=remembered.get)
    slow.start()
    assert began.wait(60)
    assert [remembered.get().value for _ in range(3)] == [1, 1, 1]
    goes_on.set()
    slow.join()
    assert remembered.get().value == 2
    assert len(made) == 2


def test_those_who_wait_for_the_first_value_get_it_and_make_no_other() -> None:
    clock = FakeClock()
    goes_on = threading.Event()
    made: list[int] = []

    def make() -> str:
        made.append(1)
        assert goes_on.wait(60)
        return "first"

    remembered = Remembered(make, clock)
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(remembered.get().value)) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: made)
    goes_on.set()
    for thread in threads:
        thread.join()
    assert got == ["first"] * 4
    assert len(made) == 1


def test_an_error_is_told_to_those_who_ask_soon_after_and_then_it_is_tried_again() -> None:
    clock = FakeClock()
    made: list[int] = []

    def make() -> str:
        made.append(1)
        if len(made) == 1:
            raise Damaged("broken")
        return "well"

    remembered = Remembered(make, clock, least_s=1)
    for _ in range(2):
        with pytest.raises(Damaged, match="broken"):
            remembered.get()
    assert len(made) == 1
    clock.advance(1.1)
    assert remembered.get().value == "well"
