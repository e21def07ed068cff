"""What only the backup has: given back where the primary lost it, and never dropped for a primary that goes away."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path

import pytest

from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import FilewheelError, KeyHeld
from filewheel.format.record import RETRIED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.keys.index import Keys
from filewheel.keys.upkeep import Compactor
from filewheel.laps.deal import Deal
from filewheel.message import US_PER_S
from filewheel.replication.link import Link
from filewheel.roster.retention import Retention
from tests.replication.support import Pair, fire
from tests.support_wheel import a_put, an_id


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
        keys = Keys(open_directory(pair.primary, write=True))
        Compactor(keys).compact(keys.hash_of("only one")[0], pair.clock.now_us())
        assert keys.ids_of("only one") == []
        pair.tick().heal()
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
    link.heal()
    pair.settle()
    assert pair.pending(pair.backup) == set(ids)
    assert link.report.returned == 50
    assert pair.pending(pair.primary) == set(ids)


def test_damage_from_before_it_was_in_step_gives_nothing_back_that_was_fired_since(pair: Pair) -> None:
    pair.damaged = [pair.primary]
    (pair.primary / "quarantine" / "journal_ABCDEFGH-000001.log@0.json").write_text(
        '{"name": "journal/ABCDEFGH-000001.log", "found": "2020-01-01T00:00:00+00:00"}\n'
    )
    with pair.keeper() as keeper, pair.wheel() as wheel:
        pair.settle(1)
        pair.close()
        wheel.enqueue_many([b"x"] * 10, delay=1)
        pair.settle(0.5)
        pair.kill()
        pair.clock.advance(5)
        assert len(fire(pair, keeper)) == 10
        pair.boot = "another boot"
        link = pair.settle()
        assert link.report.returned == 0
        assert fire(pair, keeper) == []
        pair.assert_equal()


def test_what_was_fired_while_no_link_was_there_is_not_given_back_for_a_damaged_journal_but_dropped(
    pair: Pair,
) -> None:
    pair.damaged = [pair.primary]
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
            pair.boot = "another boot"  # so it heals
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


@pytest.mark.parametrize("healing", [False, True])
@pytest.mark.parametrize("mode", ["ship", "mirror"])
@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_dropped_for_a_primary_that_is_being_deleted(
    tmp_path: Path, seed: int, mode: str, healing: bool
) -> None:
    rng = random.Random(seed)
    pair = Pair(tmp_path, mode=mode)  # type: ignore[arg-type]
    pair.settle(1)
    with pair.wheel() as wheel:
        ids = set(wheel.enqueue_many([b"x"] * 20, delay=5000))
        pair.settle(1)
        deal(pair)
        ids |= set(wheel.enqueue_many([b"y"] * 20, delay=5000))
        ids |= set(wheel.enqueue_many([b"z"] * 20, delay=100))
        pair.settle(1)
        deal_more(pair)
        ids |= {wheel.enqueue(b"journal", delay=60) for _ in range(3)}
        pair.settle(1)
    assert pair.pending(pair.backup) == ids
    files = [p for p in pair.primary.rglob("*") if p.is_file()]
    if seed % 2:
        rng.shuffle(files)
    else:
        last = rng.sample(["wheel.json", "roster.json", "checkpoint", "keeper.lock"], 4)
        files.sort(key=lambda p: (p.name in last, rng.random()))
    with contextlib.suppress(FilewheelError, OSError):
        for file in files:
            file.unlink()
            if healing and pair.link is not None:
                pair.link.heal()
            if file.name == "roster.json" and rng.random() < 0.5:
                break
            look_on(pair, rng.choice([0.02, 0.3, 1.1, 7.0]))
    with contextlib.suppress(FilewheelError, OSError):
        if pair.link is not None:
            pair.kill()
    assert pair.pending(pair.backup) >= ids
    pair.damaged = [pair.primary]
    pair.verify()


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
    link.heal()
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
    pair.tick().heal()
    pair.settle(30)
    assert pair.pending(pair.backup) == ids


def test_a_message_that_only_the_backup_has_is_looked_at_twice_before_it_goes(pair: Pair) -> None:
    with pair.wheel() as wheel:
        kept = wheel.enqueue(b"kept", delay=5000)
    pair.settle(1)
    pair.close()
    with Wheel(pair.primary, clock=pair.clock) as here:
        message = here.get(kept)
        assert message is not None
    # A stray: nobody wrote a drop for it.
    journal = Journal(open_directory(pair.backup, write=True))
    stray = journal.new_id(message.due_us + 1)
    journal.append([a_put(stray)], 1)
    journal.close()
    link = pair.tick()
    link.heal()
    pair.tick(20)
    assert pair.pending(pair.backup) == {kept, stray}
    pair.tick(10, 0.2)
    assert pair.pending(pair.backup) == {kept}
    assert link.report.healed_drops == 1


def write_to(path: Path, records: list[bytes], puts: int) -> None:
    """Write one commit into a wheel, past everything."""
    directory = open_directory(path, write=True)
    with contextlib.closing(Journal(directory)) as journal:
        journal.append(records, puts)
    directory.disk.release()


def test_what_has_its_drop_in_a_damaged_primary_does_not_go_back_and_goes_in_the_backup_too(pair: Pair) -> None:
    pair.damaged = [pair.primary]
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 3, delay=5000)
    pair.settle(1)
    pair.keeper().close()
    pair.kill()
    with pair.wheel() as wheel:
        wheel.cancel_many(ids[:2])
    pair.keeper().close()
    # The drops are in the lap's file only: no journal tells of them any more.
    kept = Retention(open_directory(pair.primary, write=True), limit_bytes=1 << 30)
    kept.release(kept.names())
    with pair.wheel() as wheel:
        for _ in range(3):
            wheel.enqueue(b"y", delay=5000)
    segments = {p: p.read_bytes() for p in (pair.primary / "journal").iterdir()}
    (torn,) = (p for p, data in segments.items() if ids[0] not in data)
    flip(torn)  # a frame that a power cut tore: what it held is not known
    (pair.backup / "follows.json").unlink()
    link = pair.settle(20)
    assert link.report.returned == 0
    assert pair.pending(pair.backup) == pair.pending(pair.primary)
    assert not pair.pending(pair.backup) & set(ids[:2])


def test_a_move_that_the_primary_lost_is_made_there_once_more_and_the_backup_has_the_message(pair: Pair) -> None:
    with pair.wheel() as wheel:
        old, other = wheel.enqueue_many([b"moved", b"other"], delay=5000)
    pair.settle(1)
    pair.close()
    new = an_id(old.due_us // US_PER_S + 60)
    # Read by the link, and lost by the primary with a power cut: a retry is not flushed at once.
    write_to(pair.backup, [pack_drop(old, RETRIED), a_put(new, b"moved", root=old)], 1)
    pair.boot = "another boot"
    pair.settle()
    assert pair.pending(pair.primary) == pair.pending(pair.backup) == {new, other}


def test_what_the_backup_alone_had_moved_goes_when_it_can_have_the_primary_s_copy(pair: Pair) -> None:
    pair.settle(1)
    pair.close()
    with pair.wheel() as wheel:
        old = wheel.enqueue(b"moved", delay=5000)
    write_to(pair.backup, [a_put(an_id(old.due_us // US_PER_S + 60), b"moved", root=old)], 1)
    pair.boot = "another boot"
    pair.settle()
    assert pair.pending(pair.primary) == pair.pending(pair.backup) == {old}


class FailsFlushes(OsDisk):
    """A disk that reads and cannot flush."""

    def fdatasync(self, fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_for_a_primary_that_cannot_flush_nothing_is_dropped_until_it_can(pair: Pair) -> None:
    pair.settle(1)
    pair.close()
    only = an_id(2_000_000_000)
    write_to(pair.backup, [a_put(only)], 1)
    pair.boot = "another boot"
    pair.disk = lambda path: FailsFlushes(path) if path == str(pair.primary) else OsDisk(path)
    pair.settle()
    assert pair.pending(pair.backup) == {only}
    pair.kill()
    pair.disk = OsDisk
    pair.settle()
    assert pair.pending(pair.backup) == set()


def test_of_what_only_the_backup_of_a_fenced_primary_has_nothing_is_dropped_and_nobody_waits_for_it(pair: Pair) -> None:
    pair.settle(1)
    pair.close()
    only = an_id(2_000_000_000)
    write_to(pair.backup, [a_put(only)], 1)
    link = Link(str(pair.primary), pair.member(), fenced=True, env=SYSTEM.using(clock=pair.clock), boot="another boot")
    for _ in range(40):
        pair.clock.advance(0.25)
        link.tick()
    assert link.is_in_step(pair.clock.steady_us())
    link.close()
    assert pair.pending(pair.backup) == {only}
