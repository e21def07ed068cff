"""Mutants of readers and of the disk."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, becomes, later, unguarded, without

MUTANTS: list[Mutant] = [
    # -- readers and disks -----------------------------------------------------------------------------------
    m("snapshot-once", "S", [unguarded(), unguarded()], "a reader starts again if a deal was committed during it",
      "play snapshot-once @127"),
    m("look-takes-it", "I1", becomes("fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)"), "of two that look at once whether a writer lives neither takes the other for it",
      "tests/test_wheel_guards.py::test_of_two_that_look_at_once_whether_a_writer_lives_neither_takes_the_other_for_it"),
    m("newcomer-late", "A2", DROP, "an overdue newcomer of a topic that was passed over is claimed in its order",
      "tests/firing/test_ready_aside.py::test_an_overdue_newcomer_of_a_topic_that_was_passed_over_is_claimed_in_its_order"),
    m("settings-unchecked", "E3", without(2), "the wheel's settings are checked",
      "tests/tools/test_repair.py::test_a_damaged_wheel_json_is_read_from_its_copy_and_repaired"),
    # -- what the sweep of failing calls saw -----------------------------------------------------------------
    m("removed-first", "K1", later(), "once the checkpoint counts, the deal is done, even if a removal fails",
      "tests/test_wheel_leftovers.py::test_what_was_cancelled_stays_gone_when_the_journal_it_came_in_cannot_be_removed"),
]  # fmt: skip
