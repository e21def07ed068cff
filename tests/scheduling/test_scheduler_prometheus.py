"""The scheduler's own Prometheus text: what this process did, and what is on disk."""

from __future__ import annotations

from pathlib import Path

from filewheel import Scheduler
from filewheel.metrics.prometheus import parse
from tests.support_wheel import StillClock


def test_one_text_has_what_the_process_counted_and_what_the_wheel_holds(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "jobs.wheel", clock=StillClock())

    @scheduler.on("mail")
    def mail(to: str) -> None:
        pass

    mail.after(3600, "ann")
    mail.enqueue("bob")
    scheduler.drain()
    samples = {
        (s.name, s.labels): s.value for family in parse(scheduler.prometheus(), "the text") for s in family.samples
    }
    of_mail = (("handler", "mail"),)
    assert samples["filewheel_enqueued_total", of_mail] == 2
    assert samples["filewheel_acknowledged_total", of_mail] == 1
    assert samples["filewheel_lateness_seconds_count", of_mail] == 1
    assert samples["filewheel_sync_seconds_count", ()] > 0
    assert samples["filewheel_pending", ()] == 1
    assert 0 < samples["filewheel_journal_bytes", ()] < 4096  # a drain deals only what is much
