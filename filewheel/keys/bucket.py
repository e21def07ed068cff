"""The bytes of one file of the index of keys: a run of entries, each saying "this id may hold this key".

    magic | hash of the key | id | crc        4 + 16 + 16 + 4 bytes

An entry is found at any alignment and counts only when its checksum holds, so a torn entry hides no other. The first
entry is a mark, with zeros for hash and id. A file that replaces another has zeros there until it is marked. The file
of recent entries (recent.py) has random bytes for the id of its mark.
After the last entry there may be zeros that were written ahead. A file is read whole, so its length is checked first.
Format: docs/format.md, 13.
Invariant: every entry that is yielded was written as an entry, to this file of this wheel.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from filewheel.env import Disk
from filewheel.errors import Damaged

MAGIC = b"\xf5FWK"
ENTRY_BYTES = 40
FILL_BYTES = 4096
"""How far zeros are written ahead: a flush need not commit a new size for each entry."""
BUCKET_BYTES_MAX = 1 << 28
"""A longer file is no bucket: 256 of this size list more than 1.7 billion keys."""
_HASH = slice(4, 20)
_ID = slice(20, 36)
_MARK = bytes(32)
_ENTRY = struct.Struct("<4s32sI")


@dataclass(frozen=True)
class KeyEntry:
    """One entry of a bucket."""

    offset: int
    hash: bytes
    id: bytes


@dataclass(frozen=True)
class Unreadable:
    """Bytes of a bucket that are no entry."""

    offset: int
    end: int


def read_bucket(disk: Disk, fd: int, place: str, most: int = BUCKET_BYTES_MAX) -> bytes:
    """Read an open bucket whole. Raises OSError, Damaged with nothing read when it is too long to be one."""
    size = disk.size(fd)
    if size > most:
        raise Damaged(
            f"{size} bytes are more than a file of keys can have ({most}): its keys cannot be looked up",
            path=place,
            hint="stop the keeper, then `filewheel repair` makes it again",
        )
    return disk.pread(fd, size, 0)


def pack_entry(seed: int, hash_: bytes, id_: bytes) -> bytes:
    """Pack an entry of the bucket with this seed."""
    return b"%b%b%b%b" % (MAGIC, hash_, id_, zlib.crc32(hash_ + id_, seed).to_bytes(4, "little"))


def pack_mark(seed: int) -> bytes:
    """Pack the mark: the name of this file is durable."""
    return pack_entry(seed, _MARK[:16], _MARK[16:])


def is_marked(data: bytes, seed: int) -> bool:
    """Return whether a file begins with a mark."""
    return data.startswith(MAGIC + _MARK[:16]) and _entry_at(data, 0, seed) is not None


def run_of(data: bytes, seed: int, start: int) -> tuple[list[tuple[bytes, bytes]], int]:
    """Return the consecutive entries (hash, id) from an offset on, and where they end."""
    pairs = []
    crc32 = zlib.crc32
    for magic, both, crc in _ENTRY.iter_unpack(data[start : len(data) - (len(data) - start) % ENTRY_BYTES]):
        if magic != MAGIC or crc32(both, seed) != crc:
            break
        pairs.append((both[:16], both[16:]))
    return pairs, start + len(pairs) * ENTRY_BYTES


def end_of(data: bytes, seed: int) -> int:
    """Return where the next entry goes: after everything but zeros written ahead."""
    at = data.rfind(MAGIC)
    end = at + ENTRY_BYTES
    # Nearly always only zeros follow an entry. `rstrip` would check them one by one.
    if _entry_at(data, at, seed) is not None and data.endswith(bytes(len(data) - end)):
        return end
    end = len(data.rstrip(b"\0"))
    # An entry may itself end with zeros.
    low = max(0, end - ENTRY_BYTES)
    at = data.rfind(MAGIC, low)
    while at >= 0:
        if _entry_at(data, at, seed) is not None:
            return max(end, at + ENTRY_BYTES)
        at = data.rfind(MAGIC, low, at + len(MAGIC) - 1)
    return max(end, ENTRY_BYTES)


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


def _entry_at(data: bytes, at: int, seed: int) -> bytes | None:
    """Return the id of the entry that starts here; None when none does."""
    entry = data[at : at + ENTRY_BYTES] if at >= 0 else b""
    if len(entry) < ENTRY_BYTES or not entry.startswith(MAGIC):
        return None
    if zlib.crc32(entry[4:36], seed) != int.from_bytes(entry[36:], "little"):
        return None
    return entry[_ID]


def entries(data: bytes, seed: int) -> Iterator[KeyEntry | Unreadable]:
    """Yield a bucket's entries, and the unreadable bytes between them.

    Zeros in place of the mark and at the end are skipped.
    """
    at = bad = 0 if data[:ENTRY_BYTES].strip(b"\0") else min(len(data), ENTRY_BYTES)
    while at < len(data):
        id_ = _entry_at(data, at, seed)
        if id_ is None:
            at = data.find(MAGIC, at + 1)
            at = len(data) if at < 0 else at
            continue
        if at > bad:
            yield Unreadable(bad, at)
        hash_ = data[at : at + ENTRY_BYTES][_HASH]
        if hash_ != _MARK[:16]:
            yield KeyEntry(at, hash_, id_)
        at = bad = at + ENTRY_BYTES
    end = len(data.rstrip(b"\0"))
    if end > bad:
        yield Unreadable(bad, end)
