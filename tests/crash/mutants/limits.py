"""Mutants of limits: terms of a single call, pools and priorities, hooks, and `work --reload`."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import NEVER, becomes, gives

MUTANTS: list[Mutant] = [
    m("own-retry-ignored", "J", gives("call.handler.terms.retry"), "a call's own retry holds in place of its handler's",
      "tests/scheduling/test_own_terms.py::test_a_call_is_retried_by_its_own_retry_and_the_others_by_their_handlers"),
    m("odd-retry-fails", "J", becomes("raise"), "a header that cannot be read leaves the handler's own retry in force",
      "tests/scheduling/test_own_terms.py::test_a_header_that_cannot_be_read_is_ignored_with_a_warning[soon]"),
    m("own-timeout-ignored", "J", NEVER, "a call's own time-out holds in place of its handler's",
      "tests/scheduling/test_own_terms.py::test_of_calls_in_threads_each_has_its_own_time_out"),
]  # fmt: skip
