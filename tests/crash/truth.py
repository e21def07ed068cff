"""What a damaged wheel may still deliver, told by the reader that shares no code with filewheel.

From docs/format.md (section 8 to 11) and docs/guarantees.md ("When things go wrong"): which frames count, which of
them a change of bytes hit, what is pending without those, and whether later frames prove that they had been durable.
Invariant: nothing here asks the library under test what is in a file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack

from filewheel.message import Message, MessageId
from tests import support_reader as reader
from tests.crash.memory import Image


@dataclass(frozen=True, eq=False)
class Part:
    """A frame that counts: it lies below a covered length, or in a journal behind its position."""

    name: str
    at: int
    end: int
    """Without padding."""
    number: int
    synced: int
    is_seal: bool
    puts: dict[bytes, list[Any]]
    drops: frozenset[bytes]


@dataclass
class View:
    """What one checkpoint, or none, makes of the files."""

    parts: dict[str, list[Part]]
    unmatched: frozenset[bytes]
    numbers: dict[str, int]
    """writer → the number of the last frame that was covered; -1 when that is not known."""

    def __post_init__(self) -> None:
        self.pending = lru_cache(maxsize=4096)(self._pending)

    def hits(self, image: Image, changes: Mapping[str, bytes]) -> frozenset[Part]:
        """Return the frames of which a byte was changed or cut off."""
        return frozenset(
            part
            for name, data in changes.items()
            for part in self.parts.get(name, ())
            if data[part.at : part.end] != image.files[name][part.at : part.end]
        )

    def _pending(self, lost: frozenset[Part]) -> list[Message]:
        """Return what is pending without some frames, in the order of ids (section 11)."""
        puts: dict[bytes, list[Any]] = {}
        drops = set(self.unmatched)
        for parts in self.parts.values():
            for part in parts:
                if part not in lost:
                    puts |= part.puts
                    drops |= part.drops
        return [message(puts[i]) for i in sorted(puts.keys() - drops)]

    def proven(self, lost: Collection[Part]) -> set[str]:
        """Name the writers of whom a later frame proves that a lost one had been durable (section 8)."""
        writers: dict[str, list[Part]] = {}
        starts: dict[str, int] = {}
        for name in sorted(n for n in self.parts if n.startswith("journal/")):
            writer = writer_of(name)
            writers.setdefault(writer, []).extend(self.parts[name])
            starts.setdefault(writer, self.numbers.get(writer, 0 if name.endswith("-000001.log") else -1))
        found = set()
        for writer, parts in writers.items():
            number = starts[writer]
            whole = [part for part in parts if part not in lost]
            for i, part in enumerate(whole):
                before = part.number if part.is_seal else part.number - 1
                if number >= 0 and before > number and max(p.synced for p in whole[i:]) > number:
                    found.add(writer)
                number = part.number
        return found


def writer_of(name: str) -> str:
    """Return the writer of a segment."""
    return name[8:16]


def message(record: list[Any]) -> Message:
    """Turn a put's fields into a message."""
    _, id_, root, enqueued, attempt, topic, headers, payload = record
    root = None if root is None else MessageId(root)
    return Message(MessageId(id_), payload, topic, headers, attempt, enqueued, root)


class Truth:
    """Tells what is right for one image, whatever is done to its bytes."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.settings = reader.settings(image.files["wheel.json"])
        self.salt = bytes.fromhex(self.settings["salt"])
        present = self._checkpoint(image.files["checkpoint"])
        assert present is not None
        self.view = self._view(present, doubt=False)
        self.old = self._view(self._checkpoint(image.files["checkpoint.old"]), doubt=True)
        assert self.view.parts != self.old.parts

    def view_of(self, changes: Mapping[str, bytes]) -> View:
        """Return the view of the checkpoint that a reader has to take (section 10)."""
        data = changes.get("checkpoint")
        return self.view if data is None or self._checkpoint(data) is not None else self.old

    def spare_is_whole(self, data: bytes) -> bool:
        """Tell whether these bytes can stand for checkpoint.old."""
        return self._checkpoint(data) is not None

    def _seed(self, name: str) -> int:
        return reader.seed_of(self.salt, name)

    def _checkpoint(self, data: bytes) -> dict[str, Any] | None:
        frame = reader.frame_at(data, 0, self._seed("checkpoint"))
        return None if frame is None else dict(msgpack.unpackb(frame.body))

    def _view(self, fields: dict[str, Any] | None, *, doubt: bool) -> View:
        fields = fields or {"positions": {}, "laps": [], "slots": [], "unmatched": b""}
        positions: dict[str, list[int]] = fields["positions"]
        lengths = reader.lengths(fields, self.settings["slots"])
        parts = {}
        for name, data in self.image.files.items():
            if name.startswith("journal/"):
                segment, offset, _ = positions.get(writer_of(name), [1, 0, 0])
                n = int(name[17:-4])
                if n >= segment:
                    parts[name] = self._parts(name, data, offset if n == segment else 0, len(data))
            elif name.startswith("laps/") and (doubt or name in lengths):
                parts[name] = self._parts(name, data, 0, len(data) if doubt else lengths[name])
        ids = fields["unmatched"]
        unmatched = frozenset(ids[i : i + 16] for i in range(0, len(ids), 16))
        # What an old checkpoint did not cover, the one after it may have, and its journal is gone.
        numbers = {
            w: p[2] for w, p in positions.items() if not doubt or f"journal/{w}-{p[0]:06}.log" in self.image.files
        }
        return View(parts, unmatched, numbers)

    def _parts(self, name: str, data: bytes, start: int, end: int) -> list[Part]:
        found, _ = reader.frames(data, start, end, self._seed(name))
        parts = []
        for frame in found:
            records = reader.records(frame.body)
            puts = {r[1]: r for r in records if r[0] == 1}
            drops = frozenset(r[1] for r in records if r[0] == 2)
            is_seal = not records
            parts.append(
                Part(name, frame.at, frame.at + 72 + frame.size, frame.number, frame.synced, is_seal, puts, drops)
            )
        return parts
