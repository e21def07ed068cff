"""A wheel whose time the test decides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Wheel
from tests.support import FakeClock


@pytest.fixture
def wheel(wheel_dir: Path, clock: FakeClock) -> Iterator[Wheel]:
    """An open wheel, on the clock of the test."""
    with Wheel(wheel_dir, clock=clock) as opened:
        yield opened
