"""docs/trust.md is what its script makes, from results and findings that are there."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from tests.crash import trust
from tests.crash.campaigns import campaigns
from tests.crash.command import main
from tests.support import REPO


def run(when: str, **changes: Any) -> dict[str, Any]:
    one = {"name": "zones", "seconds": 2.0, "missing": None, "counts": {"rounds": 3, "kills": 7}, "skipped": {}}
    one |= {"title": "t", "targets_60_min": {}, "violations": [], **changes}
    about = {"when": when, "commit": "abc", "machine": "2 cores", "budget_s": 25.0, "seed": 5, "jobs": 2}
    return about | {"campaigns": [one]}


def test_the_page_is_what_the_script_makes() -> None:
    assert trust.PAGE.read_text(encoding="utf-8") == trust.page(trust.load()), "run `python -m tests.crash.trust`"


def test_each_campaign_is_in_the_page_with_its_command() -> None:
    text = trust.PAGE.read_text(encoding="utf-8")
    for campaign in campaigns():
        assert f"| {campaign.title} | " in text
        assert f"`python -m tests.crash --only {campaign.name} --budget " in text


def test_a_newer_result_takes_the_place_of_an_older_one_and_not_the_other_way_round() -> None:
    kept: dict[str, Any] = {}
    for when, kills in (("2026-01-02", 2), ("2026-01-01", 1), ("2026-01-03", 3)):
        trust.add(kept, run(when, counts={"kills": kills}))
    assert kept["zones"]["counts"] == {"kills": 3}
    trust.add(kept, run("2026-01-04", missing="no root here"))
    assert kept["zones"]["counts"] == {"kills": 3}


def test_what_a_campaign_found_is_not_left_out() -> None:
    kept: dict[str, Any] = {}
    found = {"round": 7, "text": "a message was lost\nmore", "again": "python -m tests.crash --round zones:7"}
    trust.add(kept, run("2026-01-01", violations=[found], skipped={"no btrfs": 2}))
    text = trust.page(kept)
    assert "7 kills; 1 violations." in text
    assert "| 7 kills | 1 | 2 | 2026-01-01, abc | `python -m tests.crash --only zones --budget 25s --seed 5` |" in text
    assert "Violation: `python -m tests.crash --round zones:7`: a message was lost\n" in text
    assert "Skipped in `zones`, 2 times: no btrfs." in text


def test_the_command_of_the_page_can_be_given() -> None:
    text = trust.PAGE.read_text(encoding="utf-8")
    commands = re.findall(r"`python -m tests\.crash (--only [^`]+)`", text)
    assert len(commands) == len(campaigns())
    for command in commands:
        context = main.make_context("tests.crash", command.split())
        assert context.params["only"] in {c.name for c in campaigns()}


@pytest.mark.parametrize("row", trust.findings(), ids=lambda row: row["found"][:50])
def test_a_finding_has_a_test_that_exists_and_a_way_that_is_known(row: dict[str, str]) -> None:
    assert row["how"] in trust.HOWS
    file, _, name = row["test"].partition(":")
    defined = {
        n.name for n in ast.parse((REPO / file).read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)
    }
    assert name in defined
    assert f"## {row['fixed in']}" in (REPO / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_results_are_those_of_this_format() -> None:
    for name, one in json.loads(trust.RESULTS.read_text(encoding="utf-8")).items():
        assert one["name"] == name
        assert one["commit"]
        assert not one["commit"].endswith("-dirty")
        assert sum(one["counts"].values()) > 0
