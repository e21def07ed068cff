"""Text and numbers for people: safe to print, cut to a width, with units.

A payload, topic or header can hold escape sequences that move the cursor, rename the window or reverse the line. It
reaches a terminal only through `safe` (or, as JSON, through `to_line`).
Invariant: `safe` returns one line of printable characters.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from filewheel.timespec import span as span

from ..times import US_PER_S, to_datetime

# C0, DEL and C1 controls; marks and controls that reorder text; line separators; lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
ELLIPSIS = "…"
RUN = "`filewheel run`"
RUN_JOBS = "`filewheel run -- sh`"
WORK = "`filewheel work MODULE:NAME`"
"""The commands that fire messages, as an advice names them."""


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def safe(text: str) -> str:
    """Return text with escapes for all characters that could control a terminal."""
    return _UNSAFE.sub(_escape, text)


def safe_block(text: str) -> str:
    """Return safe text of several lines: line ends and tabs stay."""
    return "\n".join("\t".join(safe(part) for part in line.split("\t")) for line in text.split("\n"))


def show_bytes(data: bytes) -> str:
    """Return a payload as text; bytes that are not UTF-8 become \\xff."""
    return data.decode("utf-8", "backslashreplace")


def to_line(fields: dict[str, Any], *, ascii_only: bool = False) -> str:
    """Return an object as one line of JSON that is safe to print."""
    line = json.dumps(fields, ensure_ascii=ascii_only)
    return line if ascii_only and "\x7f" not in line else _UNSAFE.sub(lambda m: f"\\u{ord(m[0]):04x}", line)


# -- widths ---------------------------------------------------------------------------------------------------


def width(text: str) -> int:
    """Return the width of this text in terminal columns."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth, wcwidth  # takes as long as click, and most output is ASCII

    columns = wcswidth(text)
    return columns if columns >= 0 else sum(max(0, wcwidth(c)) for c in text)


def clip(text: str, columns: int, ellipsis: str = ELLIPSIS) -> str:
    """Cut text to at most `columns`, with a mark of the cut."""
    if len(text) <= columns and width(text) <= columns:
        return text
    room = columns - len(ellipsis)
    end = 0
    while end < len(text) and width(text[: end + 1]) <= room:  # the prefix: a character may widen the previous one
        end += 1
    return text[:end] + ellipsis


def wrap(text: str, columns: int) -> list[str]:
    """Wrap text between words into lines of at most `columns`; a longer word stays whole."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if lines[-1] and width(longer) > columns:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Pad text with spaces to this width."""
    fill = " " * (columns - width(text))
    return fill + text if right else text + fill


# -- quantities -----------------------------------------------------------------------------------------------


AWAY = 11
"""The width of `away` for each due of the next hundred years, at its widest: "in 10d 10h"."""


def away(us: int) -> str:
    """Write a distance in time: "in 5m", "3s ago"."""
    return f"in {span(us)}" if us > 0 else f"{span(-us)} ago"


def size(count: int) -> str:
    """Write a number of bytes: "5 B", "1.2 MiB"."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1023.5 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"


def count(number: int, noun: str, plural: str = "") -> str:
    """Write a count with its noun: "1 message", "2,000 messages"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


# -- times ----------------------------------------------------------------------------------------------------


def local(us: int) -> datetime:
    """Return a moment in local time; in UTC if that is outside the calendar."""
    moment = to_datetime(us)
    try:
        return moment.astimezone()
    except (OverflowError, ValueError, OSError):
        return moment


def second_time(us: int) -> str:
    """Write a moment in local time as `full_time` does, without a fraction of a second."""
    return full_time(us - us % US_PER_S)


def full_time(us: int) -> str:
    """Write a moment in local time with its offset: "2026-11-21 09:00:00 +01:00"."""
    moment = local(us)
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{moment:%Y-%m-%d %H:%M:%S}{fraction} {offset(moment)}"


def offset(moment: datetime) -> str:
    """Write a moment's offset from UTC: "+01:00"."""
    text = f"{moment:%z}"
    return f"{text[:3]}:{text[3:5]}" if text else "+00:00"


SHORT_TIME = 12
"""The width of `short_time` at its widest: "Nov 30 12:00"."""


def short_time(us: int, now_us: int) -> str:
    """Write a moment in local time, as short as its distance allows."""
    moment, now = local(us), local(now_us)
    if moment.date() == now.date() or abs(us - now_us) < 12 * 3600 * US_PER_S:
        return f"{moment:%H:%M:%S}"
    if abs(us - now_us) < 300 * 86_400 * US_PER_S:
        return f"{moment:%b} {moment.day:2d} {moment:%H:%M}"
    return f"{moment:%Y-%m-%d}"
