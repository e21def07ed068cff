"""The site of the documentation: it has each page, pictures drawn from their sources, and no link that leads nowhere.

`make docs` builds it whole; here it is built where its tools are installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

CONFIG = REPO / ".ci" / "site" / "mkdocs.yml"
DIAGRAMS = sorted((REPO / "docs" / "diagrams").glob("*.puml"))


@pytest.mark.parametrize("source", DIAGRAMS, ids=lambda p: p.stem)
def test_a_diagram_was_drawn_from_its_source(source: Path) -> None:
    drawn = source.with_suffix(".svg").read_text("utf-8")
    assert drawn.rstrip().endswith(f"<!-- {hashlib.sha256(source.read_bytes()).hexdigest()} -->"), (
        "run .ci/site/diagrams"
    )


def test_each_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"([\w-]+\.md)$", CONFIG.read_text("utf-8"), re.MULTILINE))
    assert {page.name for page in (REPO / "docs").glob("*.md")} <= named


@pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: `make docs` installs it"
)
def test_a_link_to_a_heading_that_there_is_not_ends_the_build(tmp_path: Path) -> None:
    for name in (".ci/site", "docs"):
        shutil.copytree(REPO / name, tmp_path / name)
    for name in ("README.md", "CHANGELOG.md", "data", "tests", "filewheel"):
        (tmp_path / name).symlink_to(REPO / name)
    faq = tmp_path / "docs" / "faq.md"
    faq.write_text(faq.read_text("utf-8") + "\n[nowhere](glossary.md#no-such-word)\n", "utf-8")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", tmp_path / ".ci/site/mkdocs.yml"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert build.returncode == 1
    assert "no-such-word" in build.stderr
