"""The protections of the live views (filewheel/live/). Their rule is W: who may, how much, and only what is so."""

from __future__ import annotations

from tests.crash.mutants.entry import Mutant, m
from tests.crash.operations import ALWAYS, DROP, NEVER

_ACCESS = "tests/live/test_access.py::test_"
_WEB = "tests/live/test_web.py::test_"
_PAGES = "tests/live/test_pages.py::test_"
_REMEMBERED = "tests/live/test_remembered.py::test_"

MUTANTS: list[Mutant] = [
    m("web-outside-open", "W", NEVER, "a page that other machines reach needs a token", f"{_ACCESS}an_address_that_others_reach_needs_a_token_and_then_to_read_too"),
    m("web-any-token", "W", ALWAYS, "a wrong token is none", f"{_ACCESS}a_wrong_token_is_none"),
    m("web-acts-freely", "W", NEVER, "a page without a token is read-only", f"{_ACCESS}without_a_token_everybody_here_reads_and_nobody_acts"),
    m("web-act-unchecked", "W", NEVER, "to act needs the token", f"{_WEB}an_act_needs_the_token_is_proposed_first_and_done_when_confirmed"),
    m("web-read-unchecked", "W", NEVER, "where other machines reach the page, to read needs the token", f"{_WEB}a_server_that_everybody_reaches_answers_only_with_the_token"),
    m("web-any-host", "W", NEVER, "a foreign name that was made to point here is refused", f"{_ACCESS}a_foreign_name_that_points_here_is_refused_though_the_token_is_right"),
    m("web-any-origin", "W", NEVER, "a page of another site can neither read nor act", f"{_WEB}a_request_from_another_site_changes_nothing_though_it_has_the_token"),
    m("web-unconfirmed", "W", NEVER, "an act is only proposed until it is confirmed", f"{_WEB}an_act_needs_the_token_is_proposed_first_and_done_when_confirmed"),
    m("web-body-unbounded", "W", NEVER, "the body of an act is bounded", f"{_WEB}a_body_over_the_limit_is_refused_and_changes_nothing"),
    m("web-reads-unbounded", "W", NEVER, "too many requests at once are sent away", f"{_WEB}too_many_requests_at_once_are_told_to_come_back"),
    m("web-streams-unbounded", "W", NEVER, "there are so many streams and no more", f"{_WEB}one_stream_too_many_is_refused_until_another_is_left"),
    m("web-streams-stay", "W", DROP, "the streams end with the server", f"{_WEB}the_server_ends_at_once_with_streams_open_and_leaves_nothing"),
    m("web-policy-unsent", "W", DROP, "each answer forbids what is foreign", f"{_WEB}every_answer_forbids_what_is_foreign"),
    m("page-unbounded", "W", NEVER, "a page has so many messages and no more", f"{_PAGES}a_wrong_query_is_refused"),
    m("page-heavy", "W", NEVER, "a page of large messages ends early", f"{_PAGES}a_page_of_large_messages_is_short_and_the_next_goes_on"),
    m("scan-unbounded", "W", NEVER, "a search that finds nothing stops in time", f"{_PAGES}a_search_that_finds_nothing_stops_in_time_and_goes_on_from_there"),
    m("turning-unbounded", "W", NEVER, "a second with too many messages is not counted for ever", "tests/live/test_turning.py::test_a_second_with_too_many_messages_is_cut_and_says_so"),
    m("paused-overdue", "W", NEVER, "what is paused is not overdue, however long it is due", "tests/live/test_turning.py::test_what_is_paused_is_not_overdue_and_hides_nothing_that_is"),
    m("overdue-unbounded", "W", NEVER, "a long pause with very many due messages is not counted for ever", "tests/live/test_turning.py::test_so_many_paused_messages_are_counted_and_no_more"),
    m("running-overdue-on-disk", "W", NEVER, "what runs is not late in the metrics, however long it runs", "tests/test_cli_schedule_names.py::test_a_message_that_waits_is_late_beside_one_that_runs"),
    m("running-overdue", "W", NEVER, "what runs is not overdue, however long it runs", "tests/live/test_turning.py::test_what_has_begun_is_neither_overdue_nor_next"),
    m("act-unbounded", "W", NEVER, "an act is for so many messages and no more", "tests/live/test_acts.py::test_a_wrong_act_is_refused"),
    m("payload-unbounded", "W", NEVER, "a long payload is shown in part", f"{_WEB}a_long_payload_is_shown_in_part"),
    m("deep-arguments", "W", ALWAYS, "arguments that are nested too deeply are shown as a payload", f"{_WEB}any_payload_is_json_that_a_browser_reads"),
    m("history-unbounded", "W", NEVER, "so many ends of the history are shown and no more", f"{_WEB}what_runs_and_how_it_ended_is_shown"),
    m("web-health-told", "W", NEVER, "without the token health is a verdict, and holds nothing of the wheel", f"{_WEB}health_without_the_token_is_only_the_verdict"),
    m("counted-beside", "W", ALWAYS, "one thread counts at a time", f"{_REMEMBERED}while_one_thread_makes_a_value_the_others_get_the_one_before"),
    m("counted-each-time", "W", NEVER, "what is dear to count is not counted for each viewer", f"{_REMEMBERED}a_value_that_took_a_second_is_made_again_after_twenty"),
]  # fmt: skip
