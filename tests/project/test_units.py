"""The units in docs/examples/systemd and shell: systemd reads them, and each command in them is one of filewheel."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from cli.failure import MEANING
from cli.main import VERBS, cli
from tests.support import REPO

FOLDER = REPO / "docs" / "examples" / "systemd"
UNITS = sorted([*FOLDER.iterdir(), *(FOLDER.parent / "shell").iterdir()])
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


def words(unit: Path) -> list[str]:
    (line,) = values(unit, "ExecStart")
    return shlex.split(line)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_reads_a_unit_without_a_complaint(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here: `apt install systemd`")
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    name = unit.name.replace("work.service", "work@.service")
    for one in UNITS:  # a timer names its service
        text = re.sub(r"^ExecStart=(\S+)", f"ExecStart={program}", one.read_text(), flags=re.MULTILINE)
        text = re.sub(r"^(OnFailure|Documentation)=.*$", "", text, flags=re.MULTILINE)
        (tmp_path / one.name.replace("work.service", "work@.service")).write_text(text)
    target = tmp_path / name.replace("@.", "@1.")
    command = [analyze, "--man=no", "verify", str(target)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or unit.stem in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_the_command_of_a_unit_is_one_with_the_options_that_it_names(unit: Path) -> None:
    program, *args = words(unit)
    if program == "/usr/bin/env":
        assert args.pop(0) == "filewheel"
    else:
        assert program.endswith("/bin/filewheel")
    at = next(n for n, word in enumerate(args) if word in VERBS)
    cli.make_context("filewheel", args[:at]).close()
    root = click.Context(cli)
    verb = cli.get_command(root, args[at])
    assert verb is not None
    verb.make_context(args[at], args[at + 1 :], parent=root).close()
    codes = {int(code) for line in values(unit, "RestartPreventExitStatus") for code in line.split()}
    assert codes <= set(MEANING)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_with_a_watchdog_runs_a_command_that_serves_it(unit: Path) -> None:
    served = {"run", "work", "replicate"} & set(words(unit))
    is_service = values(unit, "Type") != ["oneshot"]
    assert bool(values(unit, "WatchdogSec")) == is_service
    assert not is_service or served
