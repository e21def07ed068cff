"""Random histories of a primary and its copy in a bucket, on a disk in memory and a store that fails.

Acts of producers and keepers happen in the middle of ticks, and ticks in the middle of acts. The shipper is killed
between any two requests. A request fails before it was done, or its answer is lost. After any of these a wheel is
restored from the bucket: it has to hold all that had been confirmed when the last complete tick began, and nothing
that had ended. At the end both have the same.

    python -m tests.model.buckets 20
"""

from __future__ import annotations

import contextlib
import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator

import filewheel.sets.bucket_target
from filewheel.disk.directory import _write, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import DiskError, FilewheelError
from filewheel.format.settings import Settings
from filewheel.sets.bucket import Listed, ObjectStore
from filewheel.sets.bucket_target import BucketTarget
from filewheel.sets.copy import Copy
from filewheel.sets.restore import _fill, _last_tick
from filewheel.sets.source import Source
from filewheel.sets.target import Tick
from tests.model.copies import A, B, CopyStage, small
from tests.model.process import Killed
from tests.model.tiny import tiny
from tests.model.volumes import Process, Volumes


class FlakyBucket(ObjectStore):
    """A bucket in memory whose requests fail, before or after they were done."""

    def __init__(self, stage: BucketStage) -> None:
        from obstore.store import MemoryStore

        super().__init__("memory:///bucket", MemoryStore())
        self._stage = stage

    def _fails(self, rate: float, why: str) -> None:
        if not self._stage.is_calm and self._stage.rng.random() < rate:
            self._stage.counts["failed"] += 1
            raise DiskError(f"the store failed ({why})", path=self.url)

    def create(self, number: int, data: bytes) -> bool:
        self._stage.before_request()
        self._fails(self._stage.failures, "it was not done")
        made = super().create(number, data)
        self._stage.counts["objects"] += made
        self._stage.after_request()
        self._fails(self._stage.failures, "the answer was lost")
        return made

    def listing(self) -> Iterator[Listed]:
        self._fails(self._stage.failures / 4, "no list")
        return super().listing()


class BucketStage(CopyStage):
    """A primary on a disk, its copy in a bucket, and the shipper."""

    def __init__(self, seed: int, *, rate: float, nest: float) -> None:
        self.is_calm = False
        self.failures = random.Random(f"failures {seed}").choice((0.0, 0.1, 0.5))
        self.epoch = 1
        self.acted = 0
        super().__init__(seed, rate=rate, nest=nest)

    def _make_copy(self) -> None:
        self.bucket = FlakyBucket(self)

    def before_request(self) -> None:
        """Act, or kill the shipper, before a request."""
        if self._judging or self.is_calm:
            return
        self._before(A)
        if self.rng.random() < 0.02:
            raise Killed

    def after_request(self) -> None:
        """Restore, or kill the shipper, after a request."""
        if self._judging or self.is_calm:
            return
        if self.rng.random() < self.rate * 3:
            self.judge(f"seed {self.seed} after a request")
        if self.rng.random() < 0.02:
            raise Killed

    def act(self) -> None:
        self.acted += 1
        super().act()

    def _compare(self, context: str) -> None:
        """Restore, and compare with the primary, which has done nothing since the tick began."""
        self._judging = True
        try:
            after = Volumes(A, B)
            self.restored(after)
            first, second = self.pending(self.volumes, A), self.pending(after, B)
            self.counts["compared"] += 1
            if first != second:
                lacks, more = first.keys() - second.keys(), second.keys() - first.keys()
                self.oracle.violations.append(f"seed {self.seed} {context}: the copy lacks {lacks}, has {more}")
        finally:
            self._judging = False

    def tick(self) -> None:
        """Let the shipper do one tick."""
        if self._in_tick:
            return
        self._in_tick = True
        before, acted = self.promised(), self.acted
        try:
            if self.copy is not None and self.copy._target.is_outgrown:  # type: ignore[attr-defined]
                self.copy = Copy(self.copy._source, self.copy._target)
                self.counts["bases"] += 1
            if self.copy is None:
                self.copier = Process(self.volumes)
                primary = open_directory(A, write=False, env=self.env(self.copier))
                self.copy = Copy(Source(primary), BucketTarget(self.bucket, primary, self.epoch))
            made = self.counts["objects"]
            done = self.copy.tick()
            if self.copy._target.needs_base:  # type: ignore[attr-defined]
                self.copy._target.commit(Tick())  # an empty wheel
            self.counts["ticks"] += 1
            self.counts["idle"] += self.counts["objects"] == made
            self.copied = before
            if done.lost:
                self.oracle.violations.append(f"seed {self.seed}: {done.lost} count as lost")
            self._in_tick = False
            if not self.is_calm and self.rng.random() < 0.3:
                self.judge(f"seed {self.seed} after a tick")
                if self.acted == acted and not self._acting:
                    self._compare("after a tick")
        except (Killed, DiskError):
            self.drop_copy()
        finally:
            self._in_tick = False

    def drop_copy(self) -> None:
        super().drop_copy()
        if self.rng.random() < 0.1:
            self.epoch += 1  # a promotion: a mark and a base

    def restored(self, volumes: Volumes) -> None:
        """Restore the bucket to the second disk."""
        was, self.is_calm = self.is_calm, True
        try:
            process = Process(volumes)
            last = _last_tick(self.bucket, list(self.bucket.listing()), is_of_a_time=False)
            theirs = last.wheel("")
            settings = Settings(id=self.rng.randbytes(16).hex(), salt=theirs.salt, slots=theirs.slots)
            env = SYSTEM.using(disk=process.open)
            disk = process.open(B)
            _write(disk, settings, B, env, lambda there: _fill(there, self.bucket, last, [], None))
            disk.sync_all()
            process.kill()
        finally:
            self.is_calm = was

    def judge(self, context: str) -> None:
        """Restore, and look into what is there."""
        self._judging = True
        state = self.rng.getstate()
        try:
            if self.bucket_has_a_tick():
                after = Volumes(A, B)
                self.counts["states"] += 1
                self.restored(after)
                self._check_copy(after, context)
                if self.rng.random() < 0.3 and not self.oracle.violations:
                    self._recover(after, context)
        finally:
            self._judging = False
            self.rng.setstate(state)
            self.rng.random()

    def bucket_has_a_tick(self) -> bool:
        """Return whether there is something to restore."""
        numbers = [one.number for one in ObjectStore.listing(self.bucket)]
        return self.bucket.last_whole(numbers) is not None

    def play(self, steps: int) -> list[str]:
        """Play a history; return its violations."""
        for _ in range(steps):
            if self.oracle.violations:
                return self.oracle.violations
            r = self.rng.random()
            self._left = 4
            if r < self._is_lazy:
                self.tick()
            elif r < self._is_lazy + 0.03:
                self.drop_copy()
            elif r < self._is_lazy + 0.06:
                self.cut()
            else:
                self.act()
        self._left, self.is_calm = 0, True
        for _ in range(2):
            if not self.oracle.violations:
                self.tick()
        if not self.oracle.violations:
            self._compare("at the end")
            self.judge("at the end")
        return self.oracle.violations


@contextlib.contextmanager
def small_objects(rng: random.Random) -> Iterator[None]:
    """Make objects small, and bases frequent."""
    module = filewheel.sets.bucket_target
    was = module.PART_BYTES, module.OBJECT_BYTES, module.BASE_BYTES_MIN, module.THREADS
    module.PART_BYTES, module.OBJECT_BYTES = rng.choice((200, 1000, 1 << 20)), rng.choice((1, 200))
    module.BASE_BYTES_MIN = rng.choice((300, 2000, 8000))
    module.THREADS = 1
    try:
        yield
    finally:
        module.PART_BYTES, module.OBJECT_BYTES, module.BASE_BYTES_MIN, module.THREADS = was


def history(seed: int, *, rate: float = 0.1, steps: int = 90) -> BucketStage:
    """Play one history."""
    rng = random.Random(f"bucket shape {seed}")
    shape = {
        "segment_bytes": rng.choice((700, 1200, 4000)),
        "fill_bytes": rng.choice((0, 400)),
        "chunk_records": rng.choice((4, 12, 50)),
    }
    with tiny(**shape), small(rng), small_objects(rng):
        stage = BucketStage(seed, rate=rate, nest=rng.choice((0.004, 0.01, 0.03)))
        try:
            stage.play(steps)
        except (AssertionError, KeyError, OSError, FilewheelError) as exc:
            stage.oracle.violations.append(f"seed {seed}: {exc!r} {traceback.format_exc()[-1200:]}")
    return stage


def main() -> int:
    """Play so many histories, from a first seed on, and print what was counted."""
    count, first = (*map(int, sys.argv[1:]), 0)[:2]
    total, bad = Counter[str](), 0
    for seed in range(first, first + count):
        stage = history(seed)
        total.update(stage.counts)
        total.update(histories=1, messages=len(stage.oracle.messages))
        for violation in stage.oracle.violations[:1]:
            bad += 1
            print("VIOLATION", seed, violation[:1500], flush=True)
    print(dict(total), bad, "violations")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
