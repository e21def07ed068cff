"""The commands as a manual page: one page in roff for man(1), made from the help of each verb.

So the page cannot differ from the help.
Invariant: no text of a command is taken for a request of roff.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click


def page(cli: click.Group, version: str, codes: dict[int, str]) -> str:
    """Return the page filewheel(1)."""
    root = click.Context(cli, info_name="filewheel")
    lines = [f'.TH FILEWHEEL 1 "" "filewheel {version}" "User Commands"', ".nh", ".SH NAME"]
    lines.append(r"filewheel \- a durable timing wheel in a directory: messages fired on time, at least once")
    lines += [".SH SYNOPSIS", r".B filewheel", r"[\fIOPTION\fR]... \fICOMMAND\fR [\fIARG\fR]..."]
    lines += [".SH DESCRIPTION", *_text(cli.help or "")]
    lines += [".SH OPTIONS", *_options(cli, root), ".SH COMMANDS"]
    for path, command, context in _commands(cli, root):
        lines += [f".SS {_escaped(' '.join(path))}", *_command(command, context)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in codes.items():
        lines += [".TP", f".B {code}", _escaped(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP", ".B FILEWHEEL", _escaped("The directory of the wheel, where -C is not given."),
        ".TP", ".B NO_COLOR", _escaped("No colour, unless --color says so."),
        ".TP", ".B NOTIFY_SOCKET, WATCHDOG_USEC", _escaped("Of systemd: run, work and replicate report how they are."),
        ".SH FILES",
        ".TP", ".I ./wheel", _escaped("The wheel, where neither -C nor FILEWHEEL names one."),
        ".SH SEE ALSO", ".BR at (1),", ".BR crontab (5),", ".BR systemd.service (5)",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _commands(
    group: click.Group, context: click.Context, path: tuple[str, ...] = ("filewheel",)
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        inner = click.Context(command, info_name=name, parent=context)
        yield (*path, name), command, inner
        if isinstance(command, click.Group):
            yield from _commands(command, inner, (*path, name))


def _command(command: click.Command, context: click.Context) -> list[str]:
    usage = _escaped(" ".join(command.get_usage(context).split()).removeprefix("Usage: "))
    return [f"\\fB{usage}\\fR", *_text(command.help or ""), *_options(command, context), *_text(command.epilog or "")]


def _options(command: click.Command, context: click.Context) -> list[str]:
    lines: list[str] = []
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None:
            lines += [".TP", f"\\fB{_escaped(record[0])}\\fR", _escaped(" ".join(record[1].split())) or r"\&"]
    return lines


def _text(text: str) -> list[str]:
    """Return paragraphs; one that click must not wrap stays as it is."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.replace("\b\n", "\b")):
        lines.append(".PP")
        if paragraph.lstrip(" ").startswith("\b"):
            body = paragraph.lstrip(" \b")
            lines += [".nf", *map(_escaped, body.splitlines()), ".fi"]
        elif paragraph.strip():
            lines.append(_escaped(" ".join(paragraph.split())))
    return lines


def _escaped(text: str) -> str:
    r"""Escape what roff would take for a request: `\`, hyphens, and a dot or an apostrophe at the start."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text[:1] in (".", "'") else text
