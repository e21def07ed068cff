"""Mutants of what is read back: attempts, dead letters, arguments, results."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER, becomes, gives, unguarded

MUTANTS: list[Mutant] = [
    m("own-headers-count", "J", NEVER, "filewheel's own headers take no room from the user's",
      "tests/test_attempts.py::test_with_headers_of_the_user_at_both_limits_an_attempt_is_kept_and_the_message_can_still_be_stored"),
    m("attempts-over-the-limit", "J", ALWAYS, "attempts are stored only where filewheel's headers have room",
      "tests/test_attempts.py::test_without_room_among_filewheels_own_headers_there_are_no_attempts_rather_than_an_error"),
    m("details-unbounded", "J", ALWAYS, "the details of the oldest attempts go first",
      "tests/test_attempts.py::test_the_details_of_the_newest_attempt_are_kept_whole_and_the_oldest_go_first"),
    m("traced-anyway", "J", ALWAYS, "without tracebacks none is stored",
      "tests/scheduling/test_tracebacks.py::test_without_tracebacks_only_the_error_is_stored"),
    m("revive-unlocked", "V1", unguarded(), "a revival holds the locks of its ids from the look to the frame",
      "tests/test_dead.py::test_a_revival_waits_for_a_call_that_is_moving_one_of_them"),
    m("revived-unflushed", "E3", DROP, "a revival that returned is durable",
      "tests/test_dead.py::test_when_revive_returned_it_is_durable"),
    m("revived-in-two-frames", "E3",
      becomes("self.write(drops, 0)\n"
              "ticket = self.write(puts, len(puts))"),
      "a revival is one frame",
      "tests/test_dead.py::test_many_are_revived_in_one_frame_and_begin_again"),
    m("dead-dropped-young", "J", gives("id_floor(DEAD_US + now_us)"), "only dead letters that are old are dropped for their age",
      "tests/test_dead.py::test_dead_letters_that_are_old_are_dropped_and_the_others_stay"),
    m("dead-by-a-jump", "J", gives("store.clock.now_us()"), "a clock that is put forward makes no dead letter old",
      "tests/test_dead.py::test_a_clock_that_is_put_forward_makes_none_old"),
    m("old-dead-unlocked", "V2", gives("list(old)"), "the keeper drops no dead letter whose lock another process has",
      "tests/test_dead.py::test_one_that_is_being_revived_is_left_and_one_that_was_is_not_dropped"),
    m("old-dead-unlooked", "V1", gives("set(free)"), "a dead letter that was revived a moment ago is not reported as dropped",
      "tests/test_dead.py::test_one_that_is_revived_between_the_look_and_the_lock_lives"),
    m("odd-key-stored", "J", NEVER, "a dict whose key could not be read again is refused when it is stored",
      "tests/test_values.py::test_what_cannot_come_back_is_refused_when_it_is_stored"),
    m("deep-value-stored", "J", NEVER, "a value that is nested too deeply is refused when it is stored",
      "tests/test_values.py::test_a_value_that_is_nested_too_deeply_or_holds_itself_is_refused"),
    m("tag-forged", "J", NEVER, "a map of the user does not look like a tag",
      "tests/test_values.py::test_the_bytes_are_those_of_the_page"),
]  # fmt: skip
