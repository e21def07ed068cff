"""The protections of the timers in memory (filewheel/timers/). Their rule is T: once, not early, none lost."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, gives, without

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
]  # fmt: skip
