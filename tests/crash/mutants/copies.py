"""What holds a backup to its primary's bytes: ticks, the redo log, forks, and mending."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, without

MUTANTS: list[Mutant] = [
    m("copy-look-once", "B1", ALWAYS, "a tick takes journals and checkpoint of one instant", "copy 1"),
    m(
        "copy-checkpoint-unflushed",
        "B1",
        DROP,
        "a checkpoint is durable at the primary before it is copied",
        "tests/sets/test_link.py::test_the_names_that_a_copy_counts_on_are_durable_first",
    ),
    m("copy-source-unflushed", "B1", DROP, "so is the end of each journal", "copy 1"),
    m("copy-laps-unflushed", "B1", DROP, "laps are durable before a tick names them", "copy 0"),
    m("tick-unflushed", "B1", DROP, "a tick is durable before anything of it is done", "copy 0"),
    m("tick-half-begun", "B1", DROP, "parts of a tick that was given up are written over", "copy 69"),
    m(
        "ticks-stay",
        "X7",
        DROP,
        "the log of ticks holds nothing that a deal since has left out",
        "tests/sets/test_target_purge.py::test_after_a_purge_of_the_primary_nothing_of_what_has_ended_is_in_a_file_of_its_backup",
    ),
    m(
        "copy-unnamed-stays",
        "X7",
        DROP,
        "files of a tick that was cut short go, unless a checkpoint names them later",
        "tests/sets/test_target_purge.py::test_a_file_of_a_tick_that_was_cut_short_goes_though_no_checkpoint_of_the_backup_named_it",
    ),
    m("replay-unflushed", "B1", DROP, "what was done again is durable before the log is emptied", "copy 0"),
    m("mirror-believed", "M3", DROP, "a tick also writes what a producer has written to a mirror", "copy 0"),
    m(
        "mirror-name-unflushed",
        "M3",
        DROP,
        "the name of a mirror's segment is durable before a frame counts",
        "tests/sets/test_link.py::test_the_names_that_a_copy_counts_on_are_durable_first",
    ),
    m(
        "bucket-second-writer",
        "W2",
        NEVER,
        "an object that another process has made is not taken for one's own",
        "tests/sets/test_bucket.py::test_a_wheel_that_takes_over_makes_a_mark_and_a_base_and_the_old_one_is_refused_at_once",
    ),
    m(
        "bucket-mark-pruned",
        "W2",
        DROP,
        "a mark stays: a wheel that has missed the new epoch meets it",
        "tests/sets/test_bucket.py::test_a_wheel_that_slept_through_new_bases_still_meets_the_mark",
    ),
    m(
        "bucket-epoch-unheeded",
        "W2",
        DROP,
        "a primary whose bucket has a higher epoch is fenced",
        "tests/sets/test_bucket_link.py::test_a_primary_whose_bucket_was_taken_over_fires_nothing_more",
    ),
    m(
        "doubted-believed",
        "B1",
        NEVER,
        "a file that a primary in doubt does not list is not over",
        "tests/sets/test_link_losses.py::test_without_a_checkpoint_files_that_are_missing_are_not_taken_for_finished",
    ),
    m(
        "half-adopted",
        "M7",
        NEVER,
        "of a move that only a copy has nothing is written where its message is over",
        "tests/sets/test_giving.py::test_of_a_move_whose_message_is_over_nothing_is_given_back",
    ),
    m(
        "history-unseen",
        "B1",
        ALWAYS,
        "a primary that was set back and went on is no primary of the copy",
        "tests/sets/test_link_losses.py::test_a_primary_that_was_set_back_to_an_image_and_went_on_is_not_mixed_with_its_backup",
    ),
    m(
        "tick-after-promotion",
        "B3",
        NEVER,
        "no tick is written into a wheel of a higher epoch",
        "tests/sets/test_link.py::test_a_backup_that_has_heard_of_a_promotion_takes_no_tick_of_the_old_primary",
    ),
    m(
        "fork-unnoted",
        "B3",
        DROP,
        "a promotion notes what the new primary has of each writer",
        "tests/sets/test_rejoin.py::test_what_was_not_shipped_is_kept_and_what_fired_in_the_new_primary_does_not_come_back",
    ),
    m(
        "fork-forgotten",
        "B3",
        ALWAYS,
        "what was in the new primary once is not given to it again",
        "tests/sets/test_rejoin.py::test_what_was_not_shipped_is_kept_and_what_fired_in_the_new_primary_does_not_come_back",
    ),
    m(
        "losses-forgotten",
        "B3",
        without(2),
        "what was in the new primary once and was lost there is given to it again",
        "tests/sets/test_rejoin.py::test_what_the_new_primary_had_and_lost_is_kept_from_the_old_one",
    ),
    m(
        "promote-unmended",
        "B1",
        becomes("mend = None"),
        "the last tick of a promotion does not delete what only the copy has",
        "tests/sets/test_promote_caught_up.py::test_what_a_primary_in_doubt_has_lost_stays_in_the_backup_that_is_promoted",
    ),
    m(
        "given-unknown",
        "B3",
        DROP,
        "what was absorbed once is not absorbed again",
        "tests/sets/test_absorb.py::test_what_was_cancelled_in_a_primary_that_rejoins_does_not_come_back_from_a_backup_that_had_it",
    ),
]
