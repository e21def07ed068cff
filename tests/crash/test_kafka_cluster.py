"""The judge of the campaign on three brokers finds what it is to find, and forgives what is allowed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.crash.campaign import Tally
from tests.crash.kafka_cast import Seen, Sent
from tests.crash.kafka_cluster import verdict
from tests.kafka.cluster import spawn
from tests.support import eventually

SENT = Sent({0: 1000, 1: 2000, 2: 3000}, {0, 1})


def seen(*pairs: tuple[int, int]) -> list[Seen]:
    return [Seen(0, offset, at_ms, None, b"%d" % number) for offset, (number, at_ms) in enumerate(pairs)]


def judged(found: list[Seen], *, exactly_once: bool = True, ahead_ms: int = 0) -> list[str]:
    tally = Tally("kafka-cluster")
    verdict(tally, SENT, found, exactly_once=exactly_once, ahead_ms=ahead_ms)
    return [violation.text for violation in tally.violations]


def test_each_confirmed_record_once_is_right_and_an_unconfirmed_one_may_come_or_not() -> None:
    assert judged(seen((0, 1000), (1, 2000))) == []
    assert judged(seen((0, 1000), (1, 2000), (2, 3001))) == []


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (seen((0, 1000)), "1 confirmed records are lost: [1]"),
        (seen((0, 1000), (1, 2000), (1, 2001)), "1 records came twice"),
        (seen((0, 1000), (1, 2000), (2, 3000), (2, 3001)), "1 records came twice"),
        (seen((0, 900), (1, 2000)), "1 records are early: [0]"),
        (seen((0, 1000), (1, 2000), (7, 9000)), "1 records nobody sent: [7]"),
    ],
)
def test_a_broken_promise_is_named(found: list[Seen], text: str) -> None:
    (violation,) = judged(found)
    assert text in violation


def test_a_record_twice_is_allowed_at_least_once() -> None:
    assert judged(seen((0, 1000), (1, 2000), (1, 2001)), exactly_once=False) == []


def test_a_record_is_early_only_by_more_than_a_clock_was_ahead() -> None:
    assert judged(seen((0, 700), (1, 2000)), ahead_ms=300) == []
    assert judged(seen((0, 600), (1, 2000)), ahead_ms=300)


def test_a_node_that_a_thread_started_outlives_the_thread(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-c", "import time; print('runs', flush=True); time.sleep(60)"]
    thread = threading.Thread(target=lambda: started.append(spawn(command, tmp_path / "log")))
    thread.start()
    thread.join()
    eventually(lambda: (tmp_path / "log").read_text() == "runs\n")
    assert started[0].poll() is None
    started[0].kill()
    assert started[0].wait() == -9
