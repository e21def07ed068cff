"""Mutants of limits: terms of a single call, pools and priorities, hooks, and `work --reload`."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, NEVER, becomes, gives

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
]  # fmt: skip
