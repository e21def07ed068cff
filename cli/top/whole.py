"""One message whole, as lines for the screen of `top`.

Invariant: each line is safe to print.
"""

from __future__ import annotations

from filewheel import Message, schedule_of

from ..show.calls import call_text, schedule_text
from ..show.text import away, full_time, safe, safe_block, show_bytes, size

_SHOWN_BYTES = 4096


def whole_lines(message: Message, now_us: int) -> list[str]:
    """Return the fields, the failed attempts and the beginning of the payload."""
    rows = [("id", str(message.id))]
    if message.root is not None:
        rows.append(("first id", str(message.root)))
    rows.append(("due", f"{full_time(message.due_us)}, {away(message.due_us - now_us)}"))
    if message.died_us is not None:
        rows += [("died", f"{full_time(message.died_us)}, {away(message.died_us - now_us)}")]
        rows += [("reason", message.reason or "")]
    rows += [("topic", message.topic or "(none)"), ("attempt", str(message.attempt))]
    rows += [("key", message.key)] if message.key is not None else []
    call, definition = call_text(message), schedule_of(message)
    rows += [("call", call)] if call is not None else []
    rows += [("schedule", schedule_text(definition))] if definition is not None else []
    rows += [("waits", message.waits)] if message.waits is not None else []
    lines = [f"{name.ljust(10)}{safe(value)}" for name, value in rows]
    for attempt in message.attempts:
        lines.append(f"failed    {full_time(attempt.at_us)}, attempt {attempt.attempt}: {safe(attempt.error)}")
        lines += [f"  | {safe(line)}" for line in attempt.details.split("\n") if attempt.details]
    if call is None:
        lines += [f"payload   {size(len(message.payload))}", ""]
        lines += safe_block(show_bytes(message.payload[:_SHOWN_BYTES])).split("\n") if message.payload else []
    return lines
