"""Medians, ratios, tables and words follow from the samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.cell import Metric
from tests.bench.docs import PAGE, RUN, filled, parts, wins
from tests.bench.plot import plots
from tests.bench.result import Run, load_run
from tests.bench.store import Missing
from tests.bench.stores import BY_KEY
from tests.bench.table import number, rival, tables
from tests.bench.workloads import BY_NAME, WORKLOADS


def small() -> Run:
    """Three rounds of two workloads; SQLite is ahead in one of them."""
    run = Run({"date": "2026-01-01", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "3", "versions": {"a": "1"}})
    for number_, (ours, theirs) in enumerate([(100.0, 50.0), (400.0, 100.0), (300.0, 100.0)]):
        run.at("ext4", "one", "filewheel").add(number_, [Metric("rate", ours, "/s")])
        run.at("ext4", "one", "sqlite").add(number_, [Metric("rate", theirs, "/s")])
        run.at("ext4", "late-100", "filewheel").add(
            number_, [Metric("p50", ours, "ms", up=False), Metric("early", 0, "messages", up=False)]
        )
        run.at("ext4", "late-100", "sqlite").add(
            number_, [Metric("p50", theirs, "ms", up=False), Metric("early", 1, "messages", up=False)]
        )
    run.at("ext4", "one", "redis").missing = "redis is not installed"
    return run


def test_a_ratio_is_the_median_of_the_rounds() -> None:
    run = small()
    assert run.ratio("ext4", "one", "rate", "filewheel", "sqlite") == 3  # of 2, 4, 3; not 300 / 100 of medians
    assert run.ratio("ext4", "late-100", "p50", "filewheel", "sqlite") == pytest.approx(1 / 3)
    assert run.ratio("ext4", "one", "rate", "filewheel", "redis") is None
    assert run.ratio("ext4", "one", "rate", "filewheel", "lmdb") is None
    assert run.ratio("ext4", "late-100", "early", "filewheel", "sqlite") is None  # nothing divides by zero
    assert ("ext4", "one", "lmdb") not in run.cells  # asking leaves no trace


def test_only_rounds_that_both_have_make_a_ratio() -> None:
    run = small()
    del run.at("ext4", "one", "sqlite").metrics["rate"][1]
    assert run.ratio("ext4", "one", "rate", "filewheel", "sqlite") == 2.5


def test_a_run_comes_back_from_its_file_and_later_files_replace(tmp_path: Path) -> None:
    run = small()
    run.save(tmp_path / "a.json")
    assert load_run(tmp_path / "a.json") == run
    other = Run({})
    other.at("ext4", "one", "sqlite").add(0, [Metric("rate", 7, "/s")])
    other.save(tmp_path / "b.json")
    both = load_run(tmp_path / "a.json", tmp_path / "b.json")
    assert both.median("ext4", "one", "sqlite", "rate") == 7
    assert both.median("ext4", "one", "filewheel", "rate") == 300


def test_a_table_has_medians_spreads_ratios_and_reasons() -> None:
    text = tables(small())
    assert "| filewheel | durable | 300 (100–400) |" in text
    assert "| SQLite, WAL, FULL | durable | 100 (50–100) **×3** |" in text
    assert "| Redis, AOF always | durable | redis is not installed |" in text
    assert "| 1 |" in text  # a count has no ratio, and what does not differ no spread


def test_growth_has_a_line_for_each_metric_and_a_column_for_each_level() -> None:
    run = Run({})
    for peer, times in (("filewheel", 1), ("sqlite", 2)):
        found = [
            Metric(f"memory at {level}", times * 10.0 + n, "MiB", up=False) for n, level in enumerate(("1", "1,000"))
        ]
        run.at("ext4", "growth", peer).add(0, found)
    lines = tables(run).splitlines()
    assert "| | store | at 1 | at 1,000 |" in lines
    assert "| memory, MiB | filewheel | 10 | 11 |" in lines
    assert "| memory, MiB | SQLite, WAL, FULL | 20 **×2** | 21 **×1.91** |" in lines


def test_each_promise_has_its_filewheel() -> None:
    assert {p: rival(p) for p in ("sqlite", "redis-1s", "beanstalkd-50ms", "lmdb-never", "filewheel-1s")} == {
        "sqlite": "filewheel", "redis-1s": "filewheel-1s", "beanstalkd-50ms": "filewheel-50ms",
        "lmdb-never": "filewheel-never", "filewheel-1s": "filewheel-1s",
    }  # fmt: skip


def test_it_says_where_a_peer_is_ahead_and_only_there() -> None:
    assert wins(small(), "ext4") == (
        "- lateness at 100 a second (p50): SQLite, WAL, FULL 3 times better (100 ms, filewheel 300 ms)."
    )


def test_numbers_are_short() -> None:
    assert [number(v) for v in (12345.6, 999.6, 999.4, 0.012345, 3, float("nan"))] == [
        "12,346",
        "1,000",
        "999",
        "0.0123",
        "3",
        "-",
    ]


def test_workloads_name_peers_that_exist_and_have_names_of_their_own() -> None:
    assert {p for entry in WORKLOADS for p in entry.peers} <= BY_KEY.keys()
    assert len(BY_NAME) == len(WORKLOADS)


def test_the_page_has_a_place_for_every_part() -> None:
    text = filled(PAGE.read_text(), small())
    for part in parts(small()).values():
        assert part.strip() in text
    with pytest.raises(Missing, match="0 places"):
        filled("no markers", small())


def test_the_page_says_what_its_run_says() -> None:
    if not RUN.exists():
        pytest.skip("no run is committed yet")
    assert filled(PAGE.read_text(), load_run(RUN)) == PAGE.read_text()


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    files = plots(small(), tmp_path / "a")
    assert [f.name for f in files] == ["rates-durable.svg", "lateness.svg"]
    again = plots(small(), tmp_path / "b")
    assert [f.read_bytes() for f in files] == [f.read_bytes() for f in again]
    assert ">filewheel<" in files[0].read_text()  # text, not outlines
