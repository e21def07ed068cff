"""What a disk may hold after a power cut: one state drawn at random, or all of them one after the other.

A unit is one thing that may or may not have reached the disk: a change of names, or a write since the file's last
flush. A state is a fate for each unit. Random states tear writes in every way; listed ones know four fates for a write
(lost, whole, its first half, zeros) and every subset of the changes of names, as long as they are few enough.
Invariant: what was flushed has no fate: it is there.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator

from tests.model.machine import Change, Dir, Inode, Machine, apply, resize

LOST, WHOLE, HALF, ZEROS = range(4)


class RandomFates:
    """Draws what became of each unit: "none", "all", or "some" of them."""

    def __init__(self, rng: random.Random, mode: str) -> None:
        self._rng = rng
        self._mode = mode
        self._changes: dict[int, bool] = {}

    def change(self, change: Change) -> bool:
        """Tell whether a change of names persisted."""
        if self._mode != "some":
            return self._mode == "all"
        return self._changes.setdefault(id(change), self._rng.random() < 0.5)

    def write(self, inode: Inode, index: int, offset: int, data: bytes) -> bytes | None:
        """Return what is left of a write; None when nothing is, not even its size."""
        if self._mode != "some":
            return data if self._mode == "all" else None
        fate = self._rng.random()
        if fate < 0.35:
            return None
        return torn(data, offset, self._rng) if fate < 0.6 else data

    def truncation(self, inode: Inode, index: int) -> bool:
        """Tell whether a truncation persisted."""
        return self._mode == "all" or (self._mode == "some" and self._rng.random() < 0.65)


def torn(data: bytes, offset: int, rng: random.Random) -> bytes:
    """Return what is left of a write that a power cut met."""
    how = rng.randrange(5)
    if how == 0:  # its beginning, at any byte
        return data[: rng.randrange(len(data) + 1)]
    if how == 1:  # its size, and zeros for its data
        return bytes(len(data))
    if how == 2:  # its size, and garbage
        return rng.randbytes(len(data))
    # Some of its sectors; the others as zeros.
    sector = 512 if how == 3 else 4096 if len(data) > 4096 else 64
    out = bytearray(len(data))
    at = 0
    while at < len(data):
        end = min(len(data), ((offset + at) // sector + 1) * sector - offset)
        if rng.random() < 0.5:
            out[at:end] = data[at:end]
        at = end
    return bytes(out)


class ListedFates:
    """Gives each unit the fate that a list says."""

    def __init__(self, changes: dict[int, int], writes: dict[tuple[int, int], int]) -> None:
        self._changes = changes
        self._writes = writes

    def change(self, change: Change) -> bool:
        return self._changes[id(change)] != LOST

    def write(self, inode: Inode, index: int, offset: int, data: bytes) -> bytes | None:
        fate = self._writes[inode.number, index]
        if fate == HALF:
            return data[: len(data) // 2]
        return (None, data, b"", bytes(len(data)))[fate]

    def truncation(self, inode: Inode, index: int) -> bool:
        return self._writes[inode.number, index] != LOST


Fates = RandomFates | ListedFates


def crash(machine: Machine, fates: Fates) -> Machine:
    """Return the machine after a power cut: a new one, in the state that the fates make."""
    after = Machine()
    after.next_inode = machine.next_inode
    files: dict[int, Inode] = {}

    def copy(old: Dir) -> Dir:
        new = Dir()
        entries = dict(old.durable)
        for change in old.changes:
            if fates.change(change):
                for directory, name, target in change.effects:
                    if directory is old:
                        apply(entries, name, target)
        for name, target in entries.items():
            if isinstance(target, Dir):
                new.durable[name] = copy(target)
            else:
                if target.number not in files:
                    files[target.number] = Inode(target.number, _content(target, fates))
                files[target.number].links += 1
                new.durable[name] = files[target.number]
        new.entries = dict(new.durable)
        return new

    after.root = copy(machine.root)
    return after


def _content(inode: Inode, fates: Fates) -> bytes:
    """Return what a file holds after a power cut."""
    if not inode.writes:
        return inode.durable
    data = bytearray(inode.durable)
    for index, (offset, what) in enumerate(inode.writes):
        if what is None:
            if fates.truncation(inode, index):
                resize(data, offset)
            continue
        kept = fates.write(inode, index, offset, what)
        if kept is None:
            continue
        if offset > len(data):
            data.extend(bytes(offset - len(data)))
        data[offset : offset + len(kept)] = kept
    return bytes(data)


def crash_at_random(machine: Machine, rng: random.Random, mode: str) -> Machine:
    """Return the machine after a power cut that kept "none", "all" or "some" of what was not flushed."""
    return crash(machine, RandomFates(rng, mode))


def crash_everyhow(machine: Machine, limit: int, rng: random.Random) -> Iterator[Machine]:
    """Yield the machine after every power cut there is; beyond `limit`, after the plain ones and a sample."""
    units = list(_units(machine))
    choices: list[tuple[int, ...]] = [c for _, c in units]
    total = 1
    for c in choices:
        total *= len(c)
    if total <= limit:
        combinations: Iterator[tuple[int, ...]] = itertools.product(*choices)
    else:
        combinations = _sample(choices, limit, rng)
    for fates in combinations:
        changes = {key: f for (key, _), f in zip(units, fates, strict=True) if isinstance(key, int)}
        writes = {key: f for (key, _), f in zip(units, fates, strict=True) if isinstance(key, tuple)}
        yield crash(machine, ListedFates(changes, writes))


def _units(machine: Machine) -> Iterator[tuple[int | tuple[int, int], tuple[int, ...]]]:
    seen: set[int | tuple[int, int]] = set()

    def walk(directory: Dir) -> Iterator[tuple[int | tuple[int, int], tuple[int, ...]]]:
        targets = list(directory.entries.values())
        for change in directory.changes:
            if id(change) not in seen:
                seen.add(id(change))
                yield id(change), (LOST, WHOLE)
            targets += [t for _, _, t in change.effects if t is not None]
        for target in [*targets, *directory.durable.values()]:
            if isinstance(target, Dir):
                if id(target) not in seen:
                    seen.add(id(target))
                    yield from walk(target)
                continue
            for index, (_, what) in enumerate(target.writes):
                if (target.number, index) not in seen:
                    seen.add((target.number, index))
                    yield (target.number, index), (LOST, WHOLE) if what is None else (LOST, WHOLE, HALF, ZEROS)

    yield from walk(machine.root)


def _sample(choices: list[tuple[int, ...]], limit: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """Nothing, everything, each unit alone, each unit missing, and then anything."""
    yield tuple(LOST for _ in choices)
    yield tuple(WHOLE for _ in choices)
    for i in range(len(choices)):
        yield tuple(WHOLE if j == i else LOST for j in range(len(choices)))
        yield tuple(LOST if j == i else WHOLE for j in range(len(choices)))
    for _ in range(max(0, limit - 2 - 2 * len(choices))):
        yield tuple(rng.choice(c) for c in choices)


def digest(machine: Machine) -> bytes:
    """Return what tells one state of a machine that has just crashed from another."""
    sum_ = hashlib.blake2b(digest_size=16)

    def walk(directory: Dir, path: str) -> None:
        for name, target in sorted(directory.durable.items()):
            sum_.update(f"{path}/{name}\0".encode())
            if isinstance(target, Dir):
                walk(target, f"{path}/{name}")
            else:
                sum_.update(b"%d:" % len(target.durable) + target.durable)

    walk(machine.root, "")
    return sum_.digest()
