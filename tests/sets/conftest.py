"""A pair of wheels for each test, in both modes where that makes no difference; verified at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import filewheel.roster.fence
from filewheel.errors import FilewheelError
from tests.sets.support import Pair


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and a backup that it ships to; with the parameter "mirror", one that producers write to."""
    pair = Pair(tmp_path, mode=getattr(request, "param", "ship"))
    yield pair
    with contextlib.suppress(FilewheelError, OSError):
        pair.close()
    pair.verify()


@pytest.fixture(autouse=True)
def no_producers_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let promotions that are cut short at each step not wait each time; no producer runs beside them."""
    monkeypatch.setattr(filewheel.roster.fence, "_FENCE_S", 0.0)
