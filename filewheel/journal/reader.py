"""Follows the journals of a wheel, for looks: without locks and without writes, as they grow.

A `JournalReader` has the checkpoint, and a tail (tail.py) for each writer's journal above it. `follow` yields the
frames that are new since the last call. Everything that is remembered of the journals is taken from there, and has no
position of its own.

Journals have no order among each other. Read one after the other, they may show a message at its new place, and not the
drop at its old one, in a journal that was read before. So `follow` goes on until a whole pass finds nothing new: at the
instant between the last two passes every journal ended where it was read. That is one *cut*.
Invariant: after `follow`, exactly the frames that verify between the checkpoint and the ends of the tails were yielded,
or those of a tail were taken back.
"""

from __future__ import annotations

from collections.abc import Iterator

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

News = tuple[Tail, Frame | None]
"""A new frame, and the tail that has read it; None: nothing that the tail has read counts any more."""


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

    def follow(self, *, at_one_cut: bool = True) -> Iterator[News]:
        """Yield the new frames, under the newest checkpoint. Raises OSError.

        Without `at_one_cut` one pass is enough: for a look by id, whose caller has the lock of the id.
        """
        for _ in range(_TRIES):
            yield from self._renew()
            for _ in range(PASSES_MAX if at_one_cut else 1):
                is_still = True
                for news in self._read():
                    is_still = False
                    yield news
                if is_still:
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

    def _renew(self) -> Iterator[News]:
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
        for writer, tail in list(self.tails.items()):
            if checkpoint.positions.get(writer, START) != tail.covered:
                # K2: covered records are in the laps, their drops too, or in the checkpoint (D1, D4).
                yield self._take_back(writer)

    def _take_back(self, writer: str) -> News:
        self._damage.pop(writer, None)
        return self.tails.pop(writer), None

    def _read(self) -> Iterator[News]:
        """Read all journals once."""
        names = self._disk.listdir(layout.JOURNAL)
        if names != self._names:
            self._names, self._listing = names, listing_of(names)
            for writer, tail in list(self.tails.items()):
                if not self._is_listed(tail):
                    yield self._take_back(writer)
        for writer, segments in self._listing.items():
            if writer not in self.tails:
                covered, doubt = self.checkpoint.positions.get(writer, START), bool(self.checkpoint.doubt)
                if max(segments) < covered.segment:
                    continue  # covered, and about to be removed
                self.tails[writer] = Tail(self._dir, self.handles, writer, covered, doubt=doubt, for_looks=True)
            yield from self._poll(self.tails[writer])

    def _poll(self, tail: Tail) -> Iterator[News]:
        """Read the new frames of a journal."""

        listed = [self._listing]

        def present() -> set[int]:
            listing = listed.pop() if listed else listing_of(self._disk.listdir(layout.JOURNAL))
            return listing.get(tail.writer, set())

        def on_damage(damage: Damage) -> None:
            if damage.proven:
                self._damage.setdefault(tail.writer, []).append(damage)

        for frame in tail.poll(present, test_lock=False, on_damage=on_damage, on_foreign=lambda name: None):
            yield tail, frame

    def _is_listed(self, tail: Tail) -> bool:
        """Return whether all that was read of a journal is there still."""
        segments = self._listing.get(tail.writer, set())
        return not tail.ended and all(part.segment in segments for part in tail.parts(tail.covered, tail.seen))
