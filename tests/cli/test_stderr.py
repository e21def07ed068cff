"""What a command of `run` writes to stderr: passed on at once, and its end kept with each failed try."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cli.stderr import Tails
from tests.cli.support import Fw, finish, on_terminal, stopped
from tests.support import eventually, open_files

SHELL = ("sh", "-c")


def run_once(fw: Fw, script: str, *options: str, code: int = 3) -> str:
    """Run a script for what is due, without another try; return stderr."""
    args = ["run", "--once", "--retries", "0", *options, "--", *SHELL, script]
    return fw.process(*args, code=code, errors="backslashreplace").err


def attempts(fw: Fw) -> list[dict[str, Any]]:
    """Return the attempts of the only dead letter."""
    (letter,) = fw.dead()
    (shown,) = fw("inspect", letter["id"]).json
    found: list[dict[str, Any]] = shown["attempts"]
    return found


def test_a_dead_letter_has_the_end_of_stderr_of_each_of_its_tries(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    script = 'echo "try $FILEWHEEL_ATTEMPT" >&2; echo out; exit 3'
    result = fw.process(
        "run", "--until-empty", "--retries", "2", "--backoff", "10ms..10ms", "--", *SHELL, script, code=3
    )
    assert [(a["attempt"], a["error"], a["details"]) for a in attempts(fw)] == [
        (n, "exit code 3", f"try {n}") for n in range(3)
    ]
    assert result.out == "out\n" * 3
    assert [line for line in result.err.splitlines() if line.startswith("try ")] == ["try 0", "try 1", "try 2"]
    (letter,) = fw.dead()
    assert letter["headers"]["filewheel.reason"] == "exit code 3, after 3 tries"


def test_inspect_shows_them_and_nothing_that_could_control_the_terminal(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    run_once(fw, r"printf 'caf\351 \033[2J\r\nsecond\tline\0\n' >&2; exit 1")
    (letter,) = fw.dead()
    (attempt,) = attempts(fw)
    assert attempt["details"] == "caf\\xe9 \x1b[2J\r\nsecond\tline\0"
    shown = on_terminal("-C", fw.wheel, "inspect", letter["id"]).out
    assert "| caf\\xe9 \\x1b[2J\\r" in shown
    assert "| second\tline\\x00" in shown
    assert "\x1b[2J" not in shown


def test_a_command_that_floods_stderr_is_passed_on_whole_and_its_end_is_kept(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    err = run_once(fw, "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2; echo >&2; echo last >&2; exit 1")
    assert err.count("x") >= 3_000_000
    (attempt,) = attempts(fw)
    assert attempt["details"].endswith("x\nlast")
    assert 4090 <= len(attempt["details"]) <= 4096


def test_a_program_that_a_command_leaves_behind_with_its_stderr_holds_nothing_up_and_is_passed_on(
    fw: Fw, tmp_path: Path
) -> None:
    fw.enqueue("--in", "0", "first")
    go = tmp_path / "go"
    script = (
        f'cat; echo begun >&2; (until [ -e "{go}" ]; do sleep 0.05; done; echo "left behind" >&2; touch "{go}.done") '
        "> /dev/null < /dev/null & exit 1"
    )
    with stopped(fw.start("run", "--retries", "0", "--", *SHELL, script)) as process:
        eventually(lambda: len(fw.dead()) == 1)
        go.touch()
        eventually((tmp_path / "go.done").exists)
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        assert any(line == "left behind\n" for line in lines)
        process.terminate()
        assert finish(process).code == 0
    assert attempts(fw)[0]["details"] == "begun"


def test_a_command_that_closes_stderr_or_writes_nothing_has_no_details(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--lines", stdin="a\nb\n")
    run_once(fw, 'if [ "$(cat)" = a ]; then exec 2>&-; fi; exit 1')
    for letter in fw.dead():
        (shown,) = fw("inspect", letter["id"]).json
        assert [a["details"] for a in shown["attempts"]] == [""]


def test_of_a_command_that_is_killed_at_its_time_out_the_end_until_then_is_kept(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    run_once(fw, "echo at the host >&2; sleep 300", "--timeout", "500ms")
    (attempt,) = attempts(fw)
    assert (attempt["error"], attempt["details"]) == ("took longer than 500ms", "at the host")


def test_commands_side_by_side_have_their_own_ends(fw: Fw) -> None:
    names = [f"n{i}" for i in range(24)]
    fw.enqueue("--in", "0", "--lines", stdin="\n".join(names))
    err = run_once(fw, 'n=$(cat); for i in 1 2 3; do echo "$n $i" >&2; done; exit 1', "--jobs", "8")
    found = {}
    for letter in fw.dead():
        (shown,) = fw("inspect", letter["id"]).json
        found[letter["payload"]] = shown["attempts"][0]["details"]
    assert found == {n: f"{n} 1\n{n} 2\n{n} 3" for n in names}
    assert sorted(line for line in err.splitlines() if line[1:2].isdigit()) == sorted(
        f"{n} {i}" for n in names for i in (1, 2, 3)
    )


def test_with_no_stderr_tail_a_command_has_our_own_stderr_and_nothing_is_stored(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    script = 'readlink /proc/self/fd/2; echo secret >&2; readlink "/proc/$PPID/fd/2"; exit 1'
    result = fw.process("run", "--once", "--retries", "0", "--no-stderr-tail", "--", *SHELL, script, code=3)
    assert "secret\n" in result.err
    theirs, ours = result.lines
    assert theirs == ours
    (attempt,) = attempts(fw)
    assert (attempt["error"], attempt["details"]) == ("exit code 1", "")


def test_a_message_with_headers_at_their_limit_is_retried_and_buried(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--header", f"mine={'x' * 16_380}", "x")
    fw.process(
        "run", "--until-empty", "--retries", "1", "--backoff", "10ms..10ms", "--", *SHELL,
        "head -c 9000 /dev/zero | tr '\\0' 'y' >&2; exit 1", code=3,
    )  # fmt: skip
    (letter,) = fw.dead()
    assert len(letter["headers"]["mine"]) == 16_380
    assert [len(a["details"]) for a in attempts(fw)] == [4096, 4096]
    # What was stored can be dumped, loaded, and enqueued again.
    dumped = fw("dump").out
    other = Fw(fw.wheel.parent / "other.wheel")
    other("init")
    other("load", "-", stdin=dumped)
    assert [m["id"] for m in other.dead()] == [letter["id"]]


def test_success_passes_everything_on_and_stores_nothing(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    err = run_once(fw, "head -c 200000 /dev/zero | tr '\\0' 'x' >&2; echo end >&2", code=0)
    assert err.count("x") == 200_000
    assert err.endswith("end\n")
    assert fw.pending() == fw.dead() == []


def test_a_stderr_that_nobody_reads_any_more_fails_no_command(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    reads, writes = os.pipe()
    process = fw.start(
        "run", "-q", "--until-empty", "--", *SHELL, "head -c 200000 /dev/zero >&2; echo done", stderr=writes
    )
    os.close(writes)
    os.close(reads)
    result = finish(process)
    assert (result.code, result.out) == (0, "done\n")


def test_a_reader_of_stderr_that_stands_still_holds_up_no_time_out(fw: Fw) -> None:
    fw.enqueue("--in", "0", "x")
    reads, writes = os.pipe()
    process = fw.start(
        "run", "-q", "--once", "--retries", "0", "--timeout", "500ms", "--", *SHELL, "cat /dev/zero >&2", stderr=writes
    )
    os.close(writes)
    with stopped(process):
        eventually(lambda: len(fw.dead()) == 1)
    os.close(reads)
    assert attempts(fw)[0]["error"] == "took longer than 500ms"


def test_pipes_are_closed_when_their_writers_have_gone_and_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    before = open_files()
    tails = Tails()
    held = []
    for n in range(40):
        tail = tails.add()
        os.write(tail.writes, b"%d\n" % n)
        if n < 38:
            os.close(tail.writes)
        else:
            held.append(tail.writes)
        assert tails.end(tail) == b"%d\n" % n
    eventually(lambda: len(tails._tails) == 2)
    tails.close()
    for fd in held:
        os.close(fd)
    assert open_files() == before
    assert sorted(capfd.readouterr().err.split()) == sorted(str(n) for n in range(40))
    assert not [t for t in threading.enumerate() if t.name == "filewheel-stderr"]


def test_a_python_program_has_its_traceback_kept(fw: Fw, tmp_path: Path) -> None:
    fw.enqueue("--in", "0", "x")
    program = tmp_path / "job.py"
    program.write_text("def job():\n    raise KeyError('gone')\njob()\n")
    fw.process("run", "--once", "--retries", "0", "--", sys.executable, str(program), code=3)
    details = attempts(fw)[0]["details"]
    assert f'File "{program}", line 2, in job' in details
    assert details.endswith("KeyError: 'gone'")


def test_a_flood_takes_no_memory(capfd: pytest.CaptureFixture[str]) -> None:
    tails = Tails()
    tail = tails.add()
    for _ in range(200):
        os.write(tail.writes, b"x" * 10_000)
        with tail.lock:
            assert len(tail.kept) <= 3 * (1 << 16)
    os.close(tail.writes)
    assert tails.end(tail) == b"x" * 4096
    assert len(tail.kept) <= 8192
    tails.close()
    assert len(capfd.readouterr().err) == 2_000_000
