"""What a scheduler logs of its messages."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from filewheel import Event, Retry, Scheduler
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
