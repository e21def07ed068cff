"""What the documentation shows works: every shell and Python block of README and docs/ is run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import REPO
from tests.warm import program_of, warm

PAGES = [REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def filewheel() -> Iterator[str]:
    """The script `filewheel` of all pages."""
    with warm() as script:
        yield script


@pytest.fixture
def shell(tmp_path: Path, filewheel: str) -> dict[str, str]:
    """An environment in which `filewheel` is this checkout's, and `python` the one that runs the tests."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    python = f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -W error "$@"\n'
    for name, text in (("filewheel", filewheel), ("python", python), ("python-block", program_of(filewheel))):
        script = binaries / name
        script.write_text(text)
        script.chmod(0o755)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FILEWHEEL")}
    return {**environment, "PATH": f"{binaries}:{os.environ['PATH']}", "PYTHONPATH": str(REPO)}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in ("kafka.md", "kafka-scheduler.md")], ids=lambda p: p.name
)
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path, shell: dict[str, str]) -> None:
    """The pages on Kafka need a broker: tests in tests/kafka run them."""
    run_blocks(page.read_text(), tmp_path, shell)


def run_blocks(text: str, tmp_path: Path, shell: dict[str, str]) -> None:
    """Run the blocks of a page one after the other, in one session, as a reader would type them."""
    session_dir = tmp_path / "page"
    session_dir.mkdir()
    script = ["set -euo pipefail"]
    for number, (language, block) in enumerate(BLOCK.findall(text), 1):
        if language == "sh":
            script.append(f"echo '--- block {number}'\n{block}")
        elif language == "python":
            python = f"python-block <<'END_OF_BLOCK'\n{block}END_OF_BLOCK"
            script.append(f"echo '--- block {number}'\n{python}")
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"
    with stdout.open("wb") as out, stderr.open("wb") as err:
        session = subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=session_dir, env=shell, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
        )  # fmt: skip
        try:
            code = session.wait(timeout=300)
        finally:
            # What a block left in the background, if the page did not get to its end.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session.pid, signal.SIGKILL)
            session.wait()
    assert code == 0, f"--- stdout\n{stdout.read_text()}\n--- stderr\n{stderr.read_text()}"


def test_every_link_of_a_page_leads_somewhere() -> None:
    for page in [*PAGES, *(REPO / "docs" / "adr").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), (page.name, target)


def test_decisions_are_a_page_at_most() -> None:
    for page in (REPO / "docs" / "adr").glob("*.md"):
        assert page.read_text().count("\n") <= 60, page.name


def test_a_decision_that_was_changed_and_the_one_that_changed_it_link_each_other() -> None:
    decisions = {page.name: page.read_text() for page in (REPO / "docs" / "adr").glob("*.md")}
    for name, text in decisions.items():
        status = text.split("\n\n")[1]
        if status.startswith(("**Changed by", "**Overtaken by")):
            for later in re.findall(r"\]\(([\w-]+\.md)\)", status):
                assert f"]({name})" in decisions[later], (name, later)
