"""Room for acknowledgements on a full disk.

Each write for a settlement goes through `Reserve.spend`. When the disk is full, it deletes the segments that are kept
for backups, which can heal, then the ballast, and writes once more after each. If that does not help, the error
reports that the messages fire again. `room_for` keeps a claim as small as the room for its acknowledgements.
Invariant: a claim of more than one message is made only when its acknowledgements are expected to find room.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from filewheel.disk.ballast import Ballast
from filewheel.errors import DiskError, FilewheelError, WheelFull
from filewheel.laps.store import Store
from filewheel.native.loops import DROP_BYTES

log = logging.getLogger(__name__)

ROOM_BYTES = 64 << 10
"""With less than this free, a disk counts as full."""
FIRES_AGAIN = "a message that was handed out could not be acknowledged: it fires again"


def fires_again(exc: FilewheelError) -> FilewheelError:
    """Add to an error, once, that the messages without an acknowledgement fire again."""
    if FIRES_AGAIN not in exc.what:
        exc.what = f"{exc.what}; {FIRES_AGAIN}"
    return exc


class Reserve:
    """Writes to the keeper's own journal, and finds room for it. The store's lock guards it."""

    def __init__(self, store: Store, on_written: Callable[[], None]) -> None:
        """`on_written` is called after each write, before its flush."""
        self._store = store
        self._disk = store.disk
        self._on_written = on_written
        self.ballast = Ballast(store.disk, store.dir.path)
        self._was_refused = False
        """The last acknowledgement found no room."""
        self._is_short = False

    def write(self, records: Sequence[bytes], puts: int) -> None:
        """Write records to the keeper's own journal. Raises WheelFull when no room can be made."""
        self.spend(lambda: self._store.write(records, puts))  # mutant: two-frames-retry

    def drop(self, ids: list[bytes], reason: int) -> None:
        """Write a drop for each of these ids, as `write` does."""
        self.spend(lambda: self._store.drop(ids, reason))

    def spend(self, act: Callable[[], None]) -> None:
        """Call `act`, which writes for a settlement, with all the room that can be made. Raises WheelFull."""
        try:
            # mutant: retained-over-acks
            self._try(act, self._store.removal.give_up_retained, self._give_up_ballast)
        except WheelFull as exc:
            self._was_refused = True
            fires_again(exc)
            raise
        self._was_refused = False
        self._on_written()

    def _try(self, act: Callable[[], None], *frees: Callable[[], bool]) -> None:
        """Call `act`; on a full disk, once more after each of these functions that freed room."""
        try:
            return act()
        except WheelFull as exc:
            full = exc
        for free in frees:
            if free():
                try:
                    return act()
                except WheelFull as exc:
                    full = exc
        raise full

    def _give_up_ballast(self) -> bool:
        was_there = self.ballast.give_up()
        if was_there:
            log.critical("%s: the disk is full; the ballast is given up for acknowledgements", self._store.dir.path)
        return was_there

    def room_for(self, limit: int) -> int:
        """Return how many messages may be claimed together: `limit`, or 1 when more may find no room to be settled.

        It is never 0: firing continues on a full disk. Uncertain room is reserved: zeros are written ahead into the own
        journal. Cost: nothing while there is a ballast, else one check of the disk.
        """
        if self.ballast.is_there or (not self._was_refused and self._disk.free_bytes() >= ROOM_BYTES):
            self._is_short = False
            return limit
        if self.ballast.find():
            return limit
        try:
            self._try(lambda: self._store.own.reserve(limit * DROP_BYTES), self._store.removal.give_up_retained)
        except DiskError as exc:
            if not self._is_short:
                log.critical("%s: %s; there is no ballast, so messages are handed out one by one", exc.path, exc.what)
            self._is_short = True
            return 1
        self._is_short = False
        return limit
