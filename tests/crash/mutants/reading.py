"""Mutants of what is read back: attempts, dead letters, arguments, results."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, NEVER

MUTANTS: list[Mutant] = [
    m("own-headers-count", "J", NEVER, "filewheel's own headers take no room from the user's",
      "tests/test_attempts.py::test_with_headers_of_the_user_at_both_limits_an_attempt_is_kept_and_the_message_can_still_be_stored"),
    m("attempts-over-the-limit", "J", ALWAYS, "attempts are stored only where filewheel's headers have room",
      "tests/test_attempts.py::test_without_room_among_filewheels_own_headers_there_are_no_attempts_rather_than_an_error"),
    m("details-unbounded", "J", ALWAYS, "the details of the oldest attempts go first",
      "tests/test_attempts.py::test_the_details_of_the_newest_attempt_are_kept_whole_and_the_oldest_go_first"),
    m("traced-anyway", "J", ALWAYS, "without tracebacks none is stored",
      "tests/scheduling/test_tracebacks.py::test_without_tracebacks_only_the_error_is_stored"),
]  # fmt: skip
