"""What the tests of asyncio need: a loop of each kind, and disks that tell who calls them or hold a flush back."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from filewheel.disk.disk import OsDisk
from filewheel.env import Disk

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def run_in(factory: LoopFactory | None, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a fresh loop; fail if anything was left to the loop's exception handler."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        return await main

    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(watched())
        gc.collect()  # an exception that nobody retrieved complains when its future goes
    assert not complaints, complaints
    return result


class Watch:
    """A disk factory that counts calls by kind, and remembers those made in the thread of the loop."""

    def __init__(self, kind: type[OsDisk] = OsDisk) -> None:
        self.kind = kind
        self.loop_thread = threading.get_ident()
        self.counts: dict[str, int] = {}
        self.in_loop: list[str] = []
        self.threads: dict[str, set[str]] = {}

    def saw(self, kind: str) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.threads.setdefault(kind, set()).add(threading.current_thread().name)
        if threading.get_ident() == self.loop_thread:
            self.in_loop.append(kind)

    @property
    def flushes(self) -> int:
        return self.counts.get("fdatasync", 0)

    def __call__(self, path: str) -> OsDisk:
        calls = {kind: self._watched(kind) for kind in vars(Disk) if not kind.startswith("_")}
        disk: OsDisk = type("WatchedDisk", (self.kind,), calls)(path)
        return disk

    def _watched(self, kind: str) -> Callable[..., Any]:
        def watched(disk: OsDisk, *args: Any, **options: Any) -> Any:
            if disk._root >= 0:  # one that is collected is released again, wherever that happens
                self.saw(kind)
            return getattr(super(type(disk), disk), kind)(*args, **options)

        return watched


class Gate:
    """A disk factory whose flushes wait while it is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Semaphore(0)
        """One for each flush that began."""
        self.flushes = 0

    def __call__(self, path: str) -> OsDisk:
        gate = self

        class Gated(OsDisk):
            def fdatasync(self, fd: int) -> None:
                gate.flushes += 1
                gate.reached.release()
                gate.open.wait()
                super().fdatasync(fd)

        return Gated(path)

    async def reach(self) -> None:
        """Wait until a flush has begun."""
        while not self.reached.acquire(blocking=False):
            await asyncio.sleep(0.001)


class SleepyDisk(OsDisk):
    """A disk on which only a hint ends a sleep: whoever must be woken and is not, sleeps on."""

    def wait_hint(self, fd: int | None, timeout_s: float) -> None:
        super().wait_hint(fd, 3600)


async def turns(count: int = 10) -> None:
    """Let the loop run."""
    for _ in range(count):
        await asyncio.sleep(0)


def our_threads() -> list[str]:
    """The threads that filewheel has running."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith("filewheel"))
