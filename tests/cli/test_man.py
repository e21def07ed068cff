"""The manual page: it has every verb and option, roff takes it without a warning, and no text of it is a request."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from cli.failure import MEANING
from cli.main import VERBS, cli
from cli.show.roff import page
from tests.cli.support import invoke


def test_the_page_has_every_verb_with_its_options_and_every_exit_code() -> None:
    text = invoke("man").out
    plain = text.replace(r"\-", "-")
    for verb in VERBS:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        assert f"\n.SS filewheel {verb}\n" in plain
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in plain
    assert "\n.SS filewheel inspect list\n" in plain
    for code in MEANING:
        assert f"\n.B {code}\n" in text


def test_groff_takes_the_page_without_a_warning_and_it_fits_80_columns() -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff here: `apt install groff`")
    text = invoke("man").out
    command = ["groff", "-man", "-ww", "-Tascii", "-P-c", "-rLL=78n"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "enqueue" in done.stdout
    shown = re.sub(".\b", "", done.stdout)  # bold is printed twice
    assert max(map(len, shown.splitlines())) <= 100  # an example is not wrapped


def test_no_text_of_a_command_becomes_a_request_or_loses_a_character() -> None:
    @click.command("odd", epilog="\b\n.so /etc/passwd\n'ds x\n\\fBodd")
    @click.option("--level", help=".TH is no request; -1 is a number; a \\ is a backslash")
    def odd(level: str) -> None:
        """.br at the start, and a line

        'quoted'
        """

    group = click.Group("filewheel", commands={"odd": odd}, help="A group")
    text = page(group, "1", {0: "done"})
    for line in text.splitlines():
        assert not line.startswith((".so", "'ds", ".br", ".TH is", "'quoted")), line
    assert r"a \e is a backslash" in text
    assert r"\&.so /etc/passwd" in text
    assert r"\efBodd" in text
