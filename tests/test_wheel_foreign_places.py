"""A pipe, a link or a directory in the place of a file that is needed: it is said, and a repair puts it aside."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import DiskError, FilewheelError, Keeper, MessageId, Settlement, Wheel
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.sets.members import add_backup
from filewheel.sets.status import set_status
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.cli.support import Fw

KEYS = [f"k{n}" for n in range(20)]
KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link": lambda place: place.symlink_to("/dev/null"),
    "directory": lambda place: (place.mkdir(), (place / "mine").write_text("mine")),
}


def make(path: Path) -> list[MessageId]:
    """Make messages with keys, and deal them."""
    with Wheel(path) as wheel:
        ids = list(wheel.enqueue_many([b"x"] * len(KEYS), delay=600, keys=KEYS))
        ids.append(wheel.enqueue(b"x", delay=600, key="single"))
        wheel.cancel(wheel.enqueue(b"x", delay=600))
    Keeper(path).close()
    return ids


def place_of(path: Path, name: str) -> Path:
    return next((path / "keys").glob("[0-9a-f]*" + name), path / name) if name[0] == "." else path / name


def put(place: Path, kind: str) -> None:
    """Put something else in a place."""
    if place.is_dir():
        place.rename(place.with_name("was"))
    place.unlink(missing_ok=True)
    KINDS[kind](place)


@pytest.mark.damages
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["keys/recent.keys", "keys/f.lock", ".keys", ".lock", "ids/0.lock", "checkpoint", "checkpoint.tmp", "roster.lock",
     "promote.lock", "keys", "ids"],
)  # fmt: skip
def test_what_has_the_place_of_a_needed_file_is_damage_and_a_repair_puts_it_aside(
    wheel_dir: Path, name: str, kind: str
) -> None:
    if (name, kind) in {("keys", "directory"), ("ids", "directory")}:
        pytest.skip("a directory is what belongs there")
    ids = make(wheel_dir)
    place = place_of(wheel_dir, name)
    put(place, kind)
    name = str(place.relative_to(wheel_dir))
    found = verify(open_directory(wheel_dir, write=False))
    assert name in {f.name for f in found.damage}
    assert all("repair" in f.hint for f in found.damage if f.name == name)
    done = repair(open_directory(wheel_dir, write=True))
    assert any(line.startswith(f"{name} was not a") for line in done.done)
    assert verify(open_directory(wheel_dir, write=False)).damage == []
    with Wheel(wheel_dir) as wheel:
        assert [wheel.get(key=key).id for key in (*KEYS, "single")] == ids  # type: ignore[union-attr]
        assert wheel.enqueue(b"y", key="k0", on_conflict="keep") == ids[0]
        assert wheel.enqueue(b"y", key="single", on_conflict="keep") == ids[-1]
        assert wheel.cancel(ids[3])
    aside = next((wheel_dir / "quarantine").glob("*.aside"))
    assert aside.is_fifo() or aside.is_symlink() or (aside / "mine").read_text() == "mine"
    assert repair(open_directory(wheel_dir, write=True)).done == []


@pytest.mark.damages
@pytest.mark.parametrize("kind", KINDS)
def test_what_has_the_place_of_the_lock_of_the_keeper_is_damage_and_is_removed_by_hand(
    wheel_dir: Path, kind: str
) -> None:
    make(wheel_dir)
    put(wheel_dir / layout.LOCK, kind)
    (found,) = verify(open_directory(wheel_dir, write=False)).damage
    assert (found.name, "by hand" in found.hint) == (layout.LOCK, True)
    with pytest.raises(FilewheelError, match="by hand"):
        repair(open_directory(wheel_dir, write=True))
    place = wheel_dir / layout.LOCK
    assert place.is_fifo() or place.is_symlink() or place.is_dir()


@pytest.mark.damages
def test_a_second_pipe_in_one_place_is_put_aside_beside_the_first(wheel_dir: Path) -> None:
    make(wheel_dir)
    for _ in range(2):
        put(wheel_dir / layout.key_lock(0), "pipe")
        repair(open_directory(wheel_dir, write=True))
    assert len(list((wheel_dir / "quarantine").glob("*.aside*"))) == 2


@pytest.mark.damages
@pytest.mark.parametrize("ends", ["--once", "--until-empty"])
@pytest.mark.parametrize("name", ["keys/recent.keys", "keys"])
def test_a_retry_that_cannot_be_written_stays_claimed_and_the_messages_behind_it_fire(
    wheel_dir: Path, name: str, ends: str
) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"k%d" % n for n in range(6)], keys=KEYS[:6])
        wheel.enqueue_many([b"plain"] * 3)
    put(wheel_dir / name, "pipe")
    command = ("sh", "-c", "case $(cat) in k0|k1) exit 1;; esac")
    result = Fw(wheel_dir).process("run", ends, "--retries", "5", "--", *command, code=1)
    assert result.err.count("stays claimed") == 1
    assert result.err.count("filewheel repair") == 2
    with Wheel(wheel_dir) as wheel:
        assert sorted(m.payload for m in wheel.list()) == [b"k0", b"k1"]


@pytest.mark.damages
@pytest.mark.parametrize("what", ["pipe", "link", "directory"])
def test_what_has_the_place_of_a_lap_is_damage_to_all_that_look(wheel_dir: Path, what: str) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"later"] * 3, delay=86_400 * 2)
    with Keeper(wheel_dir):
        pass  # it is dealt now
    (lap,) = (wheel_dir / "laps").rglob("*.lap")
    lap.unlink()
    put(lap, what)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"near", delay=60)
    fw = Fw(wheel_dir)
    for verb in ("stats", "inspect", "dump"):
        result = fw(verb, code=12)
        assert "damaged" in result.err
        assert result.out
    assert "damaged" in fw("metrics").out
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().damaged == 1


@pytest.mark.damages
def test_one_file_of_keys_that_is_a_pipe_fails_no_other_settlement_of_a_call(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"a", key="a")
        bucket = wheel._keys.hash_of("a")[0]
        wheel.enqueue(b"b", key=next(key for key in KEYS if wheel._keys.hash_of(key)[0] != bucket))
        bad = layout.key_file(bucket)
    put(wheel_dir / bad, "pipe")
    with Keeper(wheel_dir) as keeper:
        batch = list(keeper.claim())
        now_us = keeper.now_us() + 10**9
        with pytest.raises(DiskError, match="not a regular file"):
            keeper.settle([Settlement(m.id, "retried", now_us) for m in batch])
        assert [m.payload for m in batch if keeper.holds(m.id)] == [b"a"]


@pytest.mark.damages
def test_a_key_that_two_living_messages_have_is_a_note_until_one_is_cancelled(wheel_dir: Path) -> None:
    ids = make(wheel_dir)
    for file in (wheel_dir / layout.KEYS).glob("*.keys"):
        file.unlink()
    with Wheel(wheel_dir) as wheel:
        other = wheel.enqueue(b"y", delay=600, key="k1")
    both = ", ".join(map(str, sorted([ids[1], other])))
    for _ in range(2):
        notes = [f for f in verify(open_directory(wheel_dir, write=False)).findings if f.kind == "note"]
        assert [f.what for f in notes] == [f"the key 'k1' is that of 2 living messages: {both}"]
        repair(open_directory(wheel_dir, write=True))
    assert not verify(open_directory(wheel_dir, write=False)).damage
    with Wheel(wheel_dir) as wheel:
        assert wheel.cancel(ids[1])
        assert wheel.get(key="k1").id == other  # type: ignore[union-attr]
    assert not verify(open_directory(wheel_dir, write=False)).findings


@pytest.mark.damages
def test_what_is_wrong_in_the_primary_does_not_make_its_backup_unreachable(wheel_dir: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    add_backup(wheel_dir, backup)
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x", delay=600)
    Fw(wheel_dir)("replicate", "--once")
    place = wheel_dir / "checkpoint"
    place.unlink()
    put(place, "pipe")
    status = set_status(wheel_dir)
    assert status is not None
    (member,) = status.members
    assert member.reachable
    assert "the primary cannot be read" in member.why
    assert "backup remove" not in Fw(wheel_dir)("backup", "list", code=3).err
