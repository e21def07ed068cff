"""The format of an object in a bucket: what one tick, or one part of a large tick, brings to a copy.

    magic, size of the head, head (msgpack), SHA-256 of all that, bytes of files

The objects of a bucket are one chain. Each has a number, which is its name, and the digest of the head before it; a
head has the digest of its bytes. So heads alone say what a copy has, and a whole copy can be checked from its end.
A tick may be several objects, and counts with its last one. A **base** is a tick that needs nothing before it. A
**mark** is an object without bytes that begins an epoch: another wheel writes here from now on.
Invariant: the last whole tick of the chain, with all from its base on, is a state that a crash of the primary could
have left.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

import msgpack

from filewheel.errors import Damaged
from filewheel.format import layout
from filewheel.format.settings import Settings, parse_settings

MAGIC = b"fwpack1\n"
HEAD_BYTES = 1 << 16
"""So much is read of an object to find its head: most have all of it there."""
SHA_BYTES = 32
SMALL_FILES = (layout.FORKS, layout.REPEATS, layout.PAUSED)
"""The small files of a copy in a bucket."""
_FILE = re.compile(rf"({layout.JOURNAL}|{layout.LAPS}(/[A-Za-z0-9-]+)?)/[A-Za-z0-9-]+\.[a-z]+")
_NAME = re.compile(r"(\d{12})\.pack")
_FIXED_BYTES = len(MAGIC) + 4

Piece = tuple[str, int, int, int]
"""(file, offset, length, CRC of the last 4 KiB of them): the bytes follow each other in the object."""
TAIL_BYTES = 4096


def object_name(number: int) -> str:
    """Name an object of a bucket: the names sort as the numbers do."""
    return f"{number:012d}.pack"


def parse_object_name(name: str) -> int | None:
    """Read the number of an object from its name; None when it is something else."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def piece_of(name: str, offset: int, data: bytes) -> Piece:
    """Return what a head says of some bytes."""
    return name, offset, len(data), zlib.crc32(data[-TAIL_BYTES:])


@dataclass(frozen=True)
class PackHead:
    """All of an object but the bytes of files."""

    number: int
    settings: bytes
    """wheel.json of the primary."""
    epoch: int
    writer: str
    """Where the primary is, for a person: host and path."""
    place: str
    """The same for a comparison: it stays the same as long as nobody moves or clones the directory."""
    previous: bytes = b""
    """The digest of the head of the object before."""
    base: int = 0
    """The first object of the base that this needs; 0 when it needs none, as a mark."""
    first: int = 0
    """The first object of this tick."""
    again: int = 0
    """The tick was begun again with this object: parts of journals before it do not count."""
    is_last: bool = False
    marks: list[int] = field(default_factory=list)
    """The marks so far, which are never deleted: one that has missed them is to meet one."""
    puts: list[Piece] = field(default_factory=list)
    """Bytes of laps and slots."""
    parts: list[Piece] = field(default_factory=list)
    """Bytes of journals."""
    small: list[tuple[str, bytes]] = field(default_factory=list)
    checkpoint: bytes = b""
    gone: list[str] = field(default_factory=list)
    """Files to remove."""
    body: bytes = b""
    """The digest of the bytes."""

    @property
    def is_mark(self) -> bool:
        """Whether this is a mark."""
        return not self.base

    @property
    def size(self) -> int:
        """How many bytes of files the object has."""
        return sum(length for _, _, length, _ in (*self.puts, *self.parts))

    @property
    def weight(self) -> int:
        """The same, with what is in the head."""
        return self.size + len(self.checkpoint) + sum(len(content) for _, content in self.small)

    def wheel(self, path: str) -> Settings:
        """Return the settings of the primary. Raises NewerFormat, Damaged."""
        return parse_settings(self.settings, path)


@dataclass(frozen=True)
class Pack:
    """An object that was read."""

    head: PackHead
    digest: bytes
    """Of the head."""
    body: memoryview

    def pieces(self) -> Iterable[tuple[str, int, memoryview, bool]]:
        """Yield (file, offset, bytes, whether it is of a journal)."""
        at = 0
        for is_part, places in ((False, self.head.puts), (True, self.head.parts)):
            for name, offset, length, _ in places:
                yield name, offset, self.body[at : at + length], is_part
                at += length


def pack(head: PackHead, pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Return an object, and the digest of its head. `pieces` are the bytes of its puts and parts."""
    body = b"".join(pieces)
    head = replace(head, body=hashlib.sha256(body).digest())
    fixed: bytes = msgpack.packb([getattr(head, one.name) for one in fields(head)])
    start = MAGIC + len(fixed).to_bytes(4, "big") + fixed
    digest = hashlib.sha256(start).digest()
    return start + digest + body, digest


def head_size(data: bytes) -> int:
    """Return how many bytes of an object are its head, by its first bytes; 0 when it is no object of this format."""
    if data[: len(MAGIC)] != MAGIC or len(data) < _FIXED_BYTES:
        return 0
    return _FIXED_BYTES + int.from_bytes(data[len(MAGIC) : _FIXED_BYTES], "big") + SHA_BYTES


def unpack_head(data: bytes, number: int, place: str) -> tuple[PackHead, bytes]:
    """Read the head of an object, and its digest. Raises Damaged."""
    size = head_size(data)
    start, digest = data[: size - SHA_BYTES], data[size - SHA_BYTES : size]
    if not size or len(data) < size or hashlib.sha256(start).digest() != digest:
        raise Damaged("the object fails its checksum", path=place)
    try:
        head = PackHead(*msgpack.unpackb(start[_FIXED_BYTES:]))
        _check(head, number)
    except (ValueError, TypeError, msgpack.UnpackException) as exc:
        raise Damaged(f"not an object of a wheel ({exc})", path=place) from exc
    return head, digest


def _check(head: PackHead, number: int) -> None:
    """Raise ValueError or TypeError unless this library may have written a head: a restore writes to its names."""
    if head.number != number:
        raise ValueError("it has another number")
    pieces = [*head.puts, *head.parts]
    for value in (head.epoch, head.base, head.first, head.again, *(n for piece in pieces for n in piece[1:])):
        if type(value) is not int or not 0 <= value < 1 << 62:
            raise ValueError(f"{value!r} is no number")
    if not 0 < head.first <= head.again <= number + 1 or head.base > number:
        raise ValueError("its tick does not begin before it")
    for name in (*(piece[0] for piece in pieces), *head.gone):
        if not _FILE.fullmatch(name):
            raise ValueError(f"{name!r} is no file of a wheel")
    if {name for name, _ in head.small} - set(SMALL_FILES):
        raise ValueError("a small file is not one")


def unpack(data: bytes, number: int, place: str) -> Pack:
    """Read an object. Raises Damaged."""
    head, digest = unpack_head(data, number, place)
    body = memoryview(data)[head_size(data) :]
    if hashlib.sha256(body).digest() != head.body or len(body) != head.size:
        raise Damaged("the object fails its checksum", path=place)
    return Pack(head, digest, body)
