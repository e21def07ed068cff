"""The jobs that wait: a Scheduler lists them, finds one, moves it, and cancels it or all of a handler.

The part of a Scheduler that reads and changes what is pending, where a topic is the name of a handler. The Wheel does
the work. `aio_waiting.py` is the same for an AsyncScheduler.
Invariant: a call here ends no schedule: `unschedule` does, and `cancel` of the one occurrence that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from filewheel.changes import ids_at_once
from filewheel.checks import check_number, check_whole
from filewheel.errors import BadArgument
from filewheel.firing.cancelled import Cancelled, CancelledIds
from filewheel.message import RESULT, SCHEDULE, US_PER_S, Message, MessageId
from filewheel.reader import given, one_of
from filewheel.scheduling.call import ANY
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import BaseHandler
from filewheel.scheduling.options import At, Delay
from filewheel.scheduling.results import FIRST_WAIT_S, LAST_WAIT_S, Look, value_of
from filewheel.wheel import Wheel

Named = str | BaseHandler[..., Any, Any]
"""A handler, its name, or a glob of names."""


def topic_of(handler: Named | None) -> str | None:
    """Return the topic of a handler's jobs. Raises BadArgument for the handler of any name, whose jobs have others."""
    name = handler.name if isinstance(handler, BaseHandler) else handler
    if isinstance(handler, BaseHandler) and name == ANY:
        raise BadArgument("the handler for any name has no jobs of its own", hint="give their name, or a glob")
    return name


def is_job(message: Message) -> bool:
    """Return whether a message is a job, and not the result of one."""
    return RESULT not in message.headers


def cancels(message: Message) -> bool:
    """Return whether `cancel_all` cancels a message: it leaves the occurrences of schedules."""
    return SCHEDULE not in message.headers


class Waiting:
    """What waits, for a Scheduler."""

    _telemetry: Telemetry

    @property
    def wheel(self) -> Wheel:
        """The wheel."""
        raise NotImplementedError

    def list(
        self,
        handler: Named | None = None,
        *,
        after: At | None = None,
        before: At | None = None,
        limit: int | None = None,
        dead: bool = False,
    ) -> Iterator[Message]:
        """Yield the jobs that wait, in due order: of a handler (a name, or a glob of names), or all.

        Each is a Message with `args`, `kwargs`, `key`, `attempts`, and a dead one with its `reason`. Those that run now
        are among them (`wheel.running()` names those), and so is the next occurrence of each schedule. The other
        arguments are those of Wheel.list. Memory: one window, for any backlog.

        Raises BadArgument at once.
        """
        if limit is not None:
            check_whole("limit", limit, least=0)
        found = self.wheel.list(after=after, before=before, topic=topic_of(handler), dead=dead)
        return islice((message for message in found if is_job(message)), limit)

    def get(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Message | None:
        """Return the job with this id or key, also one that runs or is dead; None when there is none.

        A retry and a reschedule change the id; the key stays. Raises BadArgument.
        """
        return self.wheel.get(**given(id_, key))

    def reschedule(
        self,
        id_: MessageId | str | None = None,
        *,
        key: str | None = None,
        delay: Delay | None = None,
        at: At | None = None,
    ) -> MessageId:
        """Move a job, by its id or key, to a time, by a delay from now, or to now; return its new id.

        A dead letter comes back to life. A job that runs continues, and is called again at the new time.

        Raises NotFound, KeyHeld (see Wheel.reschedule), BadArgument.
        """
        return self.wheel.reschedule(**given(id_, key), delay=delay, at=at)

    def cancel(self, id_: MessageId | str | None = None, *, key: str | None = None) -> Cancelled:
        """Cancel a call by its id or its key; return whether it was stopped in time, had begun, or was not found.

        The result is true when it was pending. A call that has begun continues, and is not retried.
        """
        done = self.wheel.cancel(**given(id_, key))
        if done:
            self._telemetry.cancelled(one_of(id_, key), done)
        return done

    def result(self, id_: MessageId | str, *, timeout_s: float = 0) -> Any:
        """Return what a call has returned, by the id of its enqueue; wait for it for `timeout_s` seconds.

        Its handler keeps results: @on(result_for="1h"). What has a class comes back as in `Message.args`. Cost: two
        look-ups, several times a second; for a call that was retried or moved, a read of every pending message.

        Raises ResultTimeout while the call waits, runs, or is to be retried; CallFailed; ResultNotKept; NotFound when
        the id is not that of a call, or its result has expired; BadArgument.
        """
        look = Look(id_)
        check_number("timeout_s", timeout_s, least=0, most=1e9)
        wheel = self.wheel
        clock, disk = wheel._dir.env.clock, wheel._dir.disk
        end_us = clock.steady_us() + round(timeout_s * US_PER_S)
        pause_s = FIRST_WAIT_S
        while (found := look.look(wheel)) is None:
            left_s = (end_us - clock.steady_us()) / US_PER_S
            if left_s <= 0:
                raise look.timed_out(wheel.path, timeout_s)
            disk.wait_hint(None, min(pause_s, left_s))
            pause_s = min(pause_s * 2, LAST_WAIT_S)
        return value_of(found)

    def cancel_all(self, handler: Named) -> int:
        """Cancel the jobs of a handler (a name, or a glob of names) that wait; return how many. "*" is all of them.

        Those that have begun continue, and are not retried. The occurrences of schedules stay: `unschedule` ends one.
        Dead letters stay. Cost and commits: those of Wheel.clear.

        Raises BadArgument.
        """
        found = self.list(checked(handler))
        portions = ids_at_once(message for message in found if cancels(message))
        return sum(report(self._telemetry, self.wheel.cancel_many(ids)) for ids in portions)


def checked(handler: Named) -> Named:
    """Return the handler, or the name or glob, whose jobs are to be cancelled. Raises BadArgument for none."""
    if not isinstance(handler, (str, BaseHandler)) or not (handler if isinstance(handler, str) else handler.name):
        raise BadArgument("name the handler whose jobs are to be cancelled", hint='cancel_all("*") is for all of them')
    return handler


def report(telemetry: Telemetry, cancelled: CancelledIds) -> int:
    """Count and emit what was cancelled; return how many."""
    for id_, outcome in cancelled.outcomes.items():
        telemetry.cancelled(id_, outcome)
    return len(cancelled)
