"""A second reader of wheels, written from docs/format.md alone: it shares no code with filewheel.

It knows nothing of locks, deals or repairs. It reads a directory at rest and says what is pending in it, so it tells
whether the page is enough to write a reader from, and whether the page and the library agree.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

MAGIC = bytes.fromhex("f5465731")
HEADER = struct.Struct("<4s I I I Q Q I I 16s 16s")  # section 5
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
SEGMENT = re.compile(rf"([{ALPHABET}]{{8}})-([0-9]{{6,12}})\.log")


@dataclass
class Frame:
    """A frame that verified, in the words of section 5."""

    at: int
    end: int
    head_sum: int
    size: int
    body_sum: int
    number: int
    synced: int
    puts: int
    drops: int
    first: bytes
    last: bytes
    body: bytes


@dataclass
class Contents:
    """What a wheel holds."""

    puts: dict[bytes, list[Any]] = field(default_factory=dict)
    drops: set[bytes] = field(default_factory=set)
    gaps: list[tuple[str, int, int]] = field(default_factory=list)

    def pending(self) -> dict[bytes, list[Any]]:
        """Section 11."""
        return {i: self.puts[i] for i in sorted(self.puts.keys() - self.drops)}


def settings(data: bytes) -> dict[str, Any]:
    """Section 3: check and read wheel.json."""
    mark = b',\n  "crc32": '
    head, _, tail = data.rpartition(mark)
    assert tail.endswith(b"\n}\n")
    assert zlib.crc32(head + b"\n}") == int(tail[:-3]), "wheel.json is damaged"
    return dict(json.loads(data))


def seed_of(salt: bytes, name: str) -> int:
    """Section 4."""
    return zlib.crc32(name.encode("ascii"), zlib.crc32(salt))


def frame_at(data: bytes, at: int, seed: int) -> Frame | None:
    """Section 5, "To verify"."""
    head = data[at : at + 72]
    if len(head) < 72:
        return None
    magic, head_sum, size, body_sum, number, synced, puts, drops, first, last = HEADER.unpack(head)
    if magic != MAGIC or zlib.crc32(head[8:], seed ^ (at // 8 % 2**32)) != head_sum or size > 1 << 28:
        return None
    body = data[at + 72 : at + 72 + size]
    if len(body) < size or zlib.crc32(body, seed) != body_sum:
        return None
    end = (at + 72 + size + 7) // 8 * 8
    return Frame(at, end, head_sum, size, body_sum, number, synced, puts, drops, first, last, body)


def frames(data: bytes, start: int, end: int, seed: int) -> tuple[list[Frame], list[tuple[int, int]]]:
    """Section 5: the frames and the gaps between two offsets."""
    data = data[:end]
    found, gaps, at, gap = [], [], start, -1
    while at < len(data):
        frame = frame_at(data, at, seed)
        if frame is None:
            gap, at = (at if gap < 0 else gap), at + 8
            continue
        if gap >= 0:
            gaps.append((gap, at))
            gap = -1
        found.append(frame)
        at = frame.end
    if gap >= 0 and data[gap:].strip(b"\0"):
        gaps.append((gap, len(data)))
    return found, gaps


def records(body: bytes) -> list[list[Any]]:
    """Section 7: the records of a body, unpacked."""
    unpacker = msgpack.Unpacker(raw=False)
    unpacker.feed(body)
    found = list(unpacker)
    for record in found:
        assert (record[0], len(record)) in {(1, 8), (2, 3)}
    return found


def id_text(id_: bytes) -> str:
    """Section 6."""
    number = int.from_bytes(id_, "big")
    return "".join(ALPHABET[number >> 5 * n & 31] for n in reversed(range(26)))


def due_of(id_: bytes) -> int:
    """Section 6."""
    return int.from_bytes(id_[:8], "big") >> 6


def read_wheel(path: Path) -> Contents:
    """Sections 9 to 11, for a wheel at rest with a checkpoint that verifies."""
    known = settings((path / "wheel.json").read_bytes())
    salt = bytes.fromhex(known["salt"])
    checkpoint = frame_at((path / "checkpoint").read_bytes(), 0, seed_of(salt, "checkpoint"))
    assert checkpoint is not None
    assert (checkpoint.puts, checkpoint.drops, checkpoint.first, checkpoint.last) == (0, 0, b"\xff" * 16, bytes(16))
    fields = msgpack.unpackb(checkpoint.body)
    assert list(fields)[-6:] == ["deal", "keeper", "positions", "laps", "slots", "unmatched"]
    assert fields.get("format", 1) <= known["format"]
    assert fields["deal"] == checkpoint.number
    contents = Contents()
    unmatched = fields["unmatched"]
    contents.drops.update(unmatched[i : i + 16] for i in range(0, len(unmatched), 16))
    for name, length in lengths(fields, known["slots"]).items():
        take(path, name, 0, length, salt, contents)
    for place in sorted((path / "journal").iterdir()):
        match = SEGMENT.fullmatch(place.name)
        if match:
            segment, offset, _ = fields["positions"].get(match[1], [1, 0, 0])
            n = int(match[2])
            if n >= segment:
                take(path, f"journal/{place.name}", offset if n == segment else 0, 1 << 60, salt, contents)
    return contents


@dataclass
class Missing:
    """Frames of a writer that are not there."""

    writer: str
    first: int
    last: int
    synced: int

    @property
    def is_damage(self) -> bool:
        """Section 8: one of them had been durable."""
        return self.synced >= self.first


def missing_frames(path: Path) -> list[Missing]:
    """Section 8, the pseudo-code: what is missing from the journals, and whether it had been durable."""
    salt = bytes.fromhex(settings((path / "wheel.json").read_bytes())["salt"])
    checkpoint = frame_at((path / "checkpoint").read_bytes(), 0, seed_of(salt, "checkpoint"))
    assert checkpoint is not None
    positions = msgpack.unpackb(checkpoint.body)["positions"]
    found: list[Missing] = []
    numbers: dict[str, int | None] = {}
    for place in sorted((path / "journal").iterdir()):
        match = SEGMENT.fullmatch(place.name)
        if not match:
            continue
        writer, n = match[1], int(match[2])
        segment, offset, number = positions.get(writer, [1, 0, 0])
        if n < segment:
            continue
        m = numbers.setdefault(writer, number if writer in positions else 0 if n == 1 else None)
        data, seed = place.read_bytes(), seed_of(salt, f"journal/{place.name}")
        for frame in frames(data, offset if n == segment else 0, len(data), seed)[0]:
            for one in found:
                if one.writer == writer:
                    one.synced = max(one.synced, frame.synced)
            last = frame.number if frame.puts == frame.drops == 0 else frame.number - 1
            if m is not None and last > m:
                found.append(Missing(writer, m + 1, last, frame.synced))
            m = numbers[writer] = frame.number
    return found


def lengths(fields: dict[str, Any], slots: int) -> dict[str, int]:
    """Sections 2 and 10: the names of the laps and slots, and their covered lengths."""
    if "format" in fields:
        laps, seconds = (list(zip(*(fields[k][i::4] for i in range(3)), strict=True)) for k in ("laps", "slots"))
    else:  # section 16: format 1
        laps, seconds = (
            [(n, 0, end) for n, end in zip(fields[k][::2], fields[k][1::2], strict=True)] for k in ("laps", "slots")
        )
    found = {f"laps/{lap}{f'-{made}' if made else ''}.lap": end for lap, made, end in laps}
    return found | {f"laps/{s // slots}/{s}{f'-{made}' if made else ''}.slot": end for s, made, end in seconds}


def take(path: Path, name: str, start: int, end: int, salt: bytes, contents: Contents) -> None:
    """Take a file's records."""
    data = (path / name).read_bytes()
    assert end == 1 << 60 or len(data) + 7 >= end, name
    found, gaps = frames(data, start, end, seed_of(salt, name))
    contents.gaps += [(name, *gap) for gap in gaps]
    for frame in found:
        inside = records(frame.body)
        ids = [r[1] for r in inside]
        assert [r[0] for r in inside].count(1) == frame.puts
        assert [r[0] for r in inside].count(2) == frame.drops
        assert (frame.first, frame.last) == ((min(ids), max(ids)) if ids else (b"\xff" * 16, bytes(16)))
        contents.puts.update({r[1]: r for r in inside if r[0] == 1})
        contents.drops.update(r[1] for r in inside if r[0] == 2)
