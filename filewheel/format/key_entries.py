"""The bytes of a file of the index of keys: a run of entries, each saying "this id may hold this key".

    magic | hash of the key | id | crc        4 + 16 + 16 + 4 bytes

An entry is found at any alignment and counts only when its checksum holds, so a torn entry hides no other. A file is
read whole, so its length is checked first.
Format: docs/format.md, 13.
Invariant: every entry that is yielded was written as an entry, to this file of this wheel.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MAGIC = b"\xf5FWK"
ENTRY_BYTES = 40
BUCKET_BYTES_MAX = 1 << 28
"""A longer file is no bucket: 256 of this size list more than 1.7 billion keys."""
_HASH = slice(4, 20)
_ID = slice(20, 36)
_NO_KEY = bytes(16)
"""The hash in the first entry of a file that filewheel 0.2 made: a mark."""


@dataclass(frozen=True)
class KeyEntry:
    """One entry of a bucket."""

    offset: int
    hash: bytes
    id: bytes


@dataclass(frozen=True)
class UnreadableBytes:
    """Bytes of a bucket that are no entry."""

    offset: int
    end: int


def pack_entry(seed: int, hash_: bytes, id_: bytes) -> bytes:
    """Pack an entry of the bucket with this seed."""
    return b"%b%b%b%b" % (MAGIC, hash_, id_, zlib.crc32(hash_ + id_, seed).to_bytes(4, "little"))


def listed(data: bytes, seed: int, hash_: bytes) -> list[bytes]:
    """Return the ids that are listed for a key, in the order in which they were last written."""
    ids: dict[bytes, None] = {}
    at = data.find(hash_)
    while at >= 0:
        id_ = _entry_at(data, at - 4, seed)
        if id_ is not None:
            ids.pop(id_, None)
            ids[id_] = None
        at = data.find(hash_, at + 1)
    return list(ids)


def entries(data: bytes, seed: int) -> Iterator[KeyEntry | UnreadableBytes]:
    """Yield a bucket's entries, and the unreadable bytes between them. Zeros at the beginning or end are skipped."""
    at = bad = len(data) - len(data.lstrip(b"\0"))
    while at < len(data):
        id_ = _entry_at(data, at, seed)
        if id_ is None:
            at = data.find(MAGIC, at + 1)
            at = len(data) if at < 0 else at
            continue
        if at > bad:
            yield UnreadableBytes(bad, at)
        hash_ = data[at : at + ENTRY_BYTES][_HASH]
        if hash_ != _NO_KEY:
            yield KeyEntry(at, hash_, id_)
        at = bad = at + ENTRY_BYTES
    end = len(data.rstrip(b"\0"))
    if end > bad:
        yield UnreadableBytes(bad, end)


def _entry_at(data: bytes, at: int, seed: int) -> bytes | None:
    """Return the id of the entry that starts here; None when none does."""
    entry = data[at : at + ENTRY_BYTES] if at >= 0 else b""
    if len(entry) < ENTRY_BYTES or not entry.startswith(MAGIC):
        return None
    if zlib.crc32(entry[4:36], seed) != int.from_bytes(entry[36:], "little"):
        return None
    return entry[_ID]
