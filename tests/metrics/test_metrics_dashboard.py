"""The dashboard in the examples is the one that the code's metrics make, and asks only for what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from filewheel import Scheduler, Wheel
from filewheel.live.all_metrics import scrape
from filewheel.live.wheel_view import WheelView
from filewheel.metrics.metrics import EVENTS, TIMES
from tests import grafana
from tests.live import dashboard
from tests.support import REPO, eventually
from tests.support_set import make_set

FILE = REPO / "docs" / "examples" / "grafana.json"


def names_of(text: str) -> set[str]:
    return set(re.findall(r"filewheel_[a-z0-9_]+", text))


def test_the_file_is_what_the_metrics_make() -> None:
    made = grafana.as_json(dashboard.dashboard())
    assert FILE.read_text(encoding="utf-8") == made, "python -m tests.live.dashboard > docs/examples/grafana.json"


def test_no_panel_lies_on_another_and_each_metric_has_one() -> None:
    found = dashboard.dashboard()
    cells = grafana.cells_of(found)
    assert len(cells) == len(set(cells))
    families = [family for members in dashboard.groups().values() for family in members]
    asked = [panel["targets"][0]["expr"] for panel in found["panels"] if panel["type"] != "row"]
    assert len(asked) == len(families)
    for family, expression in zip(families, asked, strict=True):
        assert names_of(expression) <= {family.name, f"{family.name}_bucket"}
    names = {family.name for family in families}
    assert {f"filewheel_{event}_total" for event in EVENTS} <= names
    assert {f"filewheel_{what}_seconds" for what in TIMES} <= names


def test_a_scrape_has_every_gauge_of_the_wheel_that_the_dashboard_asks_for(tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    make_set(primary, backup)
    with Wheel(primary) as wheel, WheelView(primary) as view:
        wheel.enqueue(b"x", delay=60)
        scraped = names_of(scrape(view))
    groups = dashboard.groups()
    unknown = {"filewheel_backup_lag_messages", "filewheel_backup_lag_bytes", "filewheel_backup_lag_seconds"}
    for family in (*groups["The wheel"], *groups["Backups"]):
        assert family.name in scraped | unknown, "an unknown lag is left out"


def test_what_a_scheduler_publishes_is_asked_for(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)

    @scheduler.on("mail")
    def mail() -> None:
        pass

    mail.enqueue()
    with scheduler:
        eventually(lambda: not scheduler.wheel.stats().pending)
    asked = names_of(FILE.read_text(encoding="utf-8"))
    with WheelView(wheel_dir) as view:
        scraped = names_of(scrape(view))
    scraped = {re.sub("_(sum|count)$", "_bucket", name) for name in scraped if not name.endswith("_pid")}
    histograms = {f"filewheel_{what}_seconds" for what in TIMES}  # the names of their help texts
    assert scraped - histograms - asked == {"filewheel_counted_age_seconds"}


@pytest.mark.parametrize("page", ["observability.md", "live.md"])
def test_each_metric_that_a_page_names_is_on_the_dashboard(page: str) -> None:
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    known = {family.name for members in dashboard.groups().values() for family in members}
    known |= {f"{name}_bucket" for name in known} | {"filewheel_published_pid", "filewheel_counted_age_seconds"}
    assert names_of(text) - {"filewheel_scheduler", "filewheel_clock"} <= known
