"""A wheel that 0.1.0 wrote is opened, fired and acknowledged by this version.

data/older/wheel-0.1.0.tar.gz was made with the code of 0.1.0: plain messages, one moved, one put back, one cancelled,
a unique key, two schedules, a waiting call, and two dead letters; expected.json in it has what 0.1.0 listed.
"""

from __future__ import annotations

import json
import tarfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from filewheel import Keeper, KeyHeld, Scheduler, Wheel, schedule_of
from filewheel.testing import FakeClock
from tests.conftest import assert_whole
from tests.support import REPO


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, dict[str, Any], FakeClock]:
    with tarfile.open(REPO / "data/older/wheel-0.1.0.tar.gz") as tar:
        tar.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (tmp_path / "w").chmod(0o700)
    expected = json.loads((tmp_path / "expected.json").read_text())
    return tmp_path / "w", expected, FakeClock(datetime.fromisoformat(expected["now"]))


def test_a_wheel_of_0_1_0_lists_the_same_messages(old: tuple[Path, dict[str, Any], FakeClock]) -> None:
    path, expected, clock = old
    with Wheel(path, clock=clock) as wheel:
        found = [*wheel.list(), *wheel.list(dead=True)]
        assert sorted([str(m.id), m.topic, m.key, m.payload.hex()] for m in found) == expected["messages"]
        assert {m.topic: m.reason for m in wheel.list(dead=True)} == {"bad": "no 1", "grave": "no such address"}
        schedules = {m.key: schedule_of(m) for m in found if m.key and m.key.startswith("filewheel.every:")}
        assert all(schedules.values())
        assert len(schedules) == 2
        with pytest.raises(KeyHeld):
            wheel.enqueue(b"again", delay=1, key="order:7")
    assert_whole(path)


def test_plain_messages_of_0_1_0_fire_at_their_time_and_are_acknowledged(
    old: tuple[Path, dict[str, Any], FakeClock],
) -> None:
    path, expected, clock = old
    fired = []
    with Keeper(path, clock=clock, background=False) as keeper:
        clock.advance(timedelta(minutes=20))
        for message in keeper.claim(100):
            assert message.due_us <= clock.now_us()
            fired.append((message.topic, message.payload))
            keeper.ack(message)
    assert fired == [
        ("plain", b"due"), ("batch", b"a"), ("batch", b"b"), ("batch", b"c"), ("plain", b"plain"), ("plain", b"moved"),
    ]  # fmt: skip
    with Wheel(path, clock=clock) as wheel:
        left = {str(m.id) for m in wheel.list()}
        gone = ("batch", "bad", "grave")
        done = {b"due".hex(), b"plain".hex(), b"moved".hex()}
        assert left == {m[0] for m in expected["messages"] if m[1] not in gone and m[3] not in done}
        assert wheel.cancel(key="order:7")
        assert wheel.enqueue(b"again", delay=1, key="order:7")
    assert_whole(path)


def test_calls_and_schedules_of_0_1_0_run_in_the_scheduler(old: tuple[Path, dict[str, Any], FakeClock]) -> None:
    path, _, clock = old
    called: list[str] = []
    scheduler = Scheduler(path, clock=clock, create=False)

    @scheduler.on("mail")
    def mail(to: str) -> None:
        called.append(f"mail {to}")

    @scheduler.every(3600, name="hourly")
    def hourly() -> None:
        called.append("hourly")

    @scheduler.every("0 9 * * *", tz="Europe/Berlin", name="morning")
    def morning() -> None:
        called.append("morning")

    clock.advance(timedelta(hours=10))
    scheduler.drain()
    assert sorted(set(called)) == ["hourly", "mail ann", "morning"]
    with Wheel(path, clock=clock) as wheel:
        keys = {m.key: m.due_us for m in wheel.list() if m.key and m.key.startswith("filewheel.every:")}
        assert len(keys) == 2
        assert all(due > clock.now_us() for due in keys.values())
    assert_whole(path)
