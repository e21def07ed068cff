"""Mutants of the delay service on Kafka."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, gives

MUTANTS: list[Mutant] = [
    m("kafka-low-unasked", "C", NEVER, "what lies before the marker's `low` is done, also when no step says so",
      "tests/kafka/test_marker.py::test_records_before_low_are_done_also_when_no_step_says_so"),
    m("kafka-step-forgotten", "C", gives("()"), "a marker goes on saying what the next chunk does not",
      "tests/kafka/test_marker.py::test_an_owner_that_found_a_step_and_more_overdue_records_keeps_what_the_step_says"),
    m("kafka-no-horizon", "C", NEVER, "a record does not wait beyond the horizon of its topic",
      "tests/kafka/test_headers.py::test_a_wait_beyond_the_horizon_is_a_dead_letter_or_rolls"),
    m("kafka-undecided-is-repeated", "C", NEVER, "a commit without an answer is decided by the marker, not repeated",
      "tests/kafka/test_fire.py::test_a_commit_without_an_answer_is_decided_by_the_marker"),
    m("kafka-through-more", "C", ALWAYS, "the marker of a unit that left out due messages does not cover them",
      "tests/kafka/test_fire.py::test_a_flood_of_overdue_records_is_fired_once_across_a_crash"),
    m("kafka-full-marker-takes-in", "C", NEVER, "nothing is taken in while the marker has no room for another step",
      "tests/kafka/test_fire.py::test_a_marker_stays_small_however_many_records_arrive_overdue"),
    m("kafka-marker-ahead", "C", NEVER, "a partition waits while its log is shorter than its marker says",
      "tests/kafka/test_fire.py::test_a_log_that_ends_before_its_marker_is_waited_for"),
    m("kafka-wheel-without-marker", "C", DROP, "a wheel that is taken over drops what the marker says is done",
      "tests/kafka/test_fire.py::test_a_commit_without_an_answer_is_decided_by_the_marker"),
    m("kafka-fires-before-the-end", "C", NEVER, "nothing fires before the wheel holds what the log held at the takeover",
      "tests/kafka/test_fire.py::test_nothing_fires_before_the_end_of_the_log_was_reached"),
    m("kafka-fencing-war", "C", NEVER, "a fenced node waits a session time-out before it fences back",
      "tests/kafka/test_fire.py::test_a_fenced_node_waits_a_session_before_it_fences_back"),
    m("kafka-marker-of-another", "C", NEVER, "a marker of a topic that was deleted calls nothing done",
      "tests/kafka/test_fire.py::test_a_marker_of_a_topic_that_was_deleted_calls_nothing_done"),
]  # fmt: skip
