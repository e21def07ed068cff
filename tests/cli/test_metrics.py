"""`metrics`: the wheel on disk and what its scheduler published, as text that is scraped and as JSON."""

from __future__ import annotations

import os
from typing import Any

import pytest

from filewheel import Keeper
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.metrics.metrics import Metrics
from filewheel.metrics.published import publish
from tests.cli.support import Fw, on_terminal

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")


def samples(text: str) -> dict[tuple[str, str], float]:
    """Return the values by name and handler, as a scraper reads them; each has the wheel as a label."""
    found: dict[tuple[str, str], float] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation, family
        for sample in family.samples:
            assert os.path.isabs(sample.labels["wheel"])
            key = (sample.name + sample.labels.get("le", ""), sample.labels.get("handler", ""))
            assert key not in found
            found[key] = sample.value
    return found


def published(fw: Fw, *handlers: str) -> None:
    """Publish as a scheduler in this process would."""
    metrics = Metrics()
    for handler in handlers:
        metrics.count("fired", handler, 3)
    metrics.observe("lateness", "mail", 0.3)
    metrics.gauge("in_flight", "Now.", lambda: 2)
    metrics.gauge("pending", "As the scheduler counted it.", lambda: 99)
    publish(metrics, open_directory(fw.wheel, write=True))


def test_without_a_scheduler_it_is_the_wheel_on_disk(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "later")
    fw.enqueue("--at", "2001-01-01T00:00Z", "overdue")
    found = samples(fw("metrics").out)
    assert found["filewheel_pending", ""] == 2
    assert found["filewheel_overdue", ""] == 1
    assert found["filewheel_keeper_up", ""] == 0
    assert found["filewheel_next_due_seconds", ""] == 978_307_200
    assert found["filewheel_lag_seconds", ""] > 86_400
    assert not any("published" in name for name, _ in found)


def test_beside_a_scheduler_its_counters_times_and_gauges_are_there_too(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "later")
    with Keeper(fw.wheel):
        published(fw, "mail", 'we"ird\\\n')
        found = samples(fw("metrics").out)
    assert found["filewheel_published_stale", ""] == 0
    assert found["filewheel_published_pid", ""] == os.getpid()
    assert found["filewheel_fired_total", "mail"] == 3
    assert found["filewheel_fired_total", 'we"ird\\\\n'] == 3  # a line end is written out, safe for a terminal
    assert found["filewheel_lateness_seconds_bucket0.5", "mail"] == 1
    assert found["filewheel_in_flight", ""] == 2
    assert found["filewheel_pending", ""] == 1  # of what both know, what is on disk is newer


def test_what_a_scheduler_left_behind_counts_still_but_its_gauges_are_gone(fw: Fw) -> None:
    published(fw, "mail")
    found = samples(fw("metrics").out)
    assert found["filewheel_published_stale", ""] == 1
    assert found["filewheel_fired_total", "mail"] == 3
    assert ("filewheel_in_flight", "") not in found
    (as_json,) = fw("metrics", "--json").json
    assert as_json["published"]["stale"] is True
    assert set(as_json["published"]["gauges"]) == {"published_timestamp_seconds", "published_pid"}


def test_two_handlers_that_look_the_same_when_made_safe_do_not_spoil_the_text(fw: Fw) -> None:
    published(fw, "\x1b", "\\x1b")
    assert [name for name, _ in samples(fw("metrics").out)].count("filewheel_fired_total") == 1


def test_json_is_one_object_and_only_on_demand(fw: Fw) -> None:
    (found,) = fw("metrics", "--json").json
    assert found["published"] is None
    assert found["wheel"] == str(fw.wheel)
    with Keeper(fw.wheel):
        published(fw, "mail")
        (found,) = fw("metrics", "--json").json
    assert found["gauges"]["keeper_up"] == 1
    said: dict[str, Any] = found["published"]
    assert (said["pid"], said["stale"]) == (os.getpid(), False)
    assert said["counters"] == {"fired": {"mail": 3}}
    assert said["histograms"]["lateness"]["mail"]["count"] == 1
    assert said["gauges"]["in_flight"] == 2
    assert 0 <= said["age_s"] < 60
    assert fw("metrics").out.startswith("# HELP filewheel_pending ")


def test_published_bytes_that_are_no_metrics_hide_nothing_else(fw: Fw) -> None:
    (fw.wheel / layout.METRICS).write_bytes(b"\x00" * 100)
    result = fw("metrics")
    assert samples(result.out)["filewheel_pending", ""] == 0
    assert "no counters of a scheduler" in result.err
    assert "metrics.prom" in result.err
    fw("verify")


def test_the_metrics_of_a_wheel_that_may_only_be_read_can_be_read(fw: Fw) -> None:
    published(fw, "mail")
    modes = {path: path.stat().st_mode for path in [fw.wheel, *fw.wheel.rglob("*")]}
    for path, mode in modes.items():
        path.chmod(mode & ~0o222)
    before = {path: path.stat().st_mtime_ns for path in modes}
    try:
        assert samples(fw("metrics").out)["filewheel_fired_total", "mail"] == 3
    finally:
        assert {path: path.stat().st_mtime_ns for path in modes} == before
        for path, mode in modes.items():
            path.chmod(mode)


def test_no_label_steers_the_terminal(fw: Fw) -> None:
    published(fw, "\x1b]0;title\x07\x9b2J\u202eevil")
    shown = on_terminal("-C", fw.wheel, "metrics").out
    assert "evil" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_stats_for_prometheus_are_the_same_gauges(fw: Fw) -> None:
    fw.enqueue("--in", "1h", "later")
    assert samples(fw("stats", "--prometheus").out) == samples(fw("metrics").out)


@pytest.mark.damages
def test_bytes_in_quarantine_are_counted(fw: Fw) -> None:
    (fw.wheel / "quarantine" / "a@1.bin").write_bytes(bytes(77))
    (fw.wheel / "quarantine" / "a@1.json").write_text("{}")
    found = samples(fw("metrics").out)
    assert (found["filewheel_quarantined", ""], found["filewheel_quarantined_bytes", ""]) == (1, 77)


@pytest.mark.damages
def test_what_the_library_logs_is_said_as_a_warning_and_steers_nothing(fw: Fw) -> None:
    import logging

    fw.enqueue("--in", "0", "x")
    (segment,) = (fw.wheel / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[90] ^= 1
    segment.write_bytes(data + bytes(data))
    result = fw("run", "--once")
    assert "warning: " in result.err
    assert "kept in quarantine" in result.err
    assert not any(handler.level for handler in logging.getLogger("filewheel").handlers)  # taken away again
