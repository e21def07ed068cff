"""Keeps one copy in step: a tick brings over what is new at the primary.

The bytes of laps and slots go first, in place, where they do not count yet. Then one step at the copy makes the tails
of the journals, the new checkpoint and the removal of what it does not name durable together (target.py). So the copy
goes from one state that a crash of the primary could have left to a later one, and to nothing between.

A file of a copy is removed only when the checkpoint in place of it says that it is finished: a lap or slot that it does
not name, a segment below the position that it has for its writer. A segment that is gone at the primary without that
was lost there, and is kept (`lost`).
Invariant: after a tick, each file of the copy is a byte prefix of the primary's, as long as what counts of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from filewheel.disk.checkpoint import Checkpoint, era_of, parse_checkpoint
from filewheel.errors import FilewheelError
from filewheel.format import layout
from filewheel.laps.slot import files_of
from filewheel.sets.source import Again, Source, View
from filewheel.sets.target import CopyTarget, Tick

TICKS_AT_ONCE = 3
"""A copy has all that its primary had after one tick, and what was given back meanwhile after the next."""
PART_BYTES = 4 << 20
"""The journals of a tick are written in parts of about this size."""
Progress = Callable[[str, int, int], None]
"""Called with (path of the copy, bytes that were copied, bytes in all)."""
SMALL = (layout.FORKS, layout.REPEATS)
"""Files that are copied whole when they have changed. First the forks: they say of which history the rest is."""


class Ahead(FilewheelError):
    """The copy has a later checkpoint than its primary, or one of another history: one of the two was set back."""


@dataclass
class Copied:
    """The result of a tick."""

    deal: int
    bytes: int = 0
    gone: int = 0
    """Files that were removed from the copy."""
    lost: list[str] = field(default_factory=list)
    """Segments that the primary does not have any more, though no checkpoint covers them."""
    lacks: list[str] = field(default_factory=list)
    """Files that the primary's checkpoint names and that it does not have, or not whole: the copy has as much."""


def is_covered(name: str, mine: Checkpoint, theirs: Checkpoint) -> bool:
    """Return whether a segment that the primary does not have was covered, and not lost. `mine` is the copy's."""
    parsed = layout.parse_segment(name.rpartition("/")[2])
    assert parsed is not None
    writer, n = parsed
    at = theirs.positions.get(writer)
    if at is not None:
        return n <= at.segment
    # A deal that forgets a writer comes after the one that covers it (K4). Between two deals neither can have been.
    before = mine.positions.get(writer)
    return theirs.deal > mine.deal + 1 or (before is not None and n <= before.segment)


class Step:
    """The step of one tick, which is written in parts when it is large."""

    def __init__(self, target: CopyTarget) -> None:
        self._target = target
        target.begin()
        self.tick = Tick()
        self.ends: dict[str, int] = {}
        """The segments in the step, with their ends."""
        self._size_bytes = 0
        self._has_parts = False

    def add(self, name: str, offset: int, data: bytes) -> None:
        """Add a part of a segment."""
        self.tick.parts.append((name, offset, data))
        self._size_bytes += len(data)
        if self._size_bytes >= PART_BYTES:
            self._target.add(self.tick)
            self.tick, self._size_bytes, self._has_parts = Tick(), 0, True

    def commit(self) -> dict[str, int]:
        """Commit the rest; return the ends of all segments in it."""
        if self._has_parts or not self.tick.is_empty:
            self._target.commit(self.tick)
        return self.ends


class Copy:
    """One copy of a primary. Not thread-safe. After an error, close it and make a new one."""

    def __init__(
        self,
        source: Source,
        target: CopyTarget,
        *,
        is_mirror: bool = False,
        small: tuple[str, ...] = SMALL,
        mend: Callable[[list[str]], object] | None = None,
        adopt: Callable[[str, int], object] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Settle the copy, and find out what it has.

        `is_mirror`: producers write its journals too. `small` are the files to copy whole. `mend` is called before
        files of the copy go, with those that the primary may have lost. `adopt` is called with a segment and an offset
        before bytes go that are in the copy alone.

        Raises Damaged when the copy has no checkpoint that verifies, OSError.
        """
        self._source, self._target, self._is_mirror = source, target, is_mirror
        self._small_names = small
        self._mend, self._adopt, self._progress = mend, adopt, progress
        held = target.start()
        self._raw, self._checkpoint = held.checkpoint, self._parse(held.checkpoint)
        self._files, self._journals = held.files, held.journals
        self._lacks = self.short > 0
        self._ended: set[str] = set()
        """Segments of which a mirror has no more than the primary, whose writer has ended."""
        self._small: dict[str, object] = {}
        """The identity of each small file when it was copied."""

    def tick(self) -> Copied:
        """Bring over what is new. On return it is durable at the copy.

        Raises Ahead, Damaged when the primary's checkpoint does not verify, Fenced as the target's check, OSError.
        """
        while True:
            view = self._source.look()
            try:
                return self._bring(view)
            except Again:
                continue  # lap files that are here stay: it ends when a deal takes longer than this

    def _bring(self, view: View) -> Copied:
        is_new = view.raw != self._raw
        done, step = Copied(view.checkpoint.deal), Step(self._target)
        small = self._add_small(step.tick)
        if is_new:
            self._check_order(view)
        damaged: list[str] = []
        if is_new or self._lacks:
            total = sum(view.sizes.values())
            for name, size in view.files.items():
                start = self._files.get(name, 0)
                done.bytes += self._put(name, size)
                # With journals here the messages of a damaged part may be whole in these: the checkpoint covers them.
                is_checked = self._mend is not None and self._journals and start < self._files[name]
                if is_checked and self._source.runs(name, start, size) != [(start, size)]:
                    damaged.append(name)
                if self._progress is not None:
                    self._progress(self._target.place, done.bytes, total)
            done.lacks = [name for name, size in view.files.items() if self._files[name] < size]
        for name, end in sorted(view.journals.items()):
            if self._journals.get(name, 0) < end:
                done.bytes += self._add_tail(step, name, end)
        if is_new and self._is_mirror:
            # Listed after the primary's: a producer makes a segment there first.
            for name in self._target.segments():
                self._journals.setdefault(name, 0)
        gone, done.lost = self._needless(view)
        if self._adopt is not None:
            step.tick.cuts = self._surplus(view) if self._is_mirror else []
            for name, start in (*((name, 0) for name in done.lost), *step.tick.cuts):
                self._adopt(name, start)
            step.tick.gone = done.lost
        if not self._target.gives_back:
            self._check_journals(view, done.lost)
        if is_new:
            gone += [name for name in self._files if name not in view.files]
            if self._mend is not None:
                # What the primary lost is over with its file or behind a position. In doubt, so is a missing file.
                in_doubt = era_of(view.checkpoint.deal) != era_of(self._checkpoint.deal)  # mutant: doubted-believed
                self._mend(damaged + (gone if in_doubt else []))
            if not self._source.is_current():
                raise Again  # a file may have gone because a later checkpoint does not need it
            step.tick.checkpoint, step.tick.gone = view.raw, step.tick.gone + gone
        self._journals |= step.commit()
        self._small |= small
        self._lacks = bool(done.lacks)
        for name in step.tick.gone:
            self._files.pop(name, None)
            self._journals.pop(name, None)
        done.gone = len(step.tick.gone)
        if is_new:
            self._raw, self._checkpoint = view.raw, view.checkpoint
        return done

    def _surplus(self, view: View) -> list[tuple[str, int]]:
        """Return (segment, end at the primary) where a mirror has frames that an ended writer does not have there."""
        found = []
        for name in view.ended - self._ended:
            if self._target.has_frames(name, view.journals[name]):
                found.append((name, view.journals[name]))
        self._ended = view.ended
        return found

    def _parse(self, raw: bytes) -> Checkpoint:
        directory = self._source.dir
        return parse_checkpoint(raw, directory.seed, directory.settings.lap_of, layout.CHECKPOINT)

    def _check_order(self, view: View) -> None:
        """Raise Ahead unless the primary's checkpoint follows the copy's. Cost with a new keeper: a look at each file.

        A primary that was set back to an older image goes on with another keeper: its deals have the numbers of deals
        that the copy has, and give files of the same names other bytes.
        """
        mine, theirs = self._checkpoint, view.checkpoint
        # The same keeper makes a deal of one number once.
        is_other = mine.deal > theirs.deal or (mine.deal == theirs.deal and mine.keeper != theirs.keeper)
        if not is_other and mine.keeper != theirs.keeper:
            is_one_era = era_of(mine.deal) == era_of(theirs.deal)
            files = [(file, view.files.get(file.name, 1 << 62)) for file in files_of(self._source.dir.settings, mine)]
            is_short = is_one_era and any(end < file.end for file, end in files)
            ends = [(file.name, min(end, file.end)) for file, end in files]
            is_other = is_short or self._target.differs(self._source.dir, ends)
        if is_other:
            raise Ahead(
                f"the copy has deal {mine.deal}, its primary {theirs.deal}: one was set back, or both have fired",
                path=self._target.place,
                hint="`filewheel promote` the copy, which may have more, and `filewheel rejoin` the other; or remove "
                "the copy from the set, delete its directory, and `filewheel backup add` it",
            )

    def _check_journals(self, view: View, lost: list[str]) -> None:
        """Raise Ahead when the copy has frames that its primary has lost, and they cannot be given back from here."""
        shorter = [name for name, end in view.journals.items() if self._journals.get(name, 0) > end]
        for name in (*lost, *shorter):
            raise Ahead(
                f"the copy has more of {name} than its primary, which was set back or is damaged",
                path=self._target.place,
                hint="see what it has, before it is written anew",
            )

    def _put(self, name: str, size: int) -> int:
        """Copy the new bytes of a lap or slot file, as far as the primary has them; return how many."""
        at = start = self._files.setdefault(name, 0)
        try:
            for offset, data in self._source.read(name, start, size) if start < size else ():
                self._target.put(name, offset, data)
                at = offset + len(data)
        except Again:
            if not self._source.is_current():
                raise
        # A file may end inside the padding of its last frame.
        self._files[name] = size if at + 7 >= size else at & ~7
        return at - start

    def _add_tail(self, step: Step, name: str, end: int) -> int:
        start = self._journals.get(name, 0)
        self._source.flush(name)
        # What a producer has written to a mirror is not written over with bytes that do not verify here.
        runs = self._source.runs(name, start, end) if self._is_mirror else ((start, end),)
        for run in runs:
            for offset, data in self._source.read(name, *run):
                # Also what was written there already: a flush that failed may have left it in memory only.
                step.add(name, offset, data)  # mutant: mirror-believed
        step.ends[name] = end
        return end - start

    def _add_small(self, tick: Tick) -> dict[str, object]:
        """Add the small files that have changed; return their identities."""
        found: dict[str, object] = {}
        for name in self._small_names:
            identity = self._source.disk.identity(name)
            if identity is not None and self._small.get(name) != identity:
                tick.small.append((name, b"".join(data for _, data in self._source.read(name, 0, 1 << 62))))
                found[name] = identity
        return found

    def _needless(self, view: View) -> tuple[list[str], list[str]]:
        """Return the segments that the primary does not need any more, and those that it lost."""
        gone: list[str] = []
        lost: list[str] = []
        for name in sorted(self._journals.keys() - view.journals.keys()):
            if not self._source.is_there(name):
                (gone if is_covered(name, self._checkpoint, view.checkpoint) else lost).append(name)
        return gone, lost

    def look_at_files(self) -> None:
        """Find out which files are there: the next tick brings those that went. Cost: a stat of each, a listing."""
        self._files = self._target.files(self._checkpoint)
        there = set(self._target.segments())
        self._journals = {name: end for name, end in self._journals.items() if name in there}
        self._lacks = self._lacks or self.short > 0

    @property
    def short(self) -> int:
        """How many files the copy does not have as far as its checkpoint covers them."""
        settings = self._source.dir.settings
        return sum(self._files.get(file.name, 0) < file.end for file in files_of(settings, self._checkpoint))

    def forget_damage(self) -> None:
        """Forget it: a scrub looks at it now."""
        self._source.damage.clear()

    def beat(self) -> None:
        """Write down at the copy that it has everything now (`lag_of`)."""
        self._target.beat()

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that the copy has."""
        return self._checkpoint

    @property
    def sizes(self) -> dict[str, int]:
        """What the copy has: each file, with the length that counts."""
        return self._files | self._journals

    @property
    def has_damage(self) -> bool:
        """Whether bytes of the primary's journals that had been durable did not verify since the last scrub."""
        return bool(self._source.damage)

    def close(self) -> None:
        """Close the files at both ends; the directories stay open."""
        self._source.close()
        self._target.close()
