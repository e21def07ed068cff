"""A snapshot shows one instant, though files are dealt anew and removed while it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Message, Wheel
from filewheel.journal import reader
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from filewheel.lookup import snapshot as snapshots
from filewheel.lookup.stats import stats_of
from filewheel.tools.dump import dump
from tests.support import FakeClock, open_below


@pytest.fixture
def keeper(wheel_dir: Path, clock: FakeClock) -> Iterator[Keeper]:
    with Keeper(wheel_dir, clock=clock, background=False) as opened:
        yield opened


@pytest.fixture
def move(wheel: Wheel, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Put 40 messages into lap files; return what moves all of them and removes those files."""
    monkeypatch.setattr(snapshots, "WALK_BUDGET", Budget(records=5, bytes=1 << 20))
    for n in range(40):
        wheel.enqueue(bytes(20_000), delay=5000 + 400 * n, key=f"k{n}", sync="never")
    deal(keeper)

    def moved() -> None:
        for _ in range(3):  # more than half of each file is dropped then
            for n in range(40):
                wheel.reschedule(key=f"k{n}", delay=5000 + 400 * (39 - n), sync="never")
            deal(keeper)
        deal(keeper)

    return moved


def deal(keeper: Keeper) -> None:
    Deal(keeper._store, spread=False, finished=keeper._head.finished).run()


def lap_files(path: Path) -> set[str]:
    return {file.name for file in (path / "laps").glob("*.lap")}


def keys_of(messages: Iterator[Message]) -> list[str | None]:
    return [message.key for message in messages]


ALL = [f"k{n}" for n in range(40)]


def test_files_that_are_removed_in_the_middle_of_a_dump_are_read_to_their_end(
    wheel: Wheel, move: Callable[[], None]
) -> None:
    before = lap_files(Path(wheel.path))
    messages = dump(wheel)
    first = next(messages)
    move()
    assert not before & lap_files(Path(wheel.path))
    assert [first.key, *keys_of(messages)] == ALL
    assert not [path for path in open_below(Path(wheel.path)) if path.endswith(" (deleted)")]


def test_a_snapshot_whose_files_go_before_anything_was_read_is_one_of_later(
    wheel: Wheel, move: Callable[[], None]
) -> None:
    with wheel.snapshot() as snapshot:
        move()
        assert keys_of(snapshot.messages()) == ALL[::-1]
        assert not snapshot.is_overtaken


def test_a_count_whose_files_go_in_the_middle_counts_again(wheel: Wheel, move: Callable[[], None]) -> None:
    with wheel.snapshot() as snapshot:
        assert len(list(snapshot.window(b"", b"\xff" * 16, Budget(records=1, bytes=1)).puts)) == 1
        move()
        assert stats_of(wheel._dir, snapshot).pending == 40


def test_a_walk_over_more_files_than_are_kept_open_says_that_it_was_overtaken(
    wheel: Wheel, move: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PINNED_MAX", 2)
    monkeypatch.setattr(reader, "PINNED_MAX", 2)
    with wheel.snapshot() as snapshot:
        messages = snapshot.messages()
        next(messages)
        move()
        assert list(messages)
        assert snapshot.is_overtaken
