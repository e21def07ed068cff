"""What other processes see of a keeper, and ask of it: that it lives, what is claimed and runs, how the last messages
ended, and that a run is to be ended.

The housekeeper's thread calls `look` a few times a second. It copies references under the store's lock, and unpacks
and writes without it, so claims and acknowledgements do not wait for it. Two times are signs of life, in the note of
keeper.lock: when that thread last came around, and when the consumer last asked for work.
A request to end a run goes to the consumer, which ends the attempt (a process, a command, a coroutine) and settles the
message as the request says; the answer follows once the message is no longer claimed.
Invariant: an error here is logged once, and stops nothing.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from filewheel.disk.keeper_lock import KeeperLock
from filewheel.errors import Damaged
from filewheel.firing.begins import Begins
from filewheel.firing.head import Head
from filewheel.format.record import unpack_put
from filewheel.laps.store import Store
from filewheel.message import US_PER_S
from filewheel.runs.history import KEPT, History
from filewheel.runs.kills import ANSWERS, Killed, Request, requests
from filewheel.runs.run import PROGRAM, Kill, Place, Run, Then, Worker
from filewheel.runs.running import LISTED_MAX, remove_running, render, write_running

log = logging.getLogger(__name__)

INTERVAL_US = US_PER_S
REST_US = 5 * US_PER_S
"""How often an unchanged list is written, so that readers see that the process runs."""
BEAT_US = 5 * US_PER_S
"""How often the signs of life are written."""
KILLS_AT_ONCE = 100
"""How many requests are taken, and how many old files are removed, together."""
_LOOK_US = 200_000
_ANSWERED_US = 60 * US_PER_S
"""An answer that nobody has taken for so long is removed."""
_SEEN_MAX = 1 << 16
"""How many of the claimed messages are looked at."""
_SHARE = 50
"""The work here takes at most one part in so many of the time."""


@dataclass(slots=True)
class _Asked:
    """A kill that the consumer has, and the requests that wait for its end."""

    kill: Kill
    requests: list[Request]


class Observer:
    """Publishes the runs of one keeper. Belongs to the thread of the housekeeper, or of the one that closes."""

    def __init__(
        self, store: Store, head: Head, begins: Begins, lock: KeeperLock, history: int | None, *, is_used: bool
    ) -> None:
        """Keep the last `history` ends; None is the default. Unless it is used, nothing is published at the end."""
        kept = (KEPT if is_used else 0) if history is None else history
        self._store = store
        self._dir = store.dir
        self._clock = store.clock
        self._head = head
        self._begins = begins
        self.history = History(store.dir, kept, store.clock)
        self._is_used = is_used or kept > 0
        self._keeper_lock = lock
        self._turned_us: int | None = None
        """When the background thread last came around, by the steady clock; None before its first turn."""
        self._asked_us = store.clock.now_us()
        self._beat_us: int | None = None
        self.worker: Worker | None = None
        """The consumer, if it works on messages elsewhere."""
        self._due_us = 0
        self._wrote_us = 0
        self._last = ""
        self._is_empty = False
        """The list that was written last is empty."""
        self._failed = False
        self._looked_us: int | None = None
        """When it looked for kills."""
        self._asked: dict[bytes, _Asked] = {}
        self._answered: dict[str, int] = {}
        """Answers that nobody has removed yet, and when they were given."""

    def look(self) -> None:
        """Publish what is to be published now. Cost: mostly two readings of the clock."""
        now = self._turned_us = self._clock.steady_us()
        if self._beat_us is None or now - self._beat_us >= BEAT_US:
            self._beat_us = now
            self._keeper_lock.beat(self._clock.now_us(), self._asked_us)
        self._try(self._look_for_kills)
        now = self._clock.steady_us()
        if now >= self._due_us:
            self.publish()
            took = self._clock.steady_us() - now
            self._due_us = now + max(INTERVAL_US, took * _SHARE)

    def asked(self) -> None:
        """Note that the consumer asks for messages, or waits for some. Cost: one reading of the clock."""
        self._asked_us = self._clock.now_us()

    def stalled_s(self) -> float:
        """Return for how many seconds the background thread has not come around; 0 without one. Takes no lock."""
        turned_us = self._turned_us
        return 0.0 if turned_us is None else max(0, self._clock.steady_us() - turned_us) / US_PER_S

    def publish(self) -> None:
        """Write the ends so far, and the claimed messages. Raises nothing."""
        self._try(self._publish)

    def _publish(self) -> None:
        self.history.write(self._begins.times)
        with self._store.lock:
            claims = dict(islice(self._head.claims.items(), _SEEN_MAX))
            claimed = len(self._head.claims)
        self._begins.times.forget(self._head.claims)
        now = self._clock.steady_us()
        if not claims and self._last and self._is_empty:
            return
        runs, begun = self._runs(claims)
        content = render(runs[:LISTED_MAX], claimed, begun, self._begins.life)
        if content == self._last and now - self._wrote_us < REST_US:
            return
        self._is_empty = not claims
        self._write(content, now)

    def _write(self, content: str, now: int) -> None:
        try:
            write_running(self._dir, content, self._clock.now_us())
        except OSError as exc:
            if not self._failed:
                log.warning("%s: the list of what runs is not written; logged once: %s", self._dir.path, exc)
            self._failed, self._last = True, ""
            return
        self._failed, self._last, self._wrote_us = False, content, now

    def _runs(self, claims: dict[bytes, bytes]) -> tuple[list[Run], int]:
        """Return the first claimed messages, those that run first; and how many run."""
        began = self._begins.times.find(claims)
        begun = sorted(began, key=lambda id_: (began[id_], id_))
        waiting = (id_ for id_ in claims if id_ not in began)
        places: dict[bytes, Place] = {} if self.worker is None else dict(self.worker.places())
        made = []
        for id_ in [*begun[:LISTED_MAX], *islice(waiting, max(0, LISTED_MAX - len(begun)))]:
            try:
                message = unpack_put(claims[id_])
            except Damaged:  # set aside when it was handed out
                continue
            made.append(
                Run(
                    message.id,
                    message.root or message.id,
                    message.topic,
                    message.key,
                    message.due_us,
                    message.attempt,
                    *((began[id_][0], places.get(id_, PROGRAM)) if id_ in began else (None, None)),
                )
            )
        return made, len(begun)

    def close(self) -> None:
        """Write the last ends, and remove the list: nothing runs any more."""
        if self._is_used:
            self._try(self._end_kills)
            self._try(lambda: self.history.write(self._begins.times))
            remove_running(self._dir)

    def _try(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # a defect here must not end the keeper
            if not self._failed:
                log.exception("%s: what runs cannot be published; logged once", self._dir.path)
            self._failed = True

    # -- kills: a request is handed on only while its message is claimed and has begun -------------------------

    def _look_for_kills(self) -> None:
        """Take requests, and answer those that are done. Cost: a listing, five times a second. Raises OSError."""
        now = self._clock.steady_us()
        if self._looked_us is not None and now - self._looked_us < _LOOK_US:
            return
        self._looked_us = now
        for request in self._requests(now)[:KILLS_AT_ONCE]:
            self._take(request)
        self._answer_ended()

    def _end_kills(self) -> None:
        """Answer what is done, and remove the other requests: their askers see the keeper's end. Raises OSError."""
        self._answer_ended()
        for request in requests(self._dir.disk):
            if request.word not in ANSWERS:
                self._remove(request.name)

    def _requests(self, now: int) -> list[Request]:
        """Return the requests that have no answer yet; remove those to other keepers, and old answers."""
        found: list[Request] = []
        there = list(requests(self._dir.disk))
        left = KILLS_AT_ONCE
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

    def _take(self, request: Request) -> None:
        asked = self._asked.get(request.id)
        if asked is not None:
            if request.word != asked.kill.then:
                self._answer(request, Killed.OTHER)
            elif request not in asked.requests:
                asked.requests.append(request)
            return
        with self._store.lock:
            is_claimed = request.id in self._head.claims
        if not is_claimed:
            self._answer(request, Killed.ENDED)
        elif not self._begins.times.find([request.id]):
            self._answer(request, Killed.WAITING)
        elif self.worker is None:
            self._answer(request, Killed.PROGRAM)
        else:
            self._hand_on(request, self.worker)

    def _hand_on(self, request: Request, worker: Worker) -> None:
        then: Then = request.word  # type: ignore[assignment]  # the layout has no other word for a request
        kill = Kill(request.id, then)
        self.history.watched[request.id] = False  # before the attempt can end
        refused = worker.kill(kill)
        if refused:
            del self.history.watched[request.id]
            self._answer(request, refused)
        else:
            self._asked[request.id] = _Asked(kill, [request])

    def _answer_ended(self) -> None:
        """Answer the requests whose message is settled."""
        for id_, asked in list(self._asked.items()):
            if id_ not in self._head.claims:
                del self._asked[id_]
                was_cancelled = self.history.watched.pop(id_, False)
                answer = Killed.CANCELLED if was_cancelled else Killed.KILLED
                for request in asked.requests:
                    self._answer(request, answer if asked.kill.worked else Killed.ENDED)

    def _answer(self, request: Request, answer: str) -> None:
        """Put the answer in the place of a request; nothing if that was withdrawn."""
        name = f"{request.name.rpartition('.')[0]}.{answer}"
        with contextlib.suppress(FileNotFoundError):
            self._dir.disk.rename(request.name, name)
            self._answered[name] = self._clock.steady_us()

    def _remove(self, name: str) -> None:
        self._answered.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            self._dir.disk.unlink(name)
