"""The dispatcher: claims due messages from the keeper, hands their calls to runners, and settles them.

One thread does this (`step`); other threads append to queues. One exception: the thread that ends a call starts the
next one of its lane, so that a limited handler does not wait for a change of threads. At most `in_flight` messages are
claimed: this bounds memory, and the messages that fire again after a crash. Settlements are noted one by one and
written in batches; on a full disk they wait. Plain successes are acknowledged in one call, by their ids.
Invariant: each claimed message is in a lane, held back, with a runner, in a queue here, or settled; it is counted in
`claimed` until its settlement is written, or another keeper fires it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from filewheel.checks import shown
from filewheel.env import Clock
from filewheel.errors import BadArgument, Damaged, DiskError, Fenced, FilewheelError, Locked, WheelFull
from filewheel.format.settings import Sync
from filewheel.journal.settlement import Settlement
from filewheel.keeper import LOOK_S
from filewheel.message import RESULT, SCHEDULE, US_PER_S, Message, MessageId
from filewheel.runs.run import EXPIRED, Kill, Kind, Place, Then, Work
from filewheel.schedules.occurrences import Occurrences, program, waiting
from filewheel.scheduling import settlements
from filewheel.scheduling.backlogs import Backlogs
from filewheel.scheduling.claims import Claims
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import Handler, Handlers
from filewheel.scheduling.lanes import HELD_MAX, Lane, Lanes, bounds_of
from filewheel.scheduling.options import LatenessPolicy
from filewheel.scheduling.outcome import RETURNED, Outcome
from filewheel.scheduling.own_terms import retry_of
from filewheel.scheduling.results import RESULT_BYTES_MAX, with_result
from filewheel.scheduling.runners.loop import time_out
from filewheel.scheduling.runners.runner import Call, Runner

log = logging.getLogger(__name__)
_PLAIN = 'it is a plain message without a topic: cancel it, or give it a handler: @on("*")'

UNKNOWN = ("wait", "bury")
_TICK_S = 0.02
_FULL_RETRY_US = US_PER_S
_NOT_RUN = Work()


Report = Callable[[bytes, Work], None]
"""Takes how the work on a message ran, for the history, before the message is settled."""


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
        self._ended_calls: deque[Call] = deque()
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
        self._puts_sync = puts_sync
        self._report = report
        self._acknowledged: list[Message] = []
        self._settlements: list[tuple[Message, Settlement]] = []
        self._retry_us = 0
        self._left: list[tuple[Message, Settlement]] = []
        self._left_retry_us = 0
        self._left_for: FilewheelError | None = None
        """Why some settlements wait for one bad file; the others are written."""
        self.full: WheelFull | None = None
        """Why some settlements cannot be written now."""
        self.claimed = 0
        """Messages that are claimed and not settled."""
        self.settled = 0
        """Messages that were settled so far."""
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

    # -- from other threads ----------------------------------------------------------------------------------

    def finish(self, call: Call) -> None:
        """Take a call that has ended; thread-safe. It wakes the dispatcher only if that waits for room."""
        lane = self._lanes.ended(call.handler)
        if lane and self._lanes.has_next(lane) and self._is_firing and self._runners[lane.pool.place].starts_anywhere:
            self._go_on(lane)
        self._ended(call, lane)

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

    def _ended(self, call: Call, lane: Lane | None) -> None:
        self._ended_calls.append(call)
        self._back = done = self._back + len(call.messages)
        makes_room = self._more and (done * 4 >= self._limit or done >= self.claimed)
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
            self._ended_calls.append(call)
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
        worked = False
        if fire:
            for message in self._backlogs.take(now_us):  # first, because they are due before the messages claimed now
                worked = True
                self._admit(message, now_us)
            worked = self._claim(now_us, must=claim) or worked
            worked = self._start_waiting(now_us) or worked
            if self._clock.steady_us() - self._checked_us > LOOK_S * US_PER_S:
                # mutant: no-room-unlooked
                self._check_may_fire()  # no room to claim, but calls that wait in the runners must not begin
        worked = self._take_ended() or worked  # also those that were called right here
        self._watch_time(now_us)
        self._telemetry.record()
        return self._write() or worked

    def wait(self, limit_s: float = LOOK_S) -> None:
        """Sleep until there may be work, for at most `limit_s`."""
        now_us = self._keeper.now_us()
        timeout_s = min(limit_s, _TICK_S) if self.claimed else limit_s
        next_us = self.next_us(now_us)
        if next_us is not None:
            timeout_s = min(timeout_s, (next_us - now_us) / US_PER_S)
        if timeout_s > 0 and not self._wants_more(self._limit - self.claimed):
            has_room = not self._more and self.claimed < self._limit
            self._hinted = self._keeper.wait(timeout_s, due=has_room) or self._hinted

    def next_us(self, now_us: int) -> int | None:
        """Return when the first message that waits for a rate may start; None when none waits."""
        times = [self._lanes.next_us(now_us), self._backlogs.next_us()]
        return min((us for us in times if us is not None), default=None)

    # -- claim -------------------------------------------------------------------------------------------------

    def _claim(self, now_us: int, *, must: bool) -> bool:
        """Claim due messages, if there may be any, and route each; return whether any were claimed."""
        steady_us = self._clock.steady_us()
        room = self._limit - self.claimed
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
        count = len(batch)
        self._more = count == room
        self._is_sated = not count
        for name in rooms:
            if (lane := self._lanes.get(name)) is not None:
                lane.has_more = self._keeper.has_passed_over(name)
        self.claimed += count
        for message in batch:
            self._route(message, now_us)
        return count > 0

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
                self._settle(message, settlements.deferred(message, due_us))
        else:
            self._admit(message, now_us, handler)

    def _is_passed_over(self, message: Message, now_us: int, *, is_known: bool) -> bool:
        """Settle a message whose own policy forbids the call; return whether it did.

        Only messages with a handler coalesce.
        """
        headers = message.headers
        if RESULT in headers:
            self._settle(message, settlements.expired(message))
            return True
        if SCHEDULE in headers and (why := self._occurrences.hindrance(message)):
            self._settle(message, waiting(message, now_us, why))
            return True
        policy = LatenessPolicy.of(headers)
        late = policy.too_late(message.due_us, now_us)
        if late is not None:
            self._settle(message, settlements.skipped(message, late, self._next_of(message, now_us, called=False)))
            return True
        if SCHEDULE in headers and self._occurrences.is_missed(message, now_us):
            successor = self._next_of(message, now_us, called=False)
            self._settle(message, settlements.passed_over(message, "missed", successor))
            return True
        if is_known and policy.coalesce is not None and self._backlogs.is_covered(message, policy.coalesce, now_us):
            successor = self._next_of(message, now_us, called=False)
            self._settle(message, settlements.passed_over(message, "coalesced", successor))
            return True
        return False

    def _is_unknown(self, message: Message, now_us: int) -> None:
        why = f"no handler is named {message.topic!r}: {self._handlers.named()}" if message.topic else _PLAIN
        # An occurrence always waits: a burial would end its schedule, or leave a dead letter each time.
        if SCHEDULE in message.headers:
            why = f"the schedule {message.schedule_name!r} waits: {why}; {program()} fires now"
            self._settle(message, waiting(message, now_us, why))
        elif self._unknown == "bury":
            self._settle(message, settlements.buried(message, why))
        else:
            self._settle(message, waiting(message, now_us, why))

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
        started = False
        for lane in self._lanes:
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
                call.outcomes, call.ended_us = call.fail(time_out(call.timeout_s, stack)), steady_us
                self._take(call, now_us)

    def _take_ended(self) -> bool:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        ended = self._ended_calls
        worked = bool(ended or self._stopped)
        self._back = 0
        while self._stopped:
            self._count(self._stopped.popleft())
        if ended:
            now_us = self._keeper.now_us()  # the step may have made the calls itself: a retry counts from their end
            while ended:
                self._take(ended.popleft(), now_us)
        while self._begun:  # before their settlements are reported
            self._telemetry.fired(*self._begun.popleft())
        self._is_sated = self._is_sated and not worked
        return worked

    def _take(self, call: Call, now_us: int) -> None:
        """Note a settlement for each message of a call."""
        self._timed.discard(call)
        if not call.messages:  # all were cancelled before it began
            return
        took_us = max(0, call.ended_us - call.begun_us)
        self._telemetry.ended(call.messages[0].topic, took_us)
        # The wall clock may have stepped since.
        begun_us = now_us - max(0, self._clock.steady_us() - call.begun_us) if call.begun_us else None
        ran = Work(begun_us, took_us, call.handler.terms.where)
        for at, message in enumerate(call.messages):
            if call.outcomes is None and SCHEDULE not in message.headers:
                self._acknowledge(message, ran)
                continue
            outcome = RETURNED if call.outcomes is None else call.outcomes[at]
            # An occurrence that comes due while this one runs is called as well.
            successor = self._next_of(message, call.started_us, called=not outcome.is_too_late)
            if outcome.error is None:
                found = settlements.succeeded(message, outcome.puts, successor)
            else:
                found = self._failed(call, message, outcome, successor, now_us, took_us)
            if (for_us := call.handler.terms.result_for_us) is not None and SCHEDULE not in message.headers:
                found = with_result(
                    found, message, outcome.result, now_us=now_us, for_us=for_us, bytes_max=self._result_bytes_max
                )
            self._settle(message, found, _NOT_RUN if outcome.is_too_late else ran)

    def _failed(
        self, call: Call, message: Message, outcome: Outcome, successor: Message | None, now_us: int, took_us: int
    ) -> Settlement:
        if outcome.is_too_late:
            return settlements.skipped(message, outcome.error or "", successor)
        retry = retry_of(message, call.handler.terms.retry)
        if (then := _then(call, message, outcome)) == "bury":
            outcome = replace(outcome, gives_up=True)
        found = settlements.failed(message, outcome, retry, now_us, random.random, successor, traced=self._tracebacks)
        if then == "cancel":
            found = settlements.killed(message, outcome.error or "", successor)
        self._telemetry.failed(message, outcome, found, took_us, now_us)
        return found

    def _next_of(self, message: Message, now_us: int, *, called: bool) -> Message | None:
        return self._occurrences.next_of(message, now_us, called=called) if SCHEDULE in message.headers else None

    # -- settlements -----------------------------------------------------------------------------------------

    def _acknowledge(self, message: Message, ran: Work) -> None:
        """Note that a message's call returned, without a next occurrence or a transaction."""
        self._acknowledged.append(message)
        if self._report is not None:
            self._report(message.id, ran)

    def _settle(self, message: Message, settlement: Settlement, ran: Work = _NOT_RUN) -> None:
        """Note the settlement of a message, and how its call ran."""
        self._settlements.append((message, settlement))
        if self._report is not None and settlement.what != "deferred":
            self._report(message.id, ran)

    def _count(self, number: int) -> None:
        """Note that this many messages are settled."""
        self.claimed -= number
        self.settled += number

    def _written(
        self, written: Sequence[tuple[Message, Settlement]], moved_to: Sequence[MessageId | None] | None = None
    ) -> None:
        """Count and report settlements that are written; a result that has expired is no work that was done."""
        self._count(len(written))
        self.settled -= sum(settlement.outcome == EXPIRED for _, settlement in written)
        self._telemetry.settled(written, moved_to)

    def _write(self) -> bool:
        """Write the noted settlements; return whether any were. On a full disk, or for a bad file, they wait."""
        if self._left and self._clock.steady_us() >= self._left_retry_us:
            self._settlements, self._left = [*self._left, *self._settlements], []
        acknowledged = self._acknowledged
        if not (acknowledged or self._settlements) or (self._retry_us and self._clock.steady_us() < self._retry_us):
            return False
        try:
            if acknowledged:
                self._keeper.ack([m.id for m in acknowledged])
                self._acknowledged = []
                self._count(len(acknowledged))
                self._telemetry.acknowledged(acknowledged)
            if self._settlements:
                self._write_settlements(self._settlements)
        except WheelFull as exc:
            self.full = exc
            self._retry_us = self._clock.steady_us() + _FULL_RETRY_US
            count = len(self._acknowledged) + len(self._keep_unwritten())
            log.critical("the outcomes of %d messages cannot be written yet: %s", count, exc)
            return False
        except (Fenced, Locked):
            log.warning("%d messages were not put back: another keeper fires them now", len(self._keep_unwritten()))
            self._settlements = []
        self._retry_us, self.full = 0, None
        return True

    def _write_settlements(self, some: list[tuple[Message, Settlement]]) -> None:
        """Write settlements; those that need one bad file are left for later, so that all others go on."""
        # A message that a job enqueued must be durable before it is called: after a power cut the job would enqueue it
        # again, under another id.
        # A result needs no flush: without it its call has not ended either.
        puts = any(RESULT not in put.headers for _, s in some for put in s.puts)
        try:
            moved_to = self._keeper.settle([s for _, s in some], sync=self._puts_sync if puts else "never")
        except (Damaged, DiskError) as exc:
            if not exc.is_of_one_file:
                raise
            left = self._keep_unwritten()
            self._left += left
            self._left_retry_us = self._clock.steady_us() + _FULL_RETRY_US
            if self._left_for is None:
                log.error("the outcomes of %d messages wait: %s", len(left), exc)
            self._left_for = exc
        else:
            self._left_for = self._left_for if self._left else None
            self._written(some, moved_to)
        self._settlements = []

    def _keep_unwritten(self) -> Sequence[tuple[Message, Settlement]]:
        """Report the written settlements; keep and return the others."""
        written = [(m, s) for m, s in self._settlements if not self._keeper.holds(m.id)]
        self._settlements = [(m, s) for m, s in self._settlements if self._keeper.holds(m.id)]
        self._written(written)
        return self._settlements

    # -- the end -----------------------------------------------------------------------------------------------

    def settle_all(self) -> FilewheelError | None:
        """Settle ended calls, after the runners were stopped; return the error that left some unwritten."""
        self._retry_us = self._left_retry_us = 0  # also what was tried a moment ago
        try:
            self.step(fire=False)
        except FilewheelError as exc:
            return exc
        return self.full or self._left_for


def _then(call: Call, message: Message, outcome: Outcome) -> Then:
    """Return what becomes of a message whose call failed: "retry", unless that was killed for another outcome."""
    if call.kill is None or not outcome.is_killed:
        return "retry"
    call.kill.worked = True
    return call.kill.then if call.kill.id == message.id else "retry"
