"""A writer's name, and the ids that it gives out.

Each open handle is a writer of its own: a random name of 40 bits, and a sequence of 30 bits that is used up once.
Invariant: no id is given out twice; a sequence starts at random in its lower half, so that two writers that drew one
name still do not share ids.
"""

from __future__ import annotations

from collections.abc import Iterable

from filewheel.env import Entropy
from filewheel.message import ID_BYTES, LOW_BITS, SEQ_BITS, WRITER_BITS, MessageId, base32

SEQ_END = 1 << SEQ_BITS


class IdSource:
    """One writer. Not thread-safe: the journal's lock guards it."""

    __slots__ = ("low", "name", "seq")

    def __init__(self, entropy: Entropy) -> None:
        number = int.from_bytes(entropy(WRITER_BITS // 8), "big")
        self.name = base32(number, 8)
        self.low = (number << SEQ_BITS).to_bytes(ID_BYTES, "big")
        """An id of this writer without its due and its place in the sequence."""
        self.seq = int.from_bytes(entropy(4), "big") % (SEQ_END // 2)  # mutant: same-ids
        """The next place."""

    def has(self, count: int) -> bool:
        """Tell whether so many ids are left."""
        return self.seq + count <= SEQ_END

    def take(self, count: int) -> int:
        """Use up the next `count` places; return the first."""
        first = self.seq
        self.seq = first + count
        return first

    def ids_at(self, dues_us: Iterable[int], seq: int) -> list[MessageId]:
        """Return the ids with these dues, at places one after the other."""
        low = int.from_bytes(self.low, "big") | seq
        return [MessageId(((due << LOW_BITS) + low + n).to_bytes(ID_BYTES, "big")) for n, due in enumerate(dues_us)]

    def id_at(self, due_us: int, seq: int) -> MessageId:
        """Return the id with this due and place."""
        return MessageId((due_us << LOW_BITS | int.from_bytes(self.low, "big") | seq).to_bytes(ID_BYTES, "big"))
