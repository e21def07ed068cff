"""Mutants of what is read back: attempts, dead letters, arguments, results."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, becomes, gives, unguarded

MUTANTS: list[Mutant] = [
    m("revive-unlocked", "V1", unguarded(), "a revival holds the locks of its ids from the look to the frame",
      "tests/test_wheel_dead_letters.py::test_a_revival_waits_for_a_call_that_is_moving_one_of_them"),
    m("revived-unflushed", "E3", DROP, "a revival that returned is durable",
      "tests/test_wheel_dead_letters.py::test_when_revive_returned_it_is_durable"),
    m("revived-in-two-frames", "E3",
      becomes("self.write(drops, 0)\n"
              "ticket = self.write(puts, len(puts))"),
      "a revival is one frame",
      "tests/test_wheel_dead_letters.py::test_many_are_revived_in_one_frame_and_begin_again"),
    m("old-dead-unlocked", "V2", gives("list(old)"), "the keeper drops no dead letter whose lock another process has",
      "tests/test_wheel_dead_letters.py::test_one_that_is_being_revived_is_left_and_one_that_was_is_not_dropped"),
    m("old-dead-unlooked", "V1", gives("set(free)"), "a dead letter that was revived a moment ago is not reported as dropped",
      "tests/test_wheel_dead_letters.py::test_one_that_is_revived_between_the_look_and_the_lock_lives"),
]  # fmt: skip
