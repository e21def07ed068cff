"""`inspect slot` and `inspect journal`: the records in the files, for debugging."""

from __future__ import annotations

from collections.abc import Iterable

import click

from filewheel import BadArgument, MessageId
from filewheel.tools.dissect import DissectedRecord, Dissector

from ..failure import Failure
from ..input.params import read_time
from ..lost import lost_of
from ..show.output import Column, Output
from ..show.text import full_time, safe
from ..times import US_PER_S, YEAR_10000_US
from ..verb import verb

_TABLE_ROWS = 1000


@verb(
    "slot",
    """
    $ filewheel inspect slot "$(filewheel enqueue --in 1h hi)"
    """,
)
@click.argument("which", metavar="SECOND|TIME|ID")
def slot(out: Output, which: str) -> None:
    """Show the records of one second.

    Those of its slot file, of its lap's file, and of the journals, with their offsets and checksums. SECOND counts
    since the epoch; TIME is 09:00, 2027-01-01T09:00Z and so on; ID is a message's. A record is live while its message
    is pending, dropped when it fired, was cancelled or has moved.
    """
    second = _second(which)
    dissector = Dissector(out.directory())
    lo, hi = (MessageId.make(at * US_PER_S, 0, 0) for at in (second, second + 1))
    out.note(
        f"second {second}, {full_time(second * US_PER_S)}" if second * US_PER_S < YEAR_10000_US else f"second {second}"
    )
    if not _print(out, dissector.entries(dissector.files_of(second), lo, hi)):
        with out.wheel() as wheel:
            lost = lost_of(wheel, [lo], 0, subject=f"the records of second {second}")
        if lost is not None:
            raise lost
        raise Failure(
            "not-found", "nothing of this second is on record",
            hint="`filewheel inspect list` and `filewheel dead list` show what there is",
        )  # fmt: skip


def _second(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 12:
        return int(text)
    try:
        return MessageId.parse(text).due_us // US_PER_S
    except BadArgument:
        return read_time(text).due_us // US_PER_S


@verb(
    "journal",
    """
    $ filewheel inspect journal
    $ filewheel inspect journal "$(ls wheel/journal | head -n 1)"
    """,
)
@click.argument("segment", required=False)
def journal(out: Output, segment: str | None) -> None:
    """List the journals, or the records of one.

    A journal has one writer's enqueues, cancels and acknowledgements; laps and slots have the part that the checkpoint
    covers. SEGMENT is a file's name, or a writer's (the middle 8 characters of its ids) for all its segments.
    """
    dissector = Dissector(out.directory())
    if segment is None:
        _print_segments(out, dissector)
        return
    last = segment.rpartition("/")[2].removesuffix(".log")
    names = [
        name for name in dissector.segments()
        if last in (name.rpartition("/")[2].removesuffix(".log"), name.rpartition("/")[2].partition("-")[0])
    ]  # fmt: skip
    if not names:
        raise Failure("not-found", f"no journal segment {segment}", hint="`filewheel inspect journal` lists them")
    _print(out, dissector.entries(names))


def _print_segments(out: Output, dissector: Dissector) -> None:
    found = [s for s in map(dissector.segment, dissector.segments()) if s is not None]
    if out.wants_json:
        for s in found:
            out.record(
                {"file": s.name, "bytes": s.bytes, "covered": s.covered, "frames": s.frames,
                 "puts": s.puts, "drops": s.drops, "bad_bytes": s.bad}
            )  # fmt: skip
        return
    if not found:
        out.note("no journals: everything is in laps and slots")
        return
    numbers = [Column(title, right=True) for title in ("BYTES", "COVERED", "FRAMES", "PUTS", "DROPS", "BAD")]
    rows = []
    for s in found:
        counts = (s.bytes, s.covered, s.frames, s.puts, s.drops, s.bad)
        rows.append((s.name.removeprefix("journal/").removesuffix(".log"), *(f"{n:,}" for n in counts)))
    out.table([Column("SEGMENT"), *numbers], rows)


def _print(out: Output, entries: Iterable[DissectedRecord]) -> int:
    """Print records as they are read, a table for each file; return their number."""
    shown = 0
    file, rows = "", list[tuple[str, ...]]()
    for entry in entries:
        shown += 1
        if out.wants_json:
            out.record(entry.to_json())
            continue
        if rows and (entry.file != file or len(rows) == _TABLE_ROWS):
            _table(out, file, rows)
            rows = []
        file = entry.file
        rows.append(_row(entry))
    if rows:
        _table(out, file, rows)
    return shown


def _row(entry: DissectedRecord) -> tuple[str, ...]:
    frame = "" if entry.frame is None else str(entry.frame)
    what = f"{entry.end - entry.offset:,} bytes: {entry.what}" if entry.kind == "bad" else entry.what
    if entry.kind == "zeros":
        what = f"{entry.end - entry.offset:,} bytes written ahead"
    return (
        str(entry.offset), frame, entry.checksum, "yes" if entry.covered else "no", entry.kind,
        str(entry.id) if entry.id is not None else "", entry.state, what,
    )  # fmt: skip


def _table(out: Output, file: str, rows: list[tuple[str, ...]]) -> None:
    columns = [
        Column("OFFSET", right=True), Column("FRAME", right=True), Column("SUM"), Column("COVERED"),
        Column("KIND"), Column("ID"), Column("STATE"), Column("WHAT", 80),
    ]  # fmt: skip
    out.write(out.style(safe(file), "yellow"))
    out.table(columns, rows)
