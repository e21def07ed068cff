"""Room for acknowledgements on a full disk.

Each write for a settlement goes through `Reserve.spend`. When the disk is full, it deletes the ballast, and
writes once more. If that does not help, the error reports that the messages fire again. `room_for` makes the room
before messages are handed out.
Invariant: what is claimed can be acknowledged, unless another process takes the room that a longer settlement needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from filewheel.disk.ballast import Ballast
from filewheel.errors import FilewheelError, WheelFull
from filewheel.format.frame import HEADER_BYTES
from filewheel.laps.store import Store
from filewheel.native.loops import DROP_BYTES

log = logging.getLogger(__name__)

ACK_BYTES = -(-(HEADER_BYTES + DROP_BYTES) // 8) * 8
"""A frame that acknowledges one message."""
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
        self._on_written = on_written
        self.ballast = Ballast(store.disk, store.dir.path)
        self._is_short = False
        self.is_needed = True
        """Room is made before messages are handed out; not where another log says which of them went out."""

    def write(self, records: Sequence[bytes], puts: int) -> None:
        """Write records to the keeper's own journal. Raises WheelFull when no room can be made."""
        self.spend(partial(self._store.write, records, puts))  # mutant: two-frames-retry

    def drop(self, ids: list[bytes], reason: int) -> None:
        """Write a drop for each of these ids, as `write` does."""
        self.spend(partial(self._store.drop, ids, reason))

    def spend(self, act: Callable[[], None]) -> None:
        """Call `act`, which writes for a settlement, with all the room that can be made. Raises WheelFull."""
        try:
            self._find_room(act)
        except WheelFull as exc:
            fires_again(exc)
            raise
        self._on_written()

    def _find_room(self, act: Callable[[], None]) -> None:
        """Call `act`; on a full disk, once more after the ballast was given up. Raises WheelFull."""
        try:
            return act()
        except WheelFull:
            if not self._give_up_ballast():
                raise
        return act()

    def _give_up_ballast(self) -> bool:
        was_there = self.ballast.give_up()
        if was_there:
            log.critical("%s: the disk is full; the ballast is given up for acknowledgements", self._store.dir.path)
        return was_there

    def room_for(self, count: int, held: int) -> int:
        """Make room to acknowledge `held` claimed messages and `count` more; return `count`, or 1 if only one fits.

        Zeros are written ahead into the own journal, in the room of the ballast if need be. So nothing is estimated: a
        quota, a limit on the size of a file and missing inodes count too. Cost: nothing while enough zeros are ahead.
        Raises WheelFull when there is no room for one: nothing may be handed out.
        """
        if not self.is_needed:
            return count
        for fit in (count, 1):
            try:
                self._find_room(partial(self._reserve, held + fit))
            except WheelFull as exc:
                full = exc
                continue
            if fit < count and not self._is_short:
                log.critical("%s: the disk is full; messages are handed out one by one", self._store.dir.path)
            self._is_short = fit < count
            return fit
        full.what = f"{full.what}; no message is handed out that could not be acknowledged"
        raise full

    def _reserve(self, count: int) -> None:
        self._store.own.reserve(count * ACK_BYTES)
