"""The terms of one message: --retries and --timeout, in place of those of the command or the scheduler that fires it.

Invariant: an option that is not given leaves no header.
"""

from __future__ import annotations

import json

import click

from filewheel.message import RETRY, TIMEOUT

from ..times import US_PER_S


def terms_of(retries: int | None, timeout_us: int | None) -> dict[str, str]:
    """Return the headers that store them; the one that fires chooses the waits between the tries."""
    if timeout_us is not None and timeout_us <= 0:
        raise click.BadParameter("a try needs some time: write 30s", param_hint="'--timeout'")
    terms = {} if retries is None else {RETRY: json.dumps({"limit": retries})}
    return terms if timeout_us is None else {**terms, TIMEOUT: repr(timeout_us / US_PER_S)}
