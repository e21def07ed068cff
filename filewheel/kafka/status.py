"""The state of a whole delay service, as the cluster and the notes of its nodes tell it. No node is asked.

Invariant: a partition that nobody serves has a problem; what is not known is None, and never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from filewheel.checks import shown
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument, ClusterError
from filewheel.kafka.client.group_view import GroupMember, GroupSnapshot, GroupView
from filewheel.kafka.client.reader import LogReader
from filewheel.kafka.node.note import Note
from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.records.options import Policy

SILENT_S = 60
"""A note that is older than this is of a node that hangs, or whose clock is off."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition of the delay topic."""

    partition: int
    owner: str | None
    """The client id of the node that owns it; None if nobody does, or it is not known."""
    host: str | None
    data: str | None
    state: str | None
    waiting: int | None
    lag: int | None
    """Records of the log that were not taken in."""
    low: int | None
    """A rebuild begins here."""
    log_start: int | None
    log_end: int | None
    late_ms: int | None
    """How late the earliest record is that has not gone out."""
    standbys: int | None
    """Other nodes that keep a wheel of it. A node that owns nothing is not counted."""
    seen_s: float | None
    """How long ago its owner left its last note; it does so every five seconds."""
    problem: str
    """Empty if all is well."""


def service_status(
    config: Mapping[str, Any], topic: str, *, group: str, clock: Clock = SYSTEM_CLOCK
) -> list[PartitionReport]:
    """Return the state of each partition. Cost: five requests. Needs the right to describe the topic and the group.

    Raises BadArgument, NoBroker, MissingTopic, NotAllowed, ClusterError.
    """
    return reports_of(_look(config, group, topic), clock.now_us() // 1000)


def is_keyed(config: Mapping[str, Any], topic: str, *, group: str) -> bool | None:
    """Return whether the nodes of a group run with --keyed, as the latest note says; None if there is none."""
    view = _look(config, group, topic)
    notes = [note for _, text in view.committed.values() if (note := Note.unpack(text)) is not None]
    return max(notes, key=lambda note: note.at_ms).keyed if notes else None


def check_keyed(config: Mapping[str, Any], topic: str, *, group: str) -> None:
    """Return if the nodes of a group run with --keyed. Raises BadArgument when they do not, or never ran."""
    found = is_keyed(config, topic, group=group)
    if found is None:
        raise ClusterError(
            f"no node of group {group} has said whether {topic} is keyed", hint="start a node, or insist with --keyed"
        )
    if not found:
        raise BadArgument(
            f"the nodes of {topic} run without --keyed: a record has no unique key, and none can be cancelled",
            hint="run all nodes with --keyed",
        )


@dataclass(frozen=True, slots=True)
class Repeats:
    """What a partition delivers a second time when its nodes get other options."""

    partition: int
    low: int
    """Everything from this offset on is taken in anew."""
    ingested: int
    """It was taken in up to here before."""
    waiting: int | None
    """Records of these that had not gone out; None: not known."""

    @property
    def again(self) -> int:
        """At most so many records go out a second time: some offsets hold none."""
        return max(self.ingested - self.low - (self.waiting or 0), 0)


def repeats_of_other_options(config: Mapping[str, Any], topic: str, *, group: str) -> list[Repeats]:
    """Return what each partition would deliver a second time with `accept_options`. Cost: a read of each marker.

    Needs the rights to read the topic of markers, and those of `service_status`. Raises as that.
    """
    view = _look(config, group, topic)
    reader = LogReader({**config, "group.id": group}, Policy(topic).marker_topic)
    try:
        packed = {partition: reader.last(partition) for partition in sorted(view.ranges)}
    finally:
        reader.close()
    found = []
    for partition, data in packed.items():
        marker = Marker() if data is None else Marker.unpack(data)
        offset, text = view.committed.get(partition, (marker.ingested, ""))
        note, log = Note.unpack(text), view.ranges[partition]
        low = max(marker.low, log[0] if log is not None else 0)
        found.append(Repeats(partition, low, max(offset, marker.ingested), note.waiting if note else None))
    return found


def _look(config: Mapping[str, Any], group: str, topic: str) -> GroupSnapshot:
    if not isinstance(group, str) or not group:
        raise BadArgument(f"group is the name of a consumer group, not {shown(group)}", hint=f"filewheel-{topic}")
    return GroupView(config, group, Policy(topic).topic).look()


def reports_of(view: GroupSnapshot, now_ms: int) -> list[PartitionReport]:
    """Return a report for each partition of a view."""
    owners = {p: member for member in view.members or () for p in member.partitions}
    notes = {p: Note.unpack(text) for p, (_, text) in view.committed.items()}
    latest: dict[str, Note] = {}
    for note in notes.values():
        if note is not None and (note.node not in latest or latest[note.node].at_ms < note.at_ms):
            latest[note.node] = note
    alive = None if view.members is None else {member.client_id for member in view.members}
    living = [note for note in latest.values() if alive is None or note.node in alive]
    following = {note.node for note in living if note.standby}
    ways = {note.delivery: note.node for note in living if note.delivery}
    differ = "; ".join(f"{node} serves {way}" for way, node in sorted(ways.items())) if len(ways) > 1 else ""
    return [_report(p, view, owners.get(p), notes.get(p), following, differ, now_ms) for p in sorted(view.ranges)]


def _report(
    partition: int,
    view: GroupSnapshot,
    member: GroupMember | None,
    note: Note | None,
    following: set[str],
    differ: str,
    now_ms: int,
) -> PartitionReport:
    owner = member.client_id if member is not None else note.node if view.members is None and note is not None else None
    current = None if note is not None and note.node != owner else note  # that of an owner of before says nothing
    log = view.ranges[partition]
    offset = view.committed.get(partition, (None, ""))[0]
    lag = None if log is None or offset is None else max(log[1] - offset, 0)
    return PartitionReport(
        partition,
        owner,
        host=current.host if current else None,
        data=current.data if current else None,
        state=current.state if current else None,
        waiting=current.waiting if current else None,
        lag=lag,
        low=note.low if note else None,
        log_start=None if log is None else log[0],
        log_end=None if log is None else log[1],
        late_ms=current.late_ms if current else None,
        standbys=None if owner is None else len(following - {owner}),
        seen_s=max(now_ms - current.at_ms, 0) / 1000 if current else None,
        problem=_problem(view, owner, current, log, now_ms) or (differ and f"nodes differ: {differ}"),
    )


def _problem(
    view: GroupSnapshot, owner: str | None, note: Note | None, log: tuple[int, int] | None, now_ms: int
) -> str:
    if owner is None and view.members is not None:
        return "no owner: no node of the group serves it"
    if log is None:
        return "no leader: no broker serves its log"
    if note is None:
        return "" if view.members is not None else "nothing is known: no node left a note"
    if note.problem:
        return note.problem
    if now_ms - note.at_ms > SILENT_S * 1000:
        return f"silent: its owner has said nothing for {(now_ms - note.at_ms) // 1000} s"
    if note.low is not None and note.low < log[0]:
        return f"gap: the log begins at offset {log[0]}, and a rebuild needs {note.low}"
    return ""
