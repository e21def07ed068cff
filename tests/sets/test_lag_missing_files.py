"""A backup of which a file is missing: it counts as whole for nobody, and is healed from its primary."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.show.members import state_of, trouble_of
from filewheel.disk.disk import SYSTEM
from filewheel.errors import BadArgument
from filewheel.sets.promote import promote
from filewheel.sets.status import set_status
from tests.sets.support import Pair


def lacking(pair: Pair) -> Path:
    """Have a backup that is in step lose the file of a lap; return where it was."""
    with pair.wheel() as wheel:
        for delay in (5, 500, 900):
            wheel.enqueue(b"%d" % delay, delay=delay)
    pair.keeper().close()  # which deals it
    pair.settle(2)
    pair.close()
    assert pair.member().state == "current"
    victim = sorted(pair.backup.rglob("*.lap"))[0]
    victim.unlink()
    return victim


def test_a_backup_that_lacks_a_file_is_told_and_not_promoted(pair: Pair) -> None:
    pair.damaged.append(pair.backup)
    victim = lacking(pair)
    status = set_status(pair.primary, env=SYSTEM.using(clock=pair.clock))
    assert status is not None
    (one,) = status.members
    assert (one.lacks, one.member.state) == (1, "current")
    assert "1 of its files are missing" in one.why
    assert state_of(one) == "damaged"
    assert trouble_of(one).startswith("damaged (1 of its files")
    with pytest.raises(BadArgument, match=f"lacks 1 files .*laps/{victim.name}.*Try: let `filewheel replicate`"):
        promote(pair.backup, env=SYSTEM.using(clock=pair.clock))
    assert pair.member().state == "current"


def test_a_backup_that_lacks_a_file_is_stale_until_it_is_healed(pair: Pair) -> None:
    pair.damaged.append(pair.backup)  # its quarantine has a note
    lacking(pair)
    pair.open()
    assert (pair.member().state, pair.member().why) == ("stale", "1 of its files are missing")
    pair.kill()  # also after a crash
    assert pair.member().state == "stale"
    pair.open()
    pair.settle(2)
    assert pair.member().state == "current"
    pair.assert_equal()


def test_a_file_that_goes_while_a_replicator_follows_is_healed(pair: Pair) -> None:
    pair.damaged.append(pair.backup)
    lacking(pair).write_bytes(b"")
    sorted(pair.backup.rglob("*.lap"))[0].unlink()
    pair.open()
    pair.settle(2)
    sorted(pair.backup.rglob("*.lap"))[-1].unlink()
    with pair.wheel() as wheel:
        wheel.enqueue(b"more", delay=900)
    pair.settle(2)
    pair.settle(12)
    assert pair.member().state == "current"
    pair.assert_equal()


def test_a_forced_promotion_of_a_backup_that_lacks_a_file_says_so_and_takes_it_from_the_old_primary(pair: Pair) -> None:
    pair.damaged.append(pair.backup)
    lacking(pair)
    done = promote(pair.backup, force=True, wait_s=1)
    assert f"1 of its files are missing: the messages that it lacked were copied from {pair.primary}" in done.notes
    assert done.caught_up
    pair.assert_equal()
