"""`bench`: it measures, says what that means, and leaves nothing behind, however it ends. No test looks at a time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cli.commands.bench
import filewheel.disk.directory
from cli.bench import figures, firing, rounds
from cli.signals import interruptible, uninterrupted
from filewheel import Wheel, WheelFull
from tests.cli.support import Terminal, finish, invoke, start, stopped
from tests.conftest import assert_whole
from tests.support import eventually

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a file system needs root")
TINY = ("--budget", "100ms")


def _mount(path: Path, options: str) -> Iterator[Path]:
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    yield from _mount(tmp_path / "small", "size=8m,mode=0700")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that cannot be written."""
    yield from _mount(tmp_path / "ro", "size=1g,ro")


# -- what it says -----------------------------------------------------------------------------------------------------


def test_piped_it_is_one_object_with_figures_and_a_verdict(tmp_path: Path) -> None:
    result = invoke("bench", "--dir", tmp_path, *TINY)
    assert result.code == 0, result
    (found,) = result.json
    assert found["dir"] == str(tmp_path)
    assert found["machine"]["cores"] == os.cpu_count()
    assert set(found["figures"]) == set(figures.Figures.__dataclass_fields__)
    for name, value in found["figures"].items():
        assert value > 0 or name in ("early", "late_p50_ms", "late_p99_ms"), name
    assert found["figures"]["early"] == 0
    assert set(found["verdict"]["choices"]) == {"always", "0.05", "never"}
    assert found["verdict"]["sync"] in found["verdict"]["choices"]
    assert f"measuring in {tmp_path}" in result.err
    assert "are rough" in result.err
    assert list(tmp_path.iterdir()) == []


def test_on_a_terminal_it_is_a_table_and_sentences_with_a_bar_meanwhile(tmp_path: Path) -> None:
    result = Terminal("bench", "--dir", tmp_path, "--budget", "2s", columns=72).finish(60)
    assert result.code == 0, result
    assert re.search(r"\r\x1b\[Kmeasuring  [━─]+ +\d+%", result.out)
    shown = result.out.rpartition("\x1b[K")[2]
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert re.search(r"enqueue one, sync=always, one thread +[\d,.]+/s  \d+% of bare commits\n", text)
    for label in ("disk", "filewheel", "sync=always", "sync=0.05", "sync=never", "firing", "choose"):
        assert re.search(rf"^{re.escape(label)} +\S", text, re.MULTILINE), label
    verdict = text[text.index("\ndisk ") :]
    assert max(map(len, verdict.splitlines())) < 72
    assert list(tmp_path.iterdir()) == []


# -- where it measures ------------------------------------------------------------------------------------------------


def _place(*args: object) -> str:
    result = invoke(*args, "bench", *TINY)
    assert result.code == 0, result
    place = result.json[0]["dir"]
    assert isinstance(place, str)
    return place


def test_without_a_directory_it_measures_beside_the_wheel_and_not_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _place() == str(tmp_path)
    path = tmp_path / "jobs.wheel"
    with Wheel.create(path) as wheel:
        wheel.enqueue(b"mine", delay=3600)
    before = sorted(path.rglob("*"))
    assert _place("-C", path) == str(tmp_path)
    assert _place("-C", "jobs.wheel") == str(tmp_path)
    assert sorted(path.rglob("*")) == before
    assert_whole(path)
    (tmp_path / "data").mkdir()
    assert _place("-C", tmp_path / "data") == str(tmp_path / "data")
    assert _place("-C", tmp_path / "data" / "none.wheel") == str(tmp_path / "data")


@needs_root
def test_a_wheel_that_is_a_mount_point_is_measured_on_its_own_disk(
    small: Path,
) -> None:
    Wheel.create(small).close()
    assert cli.commands.bench._beside(small) == small
    assert cli.commands.bench._beside(small / "other.wheel") == small


# -- when it cannot ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["0", "11m", "soon"])
def test_a_budget_that_makes_no_sense_is_a_usage_error(tmp_path: Path, budget: str) -> None:
    result = invoke("bench", "--dir", tmp_path, "--budget", budget)
    assert (result.code, result.out) == (2, "")


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("none", "no such directory"), ("file", "not a directory")):
        result = invoke("--json", "bench", "--dir", tmp_path / name, *TINY)
        assert (result.code, result.out) == (1, "")
        assert result.error["message"] == f"{tmp_path / name}: {reason}"
    result = invoke("--json", "-C", tmp_path / "none" / "wheel", "bench", *TINY)
    assert result.error["message"] == f"{tmp_path / 'none'}: no such directory"


@needs_root
def test_a_read_only_directory_is_an_error_of_the_usual_kind(read_only: Path) -> None:
    result = invoke("--json", "bench", "--dir", read_only, *TINY)
    assert (result.code, result.out, result.error["error"]) == (1, "", "read-only")


@needs_root
def test_a_disk_without_room_is_left_alone(small: Path) -> None:
    result = invoke("--json", "bench", "--dir", small, *TINY)
    assert (result.code, result.out, result.error["error"]) == (1, "", "full")
    assert "not enough room" in result.error["message"]
    assert list(small.iterdir()) == []


@needs_root
def test_a_disk_that_fills_up_meanwhile_ends_it_and_gets_its_room_back(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.commands.bench, "ROOM_BYTES", 0)
    result = invoke("--json", "bench", "--dir", small, "--budget", "4s")
    assert (result.code, result.out, result.error["error"]) == (1, "", "full")
    assert list(small.iterdir()) == []


def test_a_network_file_system_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filewheel.disk.directory, "file_system_type", lambda path: "nfs4")
    monkeypatch.setattr(figures, "file_system_type", lambda path: "nfs4")
    result = invoke("--json", "bench", "--dir", tmp_path, *TINY)
    assert (result.code, result.error["error"]) == (1, "unsafe")
    assert list(tmp_path.iterdir()) == []
    result = invoke("--json", "--force", "bench", "--dir", tmp_path, *TINY)
    assert result.code == 0, result
    assert result.json[0]["verdict"]["disk"] == "network"


def test_a_producer_that_fails_is_an_error_and_not_a_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing, "_PRODUCER", "raise SystemExit('the disk is on fire')")
    result = invoke("--json", "bench", "--dir", tmp_path, *TINY)
    assert (result.code, result.out) == (1, "")
    assert result.error["message"] == "the process that enqueues has failed: the disk is on fire"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_it_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup a hang-up is ignored, here and by what is started here")
    with stopped(start("bench", "--dir", tmp_path, "--budget", "60s")) as process:
        eventually(lambda: list(tmp_path.glob("filewheel-bench-*/round-*.wheel/journal/*.log")))
        process.send_signal(number)
        result = finish(process)
    assert (result.code, result.out) == (130, "")
    assert [line for line in result.err.splitlines() if line] == [
        f"measuring in {tmp_path} for about 1m",
        "note: interrupted",
    ]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_comes_once_and_can_be_put_off() -> None:
    before = signal.getsignal(signal.SIGINT)
    steps = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            with uninterrupted():
                os.kill(os.getpid(), signal.SIGTERM)
                steps.append("short")
            steps.append("never")
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("cleaned up")
    assert steps == ["short", "cleaned up"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_that_was_ignored_before_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interrupted_while_another_process_enqueues_it_ends_that_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen[str]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(firing.subprocess, "Popen", Recorded)
    with pytest.raises(KeyboardInterrupt):
        firing.lateness(tmp_path / "late.wheel", 60, interrupt, force=False)
    assert [process.returncode for process in started] == [-signal.SIGKILL]


def test_threads_are_done_with_a_wheel_before_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the waiting is interrupted or one of them fails."""
    busy = threading.Event()

    def slow() -> None:
        busy.set()
        time.sleep(0.05)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        before = set(threading.enumerate())
        patched.setattr(rounds, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=interrupted))
        with pytest.raises(KeyboardInterrupt):
            rounds._in_threads(slow, 60)
        assert not set(threading.enumerate()) - before
    assert busy.is_set()

    def fails() -> None:
        raise WheelFull("no space left")

    with pytest.raises(WheelFull):
        rounds._in_threads(fails, 60)
