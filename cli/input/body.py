"""The body of a message from the command line: an argument, or stdin.

Invariant: a body that is missing is an error, and never an empty message.
"""

from __future__ import annotations

import os

import click

from ..show.output import Output
from .lines import stdin

_STDIN_BYTES_MAX = (1 << 30) + 1
"""More than the largest payload of any wheel."""


def read_body(out: Output, body: str | None, *, is_work: bool = False) -> bytes:
    """Return BODY, or stdin for `-` and for a missing one.

    Raises UsageError when there is none; for the body of a schedule, which `is_work`, also for an empty stdin: it would
    run as nothing, and count as done.
    """
    if body is None and out.stdin_is_terminal:
        raise click.UsageError("BODY is missing; `-` reads it from the terminal up to Ctrl-D, '' is an empty message")
    if body is None or body == "-":
        read = stdin().read(_STDIN_BYTES_MAX)
        if is_work and not read:
            raise click.UsageError("the body is empty: stdin has nothing; '' is an empty body")
        if body is None and not read:  # from a timer, or the wrong end of a pipe: hardly intended
            raise click.UsageError(
                "BODY is missing, and stdin is empty; '' is an empty message, and `-` accepts an empty stdin"
            )
        return read
    return os.fsencode(body)  # the shell's bytes, in every locale
