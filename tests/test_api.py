"""The public API is the one of the snapshot: a change of it is seen, and made on purpose."""

from __future__ import annotations

import difflib

import pytest

from filewheel import Wheel
from filewheel.errors import BadArgument
from tests import api
from tests.support import REPO

KEPT = api.parse(api.PLACE.read_text(encoding="utf-8"))
NAMES = [
    *(f"module {m}" for m in api.MODULES),
    *("command line", "exit codes", "exit codes that the help lists", "JSON keys", "metrics", "headers", "environment"),
]
HINT = "if docs/stability.md allows this: `python -m tests.api --write`, and a line in CHANGELOG.md"


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    return dict(api.sections())


@pytest.mark.parametrize("name", NAMES)
def test_the_public_api_is_that_of_the_snapshot(name: str, found: dict[str, list[str]]) -> None:
    if name not in found:
        pytest.skip(f"{name} needs an extra that is not here")
    diff = difflib.unified_diff(KEPT.get(name, []), found[name], "data/api.txt", "this code", lineterm="", n=0)
    assert KEPT.get(name) == found[name], "\n".join([*diff, HINT])


def test_the_snapshot_has_no_section_that_the_code_no_longer_makes(found: dict[str, list[str]]) -> None:
    assert set(KEPT) - set(found) <= {
        f"module {m}" for m in api.MODULES if m.startswith(("filewheel.kafka", "filewheel.bridges"))
    }


def test_a_change_of_a_name_a_default_or_a_kind_changes_the_signature() -> None:
    def one(a: int, *, b: str = "x") -> None: ...
    def two(a: int, *, b: str = "y") -> None: ...
    def three(a: int, b: str = "x") -> None: ...
    def four(a: int, *rest: int, b: str = "x", **more: int) -> None: ...

    texts = [api.signature(f) for f in (one, two, three, four)]
    assert texts[0] == "(a: int, *, b: str = 'x') -> None"
    assert texts[3] == "(a: int, *rest: int, b: str = 'x', **more: int) -> None"
    assert len(set(texts)) == 4


def test_a_class_shows_its_methods_and_an_error_its_kind() -> None:
    text = "\n".join(api._class("Wheel", Wheel))
    assert "\n  .enqueue(self, payload: bytes, " in text
    assert "\n  .path (property)" in text
    assert "\n  .create(cls, path" in text
    assert "_writer" not in text
    assert "  kind = 'usage'" in list(api._class("BadArgument", BadArgument))


def test_keys_of_a_user_are_not_part_of_it() -> None:
    record = {"a": [{"b": 1}, {"c": None}], "headers": {"mine": "x"}}
    assert sorted(api.keys_in(record)) == ["a", "a[].b", "a[].c", "headers"]


def test_nothing_in_the_snapshot_is_of_one_machine() -> None:
    text = api.PLACE.read_text(encoding="utf-8")
    for word in (" at 0x", "<object", "/tmp", str(REPO)):
        assert word not in text
