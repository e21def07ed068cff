"""The files of docs/examples/kafka: that they can be read, and that each command in them is one.

Nothing here runs a container; compose.yaml was not run on this machine, which has no engine.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from cli.main import cli
from tests.support import REPO

FOLDER = REPO / "docs" / "examples" / "kafka"
TO_JSON = "import sys, json, yaml; json.dump(yaml.safe_load(sys.stdin), sys.stdout)"


def yaml(name: str) -> Any:
    """Return a YAML file, read by whichever Python of this machine can."""
    for python in (sys.executable, "/usr/bin/python3"):
        if shutil.which(python):
            with (FOLDER / name).open("rb") as file:
                done = subprocess.run([python, "-c", TO_JSON], stdin=file, capture_output=True, check=False)
            if b"No module named 'yaml'" not in done.stderr:
                assert done.returncode == 0, done.stderr
                return json.loads(done.stdout)
    pytest.skip("no Python here has PyYAML")


def check_command(words: list[str], environment: dict[str, str] | None = None) -> None:
    """Parse the words of `filewheel ...`: each option exists, and none that is required is missing."""
    assert Path(words[0]).name == "filewheel"
    command: click.Command = cli
    parent = None
    words = words[1:]
    while isinstance(command, click.Group):
        parent = click.Context(command, parent)
        found = command.get_command(parent, words.pop(0))
        assert found is not None
        command = found
    variables = {f"FILEWHEEL_KAFKA_{key}": value for key, value in (environment or {}).items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        command.make_context("filewheel", words, parent)


def test_each_service_of_the_compose_file_has_a_command_that_parses_and_volumes_that_exist() -> None:
    found = yaml("compose.yaml")
    services = found["services"]
    assert list(services) == ["kafka-1", "kafka-2", "kafka-3", "topics", "node-1", "node-2", "prometheus"]
    shared = {k.removeprefix("FILEWHEEL_KAFKA_"): v for k, v in found["x-node"]["environment"].items()}
    for name in ("topics", "node-1", "node-2"):
        check_command(services[name]["command"], shared if name != "topics" else None)
    named = {volume.partition(":")[0] for one in services.values() for volume in one.get("volumes", ())}
    assert {name for name in named if not name.startswith("./")} == set(found["volumes"])
    voters = services["kafka-1"]["environment"]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert voters == ",".join(f"{n}@kafka-{n}:9093" for n in (1, 2, 3))
    for n in (1, 2, 3):
        assert services[f"kafka-{n}"]["environment"]["KAFKA_NODE_ID"] == str(n)
        assert f"//kafka-{n}:19092" in services[f"kafka-{n}"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_prometheus_reads_the_nodes_at_the_port_that_they_listen_at() -> None:
    targets = yaml("prometheus.yaml")["scrape_configs"][0]["static_configs"][0]["targets"]
    services = yaml("compose.yaml")["services"]
    for target in targets:
        node, port = target.split(":")
        words = services[node]["command"]
        assert words[words.index("--listen") + 1].endswith(f":{port}")


def test_the_image_copies_what_the_package_is_built_from() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = [word for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for word in line.split()]
    assert all((REPO / name).exists() for name in copied), copied
    for name in ("pyproject.toml", "filewheel", "cli", "data"):
        assert name in copied


def unit() -> str:
    return (FOLDER / "filewheel-kafka@.service").read_text(encoding="utf-8")


def test_the_unit_of_systemd_has_a_command_that_parses(tmp_path: Path) -> None:
    config = tmp_path / "delays.toml"
    config.write_text('bootstrap = "localhost:9092"\n', encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit(), re.MULTILINE)
    check_command(shlex.split(line.replace("/etc/filewheel/%i.toml", str(config)).replace("%i", "delays")))


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here: `apt install systemd`")
    path = tmp_path / "filewheel-kafka@delays.service"
    path.write_text(unit().replace("/usr/bin/filewheel", "/bin/true"), encoding="utf-8")
    done = subprocess.run([analyze, "verify", path], capture_output=True, text=True, timeout=300, check=False)
    assert str(path.name) not in done.stderr, done.stderr
    assert done.returncode == 0
