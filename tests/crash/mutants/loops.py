"""The protections of an event loop's time-outs (filewheel/timers/loop_wheel.py). Their rule is T: once, not early, none lost."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, without

_CORE = "tests/timers/test_loop_core.py::test_"
_LOOP = "tests/timers/test_loop_wheel.py::test_"

MUTANTS: list[Mutant] = [
    m("loop-wheel-rounded-down", "T", without(2), "a time-out of a loop is rounded up to a tick: none is early", f"{_CORE}beside_a_list_no_timeout_is_early_or_lost_or_comes_twice_or_out_of_order"),
    m("loop-wheel-not-armed", "T", NEVER, "a time-out before the loop's timer moves the timer", f"{_CORE}beside_a_list_no_timeout_is_early_or_lost_or_comes_twice_or_out_of_order"),
    m("loop-wheel-spins", "T", NEVER, "at the time that the wheel asked for there is something to do", f"{_CORE}at_the_time_that_the_wheel_asked_for_there_is_something_to_do"),
    m("loop-wheel-turns-to-the-end", "T", NEVER, "many time-outs that are due at once let the loop's other work run", f"{_CORE}a_turn_ends_after_its_budget_and_the_next_goes_on"),
    m("loop-wheel-starves", "T", ALWAYS, "a slow callback that starts itself for now keeps no other time-out waiting", f"{_CORE}a_slow_callback_that_starts_itself_for_now_keeps_no_other_waiting"),
    m("loop-wheel-not-armed-again", "T", NEVER, "after a turn the loop's timer is set for the rest", f"{_LOOP}calls_come_after_their_delay_with_their_arguments_and_at_most_a_tick_late"),
    m("loop-wheel-used-outside", "T", NEVER, "a start from another thread is refused", f"{_LOOP}another_thread_is_refused_and_nothing_is_started"),
    m("loop-wheel-starts-on-a-closed-loop", "T", NEVER, "a start on a closed loop is refused", f"{_LOOP}a_loop_that_is_closed_is_refused_and_its_timeouts_can_be_cancelled"),
    m("loop-scope-keeps-the-former-due", "T", DROP, "a rescheduled timeout expires at its new due only", f"{_LOOP}a_rescheduled_timeout_expires_at_its_new_due_only"),
    m("loop-scope-outlives-its-body", "T", DROP, "a body that ended is not cancelled by its timeout", f"{_LOOP}a_body_that_ends_in_time_leaves_no_timeout"),
    m("loop-scope-swallows-a-cancel", "T", NEVER, "a cancellation from outside is no TimeoutError", f"{_LOOP}a_cancel_from_outside_goes_through_even_when_the_timeout_expires_with_it"),
]  # fmt: skip
