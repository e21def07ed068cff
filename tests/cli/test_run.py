"""`run`: to stdout, to a command; failures, retries, dead letters; one keeper at a time; signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cli.child import Commands, NotStarted, environment
from filewheel import Message, MessageId, Scheduler, Wheel
from tests.cli.support import Fw, Terminal, finish, stopped
from tests.support import eventually

SHELL = ("sh", "-c")


def is_keeper(fw: Fw, process: subprocess.Popen[str]) -> bool:
    with Wheel(fw.wheel) as wheel:
        return wheel.stats().keeper_pid == process.pid


# -- to stdout ------------------------------------------------------------------------------------------------


def test_run_once_writes_what_is_due_as_json_lines_and_leaves_the_rest(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--topic", "t", "--header", "k=v", "now")
    fw.enqueue("--at", "2001-01-01T00:00Z", "-", stdin=b"\xff")
    fw.enqueue("--in", "1h", "later")
    old, new = fw.process("run", "--once").out.splitlines()
    fields = json.loads(new)
    assert {"id", "due", "due_us", "topic", "payload", "headers", "attempt", "late_ms"} <= set(fields)
    assert (fields["payload"], fields["topic"], fields["headers"], fields["attempt"]) == ("now", "t", {"k": "v"}, 0)
    assert fields["due"].endswith("Z")
    assert fields["late_ms"] >= 0
    assert json.loads(old)["payload_b64"] == "/w=="
    assert [m["payload"] for m in fw.pending()] == ["later"]
    assert fw.process("run", "--once").out == ""


def test_run_for_people_writes_a_line_for_each(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--topic", "t", "hi\x1b[2J")
    (line,) = fw.process("run", "--once", "--no-json").lines
    assert line.endswith("  t  hi\\x1b[2J")


def test_run_until_empty_waits_for_what_is_pending_and_fires_nothing_early(fw: Fw) -> None:
    fw.enqueue("--batch", stdin="\n".join(f'{{"in": {s}, "payload": "{s}"}}' for s in (0.8, 0.3, 0, 1.2)))
    fired = fw.process("run", "--until-empty").json
    assert [m["payload"] for m in fired] == ["0", "0.3", "0.8", "1.2"]
    assert all(m["late_ms"] >= 0 for m in fired)
    assert fw.pending() == []


def test_run_until_empty_of_an_empty_wheel_ends_at_once(fw: Fw) -> None:
    assert fw.process("run", "--until-empty").out == ""


def test_until_empty_sees_that_someone_cancelled_the_last_message(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "1h", "x")
    with stopped(fw.start("run", "--until-empty")) as process:
        eventually(lambda: is_keeper(fw, process))
        fw("cancel", id_)
        assert finish(process).code == 0


def test_a_message_enqueued_while_it_waits_is_fired_soon(fw: Fw) -> None:
    with stopped(fw.start("run")) as process:
        eventually(lambda: is_keeper(fw, process))
        fw.enqueue("--in", "0", "hello")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["payload"] == "hello"
        process.terminate()
        assert finish(process).code == 0
    assert fw.pending() == []


def test_a_reader_that_goes_away_ends_run_quietly_and_what_it_did_not_take_stays(fw: Fw) -> None:
    count = 5000
    fw.enqueue("--in", "0", "--lines", stdin="".join(f"{i}\n" for i in range(count)))
    process = fw.start("run")
    assert process.stdout is not None
    read = [json.loads(process.stdout.readline())["payload"] for _ in range(3)]
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err == ""
    assert read == ["0", "1", "2"]
    left = [m["payload"] for m in fw.pending()]
    # What was acknowledged had been flushed into the pipe, which holds some hundreds of lines.
    assert count - 2000 < len(left) <= count
    assert left == [str(i) for i in range(count - len(left), count)]


# -- calls of handlers, which a scheduler fires ------------------------------------------------------------------


@pytest.fixture
def app(fw: Fw) -> Iterator[Scheduler]:
    """A program's scheduler on the same wheel."""
    scheduler = Scheduler(fw.wheel)
    scheduler.on("email")(print)
    yield scheduler
    scheduler.stop()


@pytest.mark.parametrize("argv", [(), ("--", "true")])
def test_run_refuses_a_wheel_with_a_call_that_is_due_and_the_call_stays(
    fw: Fw, app: Scheduler, argv: tuple[str, ...]
) -> None:
    id_ = app.enqueue("email", ["ann"])
    result = fw("run", "--once", *argv, code=2)
    assert result.out == ""
    assert f"message {id_} is a call of a handler (email)" in result.err
    for way_out in ("`filewheel work MODULE:NAME`", f"`filewheel cancel {id_}`", "`filewheel run --raw`"):
        assert way_out in result.err
    assert [m["id"] for m in fw.pending()] == [str(id_)]
    assert app.drain() == 1


def test_run_refuses_a_wheel_with_a_schedule_that_is_far_away_and_the_schedule_goes_on(fw: Fw, app: Scheduler) -> None:
    app.schedule("nightly", "@daily", "email", ["ann"])
    fw.enqueue("--in", "0", "plain")
    error = fw.process("run", "--once", "--json", code=2).error
    assert "is an occurrence of a schedule (email)" in error["message"]
    assert len(fw.pending()) == 2
    assert [s["name"] for s in fw("inspect", "schedules").json] == ["nightly"]


def test_run_on_a_wheel_that_a_scheduler_fires_does_not_stand_by_for_it(fw: Fw, app: Scheduler) -> None:
    app.enqueue("email", ["ann"], delay=3600)
    with app:
        assert app.wait_until_keeper(120)
        fw.process("run", code=2)


@pytest.mark.parametrize("argv", [(), ("--", "sh", "-c", "cat; echo")])
def test_a_call_that_arrives_while_run_fires_ends_it_unacknowledged_after_what_was_due_before(
    fw: Fw, app: Scheduler, argv: tuple[str, ...]
) -> None:
    with stopped(fw.start("run", *argv)) as process:
        eventually(lambda: is_keeper(fw, process))
        now = datetime.now(UTC)
        app.wheel.enqueue(b"before", at=now - timedelta(seconds=2))
        id_ = app.enqueue("email", ["ann"], at=now - timedelta(seconds=1))
        result = finish(process)
    assert result.code == 2
    assert f"message {id_} is a call of a handler" in result.err
    assert "before" in result.out
    assert [m["id"] for m in fw.pending()] == [str(id_)]
    assert app.drain() == 1


@pytest.mark.parametrize("argv", [(), ("--", "true")])
def test_run_raw_fires_a_call_as_a_plain_message(fw: Fw, app: Scheduler, argv: tuple[str, ...]) -> None:
    app.enqueue("email", ["ann"])
    result = fw.process("run", "--once", "--raw", *argv)
    assert argv or [m["topic"] for m in result.json] == ["email"]
    assert fw.pending() == []


def test_a_payload_that_names_the_header_of_calls_is_fired_as_any_other(fw: Fw) -> None:
    fw.enqueue("--in", "0", "filewheel.args filewheel.schedule")
    assert len(fw.process("run", "--once").json) == 1


# -- to a command ---------------------------------------------------------------------------------------------


def test_a_command_gets_the_body_on_stdin_and_the_rest_in_its_environment(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "0", "--topic", "t 1", "--header", "To-Whom=ann b", "--header", "x.y=1", "body\n")
    script = 'cat; env | grep ^FILEWHEEL | sort; pwd >/dev/null; test "$FILEWHEEL_LATE_MS" != ""'
    lines = fw.process("run", "--once", "--", *SHELL, script, env={"FILEWHEEL_H_OLD": "x", "FILEWHEEL_ID": "y"}).lines
    assert lines[0] == "body"
    found = dict(line.split("=", 1) for line in lines[1:])
    late = float(found.pop("FILEWHEEL_LATE_MS"))
    assert 0 <= late < 60_000
    due_us = MessageId.parse(id_).due_us
    assert found == {
        "FILEWHEEL": str(fw.wheel),
        "FILEWHEEL_WHEEL": str(fw.wheel),
        "FILEWHEEL_ID": id_,
        "FILEWHEEL_DUE": found["FILEWHEEL_DUE"],
        "FILEWHEEL_DUE_US": str(due_us),
        "FILEWHEEL_TOPIC": "t 1",
        "FILEWHEEL_ATTEMPT": "0",
        "FILEWHEEL_H_TO_WHOM": "ann b",
        "FILEWHEEL_H_X_Y": "1",
    }
    assert found["FILEWHEEL_DUE"].endswith("Z")
    assert fw.pending() == []


def test_zero_bytes_are_left_out_of_the_environment() -> None:
    message = Message(MessageId.make(0, 0, 0), b"", "a\0b", {"k\0": "v\0"})
    found = environment(message, 0, "/w", {})
    assert (found[b"FILEWHEEL_TOPIC"], found[b"FILEWHEEL_H_K_"]) == (b"ab", b"v")


def test_a_command_can_enqueue_into_the_same_wheel(fw: Fw) -> None:
    fw.enqueue("--in", "0", "first")
    script = f'"{sys.executable}" -m cli enqueue --in 1h "after $(cat)"'
    fw.process("run", "--once", "--", *SHELL, script)
    assert [m["payload"] for m in fw.pending()] == ["after first"]


def test_what_follows_the_command_belongs_to_it_even_without_dashes(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    assert fw.process("run", "--once", "echo", "--once", "-q").out == "--once -q\n"


def test_a_large_body_that_the_command_does_not_read_is_no_trouble(fw: Fw) -> None:
    fw.enqueue("--in", "0", "-", stdin=b"x" * 1_000_000)
    fw.enqueue("--in", "0", "-", stdin=b"y" * 1_000_000)
    assert fw.process("run", "--once", "--", *SHELL, 'test "$(wc -c)" -eq 1000000').out == ""
    fw.enqueue("--in", "0", "-", stdin=b"z" * 1_000_000)
    fw.process("run", "--once", "--", "true")
    assert fw.pending() == []


def test_jobs_run_side_by_side(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "--lines", stdin="a\nb\nc\n")
    # Each waits until all three run: with fewer at once it would never end.
    script = f'cd "{tmp_path}" && touch "here.$$" && while [ $(ls here.* | wc -l) -lt 3 ]; do sleep 0.05; done'
    fw.process("run", "--once", "--jobs", "3", "--timeout", "20s", "--retries", "0", "--", *SHELL, script)
    assert fw.pending() == fw.dead() == []


@pytest.mark.parametrize("code", [1, 75])
def test_a_failure_is_tried_again_and_at_last_becomes_a_dead_letter(fw: Fw, tmp_path: Path, code: int) -> None:
    (id_,) = fw.enqueue("--in", "0", "--topic", "t", "x")
    script = f'echo "$FILEWHEEL_ATTEMPT" >> "{tmp_path}/tries"; exit {code}'
    args = ("run", "--until-empty", "--retries", "2", "--backoff", "50ms..100ms", "--json", "--", *SHELL, script)
    result = fw.process(*args, code=3)
    assert (tmp_path / "tries").read_text().split() == ["0", "1", "2"]
    assert result.err.count("failed: exit code") == 2
    assert result.error["error"] == "partly"
    (dead,) = fw.dead()
    assert dead["root"] == id_
    assert dead["headers"]["filewheel.reason"] == f"exit code {code}, after 3 tries"
    assert fw.pending() == []
    fw("reschedule", dead["id"], "--in", "0")
    assert fw.process("run", "--once", "--", "cat").out == "x"
    assert fw.dead() == []


def test_a_failure_with_once_stays_pending_and_is_told_by_the_exit_code(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    fw.process("run", "--once", "--backoff", "1h", "--", "false", code=3)
    (message,) = fw.pending()
    assert message["attempt"] == 1


def test_a_command_that_fails_once_succeeds_later(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    script = f'test -e "{tmp_path}/seen" || {{ touch "{tmp_path}/seen"; exit 1; }}'
    fw.process("run", "--until-empty", "--backoff", "10ms", "--", *SHELL, script)
    assert fw.pending() == fw.dead() == []


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    script = f'sleep 300 & echo $! > "{tmp_path}/pid"; wait'
    started = time.monotonic()
    fw.process("run", "--once", "--timeout", "300ms", "--retries", "0", "--", *SHELL, script, code=3)
    assert time.monotonic() - started < 20
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not _runs(pid))
    assert "took longer than 300ms" in fw.dead()[0]["headers"]["filewheel.reason"]


def test_a_command_that_ignores_sigterm_is_killed_all_the_same(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    script = "trap '' TERM; while :; do sleep 0.1; done"
    fw.process("run", "--once", "--timeout", "200ms", "--retries", "0", "--", *SHELL, script, code=3)


def test_a_command_killed_by_a_signal_has_failed(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    fw.process("run", "--once", "--retries", "0", "--", *SHELL, "kill -9 $$", code=3)
    assert fw.dead()[0]["headers"]["filewheel.reason"] == "killed by SIGKILL"


def test_a_command_that_is_not_there_is_refused_before_anything_is_claimed(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    assert "no program" in fw.process("run", "--once", "--", "no-such-command", code=2).err
    script = fw.wheel.parent / "script"
    script.write_text("true")
    assert "is not executable" in fw.process("run", "--once", "--", str(script), code=2).err
    assert fw.pending()[0]["attempt"] == 0


def test_a_command_that_cannot_be_started_has_not_begun(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent/interpreter\n")
    broken.chmod(0o755)
    with pytest.raises(NotStarted, match="broken: No such file"):
        Commands([str(broken)], "/w", None).run(Message(MessageId.make(0, 0, 0), b""), 0)


def test_many_jobs_that_fail_put_their_keyed_messages_back_beside_one_another(fw: Fw) -> None:
    with Wheel(fw.wheel, sync="never") as wheel:
        for i in range(100):
            wheel.enqueue(b"x", key=f"k{i}")
    fw.process("run", "--once", "--jobs", "8", "--backoff", "1h..1h", "--", "false", code=3)
    assert [m["attempt"] for m in fw.pending()] == [1] * 100


@pytest.mark.parametrize("args", [["--jobs", "2"], ["--timeout", "1s"], ["--backoff", "2s..1s", "true"]])
def test_options_that_make_no_sense_are_usage_errors(fw: Fw, args: list[str]) -> None:
    fw("run", "--once", *args, code=2)


# -- one keeper -----------------------------------------------------------------------------------------------


def test_a_second_run_stands_by_and_takes_over_when_the_first_is_killed(fw: Fw) -> None:
    with stopped(fw.start("run")) as first:
        eventually(lambda: is_keeper(fw, first))
        with stopped(fw.start("run", "--until-empty")) as second:
            assert second.stderr is not None
            assert f"process {first.pid} is the keeper; standing by" in second.stderr.readline()
            fw.enqueue("--in", "700ms", "x")
            first.kill()
            result = finish(second)
    assert result.code == 0
    assert f"process {second.pid} is the keeper now" in result.err
    assert json.loads(result.out)["payload"] == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_standby_ends_at_once_when_asked(fw: Fw, number: int) -> None:
    with stopped(fw.start("run")) as first:
        eventually(lambda: is_keeper(fw, first))
        with stopped(fw.start("run")) as second:
            assert second.stderr is not None
            second.stderr.readline()
            second.send_signal(number)
            assert finish(second).code == 0
        assert first.poll() is None


# -- signals --------------------------------------------------------------------------------------------------


def _until_told(path: Path) -> str:
    """Return the script of a command that has begun, and goes on when it is told."""
    return f'touch "{path}/begun"; until [ -e "{path}/go" ]; do sleep 0.05; done; cat >> "{path}/done"'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_what_is_in_hand_and_exits_with_0(fw: Fw, tmp_path: Path, number: int) -> None:
    fw.enqueue("--in", "0", "--lines", stdin="a\nb\n")
    with stopped(fw.start("run", "--", *SHELL, _until_told(tmp_path))) as process:
        eventually((tmp_path / "begun").exists)
        process.send_signal(number)
        assert process.stderr is not None
        assert any("finishing 1 message in hand" in line for line in iter(process.stderr.readline, ""))
        (tmp_path / "go").touch()
        result = finish(process)
    assert result.code == 0
    assert (tmp_path / "done").read_text() == "a"
    assert [m["payload"] for m in fw.pending()] == ["b"]


def test_a_second_signal_aborts_with_130_and_the_message_fires_again(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    script = f'echo $$ > "{tmp_path}/new" && mv "{tmp_path}/new" "{tmp_path}/pid"; sleep 300'
    with stopped(fw.start("run", "--", *SHELL, script)) as process:
        eventually((tmp_path / "pid").exists)
        process.terminate()
        assert process.stderr is not None
        assert "finishing" in process.stderr.readline()
        process.terminate()
        result = finish(process)
    assert result.code == 130
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not _runs(pid))
    assert fw.process("run", "--once", "--", "cat").out == "x"


def test_a_test_that_fails_while_a_command_runs_waits_for_nothing(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    script = f'echo $$ > "{tmp_path}/new" && mv "{tmp_path}/new" "{tmp_path}/pid"; sleep 300'
    with pytest.raises(KeyError), stopped(fw.start("run", "--", *SHELL, script)):
        eventually((tmp_path / "pid").exists)
        raise KeyError
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not _runs(pid))


def test_an_idle_run_ends_at_once_when_asked(fw: Fw) -> None:
    with stopped(fw.start("run")) as process:
        eventually(lambda: is_keeper(fw, process))
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert (result.code, result.out, result.err) == (0, "", "")


def test_ctrl_c_in_the_terminal_does_not_reach_the_command(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    terminal = Terminal("-C", fw.wheel, "run", "--", *SHELL, _until_told(tmp_path))
    with stopped(terminal.process):
        eventually((tmp_path / "begun").exists)
        os.killpg(terminal.process.pid, signal.SIGINT)  # what the terminal does: the whole foreground group
        terminal.wait_for("finishing 1 message in hand")
        (tmp_path / "go").touch()
        result = terminal.finish()
    assert result.code == 0
    assert (tmp_path / "done").read_text() == "x"


def test_a_message_cancelled_while_its_command_fails_is_not_put_back(fw: Fw, tmp_path: Path) -> None:
    (id_,) = fw.enqueue("--in", "0", "x")
    script = f'touch "{tmp_path}/begun"; while [ ! -e "{tmp_path}/go" ]; do sleep 0.05; done; exit 1'
    with stopped(fw.start("run", "--until-empty", "--", *SHELL, script)) as process:
        eventually((tmp_path / "begun").exists)
        fw("cancel", id_, code=7)
        time.sleep(0.7)  # the keeper looks at the journals at least every half second
        (tmp_path / "go").touch()
        result = finish(process)
    assert fw.pending() == fw.dead() == []
    assert result.code == 0


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
