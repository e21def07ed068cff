"""A purge of a primary: its backups have nothing of what has ended either, with their next complete tick."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from filewheel import FilewheelError, Keeper, Purged
from filewheel.sets.target import Target
from tests.sets.support import Pair, fire

SECRET = b"secret-payload-4711"
LIVING = b"living-payload-0815"
DAY_S = 86_400


def files_with(path: Path, data: bytes) -> list[str]:
    """Return the files of a directory that have these bytes: what `grep -r` finds."""
    return [str(p.relative_to(path)) for p in sorted(path.rglob("*")) if p.is_file() and data in p.read_bytes()]


def deal(keeper: Keeper) -> None:
    """Deal all that producers have written."""
    keeper._store.ingest(test_locks=True)
    keeper._housekeeper.deal_all()


def raising(error: Exception) -> Callable[..., None]:
    """Return a function that raises this."""

    def fail(*_: object) -> None:
        raise error

    return fail


def fill(pair: Pair) -> None:
    """Have messages in laps, slots and journals of both wheels; the secret ones end."""
    with pair.keeper() as keeper, pair.wheel() as wheel:
        for payload in (SECRET, LIVING):
            for delay in (0, 30, 5000, 400 * DAY_S):
                wheel.enqueue_many([payload] * 3, delay=delay, topic="some" if payload == LIVING else "gone")
        wheel.enqueue(SECRET, delay=DAY_S, key=SECRET.decode(), topic="gone")
        wheel.flush()
        pair.tick(5)
        deal(keeper)
        pair.tick(5)
        fire(pair, keeper)
        wheel.cancel_many([m.id for m in wheel.list(topic="gone")])
        wheel.enqueue(LIVING, delay=60)
        wheel.cancel(wheel.enqueue(SECRET, delay=60))
        wheel.flush()
        pair.tick(5)
        assert {name.partition("/")[0] for name in files_with(pair.backup, SECRET)} >= {"journal", "laps", "ticks"}


@pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)
def test_after_a_purge_of_the_primary_nothing_of_what_has_ended_is_in_a_file_of_its_backup(pair: Pair) -> None:
    pair.settle(1)
    fill(pair)
    with pair.wheel() as wheel:
        wheel.purge(timeout_s=0)
    assert files_with(pair.primary, SECRET) == []
    pair.tick()
    assert files_with(pair.backup, SECRET) == []
    assert files_with(pair.backup, LIVING)
    pair.settle()
    pair.assert_equal()


def test_a_file_of_a_tick_that_was_cut_short_goes_though_no_checkpoint_of_the_backup_named_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.settle(1)
    with pair.keeper() as keeper, pair.wheel() as wheel:
        gone = wheel.enqueue(SECRET, delay=400 * DAY_S)
        wheel.enqueue(LIVING, delay=400 * DAY_S)
        wheel.flush()
        deal(keeper)
        with monkeypatch.context() as patch:
            patch.setattr(Target, "commit", raising(OSError(errno.EIO, "the disk is away")))
            with pytest.raises(FilewheelError):
                pair.tick()
        pair.kill()
        assert any(name.startswith("laps/") for name in files_with(pair.backup, SECRET))
        wheel.cancel(gone)
    with pair.wheel() as wheel:
        wheel.purge(timeout_s=0)
    pair.settle(1)
    assert files_with(pair.backup, SECRET) == []
    assert pair.differences() == []


def test_a_purge_waits_for_a_backup_that_follows_and_names_one_that_does_not(pair: Pair) -> None:
    pair.settle()
    fill(pair)

    def purge() -> tuple[Purged, list[str]]:
        with pair.wheel() as wheel:
            return wheel.purge(timeout_s=60), files_with(pair.backup, SECRET)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(purge)
        while not asked.done():
            pair.tick()
    assert asked.result() == (Purged(), [])
    pair.kill()
    with pair.wheel() as wheel:
        wheel.cancel(wheel.enqueue(SECRET, delay=60))
        (one,) = wheel.purge(timeout_s=0.1).unreached
        assert (one.place, "behind" in one.what) == (str(pair.backup), True)
    pair.settle()
    with pair.wheel() as wheel:
        assert wheel.purge(timeout_s=0).unreached == (one,), "its own deal is a new one"


def test_the_history_of_a_former_primary_is_cleaned_and_its_quarantine_is_named(pair: Pair) -> None:
    pair.settle()
    with Keeper(pair.primary, background=False, clock=pair.clock, history=100) as keeper, pair.wheel() as wheel:
        wheel.enqueue_many([SECRET] * 2, topic="ann")
        wheel.enqueue(LIVING, topic="bob")
        wheel.flush()
        fire(pair, keeper)
        keeper.observer.publish()
    shutil.copytree(pair.primary / "history", pair.backup / "history")  # as it is after a promotion and a rejoin
    (pair.backup / "quarantine" / "laps_1.lap@0.bin").write_bytes(SECRET)

    def purge() -> Purged:
        with pair.wheel() as wheel:
            return wheel.purge(topic="ann", timeout_s=60)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(purge)
        while not asked.done():
            pair.tick()
    done = asked.result()
    assert done.history == 4
    assert [one.place for one in done.unreached] == [f"{pair.backup}/quarantine/laps_1.lap@0.bin"]
    assert b"bob" in (pair.backup / "history" / "000001.jsonl").read_bytes()
    assert files_with(pair.backup / "history", b"ann") == []
    (pair.backup / "quarantine" / "laps_1.lap@0.bin").unlink()
