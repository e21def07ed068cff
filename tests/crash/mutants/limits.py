"""Mutants of limits: terms of a single call, pools and priorities, hooks, and `work --reload`."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, gives

MUTANTS: list[Mutant] = [
    m("own-retry-ignored", "J", gives("call.handler.terms.retry"), "a call's own retry holds in place of its handler's",
      "tests/scheduling/test_own_terms.py::test_a_call_is_retried_by_its_own_retry_and_the_others_by_their_handlers"),
    m("odd-retry-fails", "J", becomes("raise"), "a header that cannot be read leaves the handler's own retry in force",
      "tests/scheduling/test_own_terms.py::test_a_header_that_cannot_be_read_is_ignored_with_a_warning[soon]"),
    m("own-timeout-ignored", "J", NEVER, "a call's own time-out holds in place of its handler's",
      "tests/scheduling/test_own_terms.py::test_of_calls_in_threads_each_has_its_own_time_out"),
    m("hook-swallows", "J", NEVER, "a hook does not turn a call that failed into one that is done",
      "tests/scheduling/test_around.py::test_a_hook_that_swallows_the_exception_of_a_call_does_not_make_it_a_success"),
    m("async-hook-swallows", "J", NEVER, "an async hook does not turn a call that failed into one that is done",
      "tests/scheduling/test_around.py::test_an_async_hook_cannot_make_a_failed_coroutine_a_success"),
    m("hook-context-stays", "J", becomes("surrounded(call.hooks, good, made)"), "what a hook sets ends with its call",
      "tests/scheduling/test_around.py::test_what_a_hook_sets_in_a_context_variable_is_seen_by_the_call_and_ends_with_it"),
    m("hook-unreachable", "J", DROP, "a hook that no process can import is refused when it is declared",
      "tests/scheduling/test_around.py::test_a_hook_that_no_process_can_import_is_refused_in_either_order_and_changes_nothing"),
    m("glob-before-topic", "F3", NEVER, "a topic that is a key itself does not share the bound of a glob",
      "tests/test_shares.py::test_topics_that_fit_a_glob_share_its_bound_but_for_those_that_are_keys_themselves"),
    m("lower-level-first", "F3", becomes("here = True"), "what goes first is claimed before all else that is due",
      "tests/test_shares.py::test_what_goes_first_is_claimed_first_and_in_due_order_at_each_level"),
    m("lower-level-early", "F3", NEVER, "nothing else is claimed before all due messages were looked at for what goes first",
      "tests/test_shares.py::test_a_late_urgent_message_goes_before_a_backlog_that_fits_no_memory_and_nothing_is_lost[in files]"),
    m("shares-mixed", "F3", DROP, "what was passed over under other globs is sorted anew",
      "tests/test_shares.py::test_whatever_globs_claims_have_each_message_is_claimed_once_within_them_and_first_things_first[1]"),
    m("pool-overfilled", "J", NEVER, "no more calls of a pool run than it has threads",
      "tests/scheduling/test_pools.py::test_a_higher_priority_starts_at_the_next_end_whatever_backlog_was_due_earlier"),
    m("priority-starves", "J", gives("False"), "a lower priority is never starved",
      "tests/scheduling/test_pools.py::test_a_lower_priority_gets_one_start_of_ten_and_all_of_it_runs_in_due_order"),
    m("share-overfilled", "J", gives("self._in_flight"), "a backlog claims no more than the share of its pool",
      "tests/scheduling/test_pools.py::test_a_handler_that_may_run_more_at_once_than_its_share_claims_no_more_than_that"),
    m("handler-is-glob", "J", gives("rooms"), "the name of a handler is no glob for the claims of others",
      "tests/scheduling/test_pools.py::test_a_handler_whose_name_looks_like_a_glob_has_its_own_calls_only"),
    m("own-catch-up-ignored", "J", ALWAYS, "a handler's own catch-up rate holds in place of the scheduler's",
      "tests/scheduling/test_pools.py::test_a_handlers_own_catch_up_rate_bounds_its_backlog_and_no_other"),
]  # fmt: skip
