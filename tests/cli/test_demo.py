"""`demo`: it proves what it says, by its own records; and its samples are what they claim to be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.demo.lost_disk import LostDiskResult, Story
from cli.demo.panel import Confirmed, DiskPanel
from cli.demo.proof import prove
from cli.demo.stage import KeeperProcess, samples
from filewheel.format.limits import check_headers, check_topic
from filewheel.tools.dump import payload_of
from tests.cli.support import Terminal, environment, finish, start, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually


def test_the_samples_look_like_life() -> None:
    found = samples()
    rows = [row for some in found.values() for row in some]
    assert 180 <= len(rows) <= 250
    assert set(found) == {"caches", "payments", "reminders", "trials", "webhooks"}
    for row in rows:
        assert 1 <= row["in"] <= 12
        check_topic(row["topic"])
        check_headers(row["headers"])
        payload_of(row)
    assert any("payload_b64" in row for row in rows)


def test_the_samples_can_be_enqueued_as_they_are(tmp_path: Path) -> None:
    from tests.cli.support import Fw

    fw = Fw(tmp_path / "w")
    fw("init")
    for path in sorted((REPO / "data" / "samples").glob("*.jsonl")):
        fw("enqueue", "--batch", stdin=path.read_text())
    assert len(fw.pending()) == sum(map(len, samples().values()))


# -- the proof ------------------------------------------------------------------------------------------------


def _keeper(tmp_path: Path, name: str, *fired: tuple[str, float], rest: str = "") -> KeeperProcess:
    log = tmp_path / name
    log.write_text("".join(json.dumps({"id": i, "late_ms": late}) + "\n" for i, late in fired) + rest)
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    keeper = KeeperProcess(name, process, log)
    keeper.follow()
    return keeper


def test_the_proof_holds_when_everything_fired_and_counts_what_fired_twice(tmp_path: Path) -> None:
    killed = _keeper(tmp_path, "1", ("a", 1.0), ("b", 2.0), rest='{"id": "c", "late')
    heir = _keeper(tmp_path, "2", ("b", 900.0), ("c", 40.0))
    proof = prove(["a", "b", "c"], [killed, heir])
    assert proof.holds
    assert (proof.enqueued, proof.fired, proof.twice, proof.early) == (3, 3, 1, 0)
    assert proof.late_ms == [1.0, 2.0, 40.0]
    assert (proof.percentile(0.5), proof.percentile(0.99), proof.percentile(1)) == (2.0, 40.0, 40.0)


@pytest.mark.parametrize(
    ("enqueued", "fired"),
    [(["a", "b"], [("a", 1.0)]), (["a"], [("a", 1.0), ("z", 1.0)]), (["a"], [("a", -0.001)]), ([], [])],
)
def test_the_proof_fails_when_one_is_missing_or_unknown_or_early(
    tmp_path: Path, enqueued: list[str], fired: list[tuple[str, float]]
) -> None:
    assert not prove(enqueued, [_keeper(tmp_path, "1", *fired)]).holds


# -- the play -------------------------------------------------------------------------------------------------


def test_the_demo_on_a_terminal_draws_the_wheel_in_place_and_can_be_kept(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    terminal = Terminal("demo", "--speed", "8", "--keep", keep, env={"TMPDIR": str(tmp_path)})
    result = terminal.finish(60)
    assert result.code == 0, result
    assert result.out.count("\x1b[22A") > 5
    assert result.out.count("\x1b[?25l") == result.out.count("\x1b[?25h") == 1
    assert "pending" in result.out
    said = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", result.out)
    assert re.search(r"ok +enqueued +206 messages by 10 processes", said)
    assert re.search(r"ok +fired +206 of them", said)
    assert_whole(keep / "demo.wheel")
    assert {"keeper-1.jsonl", "keeper-2.jsonl"} <= set(os.listdir(keep))
    assert f"filewheel -C {keep}/demo.wheel inspect" in result.out.replace("\n", "")


def test_the_demo_loses_a_disk_and_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    result = finish(
        start("demo", "--backups", "2", "--speed", "8", "--json", env={"TMPDIR": str(tmp_path)}), timeout=90
    )
    assert result.code == 0, result
    (report,) = result.json
    assert report["holds"] is True
    assert (report["acknowledged"], report["lost"], report["early"], report["stray"]) == (440, [], 0, 0)
    assert report["fired"] == 440 + report["unconfirmed"]
    assert sum(report["copies"].values()) == 440
    assert report["copies"]["2"] > 0  # before the loss an enqueue was on both disks
    assert report["promotion"]["epoch"] == 2
    assert report["promotion"]["unreachable"] == [report["promotion"]["old_primary"]]
    assert report["in_step"] is True
    assert list(tmp_path.iterdir()) == []
    assert "\x1b" not in result.err
    for words in ("backup add disk-2/jobs.wheel --mirror", "rm -rf disk-1", "promote --yes"):
        assert words in result.err, words
    assert str(tmp_path) not in result.err


def test_the_demo_that_loses_a_disk_draws_all_disks_and_can_be_kept(tmp_path: Path) -> None:
    keep = tmp_path / "kept"
    terminal = Terminal("demo", "--backups", "2", "--speed", "8", "--keep", keep, env={"TMPDIR": str(tmp_path)})
    result = terminal.finish(90)
    assert result.code == 0, result
    assert result.out.count("\x1b[?25l") == result.out.count("\x1b[?25h") == 1
    for words in ("primary ", "mirrored backup", "shipped backup", "LOST", "fired  ", "from disk-2"):
        assert words in result.out, words
    assert re.search(r"ok +lost +0\s", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", result.out))
    assert not (keep / "disk-1").exists()
    for name in ("disk-2", "disk-3"):
        assert_whole(keep / name / "jobs.wheel")


def _verdict(tmp_path: Path, *, acknowledged: str, first: str, second: str = "", failed: int = 0) -> LostDiskResult:
    """Say what the records say of messages named by letters; the second keeper fires from the 100th second on."""
    start_s = {"1": 0, "2": 100}
    keepers = []
    for name, fired in (("1", first), ("2", second)):
        log = tmp_path / f"keeper-{name}"
        rows = [{"id": c, "due_us": (start_s[name] + i) * 10**6, "late_ms": 1.0} for i, c in enumerate(fired)]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        process = subprocess.Popen([sys.executable, "-c", ""])
        process.wait()
        keepers.append(KeeperProcess(name, process, log))
        keepers[-1].follow()
    record = tmp_path / "confirmed"
    lines = [{"at": i, "id": c, "copies": 2} for i, c in enumerate(acknowledged)] + [{"at": 0, "failed": "x"}] * failed
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    confirmed = Confirmed(record)
    confirmed.follow()
    disks = [DiskPanel(f"disk-{i}", tmp_path, "") for i in (1, 2)]
    return LostDiskResult(prove(confirmed.ids, keepers), Story(), confirmed, keepers, disks, 0)


def test_the_verdict_counts_what_is_lost_twice_and_never_acknowledged(tmp_path: Path) -> None:
    good = _verdict(tmp_path, acknowledged="abcd", first="ab", second="bcd")
    assert good.holds
    assert (good.proof.missing, good.proof.twice, good.silent_s) == ([], 1, 99.0)
    assert not _verdict(tmp_path, acknowledged="abcd", first="ab", second="c").holds
    assert not _verdict(tmp_path, acknowledged="abcd", first="ab", second="cdx").holds
    assert _verdict(tmp_path, acknowledged="abcd", first="ab", second="cdx", failed=1).holds
    assert not _verdict(tmp_path, acknowledged="", first="").holds


def test_the_verdict_is_bad_when_the_old_keeper_fired_on(tmp_path: Path) -> None:
    first = "".join(chr(200 + i) for i in range(102))
    verdict = _verdict(tmp_path, acknowledged=first + "z", first=first, second="z")
    assert verdict.stray == 2
    assert not verdict.holds
    assert not verdict.proof.missing


def test_a_demo_with_backups_that_is_interrupted_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    with stopped(start("demo", "--backups", "2", "--json", env={"TMPDIR": str(tmp_path)})) as process:
        assert process.stderr is not None
        while "fires what is due" not in (talk := process.stderr.readline()):
            assert talk
        pid = int(re.findall(r"process (\d+)", talk)[0])
        process.send_signal(signal.SIGINT)
        result = finish(process)
    assert result.code == 130
    assert list(tmp_path.iterdir()) == []
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_no_process_and_no_file(tmp_path: Path, number: int) -> None:
    with stopped(start("demo", "--json", env={"TMPDIR": str(tmp_path)})) as process:
        assert process.stderr is not None
        talk = process.stderr.readline()
        pids = [int(pid) for pid in re.findall(r"process (\d+)", talk)]
        assert len(pids) == 2
        process.stderr.readline()
        process.send_signal(number)
        result = finish(process)
    assert result.code == 130
    assert list(tmp_path.iterdir()) == []
    for pid in pids:
        eventually(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_it_works_from_any_directory_and_for_a_package_of_another_name(tmp_path: Path) -> None:
    """As when it is installed: the package is `filewheel_cli`, its samples lie beside it, and no `cli` is there."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "filewheel").symlink_to(REPO / "filewheel")
    copy = subprocess.run(["cp", "-r", REPO / "cli", site / "filewheel_cli"], check=False)
    assert copy.returncode == 0
    (site / "filewheel_cli" / "samples").mkdir()
    for path in (REPO / "data" / "samples").glob("*.jsonl"):
        (site / "filewheel_cli" / "samples" / path.name).write_bytes(path.read_bytes())
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "filewheel_cli", "demo", "--speed", "8", "--json"],
        cwd=tmp_path, env=environment(PYTHONPATH=str(site), TMPDIR=str(tmp_path)), capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "\x1b" not in process.stderr
    for words in (
        "is the keeper, process",
        "5 producers enqueue",
        "kill -9",
        "took over after",
        "everything has fired",
    ):
        assert words in process.stderr, words
    times = [float(line.split()[0]) for line in process.stderr.splitlines() if re.match(r" *\d+\.\d s  ", line)]
    assert len(times) > 5
    assert times == sorted(times)
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    report = json.loads(process.stdout)
    assert report["holds"] is True
    assert (report["enqueued"], report["missing"], report["early"]) == (206, [], 0)
    assert {"p50", "p99", "max"} == set(report["late_ms"])
