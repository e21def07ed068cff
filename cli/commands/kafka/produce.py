"""`kafka produce`: delayed records from the command line, one or many."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, BinaryIO

import click

from filewheel import FilewheelError
from filewheel.kafka import DelayProducer, Delivery

from ... import times
from ...failure import is_unit
from ...input.lines import Spool, stdin
from ...input.params import DURATION, HEADER, When, one_due
from ...input.records import RecordDefaults, RecordRow, rows, spooled
from ...show.output import Output
from ...show.text import away, count, full_time
from ...signals import interruptible
from ...times import to_datetime
from ...verb import due_options
from .cluster import Cluster, kafka_verb

_UNDER_WAY_MAX = 10_000
_VALUE_BYTES_MAX = 1 << 30


@kafka_verb(
    "produce",
    """
    $ filewheel kafka produce -c kafka.toml --in 5m --target mails 'hello ann'
    $ seq 3 | filewheel kafka produce -c kafka.toml --in 90 --target m --lines
    """,
)
@due_options
@click.option("--target", metavar="TOPIC", help="Where a record goes when it is due.")
@click.option("--key", metavar="KEY", help="Its key in the delay topic; if that is keyed, it replaces the waiting one.")
@click.option("--target-key", metavar="KEY", help="Its key at the target.")
@click.option("--header", "headers", type=HEADER, multiple=True, metavar="K=V", help="A header; may be repeated.")
@click.option("--horizon", type=DURATION, metavar="DUR", help="The longest delay; a longer one is refused.")
@click.option("--lines", is_flag=True, help="Each line of stdin is a record, without its newline.")
@click.option(
    "--batch", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True),
    help="Each line of FILE (- is stdin) is a JSON object: `payload` or `payload_b64`; one of `in`, `at`, `due_us`; "
    "`target`; `key`; `target_key`; `headers`. The options above hold for lines without.",
)  # fmt: skip
@click.argument("body", required=False)
def produce(
    out: Output,
    cluster: Cluster,
    in_us: int | None,
    at: When | None,
    target: str | None,
    key: str | None,
    target_key: str | None,
    headers: tuple[tuple[str, str], ...],
    horizon: int | None,
    lines: bool,
    batch: str | None,
    body: str | None,
) -> None:
    """Send a record to the delay topic, and print its id once all in-sync replicas have it.

    It goes to --target after --in or at --at. BODY is its value; `-` reads it from stdin. The id is the header
    filewheel-id of the record at the target. Of --lines and --batch every line is checked first: if one is wrong it is
    named, and nothing is sent.
    """
    now_us = times.now_us()
    _check(in_us, at, target, key, target_key, lines=lines, batch=batch, body=body, now_us=now_us)
    producer = DelayProducer(
        cluster.bootstrap, topic=cluster.topic, properties=dict(cluster.properties),
        horizon=None if horizon is None else timedelta(microseconds=horizon),
    )  # fmt: skip
    due_us = None if at is None else at.due_us
    with Spool() as spool, interruptible():
        if lines or batch:
            defaults = RecordDefaults(target, in_us, due_us, dict(headers), now_us)
            with _opened(batch) as stream:
                spooled(stream, spool, defaults, lambda row: producer.check(**_arguments(row)), json=not lines)
            todo: Iterable[RecordRow] = rows(spool)
        else:
            assert target is not None
            row = RecordRow(target, _value(out, body, in_us), in_us, due_us, key, target_key, dict(headers))
            producer.check(**_arguments(row))
            todo = [row]
        with producer:
            sent = _send_all(out, producer, todo)
    if lines or batch:
        out.note(f"sent {count(sent, 'record')}")
    elif at is not None and at.is_local:
        out.note(f"due {full_time(at.due_us)}, {away(at.due_us - now_us)}")


@contextlib.contextmanager
def _opened(batch: str | None) -> Iterator[BinaryIO]:
    """Open the file of --batch; `-`, and --lines, are stdin."""
    if batch in (None, "-"):
        yield stdin()
        return
    with open(str(batch), "rb") as stream:
        yield stream


def _check(
    in_us: int | None,
    at: When | None,
    target: str | None,
    key: str | None,
    target_key: str | None,
    *,
    lines: bool,
    batch: str | None,
    body: str | None,
    now_us: int,
) -> None:
    """Refuse options that do not go together, before anything is read."""
    due_us = one_due(in_us, at, now_us)
    if lines and batch:
        raise click.UsageError("give --lines or --batch, not both")
    if (lines or batch) and body is not None:
        raise click.UsageError(f"{'--lines' if lines else '--batch'} has the records: leave BODY out")
    if (lines or batch) and (key is not None or target_key is not None):
        raise click.UsageError("--key and --target-key are for one record; lines of --batch have keys of their own")
    if not batch and due_us is None:
        raise click.UsageError("when? Give --in DUR or --at TIME (`--in 0` is now)")
    if not batch and target is None:
        raise click.UsageError("where to? Give --target TOPIC")


def _value(out: Output, body: str | None, in_us: int | None) -> bytes:
    if in_us is not None and is_unit(body):
        out.warn(f"the value is {body!r}: a duration is one word, as in --in 5m")
    if body is None and out.stdin_is_terminal:
        raise click.UsageError("BODY is missing; `-` reads it from the terminal up to Ctrl-D, '' is an empty value")
    if body is None or body == "-":
        read = stdin().read(_VALUE_BYTES_MAX)
        if body is None and not read:
            raise click.UsageError(
                "BODY is missing, and stdin is empty; '' is an empty value, and `-` accepts an empty stdin"
            )
        return read
    return os.fsencode(body)


def _arguments(row: RecordRow) -> dict[str, Any]:
    return {
        "target": row.target, "value": row.value, "key": row.key, "target_key": row.target_key, "headers": row.headers,
        "delay": None if row.delay_us is None else timedelta(microseconds=row.delay_us),
        "at": None if row.due_us is None else to_datetime(row.due_us),
    }  # fmt: skip


def _send_all(out: Output, producer: DelayProducer, todo: Iterable[RecordRow]) -> int:
    """Send records and print their ids in order; return how many. An error names how many were sent before it."""
    under_way: deque[Delivery] = deque()
    sent = 0
    try:
        for row in todo:
            under_way.append(producer.send(**_arguments(row)))
            while under_way and (len(under_way) > _UNDER_WAY_MAX or under_way[0].done()):
                _print(out, under_way.popleft())
                sent += 1
        while under_way:
            _print(out, under_way.popleft())
            sent += 1
    except FilewheelError as exc:
        for other in under_way:  # the first error counts
            other.is_seen = True
        if sent:
            exc.what = f"{exc.what} (after {count(sent, 'record')}, whose ids were printed)"
        raise
    out.flush()
    return sent


def _print(out: Output, delivery: Delivery) -> None:
    done = delivery.result()
    if out.json:
        out.record({"id": done.id, "topic": done.topic, "partition": done.partition, "offset": done.offset})
    else:
        out.write(done.id)
