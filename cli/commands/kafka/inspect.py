"""`kafka inspect`: what waits in the wheels of this node, by partition, target and time. It asks no broker."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import click

from filewheel import Filter, Wheel
from filewheel.kafka import WaitingRecord, waiting_record
from filewheel.tools.dump import iso

from ... import times
from ...failure import Failure, check_damage
from ...input.params import DURATION
from ...show.output import Column, Output
from ...show.text import away, count, short_time, show_bytes
from ...signals import interruptible
from ...times import US_PER_S, to_datetime
from .cluster import kafka_local_verb

_LIMIT_ON_TERMINAL = 20
_SHOWN_BYTES = 400
_WITHIN = (("1m", 60 * US_PER_S), ("1h", 3600 * US_PER_S), ("1d", 86_400 * US_PER_S), ("30d", 30 * 86_400 * US_PER_S))
"""The columns of the summary: how many are due within each."""


@dataclass
class ServedPartition:
    """The wheel of one partition, and what was counted in it."""

    topic: str
    partition: int
    path: str
    is_served: bool = False
    """A process of this machine has it open: its owner, or a standby."""
    is_left: bool = False
    """It is not open, and others of its topic are: the partition moved away, or failed."""
    waiting: int = 0
    next_due_us: int | None = None
    within: Counter[str] = field(default_factory=Counter)
    targets: Counter[str] = field(default_factory=Counter)


@kafka_local_verb(
    "inspect",
    """
    $ filewheel kafka inspect -d /var/lib/delays
    $ filewheel kafka inspect -d data --list --target mails --within 1h
    """,
)
@click.option("-d", "--data", required=True, metavar="DIR", help="The directory that `kafka run` was given.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only this delay topic.")
@click.option("--partition", type=click.IntRange(0), metavar="N", help="Only this partition.")
@click.option("--target", metavar="GLOB", help="Only what goes to this topic: a name, or a pattern with * and ?.")
@click.option("--within", type=DURATION, metavar="DUR", help="Only what is due between now and then, or overdue.")
@click.option("--list", "is_list", is_flag=True, help="The records, in the order of their dues, not only the counts.")
@click.option(
    "--limit", type=click.IntRange(0), metavar="N",
    help="With --list: at most so many; 0 is all.  [default: 20 on a terminal]",
)  # fmt: skip
@click.argument("id_", metavar="[ID]", required=False)
def inspect(
    out: Output,
    data: str,
    topic: str | None,
    partition: int | None,
    target: str | None,
    within: int | None,
    is_list: bool,
    limit: int | None,
    id_: str | None,
) -> None:
    """Count what waits by partition, target and time; --list shows the records, ID one of them.

    It reads the wheels of this node only, those of standbys too, while the node runs or after. Nothing is locked or
    changed. A record that went out moments ago may still be listed. While a node runs, the wheels that it does not have
    open are left out: their partitions moved away; --partition shows one. ID is the header filewheel-id, as
    delays-3-17. The lines of --list --json can be given to `kafka produce --batch`.
    """
    if limit is not None and not is_list:
        raise click.UsageError("--limit goes with --list")
    now_us = times.now_us()
    with interruptible():
        places = _places(data, topic, partition)
        _mark(places)
        if partition is None:
            places = _without_left(out, places)
        if id_ is not None:
            _show_one(out, places, id_)
            return
        end_us = None if within is None else now_us + within
        walk = _Walk(places, target, end_us)
        if is_list:
            _list(out, walk, now_us, limit)
        else:
            _summary(out, walk, now_us)
    check_damage(walk.damaged)


# -- the wheels -----------------------------------------------------------------------------------------------


def _places(data: str, topic: str | None, partition: int | None) -> list[ServedPartition]:
    """Return the wheels below a directory, by topic and partition. Raises Failure when there is none."""
    if os.path.exists(os.path.join(data, "wheel.json")):
        raise Failure("no-wheel", f"{data}: it is one wheel", hint=f"`filewheel -C {data} inspect`")
    if not os.path.isdir(data):
        raise Failure("no-wheel", f"{data}: there is no such directory", hint="the --data of `filewheel kafka run`")
    found = [
        ServedPartition(one.name, int(two.name), two.path)
        for one in os.scandir(data)
        if one.is_dir()
        for two in os.scandir(one.path)
        if two.name.isdecimal() and os.path.exists(os.path.join(two.path, "wheel.json"))
    ]
    if not found:
        raise Failure(
            "no-wheel", f"{data}: no wheel of a delay service is there", hint="the --data of `filewheel kafka run`"
        )
    chosen = [p for p in found if topic in (None, p.topic) and partition in (None, p.partition)]
    if not chosen:
        names = ", ".join(sorted({f"{place.topic} {place.partition}" for place in found})[:8])
        raise Failure("not-found", f"{data}: no wheel of that topic and partition is there", hint=f"there are {names}")
    return sorted(chosen, key=lambda place: (place.topic, place.partition))


def _mark(places: list[ServedPartition]) -> None:
    """Note which wheels are open, and which are leftovers beside them."""
    for place in places:
        with Wheel(place.path) as wheel:
            place.is_served = wheel.has_keeper()
    running = {place.topic for place in places if place.is_served}
    for place in places:
        place.is_left = place.topic in running and not place.is_served


def _without_left(out: Output, places: list[ServedPartition]) -> list[ServedPartition]:
    left = [f"{place.topic} {place.partition}" for place in places if place.is_left]
    if left:
        more = f" and {len(left) - 8} more" if len(left) > 8 else ""
        out.note(
            f"not counted, because the node that runs does not have them open: {', '.join(left[:8])}{more}; "
            "`filewheel kafka status` names their owners, --partition N shows one"
        )
    return [place for place in places if not place.is_left]


class _Walk:
    """One pass over the wheels."""

    def __init__(self, places: list[ServedPartition], target: str | None, end_us: int | None) -> None:
        self.places = places
        self.damaged = 0
        end = None if end_us is None or end_us >= times.YEAR_10000_US else to_datetime(end_us)
        self._which = Filter.of(before=end, topic=target)

    def records(self) -> Iterator[WaitingRecord]:
        """Yield the records of each wheel in firing order."""
        for place in self.places:
            with Wheel(place.path) as wheel, wheel.snapshot() as snapshot:
                for message in snapshot.messages(self._which):
                    yield waiting_record(message, place.topic, place.partition)
                self.damaged += len(snapshot.problems())

    def count(self, now_us: int) -> None:
        """Count the records of each wheel. The values are not looked at."""
        for place in self.places:
            with Wheel(place.path) as wheel, wheel.snapshot() as snapshot:
                for message in snapshot.messages(self._which):
                    due_us = message.due_us
                    place.waiting += 1
                    place.targets[message.topic] += 1
                    if place.next_due_us is None:
                        place.next_due_us = due_us
                    for name, us in _WITHIN:
                        if due_us < now_us + us:
                            place.within[name] += 1
                            break
                self.damaged += len(snapshot.problems())


# -- output ---------------------------------------------------------------------------------------------------


def _summary(out: Output, walk: _Walk, now_us: int) -> None:
    walk.count(now_us)
    if out.wants_json:
        for place in walk.places:
            out.record(
                {
                    "topic": place.topic, "partition": place.partition, "path": place.path,
                    "is_served": place.is_served, "waiting": place.waiting,
                    "next_due": None if place.next_due_us is None else iso(place.next_due_us),
                    "next_due_us": place.next_due_us,
                    "within": _cumulated(place), "targets": dict(place.targets.most_common()),
                }
            )  # fmt: skip
        out.flush()
        return
    columns = [
        Column("TOPIC", 24),
        Column("PARTITION", right=True),
        Column("WAITING", right=True),
        Column.away("NEXT DUE"),
    ]
    columns += [Column(name, right=True) for name, _ in _WITHIN]
    out.table(columns, [_row(place, now_us) for place in walk.places])
    targets: Counter[str] = Counter()
    for place in walk.places:
        targets += place.targets
    if targets:
        out.write("")
        rows = [(name, f"{n:,}") for name, n in targets.most_common(_LIMIT_ON_TERMINAL)]
        out.table([Column("TARGET", 60), Column("WAITING", right=True)], rows)
    if len(targets) > _LIMIT_ON_TERMINAL:
        out.note(f"{count(len(targets) - _LIMIT_ON_TERMINAL, 'more target')}: --json has all")
    if not any(place.is_served for place in walk.places):
        out.note("no node has these wheels open")
    out.flush()


def _cumulated(place: ServedPartition) -> dict[str, int]:
    total, found = 0, {}
    for name, _ in _WITHIN:
        total += place.within[name]
        found[name] = total
    return found


def _row(place: ServedPartition, now_us: int) -> tuple[str, ...]:
    due = "-" if place.next_due_us is None else away(place.next_due_us - now_us)
    within = _cumulated(place)
    return (
        place.topic, str(place.partition), f"{place.waiting:,}", due, *(f"{within[name]:,}" for name, _ in _WITHIN)
    )  # fmt: skip


def _list(out: Output, walk: _Walk, now_us: int, limit: int | None) -> None:
    if limit is None:
        limit = _LIMIT_ON_TERMINAL if out.stdout_is_terminal else 0
    records = walk.records()
    some = islice(records, limit or None)
    shown = 0
    if out.wants_json:
        for record in some:
            shown += 1
            out.record(_fields(record))
    else:
        rows = [
            (
                r.id, short_time(r.due_us, now_us), away(r.due_us - now_us), r.target,
                show_bytes((r.value or b"")[:_SHOWN_BYTES]),
            )
            for r in some
        ]  # fmt: skip
        shown = len(rows)
        out.table(
            [Column("ID", 40), Column.date("DUE"), Column.away(""), Column("TARGET", 16), Column("VALUE", 200)], rows
        )
    if next(records, None) is not None:
        out.note(f"{shown:,} shown, there are more: --limit 0 shows all")
    elif not shown and not out.wants_json:
        out.note("nothing waits that fits")
    out.flush()


def _show_one(out: Output, places: list[ServedPartition], id_: str) -> None:
    topic, _, rest = id_.strip().rpartition("-")[0].rpartition("-")
    offset = id_.strip().rpartition("-")[2]
    if not (topic and rest.isdecimal() and offset.isdecimal()):
        raise click.UsageError(f"{id_!r} is no id of a record: write TOPIC-PARTITION-OFFSET, as delays-3-17")
    here = [place for place in places if (place.topic, place.partition) == (topic, int(rest))]
    for record in _Walk(here, None, None).records():
        if record.offset == int(offset):
            out.record(_fields(record))
            out.flush()
            return
    raise Failure(
        "not-found", f"no record {id_} waits here",
        hint="it went out, was cancelled, or waits on the node that `filewheel kafka status` names",
    )  # fmt: skip


def _fields(record: WaitingRecord) -> dict[str, Any]:
    """Return a record as JSON, with the keys of `kafka produce --batch`."""
    return {
        "id": record.id, "topic": record.topic, "partition": record.partition, "offset": record.offset,
        "due": iso(record.due_us), "due_us": record.due_us, "target": record.target,
        **as_text("key", record.key), **as_text("payload", record.value), **as_text("target_key", record.target_key),
        "target_partition": record.target_partition,
        "headers": {n: None if value is None else value.decode("utf-8", "replace") for n, value in record.own_headers},
        "fate": record.fate, "reason": record.reason, "timestamp_ms": record.timestamp_ms,
    }  # fmt: skip


def as_text(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as text, or as base64 under another name."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(value).decode()}
