"""The reports of the scheduler: events for subscribers, counters, histograms and log lines.

A subscriber is a function that is called in the thread where the event happens, so it must be quick. Its first failure
is logged. No event is built without a subscriber.
Invariant: reports and subscribers do not affect messages, unless a subscriber blocks.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from filewheel.checks import check_done, check_function, shown
from filewheel.disk.begun import Cancelled
from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument
from filewheel.journal.settlement import GONE, Settlement
from filewheel.message import RESULT, US_PER_S, Message, MessageId, due_of
from filewheel.metrics.metrics import EVENTS, Metrics
from filewheel.runs.run import EXPIRED
from filewheel.scheduling.outcome import Outcome
from filewheel.scheduling.settlements import event_of

log = logging.getLogger(__name__)
call_log = logging.getLogger("filewheel.scheduling")

KINDS = tuple(EVENTS)
"""The kinds of event: the same names as the counters have (metrics.py)."""

_NO_FAILURE: tuple[None, None, float] = (None, None, 0.0)
Callback = Callable[["Event"], object]


@dataclass(frozen=True, slots=True)
class Event:
    """A change of a message."""

    kind: str
    at_us: int
    """The time, by the wall clock."""
    handler: str = ""
    id: MessageId | None = None
    attempt: int = 0
    due_us: int = 0
    seconds: float | None = None
    """How long the handler ran, if it did."""
    error: str = ""
    """The reason of a failure."""
    headers: Mapping[str, str] = field(default_factory=dict)
    outcome: str = ""
    """The result of a cancel: "stopped", "begun" or "maybe begun"."""

    def extra(self) -> dict[str, Any]:
        """Return the fields of a log record about this event: `logger.info(..., extra=event.extra())`."""
        return {
            "event": self.kind,
            "handler": self.handler,
            "message_id": None if self.id is None else str(self.id),
            "attempt": self.attempt,
            "due_us": self.due_us,
            "seconds": self.seconds,
            "error": self.error,
            "outcome": self.outcome,
        }


class _Subscription:
    __slots__ = ("callback", "failed")

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.failed = False


class Events:
    """The subscribers of events. Thread-safe."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        """Create it without subscribers."""
        self._clock = clock
        self._lock = threading.Lock()
        self._subscriptions: dict[str, tuple[_Subscription, ...]] = dict.fromkeys(KINDS, ())
        """kind → subscriptions, in order; each tuple is replaced as a whole, so that it is read without the lock"""

    def subscribe(self, callback: Callback, kinds: Iterable[str] | None = None) -> Callable[[], None]:
        """Call `callback(event)` for events of these kinds (all, by default); return the function that unsubscribes.

        That function may be called twice. An event that another thread is emitting may still arrive.

        Raises BadArgument when there is no such kind.
        """
        if isinstance(kinds, str):
            raise BadArgument("kinds is a list of kinds, not one str", hint=f"kinds=[{kinds!r}]")
        check_function("a subscriber", callback)
        if kinds is not None and not isinstance(kinds, Iterable):
            raise BadArgument(f"kinds is a list of kinds, not {shown(kinds)}")
        chosen = frozenset(KINDS if kinds is None else kinds)
        if not chosen <= set(KINDS):
            raise BadArgument(
                f"no event is of the kind {min(chosen - set(KINDS), key=str)!r}", hint=f"kinds are {', '.join(KINDS)}"
            )
        subscription = _Subscription(callback)
        with self._lock:
            for kind in chosen:
                self._subscriptions[kind] = (*self._subscriptions[kind], subscription)

        def unsubscribe() -> None:
            with self._lock:
                for kind in chosen:
                    self._subscriptions[kind] = tuple(s for s in self._subscriptions[kind] if s is not subscription)

        return unsubscribe

    def wants(self, kind: str) -> bool:
        """Return whether this kind has subscribers, for a caller whose fields are costly to compute."""
        return bool(self._of(kind))

    def emit(
        self,
        kind: str,
        handler: str = "",
        id: MessageId | None = None,
        *,
        attempt: int = 0,
        due_us: int = 0,
        seconds: float | None = None,
        error: str = "",
        headers: Mapping[str, str] | None = None,
        outcome: str = "",
    ) -> None:
        """Call the subscribers of this kind, one after another. Cost without any: about 0.1 µs.

        Raises BadArgument when there is no such kind. A subscriber's exceptions are not raised, except Ctrl-C.
        """
        subscriptions = self._of(kind)
        if not subscriptions:
            return
        now_us = self._clock.now_us()
        event = Event(kind, now_us, handler, id, attempt, due_us, seconds, error, headers or {}, outcome)
        for subscription in subscriptions:
            try:
                check_done("it", subscription.callback(event))
            except (Exception, SystemExit):
                if not subscription.failed:
                    log.exception("a subscriber of %s failed: %r; logged once", kind, subscription.callback)
                subscription.failed = True

    def _of(self, kind: str) -> tuple[_Subscription, ...]:
        try:
            return self._subscriptions[kind]
        except KeyError:
            raise BadArgument(f"no event is of the kind {kind!r}", hint=f"kinds are {', '.join(KINDS)}") from None


class Telemetry:
    """Counts, times, logs and emits the changes of messages.

    All methods but `enqueued`, `enqueued_all`, `cancelled`, `flushed` and `dead_dropped` are called in the dispatcher's
    thread. Lateness and run times are collected until `record` counts them at once.
    """

    def __init__(self, metrics: Metrics, events: Events) -> None:
        self.metrics = metrics
        self.events = events
        self._failures: dict[bytes, tuple[Outcome, float, float]] = {}
        """Why calls failed, how long they took, and after how long they are called again, until `settled`."""
        self._late_us: defaultdict[str, list[int]] = defaultdict(list)
        self._took_us: defaultdict[str, list[int]] = defaultdict(list)

    def flushed(self, us: int) -> None:
        """Time a flush to the disk."""
        self.metrics.observe("sync", "", us / US_PER_S)

    def enqueued(self, handler: str, message_id: bytes) -> None:
        """Report a call that was enqueued."""
        self.metrics.count("enqueued", handler)
        if self.events.wants("enqueued"):
            self.events.emit("enqueued", handler, MessageId(message_id), due_us=due_of(message_id))

    def enqueued_all(self, handler: str, ids: Sequence[MessageId]) -> None:
        """Report calls that were enqueued together, but for those that were there already."""
        new = [id_ for id_ in ids if not id_.kept]
        self.metrics.count("enqueued", handler, len(new))
        if self.events.wants("enqueued"):
            for id_ in new:
                self.events.emit("enqueued", handler, id_, due_us=due_of(id_))

    def cancelled(self, message_id: MessageId | None, outcome: Cancelled) -> None:
        """Report a message that was cancelled."""
        self.metrics.count("cancelled")
        self.events.emit("cancelled", id=message_id, outcome=outcome.value)

    def fired(self, handler: str, messages: Sequence[Message], now_us: int) -> None:
        """Report a call that starts."""
        late_us = self._late_us[handler]
        for message in messages:
            late_us.append(now_us - message.due_us)
        if self.events.wants("fired"):
            for message in messages:
                self._emit("fired", message)

    def ended(self, handler: str, took_us: int) -> None:
        """Report a call that ended."""
        self._took_us[handler].append(took_us)

    def record(self) -> None:
        """Count and time the calls that started or ended since the last time."""
        late, self._late_us = self._late_us, defaultdict(list)
        for handler, times_us in late.items():
            self.metrics.count("fired", handler, len(times_us))
            self.metrics.observe_all("lateness", handler, [us / US_PER_S for us in times_us])
        took, self._took_us = self._took_us, defaultdict(list)
        for handler, times_us in took.items():
            self.metrics.observe_all("handler", handler, [us / US_PER_S for us in times_us])

    def failed(self, message: Message, outcome: Outcome, settlement: Settlement, took_us: int, now_us: int) -> None:
        """Report a call that failed. `settled` logs it once its settlement is written."""
        self._failures[message.id] = outcome, took_us / US_PER_S, (settlement.due_us - now_us) / US_PER_S
        if outcome.is_killed and settlement.what != "killed":  # `settled` counts those
            self.metrics.count("killed", message.topic)
            if self.events.wants("killed"):
                self._emit("killed", message, error=outcome.error or "", seconds=took_us / US_PER_S)
        if outcome.is_time_out:
            self.metrics.count("timed_out", message.topic)
            if self.events.wants("timed_out"):
                self._emit("timed_out", message, error=outcome.error or "", seconds=took_us / US_PER_S)

    def acknowledged(self, messages: Sequence[Message]) -> None:
        """Report messages that were acknowledged."""
        for handler, n in Counter([m.topic for m in messages]).items():
            self.metrics.count("acknowledged", handler, n)
        if self.events.wants("acknowledged"):
            for message in messages:
                self._emit("acknowledged", message)

    def settled(
        self, settlements: Sequence[tuple[Message, Settlement]], moved_to: Sequence[MessageId | None] | None = None
    ) -> None:
        """Report settlements that were written. A message that moved to no id was cancelled while it ran."""
        counts: Counter[tuple[str, str]] = Counter()
        for at, (message, settlement) in enumerate(settlements):
            kind = event_of(settlement)
            if moved_to is not None and moved_to[at] is None and settlement.what not in GONE:
                self._failures.pop(message.id, None)
                log.debug("%s %s was cancelled while it ran", message.topic, message.root or message.id)
                continue
            if kind == EXPIRED:
                continue
            for put in settlement.puts:
                if RESULT not in put.headers:
                    self.enqueued(put.topic, put.id)
            counts[kind, message.topic] += 1
            outcome, seconds, again_s = self._failures.pop(message.id, _NO_FAILURE) if self._failures else _NO_FAILURE
            error = settlement.reason if outcome is None else outcome.error or ""
            if kind != "acknowledged":
                _log(message, kind, outcome, seconds, error, again_s)
            if self.events.wants(kind):
                self._emit(kind, message, error=error, seconds=seconds)
        for (kind, handler), n in counts.items():
            self.metrics.count(kind, handler, n)

    def dead_dropped(self, topics: Mapping[MessageId, str]) -> None:
        """Report dead letters that were dropped for their age. Called in the keeper's own thread."""
        for handler, n in Counter(topics.values()).items():
            self.metrics.count("dead_dropped", handler, n)
        if self.events.wants("dead_dropped"):
            for id_, handler in topics.items():
                self.events.emit("dead_dropped", handler, id_)

    def took_over(self) -> None:
        """Report that this process is the keeper now."""
        self.metrics.count("took_over")
        self.events.emit("took_over")

    def _emit(self, kind: str, message: Message, *, error: str = "", seconds: float | None = None) -> None:
        self.events.emit(
            kind,
            message.topic,
            message.id,
            attempt=message.attempt,
            due_us=message.due_us,
            seconds=seconds,
            error=error,
            headers=message.headers,
        )


def _log(
    message: Message, kind: str, outcome: Outcome | None, took_s: float | None, error: str, again_s: float
) -> None:
    event = Event(kind, 0, message.topic, message.id, message.attempt, message.due_us, took_s, error)
    extra = event.extra()
    name = f"{message.topic} {message.root or message.id}"
    if kind == "retried":
        call_log.warning("%s failed, again in %.3g s: %s", name, again_s, error, extra=extra)
        call_log.debug("%s", outcome.trace if outcome else "", extra=extra)
    elif kind == "dead":
        call_log.error(
            "a call of %s became a dead letter: %s\n%s", name, error, outcome.trace if outcome else "", extra=extra
        )
    elif kind == "killed":
        call_log.warning("%s was killed after %.3g s, and is dropped", name, took_s or 0, extra=extra)
    elif kind in ("skipped", "missed"):
        call_log.warning("%s was not called: %s", name, error or kind, extra=extra)
    elif kind == "unknown":
        call_log.warning("%s: %s", name, error, extra=extra)
    else:
        call_log.debug("%s: %s", name, kind, extra=extra)
