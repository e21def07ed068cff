"""A call that a runner executes, its outcomes, and the execution that threads, processes and the inline runner share.

It turns claimed messages into jobs, runs the function, and returns the outcomes. An exception of the handler,
`sys.exit` and unreadable arguments only become a failure in the outcome.
Invariant: exactly one end of a call counts, also when the call ends after its time-out.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from filewheel.checks import check_done
from filewheel.env import Clock
from filewheel.errors import Damaged
from filewheel.message import ARGS, DEADLINE, SKIP_LATE, TIMEOUT, Message
from filewheel.runs.run import Kill, Place
from filewheel.scheduling.arguments import Unfit
from filewheel.scheduling.around import Hook, surrounded
from filewheel.scheduling.handler import Handler
from filewheel.scheduling.job import EMPTY_OUTBOX, Job, enter, leave
from filewheel.scheduling.options import LatenessPolicy
from filewheel.scheduling.outcome import RETURNED, Kept, Outcome, storable
from filewheel.scheduling.own_terms import timeout_of
from filewheel.scheduling.results import kept
from filewheel.values import unpack_call

_TRACE_LENGTH = 8000
_AROUND = surrounded.__code__.co_filename
_RUNNERS = _AROUND.removesuffix("around.py") + "runners/"
_CHAIN_MAX = 100
_PIECE_CHARS = 1200
"""A part of a traceback, such as the exception's text, is cut to this, so that the places remain."""


class Call:
    """One call of a handler: with one message, or with several for a batch handler."""

    __slots__ = (
        "_open",
        "begun_us",
        "ended_us",
        "handler",
        "hooks",
        "keeps_result",
        "kill",
        "messages",
        "outcomes",
        "started_us",
        "timeout_s",
    )

    def __init__(
        self, handler: Handler[..., Any], messages: list[Message], started_us: int, hooks: Sequence[Hook] = ()
    ) -> None:
        self.handler = handler
        self.hooks = hooks
        """What surrounds it, the outermost first."""
        self.messages = messages
        self.started_us = started_us
        """When it was handed over, by the wall clock."""
        self.begun_us = 0
        """When it began, by the steady clock; 0 while it waits."""
        self.timeout_s = handler.terms.timeout_s
        """How long it may take."""
        if TIMEOUT in messages[0].headers and handler.terms.batch is None:  # a batch has one time-out: the handler's
            self.timeout_s = timeout_of(messages[0], self.timeout_s)
        self.keeps_result = handler.terms.result_for_us is not None
        self.kill: Kill | None = None
        """The request to end it, once there is one."""
        self.ended_us = 0
        """When it ended, by the steady clock."""
        self.outcomes: Sequence[Outcome] | None = None
        """What became of each message, once it has ended; None if the function returned, and that is all."""
        self._open = [True]

    def fail(self, outcome: Outcome) -> Sequence[Outcome]:
        """Return one outcome for all messages."""
        return [outcome] * len(self.messages)

    def end(self) -> bool:
        """End the call; return whether this was the first end, whose outcome counts. Atomic."""
        try:
            return self._open.pop()
        except IndexError:
            return False


Finish = Callable[[Call], None]
Begin = Callable[[Call], bool]
"""Called in any thread immediately before a call runs; False when all its messages were cancelled."""


class Runner:
    """Runs calls. `start` returns at once; a call that has ended is passed to `finish`, from any thread.

    A runner calls `begin` before each call and runs it only if that returned True; otherwise it does not end. This one
    is the base of those whose calls cannot be ended, or have ended when `start` returns.
    """

    starts_anywhere = False
    """Whether a thread that has just finished a call may call `start`."""

    def start(self, call: Call) -> None:
        """Run or queue a call."""
        raise NotImplementedError

    def quiet(self) -> None:
        """Begin no more calls: queued ones have no outcome, and are offered again."""

    def busy(self) -> int:
        """Return how many calls run."""
        return 0

    def running(self) -> list[tuple[Call, Place]]:
        """Return the calls that run, and where. Thread-safe."""
        return []

    def stop(self) -> None:
        """Abandon or end running calls; they have no outcome, and are offered again."""

    def kill(self, call: Call) -> None:
        """Begin to end a call that runs, for its `kill`; its outcome is a failure that says so. Never of a thread."""

    def give_up(self, call: Call) -> str:
        """Abandon a call that timed out; return its stack, if it has one."""
        return ""


def jobs_of(call: Call, clock: Clock, wheel: str) -> list[Job | Outcome]:
    """Return a job for each message of a call, or a failure.

    A message may have become too late while it waited, so that is checked again.
    """
    now_us = clock.now_us()
    made: list[Job | Outcome] = []
    for message in call.messages:
        headers = message.headers
        if DEADLINE in headers or SKIP_LATE in headers:
            why = LatenessPolicy.of(headers).too_late(message.due_us, now_us)
            if why is not None:
                made.append(Outcome(why, gives_up=True, is_too_late=True))
                continue
        try:
            args, kwargs = unpack_call(message.payload, headers.get(ARGS))
            if call.handler.parameters is not None:
                args, kwargs = call.handler.parameters.convert(args, kwargs)
            made.append(Job(message, message.topic, args, kwargs, now_us, wheel))
        except Damaged as exc:
            made.append(Outcome(exc.what, gives_up=True))
        except Unfit as exc:
            made.append(replace(Outcome.of(exc.__cause__ or exc, trace_of(exc)), error=storable(str(exc))))
    return made


def outcomes_of(
    jobs: Sequence[Job | Outcome], raised: Outcome | None, result: Kept | None = None
) -> Sequence[Outcome] | None:
    """Return the outcomes of a call whose function returned, or raised."""
    outcomes: list[Outcome] = []
    for job in jobs:
        if isinstance(job, Outcome):
            outcomes.append(job)
        elif raised is not None:
            outcomes.append(raised)
        elif job.failed is not None:
            outcomes.append(Outcome(storable(job.failed)))
        elif job.puts or result is not None:
            outcomes.append(Outcome(puts=job.puts, result=result))
        else:
            outcomes.append(RETURNED)
    return None if all(outcome is RETURNED for outcome in outcomes) else outcomes


def keep(call: Call, value: object) -> Kept | None:
    """Return what a function returned as it is kept; None when its handler keeps no results."""
    return kept(value, call.handler.sender.codec.encode) if call.keeps_result else None


def failed_by(exc: BaseException) -> Outcome:
    """Describe an exception of a handler, with its traceback from the handler on."""
    return Outcome.of(exc, trace_of(exc))


def trace_of(exc: BaseException) -> str:
    """Return the end of an exception's traceback, from the handler or its hook on."""
    trace = exc.__traceback__
    try:
        whole = traceback.TracebackException(type(exc), exc, trace.tb_next if trace else None, compact=True)
        _without_hooks(whole)
        pieces = list(whole.format())
    except Exception as odd:  # the program's exception class may raise too
        return f"(no traceback: {type(odd).__name__})"
    return storable("".join(map(_shortened, pieces))[-_TRACE_LENGTH:])


def _without_hooks(whole: traceback.TracebackException) -> None:
    """Leave out the frames that only surround the call, also of the exceptions that led to this one."""
    for _ in range(_CHAIN_MAX):
        others = [f for f in whole.stack if f.filename != _AROUND and not f.filename.startswith(_RUNNERS)]
        first = next((n for n, frame in enumerate(others) if frame.filename != contextlib.__file__), 0)
        whole.stack[:] = others[first:]
        before = whole.__cause__ or whole.__context__
        if before is None:
            break
        whole = before


def stack_of(thread_id: int | None, function: Callable[..., Any]) -> str:
    """Return the stack of a thread, from a function on; "" when the thread has left that function."""
    frame = sys._current_frames().get(thread_id or 0)
    frames = list(traceback.walk_stack(frame))[::-1] if frame is not None else []
    code = getattr(function, "__code__", None)
    starts = [n for n, (f, _) in enumerate(frames) if f.f_code is code]
    if not starts:
        return ""
    lines = traceback.StackSummary.extract(iter(frames[starts[0] :])).format()
    return storable("".join(["Stack at the time-out (most recent call last):\n", *lines])[-_TRACE_LENGTH:])


def _shortened(piece: str) -> str:
    if len(piece) <= _PIECE_CHARS:
        return piece
    return f"{piece[: _PIECE_CHARS // 2]} [...] {piece[-_PIECE_CHARS // 2 :]}"


def called(call: Call, jobs: list[Job]) -> Any:
    """Call the function of a call; return what it returned."""
    function = call.handler.function
    return function(jobs) if call.handler.terms.batch else function(*jobs[0].args, **jobs[0].kwargs)


def _done(call: Call, jobs: list[Job]) -> object:
    """Do a call; return its result. Raises TypeError for work that the function hands back."""
    value: object = called(call, jobs)
    if value is not None:
        check_done("the handler", value)
    return value


def run(call: Call, clock: Clock, wheel: str) -> Sequence[Outcome] | None:
    """Call a plain function in this thread; return the outcomes, as the call has them.

    KeyboardInterrupt is raised: it is meant for the program, and the messages stay claimed.
    """
    jobs = jobs_of(call, clock, wheel)
    good = [job for job in jobs if isinstance(job, Job)]
    if not good:
        return outcomes_of(jobs, None)
    value: object = None
    first = good[0]
    token = enter(None if call.handler.terms.batch else first)
    try:
        if call.hooks:  # in a context of its own: what a hook sets ends with the call
            value = copy_context().run(surrounded, call.hooks, good, lambda: _done(call, good))
        else:
            value = _done(call, good)
        result = keep(call, value)
    except KeyboardInterrupt:
        raise
    except BaseException as exc:
        return outcomes_of(jobs, failed_by(exc))
    finally:
        leave(token)
    if len(jobs) == 1 and first.failed is None and first.puts is EMPTY_OUTBOX and result is None:
        return None
    return outcomes_of(jobs, None, result)
