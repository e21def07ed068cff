"""The terms of one message: --retries and --timeout, in place of those of the command or the scheduler that fires it.

Invariant: an option that is not given leaves no header.
"""

from __future__ import annotations

import json

import click

from filewheel.message import RETRY, TIMEOUT

from ..times import US_PER_S
from .params import DURATION
from .when import NONE

_COUNT = click.IntRange(min=0)


def terms_of(retries: int | None, timeout_us: int | None) -> dict[str, str]:
    """Return the headers that store them; the one that fires chooses the waits between the tries."""
    if timeout_us is not None and timeout_us <= 0:
        raise click.BadParameter("a try needs some time: write 30s", param_hint="'--timeout'")
    terms = {} if retries is None else {RETRY: json.dumps({"limit": retries})}
    return terms if timeout_us is None else {**terms, TIMEOUT: repr(timeout_us / US_PER_S)}


def changed_terms(retries: str | None, timeout: str | None) -> dict[str, str | None]:
    """Return the changes of the headers that store them; `none` takes one away."""
    taken: dict[str, str | None] = {RETRY: None} if retries == NONE else {}
    taken |= {TIMEOUT: None} if timeout == NONE else {}
    limit = None if retries in (None, NONE) else _read(_COUNT, retries, "'--retries'")
    most_us = None if timeout in (None, NONE) else _read(DURATION, timeout, "'--timeout'")
    return taken | terms_of(limit, most_us)


def _read(kind: click.ParamType[int], text: str | None, hint: str) -> int:
    try:
        value: int = kind.convert(text, None, None)
    except click.BadParameter as exc:
        raise click.BadParameter(exc.message, param_hint=hint) from None
    return value
