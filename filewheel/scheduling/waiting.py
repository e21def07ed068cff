"""The jobs that wait: a Scheduler lists them, finds one, moves it, and cancels it or all of a handler.

The part of a Scheduler that reads and changes what is pending, where a topic is the name of a handler. The Wheel does
the work. `aio_waiting.py` is the same for an AsyncScheduler.
Invariant: a call here ends no schedule: `unschedule` does, and `cancel` of the one occurrence that it names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from filewheel.changes import ids_at_once
from filewheel.errors import BadArgument
from filewheel.firing.cancelled import Cancelled, CancelledIds
from filewheel.message import SCHEDULE, Message, MessageId
from filewheel.reader import given, one_of
from filewheel.scheduling.call import ANY
from filewheel.scheduling.events import Telemetry
from filewheel.scheduling.handler import BaseHandler
from filewheel.scheduling.options import At, Delay
from filewheel.wheel import Wheel

Named = str | BaseHandler[..., Any, Any]
"""A handler, its name, or a glob of names."""


def topic_of(handler: Named | None) -> str | None:
    """Return the topic of a handler's jobs. Raises BadArgument for the handler of any name, whose jobs have others."""
    name = handler.name if isinstance(handler, BaseHandler) else handler
    if isinstance(handler, BaseHandler) and name == ANY:
        raise BadArgument("the handler for any name has no jobs of its own", hint="give their name, or a glob")
    return name


def cancels(message: Message) -> bool:
    """Return whether `cancel_all` cancels a message: it leaves the occurrences of schedules."""
    return SCHEDULE not in message.headers  # mutant: cancel-all-ends-schedules


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
        return self.wheel.list(after=after, before=before, topic=topic_of(handler), limit=limit, dead=dead)

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
    # mutant: cancel-all-of-nobody
    if not isinstance(handler, (str, BaseHandler)) or not (handler if isinstance(handler, str) else handler.name):
        raise BadArgument("name the handler whose jobs are to be cancelled", hint='cancel_all("*") is for all of them')
    return handler


def report(telemetry: Telemetry, cancelled: CancelledIds) -> int:
    """Count and emit what was cancelled; return how many."""
    for id_, outcome in cancelled.outcomes.items():
        telemetry.cancelled(id_, outcome)
    return len(cancelled)
