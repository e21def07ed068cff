"""Makes a wheel of a copy in a bucket, on a machine that has nothing else.

It reads the last whole tick's base and all objects behind that, checks each, and writes the files that they have. The
directory becomes a wheel with its last file. It is as a crash of the primary at that tick could have left it, with an
id of its own and in no set.
Invariant: nothing is restored of an object that fails its checksum, and no directory that has files is written to.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from filewheel.checks import check_path
from filewheel.disk.directory import Directory, create_directory
from filewheel.disk.disk import SYSTEM
from filewheel.disk.replace import write_aside
from filewheel.env import Env
from filewheel.errors import BadArgument, Damaged, FilewheelError, NoWheel
from filewheel.format import layout
from filewheel.message import US_PER_S, to_datetime
from filewheel.sets.bucket import Listed, ObjectStore
from filewheel.sets.bucket_target import THREADS
from filewheel.sets.members import finish_copy
from filewheel.sets.pack import Pack, PackHead, parse_object_name
from filewheel.sets.target import Target, Tick

Progress = Callable[[int, int], None]
"""Called with (objects that were read, objects in all)."""


@dataclass(frozen=True)
class Restored:
    """A wheel that was restored."""

    path: str
    url: str
    at_us: int
    """When its last object was made, by the clock of the store: what came later is not in it."""
    number: int
    """The number of that object."""
    epoch: int
    writer: str
    """Where the primary was: host and path."""
    objects: int
    size_bytes: int


def restore(
    url: str,
    path: str | os.PathLike[str],
    *,
    at: datetime | None = None,
    progress: Progress | None = None,
    force: bool = False,
    env: Env = SYSTEM,
) -> Restored:
    """Make a wheel at `path` of a copy in a bucket, as it was at a time or at its last tick. On return it is durable.

    Messages that were acknowledged after that tick fire again. The wheel is in no set.

    Raises WheelExists when the directory is not empty, NoWheel when the bucket has no copy of that time, Damaged when
    an object does not verify, DiskError.
    """
    where, bucket = check_path(path), ObjectStore(url)
    if at is not None and at.tzinfo is None:
        raise BadArgument("at is a time with a time zone", hint="datetime.now(timezone.utc)")
    listed = list(bucket.listing())
    if at is not None:
        end_us = round(at.timestamp() * US_PER_S)
        if end_us > env.clock.now_us():
            raise BadArgument(f"{at.isoformat()} is in the future", hint="write the day too, as 2027-01-31T09:00")
        listed = [one for one in listed if one.since_us <= end_us]
    last = _last_tick(bucket, listed, is_of_a_time=at is not None)
    wheel = last.wheel(bucket.url)
    sizes: list[int] = []

    def fill(directory: Directory) -> None:
        with _earlier_offered(bucket, listed):
            _fill(directory, bucket, last, sizes, progress)

    try:
        create_directory(
            where,
            slots=wheel.slots,
            sync=wheel.sync,
            payload_bytes_max=wheel.payload_bytes_max,
            salt=wheel.salt,
            fill=fill,
            now_us=env.clock.now_us(),
            force=force,
            env=env,
        )
    except Damaged:
        now = bucket.last_whole([one.number for one in bucket.listing()])
        if at is None and now is not None and now.base > last.number:  # a new base took the place of all that
            return restore(url, path, progress=progress, force=force, env=env)
        raise
    since_us = next(one.since_us for one in listed if one.number == last.number)
    return Restored(where, url, since_us, last.number, last.epoch, last.writer, len(sizes), sum(sizes))


def _last_tick(bucket: ObjectStore, listed: list[Listed], *, is_of_a_time: bool) -> PackHead:
    with _earlier_offered(bucket, listed):
        last = bucket.last_whole([one.number for one in listed])
    if last is None:
        when = " of that time" if is_of_a_time else ""
        raise NoWheel(
            f"this bucket has no copy{when}",
            path=bucket.url,
            hint="look at the URL, and at the time: older objects are deleted unless `--keep` is given",
        )
    return last


def _fill(
    directory: Directory, bucket: ObjectStore, last: PackHead, sizes: list[int], progress: Progress | None
) -> None:
    """Write the files of all objects from a base to the last one of a tick."""
    target = Target(directory)
    small: dict[str, bytes] = {}
    checkpoint = b""
    tick: list[Pack] = []
    try:
        for pack in _objects(bucket, last):
            sizes.append(pack.head.size)
            if pack.head.number == pack.head.first:
                tick = []
            tick.append(pack)
            if pack.head.is_last:
                _write(target, tick)
                small |= dict(pack.head.small)
                checkpoint = pack.head.checkpoint or checkpoint
            if progress is not None:
                progress(len(sizes), last.number - last.base + 1)
        for name, content in small.items():
            write_aside(directory.disk, layout.SMALL_TMP, content)
            directory.disk.rename(layout.SMALL_TMP, name)
        target.apply(Tick(checkpoint=checkpoint))  # without one, that of an empty wheel stays: the primary has that too
    finally:
        target.close()
    finish_copy(directory)
    directory.disk.sync_all()


def _write(target: Target, tick: list[Pack]) -> None:
    """Do what a whole tick says, but its small files and checkpoint: the last ones of all count."""
    last = tick[-1].head
    for pack in tick:
        for name, offset, data, is_part in pack.pieces():
            if not is_part or pack.head.number >= last.again:
                target.apply(Tick(parts=[(name, offset, bytes(data))]))
    target.apply(Tick(gone=last.gone))


def _objects(bucket: ObjectStore, last: PackHead) -> Iterator[Pack]:
    """Yield the objects of a copy in their order. Raises Damaged when one is not there, or is another one."""
    before = b""
    with ThreadPoolExecutor(THREADS) as pool:
        for start in range(last.base, last.number + 1, THREADS):
            numbers = range(start, min(start + THREADS, last.number + 1))
            for number, pack in zip(numbers, pool.map(bucket.read, numbers), strict=True):
                if pack is None:
                    raise Damaged("the object is missing", path=bucket.place(number))
                if before and pack.head.previous != before:
                    raise Damaged("the object does not follow the one before it", path=bucket.place(number))
                before = pack.digest
                yield pack


@contextlib.contextmanager
def _earlier_offered(bucket: ObjectStore, listed: list[Listed]) -> Iterator[None]:
    """Give an error about one object a hint: the last time before it that can be restored."""
    try:
        yield
    except Damaged as exc:
        number = parse_object_name((exc.path or "").rpartition("/")[2])
        if number is not None:
            raise Damaged(exc.what, path=exc.path, hint=_earlier(bucket, listed, number)) from exc
        raise


def _earlier(bucket: ObjectStore, listed: list[Listed], number: int) -> str:
    end_us = min((one.since_us for one in listed if one.number >= number), default=0)
    old = {one.number: one.since_us for one in listed if one.since_us < end_us}
    with contextlib.suppress(FilewheelError):
        last = bucket.last_whole(list(old))
        if last is not None and not last.base <= number <= last.number:
            return f"`--at {to_datetime(old[last.number]).isoformat()}` restores what was there before it"
    return "no older copy is kept (`--keep`); if the primary is there, its replicator makes a new base"
