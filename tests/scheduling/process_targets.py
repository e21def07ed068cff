"""Handlers for tests of processes: in a module of their own, because a process imports its handler by name."""

from __future__ import annotations

import ctypes
import os
import sys
import time

from filewheel import Retry, Scheduler, current_job

scheduler = Scheduler(os.environ.get("FILEWHEEL_TEST_WHEEL", "unused.wheel"), processes=1)
ONCE = Retry(limit=0)


@scheduler.on("write", where="process")
def write(path: str, text: str) -> None:
    """Write who I am."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {text} {current_job().attempt}\n")


@scheduler.on("chain", where="process", retry=ONCE)
def chain(path: str, fails: bool) -> None:
    """Enqueue a next step in a transaction."""
    with current_job().transaction():
        scheduler.enqueue("write", [path, "chained"])
    if fails:
        raise ValueError("after the block")


@scheduler.on("end", where="process", retry=ONCE, timeout_s=30)
def end(how: str) -> None:
    """End in an odd way."""
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    elif how == "sys.exit":
        sys.exit("bye")
    elif how == "interrupt":
        raise KeyboardInterrupt
    raise OSError("no \udcff file")


@scheduler.on("hang", where="process", retry=ONCE, timeout_s=0.3)
def hang() -> None:
    """Hang."""
    time.sleep(600)


def hold(path: str, number: int) -> None:
    """Say that I began, and wait until I am let go."""
    with open(os.path.join(path, f"began-{number}"), "w"):
        pass
    while not os.path.exists(os.path.join(path, "go-on")):
        time.sleep(0.005)


def write_tenant(path: str) -> None:
    """Write what a hook has set; the module of the hook is imported only by the hook's name."""
    module = sys.modules.get("tests.scheduling.hook_targets")
    with open(path, "a") as file:
        file.write("no hook" if module is None else module.tenant.get("not set"))


def hand_back(name: str) -> object:
    """Make a coroutine, and hand it back."""

    async def work() -> None: ...

    return work()
