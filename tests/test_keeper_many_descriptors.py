"""A program with more open files than select() knows, as a server with many connections: its keeper works there too."""

from __future__ import annotations

import os
import re
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Scheduler, Wheel
from tests.support import REPO, eventually

SELECT_MAX = 1024
"""FD_SETSIZE of the C library."""


@pytest.fixture
def crowd() -> Iterator[None]:
    """Take all low descriptors, so that each that is opened in the test is above."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * SELECT_MAX:
        pytest.skip(f"a process may have {hard} open files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * SELECT_MAX), hard))
    taken = []
    try:
        while not taken or taken[-1] < SELECT_MAX:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_keeper_that_waits_is_woken_by_an_enqueue(wheel_dir: Path, crowd: None) -> None:
    with Keeper(wheel_dir) as keeper, Wheel(wheel_dir) as wheel:
        found: list[bytes] = []
        errors: list[BaseException] = []

        def fire() -> None:
            try:
                for batch in keeper.batches():
                    found.extend(bytes(message.payload) for message in batch)
                    keeper.ack(batch)
                    if len(found) == 5:
                        return
            except BaseException as exc:
                errors.append(exc)

        firing = threading.Thread(target=fire)
        firing.start()
        for n in range(5):
            wheel.enqueue(b"%d" % n, delay=0.2)
            eventually(lambda n=n: len(found) == n + 1 or errors)  # type: ignore[misc]
        firing.join(60)
    assert not errors
    assert found == [b"0", b"1", b"2", b"3", b"4"]


def test_a_scheduler_calls_and_its_standby_takes_over(wheel_dir: Path, crowd: None) -> None:
    called: list[int] = []
    first, second = Scheduler(wheel_dir), Scheduler(wheel_dir)
    for scheduler in (first, second):
        scheduler.on("note")(called.append)
        scheduler.start()
    first.enqueue("note", [1])
    eventually(lambda: called == [1])
    first.stop()
    second.enqueue("note", [2])
    eventually(lambda: called == [1, 2])
    second.stop()


def test_no_module_of_the_library_calls_select() -> None:
    calls = re.compile(r"\bselect\.select\(|\bfrom select import select\b")
    assert [str(p) for p in (REPO / "filewheel").rglob("*.py") if calls.search(p.read_text("utf-8"))] == []
