"""`clear` cancels what waits and says how many that were; `open_or_create` opens what is there, or makes it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import AsyncWheel, BadArgument, Closed, Keeper, MessageId, NoWheel, Wheel, WheelExists, changes
from filewheel.disk.disk import SYSTEM
from tests.support import FakeClock, FaultyDisk


def payloads(wheel: Wheel, *, dead: bool = False) -> list[bytes]:
    return [m.payload for m in wheel.list(dead=dead)]


# -- clear ----------------------------------------------------------------------------------------------------


def test_clear_cancels_all_that_waits_dealt_or_not_and_counts_it(
    wheel_dir: Path, wheel: Wheel, clock: FakeClock
) -> None:
    wheel.enqueue_many([b"dealt"] * 5, delay=[0, 1, 1000, 100_000, 10_000_000])
    Keeper(wheel_dir, clock=clock).close()
    wheel.enqueue_many([b"new"] * 3, delay=[0, 50, 5000])
    assert wheel.clear() == 8
    assert payloads(wheel) == []
    assert wheel.clear() == 0
    clock.advance(20_000_000)
    with Keeper(wheel_dir, clock=clock) as keeper:
        assert not keeper.claim()


def test_clear_of_a_topic_leaves_the_others(wheel: Wheel) -> None:
    wheel.enqueue_many([b"a", b"b", b"c", b"d"], topic=["mail.in", "mail.out", "news", ""])
    assert wheel.clear(topic="mail.*") == 2
    assert payloads(wheel) == [b"c", b"d"]
    assert wheel.clear(topic="") == 1
    assert payloads(wheel) == [b"c"]


def test_clear_leaves_the_dead_letters_unless_they_are_meant(wheel_dir: Path, wheel: Wheel, clock: FakeClock) -> None:
    wheel.enqueue_many([b"bad", b"good"])
    with Keeper(wheel_dir, clock=clock) as keeper:
        keeper.bury(keeper.claim(1)[0])
    assert wheel.clear() == 1
    assert (payloads(wheel), payloads(wheel, dead=True)) == ([], [b"bad"])
    assert wheel.clear(dead=True) == 1
    assert payloads(wheel, dead=True) == []


def test_clear_lets_go_of_unique_keys(wheel: Wheel) -> None:
    wheel.enqueue(b"x", key="k", delay=5)
    assert wheel.clear() == 1
    wheel.enqueue(b"y", key="k", delay=5)


def test_more_than_a_commit_is_cleared_in_several_and_each_message_is_counted_once(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "CLEAR_AT_ONCE", 10)
    wheel.enqueue_many([b"x"] * 45, delay=5)
    number = wheel._writer().appender.number
    assert wheel.clear() == 45
    assert wheel._writer().appender.number == number + 5


def test_what_somebody_else_cancels_meanwhile_is_not_counted(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = wheel.enqueue_many([b"x"] * 4, delay=5)
    portions = changes.ids_at_once

    def beside(messages: Iterator[changes.Message]) -> Iterator[list[MessageId]]:
        for some in portions(messages):
            assert wheel.cancel(ids[2])
            yield some

    monkeypatch.setattr(changes, "ids_at_once", beside)
    assert wheel.clear() == 3


def test_wrong_arguments_of_clear_are_refused_before_anything_is_cancelled(wheel: Wheel) -> None:
    wheel.enqueue(b"x", delay=5)
    for wrong in ({"topic": 5}, {"dead": 1}, {"sync": "sometimes"}):
        with pytest.raises(BadArgument):
            wheel.clear(**wrong)  # type: ignore[arg-type]
    assert payloads(wheel) == [b"x"]
    wheel.close()
    with pytest.raises(Closed):
        wheel.clear()


def test_an_event_loop_clears_while_other_tasks_enqueue(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("filewheel.aio.wheel.CLEAR_AT_ONCE", 10)

    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"old"] * 35, delay=5, topic="old")
            clears = asyncio.create_task(wheel.clear(topic="old"))
            while not clears.done():
                await wheel.enqueue(b"new", delay=5)
            assert await clears == 35
            assert {m.topic async for m in wheel.list()} == {""}
            with pytest.raises(BadArgument):
                await wheel.clear(sync="sometimes")  # type: ignore[arg-type]
            with pytest.raises(BadArgument):
                await wheel.clear(dead=1)  # type: ignore[arg-type]

    asyncio.run(main())


# -- open_or_create -------------------------------------------------------------------------------------------


def test_a_wheel_that_is_not_there_is_made_with_what_was_said(tmp_path: Path) -> None:
    with Wheel.open_or_create(tmp_path / "w", sync="never", slots=60, payload_bytes_max=9) as wheel:
        assert wheel.is_new
        assert (wheel._sync, wheel.payload_bytes_max, wheel._dir.settings.slots) == ("never", 9, 60)
    with Wheel(tmp_path / "w") as wheel:
        assert wheel._sync == "never"


def test_a_wheel_that_is_there_is_opened_with_the_handles_own_sync(tmp_path: Path) -> None:
    Wheel.create(tmp_path / "w", sync="never", slots=60).close()
    with Wheel.open_or_create(tmp_path / "w", sync="always", slots=900) as wheel:
        assert not wheel.is_new
        assert (wheel._sync, wheel._dir.settings.sync, wheel._dir.settings.slots) == ("always", "never", 60)
    with Wheel.open_or_create(tmp_path / "w") as wheel:
        assert wheel._sync == "never"


def test_a_wheel_that_is_there_is_opened_without_a_write(tmp_path: Path) -> None:
    Wheel.create(tmp_path / "w").close()
    calls: list[str] = []

    def note(kind: str, name: str) -> None:
        calls.append(kind)

    Wheel.open_or_create(tmp_path / "w", env=SYSTEM.using(disk=lambda path: FaultyDisk(path, note))).close()
    assert not {"pwrite", "fdatasync", "sync_all", "sync_dir", "rename"}.intersection(calls)


def test_of_many_that_open_or_create_at_once_one_has_made_it(tmp_path: Path) -> None:
    begin = threading.Barrier(8)
    found: list[bool] = []

    def play() -> None:
        begin.wait(60)
        with Wheel.open_or_create(tmp_path / "w") as wheel:
            wheel.enqueue(b"x", delay=5)
            found.append(wheel.is_new)

    threads = [threading.Thread(target=play) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [False] * 7 + [True]
    with Wheel(tmp_path / "w") as wheel:
        assert wheel.stats().pending == 8


def test_where_no_wheel_can_be_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(WheelExists):
        Wheel.open_or_create(tmp_path / "full")
    with pytest.raises((WheelExists, NoWheel)):
        Wheel.open_or_create(tmp_path / "file")
    with pytest.raises(NoWheel, match="parent"):
        Wheel.open_or_create(tmp_path / "no" / "w")
    for wrong in ({"sync": "sometimes"}, {"slots": 5}, {"payload_bytes_max": 0}, {"force": 1}):
        with pytest.raises(BadArgument):
            Wheel.open_or_create(tmp_path / "w", **wrong)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            AsyncWheel.open_or_create(tmp_path / "w", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "w").exists()


def test_an_event_loop_opens_or_creates_alike(tmp_path: Path) -> None:
    async def main() -> None:
        for pending in (1, 2):
            async with AsyncWheel.open_or_create(tmp_path / "w", sync="never") as wheel:
                await wheel.enqueue(b"x", delay=5)
                assert (await wheel.stats()).pending == pending

    asyncio.run(main())
