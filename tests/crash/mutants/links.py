"""Mutants of the link from a primary to a backup."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, NEVER, gives

MUTANTS: list[Mutant] = [
    # -- what a link writes to a backup, and what it believes of a primary -----------------------------------
    m("roster-unmarked", "B4", DROP, "a wheel that was in a set takes nothing without its roster",
      "tests/roster/test_fence.py::test_a_wheel_without_its_roster_is_no_wheel_that_stands_alone_while_it_was_not_taken_out"),
    m("roster-mark-stays", "B4", [DROP, DROP], "a wheel that was taken out of its set has no mark of it",
      "tests/roster/test_fence.py::test_a_wheel_that_was_taken_out_of_its_set_stands_alone"),
    # -- what the model of sets sees -------------------------------------------------------------------------
    m("repeats-forgotten", "B4", NEVER, "where a message may stand twice, a drop that has met one copy of its put is kept for the other",
      "tests/test_keeper.py::test_a_drop_that_has_met_one_copy_of_its_message_in_a_deal_is_kept_for_one_that_the_next_deals"),
    m("counted-twice", "B4", NEVER, "where a message may stand twice, frames that overlap are counted by their ids",
      "tests/sets/test_giving_counts.py::test_what_a_wheel_deals_again_without_a_checkpoint_counts_once"),
    m("loose-counted-twice", "B4", NEVER, "so is a file to which the journals bring something",
      "tests/sets/test_giving_counts.py::test_a_message_in_a_journal_that_a_file_has_already_counts_once"),
    m("dealt-twice", "B4", DROP, "a deal writes a message once",
      "tests/sets/test_giving_counts.py::test_what_two_journals_bring_to_one_deal_is_written_once"),
    m("doubt-unmarked", "B4", DROP, "so is a wheel whose checkpoint cannot be read, before it deals again",
      "tests/sets/test_giving_counts.py::test_what_a_wheel_deals_again_without_a_checkpoint_counts_once"),
    m("repeats-no-drop", "B4", gives("False"), "and is written to the file that may hold the other",
      "tests/test_keeper.py::test_a_message_that_was_given_back_while_the_keeper_ran_and_fired_stays_gone"),
    m("ready-twice", "B4", DROP, "a message that arrives twice waits in memory once",
      "tests/test_keeper.py::test_a_message_that_is_added_again_while_it_waits_in_memory_fires_once"),
    m("added-twice", "B4", NEVER, "a pending message is not added again",
      "tests/test_keeper.py::test_a_message_that_was_added_twice_and_fired_stays_gone"),
    m("removed-confirmed", "B4", NEVER, "nothing is confirmed that is in a file that was deleted",
      "tests/test_wheel_disk_trouble.py::test_an_enqueue_into_a_journal_that_was_deleted_meanwhile_is_not_confirmed"),
]  # fmt: skip
