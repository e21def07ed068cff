"""The figures of a set's round, from marks made by hand."""

from __future__ import annotations

from tests.crash.figures_set import measure, table
from tests.crash.test_verdict_set import Log, S

MS = S // 1000


def test_refusals_lateness_and_what_fired_twice_are_measured_from_the_disaster_to_the_end_of_the_load() -> None:
    log = Log().put(1, 1).fire(1, 1.5, now_us=1_500_000).ack(1, 1.6)
    log.disaster(2).put(2, 2.1).refused(3, 2.5).promoted(3, took=0.5).put(4, 3.1, path="B").put(5, 3.2, path="B")
    log.fire(1, 3.3, path="B", now_us=3_300_000).fire(2, 3.3, path="B", now_us=3_300_000)
    log.tell("conductor", "quiet", 4).fire(4, 5, path="B", now_us=5_000_000)
    found = measure(log.marks, {5})
    assert (found.acked, found.lost, found.twice, found.twice_acked) == (4, 0, 1, 1)
    assert [round(ms or 0) for ms in (found.refused_ms, found.late_ms, found.promote_ms)] == [1000, 1200, 500]
    assert measure(log.marks, set()).lost == 1


def test_without_a_disaster_nothing_is_measured_from_it() -> None:
    found = measure(Log().put(1, 1).tell("conductor", "quiet", 4).marks, {1})
    assert (found.refused_ms, found.late_ms, found.promote_ms) == (None, None, None)


def test_rounds_of_a_kind_are_one_line_of_the_table() -> None:
    row = {
        "mode": "mirror", "on_failure": "stale", "victim": "backup", "disaster": "deleted", "acked": 1000, "lost": 0,
        "twice": 3, "twice_acked": 1, "refused_ms": 100.0, "late_ms": 50.0,
    }  # fmt: skip
    lines = table([row, {**row, "refused_ms": 300.0, "late_ms": None}]).splitlines()
    assert lines[2] == "| deleted | backup | mirror, stale | 2 | 2,000 | 0 | 6 (2) | 200 / 300 | 50 / 50 |"
