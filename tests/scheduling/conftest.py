"""Fixtures for tests of the scheduler: one that a test drains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Scheduler
from tests.support import FakeClock


@pytest.fixture
def scheduler(wheel_dir: Path, clock: FakeClock) -> Iterator[Scheduler]:
    """A scheduler that is not started."""
    made = Scheduler(wheel_dir, clock=clock)
    yield made
    made.stop()
