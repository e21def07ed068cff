"""Some histories of a primary and its copy, with power cuts and kills at every step: nothing confirmed is lost."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.model.copies import history


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_that_is_cut_anywhere_is_a_state_of_its_primary(seed: int) -> None:
    stage = history(seed)
    assert not stage.oracle.violations
    assert stage.states


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_on_another_machine_that_is_cut_off_anywhere_is_a_state_of_its_primary(seed: int) -> None:
    stage = history(seed, is_far=True)
    assert not stage.oracle.violations
    assert stage.states
    assert stage.counts["ticks"]
