"""The pen of a modelled disk: the same puts as the one in C, with the same moments at which others run or a kill comes.

It owns what a pen owns: the writer's place in its sequence, the offset of the next frame, the number of the last.
Invariant: others run before a put and after it, never between its write and its count.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from filewheel.message import MessageId
from filewheel.native.compiled import put_frame

if TYPE_CHECKING:
    from tests.model.process import ProcessDisk


class ModelPen:
    """Writes puts through a process's descriptor."""

    def __init__(
        self, disk: ProcessDisk, fd: int, low: bytes, seq: int, seq_end: int, seed: int, offset: int, end: int,
        number: int, synced: int,
    ) -> None:  # fmt: skip
        self._disk, self._fd, self._low, self._seed, self._synced = disk, fd, low, seed, synced
        self._seq, self._seq_end, self._offset, self._end, self._number = seq, seq_end, offset, end, number
        self._is_open, self._has_failed = True, False

    def put(self, due_us: int, enqueued_us: int, tail: bytes, payload: bytes, /) -> MessageId | None:
        """Write one frame. Raises OSError when a part of it may be missing."""
        inode, name = self._disk.file_of(self._fd)
        if not self._is_open or self._seq >= self._seq_end:
            return None
        seq, self._seq = self._seq, self._seq + 1
        frame, id_ = put_frame(
            self._low, seq, due_us, enqueued_us, tail, payload, self._seed, self._offset, self._number + 1, self._synced
        )
        if self._offset + len(frame) > self._end:
            return None
        code = self._disk.write(inode, name, frame, self._offset)
        if code is None:
            self._offset += len(frame)
            self._number += 1
        else:
            self._is_open, self._has_failed = False, True
        self._disk.did_write(name)
        if code is not None:
            raise OSError(code, os.strerror(code), name)
        return id_

    def end(self) -> tuple[int, int, int, bool]:
        """Write nothing more; return where the writer stands, and whether a write failed."""
        self._is_open = False
        return self._seq, self._offset, self._number, self._has_failed
