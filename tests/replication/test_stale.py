"""A backup that lacks something says so, in every roster: it is not promoted as if it had everything."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, promote
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.record import CANCELLED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.replication.members import add_backup
from filewheel.roster.roster import Roster, read_roster
from filewheel.roster.stale import mark_stale
from filewheel.tools.diff import differences
from filewheel.wheel import Wheel
from tests.replication.support import Pair, fire
from tests.support import FaultyDisk


def roster_of(path: Path) -> Roster:
    roster = read_roster(open_directory(path, write=False).disk, str(path))
    assert roster is not None
    return roster


def overflow(pair: Pair) -> None:
    """Have the primary keep more for its backup than it may, while nobody follows."""
    with pair.keeper() as keeper:
        for _ in range(24):
            with pair.wheel() as wheel:
                wheel.enqueue_many([b"x" * 1000] * 100, delay=1)
            pair.clock.advance(2)
            fire(pair, keeper)
            keeper._housekeeper.deal_all()


def test_a_backup_for_which_journals_were_given_up_is_stale_in_every_roster_and_not_promoted(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, retain_bytes=1 << 20)
    pair.settle()
    assert pair.member().state == "current"
    pair.close()
    overflow(pair)
    assert pair.member().state == "stale"
    assert [m.state for m in roster_of(pair.backup).members] == ["stale"]
    pair.primary.rename(pair.primary.with_name("lost"))
    with pytest.raises(BadArgument, match="stale"):
        promote(pair.backup, env=SYSTEM.using(clock=pair.clock))
    pair.primary.with_name("lost").rename(pair.primary)
    pair.settle()
    assert pair.member().state == "current"
    pair.assert_equal()
    pair.close()
    pair.verify()


@pytest.mark.parametrize("state", ["joining", "stale"])
def test_a_backup_that_is_being_compared_while_journals_go_that_only_the_roster_tells_of_is_compared_anew(
    pair: Pair, state: str
) -> None:
    with pair.wheel() as wheel:
        wheel.enqueue(b"before", delay=3600)
    if state == "stale":
        pair.settle()
        pair.close()
        directory = open_directory(pair.primary, write=True)
        now_us = pair.clock.now_us()
        mark_stale(directory, lambda m: True, "gone", epoch=pair.roster().epoch, now_us=now_us)
    link = pair.tick()
    while link._heal.is_on:
        link.tick()
    assert pair.member().state == state

    def refuse(what: str, name: str) -> None:
        if what in ("open", "rename") and name.startswith("retained/"):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), name)

    # What it has not read goes: nothing can be kept for it, and the counter cannot be raised.
    with pair.wheel() as wheel:
        wheel.enqueue(b"after", delay=3600)
    Keeper(
        pair.primary,
        wait=False,
        background=False,
        clock=pair.clock,
        env=SYSTEM.using(disk=lambda path: FaultyDisk(path, refuse)),
    ).close()
    assert not list((pair.primary / "journal").glob("*.log"))
    assert not list((pair.primary / "retained").glob("*"))
    pair.settle()
    assert pair.member().state == "current"
    pair.assert_equal()


def test_a_backup_whose_mode_changes_while_it_is_followed_is_compared_before_it_counts(pair: Pair) -> None:
    with pair.wheel() as wheel:
        ids = [wheel.enqueue(b"x", delay=3600) for _ in range(20)]
    pair.settle()
    # Someone takes messages out of the backup behind the link's back.
    with Wheel(pair.primary) as ours, Wheel(pair.backup) as theirs:
        journal = Journal(open_directory(pair.backup, write=True))
        journal.append([pack_drop(i, CANCELLED) for i in ids[:5]], 0)
        journal.close()
        assert len(list(differences(ours, theirs))) == 5
    pair.settle()
    healed = pair.tick().report.healed_puts
    add_backup(pair.primary, pair.backup, env=SYSTEM.using(clock=pair.clock))
    assert pair.member().state == "current"  # nothing of it changes
    add_backup(pair.primary, pair.backup, mode="mirror", env=SYSTEM.using(clock=pair.clock))
    add_backup(pair.primary, pair.backup, mode="ship", env=SYSTEM.using(clock=pair.clock))
    assert pair.member().state == "joining"
    states = []
    for _ in range(40):
        pair.tick(pause_s=0.25)
        states.append((pair.member().state, pair.tick().report.healed_puts - healed))
    assert states[-1] == ("current", 5)
    assert all(count == 5 for state, count in states if state == "current")
