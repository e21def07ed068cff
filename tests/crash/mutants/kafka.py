"""Mutants of the delay service on Kafka."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import NEVER, gives

MUTANTS: list[Mutant] = [
    m("kafka-low-unasked", "C", NEVER, "what lies before the marker's `low` is done, also when no step says so",
      "tests/kafka/test_marker.py::test_records_before_low_are_done_also_when_no_step_says_so"),
    m("kafka-step-forgotten", "C", gives("()"), "a marker goes on saying what the next chunk does not",
      "tests/kafka/test_marker.py::test_an_owner_that_found_a_step_and_more_overdue_records_keeps_what_the_step_says"),
    m("kafka-no-horizon", "C", NEVER, "a record does not wait beyond the horizon of its topic",
      "tests/kafka/test_headers.py::test_a_wait_beyond_the_horizon_is_a_dead_letter_or_rolls"),
]  # fmt: skip
