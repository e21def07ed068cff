"""The ids of a batch, kept as bytes until someone looks at one.

Owns its list. Invariant: the i-th id belongs to the i-th payload of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from filewheel.message import MessageId, receipt


class Ids(Sequence[MessageId]):
    """A sequence of message ids, made one by one when asked for."""

    def __init__(self, ids: list[bytes], copies: int = 1) -> None:
        self._ids = ids
        self.copies = copies
        """How many wheels held each of the messages when the call returned."""

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[MessageId]:
        if self.copies == 1:
            return map(MessageId, self._ids)
        return (receipt(MessageId(i), self.copies) for i in self._ids)

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> Ids: ...
    def __getitem__(self, index: int | slice) -> MessageId | Ids:
        if isinstance(index, slice):
            return Ids(self._ids[index], self.copies)
        return receipt(MessageId(self._ids[index]), self.copies)

    def __contains__(self, item: object) -> bool:
        return item in self._ids

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Ids):
            return self._ids == other._ids
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} ids>"
