"""Counting, timing and reading in one process, the text that Prometheus scrapes, and publishing it into a wheel."""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from filewheel import BadArgument, Damaged, DiskError, Keeper, Wheel
from filewheel.disk.directory import open_directory
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.errors import WheelFull
from filewheel.format import layout
from filewheel.format.record import ACKED, pack_drop
from filewheel.journal.journal import Journal
from filewheel.metrics.metrics import BOUNDS_S, EVENTS, OTHER, TIMES, Metrics, quantile_of
from filewheel.metrics.prometheus import Family, Sample, number, parse, render, with_labels
from filewheel.metrics.published import INTERVAL_S, REST_S, STALE_S, Publisher, publish, read_published
from tests.support import REPO, timed
from tests.support_wheel import StillClock, make_directory

STRANGE = [
    'a"b',
    "a\\b",
    "a\nb",
    "a\\nb",
    'a\\"',
    "a,b={}",
    "\x1b[31m",
    "\u2028",
    "a\rb",
    "",
    "ü 漢",
    "\x85",
    "#",
    "\ud800",
]


def filled() -> Metrics:
    """Metrics with a bit of everything."""
    metrics = Metrics()
    for n, name in enumerate(STRANGE):
        metrics.count("fired", name, n)
        metrics.observe("handler", name, 0.3)
    metrics.gauge("pending", 'What\nwaits, \\ and "how".', lambda: 7)
    return metrics


# -- counting -------------------------------------------------------------------------------------------------


def test_eight_threads_that_count_at_once_lose_nothing() -> None:
    metrics = Metrics()
    start = threading.Barrier(8)

    def work(name: str) -> None:
        start.wait()
        for _ in range(10_000):
            metrics.count("fired", name)
            metrics.observe("handler", name, 0.5)

    threads = [threading.Thread(target=work, args=(f"h{n % 2}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert metrics.counts("fired") == {"h0": 40_000, "h1": 40_000}
    assert {name: (sum(buckets), sum_s) for name, (buckets, sum_s) in metrics.times("handler").items()} == {
        "h0": (40_000, 20_000.0), "h1": (40_000, 20_000.0)
    }  # fmt: skip


def test_what_is_not_known_or_not_a_count_is_refused_with_what_there_is() -> None:
    metrics = Metrics()
    with pytest.raises(BadArgument, match="no event is called 'firred'.*fired"):
        metrics.count("firred")
    with pytest.raises(BadArgument, match="no time is called"):
        metrics.observe("length", "", 1)
    with pytest.raises(BadArgument, match="only grows"):
        metrics.count("fired", "a", -1)
    assert metrics.families() == []


def test_handlers_beyond_the_limit_share_a_label_and_those_reserved_keep_theirs() -> None:
    metrics = Metrics(handlers_max=3)
    metrics.reserve(["mail"])
    for n in range(50):
        metrics.count("unknown", f"stranger {n}")
        metrics.observe("lateness", f"stranger {n}", 1)
    metrics.count("unknown", "x" * 256)
    metrics.count("fired", "mail")
    metrics.count("took_over")
    assert metrics.counts("unknown") == {OTHER: 49, "stranger 0": 1, "stranger 1": 1}
    assert {name: sum(buckets) for name, (buckets, _) in metrics.times("lateness").items()} == {
        OTHER: 48, "stranger 0": 1, "stranger 1": 1
    }  # fmt: skip
    assert metrics.counts("fired") == {"mail": 1}
    assert metrics.counts("took_over") == {"": 1}


def test_a_reserved_handler_has_counters_at_zero_from_the_start() -> None:
    metrics = Metrics()
    metrics.reserve(["mail"])
    assert metrics.counts("dead") == {"mail": 0}
    assert 'filewheel_dead_total{handler="mail"} 0\n' in metrics.text()
    assert "took_over" not in metrics.text()


# -- times ----------------------------------------------------------------------------------------------------


def test_a_duration_falls_into_the_first_bucket_whose_bound_it_does_not_exceed() -> None:
    metrics = Metrics()
    for value_s in (0.0005, 0.00051, 3600.0, 3600.1, -5.0, float("nan")):
        metrics.observe("lateness", "", value_s)
    buckets, sum_s = metrics.times("lateness")[""]
    assert buckets == [3, 1, *[0] * (len(BOUNDS_S) - 3), 1, 1]
    assert sum_s == pytest.approx(0.00101 + 7200.1)


def test_many_durations_at_once_are_as_many_one_by_one() -> None:
    one_by_one, at_once = Metrics(handlers_max=1), Metrics(handlers_max=1)
    values_s = [0.2, -1.0, 5000.0, float("nan"), 0.0004, 0.2]
    for name in ("mail", "stranger"):
        for value_s in values_s:
            one_by_one.observe("lateness", name, value_s)
        at_once.observe_all("lateness", name, values_s)
        at_once.observe_all("lateness", name, [])
    assert at_once.times("lateness") == one_by_one.times("lateness")
    assert set(at_once.times("lateness")) == {"mail", OTHER}
    with pytest.raises(BadArgument, match="no time is called 'length'"):
        at_once.observe_all("length", "mail", [1.0])


def test_a_quantile_lies_in_the_bucket_of_what_was_observed() -> None:
    metrics = Metrics()
    assert metrics.quantile("handler", "mail", 0.5) is None
    assert metrics.quantile("handler", None, 0.5) is None
    for _ in range(99):
        metrics.observe("handler", "mail", 0.2)
    metrics.observe("handler", "slow", 5000)
    assert 0.1 < (metrics.quantile("handler", "mail", 0.5) or 0) <= 0.25
    assert 0.1 < (metrics.quantile("handler", None, 0.99) or 0) <= 0.25
    assert metrics.quantile("handler", None, 1) == 3600.0
    assert metrics.quantile("handler", "slow", 0) == 3600.0
    with pytest.raises(BadArgument, match="0 to 1"):
        metrics.quantile("handler", None, 99)


@given(st.lists(st.floats(0, 3600), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_never_further_off_than_its_bucket(values: list[float], q: float) -> None:
    metrics = Metrics()
    for value_s in values:
        metrics.observe("handler", "", value_s)
    found = metrics.quantile("handler", "", q)
    exact = sorted(values)[max(0, -int(-q * len(values) // 1) - 1)]
    edges = (0.0, *BOUNDS_S)
    assert found is not None
    assert any(
        low <= min(found, exact) <= max(found, exact) <= high for low, high in zip(edges, BOUNDS_S, strict=False)
    )


def test_the_quantile_of_a_rank_between_two_buckets_is_their_common_bound() -> None:
    assert quantile_of([2, 2, *[0] * (len(BOUNDS_S) - 1)], 0.5) == BOUNDS_S[0]


def test_a_journal_tells_how_long_each_flush_took(tmp_path: Path) -> None:
    metrics = Metrics()
    journal = Journal(make_directory(tmp_path / "w"), on_flush=lambda us: metrics.observe("sync", "", us / 1e6))
    for _ in range(3):
        journal.append([pack_drop(bytes(16), ACKED)], 0)
    journal.close()
    buckets, sum_s = metrics.times("sync")[""]
    assert sum(buckets) >= 3
    assert sum_s > 0


# -- gauges ---------------------------------------------------------------------------------------------------


def test_a_gauge_is_read_when_it_is_asked_for_and_left_out_when_it_has_nothing_to_say() -> None:
    metrics = Metrics()
    values: list[float | None] = [3]
    metrics.gauge("in_flight", "Now.", lambda: values[-1])
    assert "\nfilewheel_in_flight 3\n" in metrics.text()
    values.append(None)
    assert "in_flight" not in metrics.text()
    metrics.gauge("in_flight", "Now.", lambda: 9.5)
    assert "\nfilewheel_in_flight 9.5\n" in metrics.text()
    assert metrics.read("in_flight") == 9.5
    assert metrics.read("nothing") is None


def test_a_gauge_that_fails_hides_no_other_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.gauge("bad", "Fails.", lambda: 1 / 0)
    metrics.gauge("good", "Works.", lambda: 1)
    with caplog.at_level(logging.WARNING):
        texts = [metrics.text() for _ in range(3)]
    assert texts == ["# HELP filewheel_good Works.\n# TYPE filewheel_good gauge\nfilewheel_good 1\n"] * 3
    assert len(caplog.records) == 1


@pytest.mark.parametrize("name", ["", "a b", "ä", "a\n", "fired_total", "fired", "lateness_seconds", "a-b"])
def test_a_gauge_with_a_name_that_cannot_be_or_is_taken_is_refused(name: str) -> None:
    with pytest.raises(BadArgument):
        Metrics().gauge(name, "", lambda: 1)


def test_a_gauge_may_count_while_it_is_read() -> None:
    metrics = Metrics()
    metrics.gauge("reads", "Reads.", lambda: metrics.count("fired") or 1)
    metrics.text()
    assert metrics.counts("fired") == {"": 1}


# -- the text -------------------------------------------------------------------------------------------------


def test_the_text_of_strange_names_reads_back_as_what_it_was_in_the_parser_of_prometheus() -> None:
    client = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    found = {f.name: f for f in client.text_string_to_metric_families(filled().text())}
    fired = {s.labels.get("handler", ""): s.value for s in found["filewheel_fired"].samples}
    assert fired == {name.replace("\ud800", "\\ud800"): n for n, name in enumerate(STRANGE)}
    assert found["filewheel_fired"].type == "counter"
    assert found["filewheel_pending"].documentation == 'What\nwaits, \\ and "how".'
    times = found["filewheel_handler_seconds"]
    assert times.type == "histogram"
    of_one = [s for s in times.samples if s.labels.get("handler") == 'a"b']
    assert [s.value for s in of_one if s.name.endswith("_bucket")][-1] == 1
    assert {s.name: s.value for s in of_one if "bucket" not in s.name} == {
        "filewheel_handler_seconds_sum": 0.3, "filewheel_handler_seconds_count": 1
    }  # fmt: skip


def test_the_text_is_the_same_each_time_and_in_the_order_of_names() -> None:
    one, other = Metrics(), Metrics()
    for name in ("b", "a", "c"):
        one.count("fired", name)
    for name in ("c", "b", "a"):
        other.count("fired", name)
    assert one.text() == other.text() == one.text()
    assert [s.labels for s in one.families()[0].samples] == [(("handler", n),) for n in "abc"]
    assert Metrics().text() == ""


def test_labels_of_the_whole_text_come_first() -> None:
    metrics = Metrics()
    metrics.count("fired", "a")
    metrics.count("took_over")
    text = metrics.text({"wheel": 'my "jobs"'})
    assert 'filewheel_fired_total{wheel="my \\"jobs\\"",handler="a"} 1\n' in text
    assert 'filewheel_took_over_total{wheel="my \\"jobs\\""} 1\n' in text


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_whatever_is_written_reads_back(label: str, help_: str) -> None:
    samples = [Sample("a_total", (("handler", label), ("le", "+Inf")), 3), Sample("a_total", (), 0.25)]
    families = [Family("a_total", "counter", help_, samples)]
    assert parse(render(families), "here") == families


def test_all_that_metrics_hold_reads_back() -> None:
    metrics = Metrics()
    for name in STRANGE[:-1]:  # the last cannot be encoded, so it is written out
        metrics.count("fired", name)
        metrics.observe("lateness", name, 0.2)
    families = metrics.families()
    assert parse(render(families), "here") == families
    assert with_labels(families, {}) == families


@pytest.mark.parametrize("line", ["x", "x y", "1x 2", 'x{a="b} 1', 'x{a="b"c="d"} 1', "x{a=b} 1", "\x00", "x 1 2"])
def test_a_line_that_is_no_metric_is_damage(line: str) -> None:
    with pytest.raises(Damaged, match="line 3"):
        parse(f"# HELP ok fine\nok 1\n{line}\n", "here")
    with pytest.raises(Damaged, match="line 1"):
        parse("ok 1\n", "here")


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (True, "1"), (0.5, "0.5"), (1e22, "1e+22"), (1e999, "+Inf"), (-1e999, "-Inf"), (1e999 - 1e999, "NaN")],
)
def test_a_number_is_written_as_the_format_wants_it(value: float, text: str) -> None:
    assert number(value) == text


def test_a_snapshot_is_plain_and_says_what_the_text_says() -> None:
    metrics = filled()
    found = metrics.snapshot()
    assert json.loads(json.dumps(found)) == found
    assert found["counters"]["fired"]["a\nb"] == 2
    assert found["gauges"] == {"pending": 7}
    one = found["histograms"]["handler"]["a\nb"]
    assert (one["count"], one["sum_s"], one["buckets"][-1]) == (1, 0.3, [None, 1])
    assert 0.25 <= one["p50_s"] <= one["p99_s"] <= 0.5


def test_the_page_has_every_metric() -> None:
    page = (REPO / "docs" / "observability.md").read_text()
    for name in [*(f"filewheel_{e}_total" for e in EVENTS), *(f"filewheel_{w}_seconds" for w in TIMES)]:
        assert f"`{name}`" in page


# -- publishing -----------------------------------------------------------------------------------------------


def test_what_was_published_is_read_by_another_with_when_and_by_whom(wheel_dir: Path) -> None:
    directory = open_directory(wheel_dir, write=True)
    assert read_published(directory) is None
    metrics = Metrics()
    metrics.count("fired", "mail", 4)
    clock = StillClock()
    publish(metrics, timed(directory, clock))
    found = read_published(open_directory(wheel_dir, write=False))
    assert found is not None
    assert (found.at_us, found.pid) == (clock.wall_us, os.getpid())
    assert metrics.families()[0] in found.families
    assert (wheel_dir / layout.METRICS).stat().st_mode & 0o777 == 0o600
    assert not (wheel_dir / layout.METRICS_TMP).exists()


def test_published_metrics_are_stale_when_they_are_old_or_of_another_than_the_keeper(wheel_dir: Path) -> None:
    directory = open_directory(wheel_dir, write=True)
    metrics = Metrics()
    metrics.count("fired")
    metrics.gauge("in_flight", "Now.", lambda: 1)
    clock = StillClock()
    publish(metrics, timed(directory, clock))
    found = read_published(directory)
    assert found is not None
    late_us = int((STALE_S + 1) * 1e6)
    now_us = clock.wall_us
    assert not found.is_stale(now_us, os.getpid())
    assert found.is_stale(now_us, None)
    assert found.is_stale(now_us, os.getpid() + 1)
    assert found.is_stale(now_us + late_us, os.getpid())
    assert found.is_stale(now_us - late_us, os.getpid())
    assert found.age_us(now_us - late_us) == 0
    assert {f.name for f in found.current(now_us, os.getpid())} - {f.name for f in found.current(now_us, None)} == {
        "filewheel_in_flight"
    }
    assert "filewheel_fired_total" in {f.name for f in found.current(now_us, None)}


class Turning(StillClock):
    """A clock whose steady half is turned by hand too."""

    def steady_us(self) -> int:
        return self.run_us

    def turn(self, seconds: float) -> None:
        self.wall_us += int(seconds * 1e6)
        self.run_us += int(seconds * 1e6)


def test_a_publisher_writes_when_something_changed_and_now_and_then_when_nothing_did(wheel_dir: Path) -> None:
    metrics, clock = Metrics(), Turning()
    publisher = Publisher(metrics, timed(open_directory(wheel_dir, write=True), clock))
    assert publisher.tick()  # at once: readers see that someone has started
    metrics.count("fired")
    assert not publisher.tick()
    clock.turn(INTERVAL_S)
    assert publisher.tick()
    clock.turn(INTERVAL_S)
    assert not publisher.tick()
    clock.turn(REST_S)
    assert publisher.tick()
    metrics.count("fired")
    assert publisher.close()
    assert "filewheel_fired_total 2\n" in (wheel_dir / layout.METRICS).read_text()


def test_a_disk_that_is_full_stops_no_publisher_leaves_no_half_file_and_is_logged_once(
    wheel_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(OsDisk):
        full = True

        @staticmethod
        def pwrite(fd: int, data: bytes, offset: int) -> None:
            if Full.full:
                raise OSError(28, "No space left on device")
            OsDisk.pwrite(fd, data, offset)

    directory, clock = open_directory(wheel_dir, write=True, env=SYSTEM.using(disk=Full)), Turning()
    with pytest.raises(WheelFull, match="the metrics in the wheel are those of before. Try: free some space"):
        publish(Metrics(), timed(directory, clock))
    publisher = Publisher(Metrics(), timed(directory, clock))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not publisher.tick()
            clock.turn(INTERVAL_S)
    (record,) = caplog.records
    assert "enqueued" not in record.getMessage()
    assert not list(wheel_dir.glob("metrics*"))
    Full.full = False
    clock.turn(REST_S)
    assert publisher.tick()


@pytest.mark.parametrize("data", [b"", bytes(100), b"\xff\xfe", b"filewheel_published_pid 3\n", b"x y z\n"])
def test_a_published_file_that_a_power_cut_left_empty_or_zeroed_is_damage_and_is_written_anew(
    wheel_dir: Path, data: bytes
) -> None:
    directory = open_directory(wheel_dir, write=True)
    (wheel_dir / layout.METRICS).write_bytes(data)
    with pytest.raises(Damaged, match=r"metrics\.prom"):
        read_published(directory)
    publish(Metrics(), directory)
    assert read_published(directory) is not None


def test_a_link_in_place_of_the_published_file_is_not_followed(wheel_dir: Path, tmp_path: Path) -> None:
    directory = open_directory(wheel_dir, write=True)
    (tmp_path / "secret").write_text("ok 1\n")
    (wheel_dir / layout.METRICS).symlink_to(tmp_path / "secret")
    (wheel_dir / layout.METRICS_TMP).symlink_to(tmp_path / "secret")
    with pytest.raises(DiskError):
        read_published(directory)
    with pytest.raises(DiskError):
        publish(Metrics(), directory)
    publish(Metrics(), directory)  # the link has made way
    assert (tmp_path / "secret").read_text() == "ok 1\n"
    assert (wheel_dir / layout.METRICS).is_file()


def test_a_wheel_with_published_metrics_is_kept_and_used_as_any_other(wheel_dir: Path) -> None:
    publish(Metrics(), open_directory(wheel_dir, write=True))
    (wheel_dir / layout.METRICS_TMP).write_bytes(b"left by a crash")
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue(b"x")
    with Keeper(wheel_dir) as keeper:
        keeper.ack(keeper.claim())
    assert Wheel(wheel_dir).stats().pending == 0


def test_the_page_explains_each_metric_in_the_words_of_its_help() -> None:
    page = (REPO / "docs" / "observability.md").read_text().replace("`", "")
    helps = {f"{event}_total": text for event, text in EVENTS.items()} | {f"{t}_seconds": x for t, x in TIMES.items()}
    for name, help_ in helps.items():
        text = help_.replace("`", "")
        assert f"| filewheel_{name} | {text[0].lower()}{text[1:].rstrip('.')} |" in page
