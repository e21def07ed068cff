"""Results of calls, which are kept for a time: each is a message with the key "filewheel.result:<id of the call>".

A result is written in the frame that ends its call, and is due when it expires. It never goes to a handler: who claims
it drops it (`settlements.expired`, and `PlainOccurrences.passed_over` for other consumers).
Format: docs/format.md, 7.
Invariant: that a value cannot be kept never changes the outcome of its call; the result says why it is not kept.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

from filewheel.checks import shown
from filewheel.disk.forks import IMPORTS
from filewheel.errors import BadArgument, CallFailed, FilewheelError, NotFound, ResultNotKept, ResultTimeout
from filewheel.format.ids import MINT
from filewheel.journal.settlement import Settlement
from filewheel.message import DUE_END_US, KEY, RESULT, US_PER_S, Message, MessageId
from filewheel.scheduling.outcome import Kept
from filewheel.timespec import delay_us, parse_duration
from filewheel.values import Encode, pack, unpack
from filewheel.wheel import Wheel

RESULT_BYTES_MAX = 64 << 10
"""The most bytes of a packed result."""
ERROR = "error"
"""The call failed; the payload is the text."""
UNKEPT = "unkept"
"""The call succeeded, and what it returned cannot be kept; the payload says why."""
_TEXT_CHARS = 1000
FIRST_WAIT_S, LAST_WAIT_S = 0.005, 0.2
"""How long `Scheduler.result` sleeps between two looks, at first and at most."""


def key_of(id_: MessageId) -> str:
    """Return the key of a call's result."""
    return f"{RESULT}:{id_}"


def check_result_for(result_for: str | float | timedelta | None) -> int | None:
    """Return for how long results are kept, in microseconds. Raises BadArgument."""
    if result_for is None:
        return None
    us = parse_duration(result_for) if isinstance(result_for, str) else delay_us(result_for)
    if us <= 0:
        raise BadArgument(f"result_for is a time above 0, not {shown(result_for)}", hint='result_for="1h"')
    return us


def kept(value: Any, encode: Encode | None) -> Kept:
    """Return what a call returned as it is kept. Raises nothing."""
    try:
        payload, how = pack(value, encode, what="the value that the handler returned")
    except BadArgument as exc:
        return Kept(UNKEPT, exc.what.encode("utf-8", "backslashreplace"))
    if len(payload) > RESULT_BYTES_MAX:
        return _too_large(len(payload), RESULT_BYTES_MAX)
    return Kept(how, payload)


def _too_large(size: int, most: int) -> Kept:
    return Kept(UNKEPT, f"it has {size:,} bytes packed, and {most:,} are kept at most".encode())


def with_result(
    settlement: Settlement, message: Message, result: Kept | None, *, now_us: int, for_us: int, bytes_max: int
) -> Settlement:
    """Return a settlement that ends a call, with the result to be written in its frame."""
    if settlement.what == "acked":
        if result is not None and result.how not in (ERROR, UNKEPT) and len(result.payload) > bytes_max:
            result = _too_large(len(result.payload), bytes_max)
    elif settlement.what in ("buried", "killed"):
        result = Kept(ERROR, (settlement.reason or "it was killed").encode("utf-8", "backslashreplace"))
    else:
        return settlement  # it is called again
    if result is None:
        return settlement
    headers = {KEY: key_of(message.root or message.id), RESULT: result.how}
    id_ = MINT.id_at(min(now_us + for_us, DUE_END_US - 1))
    put = Message(id_, result.payload[:bytes_max], RESULT, headers, 0, now_us)
    # It replaces: a revived call has an older result.
    return replace(settlement, puts=[*settlement.puts, put], replaces=settlement.replaces | {id_})


class ResultLook:
    """One call's result, looked for as often as needed."""

    def __init__(self, id_: MessageId | str) -> None:
        self._id = MessageId.parse(id_)
        self._now_at = self._id
        """The id under which the call was last seen."""

    def look(self, wheel: Wheel) -> Kept | None:
        """Return the result; None while the call waits or runs.

        Cost: two look-ups; where the call was retried or moved, the first look reads every pending message.

        Raises CallFailed, ResultNotKept; NotFound for an unknown call, and for one whose result has expired.
        """
        result = self._kept(wheel)
        if result is None and self._is_pending(wheel):
            return None
        if result is None:
            result = self._kept(wheel)  # it ended between the two looks
        if result is None:
            raise NotFound(
                f"there is no result of the call {self._id}",
                path=wheel.path,
                hint='its handler keeps results with @on(result_for="1h"), for that time; `filewheel history '
                f"{self._id}` shows how it ended",
            )
        if result.how in (ERROR, UNKEPT):
            raise self._error(result, wheel.path)
        return result

    def wait(self, wheel: Wheel, timeout_s: float) -> Kept:
        """Look until the call has ended. Raises ResultTimeout, and what `look` raises."""
        clock, disk = wheel._dir.env.clock, wheel._dir.disk
        end_us = clock.steady_us() + round(timeout_s * US_PER_S)
        pause_s = FIRST_WAIT_S
        while (found := self.look(wheel)) is None:
            left_s = (end_us - clock.steady_us()) / US_PER_S
            if left_s <= 0:
                raise self.timed_out(wheel.path, timeout_s)
            disk.wait_hint(None, min(pause_s, left_s))
            pause_s = min(pause_s * 2, LAST_WAIT_S)
        return found

    def timed_out(self, path: str, timeout_s: float) -> ResultTimeout:
        """Return the error that the call did not end in time."""
        waited = f"after {timeout_s:g} s" if timeout_s else "now; timeout_s= waits for it"
        return ResultTimeout(
            f"the call {self._id} has no result {waited}",
            path=path,
            hint=f"`filewheel inspect {self._now_at}` shows whether it waits, runs or is retried",
        )

    def _kept(self, wheel: Wheel) -> Kept | None:
        message = wheel.get(key=key_of(self._id))
        if message is None or RESULT not in message.headers:
            return None
        if message.due_us <= wheel._clock.now_us():
            return None
        return Kept(message.headers[RESULT], message.payload)

    def _is_pending(self, wheel: Wheel) -> bool:
        """Return whether the call waits or runs, also under another id. Raises CallFailed for a dead letter."""
        message = wheel.get(self._now_at)
        while message is None:
            with IMPORTS:  # on demand: most programs ask for no result of a call that has moved
                from filewheel.tools.absent import moved_to
            found = moved_to(wheel, self._id, sys.maxsize)
            self._now_at = self._id if found is None else found
            if found is None:
                break
            message = wheel.get(found)  # None once more if it moved in between
        if message is not None and message.is_dead:
            reason = (message.reason or "it is a dead letter").encode("utf-8", "backslashreplace")
            raise self._error(Kept(ERROR, reason), wheel.path)
        return message is not None

    def _error(self, result: Kept, path: str) -> FilewheelError:
        text = result.payload.decode("utf-8", "replace")[:_TEXT_CHARS]
        if result.how == UNKEPT:
            return ResultNotKept(
                f"the call {self._id} has ended well, but its result is not kept: {text}",
                path=path,
                hint="return a small value of plain data, or have the handler store it",
            )
        return CallFailed(
            f"the call {self._id} failed: {text}",
            error=text,
            path=path,
            hint=f"`filewheel history {self._id}` shows its attempts",
        )


def value_of(result: Kept) -> Any:
    """Return the value of a result. Raises Damaged."""
    return unpack(result.payload, result.how)
