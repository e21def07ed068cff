"""Promoting under load: what producers are told while the primary is being changed."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import Fenced
from filewheel.roster.roster import Role, change_roster
from filewheel.sets import promote as module
from tests.sets.support_sets import Place, place
from tests.support import FakeClock

__all__ = ["place"]


def test_what_a_producer_enqueues_before_it_looks_at_the_roster_is_in_the_wheel_that_was_promoted(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.make_set(place.b)
    with Wheel(place.a, clock=FakeClock()) as producer:  # its clock stands still, so it looked just now
        producer.enqueue(b"first", delay=1000)
        monkeypatch.setattr(module, "let_producers_look", lambda: producer.enqueue(b"last", delay=1000))
        assert module.promote(place.b, env=SYSTEM.using(clock=place.clock)).caught_up
    assert place.payloads(place.b) == ["first", "last"]


@pytest.mark.damages
def test_a_promotion_says_that_the_old_primary_could_not_be_read_to_its_end_when_something_of_it_is_damaged(
    place: Place,
) -> None:
    place.make_set(place.b)
    ids = place.enqueue(place.a, *"abcdefgh", delay=1000)
    (segment,) = (place.a / "journal").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)
    done = module.promote(place.b, env=SYSTEM.using(clock=place.clock))
    assert not done.caught_up
    assert any("damaged" in note for note in done.notes)
    assert set(place.waiting(place.b)) < set(ids)
    shutil.rmtree(place.a)  # it is damaged, and known to be


def test_until_the_epoch_rises_a_mirror_that_is_being_promoted_is_written_to(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.journal.mirror._LOOK_US", 0)
    place.make_set(place.b, mode="mirror")

    def becomes(role: Role, more: int = 0) -> None:
        there = open_directory(place.b, write=False)
        change_roster(there, lambda old: old and replace(old, role=role, epoch=old.epoch + more))

    with Keeper(place.a, background=False, clock=place.clock) as keeper, Wheel(place.a, clock=place.clock) as producer:
        assert producer.enqueue(b"fired", sync="always").copies == 2
        becomes("promoting")
        for _ in range(2):  # the first flush is the one that looks
            assert producer.enqueue(b"waits", delay=1000, sync="always").copies == 2
        keeper.ack(keeper.claim(), sync="always")
        assert place.payloads(place.b) == ["waits", "waits"]
        becomes("promoting", 1)
        with pytest.raises(Fenced):
            for _ in range(2):
                producer.enqueue(b"too late", sync="always")
        becomes("backup")
