"""A new primary gets from another wheel of its set what only that one has; then that wheel is cleared.

The other wheel is a former primary, or a backup that was ahead of the promoted one. Its fork (forks.py) says which of
its messages were never here. First its drops count here too, for messages that are pending in both: they ended there.
Then the messages that were never here are enqueued under their own ids. So are those that were here, if the primary has
lost a file that they may have been in: one that has ended since may then fire again.
Each step adds to sets, and may be repeated.
Nothing of a wheel that was another line's is kept: the same name and the same place may hold a frame of either.
Invariant: a wheel is cleared only when everything that only it had is durable in the primary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from filewheel.disk.checkpoint import Checkpoint, write_checkpoint
from filewheel.disk.directory import Directory
from filewheel.disk.disk import NO_DIRECTORY
from filewheel.disk.quarantine import items
from filewheel.format import layout
from filewheel.format.record import ID, readable_records
from filewheel.laps.slot import file_named
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import US_PER_S, due_of
from filewheel.sets.forks import Fork, add_known, frames_of, held
from filewheel.sets.giving import Giver

_BATCH = 10_000

Progress = Callable[[str, int, int], None]
"""Called with (path of the other wheel, bytes of it that were read, bytes in all)."""


@dataclass
class Absorbed:
    """The result of absorbing a wheel."""

    kept: int = 0
    """Messages that only the other wheel had, now in the primary."""
    dropped: int = 0
    """Messages that were finished only in the other wheel."""
    notes: list[str] = field(default_factory=list)


class Losses:
    """What a wheel may have lost: the messages of some laps, or any, where a journal or a note cannot be read."""

    def __init__(self, directory: Directory) -> None:
        """Look for it. Cost: all of the wheel is read once. Raises OSError."""
        self._settings = settings = directory.settings
        lost: set[str] = set()
        for _ in frames_of(directory, lost):
            pass
        lost |= {
            str(item.get("name", layout.JOURNAL))
            for item in items(directory)
            # What is not proven may be a commit that never completed: a power cut leaves it in each journal.
            if item.get("proven", True) or file_named(settings, str(item.get("name", ""))) is not None
        }
        files = {name: file_named(settings, name) for name in lost}
        self._laps = {file.lap for file in files.values() if file is not None}
        self._any = any(file is None and name.startswith(layout.JOURNAL) for name, file in files.items())

    @property
    def none(self) -> bool:
        """Whether nothing was lost."""
        return not (self._any or self._laps)

    def may_hold(self, id_: bytes) -> bool:
        """Return whether this message may have been lost."""
        return self._any or self._settings.lap_of(due_of(id_) // US_PER_S) in self._laps


class Absorption:
    """Gives a primary what only another wheel has. That wheel is fenced, and its lock held. Call `run` once."""

    def __init__(self, old: Directory, new: Directory, fork: Fork, *, progress: Progress | None = None) -> None:
        """Absorb `old` into the primary `new`; `fork` is the first promotion of its line that `old` has not seen."""
        self._old, self._new, self._fork = old, new, fork
        self._progress = progress
        self._result = Absorbed()

    def run(self) -> Absorbed:
        """Copy the differences. On return they are durable in the primary. Raises DiskError, Damaged, Locked."""
        with contextlib.closing(Giver(self._new, "rejoin")) as giver:
            # Drops first: a message that was moved there still has its key here, under its old id.
            for ids in _batches(self._drops()):  # mutant: rejoin-keeps-before-drops
                self._result.dropped += giver.end(ids)  # mutant: rejoin-acks-lost
            for puts in _batches(self._puts(Losses(self._new))):
                self._result.kept += giver.give(puts)
            giver.flush()
            self._result.notes = giver.notes
        if Losses(self._old).none:  # of what is damaged there, another wheel may have more
            add_known(self._new, held(self._old))  # mutant: given-unknown
        return self._result

    def _puts(self, losses: Losses) -> Iterator[bytes]:
        """Yield the messages that are pending in the other wheel, and were never in the primary or lost there."""
        with Snapshot(self._old) as snapshot:
            lengths = snapshot.checkpoint.file_bytes
            done, total = 0, lengths + sum(s.end - s.start for s in snapshot.journals)
            for n, put in enumerate(snapshot.puts(hi=b"\xff" * 16)):
                done += len(put)
                if self._progress is not None and not n % _BATCH:
                    self._progress(self._old.path, done, total)
                # mutant: fork-forgotten losses-forgotten
                if not self._fork.knows(put[ID]) or losses.may_hold(put[ID]):
                    yield put

    def _drops(self) -> Iterator[bytes]:
        yield from self._old.checkpoint().unmatched
        for frame in frames_of(self._old):
            if frame.drops:
                yield from (drop[ID] for drop in readable_records(frame)[1])


def _batches(found: Iterator[bytes]) -> Iterator[list[bytes]]:
    while some := list(islice(found, _BATCH)):
        yield some


def clear(directory: Directory) -> None:
    """Empty a wheel that is to be copied anew. The caller holds its lock; it is no member that may be promoted.

    Journals go first: without a checkpoint they would count from their beginning. A crash leaves a part of the wheel
    that the next call removes. Raises OSError.
    """
    disk = directory.disk
    for name in (layout.TICKS, layout.FORKS):
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(name)
    _empty(directory, layout.JOURNAL)
    _empty(directory, layout.KEYS)
    disk.sync_all()
    write_checkpoint(disk, Checkpoint(), directory.seed)
    for last in disk.listdir(layout.LAPS):
        if layout.parse_lap_dir(last) is not None:
            _empty(directory, f"{layout.LAPS}/{last}")
            with contextlib.suppress(OSError):  # a foreign file is in it
                disk.rmdir(f"{layout.LAPS}/{last}")
    _empty(directory, layout.LAPS)
    disk.sync_all()


def _empty(directory: Directory, folder: str) -> None:
    """Remove the regular files of a folder. Raises OSError."""
    disk = directory.disk
    with contextlib.suppress(*NO_DIRECTORY):
        for last in disk.listdir(folder):
            name = f"{folder}/{last}"
            if disk.identity(name) is not None:
                with contextlib.suppress(FileNotFoundError):
                    disk.unlink(name)
