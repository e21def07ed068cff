"""The site of the documentation: it has each page, pictures drawn from their sources, and no link that leads nowhere.

`make docs` builds it whole; here it is built where its tools are installed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.live.chromium import Chromium, executable
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Build the site with one link to nowhere; return how that ended, and the site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: `make docs` installs it")
    tmp_path = tmp_path_factory.mktemp("site")
    for name in (".ci/site", "docs"):
        shutil.copytree(REPO / name, tmp_path / name)
    for name in ("README.md", "CHANGELOG.md", ".github", "data", "tests", "filewheel"):
        (tmp_path / name).symlink_to(REPO / name)
    faq = tmp_path / "docs" / "faq.md"
    faq.write_text(faq.read_text("utf-8") + "\n[nowhere](glossary.md#no-such-word)\n", "utf-8")
    build = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", tmp_path / ".ci/site/mkdocs.yml"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return build, tmp_path / "site"


def test_a_link_to_a_heading_that_there_is_not_ends_the_build(
    built: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    build, _ = built
    assert build.returncode == 1
    warnings = [line for line in build.stderr.splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "no-such-word" in warnings[0]


def test_the_list_for_programs_has_each_page_with_a_sentence(
    built: tuple[subprocess.CompletedProcess[str], Path],
) -> None:
    _, site = built
    listed = re.findall(r"^- \[.+\]\((.+)\): (.+\.)$", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)
    pages = {str(page.relative_to(site)) for page in [*site.glob("*.html"), *(site / "api").glob("*.html")]}
    assert {name for name, _ in listed} == pages - {"404.html"}
    assert len(listed) == len({about for _, about in listed})


def test_the_search_finds_an_option_by_its_dashes(built: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    if executable() is None:
        pytest.skip("no Chromium is installed")
    _, site = built
    with Chromium() as browser:
        browser.open(f"file://{site}/faq.html")
        browser.run("document.querySelector('.md-search__input').focus()")
        browser.fill(".md-search__input", "--keep-going")
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 0")
        assert "keep-going" in browser.text(".md-search-result__list")
        assert browser.complaints() == []
