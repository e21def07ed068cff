"""`filewheel timers`: the picture of a wheel that turns."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cli.show.text import width
from cli.timers.picture import picture
from cli.timers.trace import read_trace
from cli.timers.turning import TracePlayer
from filewheel.timers import Hierarchical
from tests.cli.support import invoke, on_terminal
from tests.support import REPO

TRACE = "0 start a 3\n0 start b 100  # far\n2 start c 500\n5 stop c\n6 start d 0\n7 stop a\n"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "calls.trace"
    path.write_text(TRACE)
    return path


def test_each_event_of_a_trace_is_shown_once_at_its_tick_with_each_demotion(trace: Path) -> None:
    events = invoke("timers", "show", trace, "--json").json
    assert [(e["tick"], e["event"], e["timer"], e["level"], e["slot"]) for e in events] == [
        (0, "start", "a", 1, 3),
        (0, "start", "b", 3, 1),
        (2, "start", "c", 3, 7),
        (3, "fire", "a", None, None),
        (5, "stop", "c", None, None),
        (6, "start", "d", None, None),
        (7, "fire", "d", None, None),
        (7, "stop", "a (it has fired)", None, None),
        (64, "demote", "b", 2, 4),
        (96, "demote", "b", 1, 4),
        (100, "fire", "b", None, None),
    ]


def test_piped_the_wheel_is_drawn_for_each_tick_with_an_event(trace: Path) -> None:
    shown = invoke("timers", "show", trace).out
    frames = shown.strip().split("\n\n")
    assert len(frames) == 9
    assert frames[0].splitlines()[0] == "tick 0: 2 pending, 0 fired"
    assert "level 3 slot 1 → level 2 slot 4" in shown
    assert "0 pending, 3 fired" in frames[-1]


@pytest.mark.parametrize("slots", [2, 8, 50, 59, 60, 1000, 4096])
def test_a_picture_fits_80_columns_with_any_number_of_slots(slots: int) -> None:
    result = invoke("timers", "show", "--slots", slots, "--levels", 3)
    assert result.code == 0
    assert max(width(line) for line in result.lines) <= 80
    assert "^" not in result.out


def test_each_timer_is_in_the_picture_once_and_the_hand_stands_below_its_slot() -> None:
    wheel: Hierarchical[str] = Hierarchical((8, 8))
    for due in (1, 3, 3, 20):
        wheel.start(due, "x")
    wheel.advance(2, lambda entry: None)
    first, hand, second, _ = picture(wheel, 80, blocks=False)
    assert sum(int(c) for c in first[22:] + second[22:] if c.isdigit()) == 3
    assert hand.index("^") == first.index("2") - 4


def test_a_crowded_slot_shows_its_count_or_a_plus() -> None:
    wheel: Hierarchical[str] = Hierarchical((60, 60))
    for _ in range(12):
        wheel.start(7, "x")
    assert "+" in picture(wheel, 80, blocks=True)[0]


def test_on_a_terminal_the_wheel_is_drawn_in_one_place(trace: Path) -> None:
    shown = on_terminal("timers", "show", trace, "--delay", "0").out
    assert shown.count("\x1b[") > 10
    assert "tick 100" in shown


def test_the_samples_are_found_in_a_zip_file(tmp_path: Path) -> None:
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w") as into:
        parts = {"cli": "filewheel_cli", "filewheel": "filewheel", "data/samples": "filewheel_cli/samples"}
        for source, name in parts.items():
            for file in (REPO / source).rglob("*"):
                if file.suffix in (".py", ".trace", ".jsonl"):
                    into.write(file, Path(name, file.relative_to(REPO / source)))
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r}); from filewheel_cli.main import main; "
        "from filewheel_cli.demo.stage import samples; assert samples(); main()"
    )
    command = [sys.executable, "-c", program, "timers", "show"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert b"fired" in done.stdout


def test_a_trace_comes_from_stdin_too() -> None:
    assert [e["event"] for e in invoke("timers", "show", "-", "--json", stdin="5 start a 2\n").json] == [
        "start",
        "fire",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 start a\n", "line 1: '0 start a' is no step"),
        ("# only\n", "no step"),
        ("5 start a 1\n\n4 start b 1\n", "line 3: tick 4 comes after tick 5"),
        ("0 stop a\n", "line 1: a was not started"),
        ("0 start a 1\n0 start a 1\n", "line 2: a was started before"),
        ("x start a 1\n", "'x' is no number"),
        ("0 start a -1\n", "'-1' is no number"),
        ("0 start a 99999999999\n", "is no number from 0 to 1,000,000,000"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(text: str, says: str) -> None:
    result = invoke("timers", "show", "-", stdin=text)
    assert result.code == 2
    assert says in result.err
    assert not result.out


def test_a_long_trace_is_refused_instead_of_filling_memory() -> None:
    lines = (f"{n} start t{n} 1" for n in range(10_001))
    with pytest.raises(ValueError, match="more than 10,000 lines"):
        read_trace(lines, "long")


def test_a_trace_that_is_no_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    result = invoke("timers", "show", tmp_path / "none")
    assert result.code != 0
    assert "none" in result.err


def test_a_wheel_of_one_level_turns_beyond_its_span() -> None:
    turning = TracePlayer(read_trace(["0 start a 1000", "1 start b 3"], "x"), slots=4, levels=1)
    events = [event for frame in turning.frames() for event in frame]
    assert [(e.what, e.name, e.tick) for e in events if e.what == "fire"] == [("fire", "b", 4), ("fire", "a", 1000)]
