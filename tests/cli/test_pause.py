"""`pause` and `resume`: what they print, how they end, and how other commands show what is paused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.failure import FENCED, LOCKED, NOT_FOUND, PARTLY, UNDONE, USAGE
from filewheel import Keeper, Scheduler, Wheel
from filewheel.sets.members import add_backup
from tests.cli.support import Fw, Terminal, finish, on_terminal, start
from tests.support import eventually


@pytest.fixture
def running(fw: Fw) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that the test has started; ended with it."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


def test_a_pause_is_one_object_and_stats_and_inspect_list_it(fw: Fw) -> None:
    ids = fw.enqueue("--in", "0", "--topic", "mail", "hi") + fw.enqueue("--in", "0", "other")
    (made,) = fw("pause", "--topic", "m*", "--why", "the server is down").json
    assert (made["what"], made["name"], made["why"]) == ("topic", "m*", "the server is down")
    (stats,) = fw("stats", "--json").json
    assert stats["paused"] == [made]
    (seen,) = fw("inspect", "--json").json
    assert (seen["stats"]["paused"], seen["overdue_paused"]) == ([made], 1)
    (message,) = fw("inspect", ids[0]).json
    assert message["paused_by"] == ["topic m*"]
    assert [m.get("paused_by") for m in fw.pending()] == [["topic m*"], None]
    assert re.search(r'^filewheel_pauses\{wheel="[^"]*"\} 1$', fw("metrics").out, re.MULTILINE)
    assert [m["payload"] for m in fw("run", "--once").json] == ["other"]
    (ended,) = fw("resume", "--topic", "m*").json
    assert ended == made | {"still_paused_by": []}
    assert [m["payload"] for m in fw("run", "--once").json] == ["hi"]


def test_for_people_each_view_says_what_is_paused_since_when_and_why(fw: Fw) -> None:
    (id_,) = fw.enqueue("--in", "0", "--topic", "mail", "hi")
    fw("pause", "--why", "up\x1b[2Jgrade")
    text = fw("--no-json", "inspect").out
    assert "paused       the wheel, since 2" in text
    assert "ago: up\\x1b[2Jgrade" in text
    assert "1 due message fires after the resume" in text
    assert "overdue" not in text
    assert "`filewheel run`" not in text
    assert "paused          the wheel" in fw("--no-json", "stats").out
    assert "due and paused  1" in fw("--no-json", "stats").out
    assert "  paused       mail" in fw("--no-json", "inspect", "list").out
    assert "paused    the wheel, since" in fw("--no-json", "inspect", id_).out


def test_a_wheel_with_more_pauses_than_fit_says_how_many_more(fw: Fw) -> None:
    with Wheel(fw.wheel) as wheel:
        for n in range(12):
            wheel.pause(topic=f"t{n}")
    assert "and 4 more; --json has them all" in fw("--no-json", "stats").out


def test_overdue_messages_beside_paused_ones_are_advised_on(fw: Fw) -> None:
    fw.enqueue("--in", "0", "--topic", "mail", "hi")
    fw.enqueue("--in", "0", "plain")
    fw("pause", "--topic", "mail")
    assert "overdue      1 message; `filewheel run` fires it" in fw("--no-json", "inspect").out
    fw.enqueue("--in", "0", "--topic", "call", "--args", "[]")
    assert "2 messages beside the paused; `filewheel work MODULE:NAME`" in fw("--no-json", "inspect").out


def test_a_resume_of_what_is_not_paused_says_what_is(fw: Fw) -> None:
    result = fw("resume", "--json", code=NOT_FOUND)
    assert result.error["message"] == "the wheel is not paused; nothing is"
    assert "nothing is paused" in fw("resume", "--all").err
    fw("pause", "--topic", "m*")
    assert fw("resume", "--topic", "mail", "--json", code=NOT_FOUND).error["hint"] == "`filewheel resume --topic 'm*'`"
    assert "but by: topic m*" in fw("resume", "--topic", "mail", code=NOT_FOUND).err
    assert "topic other is not paused" in fw("resume", "--topic", "other", code=NOT_FOUND).err
    assert "paused: topic m*" in fw("resume", code=NOT_FOUND).err


def test_what_is_resumed_and_still_held_by_another_pause_ends_with_3(fw: Fw) -> None:
    fw("pause", "--topic", "mail")
    fw("pause", "--topic", "m*")
    fw("pause")
    result = fw("resume", "--topic", "mail", code=PARTLY)
    assert result.json[0]["still_paused_by"] == ["topic m*", "the wheel"]
    assert "is still paused by: topic m*, the wheel" in result.err
    assert "still paused: topic m*" in fw("resume").err
    fw("resume", "--topic", "m*")


def test_a_schedule_is_paused_by_its_name_also_before_there_is_one(fw: Fw) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.on("report")(lambda: None)
    scheduler.schedule("nightly", "0 3 * * *", "report")
    scheduler.stop()
    assert not fw("pause", "--schedule", "nightly", "-q").err
    (row,) = fw("inspect", "schedules").json
    assert row["paused_by"] == ["schedule nightly"]
    assert "paused" in fw("--no-json", "inspect", "schedules").out
    fw("pause", "--topic", "report")
    assert "still paused by: topic report" in fw("resume", "--schedule", "nightly", code=PARTLY).err
    assert "no schedule 'nightlly' waits now" in fw("pause", "--schedule", "nightlly").err
    fw("resume", "--all")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["pause", "--topic", "a", "--schedule", "b"], "--topic or --schedule"),
        (["pause", "--topic", "a", "--drain"], "whole wheel"),
        (["pause", "--timeout", "1s"], "--drain"),
        (["pause", "--topic", "x" * 300], "255"),
        (["pause", "--schedule", ""], "name of a schedule"),
        (["pause", "--why", "x" * 600], "500"),
        (["resume", "--all", "--topic", "a"], "only one"),
        (["resume", "mail"], "unexpected"),
    ],
)
def test_a_wrong_use_is_an_error_and_nothing_is_paused(fw: Fw, words: list[str], says: str) -> None:
    assert says in fw(*words, code=USAGE).err
    assert fw("stats").json[0]["paused"] == []


def test_a_backup_is_not_paused_and_a_promoted_one_says_what_is(fw: Fw, tmp_path: Path) -> None:
    backup = Fw(tmp_path / "backup.wheel")
    add_backup(fw.wheel, backup.wheel)
    assert str(fw.wheel) in backup("pause", code=FENCED).err
    assert str(fw.wheel) in backup("resume", "--all", code=FENCED).err
    fw("replicate", "--once")
    fw("pause", "--topic", "mail")
    result = backup("promote", "--yes")
    assert result.json[0]["paused"][0]["name"] == "mail"
    assert "paused, as before: topic mail" in result.err


def test_a_dump_says_that_it_has_no_pauses(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "x")
    assert "pauses" not in fw("dump").err
    fw("pause", "--topic", "a")
    result = fw("dump")
    assert "a dump has no pauses; here are paused: topic a" in result.err
    assert len(result.lines) == 2


# -- what fires -----------------------------------------------------------------------------------------------------


def test_run_tells_of_a_pause_and_a_resume_and_a_drain_ends_it_with_0(
    fw: Fw, running: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = fw.start("run")
    running.append(process)
    with Wheel(fw.wheel) as wheel:
        assert eventually(wheel.has_keeper)
        fw("pause", "--topic", "mail", "--why", "down")
        wheel.enqueue(b"m", topic="mail")
        first = wheel.enqueue(b"o")
        assert eventually(lambda: wheel.get(first) is None)
        fw("resume", "--topic", "mail")
        assert eventually(lambda: not list(wheel.list()))
        assert fw("pause", "--drain", "--timeout", "60s").json[0]["drained"] is True
    result = finish(process)
    assert result.code == 0
    assert [m["payload"] for m in result.json] == ["o", "m"]
    lines = [line for line in result.err.splitlines() if "paused" in line or "resumed" in line]
    assert [line.partition(",")[0] for line in lines] == [
        "paused: topic mail",
        "resumed: topic mail",
        "paused: the wheel",
    ]
    assert "down; `filewheel resume --topic mail` ends it" in lines[0]


def waits_for_a_lock(pid: int) -> bool:
    """Return whether a process waits in flock(2)."""
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "->" and str(pid) in line for line in lines)


def test_a_drain_waits_for_the_command_in_hand_and_the_next_run_fires_nothing_before_the_resume(
    fw: Fw, running: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    gate, began = tmp_path / "gate", tmp_path / "began"
    script = f"echo x >> {began}; until test -e {gate}; do sleep 0.05; done"
    with Wheel(fw.wheel) as wheel:
        for _ in range(3):
            wheel.enqueue(b"x")
        process = fw.start("run", "--", "sh", "-c", script)
        running.append(process)
        assert eventually(began.exists)
        standby = fw.start("run")
        running.append(standby)
        assert eventually(lambda: waits_for_a_lock(standby.pid))
        result = fw.process("pause", "--drain", "--timeout", "0.2s", code=LOCKED)
        assert result.json[0]["drained"] is False
        assert "a process still fires what it had begun; the wheel stays paused" in result.err
        gate.touch()
        assert eventually(wheel.is_drained)
        assert finish(process).code == 0
        assert finish(standby).code == 0
        assert began.read_text() == "x\n"
        assert len(list(wheel.list())) == 2
        later = fw.start("run", "--", "true")
        running.append(later)
        assert eventually(wheel.has_keeper)
        assert eventually(wheel.is_drained)  # the note in keeper.lock comes a moment after the lock
        assert len(list(wheel.list())) == 2
        fw("resume")
        assert eventually(lambda: not list(wheel.list()))
        fw("pause", "--drain")
        assert finish(later).code == 0


def test_a_resume_while_a_drain_waits_undoes_it_and_the_keeper_fires_on(fw: Fw) -> None:
    with Wheel(fw.wheel) as wheel, Keeper(fw.wheel) as keeper:
        wheel.enqueue(b"x")

        def resume() -> None:
            assert eventually(lambda: wheel.paused().drains == 1)
            wheel.resume()

        other = threading.Thread(target=resume)
        other.start()
        result = fw("pause", "--drain", "--timeout", "20s", code=UNDONE)
        other.join()
        assert result.json[0]["drained"] is False
        assert "the wheel was resumed before what fires had ended" in result.err
        assert not keeper.is_drained
        keeper.ack(keeper.claim(wait=True))


KEEPER = """
import sys, time
from filewheel import Keeper
with Keeper(sys.argv[1]) as keeper:
    while not keeper.is_drained:
        keeper.claim()
        time.sleep(0.01)
time.sleep(float(sys.argv[2]))
"""


def test_a_drain_returns_when_the_process_of_the_keeper_has_exited(
    fw: Fw, running: list[subprocess.Popen[str]]
) -> None:
    process = start(command=[sys.executable, "-c", KEEPER, str(fw.wheel), "0.5"])
    running.append(process)
    with Wheel(fw.wheel) as wheel:
        assert eventually(lambda: wheel.running().keeper_pid == process.pid)
        result = fw("pause", "--drain")
        assert process.poll() == 0
        assert "has not exited" not in result.err
        finish(process)


def test_a_drain_does_not_wait_for_a_program_that_goes_on_without_its_keeper(
    fw: Fw, running: list[subprocess.Popen[str]]
) -> None:
    process = start(command=[sys.executable, "-c", KEEPER, str(fw.wheel), "600"])
    running.append(process)
    with Wheel(fw.wheel) as wheel:
        assert eventually(lambda: wheel.running().keeper_pid == process.pid)
        result = fw("pause", "--drain")
        assert result.json[0]["drained"] is True
        assert f"process {process.pid} fires nothing more, and has not exited" in result.err


def test_run_until_empty_waits_for_what_is_paused(fw: Fw, running: list[subprocess.Popen[str]]) -> None:
    fw.enqueue("--in", "0", "--topic", "mail", "post")
    fw.enqueue("--in", "0", "other")
    fw("pause", "--topic", "mail")
    process = fw.start("run", "--until-empty")
    running.append(process)
    with Wheel(fw.wheel) as wheel:
        assert eventually(lambda: len(list(wheel.list())) == 1)
        assert process.poll() is None
        wheel.resume(topic="mail")
    result = finish(process)
    assert (result.code, [m["payload"] for m in result.json]) == (0, ["other", "post"])


APP = """
from filewheel import Scheduler

scheduler = Scheduler("jobs.wheel")
scheduler.on("job")(lambda: None)
scheduler.on("other")(lambda: None)
"""


def test_work_logs_a_pause_and_a_resume_ends_with_a_drain_and_once_counts_what_is_paused(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    scheduler = Scheduler(tmp_path / "jobs.wheel")
    scheduler.enqueue("job")
    scheduler.enqueue("other")
    wheel = scheduler.wheel
    wheel.pause(topic="job", why="broken")
    once = finish(start("work", "app:scheduler", "--once", "--json", cwd=tmp_path))
    assert (once.code, once.json[0]["settled"], once.json[0]["paused"], once.json[0]["deferred"]) == (0, 1, 1, 0)
    assert "1 due message paused by: topic job" in once.err
    process = start("work", "app:scheduler", cwd=tmp_path)
    assert eventually(wheel.has_keeper)
    for act in (wheel.resume, wheel.pause, wheel.resume):
        act(topic="job")
        scheduler.enqueue("other")  # by its call the process has seen the change
        assert eventually(lambda: all(m.topic == "job" for m in wheel.list()))
    assert eventually(lambda: not list(wheel.list()))
    wheel.pause(drain=True)
    result = finish(process)
    assert result.code == 0
    for text in ("paused: topic job", "resumed: topic job", "the wheel was drained: this process ends"):
        assert text in result.err
    wheel.resume()
    scheduler.stop()


def test_on_a_terminal_a_pause_is_a_line(fw: Fw) -> None:
    result = on_terminal("--color", "never", "-C", fw.wheel, "pause", "--topic", "mail")
    assert result.code == 0
    assert "paused       topic mail, since" in result.out
    assert "`filewheel resume --topic mail` ends it" in result.out
    fw("resume", "--all")


def test_on_a_terminal_a_pause_of_everything_is_asked_about(fw: Fw) -> None:
    for answer, code, count in (("n", 1, 0), ("y", 0, 1)):
        terminal = Terminal("-C", fw.wheel, "pause")
        terminal.wait_for("Pause all of")
        terminal.type(f"{answer}\n")
        assert terminal.finish().code == code
        assert len(fw("pause", "list").json) == count
    fw("resume", "--all")


def test_the_list_of_pauses_is_what_the_wheel_says(fw: Fw) -> None:
    assert "nothing is paused" in fw("pause", "list", "--no-json").err
    fw("pause", "--topic", "mail*", "--why", "no route")
    fw("pause", "--schedule", "nightly")
    assert [(p["what"], p["name"], p["why"]) for p in fw("pause", "list").json] == [
        ("topic", "mail*", "no route"),
        ("schedule", "nightly", ""),
    ]
    assert "topic mail*, since" in fw("pause", "list", "--no-json").out
    fw("pause", "list", "--drain", code=2)
    fw("resume", "--all")


def test_a_pause_in_a_child_of_a_fork_is_refused_and_the_parent_goes_on(wheel_dir: Path) -> None:
    from filewheel import Forked

    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper:
        wheel.pause(topic="a")
        child = os.fork()
        if not child:
            code = 1
            try:
                wheel.pause(topic="b")
            except Forked:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert str(wheel.paused()) == "topic a"
        assert not keeper.claim()
        assert json.loads((wheel_dir / "paused.json").read_text())["version"] == 1
