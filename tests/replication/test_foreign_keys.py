"""Something foreign among a backup's files of unique keys: it is reported, and a forced promotion puts it aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.show.members import state_of
from filewheel import Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import BadArgument
from filewheel.format import layout
from filewheel.keys.index import Keys
from filewheel.replication.promote import Promoting, promote
from filewheel.replication.status import MemberStatus, set_status
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.replication.support import Pair
from tests.test_wheel_foreign_places import KEYS, KINDS, put

ONE = "keys/one of a bucket"
SAY = Promoting._say
NAMES = [layout.key_file(layout.KEY_RECENT), layout.key_lock(0), layout.KEYS, ONE]


@pytest.fixture
def mirror(tmp_path: Path) -> Pair:
    """A mirror that is current, with keys in its laps and in its journals."""
    pair = Pair(tmp_path, mode="mirror")
    pair.open()
    with Wheel(pair.primary, clock=pair.clock) as wheel:
        wheel.enqueue(b"dealt", delay=600, key="single")
        wheel.enqueue_many([b"dealt"] * 10, delay=600, keys=KEYS[:10])
        pair.settle(2)
        pair.close()
        pair.open()
        pair.settle(2)
        assert pair.member().state == "current"
        wheel.enqueue_many([b"new"] * 10, delay=600, keys=KEYS[10:])
        pair.tick()
        pair.kill()
    return pair


def spoil(pair: Pair, name: str, kind: str) -> str:
    """Put something foreign in a place in the backup; return its name."""
    if name == ONE:
        with Wheel(pair.backup) as wheel:
            name = layout.key_file(wheel._keys.hash_of("single")[0])
    put(pair.backup / name, kind)
    pair.damaged.append(pair.backup)
    return name


def status_of(pair: Pair) -> MemberStatus:
    status = set_status(pair.primary, env=SYSTEM.using(clock=pair.clock))
    assert status is not None
    return status.members[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_mirror_with_something_foreign_among_its_files_of_keys_is_promoted_only_by_force(
    mirror: Pair, name: str, kind: str
) -> None:
    if (name, kind) == (layout.KEYS, "directory"):
        pytest.skip("a directory is what belongs there")
    name = spoil(mirror, name, kind)
    one = status_of(mirror)
    assert (one.member.state, state_of(one)) == ("current", "damaged")
    assert f"{name} is not a " in one.why
    assert f"-C {mirror.backup} repair" in one.why
    with pytest.raises(BadArgument, match=rf"{name} is not a .*repair.*--force"):
        promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), wait_s=1)
    done = promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), force=True, wait_s=1)
    assert done.caught_up
    assert any(note.startswith(f"{name} was not a ") for note in done.notes)
    (aside,) = (mirror.backup / "quarantine").glob("*.aside")
    assert aside.is_fifo() or aside.is_symlink() or (aside / "mine").read_text() == "mine"
    assert verify(open_directory(mirror.backup, write=False)).damage == []
    with Wheel(mirror.backup, clock=mirror.clock) as wheel:
        assert len({wheel.get(key=key).id for key in (*KEYS, "single")}) == 21  # type: ignore[union-attr]
        before = wheel.stats().pending
        for key in (*KEYS, "single"):
            wheel.enqueue(b"again", key=key, on_conflict="keep")
        assert wheel.stats().pending == before
    assert not status_of(mirror).has_bad_keys


def test_a_file_of_keys_that_is_too_long_is_made_again_by_a_forced_promotion(mirror: Pair) -> None:
    with Wheel(mirror.backup) as wheel:
        name = layout.key_file(wheel._keys.hash_of("single")[0])
    mirror.damaged.append(mirror.backup)
    os.truncate(mirror.backup / name, 1 << 40)
    assert f"{name} is too long" in status_of(mirror).why
    done = promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), force=True, wait_s=1)
    assert any(f"{name} was too long, and was made again" in note for note in done.notes)
    with Wheel(mirror.backup, clock=mirror.clock) as wheel:
        assert all(wheel.get(key=key) for key in (*KEYS, "single"))


def test_a_file_of_keys_that_is_too_long_costs_a_running_backup_only_the_keys_of_its_bucket(pair: Pair) -> None:
    keys = Keys(open_directory(pair.backup, write=False))
    bad, *others = [f"key-{n}" for n in range(20)]
    pair.tick()
    (pair.backup / "keys").mkdir(exist_ok=True)
    with (pair.backup / layout.key_file(keys.hash_of(bad)[0])).open("wb") as file:
        file.truncate(1 << 40)
    pair.damaged.append(pair.backup)
    with pair.wheel() as wheel:
        ids = wheel.enqueue_many([b"x"] * 20, delay=5000, keys=[bad, *others])
        pair.settle(1)
        assert pair.pending(pair.backup) == set(ids)
    others = [key for key in others if keys.hash_of(key)[0] != keys.hash_of(bad)[0]]
    assert len(others) > 10
    assert all(keys.ids_of(key) for key in others)
    assert not list((pair.backup / "quarantine").glob("*")), "each frame is whole"
    pair.close()
    repair(open_directory(pair.backup, write=True))
    assert keys.ids_of(bad) == [bytes(ids[0])]


def test_a_mirror_is_promoted_without_force_after_a_repair(mirror: Pair) -> None:
    spoil(mirror, NAMES[0], "pipe")
    repair(open_directory(mirror.backup, write=True))
    assert state_of(status_of(mirror)) == "current"
    assert promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), wait_s=1).caught_up


def test_a_forced_promotion_that_is_killed_after_it_put_a_file_of_keys_aside_enters_its_keys_when_it_is_repeated(
    mirror: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(mirror, ONE, "pipe")

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("filewheel.keys.upkeep.write_aside", die)
        patch.setattr(Promoting, "_say", lambda act, role, epoch: None if role == "backup" else SAY(act, role, epoch))
        with pytest.raises(KeyboardInterrupt):
            promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), force=True, wait_s=1)
    assert not status_of(mirror).has_bad_keys  # it is aside, and not there again
    done = promote(mirror.backup, env=SYSTEM.using(clock=mirror.clock), wait_s=1)
    assert "1 keys were entered again" in done.notes
    with Wheel(mirror.backup, clock=mirror.clock) as wheel:
        assert wheel.get(key="single")
