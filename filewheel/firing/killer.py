"""Ends runs on request: takes the requests to this keeper, hands them to the consumer, and answers when all is written.

The housekeeper's thread calls `look`. The consumer ends the attempt (a process, a command, a coroutine) and settles the
message as the request says; the answer follows once the message is no longer claimed.
Invariant: a request is handed on only while its message is claimed and has begun.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from filewheel.firing.begins import Begins
from filewheel.firing.head import Head
from filewheel.laps.store import Store
from filewheel.runs.history import History
from filewheel.runs.kills import KillBox, Killed, Request
from filewheel.runs.run import Kill, Then, Worker

LOOK_US = 200_000


@dataclass(slots=True)
class _Asked:
    """A kill that the consumer has, and the requests that wait for its end."""

    kill: Kill
    requests: list[Request] = field(default_factory=list)


class Killer:
    """The kills of one keeper. Belongs to the housekeeper's thread, or to the one that closes."""

    def __init__(self, store: Store, head: Head, begins: Begins, history: History) -> None:
        self._clock = store.clock
        self._lock = store.lock
        self._head = head
        self._begins = begins
        self._history = history
        self._box = KillBox(store.dir, begins.life)
        self._looked_us: int | None = None
        self._asked: dict[bytes, _Asked] = {}

    def look(self, worker: Worker | None) -> None:
        """Take requests, and answer those that are done. Cost: a listing, five times a second. Raises OSError."""
        now = self._clock.steady_us()
        if self._looked_us is not None and now - self._looked_us < LOOK_US:
            return
        self._looked_us = now
        for request in self._box.take():
            self._take(request, worker)
        self._answer()

    def close(self) -> None:
        """Answer what is done, and remove the other requests. Raises OSError."""
        self._answer()
        self._box.close()

    def _answer(self) -> None:
        """Answer the requests whose message is settled."""
        for id_, asked in list(self._asked.items()):
            if id_ not in self._head.claims:
                del self._asked[id_]
                was_cancelled = self._history.watched.pop(id_, False)
                answer = Killed.CANCELLED if was_cancelled else Killed.KILLED
                for request in asked.requests:
                    self._box.answer(request, answer if asked.kill.worked else Killed.ENDED)

    def _take(self, request: Request, worker: Worker | None) -> None:
        asked = self._asked.get(request.id)
        if asked is not None:
            if request.word != asked.kill.then:
                self._box.answer(request, Killed.OTHER)
            elif request not in asked.requests:
                asked.requests.append(request)
            return
        with self._lock:
            is_claimed = request.id in self._head.claims
        if not is_claimed:
            self._box.answer(request, Killed.ENDED)
        elif not self._begins.times.find([request.id]):
            self._box.answer(request, Killed.WAITING)
        elif worker is None:
            self._box.answer(request, Killed.PROGRAM)
        else:
            self._hand_on(request, worker)

    def _hand_on(self, request: Request, worker: Worker) -> None:
        then: Then = request.word  # type: ignore[assignment]  # the layout has no other word for a request
        kill = Kill(request.id, then)
        self._history.watched[request.id] = False  # before the attempt can end
        refused = worker.kill(kill)
        if refused:
            del self._history.watched[request.id]
            self._box.answer(request, refused)
        else:
            self._asked[request.id] = _Asked(kill, [request])
