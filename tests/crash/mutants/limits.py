"""Mutants of limits: terms of a single call, pools and priorities, hooks, and `work --reload`."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import DROP, NEVER, becomes

MUTANTS: list[Mutant] = [
    m("glob-before-topic", "F3", NEVER, "a topic that is a key itself does not share the bound of a glob",
      "tests/firing/test_shares.py::test_topics_that_fit_a_glob_share_its_bound_but_for_those_that_are_keys_themselves"),
    m("lower-level-first", "F3", becomes("here = True"), "what goes first is claimed before all else that is due",
      "tests/firing/test_shares.py::test_what_goes_first_is_claimed_first_and_in_due_order_at_each_level"),
    m("lower-level-early", "F3", NEVER, "nothing else is claimed before all due messages were looked at for what goes first",
      "tests/firing/test_shares.py::test_a_late_urgent_message_goes_before_a_backlog_that_fits_no_memory_and_nothing_is_lost[in files]"),
    m("shares-mixed", "F3", DROP, "what was passed over under other globs is sorted anew",
      "tests/firing/test_shares.py::test_whatever_globs_claims_have_each_message_is_claimed_once_within_them_and_first_things_first[1]"),
]  # fmt: skip
