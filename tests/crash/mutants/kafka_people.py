"""Mutants of the producers for the delay topic, and of what people see of the service."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, NEVER, UNFILTERED, becomes

MUTANTS: list[Mutant] = [
    m("kafka-producer-no-horizon", "C", NEVER, "a producer refuses a delay beyond its horizon",
      "tests/kafka/test_producers.py::test_a_delay_beyond_the_horizon_is_refused_by_the_sender"),
    m("kafka-producer-early", "C", becomes('return [(h.DELAY_MS, b"%d" % (wait_us // 1000))]'),
      "a delay is rounded up to milliseconds",
      "tests/kafka/test_producers.py::test_a_node_reads_the_due_that_the_call_asked_for_and_never_an_earlier_one[due2-1800000000001]"),
    m("kafka-producer-silent", "C", NEVER, "a failed send that no caller looked at is raised by `flush`",
      "tests/kafka/test_producers.py::test_an_unseen_failure_is_raised_by_flush_and_a_seen_one_is_not"),
    m("kafka-producer-forked", "C", NEVER, "a producer of the parent process is refused in a forked child",
      "tests/kafka/test_producers.py::test_a_producer_that_another_process_opened_is_refused"),
    m("kafka-producer-sends-after-close", "C", NEVER, "a record that is sent during a close is refused, not forgotten",
      "tests/kafka/test_producers.py::test_a_close_answers_what_is_under_way"),
    m("kafka-note-too-long", "C", NEVER, "a note fits into what a broker keeps with an offset",
      "tests/kafka/test_status.py::test_a_note_is_short_and_understood_again"),
    m("kafka-note-of-a-lost-partition", "C", UNFILTERED, "a node leaves no note for a partition that it gave away",
      "tests/kafka/test_status.py::test_a_partition_that_was_given_away_gets_no_note_of_this_node"),
    m("kafka-client-freed-in-child", "C", DROP, "a forked child does not free the clients of its parent",
      "tests/kafka/test_producers.py::test_a_child_that_collects_clients_of_its_parent_goes_on"),
    m("kafka-own-due-replaced", "C", NEVER, "a header that asks for a delay is refused beside the arguments that do",
      "tests/kafka/test_producers.py::test_a_header_that_asks_for_a_delay_is_refused_unless_the_service_delivered_it"),
]  # fmt: skip
