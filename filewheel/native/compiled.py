"""Choose the inner loops: those in C if they were built, otherwise those in Python.

FILEWHEEL_PURE=1 in the environment selects those in Python.
Invariant: both have the same results; only the speed differs.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from filewheel.message import Message, MessageId
from filewheel.native import log, loops, puts, timeouts


class Pen(Protocol):
    """Writes a writer's next puts, one call each; a journal lends it to its own `put`."""

    def put(self, due_us: int, enqueued_us: int, tail: bytes, payload: bytes, /) -> MessageId | None:
        """Write the frame that `put_frame` returns, atomically for other threads; None: the journal must do it.

        Raises OSError when a part of the frame may be missing; this ends the pen.
        """

    def end(self) -> tuple[int, int, int, bool]:
        """Stop; return the next sequence number, the next frame's offset, the last frame's number, and whether a write
        failed.

        A second call returns the same.
        """


class MakePen(Protocol):
    """Makes a pen."""

    def __call__(
        self, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int, number: int, synced: int, /
    ) -> Pen:
        """Return a pen that writes frames between `offset` and `end`."""


COMPILED = False
"""Whether the loops in C are used."""

due_column = loops.due_column
due_at = loops.due_at
size_of = loops.size_of
pack_puts = loops.pack_puts
put_frame = loops.put_frame
pack_drops = loops.pack_drops
seal_frame = loops.seal_frame
part = loops.part
ids_of = loops.ids_of
moved = loops.moved
sort = loops.sort
count_seconds = loops.count_seconds
plain_messages = loops.plain_messages
learn_record = log.learn_record
learn_outgoing = log.learn_outgoing
deliveries = log.deliveries
learn_put = log.learn_put
read_records = log.read_records
records_size = log.records_size
delayed_puts = log.delayed_puts
PutTable = puts.PutTable
LoopTimeout = timeouts.LoopTimeout
TimeoutWheel = timeouts.TimeoutWheel
crc32: Callable[[bytes, int], int] = zlib.crc32
ReadFrames = Callable[[bytes, int, int, int, int, bytes | None, bytes | None, int], tuple[list[Any], int]]
read_frames: ReadFrames | None = None
"""Reads many plain frames of a block at once; None without C."""
learn_frame: Callable[[type[Any]], None] | None = None
"""Sets the class of the returned frames."""
make_pen: MakePen | None = None
"""Makes a pen; None without C."""
keep_from_children: Callable[[int], None] | None = None
"""Makes each forked child lose its copy of this descriptor; None without C: only Python's own forks are detected."""
let_children_have: Callable[[int], None] | None = None
"""Undoes that."""
count_forks: Callable[[], int] | None = None
"""Returns a number that differs between a child and its parent."""
write_all: Callable[[int, bytes, int], None] | None = None
"""Writes bytes in full at an offset; None without C."""

if not os.environ.get("FILEWHEEL_PURE"):
    try:
        from filewheel.native import _loops
    except ImportError:
        pass
    else:
        if _loops.INTERFACE == loops.INTERFACE:  # otherwise it was built for another version
            _loops.learn(Message, MessageId)
            due_column = _loops.due_column
            due_at = _loops.due_at
            size_of = _loops.size_of
            pack_puts = _loops.pack_puts
            put_frame = _loops.put_frame
            pack_drops = _loops.pack_drops
            seal_frame = _loops.seal_frame
            part = _loops.part
            ids_of = _loops.ids_of
            moved = _loops.moved
            sort = _loops.sort
            count_seconds = _loops.count_seconds
            plain_messages = _loops.plain_messages
            learn_record = _loops.learn_record
            learn_outgoing = _loops.learn_outgoing
            deliveries = _loops.deliveries
            learn_put = _loops.learn_put
            read_records = _loops.read_records
            records_size = _loops.records_size
            delayed_puts = _loops.delayed_puts
            PutTable = _loops.PutTable  # type: ignore[assignment,misc]
            LoopTimeout = _loops.LoopTimeout  # type: ignore[assignment,misc]
            TimeoutWheel = _loops.TimeoutWheel  # type: ignore[assignment,misc]
            crc32 = _loops.crc32
            read_frames = _loops.read_frames
            learn_frame = _loops.learn_frame
            make_pen = _loops.Pen
            write_all = _loops.write_all
            keep_from_children = _loops.keep_from_children
            let_children_have = _loops.let_children_have
            count_forks = _loops.count_forks
            COMPILED = True
