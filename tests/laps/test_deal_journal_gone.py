"""A journal that the keeper has read, and that is gone before it was dealt: the keeper stops and fires nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path

import pytest

from filewheel import Damaged, FilewheelError, Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.laps.deal import Deal
from filewheel.tools.verify import verify
from tests.conftest import assert_whole
from tests.support import FakeClock

pytestmark = pytest.mark.damages


def journals(path: Path) -> set[str]:
    """The journal segments that are there."""
    return set(os.listdir(path / "journal"))


class Stage:
    """Two messages that were dealt and are due in ten seconds, and a cancel in a journal that the keeper has read."""

    def __init__(self, path: Path, *, disk: type[OsDisk] = OsDisk) -> None:
        self.path = path
        self.clock = FakeClock()
        with Wheel(path, clock=self.clock) as wheel:
            id_ = wheel.enqueue(b"cancelled", delay=10)
            self.kept = wheel.enqueue(b"kept", delay=10)
        with Keeper(path, clock=self.clock, background=False):
            pass
        self.keeper = Keeper(path, clock=self.clock, background=False, env=SYSTEM.using(disk=disk))
        self.wheel = Wheel(path, clock=self.clock)
        before = journals(path)
        assert self.wheel.cancel(id_)
        (self.name,) = journals(path) - before
        assert not self.keeper.claim()  # reads the cancel, and loads nothing so far ahead
        self.keeper._store.handles.close()  # as when many files were read since

    def end(self) -> None:
        self.keeper.close()
        self.wheel.close()


class Vanishing(OsDisk):
    """A disk from which a file goes right after the listing that still has it."""

    name = ""

    def listdir(self, name: str) -> list[str]:
        found = super().listdir(name)
        if self.name and name == "journal":
            self.unlink(f"journal/{self.name}")
            Vanishing.name = ""
        return found


@pytest.fixture
def vanishing() -> type[Vanishing]:
    Vanishing.name = ""
    return Vanishing


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_cancel_whose_journal_goes_in_the_middle_of_a_claim_holds(
    wheel_dir: Path, vanishing: type[Vanishing], is_closed: bool
) -> None:
    stage = Stage(wheel_dir, disk=vanishing)
    if is_closed:
        stage.wheel.close()
        stage.keeper._store.ingest(test_locks=True)
        stage.keeper._store.handles.close()
    stage.clock.advance(11)
    vanishing.name = stage.name
    for _ in range(2):
        with pytest.raises(Damaged, match="not dealt yet, and is gone") as caught:
            stage.keeper.claim()
        assert str(wheel_dir / "journal" / stage.name) in str(caught.value)
    assert not vanishing.name
    stage.end()


@pytest.mark.parametrize("was_listed", [False, True])
def test_a_cancel_that_was_not_read_before_its_journal_went_holds(
    wheel_dir: Path, vanishing: type[Vanishing], was_listed: bool
) -> None:
    stage = Stage(wheel_dir, disk=vanishing)
    stage.clock.advance(9)
    assert not stage.keeper.claim()  # loads what is due in a second
    stage.clock.advance(2)
    assert stage.wheel.cancel(stage.kept)
    if was_listed:
        stage.keeper._store.handles.close()
        vanishing.name = stage.name
    else:
        (wheel_dir / "journal" / stage.name).unlink()
    with pytest.raises(Damaged, match=stage.name):
        stage.keeper.claim()
    stage.end()


@pytest.mark.parametrize("order", ["journal", "laps", "keeper.lock", "wheel"])
def test_a_keeper_whose_wheel_is_deleted_from_under_it_fires_nothing_more(wheel_dir: Path, order: str) -> None:
    stage = Stage(wheel_dir)
    stage.clock.advance(11)
    if order == "keeper.lock":
        (wheel_dir / order).unlink()
    shutil.rmtree(wheel_dir / ("" if order == "wheel" else "journal" if order == "keeper.lock" else order))
    if order == "laps":
        (wheel_dir / "journal" / stage.name).unlink()
    for _ in range(2):
        with pytest.raises(FilewheelError):
            stage.keeper.claim()
    with contextlib.suppress(FilewheelError):
        stage.keeper.close()
    with contextlib.suppress(FilewheelError):
        stage.wheel.close()
    shutil.rmtree(wheel_dir, ignore_errors=True)


def test_after_a_segment_was_removed_by_hand_the_next_keeper_goes_on_and_verify_has_a_note(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage(wheel_dir)
    stage.wheel.close()
    (wheel_dir / "journal" / stage.name).unlink()
    with pytest.raises(Damaged, match=stage.name):
        stage.keeper.claim()
    with pytest.raises(Damaged, match=stage.name):
        stage.keeper.check_may_fire()
    assert [r.levelno for r in caplog.records if stage.name in r.getMessage()] == [logging.CRITICAL]
    stage.end()
    stage.clock.advance(11)
    with Keeper(wheel_dir, clock=stage.clock, background=False) as keeper:
        batch = keeper.claim()
        assert sorted(m.payload for m in batch) == [b"cancelled", b"kept"]  # the cancel was in what was removed
        keeper.ack(batch)
    report = verify(open_directory(wheel_dir, write=False))
    assert not report.damage
    (note,) = report.findings
    assert stage.name in note.what
    assert "is missing" in note.what


def test_a_deal_does_not_cover_a_segment_that_is_gone_and_it_counts_again_when_it_is_back(wheel_dir: Path) -> None:
    stage = Stage(wheel_dir)
    stage.wheel.close()
    name = wheel_dir / "journal" / stage.name
    data = name.read_bytes()
    stage.keeper._store.ingest(test_locks=True)
    name.unlink()
    with pytest.raises(Damaged, match=stage.name):
        Deal(stage.keeper._store, spread=True).run()
    with pytest.raises(Damaged, match=stage.name):
        stage.keeper.claim()
    stage.end()
    name.write_bytes(data)
    stage.clock.advance(11)
    with Keeper(wheel_dir, clock=stage.clock, background=False) as keeper:
        batch = keeper.claim()
        assert [m.payload for m in batch] == [b"kept"]
        keeper.ack(batch)
    for item in (wheel_dir / "quarantine").iterdir():
        item.unlink()
    assert_whole(wheel_dir)


def test_a_segment_that_goes_in_the_middle_of_a_deal_is_not_covered(
    wheel_dir: Path, vanishing: type[Vanishing]
) -> None:
    stage = Stage(wheel_dir, disk=vanishing)
    stage.wheel.close()
    stage.keeper._store.ingest(test_locks=True)
    covered = dict(stage.keeper._store.checkpoint.positions)
    vanishing.name = stage.name
    with pytest.raises(Damaged, match=stage.name):
        Deal(stage.keeper._store, spread=True).run()
    assert stage.keeper._store.checkpoint.positions == covered
    with pytest.raises(Damaged, match=stage.name):
        stage.keeper.claim()
    stage.end()


def test_segments_that_were_dealt_and_removed_are_not_missed(wheel_dir: Path) -> None:
    stage = Stage(wheel_dir)
    for _ in range(3):
        with Wheel(wheel_dir, clock=stage.clock) as wheel:
            wheel.enqueue(b"more", delay=5)
        assert not stage.keeper.claim()
        stage.keeper._store.ingest(test_locks=True)
        Deal(stage.keeper._store, spread=True).run()
        assert journals(wheel_dir) == {stage.name}
    stage.clock.advance(11)
    batch = stage.keeper.claim()
    assert [m.payload for m in batch] == [b"more"] * 3 + [b"kept"]
    stage.keeper.ack(batch)
    stage.end()
    assert_whole(wheel_dir)
