"""Mutants of the link from a primary to a backup."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, gives, without

MUTANTS: list[Mutant] = [
    # -- what a link writes to a backup, and what it believes of a primary -----------------------------------
    m("drops-at-once", "D1",
      becomes("if True:\n"
              "    if frame.puts or frame.drops:\n"
              "        yield frame\n"
              "    continue"),
      "a frame with drops waits for one more pass over the primary",
      "tests/replication/test_follower.py::test_whatever_is_written_while_it_reads_everything_comes_once_and_no_drop_before_its_put"),
    m("held-unordered", "D1", ALWAYS, "a held drop is written after the frames that put its message",
      "tests/replication/test_follower.py::test_a_message_that_was_moved_from_writer_to_writer_within_a_pass_comes_in_the_order_of_its_moves"),
    m("held-counts-as-given", "D1", becomes("for held in ():"), "the place in a primary's journals leaves out what is held",
      "tests/replication/test_follower.py::test_from_the_positions_at_any_point_nothing_is_missing_and_nothing_that_was_dropped_comes_back"),
    m("graft-finished", "X3", DROP, "of what was copied nothing counts as finished before it was loaded",
      "tests/replication/test_lap_copy.py::test_what_is_due_is_copied_too_and_is_not_taken_for_finished"),
    m("graft-keyless", "U2", DROP, "keys of messages that are copied are entered before the messages count",
      "tests/replication/test_lap_copy.py::test_keys_of_messages_that_are_copied_are_known_in_the_backup"),
    m("graft-forms", "L1", ALWAYS, "a lap that is seconds here and one file there is not copied",
      "tests/replication/test_lap_copy.py::test_a_lap_that_is_one_file_here_and_seconds_there_is_compared"),
    m("roster-unmarked", "B4", DROP, "a wheel that was in a set takes nothing without its roster",
      "tests/roster/test_fence.py::test_a_wheel_without_its_roster_is_no_wheel_that_stands_alone_while_it_was_not_taken_out"),
    m("roster-mark-stays", "B4", [DROP, DROP], "a wheel that was taken out of its set has no mark of it",
      "tests/roster/test_fence.py::test_a_wheel_that_was_taken_out_of_its_set_stands_alone"),
    m("bygone-opened", "L1", without(2), "a file that was opened into seconds is looked into by its messages",
      "tests/replication/test_extra_files.py::test_a_file_that_was_opened_into_seconds_since_it_was_seen_is_looked_into"),
    m("bygone-undealt", "D4", [DROP, without(2)], "a removed file takes along its part of the backup's journals, or it would come back without its drop",
      "tests/replication/test_extra_files.py::test_a_second_copy_in_the_backup_s_journal_does_not_come_back_when_the_drop_goes_with_the_file"),
    m("graft-opened", "L1", NEVER, "nor one that is opened while it is copied",
      "tests/replication/test_lap_copy.py::test_a_lap_that_is_opened_into_seconds_after_it_was_planned_is_not_copied_beside_a_file_of_it"),
    m("keeper-keeps-none", "B1", DROP, "a keeper that runs when a backup is added keeps segments for it",
      "tests/replication/test_link.py::test_segments_that_are_covered_by_a_keeper_that_ran_before_there_was_a_backup_are_kept_for_it"),
    # -- what the model of sets sees -------------------------------------------------------------------------
    m("repeats-forgotten", "B4", NEVER, "in a set a drop that has met one copy of its put is kept for the other",
      "saga 12 @420"),
    m("counted-twice", "B4", NEVER, "where a message may stand twice, frames that overlap are counted by their ids",
      "tests/replication/test_counts.py::test_what_a_wheel_deals_again_without_a_checkpoint_counts_once"),
    m("loose-counted-twice", "B4", NEVER, "so is a file to which the journals bring something",
      "tests/replication/test_counts.py::test_a_primary_that_was_given_back_what_it_could_not_read_counts_each_message_once"),
    m("dealt-twice", "B4", DROP, "a deal writes a message once",
      "tests/replication/test_counts.py::test_what_two_journals_bring_to_one_deal_is_written_once"),
    m("given-back-unmarked", "B4", DROP, "a primary that is given something back is marked before",
      "tests/replication/test_counts.py::test_a_primary_that_was_given_back_what_it_could_not_read_counts_each_message_once"),
    m("doubt-unmarked", "B4", DROP, "so is a wheel whose checkpoint cannot be read, before it deals again",
      "tests/replication/test_counts.py::test_what_a_wheel_deals_again_without_a_checkpoint_counts_once"),
    m("repeats-no-drop", "B4", gives("False"), "and is written to the file that may hold the other",
      "tests/test_keeper.py::test_in_a_set_a_message_that_lies_in_two_journals_and_fired_stays_gone"),
    m("ready-twice", "B4", DROP, "a message that arrives twice waits in memory once",
      "tests/test_keeper.py::test_a_message_that_is_added_again_while_it_waits_in_memory_fires_once"),
    m("added-twice", "B4", NEVER, "a pending message is not added again",
      "tests/test_keeper.py::test_a_message_that_was_added_twice_and_fired_stays_gone"),
    m("fenced-suspects", "B4",
      becomes("if False:\n"
              "    pass\n"
              "else:\n"
              "    self._extras.add(ids)"),
      "for a primary that was fenced nothing is dropped",
      "tests/replication/test_link_losses.py::test_of_what_only_the_backup_of_a_fenced_primary_has_nothing_is_dropped_and_nobody_waits_for_it"),
    m("undurable-believed", "B4", without(3), "nor for one that cannot make anything durable",
      "tests/replication/test_link_losses.py::test_for_a_primary_that_cannot_flush_nothing_is_dropped_until_it_can"),
    m("removed-confirmed", "B4", NEVER, "nothing is confirmed that is in a file that was deleted",
      "tests/test_wheel_disk_trouble.py::test_an_enqueue_into_a_journal_that_was_deleted_meanwhile_is_not_confirmed"),
    m("current-untold", "B4", DROP, "a backup learns its new state at once",
      "tests/replication/test_link.py::test_a_backup_is_told_that_it_is_current_when_its_primary_is"),
    m("not-absorbed", "B4", NEVER, "the new primary gets the messages that another backup had before",
      "tests/replication/test_absorb.py::test_what_a_backup_had_before_the_one_that_was_promoted_goes_to_it"),
    m("drops-not-carried", "B4", DROP, "a promoted wheel gets the old primary's drops that a lagging backup still lacks",
      "tests/replication/test_absorb.py::test_what_was_cancelled_before_the_promoted_wheel_had_it_does_not_come_back_from_a_backup_that_had"),
    m("move-lost", "B4",
      becomes("if not ids or not (found := dict[bytes, tuple[bytes, bytes]]()):"),
      "a move that the primary lost is made there once more",
      "tests/replication/test_link_losses.py::test_a_move_that_the_primary_lost_is_made_there_once_more_and_the_backup_has_the_message"),
    m("move-of-nothing", "B4", without(2), "but only where the backup cannot have the primary's copy",
      "tests/replication/test_link_losses.py::test_what_the_backup_alone_had_moved_goes_when_it_can_have_the_primary_s_copy"),
    m("rejoin-untold", "B4", DROP, "so is a new primary that the old one rejoins",
      "tests/replication/test_absorb.py::test_what_was_cancelled_in_a_primary_that_rejoins_does_not_come_back_from_a_backup_that_had_it"),
]  # fmt: skip
