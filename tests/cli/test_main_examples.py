"""Every line of an example in the help is run in a shell, as a person would type it, and does what it should."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import cli
from filewheel import Message, MessageId, Wheel
from filewheel.message import DEAD_US
from tests.cli.support import environment, invoke
from tests.conftest import assert_whole
from tests.support import eventually
from tests.warm import warm


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, (*path, name))


def _examples(path: tuple[str, ...]) -> list[str]:
    text = invoke(*path, "--help").out
    return [line.strip()[2:] for line in text.splitlines() if line.strip().startswith("$ ")]


COMMANDS = [path for path, _ in _commands(cli) if path != ("demo",) and path[:1] != ("kafka",)]
"""All but the demo, each run of which takes five seconds of processor (tests/cli/test_demo.py runs its examples), and
those that need a broker (tests/kafka/test_cli_kafka.py)."""


@pytest.fixture(scope="module")
def filewheel() -> Iterator[dict[str, str]]:
    """The scripts `filewheel` of all examples, by folder: of those that end by themselves, and of those that run on."""
    with warm(own=("doctor", "top")) as ends, warm() as endless:
        yield {"bin": ends, "bin-endless": endless}


def _prepare(where: Path, filewheel: dict[str, str], *, with_wheel: bool) -> None:
    """A directory with a command on the PATH, a wheel with a bit of everything, and a dump of another."""
    for name in (*filewheel, "mnt", "mnt/disk2", "mnt/disk3"):
        (where / name).mkdir()
    for name, script in filewheel.items():
        command = where / name / "filewheel"
        command.write_text(script)
        command.chmod(0o755)
    handler = where / "remind.sh"
    handler.write_text("#!/bin/sh\ncat > handled\n")
    handler.chmod(0o755)
    (where / "app.py").write_text(
        "import pathlib\nfrom filewheel import Scheduler\nscheduler = Scheduler('app.wheel')\n"
        "@scheduler.every(0.1)\ndef tick():\n    pathlib.Path('handled').touch()\n"
    )
    with Wheel.create(where / "other.wheel") as other:
        other.enqueue(b"from a backup", delay=3600)
    dump = invoke("-C", where / "other.wheel", "dump").raw
    (where / "backup.jsonl").write_bytes(dump)
    if with_wheel:
        with Wheel.create(where / "wheel") as wheel:
            wheel.enqueue(b"due", delay=0, topic="mail")
            wheel.enqueue(b"soon", delay=1800, topic="mail.welcome", headers={"to": "ann"})
            wheel.enqueue(b"later", delay=86_400 * 3, topic="trial")
            alive = MessageId.make(1_700_000_000_000_000, 7, 1)
            dead = MessageId.make(DEAD_US + 1_700_000_100_000_000, 7, 2)
            wheel.add([Message(dead, b"died", "webhook", {"filewheel.reason": "exit code 1"}, 6, 0, alive)])


def test_the_examples_of_the_demo_are_what_its_own_tests_run() -> None:
    assert _examples(("demo",)) == ["filewheel demo --speed 8", "filewheel demo --backups 2 --speed 8"]


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "filewheel")
def test_the_examples_in_the_help_work(path: tuple[str, ...], tmp_path: Path, filewheel: dict[str, str]) -> None:
    lines = _examples(path)
    if any("s3://" in line for line in lines):
        pytest.importorskip("obstore", reason="the extra `objects` is not installed")
    assert lines, path
    _prepare(tmp_path, filewheel, with_wheel=path not in ((), ("init",)))
    for line in lines:
        _run(_adapted(line, tmp_path), tmp_path)
    for wheel in [*tmp_path.glob("*wheel"), *tmp_path.glob("mnt/*/*.wheel")]:
        assert_whole(wheel)


def _adapted(line: str, where: Path) -> str:
    """What an example writes elsewhere goes to the test's directory; no wait for three days, no measuring for long."""
    line = (
        line.replace("/tmp/", f"{where}/")
        .replace("/mnt/", f"{where}/mnt/")
        .replace("/srv/", f"{where}/srv-")
        .replace("s3://", f"file://{where}/")
        .replace("filewheel bench", "filewheel bench --budget 100ms")
        .replace("filewheel serve", "filewheel serve --listen 127.0.0.1:0")
    )
    if line.startswith("filewheel result "):
        line = "filewheel result --help"  # the call of the example is in no wheel; tests/cli/test_result.py has some
    if "--until-empty" in line:
        line = f"filewheel cancel --all --topic trial --yes; filewheel cancel --all --topic mail.welcome --yes; {line}"
    return line


def _run(line: str, where: Path) -> None:
    replicates, serves = line.endswith(" replicate"), " serve " in line
    endless = replicates or serves or " run " in line or " work " in line
    endless = endless and "--once" not in line and "--until-empty" not in line
    env = environment(PATH=f"{where / ('bin-endless' if endless else 'bin')}{os.pathsep}{os.environ['PATH']}")
    if endless and not replicates and not serves:
        (where / "handled").unlink(missing_ok=True)  # the one of the example before does not say that this one began
        invoke("-C", where / "wheel", "enqueue", "--in", "0", "one more")
    shell = subprocess.Popen(
        ["sh", "-c", f"exec {line}" if endless else line],
        cwd=where, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if endless:
        if replicates:
            assert shell.stdout is not None
            assert '"state"' in shell.stdout.readline()
        elif serves:
            assert shell.stdout is not None
            assert '"url"' in shell.stdout.readline()
        else:
            eventually((where / "handled").exists)
        shell.send_signal(signal.SIGTERM)
    out, err = shell.communicate(timeout=120)
    assert shell.returncode == 0, (line, out, err)
    assert "Traceback" not in err
    assert "Error" not in err, (line, err)
