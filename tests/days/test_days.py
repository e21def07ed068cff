"""The moved clock: a process and its children see another date, and measure time as ever."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.crash.shim import missing
from tests.days.__main__ import DAYS, Day, build, environment, files
from tests.support import REPO

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

LOOKS = """
import datetime, json, subprocess, threading, time
before = time.monotonic()
threading.Event().wait(0.01)
threading.Condition().acquire() and time.sleep(0.01)
child = subprocess.run(["date", "+%s %z"], capture_output=True, text=True).stdout.split()
print(json.dumps({
    "s": time.time(), "local": datetime.datetime.now().isoformat(), "took_s": time.monotonic() - before,
    "child_s": int(child[0]), "child_offset": child[1],
}))
"""


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.name)
def test_a_process_and_its_children_see_the_day_and_sleep_as_long_as_ever(day: Day, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], env=environment(day, build(tmp_path)), capture_output=True, text=True, check=True
    )
    seen = json.loads(done.stdout)
    begins = datetime.fromisoformat(day.begins)
    assert 0 <= seen["s"] - begins.timestamp() + 1 < 60
    assert seen["child_s"] == pytest.approx(seen["s"], abs=2)
    assert 0.02 <= seen["took_s"] < 30
    local = begins.astimezone(ZoneInfo(day.zone))
    assert abs(datetime.fromisoformat(seen["local"]) - local.replace(tzinfo=None)) < timedelta(minutes=1)
    assert seen["child_offset"] == f"{local:%z}"


def test_the_files_that_read_the_day_are_found() -> None:
    found = {str(Path(path).relative_to(REPO)) for path in files()}
    assert {"tests/test_timespec.py", "tests/cli/test_enqueue_key.py", "tests/schedules/test_cron.py"} <= found
    assert "tests/format/test_frame.py" not in found
