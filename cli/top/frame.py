"""Draws what was read: lines of text in, so many columns and rows, nothing else.

Invariant: no line is wider than the terminal, no text of a message controls it, and nothing is said by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from filewheel import Ended, Message, Pause, Run
from filewheel.live.ahead import views

from ..show.calls import call_text, shown_payload, when_of
from ..show.output import Output
from ..show.pauses import pause_text
from ..show.picture import draw_view
from ..show.text import away, clip, count, pad, safe, short_time, show_bytes, span
from ..times import US_PER_S
from .looker import LISTS, Item, Sight

_ROLES = {"bar": ("cyan", False, False), "axis": (None, False, True), "title": (None, True, False)}
_BODY_CHARS = 400
_NAMED = 3
"""So many pauses are named in the head."""
_LEAST_ROWS = 5
"""The list has at least so many rows."""
HELP = "enter show  c cancel  f fire  k kill  r revive  x delete  p pause  / topic  q end"


@dataclass
class Shown:
    """What the person has chosen."""

    chosen: int = 0
    line: str = ""
    """A question, a report, or what is typed; in the place of the keys. Not made safe yet."""
    whole: Sequence[str] | None = None
    """The lines of one message, in the place of the lists."""


def frame(out: Output, sight: Sight, shown: Shown, columns: int, rows: int, now_us: int) -> list[str]:
    """Return the lines of the whole screen."""
    width, dots = columns, "…" if out.blocks else "..."

    def cut(text: str) -> str:
        return clip(text, width, dots)

    lines = head(out, sight, columns, now_us)[: max(1, rows - 4)]
    line = safe(shown.line)
    foot = [out.style(cut(line or HELP), bold=bool(shown.line), dim=not shown.line)]
    if shown.whole is not None:
        return _padded(lines[:1] + [cut(line) for line in shown.whole], rows - 1) + foot
    lines += picture(out, sight, columns, rows - len(lines) - len(foot) - _LEAST_ROWS - 1, now_us)
    lines += items(out, sight, shown, columns, max(1, rows - len(lines) - len(foot) - 1), now_us)
    return _padded(lines, rows - 1) + foot


def _padded(lines: list[str], rows: int) -> list[str]:
    return (lines + [""] * rows)[:rows]


# -- the head ---------------------------------------------------------------------------------------------------


def head(out: Output, sight: Sight, columns: int, now_us: int) -> list[str]:
    """Return the lines about the whole wheel: counts, rates, what is wrong."""
    dots = "…" if out.blocks else "..."
    live = sight.live
    clock = short_time(now_us, now_us)
    name = safe(out.dir)
    trouble = [out.style(clip(safe(sight.trouble), columns, dots), "red", bold=True)] if sight.trouble else []
    if live is None:
        return [out.style(clip(f"{clock}  {name}", columns, dots), bold=True), *trouble]
    first = f"{clock}  {_pending(live, now_us)}; {_keeper(live)}  {name}"
    lines = [out.style(clip(first, columns, dots), bold=True)]
    lines.append(clip(rates_text(live["rates"]), columns, dots))
    lines += [clip(text, columns, dots) for text in _second(live)]
    return lines + trouble


def _pending(live: dict[str, Any], now_us: int) -> str:
    stats = live["stats"]
    if stats is None:
        return "not counted"
    old = f" ({span(round(stats['age_s'] * US_PER_S))} ago)" if stats["age_s"] > 5 else ""
    return f"{stats['pending']:,} pending{old}{_next(live, now_us)}"


def _next(live: dict[str, Any], now_us: int) -> str:
    next_us = (live["turning"] or {}).get("next_us")
    return "" if next_us is None else f", next {away(next_us - now_us)}"


def _keeper(live: dict[str, Any]) -> str:
    stats, role = live["stats"], (live["set"] or {}).get("role", "primary")
    if stats is None:
        return "keeper unknown"
    if stats["keeper_up"]:
        return f"keeper {stats['keeper_pid'] or 'running'}"
    return "NO KEEPER" if role == "primary" else f"a {role}: fires nothing"


def rates_text(rates: dict[str, Any] | None) -> str:
    """Return the rates and the lateness in a line."""
    if rates is None:
        return "rates unknown: no scheduler publishes, and nothing has ended lately"
    per_s = rates["per_s"]
    if rates["stale"]:
        return "rates unknown: the scheduler that published has ended, or is stuck"
    parts = ["rates come with the next publication"]
    if per_s is not None:
        words = {"fired": "fired", "enqueued": "enqueued", "retried": "retried", "dead": "died"}
        parts = [f"{word} {per_s[name]:.1f}/s" for name, word in words.items() if name in per_s]
    late = ""
    if rates["late_p99_s"] is not None:
        half, most = (span(round(rates[name] * US_PER_S)) for name in ("late_p50_s", "late_p99_s"))
        late = f"; late {half}, 99 % {most}"
    return ", ".join(parts) + late


def _second(live: dict[str, Any]) -> list[str]:
    """Return a line of what an operator has to see; none when there is nothing."""
    parts = []
    if live["paused"]:
        names = [str(Pause(pause["what"], pause["name"])) for pause in live["paused"]]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        waits = (live["turning"] or {}).get("overdue_paused")
        parts.append(f"PAUSED {', '.join(names[:_NAMED])}{more}{f' ({waits:,} due)' if waits else ''}")
    turning, stats, running = live["turning"], live["stats"], live["running"]
    if turning is not None and turning["overdue"]:
        more = "+" if turning["overdue_is_more"] else ""
        parts.append(f"OVERDUE {turning['overdue']:,}{more}, the first {span(round(live['lag_s'] * US_PER_S))}")
    if running is not None and running["claimed"]:
        waits = running["claimed"] - running["running"]
        stale = ": the keeper is STUCK" if running["stale"] else ""
        parts.append(f"runs {running['running']:,}{f', {waits:,} claimed' if waits > 0 else ''}{stale}")
    if stats is not None and stats["dead"]:
        parts.append(count(stats["dead"], "dead letter"))
    if stats is not None and (stats["damaged"] or stats["quarantined"]):
        parts.append(f"DAMAGED {count(stats['damaged'], 'place')}, {stats['quarantined']:,} in quarantine")
    if live["set"] is not None:
        parts.append(backups_text(live["set"]))
    return [safe("; ".join(parts))] if parts else []


def backups_text(found: dict[str, Any]) -> str:
    """Return how the backups of a set are, in a few words."""
    if found["role"] != "primary":
        return f"this is a {found['role']} of {found['primary']}"
    bad = [one for one in found["backups"] if one["state"] != "current" or not one["following"]]
    behind = max((one["lag_s"] or 0 for one in found["backups"]), default=0)
    lag = f", {span(round(behind * US_PER_S))} behind" if behind else ""
    well = len(found["backups"]) - len(bad)
    states = ", ".join(f"{one['path']} {one['state']}{'' if one['following'] else ', not followed'}" for one in bad)
    return f"backups {well} of {len(found['backups'])} well{lag}" + (f" ({states})" if bad else "")


# -- the time ahead ---------------------------------------------------------------------------------------------


def picture(out: Output, sight: Sight, columns: int, room: int, now_us: int) -> list[str]:
    """Return the pictures of the next minute, hour and day, as high as there is room."""

    def style(text: str, role: str) -> str:
        colour, bold, dim = _ROLES[role]
        return out.style(text, colour, bold=bold, dim=dim)

    if sight.live is None or sight.ahead is None or columns < 64:
        return []
    height = 3 if room >= 3 * 5 + 3 else 2 if room >= 3 * 4 else 1
    each = height + 2
    lines: list[str] = []
    minute = views(now_us)[0]
    shown = [(minute, _minute(sight.live["turning"], now_us, minute.bars))]
    shown += [(view, sight.ahead.counts(view)) for view in sight.ahead.views[1:]]
    for view, counts in shown[: max(0, room // each)]:
        lines += draw_view(view, counts, height, style, blocks=out.blocks)
    return lines


def _minute(turning: dict[str, Any] | None, now_us: int, bars: int) -> list[int]:
    if turning is None:
        return [0] * bars
    start = now_us // US_PER_S - turning["start_s"]
    counts = turning["counts"][max(0, start) : max(0, start) + bars - 1]
    return [*counts, *[0] * (bars - len(counts))]


# -- the lists --------------------------------------------------------------------------------------------------


def items(out: Output, sight: Sight, shown: Shown, columns: int, room: int, now_us: int) -> list[str]:
    """Return the chosen list: its name among the others, and a line for each item."""
    dots = "…" if out.blocks else "..."
    wanted = sight.wanted
    names = "  ".join(f"[{name}]" if name == wanted.name else name for name in LISTS)
    topic = f"  topic {safe(wanted.topic)}" if wanted.topic else ""
    page = "  (not the first page)" if wanted.after is not None else ""
    lines = [out.style(clip(f"{names}{topic}{page}", columns, dots), bold=True)]
    runs = {
        run["id"] for run in ((sight.live or {}).get("running") or {"runs": ()})["runs"] if run["state"] == "running"
    }
    for n, item in enumerate(sight.items[:room]):
        state, message = "", item[1] if isinstance(item, tuple) else item
        if isinstance(message, Message) and not message.is_dead:
            waits = "" if message.waits is None else "waits"
            state = "runs" if str(message.id) in runs else "paused" if sight.pauses.of(message) else waits
        text = row_text(item, columns, now_us, state)
        row = clip(f"{'>' if n == shown.chosen else ' '} {text}", columns, dots)
        lines.append(out.style(row, bold=n == shown.chosen))
    if not sight.items and sight.live is not None:
        lines.append(out.style(clip(_nothing(sight), columns, dots), dim=True))
    return lines


def _nothing(sight: Sight) -> str:
    if sight.searched_us is not None:
        return f"  nothing up to {short_time(sight.searched_us, sight.searched_us)}; page down goes on"
    fits = " that fits" if sight.wanted.topic else ""
    words = {
        "next": "nothing is pending", "dead": "no dead letters", "running": "nothing runs",
        "ended": "no attempt has ended", "schedules": "no schedules", "paused": "nothing is paused",
    }  # fmt: skip
    return f"  {words[sight.wanted.name]}{fits}"


def row_text(item: Item, columns: int, now_us: int, state: str = "") -> str:
    """Return an item as a line, made safe; `state` is of a message that does more than wait for its due."""
    wide = columns >= 100
    topic = 24 if wide else 14

    def cell(text: str, width: int) -> str:
        return pad(clip(safe(text), width), width)

    if isinstance(item, Message):
        at = item.died_us if item.died_us is not None else item.due_us
        when = f"{cell(short_time(at, now_us), 12)} {cell(state or away(at - now_us), 12)}"
        call = call_text(item)
        body = show_bytes(shown_payload(item)[:_BODY_CHARS]) if call is None else call[:_BODY_CHARS]
        text = f"{item.reason}: {body}" if item.died_us is not None else body
        return f"{when} {cell(item.topic or item.schedule_name or '(none)', topic)} {safe(text)}"
    if isinstance(item, Run):
        state = "claimed" if item.begun_us is None else f"runs {span(max(0, now_us - item.begun_us))}"
        tried = f"try {item.attempt + 1}"
        name = item.topic or item.schedule or "(none)"
        return f"{cell(state, 16)} {cell(name, topic)} {cell(tried, 7)} {safe(str(item.place or ''))}"
    if isinstance(item, Ended):
        took = "" if item.took_us is None else span(item.took_us)
        first = f"{cell(away(item.ended_us - now_us), 12)} {cell(item.outcome, 9)} {cell(took, 9)}"
        return f"{first} {cell(item.topic or item.schedule or '(none)', topic)} {safe(item.error)}"
    if isinstance(item, Pause):
        return safe(pause_text(item, now_us))
    definition, message = item
    text, zone = when_of(definition.recurrence)
    when = f"{cell(short_time(message.due_us, now_us), 12)} {cell(state or away(message.due_us - now_us), 12)}"
    return f"{when} {cell(definition.name, topic)} {safe(text)}{f' {safe(zone)}' if zone else ''}"
