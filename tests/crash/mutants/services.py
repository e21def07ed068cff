"""Mutants of the signs of life of what runs as a service, and of the health that is read from them. Their rule is H."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, gives

MUTANTS: list[Mutant] = [
    m(
        "keeper-without-beat",
        "H",
        DROP,
        "a keeper gives signs of life in the note of its lock",
        "tests/test_health.py::test_a_keeper_that_comes_around_and_has_nothing_late_is_healthy",
    ),
    m(
        "engine-turns-unseen",
        "H",
        DROP,
        "a scheduler knows when its engine last came around",
        "tests/test_health.py::test_a_scheduler_that_fires_or_stands_by_comes_around_and_one_whose_engine_hangs_does_not",
    ),
    m(
        "health-of-the-fenced",
        "H",
        NEVER,
        "a primary that missed a promotion is not healthy",
        "tests/test_health.py::test_a_primary_that_missed_a_promotion_is_fenced_before_it_knows",
    ),
    m(
        "dead-is-healthy",
        "H",
        NEVER,
        "too many dead letters are trouble",
        "tests/test_health.py::test_more_dead_letters_than_allowed_are_trouble_and_only_on_request",
    ),
    m(
        "running-is-late",
        "H",
        ALWAYS,
        "only what has not begun waits",
        "tests/test_health.py::test_a_message_that_is_worked_on_does_not_wait_and_one_that_is_only_claimed_does",
    ),
    m(
        "gone-is-healthy",
        "H",
        gives("dict()"),
        "a missing file is damage",
        "tests/test_health.py::test_a_missing_file_and_a_damaged_checkpoint_are_damage",
    ),
    m(
        "stuck-is-healthy",
        "H",
        NEVER,
        "a keeper that has not come around is stuck",
        "tests/test_health.py::test_a_keeper_whose_thread_does_not_come_around_is_stuck",
    ),
    m(
        "idle-is-healthy",
        "H",
        NEVER,
        "a keeper whose consumer asks for nothing is stuck",
        "tests/test_health.py::test_a_consumer_that_does_not_ask_for_messages_is_stuck_and_one_that_works_on_some_is_not",
    ),
    m(
        "late-is-healthy",
        "H",
        NEVER,
        "a message that waits too long is late",
        "tests/test_health.py::test_a_due_message_that_waits_too_long_is_late_and_its_id_is_named",
    ),
    m(
        "full-is-healthy",
        "H",
        NEVER,
        "a disk without room is full",
        "tests/test_health.py::test_a_disk_with_too_little_room_is_full",
    ),
    m(
        "backups-unasked",
        "H",
        gives("[]"),
        "a backup that is not in step is found",
        "tests/test_health.py::test_backups_count_only_on_request_and_must_be_followed",
    ),
    m(
        "redirected-for-good",
        "H",
        DROP,
        "a scheduler that a test redirected is as it was when the test ends",
        "tests/test_testing.py::test_an_error_in_the_block_gives_the_scheduler_back",
    ),
]
