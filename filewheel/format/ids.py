"""The ids of a batch, kept as bytes one behind the other until someone looks at one.

Owns these bytes. Invariant: the i-th id belongs to the i-th payload of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from filewheel.message import ID_BYTES, ID_END, MessageId, receipt


class Ids(Sequence[MessageId]):
    """A sequence of message ids, made one by one when asked for."""

    def __init__(
        self, ids: bytes, copies: int = 1, least: bytes = ID_END, *, kept: frozenset[int] = frozenset()
    ) -> None:
        self._ids = ids
        self.kept = kept
        """The places of ids that were kept: another message had the key, and nothing was enqueued for it."""
        self.least = least
        """What is due first of a batch that was just enqueued; of a part of it this is not known."""
        self.copies = copies
        """How many wheels held each of the messages when the call returned."""

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
