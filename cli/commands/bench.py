"""`bench`: measure the cost of a flush and filewheel's rates, and recommend a `sync`.

It measures on a temporary wheel in the given directory, because the cost of a flush depends on the file system.
Invariant: it removes all its files, and does not fill a shared disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from filewheel import WheelFull

from ..bench.figures import Figures, machine
from ..bench.firing import RATE_PER_S
from ..bench.measure import ROOM_BYTES, measure
from ..bench.rounds import THREADS
from ..bench.verdict import Verdict, duration, judge, rate
from ..failure import Failure
from ..input.params import DURATION
from ..show.output import Column, Output
from ..show.text import safe, size, span
from ..signals import interruptible, uninterrupted
from ..times import US_PER_S
from ..verb import verb

_BUDGET_MOST_US = 600 * US_PER_S
_SHORT_US = 5 * US_PER_S
_LABEL = 13
_COLUMNS_MOST = 110


@verb(
    "bench",
    """
    $ filewheel bench
    $ filewheel bench --dir /tmp/ --json
    """,
)
@click.option(
    "--dir", "where", type=click.Path(path_type=Path), metavar="DIR",
    help="Measure in this directory.  [default: beside the wheel]",
)  # fmt: skip
@click.option(
    "--budget", "budget_us", type=DURATION, default="20s", show_default=True, metavar="DUR",
    help="How long to measure, about. Longer is steadier.",
)  # fmt: skip
def command(out: Output, where: Path | None, budget_us: int) -> None:
    """Measure your own disk, and read which `sync` to choose.

    On a throw-away wheel beside the one that -C names (it need not exist), measure what a flush costs, how many
    messages can be enqueued with each `sync`, in threads and in batches, how fast a backlog fires and how punctual
    messages are; then say in words what that means. Leaves nothing behind. For figures that mean something, let the
    machine do nothing else.
    """
    if not 0 < budget_us <= _BUDGET_MOST_US:
        raise click.UsageError(f"--budget is at most {span(_BUDGET_MOST_US)}, and more than nothing")
    place = _beside(Path(out.dir)) if where is None else where
    shape = machine(place)
    figures = _measured(out, place, budget_us)
    verdict = judge(figures, str(shape["file_system"]))
    if out.wants_json:
        rounded = {name: round(value, 4) for name, value in asdict(figures).items()}
        out.record({"dir": os.path.abspath(place), "machine": shape, "figures": rounded, "verdict": asdict(verdict)})
        return
    out.write(safe(os.path.abspath(place)) + ":  " + "   ".join(f"{key} {value}" for key, value in shape.items()))
    out.write("")
    _print_figures(out, figures)
    out.write("")
    _print_verdict(out, verdict)


def _beside(wheel: Path) -> Path:
    """Return the directory on the disk of a wheel where something foreign does no harm."""
    parent = Path(os.path.abspath(wheel)).parent
    if not wheel.is_dir():
        return parent
    is_wheel = (wheel / "wheel.json").exists()
    # A wheel that is a mount point is on another disk than its parent: only inside is its disk.
    is_mount = wheel.stat().st_dev != parent.stat().st_dev
    return parent if is_wheel and not is_mount else wheel


def _measured(out: Output, place: Path, budget_us: int) -> Figures:
    """Measure in a temporary directory."""
    try:
        with interruptible(), _throw_away(place) as directory:
            out.note(f"measuring in {place} for about {span(budget_us)}")
            if budget_us < _SHORT_US:
                out.note("figures of so short a run are rough: do not choose a `sync` by them")
            start = time.monotonic()
            with out.progress("measuring", budget_us) as progress:
                return measure(
                    directory,
                    budget_us / US_PER_S,
                    lambda: progress.at(min(budget_us, int((time.monotonic() - start) * US_PER_S))),
                    force=out.force,
                )
    except (WheelFull, OSError) as exc:
        if isinstance(exc, WheelFull) or exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(place) from exc
        kind = "read-only" if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM) else "disk"
        raise Failure(kind, f"{place}: {exc.strerror or exc}", hint="name another directory with --dir") from exc


@contextlib.contextmanager
def _throw_away(place: Path) -> Iterator[Path]:
    """Make a temporary directory, and remove it at the end."""
    if not place.is_dir():
        raise Failure("failed", f"{place}: " + ("not a directory" if place.exists() else "no such directory"))
    free = os.statvfs(place)
    if free.f_bavail * free.f_frsize < ROOM_BYTES:
        raise _full(place)
    directory = place / f"filewheel-bench-{secrets.token_hex(6)}"
    # The unique name comes first, so that the cleanup also works after an interrupt. The cleanup is tried twice,
    # because an interrupt can come just before the removal starts.
    try:
        try:
            os.mkdir(directory, 0o700)
            yield directory
        finally:
            with uninterrupted():
                shutil.rmtree(directory, ignore_errors=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _full(place: Path) -> Failure:
    return Failure(
        "full",
        f"{place}: not enough room to measure: {size(ROOM_BYTES)} have to be free, although less is used",
        hint="free some space, or name another directory with --dir",
    )


# -- print ------------------------------------------------------------------------------------------------------------


def _print_figures(out: Output, f: Figures) -> None:
    rows = [
        ("flush: pwrite + fdatasync", duration(f.flush_us), f"p99 {duration(f.flush_p99_us)}"),
        ("bare commits of that kind, one thread", rate(f.bare_per_s), ""),
        ("enqueue one, sync=always, one thread", rate(f.one_per_s), f"{f.share:.0%} of bare commits"),
        (f"enqueue one, sync=always, {THREADS} threads", rate(f.threads_per_s), ""),
        ("enqueue batches of 100, sync=always", rate(f.batch_100_per_s), ""),
        ("enqueue batches of 1,000, sync=always", rate(f.batch_1000_per_s), ""),
        ("enqueue one, sync=0.05, one thread", rate(f.interval_per_s), "loses at most 50 ms"),
        ("enqueue one, sync=never, one thread", rate(f.never_per_s), ""),
        ("fire and acknowledge a backlog", rate(f.fire_per_s), "in batches of 1,000"),
        (
            f"lateness, {RATE_PER_S}/s from another process",
            duration(max(0.0, f.late_p50_ms) * 1000),
            f"p99 {duration(max(0.0, f.late_p99_ms) * 1000)}",
        ),
    ]
    out.table([Column("MEASURED", most=60), Column("MEDIAN", right=True), Column("")], rows)


def _print_verdict(out: Output, verdict: Verdict) -> None:
    paragraphs = [
        ("disk", verdict.flush),
        ("filewheel", verdict.filewheel),
        *((f"sync={name}", text) for name, text in verdict.choices.items()),
        ("firing", verdict.firing),
        *(("careful", text) for text in verdict.warnings),
        ("choose", verdict.recommendation),
    ]
    indent = " " * _LABEL
    for label, text in paragraphs:
        lines = textwrap.wrap(text, min(out.columns, _COLUMNS_MOST) - 1 - _LABEL, break_on_hyphens=False)
        colour = "yellow" if label == "careful" else "green" if label == "choose" else None
        head = out.style(label, colour, bold=True) + " " * (_LABEL - len(label))
        out.write(head + f"\n{indent}".join(lines))
