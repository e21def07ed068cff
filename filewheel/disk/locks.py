"""Short kernel locks: those of the keys' buckets, and those of the ids that move or end.

A waiting call polls: a wait in the kernel has no time-out, and the holder may be stopped. The first use makes the
file of a lock; it is never removed.

The rules of ids (docs/adr/0028-one-move-wins.md):

V1 A call that moves or cancels a pending message holds the lock of its id from its check to its frame.
V2 The keeper puts messages back under these locks too, and never waits for one.
Locks of keys are taken before those of ids, and each kind in ascending order.
Format: docs/format.md, 13.
Invariant: at most one call for one id is between check and frame.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from filewheel.disk.directory import Directory
from filewheel.env import Disk
from filewheel.errors import UNWRITTEN, Locked, disk_error
from filewheel.format import layout

WAIT_S = 30.0
"""How long a producer waits for a lock."""
_PAUSE_S = 0.0005
_PAUSE_MAX_S = 0.02


def open_made(disk: Disk, name: str) -> int:
    """Open a file for writing; make it and its directory if necessary."""
    try:
        return disk.open(name, "rw")
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            disk.mkdir(name.rpartition("/")[0])
        return disk.open(name, "rw")


def take(directory: Directory, name: str, wait_s: float, *, shared: bool = False) -> int | None:
    """Take the lock of a file; return its descriptor, or None when it stays held for longer than `wait_s`.

    With `shared`, take it shared.
    """
    disk = directory.disk
    try:
        fd = open_made(disk, name)
        waited_s, pause_s = 0.0, _PAUSE_S
        try:
            while not (disk.share(fd) if shared else disk.lock(fd, wait=False)):  # mutant: id-unlocked key-unlocked
                if waited_s >= wait_s:
                    disk.close(fd)
                    return None
                disk.wait_hint(None, pause_s)
                waited_s += pause_s
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        except BaseException:
            disk.close(fd)
            raise
        return fd
    except OSError as exc:
        raise disk_error(exc, directory.place(name), undone=UNWRITTEN) from exc


def bucket_of(id_: bytes) -> int:
    """Return the number of an id's lock."""
    return id_[-1] % layout.ID_BUCKETS


@contextlib.contextmanager
def trying_ids(directory: Directory, ids: Iterable[bytes], *, wait_s: float = 0) -> Iterator[frozenset[int]]:
    """Hold the locks of ids in a `with`; yield the buckets held by others: leave their ids unchanged.

    Cost: about 10 µs for each of at most 16 locks.
    """
    busy: set[int] = set()
    with contextlib.ExitStack() as held:
        for bucket in sorted({bucket_of(i) for i in ids}):
            fd = take(directory, layout.id_lock(bucket), wait_s)
            if fd is None:
                busy.add(bucket)
            else:
                held.callback(directory.disk.close, fd)
        yield frozenset(busy)


@contextlib.contextmanager
def holding_ids(directory: Directory, ids: Iterable[bytes]) -> Iterator[None]:
    """Hold the locks of ids in a `with`; raise Locked when another process holds one for half a minute."""
    with trying_ids(directory, ids, wait_s=WAIT_S) as busy:
        if busy:
            raise Locked(
                "another process is in the middle of moving or cancelling a message, and does not go on",
                role="id", path=directory.path, hint="continue or kill the stopped process",
            )  # fmt: skip
        yield
