"""`run` and schedules of plain messages: the next occurrence is there whatever becomes of this one, also a kill -9."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from filewheel import Every, Message, Scheduler, StoredSchedule, Wheel
from filewheel.message import SCHEDULE
from tests.cli.support import Fw, stopped
from tests.support import eventually

SH = ("--", "sh")


def schedule(fw: Fw, name: str, when: Any, body: str = "", **options: Any) -> None:
    with Wheel(fw.wheel) as wheel:
        wheel.schedule(name, when, body.encode(), **options)


def overdue(fw: Fw, name: str, body: str = "", **options: Any) -> None:
    """Start a schedule of every hour, with an occurrence that is due now."""
    schedule(fw, name, Every(3600), body, **options)
    with Wheel(fw.wheel) as wheel:
        wheel.reschedule(key=f"filewheel.every:{name}", delay=0)


def schedules(fw: Fw) -> list[StoredSchedule]:
    with Wheel(fw.wheel) as wheel:
        return [*wheel.schedules()]


def dead(fw: Fw) -> list[Message]:
    with Wheel(fw.wheel) as wheel:
        return list(wheel.list(dead=True))


def test_a_schedule_runs_its_body_as_often_as_it_says(fw: Fw, tmp_path: Path) -> None:
    schedule(fw, "n", 0.05, f"echo x >> {tmp_path}/ran", count=4)
    fw.process("run", "--until-empty", *SH)
    assert (tmp_path / "ran").read_text() == "x\n" * 4
    assert schedules(fw) == []


def test_without_a_command_an_occurrence_is_refused_before_it_is_due_and_the_schedule_goes_on(fw: Fw) -> None:
    schedule(fw, "n", 3600, "./backup.sh", topic="t")
    fw.enqueue("--in", "0", "data")
    result = fw.process("run", "--once", code=2)
    assert "an occurrence of the schedule 'n'" in result.err
    assert "`filewheel run -- sh` runs it" in result.err
    assert (result.out, len(fw.pending())) == ("", 2)
    assert "`filewheel run -- sh`" in fw("stats", "--no-json").out


def test_without_a_command_an_occurrence_that_is_started_later_ends_the_run_and_stays(fw: Fw) -> None:
    with fw.start("run") as run:
        fw.enqueue("--in", "0", "data")
        assert run.stdout is not None
        assert json.loads(run.stdout.readline())["payload"] == "data"
        overdue(fw, "n", "./backup.sh")
        assert run.wait(60) == 2
    assert [s.occurrence.payload for s in schedules(fw)] == [b"./backup.sh"]


def test_raw_each_occurrence_is_a_line_and_the_schedule_goes_on(fw: Fw) -> None:
    overdue(fw, "n", "body", topic="t")
    (line,) = fw.process("run", "--once", "--raw").json
    assert (line["payload"], line["topic"]) == ("body", "t")
    (found,) = schedules(fw)
    assert found.occurrence.attempt == 0
    assert found.occurrence.root is None
    assert found.occurrence.due_us % 3_600_000_000 == 0


def test_raw_a_batch_may_have_both_kinds(fw: Fw) -> None:
    overdue(fw, "a", "1")
    overdue(fw, "b", "2", missed="skip", grace_s=0)
    fw.enqueue("--in", "0", "3")
    assert {line["payload"] for line in fw.process("run", "--once", "--raw").json} <= {"1", "2", "3"}
    assert {s.name for s in schedules(fw)} == {"a", "b"}
    assert len(fw.pending()) == 2


def test_a_failed_occurrence_is_retried_and_the_schedule_goes_on_after_its_dead_letter(fw: Fw, tmp_path: Path) -> None:
    overdue(fw, "n", f"echo x >> {tmp_path}/ran; exit 7")
    result = fw.process("run", "--until-empty", "--retries", "2", "--backoff", "10ms", *SH, code=3)
    assert "exit code 7, after 3 tries" in result.err
    assert (tmp_path / "ran").read_text() == "x\n" * 3
    (found,) = schedules(fw)
    (letter,) = dead(fw)
    assert found.occurrence.attempt == 0
    assert found.occurrence.attempts == ()
    assert SCHEDULE not in letter.headers
    assert letter.key is None
    assert len(letter.attempts) == 3


def test_an_occurrence_is_not_retried_past_the_next_one(fw: Fw) -> None:
    overdue(fw, "n", "exit 1")
    fw.process("run", "--once", "--retries", "9", "--backoff", "2h", *SH, code=3)
    assert [letter.reason for letter in dead(fw)] == ["exit code 1"]
    assert [s.occurrence.attempt for s in schedules(fw)] == [0]


def test_an_occurrence_that_is_too_late_is_not_run(fw: Fw, tmp_path: Path) -> None:
    schedule(fw, "n", 3600, f"touch {tmp_path}/ran", missed="skip", grace_s=5)
    with Wheel(fw.wheel) as wheel:
        wheel.reschedule(key="filewheel.every:n", delay=-60)
    assert "was not run: it is" in fw.process("run", "--once", *SH).err
    assert not (tmp_path / "ran").exists()
    assert [s.occurrence.attempt for s in schedules(fw)] == [0]


def test_until_empty_does_not_wait_for_a_schedule_without_an_end(fw: Fw) -> None:
    schedule(fw, "n", 3600, "true")
    fw.enqueue("--in", "0.2", "true")
    fw.process("run", "--until-empty", *SH)
    assert [s.name for s in schedules(fw)] == ["n"]


def test_what_is_unscheduled_while_it_runs_has_no_successor(fw: Fw, tmp_path: Path) -> None:
    overdue(fw, "n", f"touch {tmp_path}/began; while ! test -e {tmp_path}/go; do sleep 0.02; done")
    with stopped(fw.start("run", "--once", *SH)) as process:
        eventually(lambda: (tmp_path / "began").exists())
        with Wheel(fw.wheel) as wheel:
            assert wheel.unschedule("n")
        (tmp_path / "go").touch()
        assert process.wait(120) == 0
    assert schedules(fw) == []


def test_a_run_that_is_killed_in_the_middle_runs_its_occurrence_again_and_the_schedule_goes_on(
    fw: Fw, tmp_path: Path
) -> None:
    """Each of three runs is killed while the job runs; the last one ends it. The other occurrences each ran once."""
    schedule(fw, "n", 0.1, f'echo "$FILEWHEEL_DUE_US" >> {tmp_path}/ran; test -e {tmp_path}/go || sleep 1000', count=3)
    for n in range(1, 4):
        with stopped(fw.start("run", *SH)) as process:
            eventually(lambda n=n: (tmp_path / "ran").exists() and len(lines(tmp_path)) == n)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        (found,) = schedules(fw)
        assert (found.left, found.occurrence.attempt) == (3, 0)
    assert len(set(lines(tmp_path))) == 1
    (tmp_path / "go").touch()
    fw.process("run", "--until-empty", *SH)
    assert len(lines(tmp_path)) == 6
    assert len(set(lines(tmp_path))) == 3
    assert schedules(fw) == []


def lines(folder: Path) -> list[str]:
    return (folder / "ran").read_text().split()


def test_a_schedule_of_calls_is_refused_and_one_that_cannot_be_read_waits_beside_the_others(
    fw: Fw, tmp_path: Path
) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.schedule("n", 3600, "email")
    assert "only a scheduler may fire it" in fw.process("run", "--once", code=2).err
    assert scheduler.unschedule("n")
    scheduler.stop()
    stored = json.dumps({"name": "m", "when": "{}", "missed": "once", "grace_us": 0, "declared": False})
    fw.enqueue("--in", "0", "--header", f"filewheel.schedule={stored}", "--key", "filewheel.every:m", "x")
    overdue(fw, "n", f"echo x >> {tmp_path}/ran")
    result = fw.process("run", "--once", "--", "sh", code=3)
    assert "the schedule 'm' cannot be read here" in result.err
    assert lines(tmp_path) == ["x"]
    found = fw("schedule", "list", "--no-json")
    assert "m: the schedule 'm' cannot be read here" in found.err
    assert " waits " in found.out
    (listed,) = [row for row in fw("schedule", "list").json if row["name"] == "m"]
    assert "cannot be read here" in listed["waits"]
    assert listed["unreadable"]
    time.sleep(0.01)
    health = fw("health", "--no-keeper", "--max-lag", "1ms", code=22)
    assert "the schedule 'm' cannot be read here" in health.err
    assert fw("schedule", "edit", "m", "--missed", "all", code=2).err.count("cannot be read here") == 1
    fw("unschedule", "m")
    assert [s.name for s in schedules(fw)] == ["n"]
