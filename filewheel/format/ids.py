"""Ids: the source of a writer's ids, and the ids of a batch (docs/format.md, 6).

Each open handle is a writer: a random name of 40 bits, and a sequence of 30 bits, each number used once.
Invariant: no id is issued twice. A sequence starts at a random number in its lower half, so two writers with one name
still share no ids.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from filewheel.env import Entropy
from filewheel.message import ID_BYTES, ID_END, LOW_BITS, SEQ_BITS, WRITER_BITS, MessageId, base32, receipt

SEQ_END = 1 << SEQ_BITS


class IdSource:
    """One writer. Not thread-safe: the journal's lock guards it."""

    __slots__ = ("low", "name", "seq")

    def __init__(self, entropy: Entropy) -> None:
        number = int.from_bytes(entropy(WRITER_BITS // 8), "big")
        self.name = base32(number, 8)
        self.low = (number << SEQ_BITS).to_bytes(ID_BYTES, "big")
        """An id of this writer without due and sequence number."""
        self.seq = int.from_bytes(entropy(4), "big") % (SEQ_END // 2)  # mutant: same-ids
        """The next sequence number."""

    def has(self, count: int) -> bool:
        """Return whether `count` ids are left."""
        return self.seq + count <= SEQ_END

    def take(self, count: int) -> int:
        """Take the next `count` sequence numbers; return the first."""
        first = self.seq
        self.seq = first + count
        return first

    def ids_at(self, dues_us: Iterable[int], seq: int) -> list[MessageId]:
        """Return the ids with these dues and consecutive sequence numbers."""
        low = int.from_bytes(self.low, "big") | seq
        return [MessageId(((due << LOW_BITS) + low + n).to_bytes(ID_BYTES, "big")) for n, due in enumerate(dues_us)]

    def id_at(self, due_us: int, seq: int) -> MessageId:
        """Return the id with this due and sequence number."""
        return MessageId((due_us << LOW_BITS | int.from_bytes(self.low, "big") | seq).to_bytes(ID_BYTES, "big"))


def are_of(writer: str, ids: Iterable[bytes]) -> bool:
    """Return whether this writer gave out all of these ids. Cost: about 0.2 µs each.

    An id is given out once, and the frame that puts it is of its writer's journal, or also drops what it moves. A put
    in any other frame was given out before (`add`, a backup): its message may be here, or may have been dropped.
    """
    writers = {(i[7] & 63, i[8:12], i[12] >> 6): i for i in ids}
    return not writers or (len(writers) == 1 and MessageId(next(iter(writers.values()))).writer == writer)


class Mint:
    """Makes ids for messages that another thread or process writes later. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writer = IdSource(os.urandom)

    def id_at(self, due_us: int) -> MessageId:
        """Return a new id."""
        with self._lock:
            if not self._writer.has(1):
                self._writer = IdSource(os.urandom)
            return self._writer.id_at(due_us, self._writer.take(1))

    def renew(self) -> None:
        """In a forked child: draw another writer, or it would give the same ids as its parent."""
        self.__init__()  # type: ignore[misc]


MINT = Mint()
os.register_at_fork(after_in_child=MINT.renew)


class Ids(Sequence[MessageId]):
    """A lazy sequence of message ids."""

    def __init__(
        self, ids: bytes, copies: int = 1, least: bytes = ID_END, *, kept: frozenset[int] = frozenset()
    ) -> None:
        self._ids = ids
        self.kept = kept
        """The indexes of existing ids: their key was in use, so nothing was enqueued."""
        self.least = least
        """The earliest id of an enqueued batch; unknown for a part of a batch."""
        self.copies = copies
        """The number of wheels that held every message when the call returned."""

    def __len__(self) -> int:
        return len(self._ids) // ID_BYTES

    def __iter__(self) -> Iterator[MessageId]:
        ids, copies = self._ids, self.copies
        made = (MessageId(ids[at : at + ID_BYTES]) for at in range(0, len(ids), ID_BYTES))
        if copies == 1 and not self.kept:
            return made
        return (receipt(id_, copies, kept=n in self.kept) for n, id_ in enumerate(made))

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Ids: ...
    def __getitem__(self, index: int | slice) -> MessageId | Ids:
        places = range(0, len(self._ids), ID_BYTES)[index]
        if isinstance(places, range):
            kept = frozenset(n for n, at in enumerate(places) if at // ID_BYTES in self.kept)
            return Ids(b"".join(self._ids[at : at + ID_BYTES] for at in places), self.copies, kept=kept)
        is_kept = places // ID_BYTES in self.kept
        return receipt(MessageId(self._ids[places : places + ID_BYTES]), self.copies, kept=is_kept)

    def __contains__(self, item: object) -> bool:
        return isinstance(item, bytes) and any(item == id_ for id_ in self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return self._ids == other._ids
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} ids>"
