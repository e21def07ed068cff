"""`python -m tests.timers.cpython [MODULE ...]`: CPython's own tests of asyncio, on a WheelEventLoop.

Each loop that those tests make is one with a wheel. Prints what failed, and how many time-outs were on a wheel.
Returns 1 when a test failed that is not in EXPECTED.
"""

from __future__ import annotations

import asyncio
import asyncio.unix_events
import importlib.util
import sys
import unittest
from typing import Any

from filewheel.timers import wheel_event_loop

EXPECTED = {"test_handle_source_traceback"}  # looks at a private attribute of the handles
MODULES = (
    "test_base_events", "test_context", "test_events", "test_futures2", "test_locks", "test_pep492", "test_queues",
    "test_runners", "test_server", "test_sock_lowlevel", "test_streams", "test_subprocess", "test_taskgroups",
    "test_tasks", "test_threads", "test_timeouts", "test_unix_events", "test_waitfor",
)  # fmt: skip


def is_here() -> bool:
    """Return whether this Python has its tests."""
    return bool(importlib.util.find_spec("test")) and bool(importlib.util.find_spec("test.test_asyncio"))


def main(modules: list[str]) -> int:
    """Run the modules, by default all."""
    started = 0

    class Counted(wheel_event_loop._WheelInLoop):
        def call_later(self, *args: Any, **options: Any) -> Any:
            nonlocal started
            started += 1
            return super().call_later(*args, **options)

        def call_at(self, *args: Any, **options: Any) -> Any:
            nonlocal started
            started += 1
            return super().call_at(*args, **options)

    wheel_event_loop._WheelInLoop = Counted  # type: ignore[misc]
    asyncio.SelectorEventLoop = wheel_event_loop.WheelEventLoop  # type: ignore[misc]
    policy: Any = asyncio.DefaultEventLoopPolicy
    policy._loop_factory = wheel_event_loop.WheelEventLoop
    tests = unittest.defaultTestLoader.loadTestsFromNames([f"test.test_asyncio.{name}" for name in modules or MODULES])
    result = unittest.TextTestRunner(verbosity=0).run(tests)
    failed = [str(test) for test, _ in result.failures + result.errors]
    unexpected = [name for name in failed if name.split()[0] not in EXPECTED]
    print(f"{result.testsRun} run, {len(failed)} failed, {len(result.skipped)} skipped, {started} on a wheel")
    for name in unexpected:
        print(name)
    return 1 if unexpected or not started else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
