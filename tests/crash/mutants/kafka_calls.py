"""Mutants of the scheduler on Kafka."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, NEVER, becomes, gives

SCHEDULER = "tests/kafka/test_call_scheduler.py::"
KEYS = "tests/kafka/test_call_keys.py::"
WATCHED = "tests/kafka/test_call_watchdog.py::"
ONCE = "tests/kafka/test_call_exactly_once.py::"

MUTANTS: list[Mutant] = [
    m("kafka-retry-replaces", "C", becomes("return Outgoing(topics.delay, text, message.payload, headers)"),
      "the retry of a keyed call does not replace a later call of its key",
      f"{KEYS}test_the_retry_of_a_keyed_call_does_not_take_the_place_of_a_later_call"),
    m("kafka-schedule-ends", "C", gives("settlement.puts"), "the end of an occurrence produces the next one",
      f"{KEYS}test_a_schedule_has_one_occurrence_with_any_number_of_workers"),
    m("kafka-occurrence-twice", "C", gives('MessageId((due_us << LOW_BITS).to_bytes(ID_BYTES, "big"))'), "all workers give one occurrence one id",
      f"{KEYS}test_each_worker_gives_one_occurrence_one_fire_id_and_another_schedule_or_time_another"),
    m("kafka-read-anew", "C", NEVER, "a topic that is made anew under a worker or a level ends it",
      f"{WATCHED}test_a_topic_of_calls_that_is_made_anew_ends_the_worker_and_the_next_one_begins_at_its_start"),
    m("kafka-position-of-another-topic", "C", NEVER, "a position of a topic that was deleted says nothing of the next one",
      f"{WATCHED}test_a_topic_of_calls_that_is_made_anew_ends_the_worker_and_the_next_one_begins_at_its_start"),
    m("kafka-done-runs-again", "C", NEVER, "a call that ended behind a slow one does not run again",
      f"{SCHEDULER}test_calls_that_ended_behind_a_slow_one_do_not_run_again"),
    m("kafka-unwritten-grows", "C", DROP, "calls whose outcome is not produced yet count as in flight",
      f"{SCHEDULER}test_outcomes_that_are_not_produced_yet_bound_the_calls_in_hand"),
    m("kafka-twice-in-hand", "C", NEVER, "a call that was produced twice runs once while it is in hand",
      f"{SCHEDULER}test_a_record_that_was_produced_twice_is_one_call_while_it_is_in_hand"),
    m("kafka-revoked-begins", "C", NEVER, "a call of a partition that was given away does not begin",
      f"{SCHEDULER}test_a_partition_that_goes_to_another_worker_takes_along_what_has_not_begun"),
    m("kafka-revoked-is-written", "C", DROP, "what a call of a partition that was lost ended with is not produced",
      f"{SCHEDULER}test_an_outcome_that_waits_is_not_produced_after_its_partition_went_away"),
    m("kafka-revoked-uncommitted", "C", DROP, "what ended is committed before its partition is given away",
      f"{SCHEDULER}test_a_worker_that_leaves_finishes_what_runs_and_leaves_the_rest"),
    m("kafka-lost-commit-believed", "C", NEVER, "positions are committed again, because a refused commit is not heard",
      f"{SCHEDULER}test_a_commit_that_the_group_refused_unheard_is_repeated"),
    m("kafka-outbox-grows", "C", becomes("is_full = progress.is_full"), "dead letters that are not produced yet stop the reading",
      f"{SCHEDULER}test_a_flood_of_records_that_are_no_calls_is_read_no_faster_than_it_can_be_buried"),
    m("kafka-left-forgotten", "C", DROP, "of an outcome only the records that were refused are produced again",
      f"{SCHEDULER}test_what_was_produced_of_an_outcome_is_not_produced_again"),
    m("kafka-limits-accepted", "C", NEVER, "a limit that would hold for one worker only is refused",
      f"{SCHEDULER}test_what_is_not_kept_is_refused_with_the_reason_and_another_way"),
    m("kafka-transaction-at-least-once", "C", NEVER, "a transaction of a job is refused without exactly once",
      f"{ONCE}test_without_exactly_once_a_transaction_is_refused"),
    m("kafka-undecided-again", "C", becomes("self._endings.extend(unit)"),
      "a transaction without an answer is decided by the committed positions, not repeated",
      f"{ONCE}test_a_commit_whose_answer_was_lost_is_not_produced_again"),
    m("kafka-undecided-unfenced", "C", DROP, "a transaction without an answer is ended before it is decided",
      f"{ONCE}test_a_lost_commit_is_reported_when_a_new_producer_has_decided_it"),
    m("kafka-left-positions-committed", "C", DROP, "what a killed broker forgot of a transaction is never committed",
      f"{ONCE}test_what_a_broker_forgot_of_a_predecessor_is_never_committed"),
    m("kafka-generation-kept", "C", DROP, "a transaction is that of the generation in which its calls were read",
      f"{ONCE}test_a_unit_of_an_older_generation_is_refused_and_sent_again"),
    m("kafka-reopened-stale", "C", becomes("group = 1"), "a new producer joins in with the generation of now",
      f"{ONCE}test_a_lost_commit_is_reported_when_a_new_producer_has_decided_it"),
    m("kafka-stuck-for-ever", "C", becomes("thread.join()"), "a transaction that the client never ends is abandoned",
      f"{ONCE}test_a_call_of_the_client_that_never_returns_is_abandoned"),
]  # fmt: skip
