"""Containers on one wheel, as far as a machine without an engine has them: pid namespaces, one uid, process 1."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import VERBS, cli
from filewheel import Wheel
from filewheel.live.health import check_health
from tests.cli.support import Fw, environment
from tests.kafka.test_examples import TO_JSON
from tests.support import REPO, eventually

FOLDER = REPO / "docs" / "examples" / "docker"
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def fw(wheel_dir: Path) -> Fw:
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("this user may make no pid namespace: root may")
    return Fw(wheel_dir)


@contextlib.contextmanager
def container(fw: Fw, *args: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command line as process 1 of a pid namespace of its own."""
    command = [*UNSHARE, sys.executable, "-m", "cli", "-C", str(fw.wheel), *args]
    process = subprocess.Popen(
        command, cwd=REPO, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()  # unshare's child dies with it
        process.communicate()


def first_of(process: subprocess.Popen[str]) -> int:
    """Return the pid, as it is outside, of process 1 of a container."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(eventually(lambda: children.read_text().split())[0])


def keeper_said(fw: Fw) -> str:
    return next(check.text for check in check_health(fw.wheel).checks if check.name == "keeper")


def test_a_container_takes_over_when_another_is_killed_and_both_are_seen_from_outside(fw: Fw) -> None:
    with container(fw, "run") as keeper:
        eventually(lambda: check_health(fw.wheel).is_healthy)
        eventually(lambda: "of another pid namespace" in keeper_said(fw))  # it is named a moment after it has the lock
        with container(fw, "run") as standby:
            assert standby.stderr is not None
            assert "process 1 is the keeper; standing by" in standby.stderr.readline()
            os.kill(first_of(keeper), signal.SIGKILL)
            assert "process 1 is the keeper now" in standby.stderr.readline()
            (id_,) = fw.enqueue("--in", "0", "x")
            assert standby.stdout is not None
            assert id_ in standby.stdout.readline()
            eventually(lambda: check_health(fw.wheel).is_healthy)


def test_process_1_of_a_container_ends_with_sigterm_and_finishes_what_is_in_hand(fw: Fw, tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    fw.enqueue("--in", "0", "x")
    with container(fw, "run", "--", "sh", "-c", f"touch {begun}; until test -e {done}; do sleep 0.01; done") as process:
        eventually(begun.exists)
        os.kill(first_of(process), signal.SIGTERM)
        assert process.stderr is not None
        assert "finishing 1 message" in process.stderr.readline()
        done.touch()
        assert process.wait(60) == 0
    with Wheel(fw.wheel) as wheel:
        assert wheel.stats().pending == 0


# -- the compose file -----------------------------------------------------------------------------------------


def test_the_commands_of_the_compose_file_parse_and_all_share_one_uid_and_one_volume() -> None:
    import json

    for python in (sys.executable, "/usr/bin/python3"):
        with (FOLDER / "compose.yaml").open("rb") as file:
            done = subprocess.run([python, "-c", TO_JSON], stdin=file, capture_output=True, check=False)
        if not done.returncode:
            break
    else:
        pytest.skip("no Python here has PyYAML")
    services = json.loads(done.stdout)["services"]
    assert list(services) == ["init", "keeper", "standby"]
    for service in services.values():
        assert (service["user"], service["volumes"]) == ("10001", ["jobs:/data"])
        assert (FOLDER / service["build"]["context"]).resolve() == REPO
        assert (REPO / service["build"]["dockerfile"]).is_file()
        for words in (service["command"], service.get("healthcheck", {}).get("test", ["", "filewheel", "stats"])[1:]):
            if words[0] == "filewheel":
                at = next(n for n, word in enumerate(words) if word in VERBS)
                verb = cli.get_command(click.Context(cli), words[at])
                assert verb is not None
                verb.make_context(words[at], list(words[at + 1 :]), parent=click.Context(cli)).close()


def test_the_image_has_what_the_package_is_built_from_and_the_uid_of_the_compose_file() -> None:
    text = (FOLDER / "Dockerfile").read_text()
    for source in ("pyproject.toml", "README.md", "LICENSE", "filewheel", "cli", "data"):
        assert source in text
        assert (REPO / source).exists()
    assert "--uid 10001" in text
    assert "USER 10001" in text
