"""The note of a backup at a URL: what another process reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import BadArgument, Keeper, Member, NoWheel, Roster, Wheel, add_backup
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.far import FarNote, drop_note, read_note, write_note
from filewheel.roster.roster import change_roster
from filewheel.sets.status import set_status

URL = "ssh://far.example/var/jobs"
FAR = "ab" * 16


@pytest.fixture
def primary(wheel_dir: Path) -> Path:
    """A primary with a backup at a URL, which nobody has reached yet."""
    directory = open_directory(wheel_dir, write=True)
    member = Member(URL, FAR, "ship", "current", since_us=1)
    roster = Roster("cd" * 16, 1, "primary", str(wheel_dir), directory.settings.id, (member,))
    change_roster(directory, lambda _: roster)
    directory.disk.release()
    return wheel_dir


def test_a_note_is_read_as_it_was_written_and_a_torn_one_is_none(primary: Path) -> None:
    directory = open_directory(primary, write=True)
    note = FarNote(3, "full", 2, 1, 7, "ABCDEFGH", {"journal/ABCDEFGH-000001.log": 96})
    assert read_note(directory.disk, FAR) == FarNote()
    write_note(directory, FAR, note)
    assert read_note(directory.disk, FAR) == note
    whole = (primary / layout.far(FAR)).read_bytes()
    for size in range(len(whole)):
        (primary / layout.far(FAR)).write_bytes(whole[:size])
        assert read_note(directory.disk, FAR) == FarNote()
    drop_note(directory, FAR)
    assert read_note(directory.disk, FAR) == FarNote()
    directory.disk.release()


def test_the_status_of_a_backup_at_a_url_is_that_of_the_note(primary: Path) -> None:
    directory = open_directory(primary, write=True)
    now_us = directory.env.clock.now_us()

    def status() -> tuple[bool, bool, int | None, str]:
        found = set_status(primary)
        assert found is not None
        one = found.members[0]
        return one.reachable, one.following, one.lag_messages, one.why

    assert status() == (True, False, None, "")
    checkpoint = directory.checkpoint()
    fresh = FarNote(now_us, "", 1, now_us, checkpoint.deal, checkpoint.keeper, {})
    write_note(directory, FAR, fresh)
    assert status() == (True, True, 0, "")
    with Wheel(primary) as wheel:
        wheel.enqueue_many([b"x"] * 3, delay=60)
        assert status() == (True, True, 3, "")
    write_note(directory, FAR, fresh.failed("the connection was lost", now_us - 90 * US_PER_S))
    reachable, _, _, why = status()
    assert not reachable
    assert why.startswith("the connection was lost (for 9")
    directory.disk.release()


def test_a_keeper_of_a_primary_does_not_ask_a_backup_at_a_url(primary: Path) -> None:
    with Wheel(primary) as wheel:
        wheel.enqueue(b"x")
        with Keeper(primary) as keeper:
            assert len(list(keeper.claim(10))) == 1


def test_a_url_is_no_directory_of_this_machine_and_no_mirror(primary: Path) -> None:
    with pytest.raises(NoWheel, match="no directory of this machine"):
        Wheel(URL)
    with pytest.raises(BadArgument, match="no backup can be at"):
        add_backup(primary, "nowhere://host/path")
