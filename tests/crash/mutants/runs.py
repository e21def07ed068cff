"""Mutants of what a keeper publishes of its work."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, catches, gives

_RUNS = "tests/test_runs.py::test_"
_KILL = "tests/scheduling/test_kill.py::test_"
_HISTORY = "tests/test_history.py::test_"

MUTANTS: list[Mutant] = [
    m("dead-keeper-runs", "R", NEVER, "of a keeper that has ended nothing runs",
      _RUNS + "of_a_keeper_that_has_ended_nothing_runs"),
    m("stale-list-counts", "R", DROP, "the list of an earlier keeper says nothing",
      _RUNS + "of_a_keeper_that_has_ended_nothing_runs"),
    m("begin-time-forgotten", "R", DROP, "a message that began long ago keeps its begin time",
      _RUNS + "the_begin_of_a_message_is_known_however_much_began_since"),
    m("observer-ends-keeper", "R", catches("KeyboardInterrupt"), "a defect in what is published does not end the keeper",
      _RUNS + "a_defect_in_what_is_published_does_not_end_the_keeper"),
    m("ends-pile-up", "R", NEVER, "the ends between two looks take bounded memory",
      _HISTORY + "of_many_ends_between_two_looks_only_the_last_are_kept_in_memory"),
    m("ends-hold-payloads", "R", NEVER, "the ends hold no large payloads",
      _HISTORY + "the_payloads_of_large_messages_are_not_kept"),
    m("history-fills-the-disk", "R", NEVER, "the last room of a disk is left for acknowledgements",
      _HISTORY + "on_a_disk_that_is_nearly_full_the_room_is_left_for_acknowledgements"),
    m("torn-line-continued", "R", gives("False"), "a line behind a torn one can be read",
      _HISTORY + "the_next_keeper_goes_on_behind_a_torn_line"),
    m("history-grows", "R", NEVER, "at most twice as many ends are kept as asked",
      _HISTORY + "at_least_as_many_ends_are_kept_as_asked_and_at_most_twice_as_many"),
    m("kill-of-another-life", "R", gives("True"), "a request to an earlier keeper ends nothing in the life of the next",
      _RUNS + "a_request_to_an_earlier_keeper_kills_nothing_in_the_life_of_the_next"),
    m("kill-answered-early", "R", ALWAYS, "a kill is answered once the outcome is written",
      _RUNS + "a_kill_is_answered_once_the_outcome_is_written"),
    m("killed-cancel-unsaid", "R", gives("False"), "a kill of a cancelled message says that it is dropped",
      _RUNS + "a_kill_of_a_message_that_was_cancelled_while_it_ran_says_that_it_is_dropped[retry-cancelled]"),
    m("ended-runs", "R", NEVER, "a message that has ended does not count as running",
      _RUNS + "a_message_that_has_ended_is_gone_once_the_list_has_been_written_again[acked]"),
    m("kill-process-ignored", "R", NEVER, "a kill ends the process of its call",
      _KILL + "a_killed_call_ends_at_once_and_its_message_has_the_outcome_that_was_asked_for[process-cancel-killed]"),
    m("batch-killed-whole", "R", gives("call.kill.then"), "of a batch only the killed message has the kill's outcome",
      _KILL + "of_a_batch_one_message_has_the_outcome_that_was_asked_for_and_the_others_are_retried"),
]  # fmt: skip
