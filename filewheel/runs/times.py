"""When each claimed message began: noted by the batch on the firing path, looked up later in the housekeeper's thread.

A note costs the same for one message as for a thousand. The latest notes are kept as they came; of older ones only the
messages that are still claimed.
Invariant: a message that is claimed and has begun, and was not given back, is found.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Container, Sequence

Began = tuple[int, int]
"""The time by the wall clock, and by the steady one."""
_NEWEST = 1 << 15
"""How many of the latest begins are kept as they came, whether they are claimed or not."""
_NOTES = 1 << 14


class BeginTimes:
    """The begins of one keeper. Thread-safe."""

    def __init__(self, claimed: Container[bytes]) -> None:
        """`claimed` holds the claimed ids."""
        self._claimed = claimed
        self._lock = threading.RLock()
        self._newest: deque[tuple[Began | None, Sequence[bytes]]] = deque()
        self._count = 0
        self._older: dict[bytes, Began] = {}

    def note(self, ids: Sequence[bytes], began: Began | None) -> None:
        """Note that messages began; None: they did not after all."""
        with self._lock:
            self._newest.append((began, ids))
            self._count += len(ids)
            while (self._count > _NEWEST or len(self._newest) > _NOTES) and len(self._newest) > 1:
                self._pass_on(*self._newest.popleft())

    def _pass_on(self, began: Began | None, ids: Sequence[bytes]) -> None:
        """Keep of the oldest note only the messages that are still claimed."""
        self._count -= len(ids)
        for id_ in filter(self._claimed.__contains__, ids):
            if began is None:
                self._older.pop(id_, None)
            else:
                self._older[id_] = began

    def find(self, ids: Collection[bytes]) -> dict[bytes, Began]:
        """Return when these messages began; one that did not begin, or was given back, is left out."""
        with self._lock:
            newest, older = tuple(self._newest), self._older.copy()
        wanted = set(ids)
        found: dict[bytes, Began] = {}
        for began, some in reversed(newest):
            if not wanted:
                break
            here = wanted.intersection(some)
            if here:
                wanted -= here
                if began is not None:
                    found.update(dict.fromkeys(here, began))
        found.update({id_: older[id_] for id_ in wanted if id_ in older})
        return found

    def forget(self, claimed: Container[bytes]) -> None:
        """Forget the older messages that are not claimed any more."""
        with self._lock:
            if self._older:
                self._older = {id_: began for id_, began in self._older.items() if id_ in claimed}
