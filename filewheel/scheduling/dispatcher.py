"""The dispatcher: claims due messages from the keeper, hands their calls to runners, and settles them.

One thread does this (`step`); other threads append to queues. One exception: the thread that ends a call starts the
next one of its lane, so that a limited handler does not wait for a change of threads. At most `in_flight` messages are
claimed: this bounds memory, and the messages that fire again after a crash.
Invariant: each claimed message is in a lane, held back, with a runner, in `_outcomes` or `_settlements`, or settled.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from filewheel.checks import shown
from filewheel.env import Clock
from filewheel.errors import BadArgument, FilewheelError, WheelFull
from filewheel.format.settings import Sync
from filewheel.keeper import LOOK_S
from filewheel.message import RESULT, SCHEDULE, US_PER_S, Message
from filewheel.runs.run import Detail, Kill, Kind, Place, Then
from filewheel.schedules.occurrences import Occurrences
from filewheel.scheduling import verdict
from filewheel.scheduling.backlogs import Backlogs
from filewheel.scheduling.claims import Claims
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.failure import Failure
from filewheel.scheduling.handler import Handler, Handlers
from filewheel.scheduling.job import EMPTY_OUTBOX
from filewheel.scheduling.lanes import HELD_MAX, Lane, Lanes, bounds_of
from filewheel.scheduling.options import Policy
from filewheel.scheduling.own_terms import retry_of
from filewheel.scheduling.results import RESULT_BYTES_MAX, with_result
from filewheel.scheduling.runners.loop import time_out
from filewheel.scheduling.runners.runner import Call, Outcome, Runner
from filewheel.scheduling.settlements import NOT_RUN, Report, Settlements
from filewheel.scheduling.verdict import Verdict

log = logging.getLogger(__name__)
_PLAIN = 'it is a plain message without a topic: cancel it, or give it a handler: @on("*")'

UNKNOWN = ("wait", "bury")
_TICK_S = 0.02


class Dispatcher:
    """Fires one keeper's messages. `finish`, `begin`, `places` and `kill` are thread-safe; all else is one thread's."""

    kind: Kind = "program"  # each call reports its own

    def __init__(
        self,
        keeper: Claims,
        handlers: Handlers,
        runners: dict[str, Runner],
        *,
        slots: dict[str, int | None],
        pools: dict[str, int] | None = None,
        in_flight: int,
        catch_up_per_s: float | None,
        unknown: str,
        clock: Clock,
        telemetry: Telemetry,
        occurrences: Occurrences,
        puts_sync: Sync = "always",
        tracebacks: bool = False,
        report: Report | None = None,
        result_bytes_max: int = RESULT_BYTES_MAX,
    ) -> None:
        """`slots` and `pools` are those of Lanes, `puts_sync` is for outcomes with messages that a job enqueued.

        `tracebacks` stores those of failed calls. `report` takes what the history of runs shows.
        """
        if unknown not in UNKNOWN:
            raise BadArgument(f'unknown is "wait" or "bury", not {shown(unknown)}')
        self._keeper = keeper
        self._handlers = handlers
        self._runners = runners
        self._limit = in_flight
        self._unknown = unknown
        self._clock = clock
        self._telemetry = telemetry
        self._occurrences = occurrences
        self._tracebacks = tracebacks
        self._result_bytes_max = result_bytes_max
        self._backlogs = Backlogs(catch_up_per_s, clock.now_us(), min(HELD_MAX, in_flight // 4), handlers)
        self._lanes = Lanes(handlers, slots, in_flight, pools, self._backlogs.held_max)
        self._outcomes: deque[Outcome] = deque()
        self._begun: deque[tuple[str, list[Message], int]] = deque()
        """Calls that other threads have started and that are not reported yet."""
        self._is_firing = False
        self._is_woken = False
        """A thread has ended the sleep since the last step started; no other thread needs to."""
        self._back = 0
        """Approximate count of messages whose calls ended since the last step; threads may miscount it."""
        self._stopped: deque[int] = deque()
        """Counts of messages that did not begin, because they were cancelled. Threads append to it."""
        self._trouble: Exception | None = None
        """The error that prevented another thread from beginning or starting a call."""
        self._settlements = Settlements(keeper, clock, telemetry, puts_sync, report)
        self._timed: set[Call] = set()
        self._is_sated = False
        """The last claim was empty, and no call has ended since."""
        self._more = True
        """The last claim was cut short by its limit."""
        self._hinted, self._looked_us = True, 0
        self.no_room: WheelFull | None = None
        """Why the last claim was refused: what it hands out could not be acknowledged."""
        self._checked_us = 0
        """When the roster last allowed this wheel to fire."""
        self._is_checked = False  # whether it was in this step

    @property
    def claimed(self) -> int:
        """Messages that are claimed and not settled."""
        return self._settlements.claimed

    @property
    def settled(self) -> int:
        """Messages that were settled so far."""
        return self._settlements.settled

    @property
    def full(self) -> WheelFull | None:
        """Why some settlements cannot be written now."""
        return self._settlements.full

    # -- from other threads ----------------------------------------------------------------------------------

    def finish(self, outcome: Outcome) -> None:
        """Take the outcome of a call; thread-safe. It wakes the dispatcher only if that waits for room."""
        lane = self._lanes.ended(outcome.call.handler)
        if lane and self._lanes.has_next(lane) and self._is_firing and self._runners[lane.pool.place].starts_anywhere:
            self._go_on(lane)
        self._ended(outcome, lane)

    def _go_on(self, lane: Lane) -> None:
        """Start the next calls of a lane, or of its pool, in the thread that ended one."""
        try:
            now_us = self._keeper.now_us()
            while found := self._lanes.next(lane, now_us):
                lane, messages = found
                self._keeper.check_may_fire()  # mutant: go-on-unlooked
                self._begun.append((messages[0].topic, messages, now_us))
                self._hand_over(lane, messages, now_us)
        except Exception as exc:  # raised in the next step, because the ended call did not fail
            self._trouble = exc

    def _ended(self, outcome: Outcome, lane: Lane | None) -> None:
        self._outcomes.append(outcome)
        self._back = done = self._back + len(outcome.call.messages)
        makes_room = self._more and (done * 4 >= self._limit or done >= self._settlements.claimed)
        if makes_room or self._trouble or (lane is not None and self._lanes.lacks(lane)):
            self._wake()

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._keeper.wake()

    def begin(self, call: Call) -> bool:
        """Begin a call, without the messages that were cancelled; return whether any is left. Thread-safe.

        A runner calls it immediately before the function.
        """
        try:
            stopped = self._keeper.begin([m.id for m in call.messages])
        except FilewheelError as exc:
            self._trouble = exc
            self._keeper.wake()
            return False
        if not stopped:
            return True
        call.messages = [m for m in call.messages if m.id not in stopped]
        self._stopped.append(len(stopped))
        if not call.messages:  # the lane's next call is not started here, because a runner may hold its lock
            self._lanes.ended(call.handler)
            self._outcomes.append(Outcome(call))
        self._keeper.wake()
        return bool(call.messages)

    # -- one step ----------------------------------------------------------------------------------------------

    def step(self, *, fire: bool = True, claim: bool = False) -> bool:
        """Settle ended calls, and start due calls; return whether it did any work.

        With `claim` it claims even without a hint that something is due.
        """
        now_us = self._keeper.now_us()  # the same clock as for the due times
        self._is_firing = fire
        self._is_woken = False  # first: a later outcome wakes, an earlier one is taken below
        self._hinted = self._hinted or claim
        self._is_checked = False
        worked = self._take_outcomes(now_us)
        self._watch_time(now_us)
        if fire:
            for message in self._backlogs.take(now_us):  # first, because they are due before the messages claimed now
                worked = True
                self._admit(message, now_us)
            worked = self._claim(now_us, must=claim) or worked
            worked = self._start_waiting(now_us) or worked
            if self._clock.steady_us() - self._checked_us > LOOK_S * US_PER_S:
                # mutant: no-room-unlooked
                self._check_may_fire()  # no room to claim, but calls that wait in the runners must not begin
        self._telemetry.record()
        return self._settlements.write() or worked

    def wait(self, limit_s: float = LOOK_S) -> None:
        """Sleep until there may be work, for at most `limit_s`."""
        now_us = self._keeper.now_us()
        timeout_s = min(limit_s, _TICK_S) if self._settlements.claimed else limit_s
        next_us = self.next_us(now_us)
        if next_us is not None:
            timeout_s = min(timeout_s, (next_us - now_us) / US_PER_S)
        if timeout_s > 0 and not self._wants_more(self._limit - self._settlements.claimed):
            has_room = not self._more and self._settlements.claimed < self._limit
            self._hinted = self._keeper.wait(timeout_s, due=has_room) or self._hinted

    def next_us(self, now_us: int) -> int | None:
        """Return when the first message that waits for a rate may start; None when none waits."""
        times = [self._lanes.next_us(now_us), self._backlogs.next_us()]
        return min((us for us in times if us is not None), default=None)

    # -- claim -------------------------------------------------------------------------------------------------

    def _claim(self, now_us: int, *, must: bool) -> bool:
        """Claim due messages, if there may be any, and route each; return whether any were claimed."""
        steady_us = self._clock.steady_us()
        room = self._limit - self._settlements.claimed
        waited_us = steady_us - self._looked_us
        # After a while it claims for little room too, and in case a hint was lost.
        wanted = must or waited_us > (_TICK_S if self._more else LOOK_S) * US_PER_S
        wanted = wanted or (self._hinted and not self._more)
        if room <= 0 or not (wanted or self._wants_more(room)):
            return False
        self._hinted = False
        self._looked_us = steady_us
        rooms = self._lanes.rooms(now_us)
        try:
            batch = self._keeper.claim(room, at_most=bounds_of(rooms), begun=False)
        except WheelFull as exc:  # calls that run go on
            if self.no_room is None:
                log.critical("nothing is called until there is room: %s", exc)
            self.no_room = exc
            return False
        self.no_room = None
        self._is_checked, self._checked_us = True, steady_us
        self._more = len(batch) == room
        self._is_sated = not batch
        for name in rooms:
            if (lane := self._lanes.get(name)) is not None:
                lane.has_more = self._keeper.has_passed_over(name)
        self._settlements.claimed += len(batch)
        for message in batch:
            self._route(message, now_us)
        return bool(batch)

    def _wants_more(self, room: int) -> bool:
        """Return whether there is enough room to be worth a claim, which checks every journal."""
        if self._more and room * 4 >= self._limit:
            return True
        return room > 0 and not self._is_sated and any(lane.is_hungry for lane in self._lanes)

    def _route(self, message: Message, now_us: int) -> None:
        """Settle a message that must not be called, hold it back for the catch-up rate, or admit it."""
        handler = self._handlers.find(message.topic)
        if len(message.headers) > 1 and self._is_passed_over(message, now_us, is_known=handler is not None):
            return
        if handler is None:
            self._is_unknown(message, now_us)
        elif (backlog := self._backlogs.of(handler, now_us)).holds_back(message, now_us):
            due_us = backlog.keep(message, now_us)
            if due_us is not None:
                self._settlements.add(message, verdict.deferred(message, due_us))
        else:
            self._admit(message, now_us, handler)

    def _is_passed_over(self, message: Message, now_us: int, *, is_known: bool) -> bool:
        """Settle a message whose own policy forbids the call; return whether it did.

        Only messages with a handler coalesce.
        """
        headers = message.headers
        if RESULT in headers:
            self._settlements.add(message, verdict.expired(message))
            return True
        if SCHEDULE in headers and (why := self._occurrences.hindrance(message)):
            self._settlements.add(message, verdict.waits(message, now_us, why))
            return True
        policy = Policy.of(headers)
        late = policy.too_late(message.due_us, now_us)
        if late is not None:
            self._settlements.add(message, verdict.skipped(message, late, self._next_of(message, now_us, called=False)))
            return True
        if SCHEDULE in headers and self._occurrences.is_missed(message, now_us):
            successor = self._next_of(message, now_us, called=False)
            self._settlements.add(message, verdict.passed_over(message, "missed", successor))
            return True
        if is_known and policy.coalesce is not None and self._backlogs.is_covered(message, policy.coalesce, now_us):
            successor = self._next_of(message, now_us, called=False)
            self._settlements.add(message, verdict.passed_over(message, "coalesced", successor))
            return True
        return False

    def _is_unknown(self, message: Message, now_us: int) -> None:
        why = f"no handler is named {message.topic!r}: {self._handlers.named()}" if message.topic else _PLAIN
        # An occurrence always waits: a burial would end its schedule, or leave a dead letter each time.
        if self._unknown == "bury" and SCHEDULE not in message.headers:
            self._settlements.add(message, verdict.buried(message, why, "unknown"))
        else:
            self._settlements.add(message, verdict.waits(message, now_us, why))

    def _admit(self, message: Message, now_us: int, handler: Handler[..., object] | None = None) -> None:
        """Start the call of a message, or add the message to its lane."""
        handler = handler or self._handlers.find(message.topic)
        if handler is None:  # unregistered since
            self._is_unknown(message, now_us)
            return
        lane = self._lanes.of(handler, now_us)
        if not (lane.is_limited or self._handlers.has_pools) and handler.terms.batch is None:
            lane.began()
            self._start(lane, [message], now_us)
            return
        lane.add(message, now_us)

    def _start_waiting(self, now_us: int) -> bool:
        """Start the waiting calls that may start; return whether any did: this may make room in their lanes."""
        started = [self._start_from(lane, now_us) for lane in self._lanes]
        return any(started)

    def _start_from(self, lane: Lane, now_us: int) -> bool:
        started = False
        while (found := self._lanes.next(lane, now_us)) is not None:
            self._start(*found, now_us)
            started = True
        return started

    def _check_may_fire(self) -> None:
        """Raise Fenced when another wheel of the set was promoted."""
        self._keeper.check_may_fire()
        self._is_checked, self._checked_us = True, self._clock.steady_us()

    def _start(self, lane: Lane, messages: list[Message], now_us: int) -> None:
        if not self._is_checked:  # it was claimed a while ago  # mutant: lane-unlooked
            self._check_may_fire()
        self._telemetry.fired(messages[0].topic, messages, now_us)
        self._hand_over(lane, messages, now_us)

    def _hand_over(self, lane: Lane, messages: list[Message], now_us: int) -> None:
        """Give a call to its runner; thread-safe if the runner `starts_anywhere`."""
        terms, hooks = lane.handler.terms, self._handlers.hooks
        around = hooks.of_coroutines if terms.where == "loop" else hooks.plain
        call = Call(lane.handler, messages, now_us, around)
        if call.timeout_s is not None and terms.where == "thread":
            self._timed.add(call)
        self._runners[lane.pool.place].start(call)

    def places(self) -> Iterator[tuple[bytes, Place]]:
        """Return where each begun message is worked on. Thread-safe."""
        for runner in self._runners.values():
            for call, place in runner.running():
                yield from ((message.id, place) for message in call.messages)

    def kill(self, kill: Kill) -> str:
        """Begin to end the call of a message; return why not, if so. Thread-safe."""
        for runner in self._runners.values():
            for call, place in runner.running():
                if any(message.id == kill.id for message in call.messages):
                    if place.kind == "thread":
                        return "thread"
                    call.kill = kill
                    runner.kill(call)
                    return ""
        return "ended"

    # -- outcomes ----------------------------------------------------------------------------------------------

    def _watch_time(self, now_us: int) -> None:
        """Give up calls in threads whose time-out has passed."""
        if not self._timed:
            return
        steady_us = self._clock.steady_us()
        for call in list(self._timed):
            assert call.timeout_s is not None
            if call.begun_us and steady_us - call.begun_us > call.timeout_s * US_PER_S and call.end():
                stack = self._runners[call.handler.terms.place].give_up(call)
                self._lanes.ended(call.handler)
                self._take(Outcome.failed(call, time_out(call.timeout_s, stack), steady_us), now_us)

    def _take_outcomes(self, now_us: int) -> bool:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        outcomes = self._outcomes
        worked = bool(outcomes or self._stopped)
        self._back = 0
        while self._stopped:
            self._settlements.count(self._stopped.popleft())
        while outcomes:
            self._take(outcomes.popleft(), now_us)
        while self._begun:  # before their settlements are reported
            self._telemetry.fired(*self._begun.popleft())
        self._is_sated = self._is_sated and not worked
        return worked

    def _take(self, outcome: Outcome, now_us: int) -> None:
        """Note a settlement for each message of a call."""
        call = outcome.call
        self._timed.discard(call)
        if not call.messages:  # all were cancelled before it began
            return
        took_us = max(0, outcome.ended_us - call.begun_us)
        self._telemetry.ended(call.messages[0].topic, took_us)
        # The wall clock may have stepped since.
        begun_us = now_us - max(0, self._clock.steady_us() - call.begun_us) if call.begun_us else None
        ran = Detail("", "", begun_us, took_us, call.handler.terms.where)
        for at, message in enumerate(call.messages):
            if outcome.failures is None and SCHEDULE not in message.headers:
                self._settlements.acknowledge(message, ran)
                continue
            failure = outcome.failures[at] if outcome.failures else None
            puts = outcome.puts[at] if outcome.puts else EMPTY_OUTBOX
            # An occurrence that comes due while this one runs is called as well.
            successor = self._next_of(message, call.started_us, called=failure is None or not failure.is_too_late)
            if failure is None:
                found, detail = verdict.succeeded(message, puts, successor), ran
            else:
                found = self._failed(call, message, failure, successor, now_us, ran.took_us or 0)
                detail = NOT_RUN if failure.is_too_late else ran._replace(error=failure.text)
            if (for_us := call.handler.terms.result_for_us) is not None and SCHEDULE not in message.headers:
                found = with_result(
                    found, message, outcome.result, now_us=now_us, for_us=for_us, bytes_max=self._result_bytes_max
                )
            self._settlements.add(message, found, detail)

    def _failed(
        self, call: Call, message: Message, failure: Failure, successor: Message | None, now_us: int, took_us: int
    ) -> Verdict:
        if failure.is_too_late:
            return verdict.skipped(message, failure.text, successor)
        retry = retry_of(message, call.handler.terms.retry)
        if (then := _then(call, message, failure)) == "bury":
            failure = replace(failure, gives_up=True)
        found = verdict.failed(message, failure, retry, now_us, random.random, successor, traced=self._tracebacks)
        if then == "cancel":
            found = verdict.killed(message, successor)
        self._telemetry.failed(message, failure, found, took_us)
        return found

    def _next_of(self, message: Message, now_us: int, *, called: bool) -> Message | None:
        return self._occurrences.next_of(message, now_us, called=called) if SCHEDULE in message.headers else None

    # -- the end -----------------------------------------------------------------------------------------------

    def settle_all(self) -> FilewheelError | None:
        """Settle ended calls, after the runners were stopped; return the error that left some unwritten."""
        self._settlements.retry_now()
        try:
            self.step(fire=False)
        except FilewheelError as exc:
            return exc
        return self.full or self._settlements.left


def _then(call: Call, message: Message, failure: Failure) -> Then:
    """Return what becomes of a message whose call failed: "retry", unless that was killed for another outcome."""
    if call.kill is None or not failure.is_killed:
        return "retry"
    call.kill.worked = True
    return call.kill.then if call.kill.id == message.id else "retry"
