"""Reads the wheel on a thread of its own, so that a key is answered while a large wheel is counted.

Invariant: a Sight is never changed after it was handed over.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from filewheel import Damaged, Ended, FilewheelError, Message, MessageId, Pause, Pauses, Run, StoredSchedule
from filewheel.live.ahead import CountsAhead
from filewheel.live.overview import live_fields
from filewheel.live.pages import Query
from filewheel.live.wheel_view import WheelView

LISTS = ("next", "running", "dead", "ended", "schedules", "paused")
Item = Message | Run | Ended | Pause | tuple[StoredSchedule, Message]
_TRIES = 8
"""A search that finds nothing goes on for so many scans, then shows how far it came."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read."""

    name: str = "next"
    topic: str | None = None
    after: MessageId | None = None
    limit: int = 20


@dataclass(frozen=True)
class Sight:
    """What was read."""

    wanted: Wanted = Wanted()
    live: dict[str, Any] | None = None
    """As `live_fields` has it; None when the wheel cannot be read."""
    ahead: CountsAhead | None = None
    items: Sequence[Item] = ()
    next_id: MessageId | None = None
    """There is a next page, after this id."""
    searched_us: int | None = None
    """A search stopped here, with less than a page."""
    trouble: str = ""
    pauses: Pauses = field(default_factory=Pauses)
    """What is paused; nothing where that cannot be read, which is one of the troubles."""
    error: FilewheelError | None = field(default=None, compare=False)


class Looker:
    """Looks each interval, and at once when something else is wanted. A context manager."""

    def __init__(self, view: WheelView, wanted: Wanted, interval_s: float) -> None:
        self._view = view
        self._interval_s = interval_s
        self._wake = threading.Lock()
        """Open when there is a reason to look. A lock, because Ctrl-C breaks an event of Python's."""
        self._wake.acquire()
        self._over = False
        self.wanted = wanted
        self.sight = Sight(wanted)
        self.fd, self._ring = os.pipe()
        """Becomes readable when there is a new sight."""
        self._thread = threading.Thread(target=self._run, name="filewheel-top", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._look_soon()
        self._thread.join()
        os.close(self._ring)
        os.close(self.fd)

    def want(self, wanted: Wanted) -> None:
        """Look for this at once."""
        self.wanted = wanted
        self._look_soon()

    def look_again(self) -> None:
        """Look at once: this process has changed the wheel."""
        with contextlib.suppress(FilewheelError):
            self._view.forget()
        self._look_soon()

    def _look_soon(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is open already
            self._wake.release()

    def _run(self) -> None:
        while not self._over:
            self.sight = look(self._view, self.wanted)
            os.write(self._ring, b"!")
            self._wake.acquire(timeout=self._interval_s)


def _words(exc: FilewheelError) -> str:
    """Return what is wrong, first of all: a line may be cut."""
    return f"{exc.what}{f'; try: {exc.hint}' if exc.hint else ''}{f' ({exc.path})' if exc.path else ''}"


def look(view: WheelView, wanted: Wanted) -> Sight:
    """Read what is wanted; an error is a part of the result."""
    try:
        live = live_fields(view)
    except FilewheelError as exc:
        return Sight(wanted, error=exc, trouble=_words(exc))
    trouble = "; ".join(trouble["message"] for trouble in live["troubles"])
    try:
        return replace(_LOOKS[wanted.name](view, wanted, live, trouble), pauses=_pauses(view))
    except FilewheelError as exc:
        return Sight(wanted, live, error=exc, trouble=_words(exc))


def _messages(view: WheelView, wanted: Wanted, live: dict[str, Any], trouble: str) -> Sight:
    ahead = view.ahead().value
    found: list[Message] = []
    after = wanted.after
    page = None
    for _ in range(_TRIES):
        query = Query(
            topic=wanted.topic, dead=wanted.name == "dead", after=after, limit=max(1, wanted.limit - len(found))
        )
        page = view.page(query)
        found += page.messages
        after = page.next_id
        if after is None or len(found) >= wanted.limit:
            break
    searched_us = page.reached_us if page is not None and after is not None and len(found) < wanted.limit else None
    return Sight(wanted, live, ahead, found, after, searched_us, trouble)


def _running(view: WheelView, wanted: Wanted, live: dict[str, Any], trouble: str) -> Sight:
    runs = [run for run in view.running().value if wanted.topic in (None, run.topic)]
    return Sight(wanted, live, view.ahead().value, runs[: wanted.limit], trouble=trouble)


def _ended(view: WheelView, wanted: Wanted, live: dict[str, Any], trouble: str) -> Sight:
    ends = view.history(topic=wanted.topic, limit=wanted.limit)
    return Sight(wanted, live, view.ahead().value, list(ends), trouble=trouble)


def _schedules(view: WheelView, wanted: Wanted, live: dict[str, Any], trouble: str) -> Sight:
    found = [(stored, stored.occurrence) for stored in view.schedules().value.found]
    return Sight(wanted, live, view.ahead().value, found[: wanted.limit], trouble=trouble)


def _paused(view: WheelView, wanted: Wanted, live: dict[str, Any], trouble: str) -> Sight:
    found = [pause for pause in view.paused() if wanted.topic is None or pause.holds(wanted.topic, None)]
    return Sight(wanted, live, view.ahead().value, found[: wanted.limit], trouble=trouble)


def _pauses(view: WheelView) -> Pauses:
    with contextlib.suppress(Damaged):
        return view.paused()
    return Pauses()


_LOOKS: dict[str, Callable[[WheelView, Wanted, dict[str, Any], str], Sight]] = {
    "next": _messages,
    "dead": _messages,
    "running": _running,
    "ended": _ended,
    "schedules": _schedules,
    "paused": _paused,
}
