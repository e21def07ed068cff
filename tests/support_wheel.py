"""What many tests need: a clock that stands still, a directory, a put, and the frames of some bytes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from filewheel.disk.directory import Directory, create_directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.keeper_lock import holder
from filewheel.format.frame import Frame, Gap, Pread, Scanner
from filewheel.format.record import PUT_PREFIX, pack_middle, pack_payload
from filewheel.laps.additions import Additions
from filewheel.laps.slot import frames
from filewheel.message import US_PER_S, MessageId

NOW_S = 1_800_000_000
NOW_US = NOW_S * US_PER_S


class StillClock:
    """A clock that stands still until told otherwise."""

    def __init__(self, now_us: int = NOW_US) -> None:
        self.wall_us = now_us
        self.run_us = 0

    def now_us(self) -> int:
        return self.wall_us

    def steady_us(self) -> int:
        self.run_us += 1
        return self.run_us


def keeper_pid(path: Path) -> int | None:
    """Return the process that is the keeper, when there is one and its note names it."""
    held = holder(open_directory(path, write=False))
    return held and held.pid


def make_directory(path: Path, *, slots: int = 60) -> Directory:
    """Make a wheel's directory with nothing in it."""
    create_directory(path, slots=slots, now_us=NOW_US, env=SYSTEM.using(entropy=lambda size: bytes(range(size))))
    return open_directory(path, write=True)


def an_id(second: int, seq: int = 0, *, writer: int = 1, us: int = 0) -> MessageId:
    """Return an id that is due in a second."""
    return MessageId.make(second * US_PER_S + us, writer, seq)


def a_put(id_: bytes, payload: bytes = b"x", *, root: bytes | None = None) -> bytes:
    """Return a packed put."""
    return PUT_PREFIX + id_ + pack_middle(NOW_US, "", None, root=root) + pack_payload(payload)


def reading(data: bytes) -> Pread:
    """Return a pread of some bytes."""
    return lambda size, offset: data[offset : offset + size]


def scan(data: bytes, seed: int, *, start: int = 0) -> list[Frame | Gap]:
    """Return the frames and gaps of some bytes."""
    return list(Scanner(reading(data), start, len(data), seed))


def frames_of(items: Iterable[Frame | Gap]) -> list[Frame]:
    """Return the frames."""
    return [item for item in items if isinstance(item, Frame)]


def gaps_of(items: Iterable[Frame | Gap]) -> list[Gap]:
    """Return the gaps."""
    return [item for item in items if isinstance(item, Gap)]


def put_file(directory: Directory, name: str, data: bytes) -> None:
    """Write a file of a wheel whole, with its directory."""
    place = Path(directory.path) / name
    place.parent.mkdir(exist_ok=True, mode=0o700)
    place.write_bytes(data)


def append(directory: Directory, name: str, length: int, puts: list[bytes], drops: list[bytes], *, deal: int) -> int:
    """Append records to a file at its covered length, as a deal does; return the new length. Nothing is flushed."""
    data = frames(puts, drops, seed=directory.seed(name), offset=length, number=deal)
    added = Additions(directory)
    try:
        added.append(name, length, data)
    finally:
        added.close()
    return length + len(data)


def flip(data: bytes, bit: int) -> bytes:
    """Return the bytes with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
