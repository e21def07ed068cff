"""The comparison of schedulers: every system calls what is due, and what is said follows from the samples."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.bench.cell import Metric
from tests.bench.harness import Plan, run_child, run_plan
from tests.bench.jobs.__main__ import main
from tests.bench.jobs.measures import BY_NAME, MEASURES, dues_us
from tests.bench.jobs.page import PAGE, RUN, ahead, filled, parts, table, tables
from tests.bench.jobs.systems import BY_KEY, PEERS
from tests.bench.result import Run, load_run
from tests.bench.store import Missing
from tests.support import some

SERVED = [p.key for p in PEERS if p.setting in ("always", "everysec")]


def plan(*names: str, peers: list[str], seconds: float = 5.0) -> Plan:
    """The smallest plan."""
    measures = [BY_NAME[name] for name in names]
    return Plan(measures, peers, 1, seconds, 0.001, 1, child="tests.bench.jobs.child", cell_s_max=100)


def small() -> Run:
    """Two rounds in which huey is slower, and smaller."""
    run = Run(
        {"date": "2026-01-01", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "3", "versions": {"huey": "1"}}
    )
    for number, (ours, theirs) in enumerate([(1000.0, 100.0), (3000.0, 100.0)]):
        for key, rate in (("filewheel", ours), ("filewheel-batch", ours), ("huey-sqlite", theirs)):
            found = [Metric("rate", rate, "/s"), Metric("called, of 9", 9, "jobs")]
            run.at("ext4", "backlog", key).add(number, found)
    for key, size in (("filewheel", 40.0), ("huey-sqlite", 20.0)):
        run.at("ext4", "memory", key).add(0, [Metric("process", size, "MiB", up=False)])
    run.at("ext4", "backlog", "huey-redis").missing = "redis-server is not installed"
    return run


def test_every_system_calls_a_backlog_to_its_end(tmp_path: Path) -> None:
    pytest.importorskip("huey")
    pytest.importorskip("apscheduler")
    run = Run({})
    told: list[str] = []
    run_plan(plan("backlog", peers=[p.key for p in PEERS]), "plain", tmp_path, run, told.append)
    for key in BY_NAME["backlog"].peers:
        cells = run.at("plain", "backlog", key)
        if key in SERVED and cells.missing.endswith("is not installed"):
            continue
        assert not cells.missing, (key, cells.missing)
        assert cells.median("called, of 100") == 100
        assert (cells.median("rate") or 0) > 0
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize(
    ("name", "key"),
    some(product(["processes", "slow-import", "slow-start"], ["filewheel", "futures"]), one_of=2),
)
def test_all_jobs_of_a_limited_handler_are_called_in_each_system(tmp_path: Path, name: str, key: str) -> None:
    found = run_child(plan(name, peers=[]), name, key, tmp_path / "cell", 0)
    assert isinstance(found, list), found
    figures = {m.name: m.value for m in found}
    assert figures["of 100"] == pytest.approx(100 / figures["took"])
    assert figures["took"] > (1.5 if name.startswith("slow") else 0)


def test_no_job_is_called_early_and_none_is_left(tmp_path: Path) -> None:
    found = run_child(plan("late-100", peers=[], seconds=0.25), "late-100", "filewheel", tmp_path / "cell", 0)
    assert isinstance(found, list), found
    figures = {m.name: m.value for m in found}
    assert figures["early"] == figures["not called, of 50"] == 0
    assert 0 < figures["p50"] <= figures["p99"] <= figures["max"]


def test_what_waits_is_held_while_memory_is_read(tmp_path: Path) -> None:
    found = run_child(plan("memory", peers=[]), "memory", "filewheel", tmp_path / "cell", 0)
    assert isinstance(found, list), found
    figures = {m.name: m.value for m in found}
    assert figures["waiting"] == 1000
    assert figures["process and server"] == figures["process"] >= figures["before it starts"] > 5


@pytest.mark.parametrize(("name", "least"), [("keys", 12), ("looks", 4)])
def test_what_is_asked_of_a_wheel_all_the_time_is_measured(tmp_path: Path, name: str, least: int) -> None:
    found = run_child(plan(name, peers=[], seconds=0.3), name, "filewheel", tmp_path / "cell", 0)
    assert isinstance(found, list), found
    assert len(found) == least
    assert all(metric.value > 0 for metric in found)


@pytest.mark.parametrize("key", SERVED)
def test_a_server_that_is_not_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    pytest.importorskip("huey")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert run_child(plan("backlog", peers=[]), "backlog", key, tmp_path / "cell", 0) == "redis-server is not installed"


def test_a_library_that_is_not_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huey", None)
    monkeypatch.delitem(__import__("sys").modules, "tests.bench.jobs.systems.huey_consumer", raising=False)
    with pytest.raises(Missing, match="huey is not installed"):
        BY_KEY["huey-sqlite"].system(tmp_path)


def test_due_times_lie_evenly_over_their_span() -> None:
    assert dues_us(4, 100, 40) == [100, 110, 120, 130]


def test_measures_name_systems_that_exist() -> None:
    assert {key for entry in MEASURES for key in entry.peers} == BY_KEY.keys()
    assert len(BY_NAME) == len(MEASURES)


def test_a_table_has_medians_spreads_ratios_and_reasons() -> None:
    text = table(small(), "ext4", BY_NAME["backlog"])
    assert "| filewheel, 4 threads | all | 2,000 (1,000–3,000) | 9 |" in text
    assert "| filewheel, batches of 100 | all | 2,000 (1,000–3,000) | 9 |" in text  # no ratio to itself
    assert "| huey, SQLite | all | 100 **×20** | 9 |" in text
    assert "| huey, Redis, AOF always | all | redis-server is not installed |" in text


def test_it_says_where_a_peer_is_ahead_and_only_there() -> None:
    title = BY_NAME["memory"].title
    assert ahead(small(), "ext4") == f"- {title} (process): huey, SQLite 2 times better (20 MiB, filewheel 40 MiB)."


def test_the_page_has_a_place_for_every_part() -> None:
    text = filled(PAGE.read_text(), small())
    for part in parts(small()).values():
        assert part.strip() in text


def test_the_page_says_what_its_run_says() -> None:
    assert filled(PAGE.read_text(), load_run(RUN)) == PAGE.read_text()


def test_a_run_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small().save(tmp_path / "run.json")
    assert main(["--show", str(tmp_path / "run.json")]) == 0
    assert capsys.readouterr().out.strip() == tables(small())


@pytest.mark.parametrize("argv", [["--only", "fly"], ["--peers", "oracle"]])
def test_what_does_not_exist_is_said_before_anything_runs(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "measures: backlog," in capsys.readouterr().err


def test_a_place_that_cannot_be_had_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--place", "ntfs", "--dir", str(tmp_path)]) == 1
    assert "no file system 'ntfs'" in capsys.readouterr().err
