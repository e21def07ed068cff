"""Many records from stdin for `kafka produce`: every line checked before the first record is sent.

`--lines` takes each line as a value, `--batch` as a JSON object with its own target and due.
Invariant: a bad line means that nothing was sent, and its error names its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

from filewheel import BadArgument
from filewheel.timespec import check_due, delay_us
from filewheel.tools.dump import payload_of

from .lines import Spool, parse_object, read_lines
from .params import read_delay, read_time

LINE_BYTES_MAX = 64 << 20
# The output of `kafka inspect --list` can be sent again; these keys are ignored.
_OTHER_KEYS = frozenset(
    {"id", "topic", "partition", "offset", "due", "target_partition", "fate", "reason", "timestamp_ms"}
)
_KEYS = frozenset({"target", "payload", "payload_b64", "in", "at", "due_us", "key", "target_key", "headers"})


class RecordRow(NamedTuple):
    """One record to be sent."""

    target: str
    value: bytes
    delay_us: int | None
    """From now; None: `due_us` counts."""
    due_us: int | None
    key: str | None
    target_key: str | None
    headers: dict[str, str]


@dataclass
class RecordDefaults:
    """The command line's values for lines without their own."""

    target: str | None
    delay_us: int | None
    due_us: int | None
    headers: dict[str, str]
    now_us: int


def spooled(
    stream: BinaryIO, spool: Spool, defaults: RecordDefaults, check: Callable[[RecordRow], None], *, json: bool
) -> None:
    """Check every line and spool it. Raises BadArgument, which names the line."""
    for number, line in read_lines(stream, LINE_BYTES_MAX):
        if json and line is not None and not line.strip():
            continue
        try:
            if line is None:
                raise BadArgument(f"longer than {LINE_BYTES_MAX:,} bytes")
            row = _of_object(parse_object(line, number), defaults) if json else _of_line(line, defaults)
            check(row)
        except BadArgument as exc:
            where = "" if exc.what.startswith("line ") else f"line {number}: "
            raise BadArgument(f"{where}{exc.what}; nothing was sent", hint=exc.hint) from None
        spool.add(row)


def rows(spool: Spool) -> Iterator[RecordRow]:
    """Yield the checked rows."""
    for fields in spool.rows():
        yield RecordRow(*fields)


def _of_line(line: bytes, defaults: RecordDefaults) -> RecordRow:
    assert defaults.target is not None
    return RecordRow(defaults.target, line, defaults.delay_us, defaults.due_us, None, None, defaults.headers)


def _of_object(fields: dict[str, Any], defaults: RecordDefaults) -> RecordRow:
    for key in fields:
        if key not in _KEYS and key not in _OTHER_KEYS:
            raise BadArgument(f"unknown key {key!r}", hint=f"the keys are {', '.join(sorted(_KEYS))}")
    target = fields.get("target", defaults.target)
    if target is None:
        raise BadArgument("no target", hint="a key target, or --target for all lines")
    headers = fields.get("headers", defaults.headers)
    return RecordRow(
        target, payload_of(fields), *_due(fields, defaults), fields.get("key"), fields.get("target_key"), headers
    )


def _due(fields: dict[str, Any], defaults: RecordDefaults) -> tuple[int | None, int | None]:
    given = [key for key in ("in", "at", "due_us") if key in fields]
    if len(given) > 1:
        raise BadArgument(f"give one of {', '.join(given)}")
    if not given:
        if defaults.delay_us is None and defaults.due_us is None:
            raise BadArgument("no due time", hint="a key in, at or due_us, or --in or --at for all lines")
        return defaults.delay_us, defaults.due_us
    value = fields[given[0]]
    if given == ["in"]:
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise BadArgument(f"'in' is a text such as \"5m\", or seconds, not {value!r}")
        return read_delay(value) if isinstance(value, str) else delay_us(value), None
    if given == ["at"]:
        if not isinstance(value, str):
            raise BadArgument(f"'at' is a text such as \"09:00\", not {value!r}", hint='epoch seconds are "@..."')
        return None, read_time(value, defaults.now_us).due_us
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadArgument(f"'due_us' is microseconds since the epoch, not {value!r}")
    return None, check_due(value)
