"""The pytest plugin: the fixtures `filewheel_clock` and `filewheel_scheduler` (docs/testing.md).

pytest imports it at each start, wherever filewheel is installed. So it lies beside the library and not in it: an import
of any part of the library takes as long as the start of pytest. A fixture imports the library when it is used.
Invariant: without these fixtures nothing of the library is imported, and no test changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from filewheel.testing import FakeClock


@pytest.fixture
def filewheel_clock() -> FakeClock:
    """A clock that moves only on a call. It shows Monday, 1 January 2029, midnight UTC."""
    from filewheel.testing import FakeClock

    return FakeClock()


@pytest.fixture
def filewheel_scheduler(tmp_path: Path, filewheel_clock: FakeClock) -> Iterator[Any]:
    """A function that returns a scheduler on a wheel of this test, with `filewheel_clock`.

    Called with a scheduler of your program, plain or asyncio, it redirects that one until the end of the test, so its
    handlers can be called as they are. Without an argument it returns a new Scheduler.
    """
    from filewheel import Scheduler
    from filewheel.testing import redirected

    numbers = count(1)
    with contextlib.ExitStack() as stack:

        def redirect(scheduler: Any = None) -> Any:
            path = tmp_path / f"filewheel-{next(numbers)}"
            made = Scheduler(path, clock=filewheel_clock) if scheduler is None else scheduler
            return stack.enter_context(redirected(made, path, filewheel_clock))

        yield redirect
