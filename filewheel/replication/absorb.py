"""Absorbing: a new primary gets the messages that only another wheel of its set has.

The former primary, or a backup that was ahead of the promoted one, may have messages that the new primary never got. A
message that is pending there and not here may also have been fired here since the promotion. For this purpose the new
primary retains its journals since then: a message with a drop in them, or in a slot file, ended here. A message with a
drop in the other wheel is dropped here too. Both steps add to sets, so they may be repeated or interrupted.
Invariant: after `run`, every message that only the other wheel had is durable in the primary.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from filewheel.disk.directory import Directory
from filewheel.errors import KeyHeld
from filewheel.format.record import ACKED, CANCELLED, ID, key_of, pack_drop, pack_message, unpack_put
from filewheel.journal.journal import Journal
from filewheel.keys import unique
from filewheel.keys.index import Keys
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import DEAD_US, ID_END, ID_MIN, REASON, Message
from filewheel.replication.compare import compare, dropped, pending
from filewheel.replication.primary_journals import dropped_among, drops_above
from filewheel.replication.shipping import Bundle
from filewheel.roster.retention import Retention

log = logging.getLogger(__name__)

_BATCH = 10_000

Progress = Callable[[str, int, int], None]


@dataclass
class Absorbed:
    """The result of absorbing a wheel."""

    kept: int = 0
    """Messages that only the other wheel had, now in the primary."""
    dropped: int = 0
    """Messages that were finished only in the other wheel."""
    notes: list[str] = field(default_factory=list)


class Absorption:
    """Gives a primary the messages that only another wheel of its set has. Call `run` once."""

    def __init__(
        self,
        old: Directory,
        new: Directory,
        *,
        overflow: int | None,
        progress: Progress | None = None,
    ) -> None:
        """Absorb `old` into the primary `new`.

        `overflow` is the primary's overflow counter at the time of its promotion, if it is known.
        """
        self._old = old
        self._new = new
        self._overflow = overflow
        self._progress = progress
        self._result = Absorbed()
        self._ended: set[bytes] = set()
        """Messages pending in the new primary of which a file of the other wheel has a drop."""
        self._journal = Journal(new)
        self._keys = Keys(new)

    def run(self) -> Absorbed:
        """Copy the differences. On return they are durable in the primary. Raises DiskError, Damaged."""
        with contextlib.closing(self._journal):
            only_old = self._only_in_old()
            if only_old:
                only_old -= dropped_among(self._new, only_old)  # mutant: rejoin-fired-again
                self._check_complete()  # mutant: rejoin-unsaid
            # Drops first: a message that was moved there still has its key here, under its old id.
            self._drop_fired()  # mutant: rejoin-acks-lost rejoin-keeps-before-drops
            self._keep(sorted(only_old))
            self._journal.flush()
        return self._result

    def _only_in_old(self) -> set[bytes]:
        found: set[bytes] = set()
        lo, done = ID_MIN, 0
        with Snapshot(self._old) as snapshot:
            total = snapshot.checkpoint.file_bytes + sum(s.end - s.start for s in snapshot.journals)
        while lo < ID_END:
            chunk = compare(self._old, self._new, lo)
            found.update(put[ID] for put in chunk.missing)
            # A backup's journals are gone once they are dealt: then only a slot file has the drop.
            self._ended |= dropped(self._old, chunk.extra)  # mutant: rejoin-slot-drops
            done += chunk.count
            lo = chunk.hi
            if self._progress is not None:
                self._progress(self._old.path, done, total)
        return found

    def _check_complete(self) -> None:
        """Add a note if the new primary has not retained all its drops: it may have fired some of the messages."""
        if self._overflow is None or Retention(self._new, limit_bytes=1 << 62).overflow() != self._overflow:
            self._result.notes.append(
                "the new primary has not retained all journals since then: messages added to it may have fired there"
            )

    def _keep(self, ids: list[bytes]) -> None:
        for at in range(0, len(ids), _BATCH):
            some = set(ids[at : at + _BATCH])
            # A drop may be in a slot file here and in no journal. A put of its message would not be pending here, but
            # in a backup that never had the message; and if its key is taken, it would become a dead letter.
            some -= dropped(self._new, some)  # mutant: rejoin-revives-in-backups
            with Snapshot(self._old) as snapshot:
                puts = list(snapshot.find(some).values())
            bundle = Bundle(self._journal)
            for put in puts:
                if key_of(put) is None:
                    bundle.add_put(put)
                else:
                    self._keep_keyed(unpack_put(put))
            bundle.write()
            self._result.kept += len(puts)

    def _keep_keyed(self, message: Message) -> None:
        """Add a message with a unique key; as a dead letter if another message has the key now."""
        now_us = self._new.env.clock.now_us()
        try:
            unique.add(self._keys, self._journal, [message])
        except KeyHeld as exc:
            root = message.root or message.id
            dead = replace(
                message,
                id=self._journal.new_id(DEAD_US + now_us),
                root=root,
                headers={**message.headers, REASON: f"rejoin: {exc.what}"},
            )
            # One commit, like a move: the next run finds the drop, and makes no second dead letter.
            self._journal.write([pack_drop(message.id, CANCELLED), pack_message(dead)], 1)  # mutant: rejoin-dead-twice
            self._result.notes.append(f"message {message.id} is a dead letter now: {exc.what}")

    def _drop_fired(self) -> None:
        """Drop the messages in the new primary that the old one's journals or slot files have drops of."""
        batch = set(self._ended)
        for drops in drops_above(self._old, {}):
            batch.update(drop[ID] for drop in drops)
            if len(batch) >= _BATCH:
                self._drop(batch)
                batch = set()
        self._drop(batch)

    def _drop(self, ids: set[bytes]) -> None:
        there = sorted(pending(self._new, ids))
        if there:
            self._journal.write([pack_drop(i, ACKED) for i in there], 0)
            self._result.dropped += len(there)
