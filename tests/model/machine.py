"""A machine whose disk can lose power after any operation, behind the seam that the real disk is behind.

What a file system may do until the matching flush is modelled, not what one file system happens to do: writes of a
file persist in any subset, torn at any byte or sector, as zeros or garbage, with or without their size; directory
entries, unlinks and renames persist in any subset (a rename is atomic); flushing a file does not persist its name.

A `Machine` is the state that survives processes, page cache included. `process.py` is what one process sees of it,
`crashes.py` the states that a power cut may leave. Invariant: what a flush returned for is in every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Inode:
    """A file: what is durable, what was written since, and what a reader sees now."""

    __slots__ = ("data", "durable", "errors", "links", "locked_by", "number", "told", "writes")

    def __init__(self, number: int, durable: bytes = b"") -> None:
        self.number = number
        self.durable = durable
        self.data = bytearray(durable)
        self.writes: list[tuple[int, bytes | None]] = []
        self.links = 0
        self.locked_by: tuple[object, int] | None = None
        self.errors = 0
        """How often write-back has failed."""
        self.told = 0
        """Up to which of those failures anybody was told."""

    def write(self, offset: int, data: bytes) -> None:
        if offset > len(self.data):
            self.data.extend(bytes(offset - len(self.data)))
        self.data[offset : offset + len(data)] = data
        self.writes.append((offset, data))

    def truncate(self, size: int) -> None:
        resize(self.data, size)
        self.writes.append((size, None))

    def flush(self) -> None:
        if self.errors:  # what was lost stays lost, though it can still be read
            durable = bytearray(self.durable)
            for offset, data in self.writes:
                if data is None:
                    resize(durable, offset)
                else:
                    durable.extend(bytes(max(0, offset - len(durable))))
                    durable[offset : offset + len(data)] = data
            self.durable = bytes(durable)
        else:
            self.durable = bytes(self.data)
        self.writes = []

    def lose(self, *, evict: bool) -> None:
        """Fail to write back: the pages count as clean, but their data will never reach the disk.

        Until they are evicted they can still be read.
        """
        self.writes = []
        self.errors += 1
        if evict:
            self.data = bytearray(self.durable)


class Dir:
    """A directory: durable entries, and the changes since, each an object that may concern two directories."""

    __slots__ = ("changes", "durable", "entries")

    def __init__(self) -> None:
        self.durable: dict[str, Inode | Dir] = {}
        self.entries: dict[str, Inode | Dir] = {}
        self.changes: list[Change] = []


class Change:
    """One atomic change of names: [(directory, name, what it names afterwards or None)]."""

    __slots__ = ("effects",)

    def __init__(self, *effects: tuple[Dir, str, Inode | Dir | None]) -> None:
        self.effects = effects
        for directory, name, target in effects:
            apply(directory.entries, name, target)
        for directory in {id(d): d for d, _, _ in effects}.values():
            directory.changes.append(self)

    def persist(self) -> None:
        for directory, name, target in self.effects:
            apply(directory.durable, name, target)
            if self in directory.changes:
                directory.changes.remove(self)


def apply(entries: dict[str, Any], name: str, target: Inode | Dir | None) -> None:
    if target is None:
        entries.pop(name, None)
    else:
        entries[name] = target


def resize(data: bytearray, size: int) -> None:
    if len(data) > size:
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class Machine:
    """The disk and page cache of one machine."""

    def __init__(self) -> None:
        self.root = Dir()
        self.next_inode = 1
        self.ops = 0
        self.on_op: Callable[[str, str], None] | None = None
        """Called after every operation that changes or flushes something: the place to switch, or to crash."""
        self.before_op: Callable[[str, str], None] | None = None
        """Called before every operation: the place to let it fail."""
        self.after_flush: Callable[[], None] | None = None
        """Called when a flush has done its work and has not returned yet: the place to let others write."""
        self.mid_read: Callable[[str, str], None] | None = None
        """Called between two pages of a read: the place to let others write."""
        self.blocked: Callable[[], None] | None = None
        """Called when a process has to wait for a lock."""
        self.fault: Callable[[str, str], int | None] | None = None
        """Asked before each operation that changes or flushes: the error it fails with, or None."""
        self.flip: Callable[[str, bytes], bytes] | None = None
        """What a read returns instead of what is there."""
        self.budget_bytes: int | None = None
        """How much all files together may hold; None for as much as anyone wants."""
        self.errors = 0
        """How often write-back has failed, anywhere."""

    def did(self, kind: str, name: str) -> None:
        self.ops += 1
        if self.on_op is not None:
            self.on_op(kind, name)

    def used_bytes(self) -> int:
        """Return how much all files together hold."""
        found: dict[int, int] = {}

        def walk(directory: Dir) -> None:
            for target in directory.entries.values():
                if isinstance(target, Dir):
                    walk(target)
                else:
                    found[target.number] = len(target.data)

        walk(self.root)
        return sum(found.values())

    def lose_all(self, *, evict: bool) -> None:
        """Fail to write back everything that is dirty."""
        self.errors += 1

        def walk(directory: Dir) -> None:
            for target in directory.entries.values():
                if isinstance(target, Dir):
                    walk(target)
                elif target.writes:
                    target.lose(evict=evict)

        walk(self.root)
