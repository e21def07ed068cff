"""What the sweep of failing calls found: leftovers that cannot be removed, and an error that says two things."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    DiskError,
    Keeper,
    Message,
    MessageId,
    TooFewCopies,
    Wheel,
    add_backup,
    remove_backup,
    set_status,
)
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.laps.deal import Deal
from tests.conftest import assert_whole
from tests.crash.set_scenarios import PassingClock, replicate
from tests.support import FakeClock, FaultyDisk


def remove(path: Path, **options: Any) -> object:
    return remove_backup(path, str(path.parent / "backup.wheel"), **options)


def add(path: Path, **options: Any) -> object:
    return add_backup(path, path.parent / "another.wheel", **options)


class Keeping(OsDisk):
    """A disk on which some names cannot be removed, as on a full btrfs."""

    kept: str = ""

    def unlink(self, name: str) -> None:
        if self.kept and name.startswith(self.kept):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        super().unlink(name)


def test_what_was_cancelled_stays_gone_when_the_journal_it_came_in_cannot_be_removed(wheel_dir: Path) -> None:
    disk = Keeping(str(wheel_dir))
    with Keeper(wheel_dir, clock=FakeClock(), background=False, env=SYSTEM.using(disk=lambda path: disk)) as keeper:
        cancelled, kept, last = put_and_cancel(wheel_dir)
        keeper._store.ingest(test_locks=True)
        disk.kept = f"journal/{last}"
        with pytest.raises(OSError, match="No space left"):
            Deal(keeper._store, spread=False).run()
        assert [n for n in os.listdir(wheel_dir / "journal") if n.startswith(last)]
        keeper.ack(keeper.claim())
        for _ in range(2):
            keeper._housekeeper.deal_all()
            assert pending(wheel_dir) == [kept]
        disk.kept = ""
    assert pending(wheel_dir) == [kept]
    assert cancelled != kept
    assert not os.listdir(wheel_dir / "journal")
    assert_whole(wheel_dir)


def put_and_cancel(path: Path) -> tuple[MessageId, MessageId, str]:
    """Enqueue two messages in the journal that is dealt last, and cancel the first in another one; name the last."""
    wheels = [Wheel(path, clock=FakeClock()) for _ in range(2)]
    writers, journals = {}, {}
    for wheel in wheels:
        wheel.cancel(wheel.enqueue(b"to have a name", delay=60))
        assert wheel._journal is not None
        writers[wheel._journal.writer] = wheel
        journals[wheel._journal.writer] = wheel._journal
    first, last = sorted(writers)
    ids = [writers[last].enqueue(b"x", delay=3600) for _ in range(2)]
    journals[last].rotate()
    writers[last].enqueue(b"in another segment", delay=-1)
    assert writers[first].cancel(ids[0])
    for wheel in wheels:
        wheel.close()
    return ids[0], ids[1], last


def pending_messages(path: Path) -> list[Message]:
    with Wheel(path, clock=FakeClock()) as wheel:
        return list(wheel.list())


def pending(path: Path) -> list[MessageId]:
    return [m.id for m in pending_messages(path)]


def test_an_enqueue_that_was_written_and_not_mirrored_does_not_say_that_nothing_was_written(
    wheel_dir: Path, tmp_path: Path
) -> None:
    full = [False]

    def fail(kind: str, name: str) -> None:
        if full[0] and kind == "open" and name.startswith("journal/"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), name)

    mirror, clock = tmp_path / "mirror.wheel", PassingClock()
    add_backup(wheel_dir, mirror, mode="mirror")
    replicate(str(wheel_dir), clock)
    disk = lambda path: FaultyDisk(path, fail if path == str(mirror) else lambda kind, name: None)  # noqa: E731
    full[0] = True
    with Wheel(wheel_dir, env=SYSTEM.using(disk=disk)) as wheel, pytest.raises(TooFewCopies) as told:
        wheel.enqueue(b"x", delay=60)
    assert [m.payload for m in pending_messages(wheel_dir)] == ([b"x"] if "it was written" in str(told.value) else [])
    assert ("nothing of this call" in str(told.value)) != ("it was written" in str(told.value))
    assert_whole(mirror)


@pytest.mark.parametrize("call", [set_status, remove, add], ids=["status", "remove", "add"])
def test_a_roster_that_cannot_be_opened_is_a_disk_error_of_whoever_looks_at_the_set(
    wheel_dir: Path, tmp_path: Path, call: Callable[..., object]
) -> None:
    add_backup(wheel_dir, tmp_path / "backup.wheel")

    def fail(kind: str, name: str) -> None:
        if kind == "open" and name == "roster.json":
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), name)

    with pytest.raises(DiskError, match="Cannot allocate memory"):
        call(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)))
