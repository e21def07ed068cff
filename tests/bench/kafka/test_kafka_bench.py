"""The benchmark of the delay service: the page that a run makes, and its processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.cell import Metric
from tests.bench.kafka.__main__ import PLACE, main
from tests.bench.kafka.measures import BY_NAME, MEASURES
from tests.bench.kafka.page import PAGE, filled, kafka_machine, tables
from tests.bench.kafka.rig import Failed
from tests.bench.kafka.side import Server
from tests.bench.result import Run


def a_run() -> Run:
    run = Run({**kafka_machine(), "plan": {"rounds": 2, "scale": 1.0, "pending": 1000}, "load": 1.5})
    for number, rate in enumerate((90_000.0, 110_000.0)):
        run.at(PLACE, "ingest", "alo").add(number, [Metric("rate", rate, "/s")])
    run.at(PLACE, "ingest", "eos").missing = "failed"
    return run


def test_a_run_fills_each_part_of_the_page() -> None:
    page = filled(PAGE.read_text(), a_run())
    assert "| filewheel, at least once | 100,000 (90,000–110,000) |" in page
    assert "| filewheel, exactly once | failed |" in page
    assert page.count("Not measured.") == len(MEASURES) - 1


def test_tables_show_only_what_was_measured() -> None:
    shown = tables(a_run())
    assert BY_NAME["ingest"].title in shown
    assert BY_NAME["fire"].title not in shown


def test_an_unknown_side_is_refused_with_the_names_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--sides", "nobody"]) == 2
    assert "alo" in capsys.readouterr().err


def test_a_service_that_ends_fails_its_measure_with_its_last_lines(tmp_path: Path) -> None:
    server = Server(["sh", "-c", "echo out of luck; exit 3"], tmp_path / "log")
    try:
        with pytest.raises(Failed, match="(?s)ended with 3.*out of luck"):
            server.wait(lambda figures: False)
    finally:
        server.end()


def test_a_process_without_metrics_is_read_from_its_log(tmp_path: Path) -> None:
    server = Server(["sh", "-c", "echo FIGURES taken=5 fired=2; echo FIGURES taken=6; exec sleep 60"], tmp_path / "log")
    try:
        server.wait(lambda figures: figures == {"taken": 5, "fired": 2})
    finally:
        server.end()


def test_figures_of_an_earlier_process_are_not_those_of_the_next(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("FIGURES taken=9\nthe end\n")
    server = Server(["sh", "-c", "exec sleep 60"], tmp_path / "log")
    try:
        assert server.figures() == {}
    finally:
        server.end()
