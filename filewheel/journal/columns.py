"""The columns of a batch: each is one value for all of its messages, or a sequence with one for each.

This is the cheap form to enqueue many: a value for all is checked and packed once.
Invariant: every value has been checked before anything of the batch is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from filewheel.errors import BadArgument
from filewheel.format.frame import portions
from filewheel.format.limits import check_count, check_headers, check_new_key, check_topic
from filewheel.format.record import pack_middle
from filewheel.message import DUE_END_US, KEY
from filewheel.native.compiled import due_column
from filewheel.timespec import at_us, check_due, due_from

_PUT_BYTES = 25  # what a put has at most before its middle, and before its payload's bytes

Delay = float | timedelta
At = datetime | float
Headers = Mapping[str, str] | None


def dues_of(
    now_us: int, delay: Delay | Sequence[Delay] | None, at: At | Sequence[At] | None, count: int
) -> Sequence[int]:
    """Return the due of each message, in microseconds."""
    if delay is not None and at is not None:
        due_from(now_us, delay=0, at=0)  # raises: both were given
    if isinstance(delay, Sequence):
        check_count("delay", delay, count)
        dues = due_column(now_us, delay, DUE_END_US)
        return dues if dues is not None else [due_from(now_us, delay=d, at=None) for d in delay]
    if isinstance(at, Sequence):
        check_count("at", at, count)
        dues = due_column(0, at, DUE_END_US)
        return dues if dues is not None else [check_due(at_us(a)) for a in at]
    return [due_from(now_us, delay=delay, at=at)] * count


def middles_of(
    now_us: int, topic: str | Sequence[str], headers: Headers | Sequence[Headers], count: int
) -> bytes | list[bytes]:
    """Return the bytes between id and payload: once if equal for all, else for each message."""
    if isinstance(topic, str) and (headers is None or isinstance(headers, Mapping)):
        check_topic(topic)
        return pack_middle(now_us, topic, _plain(headers) if headers else None)
    topics = [topic] * count if isinstance(topic, str) else topic
    each = [headers] * count if headers is None or isinstance(headers, Mapping) else headers
    check_count("topic", topics, count)
    check_count("headers", each, count)
    for name in set(topics):
        check_topic(name)
    return [pack_middle(now_us, t, _plain(h) if h else None) for t, h in zip(topics, each, strict=True)]


def keyed_middles_of(
    now_us: int,
    topic: str | Sequence[str],
    headers: Headers | Sequence[Headers],
    keys: Sequence[str | None],
    count: int,
) -> list[bytes]:
    """Return the bytes between id and payload of each message; some have a unique key."""
    if isinstance(keys, str):
        raise BadArgument("keys are a sequence with one for each message, not a text", hint='keys=["...", "..."]')
    check_count("keys", keys, count)
    each = [headers] * count if headers is None or isinstance(headers, Mapping) else headers
    check_count("headers", each, count)
    own = [None if key is None else {KEY: check_new_key(key, h)} for key, h in zip(keys, each, strict=True)]
    named = [check_headers({**_plain(h), **(k or {})}) if h else k for h, k in zip(each, own, strict=True)]
    topics = [topic] * count if isinstance(topic, str) else topic
    check_count("topic", topics, count)
    for name in set(topics):
        check_topic(name)
    return [pack_middle(now_us, t, h) for t, h in zip(topics, named, strict=True)]


def _plain(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Check a message's headers: in a batch it has no unique key, which the index would not list."""
    if KEY in check_headers(headers):  # mutant: key-in-a-batch
        raise BadArgument(
            f"a message with a unique key ({KEY}) goes alone",
            hint="enqueue(..., key=...), or enqueue_many(..., keys=[...])",
        )
    return headers


@dataclass(frozen=True)
class BatchPart:
    """A part of a batch that is one frame."""

    dues_us: Sequence[int]
    middle: bytes | Sequence[bytes]
    payloads: Sequence[bytes]
    size_bytes: int
    """At least the size of its packed puts."""


def runs_of(
    dues_us: Sequence[int],
    middle: bytes | Sequence[bytes],
    payloads: Sequence[bytes],
    limit_bytes: int,
    size_bytes: int | None = None,
) -> list[BatchPart]:
    """Cut a batch into runs of at most `limit_bytes` (a larger message is alone); nearly always one.

    `size_bytes` is that of all payloads, where it is known.
    """
    if not payloads:
        return []
    if isinstance(middle, bytes):
        extra = _PUT_BYTES + len(middle)
        whole = extra * len(payloads) + (sum(map(len, payloads)) if size_bytes is None else size_bytes)
        if whole <= limit_bytes:
            return [BatchPart(dues_us, middle, payloads, whole)]
        sizes = [extra + len(p) for p in payloads]
    else:
        sizes = [_PUT_BYTES + len(m) + len(p) for m, p in zip(middle, payloads, strict=True)]
    cuts = portions(sizes, limit_bytes)
    if len(cuts) == 1:
        return [BatchPart(dues_us, middle, payloads, sum(sizes))]
    return [
        BatchPart(dues_us[a:b], middle if isinstance(middle, bytes) else middle[a:b], payloads[a:b], sum(sizes[a:b]))
        for a, b in cuts
    ]
