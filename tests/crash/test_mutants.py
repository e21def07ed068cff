"""The list of mutants: it fits the source, and the page that shows it is what the list says."""

from __future__ import annotations

import pytest

from tests.crash.mutant import REPO, SEARCHED, table
from tests.crash.mutants import MUTANTS, Mutant
from tests.crash.mutate import mutated


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_what_a_mutant_changes_stands_in_the_source_and_what_comes_of_it_is_python(mutant: Mutant) -> None:
    for change in mutant.changes:
        compile(mutated(mutant, change.module), change.module, "exec")


def test_names_are_used_once_and_killers_are_known() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert not [m.name for m in MUTANTS if not m.killer.startswith((*SEARCHED, "tests/"))]


def test_the_page_of_mutants_is_what_the_list_says() -> None:
    """Write it anew with `python -m tests.crash --mutants`."""
    page = (REPO / "docs" / "mutants.md").read_text()
    assert table() in page
