"""What a scheduler logs of its messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from filewheel import Cancelled, Event, Retry, Scheduler, current_job
from tests.support_wheel import NOW_S, StillClock


def test_each_record_about_a_message_has_the_fields_that_a_formatter_was_promised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=StillClock())

    @scheduler.on("work", retry=Retry(limit=0))
    def work(how: str) -> None:
        if how == "fails":
            raise ValueError("no")

    with caplog.at_level(logging.DEBUG, "filewheel.scheduling"):
        work.enqueue("fails")
        work.options(deadline=NOW_S - 1).enqueue("late")
        scheduler.enqueue("nobody")
        scheduler.drain()
    scheduler.stop()
    records = {record.event: record for record in caplog.records if hasattr(record, "event")}
    assert set(records) == {"dead", "skipped", "unknown"}
    for record in records.values():
        assert set(Event("dead", 0).extra()) <= set(vars(record))
    assert records["dead"].error == "ValueError: no"
    assert records["skipped"].getMessage().endswith(" was not called: skipped: 1 s after its deadline")


def test_a_job_that_is_cancelled_while_it_runs_and_fails_is_told_of_as_neither_retried_nor_dead(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=StillClock())
    kinds: list[str] = []
    outcomes: list[str] = []
    scheduler.on_event(lambda event: kinds.append(event.kind))
    scheduler.on_event(lambda event: outcomes.append(event.outcome), ["cancelled"])

    def work() -> None:
        assert scheduler.cancel(current_job().id) is Cancelled.BEGUN
        raise ValueError("no")

    retried = scheduler.on("retried", retry=Retry(limit=1))(work)
    dead = scheduler.on("dead", retry=Retry(limit=0))(work)
    retried.enqueue()
    dead.enqueue()
    assert scheduler.drain() == 2
    assert outcomes == ["begun", "begun"]
    assert sorted(kinds) == ["cancelled", "cancelled", "enqueued", "enqueued", "fired", "fired"]
    assert not scheduler.wheel.stats().pending
    assert not scheduler.wheel.stats().dead
    counters = scheduler.metrics.snapshot()["counters"]
    assert counters["cancelled"][""] == 2
    assert not sum(counters["retried"].values()) + sum(counters["dead"].values())
    scheduler.stop()
