"""A disk without free inodes is a full disk: what is fired is acknowledged, and `health` says it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel, WheelFull
from filewheel.disk.disk import FILES_MIN, SYSTEM, OsDisk
from filewheel.live.health import check_health
from tests.support_mounts import filewheel_shell

FEW_FILES = "mount -t tmpfs -o size=64m,nr_inodes=300 none $PLACE; cd $PLACE"
FILL = "n=0; while touch full$n 2> /dev/null; do n=$((n + 1)); done"
LINE = '{"in": "0s", "payload": "m"}'
ENQUEUE = f"filewheel init > /dev/null; yes '{LINE}' | head -n 9 | filewheel enqueue --batch > /dev/null"


def test_without_inodes_what_is_due_fires_once_and_is_acknowledged_in_the_place_of_the_ballast(tmp_path: Path) -> None:
    """Also by the first keeper of a wheel, and by a command. The next one has no room, and fires nothing."""
    first = filewheel_shell(tmp_path, f"{FEW_FILES}; {ENQUEUE}; {FILL}; filewheel run --once; filewheel run --once")
    assert first.out.count('"payload"') == 9
    assert "the ballast is given up for acknowledgements" in first.err
    script = f"{FEW_FILES}; {ENQUEUE}; {FILL}; filewheel run --once -- sh -c 'echo ran'; filewheel verify"
    assert filewheel_shell(tmp_path, script).out.count("ran\n") == 9


def test_without_inodes_and_without_a_ballast_nothing_fires_until_some_are_freed(tmp_path: Path) -> None:
    script = f"""
    {FEW_FILES}; {ENQUEUE}; rm $PLACE/w/ballast; {FILL}
    filewheel run --once; echo code $?
    filewheel health --no-keeper > /dev/null; echo code $?
    rm full*
    filewheel run --once; echo code $?
    """
    done = filewheel_shell(tmp_path, script)
    codes = [line for line in done.lines if line.startswith("code")]
    assert codes == ["code 1", "code 23", "code 0"]
    assert done.out.index("code 23") < done.out.index('"payload"')
    assert done.out.count('"payload"') == 9
    assert "no message is handed out that could not be acknowledged" in done.err
    assert "only 0 more files can be made on its disk: the inodes are used up" in done.err


def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path) -> None:
    """`ulimit -f` gives EFBIG, which says nothing of the disk."""
    script = f"""
    cd $PLACE; {ENQUEUE}
    (ulimit -f 0; filewheel run --once; echo code $? >&2; filewheel enqueue --in 0 x) 2>&1 | cat
    filewheel run --once
    """
    done = filewheel_shell(tmp_path, script)
    assert done.out.count('"payload"') == 9
    assert done.out.index("raise `ulimit -f`") < done.out.index('"payload"')
    assert done.out.count("Error: ") == done.out.count("raise `ulimit -f`") == 2
    assert "code 1" in done.out


def test_a_disk_with_few_inodes_is_full_for_deals_and_one_without_a_count_is_not(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fstatvfs(os.open(wheel_dir, os.O_RDONLY))

    def counting(free: int, files: int) -> None:
        values = dict(enumerate(real))
        values[5], values[7] = files, free
        monkeypatch.setattr(os, "fstatvfs", lambda fd: os.statvfs_result([values[n] for n in range(len(real))]))

    disk = OsDisk(str(wheel_dir))
    for free, files, has_room in ((FILES_MIN, 100, True), (FILES_MIN - 1, 100, False), (0, 0, True)):
        counting(free, files)
        assert bool(disk.free_bytes()) == has_room
        assert ("nearly-full" not in {c.kind for c in check_health(wheel_dir).checks}) == has_room
    disk.release()


def test_a_claim_without_room_leaves_what_is_due_to_the_next_claim(wheel_dir: Path) -> None:
    is_full = True

    class Full(OsDisk):
        def open(self, name: str, mode: str) -> int:
            if is_full and name.startswith("journal/.") and mode == "x":
                raise OSError(28, os.strerror(28))
            return super().open(name, mode)

    (wheel_dir / "ballast").unlink()
    with Wheel(wheel_dir) as wheel:
        ids = [*wheel.enqueue_many([b"x"] * 9), wheel.enqueue(b"y")]
    with Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=Full)) as keeper:
        for begun in (True, False):
            with pytest.raises(WheelFull):
                keeper.claim(begun=begun)
            assert keeper._head.claims == {}
        is_full = False
        batch = keeper.claim()
        assert [m.id for m in batch] == ids
        assert keeper.ack(batch) == 10
