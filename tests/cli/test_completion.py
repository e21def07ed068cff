"""Completion: what a shell offers for a word, driven through the function that bash calls."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli.input import complete
from cli.main import cli
from cli.show.output import Output
from filewheel import Scheduler
from tests.cli.support import Fw, environment, invoke
from tests.support import REPO


@pytest.fixture
def fw(wheel_dir: Path) -> Fw:
    made = Fw(wheel_dir)
    made.enqueue("--in", "1h", "--topic", "user:7", "--key", "trial:ann", "x")
    made.enqueue("--in", "2h", "--topic", "mail.out", "y")
    return made


DRIVE = """
source "$1"; shift
COMP_WORDS=(filewheel "$@"); COMP_CWORD=$#; COMPREPLY=()
_filewheel_completion filewheel
printf '%s\\n' "${COMPREPLY[@]}"
"""


def bash(fw: Fw, tmp_path: Path, *words: str, **env: str) -> list[str]:
    """Return what bash offers for the last word."""
    binaries = tmp_path / "bin"
    binaries.mkdir(exist_ok=True)
    command = binaries / "filewheel"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n')
    command.chmod(0o755)
    script = tmp_path / "filewheel.bash"
    script.write_text(invoke("completion", "bash").out)
    path = {"PATH": f"{binaries}:{os.environ['PATH']}", "FILEWHEEL": str(fw.wheel), **env}
    done = subprocess.run(
        ["bash", "-c", DRIVE, "bash", str(script), *words],
        capture_output=True, text=True, check=True, cwd=REPO, env=environment(**path),
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_verbs_topics_keys_ids_and_zones(fw: Fw, tmp_path: Path) -> None:
    ids = [message["id"] for message in fw.pending()]
    assert bash(fw, tmp_path, "resch") == ["reschedule"]
    assert bash(fw, tmp_path, "inspect", "list", "--topic", "") == ["user:7", "mail.out"]
    assert bash(fw, tmp_path, "cancel", ids[0][:20].lower()) == ids[:1]
    assert bash(fw, tmp_path, "inspect", ids[1][:10]) == [id_ for id_ in ids if id_.startswith(ids[1][:10])]
    assert bash(fw, tmp_path, "when", "x", "--tz", "europe/berl") == ["Europe/Berlin"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_offers_the_rest_of_a_word_that_it_has_split_at_a_colon_or_an_equals_sign(fw: Fw, tmp_path: Path) -> None:
    assert bash(fw, tmp_path, "inspect", "list", "--topic", "user", ":", "") == ["7"]
    assert bash(fw, tmp_path, "cancel", "--key", "trial", ":", "a") == ["ann"]
    assert bash(fw, tmp_path, "inspect", "list", "--topic", "=", "mai") == ["mail.out"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("wheel", ["nowhere", "/proc/1/mem"])
def test_without_a_wheel_bash_offers_nothing_and_says_nothing(fw: Fw, tmp_path: Path, wheel: str) -> None:
    assert bash(fw, tmp_path, "cancel", "--key", "t", FILEWHEEL=wheel) == []


@pytest.mark.parametrize(
    ("command", "name", "word"),
    [
        (["cancel"], "ids", "01"), (["reschedule"], "key", "t"), (["enqueue"], "topic", "u"), (["kill"], "id_", "01"),
        (["history"], "topic", "mail"), (["dead", "list"], "topic", "mail"), (["when"], "tz", "europe/ber"),
    ],
)  # fmt: skip
def test_a_parameter_is_completed_by_its_name_in_every_verb_for_a_wheel(
    fw: Fw, command: list[str], name: str, word: str
) -> None:
    out = Output()
    out.dir = str(fw.wheel)
    context, found = click.Context(cli, obj=out), cli
    for part in command:
        assert isinstance(found, click.Group)
        found = found.get_command(context, part)  # type: ignore[assignment]
    (param,) = [one for one in found.params if one.name == name]
    assert param.shell_complete(context, word)


def offered(completer: complete.Completer, wheel: Path, incomplete: str) -> list[str]:
    out = Output()
    out.dir = str(wheel)
    context = click.Context(cli, obj=out)
    return [item.value for item in completer(context, cli.params[0], incomplete)]


def test_names_of_schedules_are_offered_and_ids_of_dead_letters(fw: Fw) -> None:
    scheduler = Scheduler(fw.wheel)
    scheduler.schedule("nightly:report", 3600, "report")
    scheduler.stop()
    assert offered(complete.complete_schedule, fw.wheel, "night") == ["nightly:report"]
    fw.enqueue("--in", "0", "dies")
    fw("run", "--raw", "--once", "--retries", "0", "--", "false", code=3)
    (dead,) = fw.dead()
    assert offered(complete.complete_id, fw.wheel, dead["id"][:22]) == [dead["id"]]


@pytest.mark.damages
def test_a_damaged_wheel_is_completed_as_far_as_it_can_be_read_and_nothing_is_said(
    fw: Fw, capfd: pytest.CaptureFixture[str]
) -> None:
    (segment, *_) = sorted(fw.wheel.glob("journal/*.log"))
    data = bytearray(segment.read_bytes())
    data[80] ^= 1
    segment.write_bytes(data)
    assert offered(complete.complete_topic, fw.wheel, "") in (["mail.out"], ["user:7"])  # of the other writer
    (fw.wheel / "wheel.json").write_text("{")
    (fw.wheel / "wheel.json.copy").write_text("{")
    assert offered(complete.complete_topic, fw.wheel, "") == []
    assert capfd.readouterr() == ("", "")


def test_a_look_ends_in_time_and_offers_at_most_a_hundred(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "".join(f'{{"in": "3h", "topic": "t{n}", "payload": ""}}\n' for n in range(300))
    fw("enqueue", "--batch", stdin=lines)
    assert len(offered(complete.complete_topic, fw.wheel, "t")) == 100
    fw("enqueue", "--in", "4h", "--topic", "zoo", "far")
    assert offered(complete.complete_topic, fw.wheel, "z") == ["zoo"]
    now = iter(range(10_000))
    monkeypatch.setattr("cli.input.complete.time.monotonic", lambda: next(now) * 1.0)
    assert offered(complete.complete_topic, fw.wheel, "z") == [], "its time was over after a few hundred messages"
    assert offered(complete.complete_topic, fw.wheel, "mail") == ["mail.out"]
