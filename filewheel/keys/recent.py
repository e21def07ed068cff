"""The file of recent entries of the index of keys, as one handle has read it.

Batches enter their keys there, and a merge moves them to the buckets (index.py). The file only grows at its end, until
another replaces it, which has another random id in its mark. A handle keeps the parsed entries and
reads only new ones.
Invariant: the parsed entries reach to `end` without a gap, or they were read under a lock that excludes writers.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterable, Sequence

from filewheel.disk.directory import Directory
from filewheel.errors import disk_error
from filewheel.format import layout
from filewheel.keys.bucket import (
    ENTRY_BYTES,
    KeyEntry,
    end_of,
    entries,
    is_marked,
    listed,
    pack_entry,
    read_bucket,
    run_of,
)

RECENT_ENTRIES_MAX = 1 << 15
"""With more entries the file is merged into the buckets. A handle remembers them, at about 200 bytes each."""
RECENT_BYTES_MAX = 1 << 24
"""A longer file is invalid: torn entries and zeros written ahead need far less."""
_AHEAD_BYTES = 16 * 1024
"""How much is read after the known entries: nearly always all new ones."""
_SEARCHED_MAX = 64
"""After a search for so many keys the file is parsed, which takes about as long."""


class ParsedEntries:
    """The parsed entries of one file: `ids` of each hash, joined, and the offset where reading goes on."""

    __slots__ = ("end", "ids", "last", "mark")

    def __init__(self, mark: bytes) -> None:
        self.mark = mark
        """Its first bytes; no mark when it has none yet."""
        self.ids: dict[bytes, bytes] = {}
        self.end = ENTRY_BYTES
        self.last = mark
        """The bytes before `end`."""

    def add(self, pairs: Iterable[tuple[bytes, bytes]], end: int, last: bytes) -> None:
        """Take in entries that end where reading goes on."""
        ids = self.ids
        for hash_, id_ in pairs:
            before = ids.get(hash_)
            ids[hash_] = id_ if before is None else before + id_
        self.end, self.last = end, last

    def of(self, hash_: bytes) -> list[bytes]:
        """Return the ids that are listed for a key, in the order in which they were written."""
        ids = self.ids.get(hash_)
        return [] if ids is None else [ids[at : at + 16] for at in range(0, len(ids), 16)]


class Recent:
    """Reads the file of recent entries of one wheel. Thread-safe. Memory is bounded by the largest file."""

    def __init__(self, directory: Directory) -> None:
        self._disk = directory.disk
        self._name = layout.key_file(layout.KEY_RECENT)
        self._place = directory.place(self._name)
        self._seed = directory.seed(self._name)
        self._seen: ParsedEntries | None = None
        self._searched = 0
        self._lock = threading.RLock()
        """Held while `_seen` changes, and never during a disk operation."""

    def listed(self, hashes: Sequence[bytes], *, is_still: bool) -> dict[bytes, list[bytes]]:
        """Return the ids listed here for each key; keys without ids are left out.

        With `is_still` the caller holds the lock that excludes writers. Raises Damaged, DiskError.
        """
        seen = self._read(len(hashes), is_still)
        if isinstance(seen, bytes):
            found = {hash_: listed(seen, self._seed, hash_) for hash_ in hashes}
        elif seen is None:
            found = {}
        else:
            found = {hash_: seen.of(hash_) for hash_ in hashes if hash_ in seen.ids}
        return {hash_: ids for hash_, ids in found.items() if ids}

    def still(self) -> ParsedEntries:
        """Return the entries of the file, for a caller that will write to it. Raises Damaged, DiskError."""
        seen = self._read(_SEARCHED_MAX, is_still=True)
        assert not isinstance(seen, bytes)
        return ParsedEntries(b"") if seen is None else seen

    def added(
        self, seen: ParsedEntries, mark: bytes, pairs: Sequence[tuple[bytes, bytes]], end: int, last: bytes
    ) -> None:
        """Add the entries that were written to the file that `still` returned."""
        with self._lock:
            self._seen = None  # if this is interrupted, it is read again
            seen.mark = mark
            seen.add(pairs, end, last)
            self._seen = seen

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, asked: int, is_still: bool) -> ParsedEntries | bytes | None:
        """Return the parsed file, or its bytes to search; None when there is no file."""
        disk = self._disk
        try:
            fd = disk.open(self._name, "r")
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise disk_error(exc, self._place) from exc
        try:
            seen = self._seen
            # mutant: key-recent-of-before
            if seen is not None and disk.pread(fd, ENTRY_BYTES, 0) == seen.mark and self._read_on(fd, seen, is_still):
                return seen
            data = read_bucket(disk, fd, self._place, RECENT_BYTES_MAX)
        except OSError as exc:
            raise disk_error(exc, self._place) from exc
        finally:
            disk.close(fd)
        return self._parse(data, asked, is_still)

    def _read_on(self, fd: int, seen: ParsedEntries, is_still: bool) -> bool:
        """Read the new entries at the end; return False when the whole file has to be read again."""
        start, last = seen.end, seen.last
        for size in (_AHEAD_BYTES, RECENT_BYTES_MAX):
            data = self._disk.pread(fd, size, start - len(last))
            if not data.startswith(last):  # mutant: key-recent-taken-back
                return False  # parsed bytes were removed: a write failed
            pairs, end = run_of(data, self._seed, len(last))
            if end + ENTRY_BYTES <= size:
                break
        # The next entry is written where the last one ends: zeros there mean no more.
        if data[end : end + ENTRY_BYTES].strip(b"\0"):
            return False
        if pairs:
            with self._lock:
                if (seen.end, seen.last) == (start, last):  # else another thread has read them too
                    self._seen = None
                    seen.add(pairs, start - len(last) + end, data[end - ENTRY_BYTES : end])
                    self._seen = seen
        return True

    def _parse(self, data: bytes, asked: int, is_still: bool) -> ParsedEntries | bytes:
        """Parse the whole file, or leave it to be searched for a few keys."""
        self._searched += asked
        seen = ParsedEntries(data[:ENTRY_BYTES])
        marked = is_marked(data, self._seed)
        if not is_still and (not marked or self._searched < _SEARCHED_MAX):
            return data
        pairs, end = run_of(data, self._seed, ENTRY_BYTES)
        if data[end:].strip(b"\0"):
            if not is_still:
                return data  # torn, or being written: later entries may come into the gap  # mutant: key-recent-gap
            pairs = [(e.hash, e.id) for e in entries(data, self._seed) if isinstance(e, KeyEntry)]
            end = end_of(data, self._seed)
        seen.add(pairs, max(end, ENTRY_BYTES), data[max(end, ENTRY_BYTES) - ENTRY_BYTES : end])
        if marked:
            self._searched = 0
            with self._lock:
                self._seen = seen
        return seen

    # -- packing ---------------------------------------------------------------------------------------------

    def pack_mark(self) -> bytes:
        """Pack the mark: the name is durable, and its id identifies the file."""
        return pack_entry(self._seed, bytes(16), secrets.token_bytes(16))

    def pack(self, pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Pack entries (hash, id)."""
        return b"".join([pack_entry(self._seed, hash_, id_) for hash_, id_ in pairs])
