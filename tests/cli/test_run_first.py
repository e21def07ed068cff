"""`run --first`: which messages are fired before all others, whatever is due earlier."""

from __future__ import annotations

from pathlib import Path

from filewheel import Wheel
from tests.cli.support import Fw


def test_a_late_urgent_message_is_printed_before_a_backlog_longer_than_a_claim(fw: Fw) -> None:
    with Wheel(fw.wheel, sync="never") as wheel:
        wheel.enqueue_many([b"x"] * 600, topic="low", delay=-60)
        wheel.enqueue_many([b"x"] * 2, topic=["soon.a", "now"])
    fired = fw.process("run", "--once", "--first", "now", "--first", "soon.*").json
    assert [m["topic"] for m in fired] == ["now", "soon.a"] + ["low"] * 600


def test_a_command_gets_what_goes_first_as_soon_as_one_ends(fw: Fw, tmp_path: Path) -> None:
    with Wheel(fw.wheel) as wheel:
        wheel.enqueue_many([b"x"] * 4, topic=["low", "low", "urgent", "low"])
    out = tmp_path / "out"
    fw.process("run", "--once", "--first", "urg*", "--", "sh", "-c", f'echo "$FILEWHEEL_TOPIC" >> {out}')
    assert out.read_text().split() == ["urgent", "low", "low", "low"]
