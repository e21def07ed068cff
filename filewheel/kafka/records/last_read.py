"""The last record that was read of a log, and the leader epoch in which it was written.

Offsets alone do not name records for good: after an unclean election a log may end earlier than it did, and other
records take the offsets of lost ones. An epoch has one leader, and a leader writes an offset once. So two logs with
the same epoch at an offset have the same records up to it, and a log that has another one there was cut.
Invariant: both numbers are of one record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NO_EPOCH = -1
"""The epoch of a record whose broker gave it none."""


class LastRead(NamedTuple):
    """A record that was read."""

    offset: int
    epoch: int

    def is_in(self, found: LastRead) -> bool:
        """Return whether a log has this record. `found` is the first one that the log has at its offset or behind.

        One that was deleted is taken to be in it: the gap tells. Of one before it nothing behind it is left.
        """
        if found.offset != self.offset:
            return found.offset > self.offset
        return found.epoch in (self.epoch, NO_EPOCH)  # mutant: kafka-epoch-unasked


def epoch_before(offset: int, last_read: LastRead | None) -> int:
    """Return the epoch of the last known record before an offset; NO_EPOCH if none is known."""
    return last_read.epoch if last_read is not None and last_read.offset < offset else NO_EPOCH


def later(one: LastRead | None, other: LastRead | None) -> LastRead | None:
    """Return the one with the larger offset; `one` if they have the same."""
    if one is None or other is None:
        return one or other
    return other if other.offset > one.offset else one


def as_last_read(value: Any) -> LastRead | None:
    """Return what JSON holds of one; None for anything else: then nothing is known."""
    if not isinstance(value, list) or len(value) != 2 or any(type(n) is not int or n < 0 for n in value):
        return None
    return LastRead(*value)
