"""Entries of the index of keys that were written and not flushed: those of messages that need not be durable yet.

They are flushed when the journal with their messages is, before it counts as flushed (docs/adr/0038-a-key-that-is-not-
flushed.md). So whatever says that a message is durable, its receipt or a later frame of its writer, says it of its
entry too.
Invariant: a file whose flush failed, or was cut short, is flushed again before the journal counts as flushed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable

from filewheel.disk.directory import Directory
from filewheel.disk.disk import Disk
from filewheel.format import layout
from filewheel.keys.bucket import ENTRY_BYTES, is_marked, pack_mark

SYNC_EACH_MAX = 4
"""More files than this are flushed by one `syncfs`: 16 flushes one by one took ten times as long."""


class Unflushed:
    """The buckets in which one handle has written such entries. Thread-safe."""

    def __init__(self, directory: Directory) -> None:
        self._dir = directory
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._buckets: set[int] = set()

    def add(self, buckets: Iterable[int]) -> None:
        """Note that something is about to be written to these buckets."""
        with self._lock:
            self._buckets.update(buckets)

    def flush(self) -> None:
        """Make all of it durable. Raises OSError. Cost: nothing where there is none."""
        if not self._buckets:
            return
        # Whoever comes second relies on what the first has taken over: it waits until that is flushed.
        with self._flushing:
            with self._lock:
                buckets, self._buckets = self._buckets, set()
            try:
                flush_buckets(self._dir, buckets)
            except BaseException:  # an interrupt (Ctrl-C) too
                self.add(buckets)
                raise


def flush_buckets(directory: Directory, buckets: Collection[int]) -> None:
    """Make durable what anyone has written to these buckets, and their names. Raises OSError."""
    disk = directory.disk
    if len(buckets) > SYNC_EACH_MAX:
        disk.sync_all()
        return
    unnamed: list[tuple[int, bytes]] = []
    try:
        for bucket in sorted(buckets):
            name = layout.key_file(bucket)
            seed = directory.seed(name)
            try:
                fd = disk.open(name, "r+")
            except FileNotFoundError:
                continue  # taken away by hand
            # The file of recent entries tells by its mark which file it is: only who has its lock makes one.
            unnamed.append((fd, b"" if bucket == layout.KEY_RECENT else pack_mark(seed)))
            disk.fdatasync(fd)
            if is_marked(disk.pread(fd, ENTRY_BYTES, 0), seed):
                disk.close(unnamed.pop()[0])
        if unnamed:
            settle_names(disk)
            for fd, mark in unnamed:  # this very file had its name before the names were flushed
                with contextlib.suppress(OSError):  # without it, whoever flushes next flushes the names as well
                    disk.pwrite(fd, mark, 0)
    finally:
        for fd, _ in unnamed:
            disk.close(fd)


def settle_names(disk: Disk) -> None:
    """Make the names of all files of keys durable, and that of their directory."""
    disk.sync_dir(layout.KEYS)
    disk.sync_dir("")
