"""Some histories of a primary and its copy in a bucket: whatever request fails, what is restored lost nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest.importorskip("obstore", reason="the extra `objects` is not installed")

from tests.model.buckets import history


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_restored_is_a_state_of_the_primary_after_any_request(seed: int) -> None:
    stage = history(seed)
    assert not stage.oracle.violations
    assert stage.counts["objects"]
