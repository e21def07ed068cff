"""The marker of a partition: which of its records are done. It is the one truth that all nodes share.

Each unit of produced records is followed by a marker in the compacted topic `<topic>.cursor`. A marker is a list of
steps (offset, id): each says that all records before this offset, with an id up to this one, are done. Records arrive
by offset and go out by id, so one step holds almost always; one record that arrives overdue adds a step with a larger
offset and a smaller id, and the next unit that reaches as far replaces both.
A record is done when it was produced, or cancelled by a later record of its key.
Invariant: a marker states only what was true when it was made, and what is done stays done. So an old marker can make
records go out again, and never lets one be lost. It holds for logs that have its `last_read`: of a log that was cut
before it, and grew again, a step speaks of records that are gone (docs/adr/0074-a-log-that-was-cut.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from filewheel.errors import BadArgument, Damaged, NewerFormat
from filewheel.kafka.records.last_read import LastRead, as_last_read, later
from filewheel.message import MessageId

VERSION = 1
STEPS_MAX = 8
"""With as many steps of its own, an owner takes nothing in before a unit went out. A take-over may add as many."""

Step = tuple[int, bytes]
"""(offset, id): records before the offset with an id up to this one are done."""


@dataclass(frozen=True, slots=True)
class Marker:
    """What is done in one partition."""

    steps: tuple[Step, ...] = ()
    """By growing offset and falling id, so that none says what another says."""
    low: int = 0
    """Each record that is not done has at least this offset. A wheel is rebuilt from here."""
    owner: str = ""
    """The node that made it: for people."""
    topic_id: str = ""
    """The cluster's id of the delay topic; empty if unknown. A new topic of the same name begins again at offset 0."""
    options: str = ""
    """The digest of the options that gave the ids; empty if unknown. With others the steps mean nothing."""
    delivery: str = ""
    """How its owner delivers: for people, and to notice nodes that differ. Empty if unknown."""
    last_read: LastRead | None = None
    """The last record, with its epoch, that the owner had read: the steps are true of logs that have it."""

    def steps_before(self, ingested: int) -> tuple[Step, ...]:
        """Return the steps of chunks that were claimed with no more taken in than this: a later chunk may replace them.

        Those of a predecessor that had read further stay until this node has read as far.
        """
        return tuple(step for step in self.steps if step[0] <= ingested)

    def is_full(self, ingested: int) -> bool:
        """Whether nothing more should be taken in before the next unit went out: each batch may add a step."""
        return len(self.steps_before(ingested)) >= STEPS_MAX  # mutant: kafka-steps-of-before-count

    @property
    def ingested(self) -> int:
        """The owner that made this, or one before it, had taken in all records before this offset."""
        return max(self.low, self.steps[-1][0] if self.steps else 0)

    def done(self, id_: bytes, offset: int) -> bool:
        """Return whether a record is done. Cost: 0.3 µs.

        Records before `low` are done as well: a wheel that was not the owner's for a while may hold one that was
        cancelled in between, and no step says so.
        """
        if offset < self.low:  # mutant: kafka-low-unasked
            return True
        for step_offset, step_id in self.steps:
            if id_ > step_id:
                return False
            if offset < step_offset:
                return True
        return False

    def after_chunk(self, ingested: int, through: bytes) -> Marker:
        """Return the marker that is true once a chunk is in the log.

        `ingested` is the offset after the last record that was taken in when the chunk was claimed; `through` the
        chunk's last id. When the chunk holds everything that was due at a time, `through` may be any id before that
        time: fewer steps are left then. `ingested` may be less than a predecessor had taken in.
        """
        steps = _staircase([*self.steps, (ingested, through)])  # mutant: kafka-step-forgotten
        return self if steps == self.steps else replace(self, steps=steps)

    def for_other_options(self) -> Marker:
        """Return what is still true when the options change: the ids of its steps mean nothing then."""
        return Marker(low=self.low, last_read=self.last_read)

    def of_cut_log(self, end: int) -> Marker:
        """Return what is still true of a log that has other records from this offset on: none of them is done."""
        steps = _staircase([(min(offset, end), id_) for offset, id_ in self.steps])
        return replace(self, steps=steps, low=min(self.low, end), last_read=None)

    def with_last_read(self, last_read: LastRead | None) -> Marker:
        """Return it with the last record of its owner's wheel, unless a predecessor had read further."""
        return replace(self, last_read=later(last_read, self.last_read))

    def with_low(self, low: int) -> Marker:
        """Return it with another `low`, if that is higher: what is done stays done."""
        return replace(self, low=max(low, self.low))

    def pack(self) -> bytes:
        """Return the value of the marker's record: JSON, the ids as `filewheel inspect` shows them."""
        fields = {
            "version": VERSION,
            "done": [[offset, str(MessageId(id_))] for offset, id_ in self.steps],
            "low": self.low,
            "owner": self.owner,
            "topic_id": self.topic_id,
            "options": self.options,
            "delivery": self.delivery,
            "read": self.last_read,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Marker:
        """Read a marker. Raises Damaged, or NewerFormat."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as exc:
            raise _damaged(f"no JSON: {exc}") from exc
        if not isinstance(fields, dict):
            raise _damaged("no JSON object")
        version = fields.get("version")
        if type(version) is int and version > VERSION:
            raise NewerFormat(
                f"the marker is version {version}; this filewheel reads up to {VERSION}",
                hint="upgrade filewheel on this node: another node of the group is newer",
            )
        if version != VERSION or version is True:
            raise _damaged(f"its version is {version!r}")
        owner, topic_id, options = fields.get("owner"), fields.get("topic_id"), fields.get("options", "")
        if not isinstance(owner, str) or not isinstance(topic_id, str) or not isinstance(options, str):
            raise _damaged("its owner, topic_id or options is no text")
        steps = fields.get("done")
        if not isinstance(steps, list):
            raise _damaged("its list of what is done is missing")
        read = [_step(step) for step in steps]
        if list(_staircase(read)) != read:
            raise _damaged("its steps are out of order")
        last_read = as_last_read(fields.get("read"))
        return cls(
            tuple(read),
            _offset(fields.get("low")),
            owner,
            topic_id,
            options,
            str(fields.get("delivery", "")),
            last_read,
        )


class _NoMarker(Marker):
    """The marker of a queue whose offsets the group keeps: it is not published, and stays as it is."""

    __slots__ = ()

    def is_full(self, ingested: int) -> bool:
        """Return False."""
        return False

    def after_chunk(self, ingested: int, through: bytes) -> Marker:
        """Return it."""
        return self

    def with_last_read(self, last_read: LastRead | None) -> Marker:
        """Return it."""
        return self


NO_MARKER = _NoMarker()


def _staircase(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Order the steps, without those that another one covers."""
    kept: list[Step] = []
    for step in sorted(steps, reverse=True):
        if not kept or step[1] > kept[-1][1]:
            kept.append(step)
    return tuple(reversed(kept))


def _step(step: Any) -> Step:
    if not isinstance(step, list) or len(step) != 2 or not isinstance(step[1], str):
        raise _damaged("a step is no pair of an offset and an id")
    try:
        id_ = MessageId.parse(step[1])
    except BadArgument as exc:
        raise _damaged(exc.what) from exc
    return _offset(step[0]), bytes(id_)


def _offset(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise _damaged(f"{value!r} is no offset")
    return value


def _damaged(why: str) -> Damaged:
    return Damaged(
        f"this is no marker of a delay service: {why}",
        hint="read the record with a console consumer; a tombstone in its place makes the partition begin at the "
        "start of its log, and what went out goes out again",
    )
