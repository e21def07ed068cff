"""Mutants of pauses, resumes and drains."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, catches, gives, without

_LIB = "tests/test_pauses.py::test_"
_FILE = "tests/test_paused_file.py::test_"
_SET = "tests/replication/test_pauses_of_sets.py::test_"
_JOBS = "tests/scheduling/test_paused_scheduler.py::test_"

MUTANTS: list[Mutant] = [
    # -- the file --------------------------------------------------------------------------------------------
    m(
        "pauses-unbounded",
        "P",
        DROP,
        "a value that nobody writes makes the list of pauses damaged",
        _FILE + "a_value_that_nobody_writes_makes_the_file_damaged_and_no_keeper_starts[pauses-epoch--1]",
    ),
    m(
        "pause-unlocked",
        "P",
        NEVER,
        "of two changes at once neither is lost",
        _FILE + "a_stopped_process_that_holds_the_lock_is_waited_for_so_long_and_no_longer",
    ),
    m(
        "pause-in-place",
        "P",
        becomes(
            "fd = disk.open(layout.PAUSED, 'rw')\n"
            "disk.truncate(fd, 0)\ndisk.pwrite(fd, new.to_json(), 0)\ndisk.fdatasync(fd)\ndisk.close(fd)"
        ),
        "a crash leaves the old pauses or the new ones",
        _FILE + "a_crash_at_any_operation_leaves_the_old_pauses_or_the_new_ones",
    ),
    m(
        "pause-no-ballast",
        "P",
        ALWAYS,
        "on a full disk a pause finds room in the ballast",
        _FILE + "on_a_full_disk_a_pause_and_a_resume_find_room_in_the_ballast_and_leave_most_of_it[paused.json.tmp]",
    ),
    m(
        "ballast-lent-whole",
        "P",
        becomes("self._disk.truncate(fd, 0)"),
        "and leaves most of it for acknowledgements",
        _FILE + "on_a_full_disk_a_pause_and_a_resume_find_room_in_the_ballast_and_leave_most_of_it[paused.json.tmp]",
    ),
    m(
        "pauses-damaged-none",
        "P",
        catches("ZeroDivisionError"),
        "a keeper keeps to what it knew when the file is damaged",
        _FILE + "a_running_keeper_keeps_to_what_it_knew_and_says_once_that_the_file_is_damaged[flipped]",
    ),
    m(
        "repair-resumes",
        "P",
        becomes("change_pauses(directory, lambda _: Pauses(), mend=True)"),
        "a repair lets nothing fire that was paused",
        _FILE + "verify_reports_a_damaged_file_and_a_repair_pauses_the_whole_wheel[flipped]",
    ),
    # -- the keeper ------------------------------------------------------------------------------------------
    m(
        "pause-claims",
        "P",
        gives("None"),
        "of a paused topic nothing is claimed",
        _LIB + "of_a_paused_topic_nothing_is_claimed_and_all_of_it_in_its_order_after_the_resume",
    ),
    m(
        "aside-unheld",
        "P",
        NEVER,
        "what waits for room is passed over when it is paused meanwhile",
        _LIB + "an_occurrence_that_waits_for_room_of_its_topic_is_not_claimed_when_its_schedule_is_paused_meanwhile",
    ),
    m(
        "held-for-good",
        "P",
        DROP,
        "what a pause held is read again after the resume",
        _LIB + "of_a_paused_topic_nothing_is_claimed_and_all_of_it_in_its_order_after_the_resume",
    ),
    m(
        "held-is-finished",
        "P",
        DROP,
        "a second's file stays while a paused message is in it",
        _LIB + "a_file_stays_while_a_paused_message_is_in_it_and_those_without_one_go[False]",
    ),
    m(
        "lap-held-is-finished",
        "P",
        DROP,
        "a lap's file stays while a paused message is in it",
        _LIB + "a_file_stays_while_a_paused_message_is_in_it_and_those_without_one_go[True]",
    ),
    m(
        "claim-pauses-unlooked",
        "P",
        DROP,
        "a claim looks at what is paused",
        _LIB + "of_a_paused_wheel_nothing_is_claimed_and_a_keeper_that_starts_is_paused_too",
    ),
    m(
        "begin-pauses-unlooked",
        "P",
        DROP,
        "a begin looks at what is paused when the mark has changed",
        _LIB + "what_was_claimed_before_the_pause_returned_does_not_begin_and_is_offered_after_the_resume[way1]",
    ),
    m(
        "begin-paused",
        "P",
        gives("[]"),
        "what was claimed before the pause does not begin",
        _LIB + "what_was_claimed_before_the_pause_returned_does_not_begin_and_is_offered_after_the_resume[way0]",
    ),
    m(
        "may-begin-paused",
        "P",
        DROP,
        "nor does it begin by a look into memory",
        _LIB + "a_pause_that_the_keeper_knows_keeps_a_claimed_message_from_beginning_in_memory_too",
    ),
    m(
        "pause-unmarked",
        "P",
        DROP,
        "a pause changes the mark before it returns",
        _LIB + "what_was_claimed_before_the_pause_returned_does_not_begin_and_is_offered_after_the_resume[way1]",
    ),
    m(
        "paused-keeper-spins",
        "P",
        without(2),
        "a keeper of a paused wheel sleeps",
        _LIB + "a_keeper_of_a_paused_wheel_sleeps_although_messages_are_due",
    ),
    # -- drains ----------------------------------------------------------------------------------------------
    m(
        "drained-in-haste",
        "P",
        NEVER,
        "a drain waits for running calls, however long they take",
        _JOBS + "run_returns_when_the_wheel_is_drained_and_the_running_call_has_ended[False]",
    ),
    # -- sets ------------------------------------------------------------------------------------------------
    m(
        "backup-paused",
        "P",
        DROP,
        "a wheel that is fenced while it is paused refuses",
        _SET + "a_wheel_that_is_fenced_between_the_check_and_the_change_is_not_paused",
    ),
    m(
        "older-pauses-win",
        "P",
        becomes("change_pauses(there, lambda old: pauses, mend=True)"),
        "a copy is replaced by a newer one only",
        _SET + "a_copy_is_replaced_by_a_newer_one_only",
    ),
    m(
        "promotion-resumes",
        "P",
        becomes("now = read_pauses(here.disk, here.path)"),
        "a promotion takes the newest pauses of its set",
        _SET + "a_promotion_takes_the_newest_pauses_of_all_wheels_that_can_be_read",
    ),
    m(
        "joins-unpaused",
        "P",
        DROP,
        "a wheel that joins a set is paused as the set is",
        _SET + "a_wheel_that_joins_a_set_is_paused_as_the_set_is_from_the_start",
    ),
    m(
        "pauses-unshipped",
        "P",
        DROP,
        "a replicator brings the pauses to each backup",
        _SET + "a_wheel_that_could_not_be_reached_is_named_and_gets_the_pause_from_the_replicator",
    ),
    m(
        "paused-is-late",
        "P",
        without(2),
        "a paused message is not late",
        "tests/test_health.py::test_a_paused_message_is_not_late_and_a_damaged_list_of_pauses_is_damage",
    ),
    m(
        "health-of-damaged-pauses",
        "P",
        gives("(Pauses(), Check('paused', '', ''))"),
        "a damaged list of pauses is no health",
        "tests/test_health.py::test_a_paused_message_is_not_late_and_a_damaged_list_of_pauses_is_damage",
    ),
]
