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
from filewheel import Keeper, Scheduler, Wheel
from filewheel.replication.members import add_backup
from tests.cli_support import Fw, invoke, on_terminal

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


@pytest.mark.parametrize("columns", [10, 20, 79])
def test_text_that_is_wrapped_keeps_every_word_and_no_line_is_wider_unless_a_word_is(columns: int) -> None:
    text = "the file is missing; restore it; `filewheel repair` accepts the loss of laps/1994913/1795421866.slot 日本語"
    lines = wrap(text, columns)
    assert " ".join(lines) == text
    assert all(width(line) <= columns or " " not in line for line in lines)
