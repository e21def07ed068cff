"""`filewheel result`: what a call has returned."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from filewheel import Retry, Scheduler
from tests.cli.support import Fw


@pytest.fixture
def scheduler(fw: Fw) -> Scheduler:
    made = Scheduler(fw.wheel)

    @made.on("made", result_for="1h")
    def make(text: str) -> dict[str, object]:
        return {"text": text.upper(), "day": date(2027, 1, 2), "raw": b"\xff"}

    @made.on("failed", result_for="1h", retry=Retry(limit=0))
    def fail() -> None:
        raise ValueError("no route")

    return made


def test_the_value_of_a_call_that_ended_is_json_when_piped(fw: Fw, scheduler: Scheduler) -> None:
    (id_,) = fw.enqueue("--in", "0", "--topic", "made", "--args", '["ann"]')
    assert fw("result", id_, "--json", code=16).error["error"] == "timed-out"
    scheduler.drain()
    scheduler.stop()
    (found,) = fw("result", id_).json
    assert found == {"id": id_, "value": {"text": "ANN", "day": "2027-01-02", "raw": {"b64": "/w=="}}}
    assert "datetime.date(2027, 1, 2)" in fw("result", id_, "--no-json").out


def test_a_call_that_failed_says_why_and_one_that_never_was_is_not_found(fw: Fw, scheduler: Scheduler) -> None:
    (id_,) = fw.enqueue("--in", "0", "--topic", "failed", "--args", "[]")
    scheduler.drain()
    scheduler.stop()
    assert "no route" in fw("result", id_, code=1).err
    fw("result", "01K52WPZBJM0PRDCR001000002", code=4)
    fw("result", "nonsense", code=2)


def test_a_result_is_waited_for(fw: Fw, tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(
        "from filewheel import Scheduler\n"
        f"s = Scheduler({str(fw.wheel)!r})\n"
        "@s.on('made', result_for='1h')\n"
        "def make(n):\n    return n + 1\n"
    )
    (id_,) = fw.enqueue("--in", "0", "--topic", "made", "--args", "[41]")
    process = fw.start("result", id_, "--wait", "60s")
    fw.process("work", "app:s", "--once", cwd=tmp_path)
    out, _ = process.communicate(timeout=120)
    assert '"value": 42' in out
    assert process.returncode == 0
