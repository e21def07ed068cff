"""Wrong verbs: words of other tools, and misspelt ones. And -C, in the help of each verb that needs a wheel."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from cli.foreign import FOREIGN
from cli.main import cli
from tests.cli.support import invoke

WITHOUT_A_WHEEL = {"work", "when", "demo", "copy-server", "completion", "kafka", "timers", "man"}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("list", "inspect list"), ("ls", "inspect list"), ("show", "inspect ID"), ("status", "inspect"),
        ("delete", "cancel"), ("rm", "cancel"), ("add", "enqueue"), ("start", "run` or `filewheel work"),
        ("retry", "reschedule"), ("LIST", "inspect list"), ("dlq", "dead list"), ("help", "--help"),
        ("enqeue", "enqueue"), ("inspct", "inspect"), ("schedules", "inspect schedules"), ("statuss", "kafka status"),
    ],
)  # fmt: skip
def test_a_wrong_verb_is_answered_with_the_right_one(word: str, meant: str) -> None:
    result = invoke(word)
    assert result.code == 2
    assert f"no command {word!r}; did you mean `filewheel {meant}`" in result.err


def test_a_word_that_means_nothing_gets_the_help_only() -> None:
    result = invoke("xyzzy")
    assert "no command 'xyzzy'\n" in result.err
    assert "Try: `filewheel --help`" in result.err


def test_each_answer_is_a_command() -> None:
    for commands in FOREIGN.values():
        for command in commands:
            assert invoke(*command.replace(" ID", "").split(), "--help").code == 0


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, (*path, name))


@pytest.mark.parametrize("path", list(_commands(cli)), ids=" ".join)
def test_the_help_of_a_verb_names_the_option_and_the_variable_for_the_wheel_if_it_needs_one(
    path: tuple[str, ...],
) -> None:
    text = " ".join(invoke(*path, "--help").out.split())
    assert ("-C DIR" in text and "env: FILEWHEEL;" in text) == (path[0] not in WITHOUT_A_WHEEL)
