"""`backup verify`: each kind of file damaged on either side is found, and a whole set beside load is never blamed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import BackupCheck, BadArgument, Keeper, Wheel, add_backup, verify_backups
from filewheel.disk.disk import SYSTEM
from filewheel.errors import NoWheel
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S
from filewheel.sets.replicator import Replicator
from filewheel.sets.target import LOG_START
from tests.sets.support import Pair
from tests.sets.support_sets import Place, place

__all__ = ["place"]

SIDES = ["primary", "backup"]


def check(pair: Pair) -> BackupCheck:
    (found,) = verify_backups(pair.primary, env=SYSTEM.using(clock=pair.clock))
    return found


def fill(pair: Pair) -> None:
    """Give the primary messages in a lap, in slots and in a journal, and the backup all of them."""
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"near"] * 9, delay=20)
        wheel.enqueue_many([b"far"] * 9, delay=3600)
    with pair.keeper() as keeper:
        keeper.claim()
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
    with pair.wheel() as wheel:
        for n in range(3):
            wheel.enqueue(b"new %d" % n, delay=30)
        pair.settle(1)
    pair.settle(1)
    pair.close()


def one_of(path: Path, kind: str) -> Path:
    return sorted(path.glob({"lap": "laps/*.lap", "slot": "laps/*/*.slot", "journal": "journal/*.log"}[kind]))[0]


def flip(path: Path, at: int = 80) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)
def test_a_backup_that_has_all_is_in_step(pair: Pair) -> None:
    fill(pair)
    found = check(pair)
    assert (found.state, found.mismatches, found.why) == ("in step", [], "")
    assert found.compared_bytes > 1000


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["lap", "slot", "journal"])
@pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)
def test_a_flipped_bit_is_found_on_either_side_with_its_file_and_offset(pair: Pair, kind: str, side: str) -> None:
    fill(pair)
    whole = getattr(pair, side)
    file = one_of(whole, kind)
    for at in (4, 80):  # in the header of a frame, and in its content
        flip(file, at)
        found = check(pair)
        flip(file, at)
        assert found.state == "differs"
        assert [(m.name, m.offset, m.damaged) for m in found.mismatches] == [(str(file.relative_to(whole)), 0, side)]
    assert check(pair).state == "in step"


@pytest.mark.parametrize("at", [4, 80])
def test_a_flipped_bit_in_the_last_frame_of_a_journal_is_no_lag(pair: Pair, at: int) -> None:
    fill(pair)
    file = one_of(pair.backup, "journal")
    data = file.read_bytes().rstrip(b"\0")
    last = data.rindex(b"new 2") - at
    flip(file, last)
    assert [m.damaged for m in check(pair).mismatches] == ["backup"]
    flip(file, last)


@pytest.mark.parametrize("kind", ["lap", "slot"])
def test_the_same_bit_flipped_on_both_sides_differently_is_damage_on_both(pair: Pair, kind: str) -> None:
    fill(pair)
    pair.damaged = [pair.primary, pair.backup]
    flip(one_of(pair.primary, kind), 80)
    flip(one_of(pair.backup, kind), 90)
    assert [m.damaged for m in check(pair).mismatches] == ["both"]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", ["lap", "slot"])
def test_a_file_that_is_missing_on_either_side_is_named(pair: Pair, kind: str, side: str) -> None:
    fill(pair)
    pair.damaged = [getattr(pair, side)]
    file = one_of(getattr(pair, side), kind)
    file.unlink()
    (found,) = check(pair).mismatches
    assert (found.name, found.damaged, found.what) == (
        str(file.relative_to(getattr(pair, side))),
        side,
        "the file is missing",
    )


def test_a_journal_that_the_primary_lost_is_named(pair: Pair) -> None:
    fill(pair)
    file = one_of(pair.primary, "journal")
    data = file.read_bytes()
    file.unlink()
    assert [(m.name, m.damaged) for m in check(pair).mismatches] == [(f"journal/{file.name}", "primary")]
    file.write_bytes(data)


def test_a_journal_that_the_backup_lost_is_lag_and_never_in_step(pair: Pair) -> None:
    fill(pair)
    one_of(pair.backup, "journal").unlink()
    found = check(pair)
    assert found.state == "behind"
    assert found.status.lag_bytes


@pytest.mark.parametrize("files", ["journal/*.log", "laps/*.lap"])
@pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)
def test_a_file_that_a_backup_lost_is_copied_again_while_the_link_runs(pair: Pair, files: str) -> None:
    with pair.wheel() as wheel:
        pair.settle(1)
        wheel.enqueue(b"in a lap", delay=300)
        pair.keeper().close()
        wheel.enqueue(b"in a journal", delay=300)
        pair.settle(1)
    pair.settle(1)
    for file in pair.backup.glob(files):
        file.unlink()
    pair.settle(12)
    assert check(pair).state == "in step"


@pytest.mark.parametrize("kind", ["lap", "slot"])
@pytest.mark.parametrize("side", SIDES)
def test_a_file_that_was_cut_is_found(pair: Pair, kind: str, side: str) -> None:
    fill(pair)
    pair.damaged = [getattr(pair, side)]
    file = one_of(getattr(pair, side), kind)
    file.write_bytes(file.read_bytes()[:50])
    assert [m.damaged for m in check(pair).mismatches] == [side]


def test_bytes_above_what_counts_are_no_difference_and_a_longer_journal_is_one(pair: Pair) -> None:
    fill(pair)
    for kind in ("lap", "slot"):
        with one_of(pair.backup, kind).open("ab") as file:
            file.write(b"left by a tick that was cut short")
    assert check(pair).state == "in step"
    journal = one_of(pair.primary, "journal")
    whole = journal.read_bytes()
    end = whole.rindex(b"new 2") - 90
    journal.write_bytes(whole[: end - end % 8])  # the copy has a frame that the primary has not any more
    assert [m.damaged for m in check(pair).mismatches] == ["primary"]
    journal.write_bytes(whole)


def test_a_backup_that_is_behind_says_by_how_much(pair: Pair) -> None:
    fill(pair)
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 100, delay=60)
    pair.clock.advance(3)
    found = check(pair)
    assert (found.state, found.status.lag_messages) == ("behind", 100)
    assert found.status.lag_bytes is not None
    assert found.status.lag_bytes > 1000
    assert found.status.lag_s is not None
    assert found.status.lag_s >= 3
    pair.keeper().close()  # a deal that the backup has not
    assert check(pair).state == "behind"


def set_back(pair: Pair, image: dict[Path, bytes]) -> None:
    """Put an older image in the primary's place."""
    for path in [p for p in pair.primary.rglob("*") if p.is_file()]:
        path.unlink()
    for path, data in image.items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    pair.damaged = [pair.primary, pair.backup]


def test_a_primary_that_was_set_back_differs_before_and_after_it_goes_on(pair: Pair) -> None:
    fill(pair)
    image = {path: path.read_bytes() for path in pair.primary.rglob("*") if path.is_file()}
    due = pair.clock.now_us() / US_PER_S + 3600
    with pair.wheel() as wheel:
        wheel.enqueue(b"one", at=due)
    pair.keeper().close()
    pair.settle(1)
    pair.close()
    set_back(pair, image)
    assert [(m.name, m.damaged) for m in check(pair).mismatches] == [("checkpoint", "neither")]
    for _ in range(3):
        with pair.wheel() as wheel:
            wheel.enqueue(b"two", at=due)
        pair.keeper().close()
    assert {m.damaged for m in check(pair).mismatches} == {"neither"}


def test_a_tick_that_was_cut_short_is_no_difference(pair: Pair) -> None:
    fill(pair)
    kept = {p: p.read_bytes() for p in pair.backup.rglob("*") if p.is_file()}
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 50, delay=20)
        pair.tick()
        pair.kill()
        log = (pair.backup / "ticks").read_bytes()
    assert len(log) > LOG_START
    for path, data in kept.items():
        path.write_bytes(data)
    (pair.backup / "ticks").write_bytes(log)
    # A power cut left the log, and of the step itself a hole.
    journals = [p for p in (pair.backup / "journal").glob("*.log") if p not in kept]
    for path in journals:
        path.write_bytes(bytes(200) + path.read_bytes()[200:])
    assert journals
    assert check(pair).mismatches == []
    pair.settle(1)
    pair.close()
    assert check(pair).state == "in step"


def test_beside_a_replicator_a_keeper_and_producers_nothing_differs(place: Place) -> None:
    place.make_set(place.b)
    add_backup(place.a, place.c, mode="mirror", env=SYSTEM.using(clock=place.clock))
    place.level(place.a)
    ending = threading.Event()
    failed: list[BaseException] = []

    def go(act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                while not ending.is_set():
                    act()
            except BaseException as exc:
                failed.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def produce() -> None:
        with Wheel(place.a, clock=place.clock, sync="never") as wheel:
            for _ in range(20):
                wheel.enqueue_many([b"x" * 200] * 20, delay=3)

    def fire() -> None:
        with Keeper(place.a, wait=False, background=False, clock=place.clock) as keeper:
            for _ in range(10):
                while batch := keeper.claim(1000):
                    keeper.ack(batch)

    with Replicator(place.a, interval_s=0.001, env=SYSTEM.using(clock=place.clock)) as replicator:
        threads = [threading.Thread(target=replicator.run), go(produce), go(produce), go(fire)]
        threads[0].start()
        try:
            for _ in range(12):
                for one in verify_backups(place.a, env=SYSTEM.using(clock=place.clock)):
                    assert one.mismatches == []
        finally:
            ending.set()
            replicator.stop()
            for thread in threads:
                thread.join()
    assert failed == []
    place.level(place.a)
    assert [one.state for one in verify_backups(place.a)] == ["in step", "in step"]


def test_a_backup_that_cannot_be_read_or_is_not_copied_yet_is_unknown(place: Place) -> None:
    place.make_set(place.b)
    add_backup(place.a, place.c, env=SYSTEM.using(clock=place.clock))
    place.b.rename(place.base / "away")
    states = {one.status.member.path: (one.state, bool(one.why)) for one in verify_backups(place.a)}
    assert states == {str(place.b): ("unknown", True), str(place.c): ("unknown", False)}
    (place.base / "away").rename(place.b)


def test_a_wheel_in_no_set_and_a_set_without_its_primary_are_errors(place: Place) -> None:
    place.make(place.a)
    with pytest.raises(BadArgument, match="in no set"):
        verify_backups(place.a)
    place.make_set(place.b)
    place.a.rename(place.base / "away")
    with pytest.raises(NoWheel):
        verify_backups(place.b)
    (place.base / "away").rename(place.a)
