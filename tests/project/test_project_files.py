"""What a stranger meets on the way to an issue or a pull request: forms that can be shown, and pages that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support import REPO

FORMS = sorted((REPO / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
TYPES = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def form(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="no PyYAML here to read the forms with")
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", [p for p in FORMS if p.name != "config.yml"], ids=lambda p: p.stem)
def test_a_form_has_what_the_tracker_needs_to_show_it(path: Path) -> None:
    found = form(path)
    assert found["name"]
    assert found["description"]
    ids = [field["id"] for field in found["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    for field in found["body"]:
        assert field["type"] in TYPES
        assert field["attributes"].get("value" if field["type"] == "markdown" else "label")
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1


def test_each_form_asks_for_the_doctor_and_those_of_trouble_insist() -> None:
    asked = {}
    for path in FORMS:
        if path.name != "config.yml":
            text = path.read_text(encoding="utf-8")
            assert "filewheel doctor" in text, path.name
            after = text.partition("id: doctor")[2].partition("- type:")[0]
            asked[path.stem] = "required: true" in after
    assert asked == {"bug": True, "idea": False, "slow": True}


@pytest.mark.parametrize(
    "name",
    ["CODE_OF_CONDUCT.md", "pull_request_template.md", *(p.relative_to(REPO / ".github").as_posix() for p in FORMS)],
)
def test_a_page_that_is_named_there_exists(name: str) -> None:
    text = (REPO / ".github" / name).read_text(encoding="utf-8")
    for page in re.findall(r"\b(?:docs/[\w-]+\.md|CHANGELOG\.md)\b", text):
        assert (REPO / page).is_file(), page
    assert "@" not in text  # no address that nobody reads


def test_the_hooks_of_a_commit_call_what_the_checkout_has_and_download_nothing() -> None:
    found = form(REPO / ".pre-commit-config.yaml")
    assert [one["repo"] for one in found["repos"]] == ["local"]
    hooks = found["repos"][0]["hooks"]
    assert {hook["id"] for hook in hooks} == {"ruff-check", "ruff-format", "mypy", "api"}
    for hook in hooks:
        assert hook["language"] == "system"
        assert "additional_dependencies" not in hook
        command, *words = hook["entry"].split()
        assert command.startswith(".venv/bin/")
        assert all((REPO / word).exists() for word in words if "/" in word)
