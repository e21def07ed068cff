"""Gives a primary messages that it lacks, under their own ids, as one more producer of it.

A message whose unique key another one has now becomes a dead letter. Whatever is given is a set of puts: to give it
twice changes nothing. A primary that is given something may get a message twice, and has the mark for that.
Invariant: what was given is durable in the primary when `flush` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from filewheel.disk.directory import Directory
from filewheel.errors import KeyHeld
from filewheel.format.frame import Frame
from filewheel.format.record import ACKED, CANCELLED, ID, key_of, pack_drop, pack_message, readable_records, unpack_put
from filewheel.journal.journal import Journal
from filewheel.keys import unique
from filewheel.keys.index import Keys
from filewheel.lookup.snapshot import Snapshot
from filewheel.message import DEAD_US, REASON, Message
from filewheel.roster.repeats import note_repeats


class Giver:
    """Writes messages to one primary. Close it."""

    def __init__(self, primary: Directory, why: str) -> None:
        """`why` is the reason in the dead letters."""
        self._primary, self._why = primary, why
        self._journal = Journal(primary, on_copies="ignore")
        self._keys = Keys(primary)
        self.notes: list[str] = []
        note_repeats(primary.disk)

    def give(self, puts: Iterable[bytes]) -> int:
        """Write those of these packed puts that are neither pending in the primary nor ended there; return how many.

        Raises DiskError, Damaged, Locked.
        """
        wanted = {put[ID]: put for put in puts}
        if not wanted:
            return 0
        with Snapshot(self._primary) as snapshot:
            known = snapshot.named(wanted)
        some = [put for id_, put in wanted.items() if id_ not in known]
        plain = [put for put in some if key_of(put) is None]
        if plain:
            self._journal.write(plain, len(plain))
        for put in some:
            if key_of(put) is not None:
                self._give_keyed(unpack_put(put))
        return len(some)

    def _give_keyed(self, message: Message) -> None:
        now_us = self._primary.env.clock.now_us()
        try:
            unique.add(self._keys, self._journal, [message])
        except KeyHeld as exc:
            dead = replace(
                message,
                id=self._journal.new_id(DEAD_US + now_us),
                root=message.root or message.id,
                headers={**message.headers, REASON: f"{self._why}: {exc.what}"},
            )
            # One commit, like a move: the next call finds the drop, and makes no second dead letter.
            self._journal.write([pack_drop(message.id, CANCELLED), pack_message(dead)], 1)  # mutant: rejoin-dead-twice
            self.notes.append(f"message {message.id} is a dead letter now: {exc.what}")

    def adopt(self, frame: Frame) -> int:
        """Write what a frame says that the primary does not have, whole or not at all; return how many messages.

        A move is written if the message that it ends is pending here, and nothing if that has ended another way.
        """
        puts, drops = readable_records(frame)
        if not drops:
            return self.give(puts)
        with Snapshot(self._primary) as snapshot:
            pending = snapshot.find([drop[ID] for drop in drops])
            known = snapshot.named([put[ID] for put in puts])
        if len(pending) < len(drops) or known:  # mutant: half-adopted
            return 0
        self._journal.write([*drops, *puts], len(puts))
        return len(puts)

    def end(self, ids: Iterable[bytes]) -> int:
        """Drop those of these messages that are pending in the primary; return how many. Raises DiskError, Damaged."""
        wanted = list(ids)
        if not wanted:
            return 0
        with Snapshot(self._primary) as snapshot:
            there = sorted(snapshot.find(wanted))
        if there:
            self._journal.write([pack_drop(id_, ACKED) for id_ in there], 0)
        return len(there)

    def flush(self) -> None:
        """Make all of it durable. Raises DiskError, Poisoned."""
        self._journal.flush()

    def close(self) -> None:
        """Flush, and end the journal."""
        self._journal.close()
