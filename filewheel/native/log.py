"""Records of a Kafka log, in Python. `_log.c` and `_deliveries.c` have the same in C; `compiled.py` chooses.

Here each place is None, which lets the caller apply its own rules: in C only what is plain is not.
Invariant: what is not None is what those rules return (tests/native/test_log.py compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECORD_BYTES = 300
"""About what a record takes beside its key, its value and its headers."""


def learn_record(record: type[Any], /) -> None:
    """Set the class of records."""


def learn_put(put: type[Any], /) -> None:
    """Set the class of puts, a named tuple."""


def learn_outgoing(outgoing: type[Any], message: type[Any], /) -> None:
    """Set the class of records that go out, and that of the messages that they are made of."""


def deliveries(
    messages: list[Any], topic: bytes, partition: int, fired_ms: int, keep_routing: bool, /
) -> tuple[list[Any], bool]:
    """Return the records that due messages of a partition become, and whether one is None: the rules have to make it.

    `topic` is the delay topic.
    """
    return [None] * len(messages), bool(messages)


def read_records(messages: list[Any], /) -> tuple[list[Any], bool]:
    """Return the records of a client's messages, and whether one is None: an error, or one that has to be read."""
    return [None] * len(messages), bool(messages)


def records_size(records: list[Any], /) -> int:
    """Return about how many bytes records have in memory."""
    contents = [content for r in records for content in (r.key, r.value, *(value for _, value in r.headers))]
    return RECORD_BYTES * len(records) + sum(len(content or b"") for content in contents)


def delayed_puts(
    records: list[Any],
    topics: Mapping[bytes, str],
    default_target: str | None,
    horizon_ms: int,
    due_end_ms: int,
    size_max: int,
    keyed: bool,
    /,
) -> tuple[list[Any], bool]:
    """Return the puts of records, and whether one is None: the rules have to make it.

    `topics` has the names of targets by the value of their header. `horizon_ms` is -1 for none.
    """
    return [None] * len(records), bool(records)
