"""A backup that lacks something says so, in every roster: it is not promoted as if it had everything."""

from __future__ import annotations

from pathlib import Path

from filewheel.disk.directory import open_directory
from filewheel.roster.roster import Roster, read_roster
from tests.sets.support import Pair, fire


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
