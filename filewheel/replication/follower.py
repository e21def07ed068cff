"""The follower: reads a primary's journals as they grow, and gives out what they hold in an order that a copy may be
written in.

A backup that is written journal by journal would have no consistent cut: a drop may be read before its put, when they
lie in two journals and one pass reads them in that order (rule D1). So a frame with drops is held for one more pass.
What made its drops possible was written before it, so it has been read by the end of the next pass; frames that are
held are given out after the frames that put what they drop. A frame is given out whole: a move stays one commit.

Frames without drops are given out at once. Memory: the frames with drops of one pass.
Invariant: of what was given out so far, no drop lacks a put that the primary's journals held; and reading on from
`Step.positions` gives out everything that was not given out before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage
from filewheel.errors import Damaged
from filewheel.format.frame import Frame
from filewheel.format.record import ID, records_of
from filewheel.journal.tail import Tail
from filewheel.replication.primary_journals import SegmentHandles, SegmentLosses, list_all_segments

LOCK_TEST_US = 200_000


@dataclass(slots=True)
class HeldFrame:
    """A frame with drops that waits for the end of the next pass."""

    writer: str
    before: Position
    """Where its writer was read to before it."""
    frame: Frame


class Pass:
    """One pass over the primary's journals. Iterate over it to the end, and write what it yields in that order."""

    def __init__(self, follower: Follower, frames: Iterator[Frame]) -> None:
        self._follower = follower
        self._frames = frames
        self.dropped: list[Frame] = []
        """The frames with drops that this pass has read, whether they were given out or are held."""
        self.frames = 0
        """How many frames were read."""
        self.bytes = 0

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    @property
    def positions(self) -> dict[str, Position]:
        """Where to read on from when everything that was given out is durable."""
        return self._follower.positions()


class Follower:
    """Reads one primary from outside. Not thread-safe. Close it."""

    def __init__(self, directory: Directory, positions: Mapping[str, Position] | None = None) -> None:
        """Begin at these positions; a writer that is not among them is read from its first frame."""
        self._dir = directory
        self._handles = SegmentHandles(directory)
        self._tails: dict[str, Tail] = {}
        self._ended: dict[str, Position] = {}
        """Writers that were read to their end, while their segments are there still (K4)."""
        self._held: list[HeldFrame] = []
        self._foreign: set[str] = set()
        self._locks_tested_us = 0
        self.damage: list[Damage] = []
        """What had been durable and cannot be read. Whoever looks at it empties it."""
        self.vanished: set[str] = set()
        """Writers of which something was read that went without being covered. Whoever looks at it empties it."""
        self._segment_losses = SegmentLosses(directory)
        self._segment_losses.begin_at(positions or {})
        for writer, position in (positions or {}).items():
            self._tails[writer] = Tail(directory, self._handles, writer, position)

    def close(self) -> None:
        """Close the files."""
        self._handles.close()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held."""
        return not self._held

    def has_ended(self, writer: str, position: Position) -> bool:
        """Tell whether a writer was read to its end, and that is here."""
        return self._ended.get(writer) == position

    def skip(self) -> None:
        """Go to the end of everything that is there, without giving it out. Raises OSError."""
        for _, _, _ in self._read(test_locks=True):
            pass
        # What a drop of that pass drops may be put where the pass had been already: one more goes by it. A drop that
        # this one meets may do the same to the first pass that gives out, and is held for that.  # mutant: skip-once
        self._held = [HeldFrame(w, before, frame) for w, before, frame in self._read(test_locks=True) if frame.drops]

    def step(self, now_us: int) -> Pass:
        """Begin a pass. `now_us` is any steady clock's. Raises OSError, also while the pass is read."""
        test_locks = not 0 <= now_us - self._locks_tested_us < LOCK_TEST_US
        if test_locks:
            self._locks_tested_us = now_us
        step = Pass(self, iter(()))
        step._frames = self._give_out(step, test_locks)
        return step

    def has_lost(self) -> bool:
        """Look whether journals have gone since the last pass that nobody was to remove. Raises OSError."""
        return self._segment_losses.has_lost()

    def forget_gone(self) -> None:
        """Forget the writers that were read to their end and have gone since. Raises OSError."""
        listing = list_all_segments(self._dir)
        self._ended = {w: p for w, p in self._ended.items() if w in listing}

    def positions(self) -> dict[str, Position]:
        """Return where to read on from when everything that was given out is durable.

        It is no consistent cut: of what is read anew, puts may have been dropped by what is not (replay.py).
        """
        found = self._ended | {w: t.seen for w, t in self._tails.items()}
        for held in reversed(self._held):  # the earliest of each writer counts  # mutant: held-counts-as-given
            found[held.writer] = held.before
        return found

    # -- reading ---------------------------------------------------------------------------------------------

    def _give_out(self, step: Pass, test_locks: bool) -> Iterator[Frame]:
        held, fresh = self._held, []
        # From the first frame on, what is held and not given out is held by positions() too.
        for writer, before, frame in self._read(test_locks):
            step.frames += 1
            step.bytes += frame.end - frame.offset
            if not frame.drops:  # mutant: drops-at-once
                if frame.puts:
                    yield frame
                continue
            fresh.append(HeldFrame(writer, before, frame))
            self._held = held + fresh
            step.dropped.append(frame)
        ready = _in_order(held, fresh)
        given = {id(h) for h in ready}
        for one in ready:
            yield one.frame
        self._held = [h for h in held + fresh if id(h) not in given]

    def _read(self, test_locks: bool) -> Iterator[tuple[str, Position, Frame]]:
        """Yield (writer, where it stood, frame) for everything that has come since the last pass."""
        listing, vanished = self._segment_losses.look()
        self.vanished |= vanished
        self._ended = {w: p for w, p in self._ended.items() if w in listing}
        for writer in listing:
            if writer not in self._tails and writer not in self._ended and writer not in self._foreign:
                self._tails[writer] = Tail(self._dir, self._handles, writer)
        for tail in list(self._tails.values()):
            yield from self._poll(tail, listing, test_locks)
            if tail.ended:
                # Its entry stays while a listing shows it: read anew it would be given out again.
                self._tails.pop(tail.writer, None)
                self._ended[tail.writer] = tail.seen

    def _poll(
        self, tail: Tail, listing: dict[str, set[int]], test_locks: bool
    ) -> Iterator[tuple[str, Position, Frame]]:
        first = True

        def present() -> set[int]:
            nonlocal first
            if first:
                first = False
                return listing.get(tail.writer, set())
            return list_all_segments(self._dir).get(tail.writer, set())

        def foreign(name: str) -> None:
            self._foreign.add(tail.writer)
            self._tails.pop(tail.writer, None)

        def damaged(damage: Damage) -> None:
            if damage.proven:
                self.damage.append(damage)

        before = tail.seen
        for frame in tail.poll(present, test_lock=test_locks, on_damage=damaged, on_foreign=foreign):
            self._segment_losses.has_read(tail.writer, tail.seen)
            yield tail.writer, before, frame
            before = tail.seen


def _in_order(held: list[HeldFrame], fresh: list[HeldFrame]) -> list[HeldFrame]:
    """Return what is held from the pass before, each after the frames that put what it drops, these included.

    Only a frame that also puts can be needed: frames without drops were given out already.
    """
    by_put: dict[bytes, HeldFrame] = {}
    for one in held + fresh:
        if one.frame.puts:
            for put in _ids(one.frame, 0):
                by_put[put] = one
    if not by_put:  # mutant: held-unordered
        return held
    done: set[int] = set()
    ordered: list[HeldFrame] = []
    for root in held:
        # Depth first without recursion: a message may have been moved thousands of times within a pass.
        stack = [(root, iter(_needs(root, by_put)))]
        if id(root) in done:
            continue
        done.add(id(root))
        while stack:
            one, needs = stack[-1]
            for need in needs:
                if id(need) not in done:
                    done.add(id(need))
                    stack.append((need, iter(_needs(need, by_put))))
                    break
            else:
                stack.pop()
                ordered.append(one)
    return ordered


def _needs(one: HeldFrame, by_put: Mapping[bytes, HeldFrame]) -> Iterable[HeldFrame]:
    return [by_put[i] for i in _ids(one.frame, 1) if i in by_put and by_put[i] is not one]


def _ids(frame: Frame, which: int) -> list[bytes]:
    """Return the ids of a frame's puts (0) or drops (1)."""
    try:
        return [r[ID] for r in records_of(frame)[which]]
    except Damaged:
        return []  # its checksums hold: it was written like this, and is copied like this
