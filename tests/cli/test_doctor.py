"""`doctor`: one report to paste into an issue, of any wheel in any trouble, that gives away nothing of its messages."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.commands import doctor
from cli.doctor import flushes, place, versions
from filewheel import Keeper, Scheduler, Wheel, add_backup, remove_backup
from filewheel.format.sealed import seal
from tests.cli.support import Fw, finish, invoke, on_terminal, start
from tests.support import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
SECRETS = [
    "my-payload",
    "my-topic",
    "my-key",
    "my-header",
    "my-value",
    "my-schedule",
    "my-pause",
    "my-why",
    "my-argument",
]


def populate(path: Path) -> None:
    """Put a secret into each place that a user can name something in."""
    with Wheel(path) as wheel:
        wheel.enqueue(b"my-payload", delay=3600, topic="my-topic", key="my-key", headers={"my-header": "my-value"})
        wheel.pause(topic="my-pause", why="my-why")
    scheduler = Scheduler(path)
    scheduler.schedule("my-schedule", 3600, "my-topic", ["my-argument"])
    scheduler.stop()
    with Keeper(path, background=False) as keeper:
        with Wheel(path) as wheel:
            wheel.enqueue(b"my-payload", topic="my-topic")
        for message in keeper.claim():
            keeper.bury(message, reason="my-value")


@pytest.mark.parametrize("is_compiled", [True, False])
def test_an_installation_without_a_compiler_is_told_how_to_get_the_loops_in_c(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    monkeypatch.setattr(versions, "COMPILED", is_compiled)
    monkeypatch.delenv("FILEWHEEL_PURE", raising=False)
    shown = doctor._software(versions.versions())
    assert ("loops in C;" in shown[0]) is is_compiled
    assert ("--force-reinstall --no-cache-dir" in shown[-1]) is not is_compiled


def tree(path: Path) -> dict[str, tuple[int, bytes]]:
    """Each file of a directory: when it was changed, and its bytes."""
    return {
        str(p.relative_to(path)): (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
        for p in sorted(path.rglob("*"))
    }


@contextlib.contextmanager
def mounted(where: Path, options: str) -> Iterator[Path]:
    where.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", where], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)


def troubles(report: dict[str, Any]) -> list[str]:
    return [one["error"] for one in report["troubles"]]


# -- what it has, and what it does not ------------------------------------------------------------------------


def test_the_report_has_all_parts_and_nothing_that_a_user_named(fw: Fw) -> None:
    populate(fw.wheel)
    (report,) = fw("doctor", "--verify").json
    assert report["versions"]["filewheel"] in invoke("--version").out
    assert report["versions"]["libraries"]["msgpack"]
    assert (report["place"]["exists"], report["place"]["mode"], report["place"]["yours"]) == (True, "0700", True)
    assert report["place"]["free_bytes"] > 0
    assert report["settings"] | {"created": ""} == {
        "format": 2, "lap_s": 900, "sync": "always", "payload_bytes_max": 1 << 20, "created": "", "notes": [],
    }  # fmt: skip
    assert (report["stats"]["pending"], report["stats"]["dead"], report["stats"]["pauses"]) == (2, 1, 1)
    assert report["running"] == {"claimed": 0, "begun": 0}
    assert {one["name"]: one["kind"] for one in report["health"]}["keeper"] == "no-keeper"
    assert (report["set"], report["verify"]["damage"], report["troubles"]) == (None, 0, [])
    texts = [json.dumps(report), fw("doctor", "--no-json").out, fw("doctor", "--verify").err]
    texts.append(on_terminal("-C", fw.wheel, "doctor", "--verify", "--no-measure").out)
    assert not [secret for secret in SECRETS for text in texts if secret in text]


def test_it_changes_nothing_in_the_wheel_and_leaves_nothing_beside_it(fw: Fw) -> None:
    populate(fw.wheel)
    before, beside = tree(fw.wheel), sorted(fw.wheel.parent.iterdir())
    (report,) = fw("doctor", "--verify").json
    assert tree(fw.wheel) == before
    assert sorted(fw.wheel.parent.iterdir()) == beside
    cost = report["flushes"]
    assert (cost["why"], cost["count"] >= 9) == (None, True)
    assert min(cost["append_us"], cost["rewrite_us"], cost["name_us"]) >= 0
    assert cost["slowest_us"] >= max(cost["append_us"], cost["rewrite_us"], cost["name_us"])


def test_nothing_is_measured_where_that_is_not_wanted(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flushes, "_measured", lambda beside: pytest.fail("measured"))
    assert fw("doctor", "--no-measure").json[0]["flushes"] is None
    assert "not measured" in fw("doctor", "--no-measure", "--no-json").out


def test_an_interrupt_during_the_measurement_leaves_no_file(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    beside = sorted(fw.wheel.parent.iterdir())
    for name in ("fdatasync", "fsync"):
        monkeypatch.setattr(flushes.os, name, interrupt)
        assert invoke("-C", fw.wheel, "doctor").code == 130
        assert sorted(fw.wheel.parent.iterdir()) == beside


def test_it_works_beside_a_keeper_and_names_no_path_of_a_backup(fw: Fw) -> None:
    add_backup(fw.wheel, fw.wheel.with_name("my-backup.wheel"), mode="ship")
    keeper = fw.start("run", "--", "true")
    try:
        eventually(lambda: Wheel(fw.wheel).has_keeper())
        (report,) = fw("doctor", "--no-measure").json
    finally:
        keeper.send_signal(signal.SIGTERM)
        finish(keeper)
    assert {one["name"]: one["kind"] for one in report["health"]}["keeper"] is None
    assert (report["set"]["role"], list(report["set"]["backups"].values())) == ("primary", [1])
    assert "my-backup" not in json.dumps(report)


def test_a_backup_whose_directory_is_gone_is_unreachable_and_not_current(fw: Fw) -> None:
    backup = fw.wheel.with_name("my-backup.wheel")
    add_backup(fw.wheel, backup, mode="ship")
    (before,) = fw("doctor", "--no-measure").json
    shutil.rmtree(backup)
    (report,) = fw("doctor", "--no-measure").json
    assert before["set"]["backups"] != report["set"]["backups"] == {"ship, unreachable": 1}
    remove_backup(fw.wheel, backup)


# -- trouble --------------------------------------------------------------------------------------------------


def test_without_a_wheel_there_is_a_report_and_the_code_of_no_wheel(tmp_path: Path) -> None:
    result = invoke("-C", tmp_path / "nope", "doctor")
    (report,) = result.json
    assert (result.code, troubles(report)) == (10, ["no-wheel"])
    assert (report["place"]["exists"], report["stats"], report["health"]) == (False, None, None)
    assert report["flushes"]["append_us"] is not None
    assert list(tmp_path.iterdir()) == []


def test_below_a_directory_that_is_missing_nothing_is_measured(tmp_path: Path) -> None:
    result = invoke("-C", tmp_path / "no" / "wheel", "doctor")
    assert (result.code, troubles(result.json[0])) == (10, ["no-wheel"])
    assert "no such file" in result.json[0]["flushes"]["why"]


def test_a_file_in_the_place_of_the_wheel_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = invoke("-C", tmp_path / "file", "doctor")
    assert (result.code, result.json[0]["place"]["exists"], troubles(result.json[0])) == (10, True, ["no-wheel"])


@pytest.mark.damages
@pytest.mark.parametrize(
    ("names", "option"),
    [
        (["wheel.json", "wheel.json.copy"], []),
        (["wheel.json"], ["--verify"]),
        (["checkpoint", "checkpoint.old"], ["--verify"]),
        (["paused.json"], []),
        (["laps/*.lap"], ["--verify"]),
        (["keys/*.keys"], ["--verify"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else value,
)
def test_damage_is_in_the_report_and_the_rest_of_it_is_there(fw: Fw, names: list[str], option: list[str]) -> None:
    populate(fw.wheel)
    fw.enqueue("--in", "50d", "--key", "my-key-2", "far")
    fw.deal()
    harmed = [place for name in names for place in fw.wheel.glob(name)]
    assert harmed
    for file in harmed:
        file.write_bytes(bytes(byte ^ 1 for byte in file.read_bytes()))
    result = invoke("-C", fw.wheel, "doctor", "--no-measure", *option)
    (report,) = result.json
    assert (result.code, troubles(report)[0]) == (12, "damaged")
    assert report["versions"]
    assert report["place"]["exists"]
    assert not [secret for secret in SECRETS if secret in result.out + result.err]


@pytest.mark.damages
def test_a_value_in_a_file_that_verifies_and_holds_nonsense_is_not_in_the_report(fw: Fw) -> None:
    populate(fw.wheel)
    (fw.wheel / "paused.json").write_bytes(seal({"paused": 1, "entries": "my-pause"}))
    with Wheel(fw.wheel) as wheel:
        journal = wheel._writer()
        id_ = journal.new_id(time.time_ns() // 1000 + 3_600_000_000)
        journal.append([b"\x98\x01\xc4\x10" + id_ + b"\xa8my-topic\x01\xa8my-topi\xff\xa8my-value\x04\x05"], 1)
    result = invoke("-C", fw.wheel, "doctor", "--no-measure", "--verify")
    (report,) = result.json
    assert (result.code, report["verify"]["damage"]) == (12, 2)
    whats = [place["what"] for place in report["verify"]["places"]]
    assert all(whats)
    assert not [secret for secret in SECRETS if secret in result.out]


@pytest.mark.damages
def test_a_wheel_of_a_newer_filewheel_says_so(fw: Fw) -> None:
    for name in ("wheel.json", "wheel.json.copy"):
        (fw.wheel / name).write_bytes(seal({"format": 99}))
    result = invoke("-C", fw.wheel, "doctor", "--no-measure")
    assert (result.code, troubles(result.json[0])) == (13, ["newer-format"])


def test_a_wheel_that_may_not_be_read_is_described_from_outside(fw: Fw) -> None:
    with as_another_user(fw.wheel):
        result = invoke("-C", fw.wheel, "doctor")
    (report,) = result.json
    assert result.code == 1
    assert troubles(report) == ["read-only"]
    assert report["versions"]
    assert report["stats"] is None
    assert "Traceback" not in result.err


@contextlib.contextmanager
def as_another_user(path: Path) -> Iterator[None]:
    """Root may read everything, so it is somebody else for a moment; others close the directory to themselves."""
    if os.geteuid() == 0:
        os.seteuid(65534)
    else:
        path.chmod(0)
    try:
        yield
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        else:
            path.chmod(0o700)


@needs_root
def test_on_a_read_only_disk_all_is_read_and_nothing_is_measured(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=8m,mode=0700") as disk:
        with Wheel.create(disk / "w") as wheel:
            wheel.enqueue(b"x", delay=60)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        result = invoke("-C", disk / "w", "doctor", "--verify")
    (report,) = result.json
    assert (result.code, report["stats"]["pending"], report["verify"]["damage"], report["troubles"]) == (0, 1, 0, [])
    assert "read-only" in report["flushes"]["why"]
    assert (report["place"]["file_system"], "ro" in report["place"]["mount_options"]) == ("tmpfs", True)


@needs_root
def test_a_wheel_that_is_a_mount_point_is_not_written_into(tmp_path: Path) -> None:
    with mounted(tmp_path / "w", "size=8m,mode=0700") as disk:
        Wheel.create(disk).close()
        before = tree(disk)
        (report,) = invoke("-C", disk, "doctor").json
        assert tree(disk) == before
    assert (report["place"]["mount_point"], "mount point" in report["flushes"]["why"]) == (True, True)


def test_a_full_disk_is_the_reason_why_nothing_was_measured(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(flushes.os, "write", full)
    assert "no space left" in flushes.measure_flushes(str(fw.wheel))["why"]
    assert not list(fw.wheel.parent.glob(".filewheel-doctor*"))


def test_it_is_not_stopped_by_a_reader_that_goes_away(fw: Fw) -> None:
    process = start("-C", fw.wheel, "doctor", "--no-measure", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert "Traceback" not in finish(process).err


# -- the mount ------------------------------------------------------------------------------------------------

TABLE = r"""
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 25 0:40 /@home /home rw - btrfs /dev/sdb rw,compress=zstd:3,subvol=/@home
31 25 0:41 / /mnt/my\040share rw,noatime - nfs4 10.0.0.7:/export rw,vers=4.2,addr=10.0.0.7,username=ann
32 25 0:42 / /srv rw - ext4 /dev/sdc rw
33 32 0:43 / /srv rw - overlay overlay rw,lowerdir=/var/lib/x,upperdir=/var/lib/y
garbage
"""


@pytest.mark.parametrize(
    ("path", "kind", "options"),
    [
        ("/var/jobs", "ext4", ["rw", "relatime", "errors=remount-ro"]),
        ("/home/ann/jobs", "btrfs", ["rw", "compress=zstd:3", "subvol=(hidden)"]),
        ("/homes/jobs", "ext4", ["rw", "relatime", "errors=remount-ro"]),
        ("/mnt/my share/jobs", "nfs4", ["rw", "noatime", "vers=4.2", "addr=(hidden)", "username=(hidden)"]),
        ("/srv", "overlay", ["rw", "lowerdir=(hidden)", "upperdir=(hidden)"]),
    ],
)
def test_the_mount_is_the_last_of_the_longest_and_tells_no_path_user_or_address(
    path: str, kind: str, options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(TABLE)
    monkeypatch.setattr(place, "_MOUNTS", str(tmp_path / "mounts"))
    found = place.mount_of(path)
    assert found is not None
    assert (found.kind, list(found.options)) == (kind, options)


def test_without_a_table_of_mounts_nothing_is_known_of_it(fw: Fw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "_MOUNTS", "/nowhere/mounts")
    (report,) = fw("doctor", "--no-measure").json
    assert report["place"]["file_system"] is report["place"]["network"] is report["place"]["mount_options"] is None
    assert "file system not known" in fw("doctor", "--no-measure", "--no-json").out


def test_a_network_file_system_is_described_without_force(
    fw: Fw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts").write_text(f"31 25 0:41 / {tmp_path} rw - nfs4 server:/ rw\n")
    monkeypatch.setattr(place, "_MOUNTS", str(tmp_path / "mounts"))
    (report,) = fw("doctor", "--no-measure").json
    assert (report["place"]["network"], report["stats"]["pending"]) == (True, 0)
    assert "refused without --force" in fw("doctor", "--no-measure", "--no-json").out


def test_the_home_directory_is_not_named(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    result = invoke("-C", tmp_path / "jobs.wheel", "doctor", "--no-measure", env=home)
    assert result.json[0]["place"]["path"] == "~/jobs.wheel"
    assert str(tmp_path) not in result.out
