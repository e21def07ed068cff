"""Ends runs on request: takes the requests to this keeper, hands them to the consumer, and answers when all is written.

The housekeeper's thread calls `look`. The consumer ends the attempt (a process, a command, a coroutine) and settles the
message as the request says; the answer follows once the message is no longer claimed.
Invariant: a request is handed on only while its message is claimed and has begun.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from filewheel.firing.begins import Begins
from filewheel.firing.head import Head
from filewheel.laps.store import Store
from filewheel.message import US_PER_S
from filewheel.runs.history import History
from filewheel.runs.kills import ANSWERS, Killed, Request, requests
from filewheel.runs.run import Kill, Then, Worker

AT_ONCE = 100
"""How many requests are taken, and how many old files are removed, together."""
_LOOK_US = 200_000
_ANSWERED_US = 60 * US_PER_S
"""An answer that nobody has taken for so long is removed."""


@dataclass(slots=True)
class _Asked:
    """A kill that the consumer has, and the requests that wait for its end."""

    kill: Kill
    requests: list[Request]


class Killer:
    """The kills of one keeper. Belongs to the housekeeper's thread, or to the one that closes."""

    def __init__(self, store: Store, head: Head, begins: Begins, history: History) -> None:
        self._disk = store.dir.disk
        self._clock = store.clock
        self._lock = store.lock
        self._head = head
        self._begins = begins
        self._history = history
        self._looked_us: int | None = None
        self._asked: dict[bytes, _Asked] = {}
        self._answered: dict[str, int] = {}
        """Answers that nobody has removed yet, and when they were given."""

    def look(self, worker: Worker | None) -> None:
        """Take requests, and answer those that are done. Cost: a listing, five times a second. Raises OSError."""
        now = self._clock.steady_us()
        if self._looked_us is not None and now - self._looked_us < _LOOK_US:
            return
        self._looked_us = now
        for request in self._requests(now)[:AT_ONCE]:
            self._take(request, worker)
        self._answer_ended()

    def close(self) -> None:
        """Answer what is done, and remove the other requests: their askers see the keeper's end. Raises OSError."""
        self._answer_ended()
        for request in requests(self._disk):
            if request.word not in ANSWERS:
                self._remove(request.name)

    def _requests(self, now: int) -> list[Request]:
        """Return the requests that have no answer yet; remove those to other keepers, and old answers."""
        found: list[Request] = []
        there = list(requests(self._disk))
        left = AT_ONCE
        for request in there:
            is_ours = request.life == self._begins.life
            if is_ours and request.word not in ANSWERS:
                found.append(request)
            elif left and (not is_ours or now - self._answered.setdefault(request.name, now) > _ANSWERED_US):
                left -= 1
                self._remove(request.name)
        names = {request.name for request in there}
        self._answered = {name: us for name, us in self._answered.items() if name in names}
        return found

    def _take(self, request: Request, worker: Worker | None) -> None:
        asked = self._asked.get(request.id)
        if asked is not None:
            if request.word != asked.kill.then:
                self._answer(request, Killed.OTHER)
            elif request not in asked.requests:
                asked.requests.append(request)
            return
        with self._lock:
            is_claimed = request.id in self._head.claims
        if not is_claimed:
            self._answer(request, Killed.ENDED)
        elif not self._begins.times.find([request.id]):
            self._answer(request, Killed.WAITING)
        elif worker is None:
            self._answer(request, Killed.PROGRAM)
        else:
            self._hand_on(request, worker)

    def _hand_on(self, request: Request, worker: Worker) -> None:
        then: Then = request.word  # type: ignore[assignment]  # the layout has no other word for a request
        kill = Kill(request.id, then)
        self._history.watched[request.id] = False  # before the attempt can end
        refused = worker.kill(kill)
        if refused:
            del self._history.watched[request.id]
            self._answer(request, refused)
        else:
            self._asked[request.id] = _Asked(kill, [request])

    def _answer_ended(self) -> None:
        """Answer the requests whose message is settled."""
        for id_, asked in list(self._asked.items()):
            if id_ not in self._head.claims:
                del self._asked[id_]
                was_cancelled = self._history.watched.pop(id_, False)
                answer = Killed.CANCELLED if was_cancelled else Killed.KILLED
                for request in asked.requests:
                    self._answer(request, answer if asked.kill.worked else Killed.ENDED)

    def _answer(self, request: Request, answer: str) -> None:
        """Put the answer in the place of a request; nothing if that was withdrawn."""
        name = f"{request.name.rpartition('.')[0]}.{answer}"
        with contextlib.suppress(FileNotFoundError):
            self._disk.rename(request.name, name)
            self._answered[name] = self._clock.steady_us()

    def _remove(self, name: str) -> None:
        self._answered.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(name)
