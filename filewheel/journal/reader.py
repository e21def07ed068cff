"""Follows the journals of a wheel, for looks: without locks and without writes, as they grow.

A `JournalReader` has the checkpoint, and a tail (tail.py) for each writer's journal above it. `follow` gives a
`Follower` the frames that are new since the last call. Everything that is remembered of the journals is taken from
there, and has no position of its own.

Journals have no order among each other. Read one after the other, they may show a message at its new place, and not the
drop at its old one, in a journal that was read before. So `follow` goes on until a whole pass finds nothing new: at the
instant between the last two passes every journal ended where it was read. That is one *cut*.
Invariant: after `follow`, exactly the frames that verify between the checkpoint and the ends of the tails were given,
or those of a tail were taken back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from filewheel.disk.checkpoint import START, Checkpoint, adopt, find_files
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage
from filewheel.format import layout
from filewheel.format.frame import Frame
from filewheel.journal.tail import Handles, Tail
from filewheel.journal.walk import Listing, Part, listing_of

_TRIES = 100
"""How many new checkpoints, one after the other, a look waits for: one that is overtaken so often goes on as it is."""
PASSES_MAX = 1000
"""How many passes are made until one finds nothing new."""
PINNED_MAX = 256
"""How many journals a look keeps open, so that they can be read after they were removed."""


class Follower(Protocol):
    """Remembers something of what a reader of the journals has read."""

    def renewed(self) -> None:
        """Take note of another checkpoint."""

    def take(self, tail: Tail, frame: Frame) -> None:
        """Take a new frame, and the tail that has read it."""

    def take_back(self, tail: Tail) -> None:
        """Forget what a tail has read: it does not count any more."""


class JournalReader:
    """The journals above the checkpoint, as far as they were read. Not thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._disk = directory.disk
        self.handles = Handles(directory)
        """The files that are open during a look."""
        self.checkpoint = Checkpoint()
        self.tails: dict[str, Tail] = {}
        self._identity: tuple[int, int, int] | None = None
        self._names: list[str] = []
        self._listing: Listing = {}
        self._damage: dict[str, list[Damage]] = {}
        """writer → what is missing in its journal although it had been durable."""

    @property
    def damage(self) -> list[Damage]:
        """The parts of the journals that were durable and cannot be read."""
        return [damage for some in self._damage.values() for damage in some]

    def parts(self) -> Iterator[Part]:
        """Yield what was read and is not covered."""
        for tail in self.tails.values():
            yield from tail.parts(tail.covered, tail.seen)

    def is_current(self) -> bool:
        """Return whether the checkpoint is still the same. Cost: a stat."""
        return self._disk.identity(layout.CHECKPOINT) == self._identity

    def follow(self, by: Follower | None = None, *, at_one_cut: bool = True) -> None:
        """Read the new frames, under the newest checkpoint. Raises OSError.

        Without `at_one_cut` one pass is enough: for a look by id, whose caller has the lock of the id.
        """
        for _ in range(_TRIES):
            self._renew(by)
            for _ in range(PASSES_MAX if at_one_cut else 1):
                if not self._read(by):
                    break
            # A deal that was committed meanwhile has moved messages to files that the old checkpoint does not name.
            if self.is_current():  # mutant: snapshot-once
                return

    def pin(self) -> Handles | None:
        """Open everything that was read, for a reader that goes on after this look; None under a new checkpoint."""
        handles = Handles(self._dir, limit=PINNED_MAX)
        try:
            for part in self.parts():
                handles.get(part.name)
            if self.is_current():  # mutant: snapshot-once.2
                return handles
        except FileNotFoundError:
            pass
        except BaseException:  # an interrupt (Ctrl-C) too
            handles.close()
            raise
        handles.close()
        return None

    def _renew(self, by: Follower | None) -> None:
        """Read the checkpoint if it is another one, and take back what it covers."""
        # The one before keeps its inode as checkpoint.old, so the same identity recurs after three deals at the
        # earliest, all within one tick of the file system's clock.
        identity = self._disk.identity(layout.CHECKPOINT)
        if identity is not None and identity == self._identity:
            return
        checkpoint = self._dir.checkpoint()
        if checkpoint.doubt:
            lap_of = self._dir.settings.lap_of
            adopt(checkpoint, self._disk, find_files(self._disk, lap_of), lap_of)
        self.checkpoint, self._identity = checkpoint, identity
        if by is not None:
            by.renewed()
        for writer, tail in list(self.tails.items()):
            if checkpoint.positions.get(writer, START) != tail.covered:
                # K2: covered records are in the laps, their drops too, or in the checkpoint (D1, D4).
                self._take_back(writer, by)

    def _take_back(self, writer: str, by: Follower | None) -> None:
        self._damage.pop(writer, None)
        tail = self.tails.pop(writer)
        if by is not None:
            by.take_back(tail)

    def _read(self, by: Follower | None) -> bool:
        """Read all journals once; return whether there was anything new."""
        names, is_new = self._disk.listdir(layout.JOURNAL), False
        if names != self._names:
            self._names, self._listing = names, listing_of(names)
            for writer, tail in list(self.tails.items()):
                if not self._is_listed(tail):
                    self._take_back(writer, by)
                    is_new = True
        for writer, segments in self._listing.items():
            reads = self.tails.get(writer)
            if reads is None:
                covered, doubt = self.checkpoint.positions.get(writer, START), bool(self.checkpoint.doubt)
                if max(segments) < covered.segment:
                    continue  # covered, and about to be removed
                reads = self.tails[writer] = Tail(self._dir, self.handles, writer, covered, doubt=doubt, for_looks=True)
            is_new |= self._poll(reads, segments, by)
        return is_new

    def _poll(self, tail: Tail, segments: set[int], by: Follower | None) -> bool:
        """Read the new frames of a journal; return whether there were any."""
        before = tail.seen

        def relist() -> set[int]:
            return listing_of(self._disk.listdir(layout.JOURNAL)).get(tail.writer, set())

        def take(frame: Frame) -> None:
            if by is not None:
                by.take(tail, frame)

        def on_damage(damage: Damage) -> None:
            if damage.proven:
                self._damage.setdefault(tail.writer, []).append(damage)

        tail.poll(segments, relist, take, test_lock=False, on_damage=on_damage, on_foreign=lambda name: None)
        return tail.seen != before

    def _is_listed(self, tail: Tail) -> bool:
        """Return whether all that was read of a journal is there still."""
        segments = self._listing.get(tail.writer, set())
        return not tail.ended and all(part.segment in segments for part in tail.parts(tail.covered, tail.seen))
