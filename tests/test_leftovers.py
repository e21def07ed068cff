"""What a deal has made needless and cannot remove: it counts for nothing, and is removed later."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from filewheel import Keeper, MessageId, Wheel
from filewheel.deal import Deal
from filewheel.disk import OsDisk
from tests.conftest import assert_whole
from tests.support import FakeClock


class Keeping(OsDisk):
    """A disk on which some names cannot be removed, as on a full btrfs."""

    kept: str = ""

    def unlink(self, name: str) -> None:
        if self.kept and name.startswith(self.kept):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        super().unlink(name)


def test_what_was_cancelled_stays_gone_when_the_journal_it_came_in_cannot_be_removed(wheel_dir: Path) -> None:
    disk = Keeping(str(wheel_dir))
    with Keeper(wheel_dir, clock=FakeClock(), background=False, disk=lambda path: disk) as keeper:
        cancelled, kept, last = put_and_cancel(wheel_dir)
        keeper._ledger.ingest(test_locks=True)
        disk.kept = f"journal/{last}"
        with pytest.raises(OSError, match="No space left"):
            Deal(keeper._ledger, spread=False).run()
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


def pending(path: Path) -> list[MessageId]:
    with Wheel(path, clock=FakeClock()) as wheel:
        return [m.id for m in wheel.list()]
