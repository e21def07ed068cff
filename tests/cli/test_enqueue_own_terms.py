"""`enqueue --retries --timeout`: stored with the message, and kept by `run -- COMMAND` and by a scheduler."""

from __future__ import annotations

import json

import pytest

from filewheel import Scheduler
from tests.cli.support import Fw


def test_a_command_is_tried_as_often_as_its_message_says_and_the_others_as_often_as_run_says(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--retries", "0", "own")
    fw.enqueue("--in", "0", "theirs")
    fw.process("run", "--once", "--retries", "7", "--backoff", "1h..1h", "--", "false", code=3)
    assert [m["payload"] for m in fw.dead()] == ["own"]
    assert [(m["payload"], m["attempt"]) for m in fw.pending()] == [("theirs", 1)]


def test_a_command_is_ended_at_the_time_out_of_its_message(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--retries", "0", "--timeout", "100ms", "own")
    fw.process("run", "--once", "--timeout", "1h", "--", "sleep", "600", code=3)
    assert [m["headers"]["filewheel.reason"] for m in fw.dead()] == ["took longer than 100ms"]


def test_the_waits_of_a_messages_own_retry_are_kept_by_run(fw: Fw) -> None:
    own = '{"delay_s": 7200, "delay_max_s": 7200, "jitter": 0}'
    line = {"in": 0, "payload": "x", "headers": {"filewheel.retry": own}}
    fw.enqueue("--batch", stdin=json.dumps(line))
    assert "again in 2h" in fw.process("run", "--once", "--", "false", code=3).err


def test_a_header_that_makes_no_sense_leaves_the_message_to_what_run_says(fw: Fw) -> None:
    line = {"in": 0, "payload": "x", "headers": {"filewheel.retry": "{", "filewheel.timeout_s": "soon"}}
    fw.enqueue("--batch", stdin=json.dumps(line))
    fw.process("run", "--once", "--retries", "0", "--", "false", code=3)
    assert [m["payload"] for m in fw.dead()] == ["x"]


@pytest.mark.parametrize("many", ["--lines", "--batch"])
def test_lines_get_the_terms_of_the_command_line_also_when_they_have_headers_of_their_own(fw: Fw, many: str) -> None:
    line = '{"in": "1h", "payload": "x", "headers": {"a": "b"}}' if many == "--batch" else "x"
    fw.enqueue("--in", "1h", "--retries", "2", "--timeout", "5s", many, stdin=line + "\n")
    (message,) = fw.pending()
    own = {k: v for k, v in message["headers"].items() if k != "a"}
    assert own == {"filewheel.retry": '{"limit": 2}', "filewheel.timeout_s": "5.0"}


def test_a_scheduler_keeps_the_terms_of_a_call_that_the_shell_enqueued(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--retries", "0", "--topic", "email", "--args", "[]")
    scheduler = Scheduler(fw.wheel)

    @scheduler.on("email")
    def email() -> None:
        raise ValueError

    scheduler.drain()
    assert len(fw.dead()) == 1
    scheduler.stop()
