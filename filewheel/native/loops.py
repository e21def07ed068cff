"""The inner loops, over many records at once, in Python. `_loops.c` has the same in C; `compiled.py` chooses.

They dominate the cost of a batch, so each processes a whole column: bytes and ints in, bytes out, no file, no lock.
Invariant: both versions return the same bytes and refuse the same input (tests/native/test_loops.py compares them).
"""

from __future__ import annotations

import math
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import msgpack

from filewheel.message import MessageId

INTERFACE = 12
"""Counts the changes of these functions' signatures."""

PUT_PREFIX = b"\x98\x01\xc4\x10"
DROP_PREFIX = b"\x93\x02\xc4\x10"
ID = slice(4, 20)
DROP_BYTES = 21
MAGIC = b"\xf5FW1"
SUMMED = struct.Struct("<IIQQII16s16s")
"""A frame's header without magic and its own checksum."""

_US_PER_S = 1_000_000
_COARSENESS = 2.0**-52
_BYTES = {bytes}
_NIL = 0xC0
_EXACT_END_US = 2**53  # as in timespec


def due_column(base_us: int, seconds: Sequence[Any], end_us: int, /) -> list[int] | None:
    """Return `base_us` plus each of these seconds, rounded as in timespec; None unless all are plain valid numbers."""
    kinds = set(map(type, seconds))
    try:
        if kinds == {float}:
            column = [s * _US_PER_S for s in seconds]
            if max(map(abs, column)) >= _EXACT_END_US:
                return None
            dues = [
                base_us + (near if abs(us - (near := round(us))) <= abs(us) * _COARSENESS else math.ceil(us))
                for us in column
            ]
        elif kinds <= {float, int}:
            dues = [base_us + _rounded(s) for s in seconds]
        else:
            return None
    except (ValueError, OverflowError):  # not finite
        return None
    return dues if not dues or (min(dues) >= 0 and max(dues) < end_us) else None


def _rounded(seconds: float) -> int:
    if not isinstance(seconds, float):
        return seconds * _US_PER_S
    us = seconds * _US_PER_S
    if abs(us) >= _EXACT_END_US:
        raise OverflowError
    near = round(us)
    return near if abs(us - near) <= abs(us) * _COARSENESS else math.ceil(us)


def size_of(payloads: Sequence[Any], limit: int, /) -> int:
    """Return the total size of the payloads; -1 when one is not bytes, or longer than the limit."""
    if not set(map(type, payloads)) <= _BYTES:
        return -1
    sizes = [*map(len, payloads)]
    return sum(sizes) if max(sizes, default=0) <= limit else -1


def pack_payload(payload: bytes) -> bytes:
    """Pack the last field of a put."""
    size = len(payload)
    if size < 256:
        return b"\xc4%c%b" % (size, payload)
    if size < 65536:
        return b"\xc5%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\xc6%b%b" % (size.to_bytes(4, "big"), payload)


def due_at(base_us: int, seconds: Any, end_us: int, /) -> int:
    """Return `base_us` plus these seconds, as `due_column`; -1 when they are not a plain valid number."""
    if type(seconds) is not float and type(seconds) is not int:
        return -1
    try:
        due = base_us + _rounded(seconds)
    except (ValueError, OverflowError):
        return -1
    return due if 0 <= due < end_us else -1


def pack_puts(
    low: bytes, seq: int, dues_us: Sequence[int], middle: bytes | Sequence[bytes], payloads: Sequence[bytes], /
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return a body of puts, their concatenated ids, the least and the greatest id.

    An id is a due, `low`, and a sequence number counted from `seq`. `middle` has the fields between id and payload: one
    for all puts, or one for each.
    """
    base = int.from_bytes(low, "big") | seq
    ids = [(due << 70 | base + n).to_bytes(16, "big") for n, due in enumerate(dues_us)]
    middles = repeat(middle, len(ids)) if isinstance(middle, bytes) else middle
    parts = [PUT_PREFIX + i + m + pack_payload(p) for i, m, p in zip(ids, middles, payloads, strict=True)]
    return b"".join(parts), b"".join(ids), min(ids, default=b"\xff" * 16), max(ids, default=bytes(16))


def put_frame(
    low: bytes,
    seq: int,
    due_us: int,
    enqueued_us: int,
    tail: bytes,
    payload: bytes,
    seed: int,
    offset: int,
    number: int,
    synced: int,
    /,
) -> tuple[bytes, MessageId]:
    """Return a frame with one new put, and its id. `tail` has the fields between `enqueued_us` and payload."""
    id_ = MessageId((due_us << 70 | int.from_bytes(low, "big") | seq).to_bytes(16, "big"))
    body = b"%b%b\xc0\xcf%b%b%b" % (PUT_PREFIX, id_, enqueued_us.to_bytes(8, "big"), tail, pack_payload(payload))
    return seal_frame(body, seed, offset, number, synced, 1, 0, id_, id_), id_


def pack_drops(ids: list[bytes], reason: int, /) -> bytes:
    """Return a body of drops."""
    tail = bytes([reason])
    return b"".join([DROP_PREFIX + i + tail for i in ids])


def seal_frame(
    body: bytes, seed: int, offset: int, number: int, synced: int, puts: int, drops: int, first: bytes, last: bytes, /
) -> bytes:
    """Return a frame: header, body, padding. frame.py explains the fields."""
    size = len(body)
    summed = SUMMED.pack(size, zlib.crc32(body, seed), number, synced, puts, drops, first, last)
    head = zlib.crc32(summed, seed ^ (offset >> 3 & 0xFFFFFFFF))  # mutant: no-place.2
    return b"".join((MAGIC, head.to_bytes(4, "little"), summed, body, b"\0" * (-size & 7)))


def split(body: bytes) -> list[bytes]:
    """Cut a body into records. Raises ValueError when it is not a run of msgpack values."""
    unpacker = msgpack.Unpacker(None, max_buffer_size=len(body) or 1)
    unpacker.feed(body)
    skip, tell = unpacker.skip, unpacker.tell
    size = len(body)
    records = []
    at = 0
    try:
        while at < size:
            skip()
            end = tell()
            records.append(body[at:end])
            at = end
    except Exception as exc:  # msgpack raises more than its own errors
        raise ValueError(f"not a run of records after byte {at} of a frame") from exc
    return records


def part(body: bytes, first: bytes, last: bytes, /) -> tuple[list[bytes], list[bytes]]:
    """Cut a body into puts and drops; their ids must be from `first` to `last`.

    Raises ValueError for any other content.
    """
    puts: list[bytes] = []
    drops: list[bytes] = []
    for record in split(body):
        if record[:4] == PUT_PREFIX:
            puts.append(record)
        elif record[:4] == DROP_PREFIX and len(record) == DROP_BYTES:
            drops.append(record)
        else:
            raise ValueError("a frame holds a record of an unknown kind")
    for some in (puts, drops):
        if some and (min(some)[ID] < first or max(some)[ID] > last):
            raise ValueError("the header does not fit the records")
    return puts, drops


def ids_of(records: list[bytes], /) -> list[bytes]:
    """Return the records' ids."""
    return [r[ID] for r in records]


def moved(puts: list[bytes], /) -> list[bytes]:
    """Return the puts that have moved before; one byte shows it."""
    return [p for p in puts if p[20] != _NIL]


def sort(records: list[bytes], /) -> None:
    """Sort records in place by id: their first bytes are equal."""
    records.sort()


def count_seconds(items: list[bytes], at: int, /) -> list[tuple[int, int]]:
    """Return (second, number of dues in it) for sorted ids (`at` 0) or sorted records of one kind (`at` 4)."""
    runs = []
    start = 0
    while start < len(items):
        first = items[start]
        second = (int.from_bytes(first[at : at + 8], "big") >> 6) // _US_PER_S
        end = first[:at] + ((second + 1) * _US_PER_S << 6).to_bytes(8, "big")
        upto = bisect_left(items, end, start)
        runs.append((second, upto - start))
        start = upto
    return runs


def plain_messages(puts: list[bytes], start: int, end: int, limit: int, /) -> tuple[list[Any], bool]:
    """Return the messages of puts[start:end], and whether the list is complete.

    It has None for each put that needs `record.unpack_put`: in Python all puts; in C those that have moved, have
    headers, or are not a message.
    """
    return [None] * len(puts[start:end]), start >= min(end, len(puts))
