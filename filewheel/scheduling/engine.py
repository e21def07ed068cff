"""The engine: becomes the keeper of a wheel, fires until it is stopped, and takes over again after an error.

It has one thread. While another process is the keeper it stands by: it sleeps until that process ends, which frees the
lock. When another wheel of the set is promoted it ends, as keeper or as standby. When the wheel is drained it finishes
what runs, frees the lock, and ends or waits for the resume. Each term as the keeper has its own
runners and dispatcher, so a failed term passes no state to the next.
Invariant: only the holder of the lock fires, and when the thread ends the lock is free.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from filewheel.disk.directory import opened
from filewheel.disk.hint import UNHEARD_S, StandbySleep
from filewheel.disk.paused import read_pauses
from filewheel.env import Clock, Env, Event
from filewheel.errors import Fenced, FilewheelError, Locked, anew, disk_errors
from filewheel.firing.reserve import fires_again
from filewheel.format.pauses import Pauses
from filewheel.keeper import Keeper
from filewheel.message import US_PER_S
from filewheel.metrics.published import Publisher
from filewheel.schedules.definition import ASTRAY_US
from filewheel.schedules.occurrences import Occurrences
from filewheel.scheduling.dispatcher import Dispatcher
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import Handlers
from filewheel.scheduling.life import FiringThread
from filewheel.scheduling.options import OnConflict
from filewheel.scheduling.results import RESULT_BYTES_MAX
from filewheel.scheduling.runners.inline import Inline
from filewheel.scheduling.runners.loop import Loop
from filewheel.scheduling.runners.pool import Recycle
from filewheel.scheduling.runners.processes import Processes
from filewheel.scheduling.runners.runner import Runner
from filewheel.scheduling.runners.threads import Threads

log = logging.getLogger("filewheel.scheduling")

State = Literal["stopped", "starting", "firing", "standby", "failing", "fenced"]
STANDBY_S = 0.1
"""How often `wait_until_keeper` checks for a promotion."""
_PAUSE_S = 1.0
_END_LOOK_S = 0.01
_RESUME_LOOK_S = 0.5
_PAUSE_MAX_S = 60.0
_FENCED_S = 5.0
"""The time that running calls have to end when another wheel was promoted."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits and policies of a scheduler."""

    threads: int
    processes: int
    in_flight: int
    catch_up_per_s: float | None
    unknown: str
    on_jump: str
    tracebacks: bool = True
    """Store the end of the traceback with each failed attempt."""
    keep_dead_s: float | None = None
    history: int = 0
    """How many ends of calls are kept."""
    pools: Mapping[str, int] = field(default_factory=dict)
    """The size of each named pool, by its place (pools.py)."""
    recycle: Recycle | None = None
    """When a process of a pool ends."""

    @property
    def places(self) -> dict[str, int]:
        """How many calls each runner runs at once; the event loop has no such limit."""
        return {"thread": self.threads, "process": self.processes, **self.pools}

    @property
    def at_runner(self) -> dict[str, int]:
        """How many calls are with each runner at once: a process has its next call while it works."""
        return {place: size * 2 if place.startswith("process") else size for place, size in self.places.items()}


class Engine(FiringThread):
    """Fires one wheel from a thread of its own."""

    def __init__(
        self,
        path: str,
        handlers: Handlers,
        occurrences: Occurrences,
        limits: Limits,
        telemetry: Telemetry,
        *,
        env: Env,
        declare: Callable[[OnConflict], None],
        heed: Callable[[], None],
        loop: asyncio.AbstractEventLoop | None = None,
        ends_drained: bool = False,
    ) -> None:
        """`declare` starts the schedules of the program: when this process becomes the keeper, again when its clock is
        put back, and as a standby those that are missing. `heed` lets the handle that writes them heed a purge.

        With `ends_drained` the thread ends when the wheel is drained; without, it waits for the resume.
        """
        super().__init__("filewheel-scheduler")
        self._path = path
        self._handlers = handlers
        self._occurrences = occurrences
        self._limits = limits
        self._telemetry = telemetry
        self._env = env
        self._clock = clock = env.clock
        self._declare = declare
        self._heed = heed
        self._loop = loop
        self._sleep = StandbySleep(path, env)
        self._ends_drained = ends_drained
        self._drains = 0
        """How often the wheel was drained when this engine began to fire, or to wait for it."""
        self._keeper: Keeper | None = None
        self._fenced: Fenced | None = None
        self._ahead_us = clock.now_us() - clock.steady_us()
        self._reported = Pauses()
        self.is_keeper = Event()
        """Set while this process fires."""
        self.state: State = "starting"
        """"failing" while it cannot fire and tries again, "fenced" when another wheel of the set fires."""
        self._turned_us = clock.steady_us()
        """When the thread last came around. In the future during a pause after an error."""
        self.dispatcher: Dispatcher | None = None
        telemetry.metrics.gauge("in_flight", "Messages claimed and not settled.", self._in_flight)

    def _in_flight(self) -> float | None:
        dispatcher = self.dispatcher
        return dispatcher.claimed if dispatcher is not None and self.is_keeper.is_set() else None

    # -- the thread --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread. Raises DiskError when there can be no more threads."""
        self._drains = self._pauses().drains
        with disk_errors(self._path):  # `_thread` is set once it runs: a thread that never ran cannot be joined
            super().start()

    def ask_to_stop(self, grace_s: float) -> None:
        """Request a stop, without waiting for the end."""
        super().ask_to_stop(grace_s)
        self._sleep.end()
        keeper = self._keeper
        if keeper is not None:
            keeper.wake()

    def stalled_s(self) -> float:
        """Return for how many seconds the thread, or the keeper's own, has not come around; 0 when it has ended."""
        if not self.is_alive:
            return 0.0
        keeper = self._keeper
        own_s = (self._clock.steady_us() - self._turned_us) / US_PER_S
        return max(0.0, own_s, 0.0 if keeper is None else keeper.stalled_s())

    def _turn(self) -> None:
        self._turned_us = self._clock.steady_us()
        self._heed()

    def wait_until_keeper(self, timeout_s: float | None) -> bool:
        """Wait until this process fires; return whether it does. Raises Fenced when it never will."""
        left_s = float("inf") if timeout_s is None else timeout_s
        while left_s > 0 and not self.is_keeper.wait(min(left_s, STANDBY_S)):
            self.check()
            left_s -= STANDBY_S
        return self.is_keeper.is_set()

    def check(self) -> None:
        """Raise Fenced when the thread has ended because another wheel fires."""
        if self._fenced is not None:
            raise anew(self._fenced)

    def _live(self) -> None:
        pause_s = _PAUSE_S
        reported = False
        while not self._stop.is_set():
            self._turn()
            if self._is_drained():
                if self._ends_drained:
                    log.info("the wheel was drained: this process ends")
                    return
                self._wait_for_resume()
                continue
            if self._loop is not None and self._loop.is_closed():
                log.critical("the event loop of the calls was closed; firing has ended")
                return
            try:
                keeper = self._open(wait=False)
            except Locked as exc:
                if not reported:
                    # Two schedulers in one process are a mistake: this one fires nothing while the other exists.
                    log.log(logging.WARNING if exc.is_own else logging.INFO, "standing by: %s", exc.what)
                    self._declare_missing()
                reported = True
                self.state = "standby"
                self._stand_by()
                continue
            except Fenced as exc:
                self._yield_to(exc)
                return
            except Exception as exc:
                is_ours = isinstance(exc, FilewheelError)
                log.critical("cannot fire: %s; trying again in %d s", exc, pause_s, exc_info=not is_ours)
                ended_well = False
            else:
                reported = False
                ended_well = self._term(keeper)
            if self._fenced is not None:
                return
            if ended_well:
                pause_s = _PAUSE_S
            else:
                self.state = "failing"
                self._turned_us = self._clock.steady_us() + int(pause_s * US_PER_S)
                self._stop.wait(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)

    def _pauses(self) -> Pauses:
        """Return what is paused; with the number of drains that is known if that cannot be read."""
        try:
            with opened(self._path, self._env) as directory:
                return read_pauses(directory.disk, self._path)
        except (FilewheelError, OSError):  # opening a keeper raises the reason
            return Pauses(drains=self._drains)

    def _is_drained(self) -> bool:
        return self._pauses().has_drained(self._drains)

    def _wait_for_resume(self) -> None:
        """Sleep until the wheel is resumed, or until the stop."""
        log.info("the wheel was drained: this process fires again when it is resumed")
        self.state = "standby"
        while not self._stop.is_set() and self._pauses().wheel is not None:
            self._turn()
            self._stop.wait(_RESUME_LOOK_S)
        self._drains = self._pauses().drains

    def _declare_missing(self) -> None:
        """Start the schedules that no program has started: they are listed, and late, though another process fires."""
        try:
            self._declare("keep")
        except FilewheelError as exc:
            log.error("the schedules of this program are not started before it fires: %s", exc)

    def _stand_by(self) -> None:
        """Sleep until it is time to try the lock again, or to stop."""
        try:
            self._sleep.wait()
        except OSError:  # no room for an open file
            self._stop.wait(UNHEARD_S)

    def _yield_to(self, exc: Fenced) -> None:
        """Note that another wheel fires."""
        log.critical("this process does not fire: %s", exc)
        self.state = "fenced"
        self._fenced = anew(exc)

    def _open(self, *, wait: bool, background: bool = True) -> Keeper:
        limits = self._limits
        return Keeper(
            self._path,
            wait=wait,
            on_jump=limits.on_jump,
            keep_dead_s=limits.keep_dead_s,
            background=background,
            history=limits.history,
            on_flush=self._telemetry.flushed,
            on_dead_dropped=self._telemetry.dead_dropped,
            env=self._env,
        )

    def _term(self, keeper: Keeper) -> bool:
        """Fire until the stop, or an error; return whether it ended without one."""
        self._keeper = keeper
        runners: dict[str, Runner] = {}
        dispatcher = self._dispatcher(keeper, runners)
        runners |= runners_of(self._limits, dispatcher, self._clock, self._path, self._loop)
        keeper.set_worker(dispatcher)
        publisher = Publisher(self._telemetry.metrics, keeper.directory)
        ended_well = False
        try:
            self._declare("replace")
            self.state = "firing"  # before the event: a program that waits for it reads the state next
            self._telemetry.took_over()
            self.dispatcher = dispatcher
            self.is_keeper.set()
            while not self._stop.is_set() and not keeper.paused.has_drained(self._drains):
                self._turn()
                dispatcher.step()
                self._report_pauses(keeper.paused)
                dispatcher.wait()
                publisher.tick()
                self._look_at_clock()
            self._end_drained(dispatcher, runners)
            self._end_calls(dispatcher, runners)
            ended_well = True
        except Fenced as exc:
            self._yield_to(exc)
            self._end_in_hand(dispatcher, runners)
        except Locked as exc:
            log.critical("firing stopped: %s", exc)
            self._end_in_hand(dispatcher, runners)
        except FilewheelError as exc:
            log.critical("firing stopped: %s", exc)
        except Exception:
            log.exception("firing stopped")
        finally:
            self.is_keeper.clear()
            self._keeper = None
            if not ended_well:
                for runner in runners.values():
                    runner.stop()
            publisher.close()
            try:
                keeper.close()
            except FilewheelError as exc:
                log.critical("%s", exc)
                ended_well = False
        return ended_well

    def _report_pauses(self, pauses: Pauses) -> None:
        """Log a pause, and a resume, once."""
        if pauses is not self._reported:
            before, self._reported = self._reported, pauses
            for pause in before:
                if pauses.find(pause) is None:
                    log.info("resumed: %s", pause)
            for pause in pauses:
                if before.find(pause) is None:
                    log.info("paused: %s%s", pause, f" ({pause.why})" if pause.why else "")

    def _end_drained(self, dispatcher: Dispatcher, runners: Mapping[str, Runner]) -> None:
        """After a drain: let running calls end, however long they take, unless a stop is requested."""
        if self._stop.is_set():
            return
        for runner in runners.values():
            runner.quiet()
        if running := sum(r.busy() for r in runners.values()):
            log.info("the wheel was drained: %d calls run to their end", running)
        while any(r.busy() for r in runners.values()) and not self._stop.is_set():
            self._turn()
            dispatcher.step(fire=False)
            self._stop.wait(_END_LOOK_S)

    def _look_at_clock(self) -> None:
        """Plan again after the clock was put back: the next occurrences were computed from a wrong time."""
        ahead_us = self._clock.now_us() - self._clock.steady_us()
        if self._ahead_us - ahead_us > ASTRAY_US:
            self._declare("replace")
        self._ahead_us = ahead_us

    def _dispatcher(self, keeper: Keeper, runners: dict[str, Runner]) -> Dispatcher:
        limits, at_runner = self._limits, self._limits.at_runner
        return Dispatcher(
            keeper,
            self._handlers,
            runners,
            slots={place: n for place, n in at_runner.items() if place.startswith("process")},
            pools=at_runner,
            in_flight=limits.in_flight,
            catch_up_per_s=limits.catch_up_per_s,
            unknown=limits.unknown,
            clock=self._clock,
            telemetry=self._telemetry,
            occurrences=self._occurrences,
            tracebacks=limits.tracebacks,
            puts_sync="always" if keeper.directory.settings.sync == "always" else "never",
            result_bytes_max=min(RESULT_BYTES_MAX, keeper.directory.settings.payload_bytes_max),
            report=keeper.observer.history.report if limits.history else None,
        )

    def _end_calls(self, dispatcher: Dispatcher, runners: dict[str, Runner], at_least_s: float = 0.0) -> None:
        """Give running calls the grace time to end, and settle them. No other call begins."""
        end_calls(dispatcher, runners, max(self._grace_s, at_least_s), self._clock, self._hurry, self._turn)
        _settle_all(dispatcher)

    def _end_in_hand(self, dispatcher: Dispatcher, runners: dict[str, Runner]) -> None:
        """Let running calls end and settle them, so that the new keeper does not repeat them."""
        try:
            self._end_calls(dispatcher, runners, _FENCED_S)
        except FilewheelError as exc:
            log.error("the outcomes of the last messages could not be written: %s", exc)

    # -- without the thread ------------------------------------------------------------------------------------

    def drain(self) -> int:
        """Call all due messages in this thread; return how many messages were settled.

        Raises Locked when another process is the keeper, the error that left outcomes unwritten, and WheelFull when
        there is no room to acknowledge what is due.
        """
        with self.inline() as dispatcher:
            # A full disk ends it: calls that cannot be settled would only run again.
            while dispatcher.step(claim=True) and dispatcher.full is None:
                pass
        if dispatcher.no_room is not None:
            raise anew(dispatcher.no_room)
        return dispatcher.settled

    @contextmanager
    def inline(self) -> Iterator[Dispatcher]:
        """Be the keeper inside of the block; the dispatcher's calls run in this thread, at once.

        Raises Locked when another process is the keeper, and at the end the error that left outcomes unwritten: those
        calls run again.
        """
        keeper = self._open(wait=False, background=False)
        runners: dict[str, Runner] = {}
        dispatcher = self._dispatcher(keeper, runners)
        inline = Inline(dispatcher.begin, dispatcher.finish, self._clock, self._path, loop=self._loop)
        runners |= dict.fromkeys(("loop", *self._limits.places), inline)
        unwritten: FilewheelError | None = None
        try:
            self._declare("replace")
            yield dispatcher
        finally:
            # Also after Ctrl-C in a handler, because the calls before it have ended.
            unwritten = _settle_all(dispatcher)
            inline.stop()
            keeper.close(deal=False)  # a program may drain a thousand times, for a message each
            unwritten = unwritten or keeper.unwritten
        if unwritten is not None:
            raise unwritten


def runners_of(
    limits: Limits, dispatcher: Dispatcher, clock: Clock, path: str, loop: asyncio.AbstractEventLoop | None = None
) -> dict[str, Runner]:
    """Return the runners of a term, by their places."""
    begin, finish = dispatcher.begin, dispatcher.finish
    runners: dict[str, Runner] = {"loop": Loop(begin, finish, clock, path, loop=loop)}
    for place, size in limits.places.items():
        kind, _, pool = place.partition(":")
        if kind == "thread":
            runners[place] = Threads(size, begin, finish, clock, path, pool)
        else:
            runners[place] = Processes(size, begin, finish, clock, path, limits.recycle)
    return runners


def end_calls(
    dispatcher: Dispatcher,
    runners: Mapping[str, Runner],
    grace_s: float,
    clock: Clock,
    hurry: Event,
    turn: Callable[[], None] = lambda: None,
) -> None:
    """Give running calls this time to end, or until `hurry`; then abandon them. No other call begins."""
    for runner in runners.values():
        runner.quiet()
    if running := sum(r.busy() for r in runners.values()):
        log.info("stopping: %d calls have %g s to end", running, grace_s)
    end_us = clock.steady_us() + int(grace_s * US_PER_S)
    while any(r.busy() for r in runners.values()) and clock.steady_us() < end_us:
        turn()
        dispatcher.step(fire=False)
        if hurry.wait(_END_LOOK_S):
            break
    for runner in runners.values():
        runner.stop()


def _settle_all(dispatcher: Dispatcher) -> FilewheelError | None:
    """Settle calls that have ended; log and return the error that left some unwritten, which fire again."""
    why = dispatcher.settle_all()
    if why is not None:
        # The first error may only have prevented a call from beginning; then the second attempt writes everything.
        why = dispatcher.settle_all()
    if why is not None:
        log.error("the outcomes of the last messages could not be written: %s", fires_again(why))
    return why
