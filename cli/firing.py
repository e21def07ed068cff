"""The loops of `run`: claim due messages, pass them on, acknowledge them.

`print_due` writes each message as a JSON line and acknowledges it after a flush of stdout. `CommandRunner` runs a
command for each: the main thread claims a message for each free worker, the workers run it and settle the message.
An occurrence of a schedule is settled together with the next one; one that cannot be read here waits. Calls of
handlers, and occurrences that are calls, are refused unless `raw`: only a scheduler fires them. So are, to stdout, all
occurrences: the body of one is work to be done.
Invariant: a claimed message is acknowledged, put back or buried, or fires again after this process has ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from filewheel import (
    Damaged,
    DiskError,
    FilewheelError,
    Keeper,
    Kill,
    Message,
    Once,
    Place,
    PlainOccurrences,
    Retry,
    Wheel,
    retry_of,
    schedule_of,
)
from filewheel.message import RESULT
from filewheel.tools.dump import to_json

from . import times
from .child import Commands, NotStarted
from .failure import Failure
from .show.calls import is_work, refused
from .show.output import Output
from .show.pauses import Reporter
from .show.text import count, full_time, safe, show_bytes, span
from .signals import Stop

_CLAIM = 256
_LOOK_S = 0.2
_LOOK_SHARE = 20
_BEAT_S = 0.5
_REST_S, _REST_MAX_S = 0.5, 30.0
"""How long a start that failed is waited for, doubled each time."""
_STOP_S = 1.0
"""How long a signal that is sent to all processes of a service takes to reach this one."""

GoOn = Callable[[], bool]
"""Called when nothing is due and nothing is claimed; returns whether to wait for more."""


def late_ms(message: Message) -> float:
    """Return a message's lateness."""
    return (times.now_us() - message.due_us) / 1000


class UntilEmpty:
    """Checks whether work is pending, but for schedules without an end, within a limited share of the time."""

    def __init__(self, wheel: Wheel) -> None:
        self._wheel = wheel
        self._next = 0.0
        self.left: set[bytes] = set()
        """Messages that this process cannot settle; the next keeper fires them."""

    def __call__(self) -> bool:
        """Return whether a message is pending."""
        start = time.monotonic()
        if start < self._next:
            return True
        with self._wheel.snapshot() as snapshot:
            waits = any(m.id not in self.left and not _is_no_work(m) for m in snapshot.messages())
        now = time.monotonic()
        self._next = now + max(_LOOK_S, _LOOK_SHARE * (now - start))
        return waits


def _is_no_work(message: Message) -> bool:
    """Return whether this waits for the next time of a schedule that never ends, or is the result of a call."""
    if RESULT in message.headers:
        return True
    stored = schedule_of(message) if message.attempt == 0 else None
    return (
        stored is not None and (stored.count, stored.end_us) == (None, None) and not isinstance(stored.recurrence, Once)
    )


# -- to stdout ------------------------------------------------------------------------------------------------


def print_due(
    keeper: Keeper, out: Output, stop: Stop, go_on: GoOn, beat: Callable[[], None] = lambda: None,
    *, raw: bool, first: Sequence[str] = (),
) -> int:  # fmt: skip
    """Write due messages to stdout until `stop` or `go_on` ends the loop; return their number.

    `beat` is called each time around.

    Raises Failure for a message that is a call, or whose body is work, after the earlier ones are acknowledged.
    """
    fired = 0
    occurrences = PlainOccurrences(keeper)
    reporter = Reporter(out)
    while not stop.asked:
        beat()
        batch = keeper.claim(_CLAIM, first=first, begun=False)
        reporter.look(keeper.paused)
        if not batch:
            if keeper.is_drained or not go_on():
                break
            keeper.wait()
            continue
        plain, call = (batch, None) if raw else plain_of(batch, is_work)
        passed = {m.id: settlement for m in plain if (settlement := occurrences.passed_over(m)) is not None}
        if passed:
            keeper.settle([*passed.values()])
        plain = [message for message in plain if message.id not in passed]
        stopped, started_us = keeper.begin(plain), keeper.now_us()
        plain = [message for message in plain if message.id not in stopped]
        for message in plain:
            _print(out, message)
        out.flush()
        recurring = [message for message in plain if occurrences.recurs(message)]
        if recurring:
            keeper.settle([occurrences.succeeded(message, started_us) for message in recurring])
        fired += len(recurring) + keeper.ack([message for message in plain if message not in recurring])
        if call is not None:
            raise refused(call)  # it stays claimed, so the next keeper gets it
    return fired


def plain_of(
    batch: Iterable[Message], is_refused: Callable[[Message], bool]
) -> tuple[Sequence[Message], Message | None]:
    """Return the messages of a batch before the first that is refused, and that one."""
    plain: list[Message] = []
    for message in batch:
        if is_refused(message):
            return plain, message
        plain.append(message)
    return plain, None


def _print(out: Output, message: Message) -> None:
    late = late_ms(message)
    if out.json is False:
        words = [full_time(message.due_us), f"+{late:.1f} ms", message.topic or "-", show_bytes(message.payload)]
        out.write(safe("  ".join(words)))
        return
    fields: dict[str, Any] = to_json(message)
    fields["late_ms"] = round(late, 3)
    out.record(fields)


# -- to a command ---------------------------------------------------------------------------------------------


class CommandRunner:
    """Runs a command for each message, `jobs` at once. The keeper's Worker: it says where they run, and ends one."""

    kind: Literal["command"] = "command"

    def __init__(
        self, keeper: Keeper, out: Output, stop: Stop, commands: Commands, retry: Retry, jobs: int,
        *, raw: bool, first: Sequence[str] = (), beat: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`beat` is called each time the main thread comes around, also while all commands run."""
        self._keeper = keeper
        self._occurrences = PlainOccurrences(keeper)
        self._out = out
        self._stop = stop
        self.commands = commands
        self._retry = retry
        """For messages without one of their own."""
        self._jobs = jobs
        self._raw = raw
        self._first = first
        self._beat = beat
        self._tasks: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        # Safe in a signal handler, which also wakes a waiting `get`; a Condition does neither.
        self._events: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._errors: list[BaseException] = []
        self._unsettled: FilewheelError | None = None
        """Why some messages stay claimed: a foreign object is in the place of a file that they need."""
        self.left: set[bytes] = set()
        """Those messages."""
        self._kills: dict[bytes, Kill] = {}
        """Requests to end commands that run."""
        self._reporter = Reporter(out)
        self._talk = threading.Lock()
        self._not_started = ""
        """Why the last command that was not started was not."""
        self._rest_s = self._rest_until = 0.0
        self._busy = 0
        self.counts: Counter[str] = Counter()
        """Counts of outcomes: done, retried, buried, cancelled, missed, killed, waits."""
        keeper.set_worker(self)

    @property
    def is_drained(self) -> bool:
        """Whether the wheel was drained."""
        return self._keeper.is_drained

    def wake(self) -> None:
        """Wake the main thread. For signal handlers."""
        self._events.put("signal")
        self._keeper.wake()

    def run(self, go_on: GoOn) -> None:
        """Work until a stop is requested or `go_on` ends the loop."""
        if isinstance(go_on, UntilEmpty):
            go_on.left = self.left
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(self._jobs)]
        for worker in workers:
            worker.start()
        try:
            self._dispatch(go_on)
        except (FilewheelError, Failure) as exc:
            self._errors.insert(0, exc)  # messages in hand are still finished
        if self._busy and self._keeper.is_drained:
            self._out.note(f"the wheel was drained: finishing {count(self._busy, 'message')} in hand")
        elif self._busy and self._stop.asked:
            self._out.note(f"finishing {count(self._busy, 'message')} in hand; once more to abort")
        while self._busy:
            self._count(self._next_event())
        for _ in workers:
            self._tasks.put(None)
        for worker in workers:
            worker.join()
        if self._errors:
            raise self._errors[0]
        if self._unsettled is not None:
            raise self._unsettled

    def _dispatch(self, go_on: GoOn) -> None:
        while True:
            self._beat()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._count(self._events.get_nowait())
            if self._stop.asked or self._errors or self._keeper.is_drained:
                return
            free = self._jobs - self._busy
            rests = time.monotonic() < self._rest_until
            if rests and not self._busy and not go_on():
                raise Failure(
                    "failed", f"the command cannot be started ({self._not_started}); what is due stays so",
                    hint="run it again when there is room; no attempt was used up",
                )  # fmt: skip
            if rests or not free:
                self._count(self._next_event())
                continue
            batch = self._keeper.claim(free, first=self._first, begun=False)
            self._reporter.look(self._keeper.paused)
            plain, call = (batch, None) if self._raw else plain_of(batch, PlainOccurrences.refuses)
            for message in plain:
                self._busy += 1
                self._tasks.put(message)
            if call is not None:
                raise refused(call)
            if not batch:
                if not self._busy and not go_on():
                    return
                self._keeper.wait()

    def _next_event(self) -> str:
        """Wait a moment for a command to end, or a signal; return "" when there was none."""
        self._beat()
        with contextlib.suppress(queue.Empty):
            return self._events.get(timeout=_BEAT_S)
        return ""

    def stalled_s(self) -> float:
        """Return for how many seconds the keeper's own thread has not come around."""
        return self._keeper.stalled_s()

    def status(self) -> str:
        """Return what is done now, for people."""
        return f"firing: {count(self._busy, 'command')} run, {self.counts['done']:,} done"

    def _count(self, event: str) -> None:
        if event not in ("", "signal"):
            self._busy -= 1
            self.counts[event] += 1

    def places(self) -> list[tuple[bytes, Place]]:
        """Return the messages whose commands run, and where."""
        return [(id_, Place("command", "", pid)) for id_, pid in self.commands.running()]

    def kill(self, kill: Kill) -> str:
        """Begin to end the command of a message, with its child processes."""
        self._kills[kill.id] = kill  # before the signal: the command may end at once
        if self.commands.kill(kill.id):
            return ""
        self._kills.pop(kill.id, None)
        return "ended"

    # -- workers -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (message := self._tasks.get()) is not None:
            event = "failed"
            try:
                event = self._handle(message)
            except (Damaged, DiskError) as exc:
                # One foreign file: this message stays claimed, the others continue.
                if exc.is_of_one_file:
                    self._leave(message, exc)
                else:
                    self._errors.append(exc)
            except BaseException as exc:  # the main thread raises it
                self._errors.append(exc)
            finally:
                self._events.put(event)
                self._keeper.wake()

    def _handle(self, message: Message) -> str:
        passed = self._occurrences.passed_over(message)
        if passed is not None:
            self._keeper.settle([passed])
            if RESULT in message.headers:  # the result of a call, which was kept for a time
                return "expired"
            if passed.what == "deferred":
                self._say(f"{name_of(message)} waits: {passed.reason}", warn=True)
                return "waits"
            self._say(f"{name_of(message)} was not run: it is {span(int(late_ms(message) * 1000))} late")
            return "missed"
        if self._keeper.begin(message):
            return "cancelled"
        started_us = self._keeper.now_us()
        try:
            reason, stderr, by_stop = self.commands.run(message, late_ms(message))
        except NotStarted as exc:
            return "aborted" if self.commands.is_aborted else self._put_back(message, exc)
        self._rest_s = self._rest_until = 0.0
        kill = self._kills.pop(message.id, None)
        # What stays claimed fires again at once, and as the same attempt.
        if reason and (self.commands.is_aborted or (by_stop and kill is None and self._is_stopping())):
            return "aborted"
        if reason:
            return self._fail(message, started_us, reason, stderr, kill)
        if self._occurrences.recurs(message):
            self._keeper.settle([self._occurrences.succeeded(message, started_us)])
        else:
            self._keeper.ack(message)
        return "done"

    def _put_back(self, message: Message, exc: NotStarted) -> str:
        """Offer a message again, unchanged: a command that did not begin has not failed."""
        self._kills.pop(message.id, None)
        self._keeper.unbegin(message.id)
        self._keeper.give_back(message)
        self._not_started = str(exc)
        self._rest_s = min(self._rest_s * 2 or _REST_S, _REST_MAX_S)
        self._rest_until = time.monotonic() + self._rest_s
        again = f"again in {span(int(self._rest_s * times.US_PER_S))}"
        self._say(f"the command for {name_of(message)} cannot be started ({exc}); {again}", warn=True)
        return "not started"

    def _is_stopping(self) -> bool:
        """Return whether this process is told to stop: the command may have been told so together with it."""
        end = time.monotonic() + _STOP_S
        while not self._stop.asked and time.monotonic() < end:
            time.sleep(0.01)
        return self._stop.asked

    def _fail(self, message: Message, started_us: int, reason: str, stderr: bytes, kill: Kill | None) -> str:
        if kill is not None:
            reason, kill.worked = Kill.text, True
            if kill.then == "cancel":
                self._keeper.settle([replace(self._occurrences.succeeded(message, started_us), what="killed")])
                self._say(f"{name_of(message)} was killed, and is dropped", warn=True)
                return "killed"
        tries = message.attempt + 1
        retry = retry_of(message, self._retry)
        is_last = message.attempt >= retry.limit or (kill is not None and kill.then == "bury")
        delay_us = None if is_last else retry.delay_us(message.attempt, random.random)
        after = reason if tries == 1 else f"{reason}, after {tries} tries"
        outcome = self._occurrences.failed(
            message, started_us, delay_us=delay_us, reason=after, failed=reason, details=stderr
        )
        moved_to = self._keeper.settle([outcome])[0]
        if moved_to is None:
            return "cancelled"
        if outcome.what == "buried" or delay_us is None:
            self._say(f"{name_of(message)} is a dead letter now, {moved_to}: {after}", warn=True)
            return "buried"
        again = f"again in {span(delay_us)}"
        self._say(f"{name_of(message)} failed: {reason}; try {tries} of {retry.limit + 1}, {again}")
        return "retried"

    def _leave(self, message: Message, exc: FilewheelError) -> None:
        """Leave a message claimed if its outcome could not be written; the next keeper fires it again."""
        self.left.add(message.id)
        if self._unsettled is None:
            self._unsettled = exc
            self._say(f"{name_of(message)} stays claimed, and fires again: {exc}", warn=True)

    def _say(self, text: str, *, warn: bool = False) -> None:
        with self._talk:
            (self._out.warn if warn else self._out.note)(text)


def name_of(message: Message) -> str:
    """Return how a line on stderr names a message: "newsletter (01K...)" for an occurrence, else by its id."""
    return str(message.id) if message.schedule_name is None else f"{message.schedule_name} ({message.id})"


def leave_at_once(code: int) -> None:
    """End this process without waiting for its threads."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
