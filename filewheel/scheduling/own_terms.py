"""The retry and the time-out that a single call brings along, in place of those of its handler.

They are stored in headers of the message, so they hold in any process that fires it. A class in `Retry.never` is stored
by its module and name, and is not imported to be compared.
Invariant: a header that cannot be read changes nothing: the terms of the handler hold, and a warning says so.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
from typing import Any

from filewheel.checks import check_number, shown
from filewheel.errors import BadArgument
from filewheel.message import RETRY, TIMEOUT, Message
from filewheel.scheduling.outcome import Retry, name_of

log = logging.getLogger("filewheel.scheduling")

_NOTED_MAX = 1024
"""How many different headers are remembered, so that each is read once and a wrong one is logged once."""


def own_terms(retry: Retry | None, timeout_s: float | None) -> dict[str, str]:
    """Return the headers that store these terms of a call; none for None.

    Raises BadArgument.
    """
    made = {}
    if retry is not None:
        if not isinstance(retry, Retry):
            raise BadArgument(f"retry is a Retry, not {shown(retry)}", hint="Retry(limit=3, delay_s=10)")
        fields = {**dataclasses.asdict(retry), "never": [name_of(kind) for kind in retry.never]}
        made[RETRY] = json.dumps(fields, separators=(",", ":"))
    if timeout_s is not None:
        made[TIMEOUT] = repr(float(check_number("timeout_s", timeout_s)))
    return made


def retry_of(message: Message, default: Retry) -> Retry:
    """Return how a message's call is retried: by `default`, in which its own header replaces what it names."""
    text = message.headers.get(RETRY)
    return default if text is None else _read_retry(text, default)


def timeout_of(message: Message, default_s: float | None = None) -> float | None:
    """Return the time-out of a message's call in seconds: that in its header, or else the default."""
    text = message.headers.get(TIMEOUT)
    return default_s if text is None else _read_timeout(text, default_s)


@functools.lru_cache(_NOTED_MAX)
def _read_retry(text: str, default: Retry) -> Retry:
    try:
        fields: Any = json.loads(text)
        if not isinstance(fields, dict):
            raise BadArgument("it is no JSON object")
        known = {field.name: fields[field.name] for field in dataclasses.fields(default) if field.name in fields}
        if "never" in known:
            never = known["never"]
            if not isinstance(never, list) or not all(isinstance(name, str) for name in never):
                raise BadArgument("`never` is no list of names")
            known["never"] = tuple(never)
        return dataclasses.replace(default, **known)
    except (BadArgument, ValueError, RecursionError) as exc:
        log.warning("the header %s=%.100r is ignored, the handler's own retry holds: %s", RETRY, text, exc)
        return default


@functools.lru_cache(_NOTED_MAX)
def _read_timeout(text: str, default_s: float | None) -> float | None:
    try:
        return check_number("it", float(text))
    except (BadArgument, ValueError) as exc:
        log.warning("the header %s=%.100r is ignored, the handler's own time-out holds: %s", TIMEOUT, text, exc)
        return default_s
