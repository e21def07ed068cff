"""Mutants of settlements and the scheduler."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, HOIST, NEVER, becomes, gives, unguarded, without

MUTANTS: list[Mutant] = [
    m("cancelled-succeeded", "A2", without(2), "nothing succeeds a message that was cancelled while it ran",
      "tests/test_keeper_settle.py::test_of_a_message_that_was_cancelled_while_it_ran_nothing_goes_on_but_what_its_transaction_enqueued"),
    m("two-frames-settled", "E3",
      becomes("self._reserve.write(records, 0)\n"
              "self._reserve.write(puts, len(puts))"),
      "an acknowledgement and what comes of it are one frame",
      "tests/test_keeper_settle.py::test_what_became_of_a_batch_and_all_that_comes_of_it_are_a_frame_of_what_ends_and_one_of_what_moves"),
    m("settled-unwritten", "A1", DROP, "a message whose outcome could not be written stays claimed",
      "tests/test_keeper_settle.py::test_on_a_full_disk_everything_stays_claimed_and_is_written_when_there_is_room"),
    m("settled-by-another", "A1", gives("list(self.later)"), "a thread that claims leaves alone what another is settling",
      "tests/test_keeper_threads.py::test_a_retry_of_what_is_cancelled_while_it_enters_its_key_says_so_though_another_thread_claims"),
    m("closed-beside-a-settle", "A1", NEVER, "a keeper closes when no thread is in the middle of a settlement",
      "tests/test_keeper_threads.py::test_a_close_waits_for_a_retry_that_another_thread_writes"),
    m("half-closed", "R1", unguarded(), "a keeper that could not write what was left has closed, and lets the next in",
      "tests/test_keeper_threads.py::test_a_keeper_that_cannot_write_what_is_left_when_it_closes_has_closed_all_the_same"),
    m("settled-twice", "A1", HOIST, "of two threads that settle a message one hears that it is not claimed",
      "tests/test_keeper_threads.py::test_what_another_thread_acknowledges_just_before_it_is_put_back_is_not_claimed_any_more"),
    m("pipe-closed-under-a-wait", "A1", without(2), "the pipe of hints is closed when no thread waits at it",
      "tests/test_keeper_threads.py::test_the_pipe_of_hints_stays_open_until_the_last_thread_has_done_waiting_at_it"),
    m("go-on-unlooked", "B", DROP, "nor does the thread that ended a call start another after a promotion",
      "tests/scheduling/test_scheduler_fenced.py::test_what_waits_for_its_turn_is_not_begun_after_a_promotion[the thread that ended the call before]"),
    m("twice-by-nobody", "U", NEVER, "a key that a call gives twice is not said to be held by a message that does not exist",
      "tests/keys/test_unique_many.py::test_a_key_that_is_twice_in_a_batch_is_held_by_the_first"),
    m("displaced-fires", "U", DROP, "whose key a job has taken does not fire any more",
      "tests/test_keeper_settle.py::test_whose_key_was_taken_does_not_fire_any_more"),
    m("displaced-too-early", "U", becomes("self._head.cancel(holder)"), "nor is it forgotten when that could not be written",
      "tests/test_keeper_settle.py::test_whose_key_was_to_be_taken_fires_when_the_frame_that_takes_it_could_not_be_written"),
    m("due-replaced", "U", becomes("return definition.has_times_of(living) and not is_astray(living, now_us)"),
      "an occurrence that is due keeps its due under other times",
      "tests/schedules/test_plain.py::test_other_times_begin_after_an_occurrence_that_is_due_already"),
    m("planted-blindly", "U", NEVER, "a schedule is replaced only if nobody has changed it since it was read",
      "tests/schedules/test_plain.py::test_what_another_administrator_did_in_between_is_not_undone"),
    m("cancel-then-check", "E3",
      [DROP,
       becomes("journal.wait_durable(ticket, self._sync if sync is None else check_sync(sync))")],
      "a cancel with a wrong argument writes nothing",
      "tests/test_checks.py::test_a_wrong_argument_is_refused_and_nothing_is_written[cancel_many-sync]"),
]  # fmt: skip
