"""A pair of wheels for each test, in both modes where that makes no difference; verified at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import filewheel.roster.fence
import filewheel.sets.remote
from filewheel.errors import FilewheelError
from tests.sets.support import Pair
from tests.sets.support_far import Line


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The line to another machine, which is this process."""
    line = Line()
    monkeypatch.setattr(filewheel.sets.remote, "SshPeer", line.connect)
    yield line
    line.settle()


@pytest.fixture
def pair(tmp_path: Path, line: Line, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A primary and a backup that it ships to.

    With the parameter "mirror", one that producers write to; with "far", one on another machine.
    """
    kind = getattr(request, "param", "ship")
    pair = Pair(tmp_path, mode="ship" if kind == "far" else kind, is_far=kind == "far")
    yield pair
    with contextlib.suppress(FilewheelError, OSError):
        pair.close()
    pair.verify()


@pytest.fixture(autouse=True)
def no_producers_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let promotions that are cut short at each step not wait each time; no producer runs beside them."""
    monkeypatch.setattr(filewheel.roster.fence, "_FENCE_S", 0.0)
