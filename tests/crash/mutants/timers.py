"""The protections of the timers in memory (filewheel/timers/). Their rule is T: once, not early, none lost."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, catches, gives, without

_AT_RANDOM = (
    "tests/timers/test_schemes.py"
    "::test_no_scheme_is_early_or_loses_a_timer_or_expires_it_twice_and_each_keeps_its_order"
)

MUTANTS: list[Mutant] = [
    m("timer-state-changes-twice", "T", NEVER, "a timer that expired or was stopped is not stopped again", _AT_RANDOM),
    m("timer-started-in-the-past", "T", NEVER, "a timer that is due when it is started expires at the next advance", _AT_RANDOM),
    m("timer-rounded-down", "T", gives("due // self.tick"), "a due between two ticks is rounded up: no timer is early", _AT_RANDOM),
    m("timer-rounds-ignored", "T", ALWAYS, "a hashed wheel expires no timer of a later lap", _AT_RANDOM),
    m("timer-not-demoted", "T", DROP, "a slot of a higher level gives its timers to the lower ones", _AT_RANDOM),
    m("timer-slot-not-queued", "T", NEVER, "a slot of a growing wheel waits in the queue from its first timer on", _AT_RANDOM),
    m("timer-past-the-wheel", "T", NEVER, "a delay past a simple wheel is refused",
      "tests/timers/test_schemes.py::test_a_delay_past_the_simple_wheel_is_an_error_that_says_what_to_take"),
    m("timer-shells-stay", "T", NEVER, "the stopped timers of a heap are no more than the pending ones",
      "tests/timers/test_schemes.py::test_of_stopped_timers_the_heap_keeps_no_more_than_it_has_pending_ones"),
    m("timer-chain-without-end", "T", without(2), "an advance ends though each expiry starts a timer that is due",
      "tests/timers/test_schemes.py::test_what_an_expiry_starts_expires_in_the_next_advance_even_if_it_is_due_at_once"),
    m("timer-new-head-unseen", "T", DROP, "an item that becomes the head wakes a thread that waits",
      "tests/timers/test_delay_queue.py::test_who_waits_gets_an_item_that_is_put_later_and_is_due_earlier_than_the_head"),
    m("timer-no-next-leader", "T", DROP, "a leader that leaves wakes the next one",
      "tests/timers/test_delay_queue.py::test_a_leader_that_leaves_hands_over_to_a_follower"),
    m("timer-taken-early", "T", without(2), "an item leaves a delay queue when it is due, not before",
      "tests/timers/test_delay_queue.py::test_items_leave_in_the_order_of_due_times_and_none_before_its_own"),
    m("timer-forked-waits", "T", NEVER, "a timer of the parent is refused in a forked child",
      "tests/timers/test_lifetimes.py::test_in_another_process_than_its_own_a_queue_is_refused"),
    m("timer-thread-bare", "T", catches("ZeroDivisionError"), "a thread that cannot be started is an error of the tree",
      "tests/timers/test_lifetimes.py::test_where_no_thread_can_be_started_a_timer_refuses_and_holds_nothing"),
    m("timer-raise-ends", "T", catches("ZeroDivisionError"), "a function that raises ends no thread of a timer",
      "tests/timers/test_hashed_wheel_timer.py::test_a_function_that_raises_is_logged_and_harms_no_other"),
    m("timer-cancelled-stays", "T", NEVER, "a future that is cancelled leaves the heap",
      "tests/timers/test_scheduled_executor.py::test_a_cancelled_call_leaves_the_heap_and_its_function_and_waiters_are_released"),
    m("timer-calls-pile-up", "T", gives("self.due_ns + self._period_ns"), "calls that a fixed rate overran are left out",
      "tests/timers/test_scheduled_executor.py::test_a_fixed_rate_keeps_to_its_multiples_and_calls_that_one_overran_are_left_out"),
    m("timer-limit-ignored", "T", NEVER, "no more timers are pending than the limit says",
      "tests/timers/test_hashed_wheel_timer.py::test_over_the_limit_of_pending_timers_a_start_is_refused"),
    m("timer-cancelled-after-expiry", "T", NEVER, "a timer that expired is not cancelled",
      "tests/timers/test_hashed_wheel_timer.py::test_a_cancel_before_during_and_after_its_tick_wins_once"),
    m("timer-expired-after-cancel", "T", NEVER, "a timer that was cancelled is not called, though it is still in the wheel",
      "tests/timers/test_hashed_wheel_timer.py::test_a_cancel_before_during_and_after_its_tick_wins_once"),
    m("timer-call-in-call", "T", NEVER, "a call in the middle of another of its thread is refused",
      "tests/timers/test_delay_queue.py::test_a_call_in_the_middle_of_another_of_its_thread_is_refused_and_changes_nothing"),
    m("timer-waits-for-itself", "T", ALWAYS, "a call that ends its own timer does not wait for itself",
      "tests/timers/test_scheduled_executor.py::test_two_calls_that_shut_their_executor_down_do_not_wait_for_each_other"),
]  # fmt: skip
