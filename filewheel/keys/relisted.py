"""What a deal owes the index of unique keys: nothing is covered before its entry is durable.

A message that nothing calls durable was perhaps entered without a flush (docs/adr/0038-a-key-that-is-not-flushed.md),
and a power cut may have taken the entry since. Once it is covered nobody looks at its journal again. So before the deal
commits, the buckets of such messages are flushed; and where the writer had gone when this keeper began, they are looked
through, and what is missing is entered again. For that the deal waits for no lock (U5): what cannot be entered now is
left in its journal.
Invariant: what a checkpoint covers is listed, durably.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence

from filewheel.disk.directory import Directory
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.format.frame import Frame
from filewheel.format.record import keyed_puts
from filewheel.keys.files import KeyFiles
from filewheel.keys.lost import Pair, absent, pairs_of
from filewheel.keys.unflushed import SYNC_EACH_MAX, flush_buckets
from filewheel.laps.doubtful import Doubtful

log = logging.getLogger(__name__)


class Relisted:
    """The index as a deal sees it. For one deal at a time; not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._keys = KeyFiles(directory)
        self.gone: Collection[str] = frozenset()
        """Writers that had ended when this keeper began."""
        self._buckets: set[int] = set()
        """Those of everything that was doubtful in this cut."""

    def enter(self, doubtful: Doubtful) -> set[str]:
        """Enter what is missing of the writers that had gone; return those of which not all could be entered.

        What was written is durable after `flush`.
        """
        self._buckets = set()
        held: set[str] = set()
        for writer, frames in doubtful.items():
            if writer not in self.gone:
                # It lived when this keeper began, so no power was cut since it wrote: its entries are there.
                self._note_buckets(frames)
                continue
            pairs = list(self._pairs(frames))
            self._buckets.update(hash_[0] for hash_, _ in pairs)
            if not self._enter_all(pairs):
                held.add(writer)
        return held

    def flush(self) -> None:
        """Make the entries of all that was doubtful durable. Raises OSError."""
        if self._buckets:
            flush_buckets(self._dir, {*self._buckets, layout.KEY_RECENT})

    def _note_buckets(self, frames: Iterable[Frame]) -> None:
        for hash_, _ in self._pairs(frames):
            self._buckets.add(hash_[0])
            if len(self._buckets) > SYNC_EACH_MAX:
                return  # everything is flushed at once

    def _pairs(self, frames: Iterable[Frame]) -> Iterator[Pair]:
        return pairs_of(self._keys, (put for frame in frames for put in keyed_puts(frame)))

    def _enter_all(self, pairs: Sequence[Pair]) -> bool:
        """Enter what the index lacks; tell whether it has all of it now."""
        try:
            entered = [self._enter(bucket, some) for bucket, some in absent(self._keys, pairs).items()]
        except FilewheelError as exc:
            log.warning("%s: keys are not entered, and their messages stay in the journal: %s", self._dir.path, exc)
            return False
        return all(entered)

    def _enter(self, bucket: int, pairs: Sequence[Pair]) -> bool:
        """Enter what a bucket lacks; tell whether its lock was to be had."""
        keys = self._keys
        with keys.locked(bucket, 0) as is_locked:
            if is_locked:
                for left in absent(keys, pairs).values():  # some may have been entered meanwhile
                    keys.write({bucket: left}, {bucket: keys.read(bucket)}, {}, durable=False)
            return is_locked
