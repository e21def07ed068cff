"""A wheel's directory: made whole, opened only when it can be trusted."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import filewheel.disk.directory
from filewheel import Keeper, Wheel
from filewheel.disk.checkpoint import Checkpoint
from filewheel.disk.directory import create_directory, open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import (
    BadArgument,
    Damaged,
    DiskError,
    NetworkFileSystem,
    NewerFormat,
    NoWheel,
    Unsafe,
    WheelExists,
)
from filewheel.format.frame import FORMAT
from filewheel.format.settings import PAYLOAD_BYTES_LIMIT, Settings, check_sync, parse_settings
from filewheel.laps.deal import Deal
from tests.support import FaultyDisk
from tests.support_wheel import NOW_US, flip

IS_ROOT = os.geteuid() == 0


def create(path: Path, **options: Any) -> None:
    create_directory(path, now_us=NOW_US, **options)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    create(path)
    return path


@pytest.fixture
def umask() -> Iterator[Callable[[int], None]]:
    before = os.umask(0o022)
    os.umask(before)
    yield lambda mask: (os.umask(mask), None)[1]
    os.umask(before)


# -- making one -------------------------------------------------------------------------------------------------


def test_a_wheel_that_was_created_can_be_opened_and_holds_nothing(made: Path) -> None:
    directory = open_directory(made, write=True)
    assert directory.notes == []
    assert directory.settings.format == FORMAT
    assert directory.settings.created == "2027-01-15T08:00:00+00:00"
    assert (directory.settings.slots, directory.settings.sync) == (900, "always")
    assert directory.checkpoint() == Checkpoint()
    assert sorted(os.listdir(made)) == [
        "ballast",
        "checkpoint",
        "journal",
        "keeper.lock",
        "laps",
        "quarantine",
        "wheel.json",
        "wheel.json.copy",
    ]
    assert (made / "wheel.json").read_bytes() == (made / "wheel.json.copy").read_bytes()


def test_an_empty_directory_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir(mode=0o700)
    create(tmp_path / "w")
    open_directory(tmp_path / "w", write=True)


def test_what_a_create_that_was_cut_short_left_behind_is_taken_over(made: Path) -> None:
    (made / "wheel.json").unlink()
    (made / "wheel.json.copy").unlink()
    (made / "ballast").unlink()
    (made / "wheel.json.tmp").write_bytes(b"half")
    (made / "checkpoint.tmp").write_bytes(b"half")
    create(made)
    assert open_directory(made, write=True).notes == []


def test_a_wheel_that_lost_its_wheel_json_is_not_made_again_over_what_it_holds(made: Path) -> None:
    (made / "wheel.json").unlink()
    with pytest.raises(WheelExists, match=r"without its wheel.json. Try: `filewheel repair`"):
        create(made)
    (made / "wheel.json.copy").unlink()
    (made / "laps" / "7.lap").write_bytes(b"what it holds")
    with pytest.raises(WheelExists, match="the directory is not empty"):
        create(made)


def test_two_wheels_have_ids_and_salts_of_their_own(tmp_path: Path) -> None:
    create(tmp_path / "a")
    create(tmp_path / "b")
    a, b = (open_directory(tmp_path / n, write=False).settings for n in "ab")
    assert a.id != b.id
    assert a.salt != b.salt
    assert len(a.salt_bytes) == 16


def test_a_wheel_that_is_there_is_not_made_again(made: Path) -> None:
    before = (made / "wheel.json").read_bytes()
    with pytest.raises(WheelExists, match="a wheel already"):
        create(made)
    assert (made / "wheel.json").read_bytes() == before


def test_a_directory_with_anything_of_somebody_elses_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "thesis.txt").write_text("precious")
    with pytest.raises(WheelExists, match="not empty"):
        create(tmp_path / "w")
    assert os.listdir(tmp_path / "w") == ["thesis.txt"]


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_a_name_that_is_taken_by_something_else_is_refused(tmp_path: Path, kind: str) -> None:
    if kind == "file":
        (tmp_path / "w").write_text("x")
    else:
        (tmp_path / "w").symlink_to("nowhere")
    with pytest.raises(WheelExists, match="a file is there"):
        create(tmp_path / "w")


def test_a_missing_parent_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(NoWheel, match="parent"):
        create(tmp_path / "no" / "w")
    assert not (tmp_path / "no").exists()


def test_a_parent_that_is_a_file_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(DiskError):
        create(tmp_path / "f" / "w")


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 59},
        {"slots": 86_401},
        {"payload_bytes_max": 0},
        {"payload_bytes_max": PAYLOAD_BYTES_LIMIT + 1},
        {"sync": "now"},
    ],
)
def test_a_setting_outside_of_its_range_is_refused_before_anything_is_made(tmp_path: Path, options: Any) -> None:
    with pytest.raises(BadArgument):
        create(tmp_path / "w", **options)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 60},
        {"slots": 86_400},
        {"payload_bytes_max": 1},
        {"payload_bytes_max": PAYLOAD_BYTES_LIMIT},
        {"sync": 0.1},
    ],
)
def test_settings_survive_being_written_and_read(tmp_path: Path, options: Any) -> None:
    create(tmp_path / "w", **options)
    found = open_directory(tmp_path / "w", write=False).settings
    for name, value in options.items():
        assert getattr(found, name) == value


def test_a_directory_open_to_others_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w").chmod(0o777)
    with pytest.raises(Unsafe):
        create(tmp_path / "w")
    assert os.listdir(tmp_path / "w") == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: Callable[[int], None], mask: int) -> None:
    umask(mask)
    with Wheel.create(tmp_path / "w") as wheel, Keeper(tmp_path / "w", background=False) as keeper:
        wheel.enqueue(b"x")
        wheel.enqueue(b"y", delay=100_000)
        keeper.ack(keeper.claim())
        Deal(keeper._store, spread=True).run()
        wheel.enqueue(b"z")
        assert stat.S_IMODE((tmp_path / "w").stat().st_mode) == 0o700
        seen = set()
        for place in (tmp_path / "w").rglob("*"):
            info = place.lstat()
            assert stat.S_IMODE(info.st_mode) == (0o700 if place.is_dir() else 0o600), place
            seen |= {place.name, place.suffix}
    assert {".log", ".lap", "checkpoint", "keeper.lock", "hint", "wheel.json", "journal", "laps", "quarantine"} <= seen


# -- sync -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", ["always", "never", 0.001, 1, 3600, 0.5])
def test_a_sync_is_always_never_or_seconds(sync: Any) -> None:
    assert check_sync(sync) == sync


@pytest.mark.parametrize(
    "sync", ["", "Always", "1", 0, 0.0009, 3601, -1, None, True, float("nan"), float("inf"), b"never"]
)
def test_any_other_sync_is_refused(sync: Any) -> None:
    with pytest.raises(BadArgument, match="sync is"):
        check_sync(sync)


# -- opening one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [False, True])
def test_what_is_not_there_is_no_wheel(tmp_path: Path, write: bool) -> None:
    with pytest.raises(NoWheel, match="no such directory") as caught:
        open_directory(tmp_path / "no", write=write)
    assert caught.value.hint is not None
    assert "init" in caught.value.hint


def test_a_file_is_no_wheel(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(NoWheel, match="not a directory"):
        open_directory(tmp_path / "f", write=False)


def test_a_directory_without_wheel_json_is_no_wheel(tmp_path: Path) -> None:
    with pytest.raises(NoWheel, match=r"it has no wheel\.json"):
        open_directory(tmp_path, write=False)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o770])
def test_a_directory_that_others_may_write_in_is_unsafe_to_write_and_fine_to_read(made: Path, mode: int) -> None:
    made.chmod(mode)
    with pytest.raises(Unsafe, match="others may write"):
        open_directory(made, write=True)
    with pytest.raises(Unsafe):
        Keeper(made)
    with Wheel(made) as wheel:
        assert list(wheel.list()) == []
        with pytest.raises(Unsafe):
            wheel.enqueue(b"x")


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_directory_that_others_may_only_read_is_written(made: Path, mode: int) -> None:
    made.chmod(mode)
    open_directory(made, write=True)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_unsafe_to_write(made: Path) -> None:
    os.chown(made, 12345, -1)
    with pytest.raises(Unsafe, match="belongs to user 12345"):
        open_directory(made, write=True)
    open_directory(made, write=False)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a directory away")
def test_an_empty_directory_of_another_user_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir(mode=0o700)
    os.chown(tmp_path / "w", 12345, -1)
    with pytest.raises(Unsafe):
        create(tmp_path / "w")


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "9p", "virtiofs", "vboxsf", "fuse.sshfs", "fuse.juicefs"])
def test_a_network_file_system_is_refused_unless_forced(
    tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(filewheel.disk.directory, "file_system_type", lambda path: kind)
    with pytest.raises(NetworkFileSystem, match=kind.replace(".", r"\.")):
        open_directory(made, write=True)
    with pytest.raises(NetworkFileSystem):
        create(tmp_path / "new")
    open_directory(made, write=True, force=True)
    open_directory(made, write=False)
    create(tmp_path / "forced", force=True)


@pytest.mark.parametrize("trouble", ["modes", "network"])
def test_a_directory_that_was_made_and_cannot_be_used_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """A disk of Windows in WSL, or vfat: whatever the mode that is asked for, it is 0777."""
    make = os.mkdir

    def made(path: str, mode: int = 0o777, **more: int) -> None:
        make(path, mode, **more)
        os.chmod(path, 0o777, **more)

    if trouble == "modes":
        monkeypatch.setattr(os, "mkdir", made)
    else:
        monkeypatch.setattr(filewheel.disk.directory, "file_system_type", lambda path: "9p")
    with pytest.raises(Unsafe, match="others may write .* WSL" if trouble == "modes" else "network"):
        create(tmp_path / "w")
    assert os.listdir(tmp_path) == []
    (tmp_path / "w").mkdir(mode=0o777)
    (tmp_path / "w").chmod(0o777)
    with pytest.raises(Unsafe):
        create(tmp_path / "w")
    assert os.listdir(tmp_path) == ["w"]  # somebody else's


def test_an_error_within_a_new_directory_is_not_said_to_be_about_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock(disk: OsDisk, fd: int, *, wait: bool) -> bool:
        raise FileNotFoundError(2, "No such file or directory", "/some/other/file")

    monkeypatch.setattr(OsDisk, "lock", lock)
    with pytest.raises(DiskError):
        create(tmp_path / "w")
    assert os.listdir(tmp_path) == []
    with pytest.raises(NoWheel, match="the parent directory does not exist"):
        create(tmp_path / "no" / "w")


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", ""])
def test_a_local_or_unknown_file_system_is_used(made: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(filewheel.disk.directory, "file_system_type", lambda path: kind)
    open_directory(made, write=True)


def test_a_link_to_a_wheel_is_followed_at_the_top(made: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(made)
    open_directory(tmp_path / "link", write=True)


# -- wheel.json -------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_wheel_json_is_worked_around_by_the_copy_with_a_note(made: Path) -> None:
    good = (made / "wheel.json").read_bytes()
    right = open_directory(made, write=False).settings
    for bit in range(len(good) * 8):
        bad = flip(good, bit)
        (made / "wheel.json").write_bytes(bad)
        try:
            found = open_directory(made, write=False)
        except NewerFormat:
            pytest.fail(f"bit {bit} made the wheel newer")
        assert found.settings == right, bit
        assert found.notes or json.loads(bad) == json.loads(good), bit


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"{", b"\xff", b'{"format": 1}', b'"x"', b"1", b"\x00" * 300]
)
def test_a_wheel_json_that_is_none_is_damaged_and_worked_around_by_the_copy(made: Path, data: bytes) -> None:
    (made / "wheel.json").write_bytes(data)
    (note,) = open_directory(made, write=False).notes
    assert "wheel.json" in note
    assert "repair" in note


def test_a_missing_wheel_json_is_worked_around_by_the_copy_with_a_note(made: Path) -> None:
    (made / "wheel.json").unlink()
    (note,) = open_directory(made, write=True).notes
    assert "wheel.json: missing" in note


def test_a_missing_or_damaged_copy_is_not_missed_while_wheel_json_is_good(made: Path) -> None:
    (made / "wheel.json.copy").write_bytes(b"x")
    assert open_directory(made, write=True).notes == []
    (made / "wheel.json.copy").unlink()
    assert open_directory(made, write=True).notes == []


@pytest.mark.parametrize("how", ["both damaged", "one damaged, one missing", "a link and damage"])
def test_without_one_good_wheel_json_the_wheel_is_damaged(made: Path, how: str) -> None:
    one, two = made / "wheel.json", made / "wheel.json.copy"
    two.write_bytes(b"{}")
    one.unlink()
    if how == "both damaged":
        one.write_bytes(b"x")
    elif how == "a link and damage":
        one.symlink_to("wheel.json.copy")
    with pytest.raises(Damaged) as caught:
        open_directory(made, write=False)
    assert caught.value.path is not None
    assert "wheel.json" in caught.value.path
    assert caught.value.hint is not None
    assert "`filewheel repair`" in caught.value.hint


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_a_wheel_json_that_is_no_regular_file_is_not_followed(made: Path, kind: str) -> None:
    one = made / "wheel.json"
    one.rename(made / "elsewhere")
    if kind == "link":
        one.symlink_to("elsewhere")
    elif kind == "directory":
        one.mkdir()
    else:
        os.mkfifo(one)
    (note,) = open_directory(made, write=True).notes
    assert "wheel.json: not a regular file" in note


def write_settings(path: Path, **fields: object) -> None:
    """Write both wheel.json with a checksum that holds, whatever is in them."""
    body = json.dumps(fields, indent=2)
    data = f'{body[:-2]},\n  "crc32": {zlib.crc32(body.encode())}\n}}\n'.encode()
    for name in ("wheel.json", "wheel.json.copy"):
        (path / name).write_bytes(data)


GOOD: dict[str, object] = {
    "format": 1,
    "id": "00" * 16,
    "salt": "11" * 16,
    "slots": 900,
    "sync": "always",
    "payload_bytes_max": 5,
    "created": "",
}


def test_settings_with_a_checksum_that_holds_are_taken(made: Path) -> None:
    write_settings(made, **GOOD)
    assert open_directory(made, write=False).settings.payload_bytes_max == 5


@pytest.mark.parametrize("number", [FORMAT + 1, 99])
def test_a_newer_format_is_refused_even_if_nothing_else_is_understood(made: Path, number: int) -> None:
    write_settings(made, format=number, something={"else": [1, 2.5, None, "ü"]})
    with pytest.raises(NewerFormat, match=f"format {number}; this filewheel reads up to format {FORMAT}") as caught:
        open_directory(made, write=False)
    assert caught.value.hint == "upgrade filewheel"


def test_a_newer_format_is_not_opened_by_way_of_an_older_copy(made: Path) -> None:
    old = (made / "wheel.json.copy").read_bytes()
    write_settings(made, format=FORMAT + 1)
    (made / "wheel.json.copy").write_bytes(old)
    with pytest.raises(NewerFormat):
        open_directory(made, write=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"extra": 1},
        {"salt": "zz"},
        {"salt": "11"},
        {"format": "2"},
        {"format": 0},
        {"slots": 0},
        {"slots": "900"},
        {"id": ...},
    ],
    ids=str,
)
def test_settings_with_a_checksum_that_holds_and_a_value_that_cannot_be_are_damaged(made: Path, changes: Any) -> None:
    write_settings(made, **{k: v for k, v in (GOOD | changes).items() if v is not ...})
    with pytest.raises(Damaged):
        open_directory(made, write=False)


def test_a_wheel_json_that_is_nested_too_deep_is_damaged(made: Path) -> None:
    (made / "wheel.json").write_bytes(b"[" * 60_000)
    assert open_directory(made, write=False).notes


def test_a_wheel_json_that_cannot_be_read_is_worked_around_by_the_copy(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = filewheel.disk.directory.OsDisk.pread
    calls = []

    def pread(self: Any, fd: int, size: int, offset: int) -> bytes:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return right(self, fd, size, offset)

    monkeypatch.setattr(filewheel.disk.directory.OsDisk, "pread", pread)
    assert open_directory(made, write=False).notes


def test_settings_are_written_as_the_page_says_and_read_back() -> None:
    settings = Settings(id="0a" * 16, salt="0b" * 16, sync=0.02, created="then")
    data = settings.to_json()
    assert parse_settings(data, "p") == settings
    assert data.endswith(b"\n}\n")
    assert list(json.loads(data)) == ["format", "id", "salt", "slots", "sync", "payload_bytes_max", "created", "crc32"]
    head = data.rpartition(b',\n  "crc32": ')[0]
    assert zlib.crc32(head + b"\n}") == json.loads(data)["crc32"]


def test_a_lap_is_a_run_of_seconds() -> None:
    settings = Settings(id="", salt="", slots=60)
    assert [settings.lap_of(s) for s in (0, 59, 60, 119, 120)] == [0, 0, 1, 1, 2]


def test_a_wheel_that_two_make_at_once_has_one_salt_and_holds_what_both_enqueued(tmp_path: Path) -> None:
    path = tmp_path / "w"
    is_half_done, may_go_on = threading.Event(), threading.Event()

    def pause(what: str, name: str) -> None:
        if (what, name) == ("rename", "wheel.json"):
            is_half_done.set()
            may_go_on.wait(120)

    def make(payload: bytes, fail: Callable[[str, str], None]) -> None:
        with Wheel.create(path, exist_ok=True, env=SYSTEM.using(disk=lambda where: FaultyDisk(where, fail))) as wheel:
            wheel.enqueue(payload, delay=60)

    first = threading.Thread(target=make, args=(b"first", pause))
    second = threading.Thread(target=make, args=(b"second", lambda what, name: None))
    first.start()
    assert is_half_done.wait(120)
    second.start()
    second.join(0.3)  # it waits for the first; one that did not would be done by now
    may_go_on.set()
    first.join()
    second.join()
    with Wheel(path) as wheel:
        assert {m.payload for m in wheel.list()} == {b"first", b"second"}


def test_a_directory_that_goes_while_it_is_opened_is_no_wheel(made: Path) -> None:
    class Going(OsDisk):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            made.rename(made.with_name("elsewhere"))

    with pytest.raises(NoWheel, match="has gone"):
        open_directory(made, write=True, env=SYSTEM.using(disk=Going))


@pytest.mark.parametrize("call", ["open", "pread"])
@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_settings_on_a_bad_place_are_read_from_the_copy_and_an_error_of_this_process_is_raised(
    made: Path, call: str, code: int
) -> None:
    class Bad(OsDisk):
        def open(self, name: str, mode: str) -> int:
            if (call, name) == ("open", "wheel.json"):
                raise OSError(code, os.strerror(code))
            return super().open(name, mode)

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if call == "pread" and os.readlink(f"/proc/self/fd/{fd}").endswith("wheel.json"):
                raise OSError(code, os.strerror(code))
            return super().pread(fd, size, offset)

    if code == errno.EIO:
        opened = open_directory(made, write=False, env=SYSTEM.using(disk=Bad))
        assert "cannot be read" in opened.notes[0]
    else:
        with pytest.raises(DiskError):
            open_directory(made, write=False, env=SYSTEM.using(disk=Bad))
