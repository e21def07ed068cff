"""What only the backup has: given back where the primary lost it, and never dropped for a primary that goes away."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import OsDisk
from filewheel.errors import FilewheelError, KeyHeld
from filewheel.journal.journal import Journal
from filewheel.keys.index import Keys
from filewheel.keys.upkeep import Compactor
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S
from filewheel.sets.copy import Ahead
from filewheel.sets.lag import lag_of
from filewheel.sets.target import replay
from tests.sets.support import Pair, fire


def slot_files(path: Path) -> list[Path]:
    return sorted(p for p in (path / "laps").rglob("*") if p.is_file())


def deal(pair: Pair) -> None:
    """Have the primary deal everything, into lap files."""
    pair.keeper().close()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage(path: Path) -> None:
    """Flip a bit in the first frames: a journal has room behind them."""
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "deleted"])
@pytest.mark.parametrize("phase", range(8))
def test_what_damage_took_from_the_primary_is_given_back_and_fires_whenever_that_was_noticed(
    pair: Pair, how: str, phase: int
) -> None:
    pair.damaged = [pair.primary]
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 50, delay=30)
    pair.settle(1)
    deal(pair)
    pair.settle(1)
    (file,) = slot_files(pair.primary)
    if how == "flipped":
        flip(file)
    else:
        file.unlink()
    # The keeper finds the damage and puts it aside; the link looks some moments later, and notes places meanwhile.
    pair.clock.advance(30)
    pair.tick(5 + phase, 0.06)
    with pair.keeper() as keeper:
        first = fire(pair, keeper)
        Deal(keeper._store, spread=True, finished=keeper._head.finished).run()  # now only the quarantine knows of it
        pair.settle()
        assert pair.link is not None
        again = fire(pair, keeper)
        assert set(first) | set(again) == set(ids)
        assert pair.link.report.returned == len(ids) - len(first)
        pair.settle()
        pair.assert_equal()


def test_a_message_that_is_given_back_has_its_key_again(pair: Pair) -> None:
    pair.damaged = [pair.primary]
    with pair.wheel() as wheel:
        id_ = wheel.enqueue(b"x", delay=30, key="only one")
        pair.settle(1)
        deal(pair)
        pair.settle(1)
        (file,) = slot_files(pair.primary)
        file.unlink()
        pair.clock.advance(60)
        # Nobody has met the damage: to the finder the message is not pending.
        keys = Keys(open_directory(pair.primary, write=True))
        Compactor(keys).compact(keys.hash_of("only one")[0], pair.clock.now_us())
        pair.tick().scrub()
        pair.settle()
        with pytest.raises(KeyHeld) as caught:
            wheel.enqueue(b"y", key="only one")
        assert caught.value.id == id_


def test_damage_that_nobody_has_met_yet_is_not_taken_for_messages_that_were_fired(pair: Pair) -> None:
    pair.damaged = [pair.primary]
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 50, delay=5000)
    pair.settle(1)
    deal(pair)
    pair.settle(1)
    for file in slot_files(pair.primary):
        flip(file)
    link = pair.tick()
    link.scrub()
    pair.settle()
    assert pair.pending(pair.backup) == set(ids)
    assert link.report.returned == 50
    assert pair.pending(pair.primary) == set(ids)


def test_what_was_fired_while_no_link_was_there_is_not_given_back_for_a_damaged_journal_but_dropped(
    pair: Pair,
) -> None:
    pair.damaged = [pair.primary, pair.backup]
    with pair.wheel() as wheel:
        wheel.enqueue_many([b"x"] * 10, delay=1)
        later = wheel.enqueue(
            b"later", delay=50
        )  # so the backup's file is not absent in the primary: each message is looked into
        pair.settle(0.5)
        pair.close()
        pair.clock.advance(5)
        with pair.keeper() as keeper:
            assert len(fire(pair, keeper)) == 10
            before = {*(pair.primary / "journal").glob("*.log")}
            with pair.wheel() as other:
                other.enqueue(b"lost", delay=60)
            (journal,) = {*(pair.primary / "journal").glob("*.log")} - before
            damage(journal)
            assert fire(pair, keeper) == []  # it puts the damage aside, which may concern every id
            link = pair.settle()
            assert link.report.returned == 0
            assert pair.pending(pair.backup) == {bytes(later)}
            pair.assert_equal()


def test_damage_in_the_backup_is_healed(pair: Pair) -> None:
    pair.damaged = [pair.backup]
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 50, delay=5000)
    pair.settle(1)
    pair.close()
    for file in slot_files(pair.backup):
        file.unlink()
    pair.settle()
    assert pair.pending(pair.backup) == set(ids)
    assert pair.differences() == []


def test_journals_of_the_primary_that_someone_deletes_are_given_back(pair: Pair) -> None:
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 20, delay=5000)
        pair.settle(1)
    for file in (pair.primary / "journal").iterdir():
        file.unlink()
    link = pair.settle(12)
    assert link.report.returned == 20
    assert pair.pending(pair.primary) == pair.pending(pair.backup) == set(ids)


def look_on(pair: Pair, seconds: float) -> None:
    """Let time pass; a link that gives up is followed by another, as the replicator does."""
    for _ in range(8):
        try:
            pair.tick(pause_s=seconds / 4)
        except (FilewheelError, OSError):
            if pair.link is not None:
                with contextlib.suppress(FilewheelError, OSError):
                    pair.link.abandon()
                pair.link = None
            pair.clock.advance(seconds / 4)


def deal_more(pair: Pair) -> None:
    """Have some of the primary in seconds, too."""
    with contextlib.suppress(FilewheelError), pair.keeper() as keeper:
        keeper.claim()


@pytest.mark.parametrize("name", ["journal", "laps", "checkpoint", "roster.json", "wheel.json", "quarantine"])
def test_a_primary_that_lacks_a_part_costs_the_backup_nothing(pair: Pair, name: str) -> None:
    with pair.wheel() as wheel:
        ids = set(wheel.enqueue_many([b"x"] * 20, delay=5000))
        pair.settle(1)
        deal(pair)
        ids |= set(wheel.enqueue_many([b"y"] * 20, delay=100))
        pair.settle(1)
    link = pair.tick()
    link.scrub()
    os.rename(pair.primary / name, pair.primary / f"{name}.away")
    for _ in range(10):
        look_on(pair, 2.0)
    os.rename(pair.primary / f"{name}.away", pair.primary / name)
    assert pair.pending(pair.backup) >= ids
    pair.settle()
    assert pair.pending(pair.backup) == pair.pending(pair.primary) == ids


def test_without_a_checkpoint_files_that_are_missing_are_not_taken_for_finished(pair: Pair) -> None:
    pair.damaged = [pair.primary]
    with pair.wheel() as wheel:
        ids = set(wheel.enqueue_many([b"x"] * 20, delay=5000))
        pair.settle(1)
    deal(pair)
    pair.settle(1)
    for name in ("checkpoint", "checkpoint.old"):
        (pair.primary / name).unlink()
    for file in slot_files(pair.primary):
        file.unlink()
    look_on(pair, 2.0)
    assert pair.pending(pair.backup) == ids
    deal(pair)
    pair.settle(30)
    assert pair.pending(pair.backup) == pair.pending(pair.primary) == ids


def write_to(path: Path, records: list[bytes], puts: int) -> None:
    """Write one commit into a wheel, past everything."""
    directory = open_directory(path, write=True)
    with contextlib.closing(Journal(directory)) as journal:
        journal.append(records, puts)
    directory.disk.release()


def test_what_has_its_drop_in_a_damaged_primary_does_not_go_back_and_goes_in_the_backup_too(pair: Pair) -> None:
    pair.damaged = [pair.primary, pair.backup]
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 3, delay=5000)
    pair.settle(1)
    pair.keeper().close()
    pair.kill()
    with pair.wheel() as wheel:
        wheel.cancel_many(ids[:2])
    pair.keeper().close()
    with pair.wheel() as wheel:
        for _ in range(3):
            wheel.enqueue(b"y", delay=5000)
    segments = {p: p.read_bytes() for p in (pair.primary / "journal").iterdir()}
    (torn,) = (p for p, data in segments.items() if ids[0] not in data)
    flip(torn)  # a frame that a power cut tore: what it held is not known
    link = pair.settle(20)
    assert link.report.returned == 0
    assert pair.pending(pair.backup) == pair.pending(pair.primary)
    assert not pair.pending(pair.backup) & set(ids[:2])


class FailsFlushes(OsDisk):
    """A disk that reads and cannot flush."""

    def fdatasync(self, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_primary_that_was_set_back_to_an_image_and_went_on_is_not_mixed_with_its_backup(
    pair: Pair, tmp_path: Path
) -> None:
    """Its deals have the numbers of the backup's last ones, and write other frames into files of the same names."""
    pair.damaged = [pair.primary, pair.backup]

    def put(name: bytes) -> None:
        with pair.wheel() as wheel:
            wheel.enqueue(name, delay=10_000)
        deal(pair)

    put(b"a")
    pair.settle(1)
    pair.close()
    shutil.copytree(pair.primary, tmp_path / "image", ignore=shutil.ignore_patterns("hint"))
    put(b"b")
    pair.settle(1)
    pair.close()
    shutil.rmtree(pair.primary)
    (tmp_path / "image").rename(pair.primary)
    for name in (b"x", b"y", b"z"):
        put(name)
    with pytest.raises(Ahead, match="one was set back"):
        pair.tick()
    with Wheel(pair.backup) as wheel:
        assert sorted(m.payload for m in wheel.list()) == [b"a", b"b"]


def test_the_lag_of_a_backup_that_takes_no_write_grows(pair: Pair) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue(b"x", delay=10_000)
        pair.settle(2)
        wheel.enqueue(b"y", delay=10_000)
        pair.clock.advance(60)
        pair.close()
        replay(open_directory(pair.backup, write=True))  # as each new try of a link does
        lag = lag_of(open_directory(pair.primary, write=False), open_directory(pair.backup, write=False))
        assert lag.size_bytes > 0
        assert pair.clock.now_us() - lag.in_step_us >= 60 * US_PER_S


@pytest.mark.parametrize("pair", ["ship", "mirror"], indirect=True)
def test_a_lap_that_is_damaged_before_its_first_tick_loses_nothing_that_the_backup_has_in_its_journals(
    pair: Pair,
) -> None:
    pair.damaged = [pair.primary, pair.backup]
    with pair.wheel() as wheel:
        ids = {bytes(id_) for id_ in wheel.enqueue_many([b"x"] * 5, delay=300)}
        pair.settle(1)
    pair.settle(1)
    assert pair.pending(pair.backup) == ids
    deal(pair)
    (lap,) = slot_files(pair.primary)
    damage(lap)
    pair.settle(1)
    pair.clock.advance(400)
    fired = []
    with pair.keeper() as keeper:
        fired += fire(pair, keeper)
    assert {bytes(id_) for id_ in fired} == ids
