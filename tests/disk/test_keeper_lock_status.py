"""Whether a keeper runs, and who it is: asked of the kernel's lock, so right also across containers."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from filewheel import Keeper, Locked, Wheel, set_status
from filewheel.disk.keeper_lock import Holder, KeeperLock, holder
from tests.support import eventually
from tests.support_set import make_set, open_wheel

UNSHARE = [shutil.which("unshare") or "", "--pid", "--fork", "--mount-proc", "--kill-child"]
FIRES = """
import sys
from filewheel import Keeper

with Keeper(sys.argv[1], wait=False):
    print("up", flush=True)
    sys.stdin.read()
"""


def can_unshare() -> bool:
    return bool(UNSHARE[0]) and os.geteuid() == 0 and subprocess.run([*UNSHARE, "true"], check=False).returncode == 0


def fire_elsewhere(path: Path) -> subprocess.Popen[str]:
    """Start a keeper in a pid namespace of its own, where it is process 1 or so."""
    process = subprocess.Popen(
        [*UNSHARE, sys.executable, "-c", FIRES, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.skipif(not can_unshare(), reason="needs root and unshare")
def test_a_keeper_in_another_pid_namespace_is_up(wheel_dir: Path) -> None:
    process = fire_elsewhere(wheel_dir)
    try:
        with Wheel(wheel_dir) as wheel:
            stats = wheel.stats()
        assert stats.keeper_up
        assert stats.keeper_pid not in (None, process.pid)
        assert stats.keeper_namespace
        with pytest.raises(Locked, match="of another pid namespace is the keeper"):
            Keeper(wheel_dir, wait=False)
        shown = [
            subprocess.run(
                [sys.executable, "-m", "filewheel", "-C", str(wheel_dir), *command],
                capture_output=True, text=True, check=True,
            ).stdout
            for command in (["stats", "--no-json"], ["inspect", "--no-json"], ["metrics", "--no-json"])
        ]  # fmt: skip
        assert "another pid namespace" in shown[0]
        assert "another pid namespace" in shown[1]
        assert re.search(r"^filewheel_keeper_up\S* 1$", shown[2], re.M)
    finally:
        process.communicate("")
    with Wheel(wheel_dir) as wheel:
        assert not wheel.stats().keeper_up


def test_a_note_that_a_killed_keeper_left_is_no_keeper(wheel_dir: Path) -> None:
    (wheel_dir / "keeper.lock").write_text(json.dumps({"pid": os.getpid(), "started": "", "role": "keeper"}))
    assert holder(open_wheel(wheel_dir)) is None


@pytest.mark.parametrize("note", [b"", b"{}", b"[1]", b'{"pid": true, "role": 5}', b"\xff", b"[" * 512])
def test_a_keeper_without_a_note_is_up_and_has_no_number(wheel_dir: Path, note: bytes) -> None:
    with Keeper(wheel_dir, background=False), Wheel(wheel_dir) as wheel:  # its thread would write the note again
        (wheel_dir / "keeper.lock").write_bytes(note)
        assert (wheel.stats().keeper_up, wheel.stats().keeper_pid) == (True, None)
        with pytest.raises(Locked, match="another process is the keeper"):
            Keeper(wheel_dir, wait=False)


def test_a_keeper_starts_while_others_ask_whether_one_runs(wheel_dir: Path) -> None:
    owner = KeeperLock(open_wheel(wheel_dir))
    (wheel_dir / "keeper.lock").touch(mode=0o600)
    asking = os.open(wheel_dir / "keeper.lock", os.O_RDONLY)
    fcntl.flock(asking, fcntl.LOCK_SH)
    tried = []

    def stop_asking(fd: int | None, timeout_s: float) -> bool:
        tried.append(timeout_s)
        os.close(asking)
        return False

    owner._disk.wait_hint = stop_asking  # type: ignore[method-assign]
    owner.take("keeper", wait=False)
    assert len(tried) == 1
    assert holder(open_wheel(wheel_dir)) == Holder("keeper", os.getpid())
    owner.release()


def test_a_backup_has_a_replicator_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    make_set(tmp_path / "a", tmp_path / "b")
    lock = KeeperLock(open_wheel(tmp_path / "b"))
    lock.take("backup", wait=False)
    status = set_status(tmp_path / "a")
    assert status is not None
    assert status.members[0].following
    lock.release()
    eventually(lambda: not set_status(tmp_path / "a").members[0].following)  # type: ignore[union-attr]
