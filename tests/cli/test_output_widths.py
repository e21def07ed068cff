"""Whatever is printed for people fits a terminal of 80 columns: each help text, and what each command shows."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cli.main import cli
from cli.show.text import width, wrap
from cli.times import to_datetime
from filewheel import Keeper, Retry, Scheduler, Wheel
from filewheel.message import US_PER_S
from filewheel.sets.members import add_backup
from tests.cli.support import Fw, invoke, on_terminal
from tests.support import START_US, FakeClock

COLUMNS = 80


def _paths(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _paths(inner, (*path, name))


@pytest.mark.parametrize("path", list(_paths(cli)), ids=lambda path: " ".join(path) or "filewheel")
def test_the_help_of_a_command_fits_80_columns(path: tuple[str, ...]) -> None:
    shown = invoke(*path, "--help", env={"COLUMNS": str(COLUMNS)}).lines
    assert [line for line in shown if width(line) > COLUMNS] == []


@pytest.fixture
def populated() -> Iterator[Fw]:
    """A wheel with all that there is to show, near the root, so that its name takes no width."""
    where = Path(tempfile.mkdtemp(prefix="fw", dir="/tmp"))
    try:
        yield _populated(where)
    finally:
        shutil.rmtree(where)


def _populated(where: Path) -> Fw:
    fw = Fw(where / "w")
    Wheel.create(fw.wheel).close()
    scheduler = Scheduler(fw.wheel)
    scheduler.schedule("reports:every-morning", "0 9 * * mon-fri", "report", tz="America/Argentina/Buenos_Aires")
    scheduler.enqueue("email", ["ann", "a long line of words " * 10])
    scheduler.stop()
    for body in ("x" * 200, "of several words " * 20):
        fw.enqueue("--in", "1h", "--topic", "a.topic.of.some.length.and.more", "--key", body[:100], body)
    with Keeper(fw.wheel, background=False) as keeper:
        with Wheel(fw.wheel) as wheel:
            wheel.enqueue(b"dies" * 50, topic="webhook.of.a.customer")
        for message in keeper.claim():
            keeper.bury(message, reason="it answered 500 each time, and nobody knows why" * 2)
    add_backup(fw.wheel, where / "a backup on another disk.wheel", mode="ship")
    fw.enqueue("--in", "50d", "far")
    fw.deal()
    fw.enqueue("--in", "50d", "far, and in a journal")
    harmed, gone = sorted(fw.wheel.glob("laps/*.lap"))[:2]
    gone.unlink()
    data = bytearray(harmed.read_bytes())
    data[100] ^= 1
    harmed.write_bytes(data)
    (fw.wheel / "laps" / "somebody's notes.txt").touch()
    return fw


COMMANDS = [
    "inspect", "inspect list", "inspect list --dead", "inspect schedules", "inspect journal", "inspect slot {id}",
    "inspect journal {writer}", "stats", "verify", "repair --dry-run", "backup list", "diff {other} .",
    "doctor --verify",
    "when 0~9~*~*~mon-fri --tz America/Argentina/Buenos_Aires",
]  # fmt: skip


@pytest.mark.damages
def test_what_a_command_shows_fits_80_columns(populated: Fw) -> None:
    (far,) = (m["id"] for m in populated("inspect", "list", code=12).json if m["payload"] == "far, and in a journal")
    other = populated.wheel.parent / "o"
    Wheel.create(other).close()
    wide = {}
    for command in COMMANDS:
        words = command.format(id=far, writer=far[12:20], other=other).replace(" .", f" {populated.wheel}").split()
        plain = [word.replace("~", " ") for word in words]
        shown = on_terminal("-C", populated.wheel, *plain, columns=COLUMNS, env={"NO_COLOR": "1"})
        assert shown.code in (0, 3, 12), shown
        assert len(shown.lines) > 1, shown
        wide[command] = [line for line in shown.lines if width(line) > COLUMNS]
    assert not any(wide.values()), wide


@pytest.fixture
def timed(wheel_dir: Path) -> Fw:
    """A wheel with all that a table of times has columns for, made at the time of FakeClock."""
    clock = FakeClock()
    scheduler = Scheduler(wheel_dir, clock=clock, unknown="bury")

    @scheduler.on("a.handler.that.fails", retry=Retry(11, delay_s=0, jitter=0))
    def fails(text: str) -> None:
        raise ValueError(text)

    scheduler.enqueue("a.handler.that.fails", ["日本語" * 20], key="a-key-that-is-long")
    scheduler.enqueue("a.topic.that.is.long", ["日本語" * 20], key="another-key-that-is-long")
    scheduler.schedule("a-schedule-that-fails", to_datetime(clock.now_us() + 1), "a.handler.that.fails", ["x"])
    for _ in range(15):
        scheduler.drain()
        clock.advance(1)
    scheduler.schedule(
        "a-rather-long-name", "*/15 9-17 * * mon-fri", "a.rather.long.handler", tz="America/Argentina/ComodRivadavia"
    )
    scheduler.stop()
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"body " * 30, topic="日本語" * 9, key="k" * 40)
    return Fw(wheel_dir)


@pytest.mark.parametrize(
    ("command", "heading"),
    [
        ("inspect list", "ID DUE STATE SCHED… TOPIC KEY BODY"),
        ("dead list", "ID DIED SCHED… TOPIC KEY REASON BODY"),
        ("schedule list", "NAME WHEN ZONE NEXT (local) TOPIC MISSED BODY"),
        ("history", "ENDED ID OUTCOME TOOK SCHEDU… TOPIC ERROR"),
    ],
)
def test_a_table_of_times_fits_80_columns_and_has_the_same_columns_however_far_away_the_times_are(
    timed: Fw, command: str, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.show.output.Output.is_terminal", lambda self, stream: True)
    headings = set()
    for away_s in (0.001, 3599, 43_199, 900_000, 25_000_000, 3_153_500_000):
        for now_us in (START_US + round(away_s * US_PER_S), START_US - round(away_s * US_PER_S)):
            monkeypatch.setattr("cli.times.now_us", lambda now_us=now_us: now_us)
            lines = timed(*command.split(), NO_COLOR="1", COLUMNS=str(COLUMNS)).lines
            assert len(lines) > 1
            assert max(map(width, lines)) <= COLUMNS, lines
            headings.add(lines[0])
    (found,) = headings
    assert found.split() == heading.split()


@pytest.mark.parametrize("columns", [10, 20, 79])
def test_text_that_is_wrapped_keeps_every_word_and_no_line_is_wider_unless_a_word_is(columns: int) -> None:
    text = "the file is missing; restore it; `filewheel repair` accepts the loss of laps/1994913/1795421866.slot 日本語"
    lines = wrap(text, columns)
    assert " ".join(lines) == text
    assert all(width(line) <= columns or " " not in line for line in lines)
