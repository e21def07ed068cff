"""A scheduler in a wrong place: what it makes is said, what is enqueued there is warned of, and it can be forbidden."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import AsyncScheduler, NoWheel, Scheduler, Wheel
from tests.conftest import assert_whole

MADE = "was missing: this process made a new wheel"


def enqueue(path: Path, **options: bool) -> None:
    """Enqueue twice with a Scheduler."""
    scheduler = Scheduler(path, **options)
    try:
        scheduler.enqueue("email", ["ann"])
        scheduler.enqueue("email", ["bob"])
    finally:
        scheduler.stop()


def schedule(path: Path, **options: bool) -> None:
    """Start recurring work with a Scheduler."""
    scheduler = Scheduler(path, **options)
    try:
        scheduler.schedule("nightly", "@daily", "email")
    finally:
        scheduler.stop()


def enqueue_async(path: Path, **options: bool) -> None:
    """Enqueue with an AsyncScheduler."""

    async def main() -> None:
        scheduler = AsyncScheduler(path, **options)
        try:
            await scheduler.enqueue("email", ["ann"])
        finally:
            await scheduler.stop()

    asyncio.run(main())


def schedule_async(path: Path, **options: bool) -> None:
    """Start recurring work with an AsyncScheduler."""

    async def main() -> None:
        scheduler = AsyncScheduler(path, **options)
        try:
            await scheduler.schedule("nightly", "@daily", "email")
        finally:
            await scheduler.stop()

    asyncio.run(main())


EACH = pytest.mark.parametrize("write", [enqueue, schedule, enqueue_async, schedule_async])


@EACH
def test_what_is_enqueued_into_a_wheel_that_was_made_here_is_warned_of_once_with_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, write: Callable[..., None]
) -> None:
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "filewheel"):
        write(Path("jobs.wheel"))
    made = [r for r in caplog.records if "made a new wheel" in r.message]
    assert [r.levelname for r in made] == ["INFO", "WARNING"]
    assert made[0].message == f"made a new wheel at {tmp_path / 'jobs.wheel'}"
    assert made[1].message.startswith(f"{tmp_path / 'jobs.wheel'} {MADE}")
    assert_whole(tmp_path / "jobs.wheel")


@EACH
def test_what_is_enqueued_into_a_wheel_that_was_there_is_not_warned_of(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture, write: Callable[..., None]
) -> None:
    write(wheel_dir)
    assert not caplog.records


@EACH
def test_without_create_a_wheel_that_is_not_there_is_an_error_and_nothing_is_made(
    tmp_path: Path, write: Callable[..., None]
) -> None:
    with pytest.raises(NoWheel, match=f"filewheel -C {tmp_path / 'jobs.wheel'} init"):
        write(tmp_path / "jobs.wheel", create=False)
    assert not list(tmp_path.iterdir())


def test_without_create_a_scheduler_does_not_start_where_no_wheel_is(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "jobs.wheel", create=False)
    for begin in (scheduler.start, scheduler.drain, scheduler.run):
        with pytest.raises(NoWheel):
            begin()  # type: ignore[operator]
    assert not list(tmp_path.iterdir())
    scheduler.stop()


@EACH
def test_without_create_a_wheel_that_is_there_is_used(wheel_dir: Path, write: Callable[..., None]) -> None:
    write(wheel_dir, create=False)
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending


def test_create_says_whether_it_made_the_wheel_or_found_it(tmp_path: Path) -> None:
    with Wheel.create(tmp_path / "w") as made, Wheel.create(tmp_path / "w", exist_ok=True) as found:
        assert (made.is_new, found.is_new) == (True, False)
    with Wheel(tmp_path / "w") as opened:
        assert not opened.is_new
