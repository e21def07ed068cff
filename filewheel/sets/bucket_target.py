"""The place of a copy in a bucket: a tick is one object, which is there whole or not at all.

The chain of objects is the lock. Each is made under the number behind the last one, and a store makes a number once. So
of two writers one is refused; it reads the object that is there, and learns who wrote it. A wheel that takes over from
another one makes a mark with its higher epoch: the other one meets that when it next has something to write.

Nothing is remembered elsewhere: the heads of the objects since the base say what the copy has. When they are as large
as the base, a new base is made, and what is before it goes.
Invariant: nothing is written behind an object of another wheel, place or higher epoch.
"""

from __future__ import annotations

import logging
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor

from filewheel.disk.boot import machine_id
from filewheel.disk.checkpoint import Checkpoint, encode, parse_checkpoint
from filewheel.disk.directory import Directory
from filewheel.errors import Damaged, DiskError, FilewheelError
from filewheel.format import layout
from filewheel.laps.slot import files_of
from filewheel.message import US_PER_S
from filewheel.sets.bucket import Listed, ObjectStore
from filewheel.sets.pack import TAIL_BYTES, PackHead, Piece, pack, piece_of
from filewheel.sets.source import frames_in, read_at
from filewheel.sets.target import Held, Tick

log = logging.getLogger(__name__)

PART_BYTES = 4 << 20
"""A tick is written in objects of about this size: each has to go out before a request has failed."""
OBJECT_BYTES = 16 << 10
"""An object counts for at least so much more than it has: a restore asks for each."""
BASE_BYTES_MIN = 4 << 20
"""No new base is made before the packs since the last are so large."""
THREADS = 16
TAKEN_US = 7 * 24 * 3600 * US_PER_S
"""For so long the bucket keeps what a wheel that took it over has not written: that wheel may lack some of it."""


class Replaced(FilewheelError):
    """The bucket has an object of another wheel, of a higher epoch, or of another place of this wheel."""

    kind = "fenced"

    def __init__(self, what: str, *, epoch: int = 0, path: str, hint: str) -> None:
        """`epoch` is 0 for a bucket of another set."""
        super().__init__(what, path=path, hint=hint)
        self.epoch = epoch


class BucketTarget:
    """A copy in a bucket. Not thread-safe. After an error, make a new one."""

    gives_back = False

    def __init__(self, bucket: ObjectStore, primary: Directory, epoch: int, *, keep_us: int = 0) -> None:
        """`keep_us`: for how long a restore can go back to an earlier time."""
        self.bucket, self._primary, self._epoch, self._keep_us = bucket, primary, epoch, keep_us
        self._settings = primary.settings
        self._me = where_is(primary)
        self._raw = self._empty()
        self._files: dict[str, Piece] = {}
        """The last bytes of each lap and slot file."""
        self._journals: dict[str, int] = {}
        self._is_known = False
        self.needs_base = False
        """The next tick is a base, or this one."""
        self._last, self._digest, self._base = 0, b"", 0
        self._marks: list[int] = []
        self._first = self._again = 1
        """The first object of this tick, and the one from which on its journals count."""
        self._heads: list[PackHead] = []
        """Of the objects of this tick so far."""
        self._tick = Tick()
        self._puts: list[tuple[str, int, bytes]] = []
        self._is_pruned = False
        """Whether nothing from before the base is there."""
        self.base_deal = -1
        """The deal of the last base that this one made."""
        self._size_bytes = self._base_bytes = self._pack_bytes = 0

    @property
    def place(self) -> str:
        """The URL of the bucket."""
        return self.bucket.url

    def _empty(self) -> bytes:
        return encode(Checkpoint(), self._primary.seed(layout.CHECKPOINT))

    # -- what it has -----------------------------------------------------------------------------------------

    def start(self) -> Held:
        """Return what the copy has: nothing when a base is due. Cost, the first time: a read of each head since it.

        Raises Replaced, Damaged, DiskError.
        """
        if not self._is_known:
            self._find_out()
        if self.needs_base or self.is_outgrown:
            self.needs_base = True
            return Held(self._empty(), {}, {})
        return Held(self._raw, self.files(self._parse(self._raw)), dict(self._journals))

    def _parse(self, raw: bytes) -> Checkpoint:
        return parse_checkpoint(raw, self._primary.seed, self._settings.lap_of, self.bucket.url)

    @property
    def is_outgrown(self) -> bool:
        """Whether the packs since the base are as large as it: the next `start` begins a new one."""
        return self._pack_bytes > max(BASE_BYTES_MIN, self._base_bytes)

    @property
    def based(self) -> int:
        """The deal of the base, when nothing before it is kept: what had ended by then is in no object; else -1."""
        return -1 if self._keep_us or not self._is_pruned else self.base_deal

    def is_whole(self) -> bool:
        """Return whether all objects since the base are there. Cost: a request for each thousand. Raises DiskError."""
        there = {listed.number for listed in self.bucket.listing()}
        lost = [number for number in range(self._base, self._last + 1) if number not in there]
        if lost:
            log.warning("%s: the object was deleted; a new base is made", self.bucket.place(lost[0]))
        return not lost

    def files(self, checkpoint: Checkpoint) -> dict[str, int]:
        """Return the lap and slot files of a checkpoint, with what is there of each."""
        found = {}
        for file in files_of(self._settings, checkpoint):
            _, offset, length, _ = self._files.get(file.name, ("", 0, 0, 0))
            end = offset + length
            found[file.name] = file.end if end + 7 & ~7 >= file.end else end & ~7
        return found

    def differs(self, primary: Directory, files: list[tuple[str, int]]) -> bool:
        """Return whether the primary has other frames where the last bytes of a file are: no damage is that."""
        return any(self._differs(primary, name, end) for name, end in files)

    def _differs(self, primary: Directory, name: str, end: int) -> bool:
        _, offset, length, crc = self._files.get(name, ("", 0, 0, 0))
        stop = offset + length
        ours = read_at(primary, name, max(offset, stop - TAIL_BYTES), stop)
        if not length or stop > end + 7 or not ours or zlib.crc32(ours) == crc:
            return False
        whole = 0
        for frame in frames_in(primary, name, end):
            whole = frame.end if frame.offset == whole else whole
        return whole >= stop

    def _find_out(self) -> None:
        """Read the chain. Raises Replaced, DiskError."""
        numbers = [listed.number for listed in self.bucket.listing()]
        self._last = numbers[-1] if numbers else 0
        found = _last_head(self.bucket, numbers)
        self.needs_base = True
        if found is not None:
            head, digest = found
            self.check(head)
            self._marks = list(head.marks)
            is_last = head.number == self._last
            self._digest = digest if is_last else b""
            if head.epoch < self._epoch:
                self._marks.append(self._last + 1)
                self._emit(Tick(), is_last=True, is_mark=True)
                self._heads.clear()
            else:
                self.needs_base = not is_last or not self._take_over(head)
        self._is_known = True
        self._first = self._again = self._last + 1

    def check(self, head: PackHead) -> None:
        """Raise Replaced unless this wheel may write behind an object."""
        where, theirs = self.bucket.place(head.number), head.wheel(self.bucket.url)
        if theirs.salt != self._settings.salt:
            raise Replaced(
                f"this bucket has copies of another wheel, which {head.writer} writes",
                path=where,
                hint="name another prefix",
            )
        if head.epoch > self._epoch or (head.epoch == self._epoch and theirs.id != self._settings.id):
            raise Replaced(
                f"another wheel, {head.writer}, writes here (epoch {head.epoch})",
                epoch=head.epoch,
                path=where,
                hint="stop the services of this wheel; if it is to fire, `backup add --take-over` this bucket",
            )
        if head.epoch == self._epoch and head.place != self._me[1]:
            raise Replaced(
                f"the directory {head.writer} writes here, and this one is a clone of it, or was moved",
                epoch=head.epoch,
                path=where,
                hint="if it was moved, `backup add --take-over` this bucket; a clone needs a prefix of its own; if it "
                f"was set back to an image, `filewheel restore {self.bucket.url} DIR` has what it lacks",
            )

    def _take_over(self, last: PackHead) -> bool:
        """Learn what the copy has of the heads since the base; return whether all of them are there."""
        wanted = range(last.base, last.number + 1) if last.base else range(0)
        tick: list[PackHead] = []
        before, is_whole = b"", False
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                for number, found in zip(wanted, pool.map(self.bucket.head, wanted), strict=True):
                    if found is None or (before and found[0].previous != before):
                        raise Damaged("the object is missing, or is another one", path=self.bucket.place(number))
                    head, before = found
                    if head.number == head.first:
                        tick = []
                    tick.append(head)
                    if head.is_last:
                        self._absorb(tick)
                        is_whole = True
        except Damaged as exc:
            log.warning("%s; a new base is made", exc)
            return False
        return is_whole

    def _absorb(self, tick: list[PackHead]) -> None:
        """Note what a whole tick has brought."""
        last = tick[-1]
        if last.base == last.first:
            self._files, self._journals, self._raw = {}, {}, self._empty()
            self._base, self._base_bytes, self._pack_bytes = last.base, sum(head.weight for head in tick), 0
        else:
            self._pack_bytes += sum(head.weight + OBJECT_BYTES for head in tick)
        for head in tick:
            for place in head.puts:
                self._files[place[0]] = tuple(place)  # type: ignore[assignment]
            for name, offset, length, _ in head.parts if head.number >= last.again else ():
                self._journals[name] = offset + length
        self._raw = last.checkpoint or self._raw
        for name in last.gone:
            self._files.pop(name, None)
            self._journals.pop(name, None)

    # -- what a tick brings ----------------------------------------------------------------------------------

    def put(self, name: str, offset: int, data: bytes) -> None:
        """Write to a lap or slot file. It counts with the next `commit`."""
        self._puts.append((name, offset, data))
        self._grow(len(data))

    def begin(self) -> None:
        """Begin a tick: what was added for one that was not committed does not count, what was put does."""
        self._tick = Tick()
        self._again = self._last + 1

    def add(self, tick: Tick) -> None:
        """Add the journals of a part of a tick. Raises Replaced, DiskError."""
        self._tick.parts += tick.parts
        self._grow(sum(len(data) for _, _, data in tick.parts))

    def _grow(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if self._size_bytes >= PART_BYTES:
            self._emit(Tick(self._tick.parts), is_last=False)
            self._tick = Tick()

    def commit(self, tick: Tick) -> None:
        """Make the tick's last object: the tick counts with it. Raises Replaced, DiskError: it may be there then."""
        self._tick.parts += tick.parts
        self._emit(Tick(self._tick.parts, small=tick.small, checkpoint=tick.checkpoint, gone=tick.gone), is_last=True)
        self._tick = Tick()
        is_base, self.needs_base = self.needs_base, False
        self._absorb(self._heads)
        self._heads = []
        self._first = self._again = self._last + 1
        if is_base:
            self.base_deal = self._parse(self._raw).deal
            self._prune()

    def _emit(self, tick: Tick, *, is_last: bool, is_mark: bool = False) -> None:
        number = self._last + 1
        head = PackHead(
            number,
            self._settings.to_json(),
            self._epoch,
            *self._me,
            previous=self._digest,
            base=0 if is_mark else self._first if self.needs_base else self._base,
            first=number if is_mark else self._first,
            again=number if is_mark else self._again,
            is_last=is_last,
            marks=self._marks,
            puts=[piece_of(*put) for put in self._puts],
            parts=[piece_of(*part) for part in tick.parts],
            small=tick.small,
            checkpoint=tick.checkpoint,
            gone=tick.gone,
        )
        data, digest = pack(head, (data for _, _, data in (*self._puts, *tick.parts)))
        if not self.bucket.create(number, data):
            found = self.bucket.head(number)
            # After an answer that was lost, the object that is there is this one.
            if found is None or found[1] != digest:  # mutant: bucket-second-writer
                if found is not None:
                    self.check(found[0])
                raise DiskError(
                    "another process has made this object", path=self.bucket.place(number), hint="look for it"
                )
        self._last, self._digest = number, digest
        self._heads.append(head)
        self._puts, self._size_bytes = [], 0

    def _prune(self) -> None:
        """Delete what no restore needs any more. A key that may not delete is no reason to stop."""
        self._is_pruned = False
        try:
            listing = [listed for listed in self.bucket.listing() if listed.number < self._base]
            now_us = self.bucket.since_us(self._last)
            base = self._needed(listing, self._base, now_us - self._keep_us) if self._keep_us else self._base
            taken = self._marks[-1] if self._marks else 0
            theirs = self._needed(listing, taken, now_us - max(self._keep_us, TAKEN_US))
            old = {listed.number for listed in listing if listed.number < base}
            old.difference_update(self._marks)  # mutant: bucket-mark-pruned
            gone = sorted(old.difference(range(theirs, taken)))
            self.bucket.delete(gone)
            self._is_pruned = len(gone) == len(old)
        except FilewheelError as exc:
            log.warning("older objects stay: %s", exc)

    def _needed(self, listing: list[Listed], below: int, end_us: int) -> int:
        """Return the first object below a number that a restore to a time from `end_us` on needs, or that number."""
        numbers = [listed.number for listed in listing if listed.number < below]
        old = [listed.number for listed in listing if listed.number < below and listed.since_us <= end_us]
        if len(old) == len(numbers):
            return below
        oldest = self.bucket.last_whole(old)
        return 0 if oldest is None else oldest.base

    def segments(self) -> list[str]:
        """Return nothing: producers write to no bucket."""
        return []

    def has_frames(self, name: str, start: int) -> bool:
        """Return False: producers write to no bucket."""
        return False

    def beat(self) -> None:
        """Do nothing: an idle wheel costs nothing."""

    def close(self) -> None:
        """Do nothing: it has no files."""


def _last_head(bucket: ObjectStore, numbers: list[int]) -> tuple[PackHead, bytes] | None:
    """Return the last head that can be read, and its digest."""
    for number in reversed(numbers):
        try:
            found = bucket.head(number)
        except Damaged as exc:
            log.warning("%s", exc)
            continue
        if found is not None:
            return found
    return None


def epoch_for(bucket: ObjectStore, primary: Directory, epoch: int, *, take_over: bool) -> int:
    """Return the epoch in which a wheel may begin to write to a bucket; a higher one than all to take it over.

    Raises Replaced unless the bucket is empty, has been this wheel's all along, or is taken over; DiskError.
    """
    found = _last_head(bucket, [listed.number for listed in bucket.listing()])
    if found is None:
        return epoch
    target = BucketTarget(bucket, primary, found[0].epoch)
    try:
        target.check(found[0])
    except Replaced as exc:
        if not take_over or not exc.epoch:
            raise
    return max(epoch, found[0].epoch + take_over)


def where_is(primary: Directory) -> tuple[str, str]:
    """Return where a wheel is, for a person and for a comparison.

    A host's name and a path change with a container; a clone of a directory has files of its own, one of a machine
    mostly another id.
    """
    made = primary.disk.identity(layout.LOCK)
    return f"{socket.gethostname()}:{primary.path}", f"{machine_id()}:{0 if made is None else made[0]}"
