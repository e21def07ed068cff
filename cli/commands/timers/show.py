"""`timers show`: a hierarchical wheel as it turns, from a trace."""

from __future__ import annotations

import importlib.resources
import sys
import time
from pathlib import Path

import click

from ...show.output import Output
from ...show.text import clip, count, safe
from ...signals import interruptible
from ...timers.picture import picture
from ...timers.trace import TraceStep, read_trace
from ...timers.turning import TraceEvent, TracePlayer
from ...verb import verb

_SAMPLE = "timers.trace"
_ROOT = (__package__ or "").partition(".")[0]
_CHECKOUT = Path(__file__).resolve().parents[3]
_EVENTS = 6
"""So many lines below the picture."""


@verb(
    "show",
    """
    $ filewheel timers show
    $ filewheel timers show --slots 16 --levels 2
    $ printf '0 start a 100\\n9 stop a\\n' | filewheel timers show - --json
    """,
    wheel=False,
)
@click.argument("trace", required=False, type=click.Path(allow_dash=True), metavar="[TRACE]")
@click.option(
    "--slots", type=click.IntRange(2, 4096), default=8, show_default=True, metavar="N", help="The slots of each level."
)
@click.option("--levels", type=click.IntRange(1, 8), default=3, show_default=True, metavar="N", help="How many levels.")
@click.option(
    "--delay", type=click.FloatRange(0, 10), default=0.4, show_default=True, metavar="S",
    help="How long each picture stays on a terminal.",
)  # fmt: skip
def show(out: Output, trace: str | None, slots: int, levels: int, delay: float) -> None:
    """Draw a hierarchical timing wheel as it turns.

    Each row is a level, whose slots are as long as the whole level below. A number is how many timers wait in the
    slot, and the arrow is the hand. A timer starts in the lowest level that reaches its due; when the hand comes to
    its slot, it is demoted to a lower level, and from the lowest it fires.

    TRACE has a line for each start and stop, in the order of ticks, as "0 start login 5" and "3 stop login"; - is
    stdin. Without one, calls of a service and their time-outs are shown.

    On a terminal the wheel is drawn in one place; piped, a picture follows for each tick at which something happens,
    or with --json a line for each event.
    """
    turning = TracePlayer(_steps(trace), slots, levels)
    animated = out.can_redraw and not out.json and out.rows > 2 * levels + _EVENTS + 2
    with interruptible():
        drawn = 0
        for events in turning.frames():
            if out.json:
                for event in events:
                    out.record(event.to_json())
                continue
            lines = _frame(out, turning, events)
            if animated:
                lines = [*lines, *[""] * (2 * levels + 1 + _EVENTS - len(lines))]
                up = f"\x1b[{drawn}A" if drawn else ""
                sys.stdout.write(up + "".join(f"{line}\x1b[K\n" for line in lines))
                out.flush()
                drawn = len(lines)
                time.sleep(delay)
            else:
                for line in [*lines, ""]:
                    out.write(line)


def _frame(out: Output, turning: TracePlayer, events: list[TraceEvent]) -> list[str]:
    columns = min(out.columns, 80) - 1
    wheel = turning.wheel
    lines = [f"tick {wheel.now}: {len(wheel)} pending, {turning.fired} fired"]
    lines += picture(wheel, columns, blocks=out.blocks)
    shown = [event.text() if out.blocks else event.text().replace("→", "->") for event in events]
    if len(shown) > _EVENTS:
        shown[_EVENTS - 1 :] = [f"and {count(len(shown) - _EVENTS + 1, 'more event')}"]
    return lines + [clip("  " + safe(text), columns) for text in shown]


def _steps(trace: str | None) -> list[TraceStep]:
    if trace is None:
        sample = _CHECKOUT / "data" / "samples" / _SAMPLE
        if sample.is_file():
            text = sample.read_text(encoding="utf-8")
        else:
            text = (importlib.resources.files(_ROOT) / "samples" / _SAMPLE).read_text(encoding="utf-8")
        return read_trace(text.splitlines(), _SAMPLE)
    with click.open_file(trace, encoding="utf-8", errors="replace") as file:
        return read_trace(file, trace)
