"""The follower: reads a primary's growing journals, and yields their frames in an order that is safe to copy.

A copy made journal by journal would be no consistent cut: one pass may read a drop before its put when they are in two
journals (rule D1). So a frame with drops is held for one more pass. The puts of its messages were written before it, so
the next pass reads them; at its end the frame is yielded, after the frames with those puts. Frames are yielded whole,
so a move stays one commit. Frames without drops are yielded at once.

Memory: the frames with drops of one pass.
Invariant: a drop is yielded after its put, if the primary's journals held the put; a reader that resumes from
`Pass.positions` gets everything that was not yielded before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from filewheel.disk.checkpoint import Position
from filewheel.disk.directory import Directory
from filewheel.disk.quarantine import Damage
from filewheel.format.frame import Frame
from filewheel.format.record import ID, readable_records
from filewheel.journal.tail import Tail
from filewheel.replication.primary_journals import SegmentHandles, SegmentLosses, list_all_segments

LOCK_TEST_US = 200_000


@dataclass(slots=True)
class HeldFrame:
    """A frame with drops that waits for the end of the next pass."""

    writer: str
    before: Position
    """The position of its writer before the frame."""
    frame: Frame


class Pass:
    """One pass over the primary's journals. Iterate over it to the end, and write its frames in that order."""

    def __init__(self, follower: Follower, frames: Iterator[Frame]) -> None:
        self._follower = follower
        self._frames = frames
        self.dropped: list[Frame] = []
        """The frames with drops that this pass has read, yielded or held."""
        self.frames = 0
        """The number of frames that were read."""
        self.bytes = 0

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    @property
    def positions(self) -> dict[str, Position]:
        """The positions to resume from once every yielded frame is durable."""
        return self._follower.positions()


class Follower:
    """Reads one primary from outside. Not thread-safe. Close it."""

    def __init__(self, directory: Directory, positions: Mapping[str, Position] | None = None) -> None:
        """Start at these positions; a writer without one is read from its first frame."""
        self._dir = directory
        self._handles = SegmentHandles(directory)
        self._tails: dict[str, Tail] = {}
        self._ended: dict[str, Position] = {}
        """Writers that were read to their end, with segments that are still listed (K4)."""
        self._held: list[HeldFrame] = []
        self._foreign: set[str] = set()
        self._locks_tested_us = 0
        self.damage: list[Damage] = []
        """Unreadable bytes that had been durable. The caller clears it."""
        self.vanished: set[str] = set()
        """Writers with an uncovered segment that was deleted after a read from it. The caller clears it."""
        self._segment_losses = SegmentLosses(directory)
        self._segment_losses.begin_at(positions or {})
        for writer, position in (positions or {}).items():
            self._tails[writer] = Tail(directory, self._handles, writer, position)

    def close(self) -> None:
        """Close the files."""
        self._handles.close()

    @property
    def is_idle(self) -> bool:
        """Whether no frame is held."""
        return not self._held

    def has_ended(self, writer: str, position: Position) -> bool:
        """Return whether this position is the end of a writer's journal."""
        return self._ended.get(writer) == position

    def skip(self) -> None:
        """Read to the end of all journals without yielding anything. Raises OSError."""
        for _, _, _ in self._read(test_locks=True):
            pass
        # A drop of that pass may belong to a put that was written behind the reader: a second pass skips the put. A
        # drop of the second pass may belong to a put of the next pass: it is held.
        self._held = [HeldFrame(w, before, frame) for w, before, frame in self._read(test_locks=True) if frame.drops]

    def step(self, now_us: int) -> Pass:
        """Start a pass. `now_us` is of any steady clock. Raises OSError, also while the pass is read."""
        test_locks = not 0 <= now_us - self._locks_tested_us < LOCK_TEST_US
        if test_locks:
            self._locks_tested_us = now_us
        step = Pass(self, iter(()))
        step._frames = self._give_out(step, test_locks)
        return step

    def has_lost(self) -> bool:
        """Return whether an uncovered segment was deleted since the last pass. Raises OSError."""
        return self._segment_losses.has_lost()

    def forget_gone(self) -> None:
        """Forget the writers that were read to their end and are no longer listed. Raises OSError."""
        listing = list_all_segments(self._dir)
        self._ended = {w: p for w, p in self._ended.items() if w in listing}

    def positions(self) -> dict[str, Position]:
        """Return the positions to resume from once every yielded frame is durable.

        They are no consistent cut: a put may be above them and its drop below them (shipping.py:still_pending).
        """
        found = self._ended | {w: t.seen for w, t in self._tails.items()}
        for held in reversed(self._held):  # the earliest of each writer counts  # mutant: held-counts-as-given
            found[held.writer] = held.before
        return found

    # -- reading ---------------------------------------------------------------------------------------------

    def _give_out(self, step: Pass, test_locks: bool) -> Iterator[Frame]:
        held, fresh = self._held, []
        # positions() stays below all held frames.
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
        """Yield (writer, position before the frame, frame) for each frame since the last pass."""
        listing, vanished = self._segment_losses.look()
        self.vanished |= vanished
        self._ended = {w: p for w, p in self._ended.items() if w in listing}
        for writer in listing:
            if writer not in self._tails and writer not in self._ended and writer not in self._foreign:
                self._tails[writer] = Tail(self._dir, self._handles, writer)
        for tail in list(self._tails.values()):
            yield from self._poll(tail, listing, test_locks)
            if tail.ended:
                # The entry stays while the segments are listed, or they would be read and yielded again.
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
            read = Position(tail.seen.segment, frame.end, frame.number)
            self._segment_losses.has_read(tail.writer, read)
            yield tail.writer, before, frame
            before = read


def _in_order(held: list[HeldFrame], fresh: list[HeldFrame]) -> list[HeldFrame]:
    """Return the frames held from the previous pass, each preceded by the held frames with the puts of its drops.

    Only held frames count: frames without drops were yielded already.
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
        # Depth first without recursion: a message may move thousands of times within a pass.
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
    """Return the ids of a frame's puts (0) or drops (1); none if they are invalid: the frame is copied unchanged."""
    return [r[ID] for r in readable_records(frame)[which]]
