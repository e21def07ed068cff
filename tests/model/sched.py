"""A seeded scheduler: actors run one at a time, and may be exchanged at every disk call.

The library's code runs unchanged in threads that hand a baton on; which thread goes next at each disk call is drawn
from the seed, so any interleaving can be had again. The library's locks are replaced by ones that know the scheduler
(`ModelThreading` stands in for the `threading` module in the modules under test), because a real lock held by an
actor that was exchanged would stop the world.
Invariant: at any moment one actor runs; everything else waits for its own baton.
"""

from __future__ import annotations

import contextlib
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tests.model.process import Killed

_current: Scheduler | None = None


class Process(Protocol):
    """What lives until it is killed: a process with one disk, or with several."""

    alive: bool

    def kill(self) -> None: ...


class Actor:
    """One thread of one process."""

    def __init__(self, name: str, process: Process, body: Callable[[], None]) -> None:
        self.name = name
        self.process = process
        self.body = body
        self.baton = threading.Lock()
        self.baton.acquire()
        self.waiting: Callable[[], bool] | None = None
        """While set, the actor is not exchanged in before this holds."""
        self.done = False
        self.error: BaseException | None = None
        self.thread: threading.Thread | None = None


class Scheduler:
    """Runs actors one at a time."""

    def __init__(self, rng: random.Random, *, switch: float = 0.3) -> None:
        self.rng = rng
        self.switch_probability = switch
        self.actors: list[Actor] = []
        self.running: Actor | None = None
        self.switches = 0
        self.at_locks = False
        """Exchange actors at every lock of the library too, before it is taken and after it is released."""
        self._main = threading.Lock()
        self._main.acquire()

    def spawn(self, name: str, process: Process, body: Callable[[], None]) -> Actor:
        """Add an actor; it starts when it is first chosen."""
        actor = Actor(name, process, body)
        self.actors.append(actor)
        actor.thread = threading.Thread(target=self._run, args=(actor,), name=name, daemon=True)
        actor.thread.start()
        return actor

    def _run(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if actor.process.alive:
                actor.body()
        except Killed:
            pass
        except BaseException as exc:
            actor.error = exc
            actor.process.kill()  # or whoever waits for its locks would hide what went wrong
        actor.done = True
        with contextlib.suppress(Killed):
            self._hand_on(None)

    def run(self) -> None:
        """Run until every actor is done; raise what the first that failed raised."""
        global _current
        before, _current = _current, self
        try:
            self._hand_on(None)
            self._main.acquire()
        finally:
            _current = before
        for actor in self.actors:
            if actor.error is not None:
                raise actor.error

    def _choose(self, other_than: Actor | None = None) -> Actor | None:
        ready = [
            a
            for a in self.actors
            if not a.done and a is not other_than and (a.waiting is None or not a.process.alive or a.waiting())
        ]
        return self.rng.choice(ready) if ready else None

    def _hand_on(self, me: Actor | None, *, must: bool = False) -> None:
        """Let another actor run; return when it is this one's turn again."""
        chosen = self._choose(me if must else None)
        if chosen is None:
            if any(not a.done for a in self.actors) and (me is None or must):
                stuck = ", ".join(a.name for a in self.actors if not a.done)
                for actor in self.actors:
                    actor.error = actor.error or (None if actor.done else DeadlockError(f"deadlock: {stuck}"))
                    actor.process.alive = False
                self._main.release()
                raise Killed
            if all(a.done for a in self.actors):
                self._main.release()
            return
        self.running = chosen
        if chosen is me:
            return
        self.switches += 1
        chosen.baton.release()
        if me is not None:
            me.baton.acquire()
            if not me.process.alive:
                raise Killed

    def yield_(self) -> None:
        """A point where another actor may run."""
        me = self.running
        if me is None or threading.current_thread() is not me.thread:
            return
        if self.rng.random() < self.switch_probability:
            self._hand_on(me)

    def yield_at_lock(self) -> None:
        """A lock of the library: a point where another actor may run, in histories that ask for it."""
        if self.at_locks:
            self.yield_()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Let others run until the condition holds."""
        me = self.running
        assert me is not None
        me.waiting = condition
        try:
            while not condition():
                self._hand_on(me, must=True)
        finally:
            me.waiting = None


class DeadlockError(AssertionError):
    """Nobody can run on."""


def current() -> Scheduler | None:
    """Return the scheduler of the present thread, if it is one of its actors."""
    sched = _current
    if sched is None or sched.running is None or threading.current_thread() is not sched.running.thread:
        return None
    return sched


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Run code inline, outside of the scheduler: for checks in the middle of a history."""
    global _current
    before, _current = _current, None
    try:
        yield
    finally:
        _current = before


class ModelRLock:
    """A re-entrant lock that lets the scheduler run others while it waits."""

    def __init__(self) -> None:
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        sched = current()
        if sched is not None:
            sched.yield_at_lock()
        me = sched.running if sched else "inline"
        if self._owner is not None and self._owner is not me:
            if not blocking:
                return False
            assert sched is not None, "an inline check met a lock that is held"
            sched.wait_for(lambda: self._owner is None)
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._owner = None
            sched = current()
            if sched is not None:
                sched.yield_at_lock()

    def _is_owned(self) -> bool:
        sched = current()
        return self._count > 0 and self._owner is (sched.running if sched else "inline")

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *args: object) -> None:
        self.release()


class ModelCondition:
    """A condition over a ModelRLock."""

    def __init__(self, lock: ModelRLock) -> None:
        self._lock = lock
        self._notified = 0

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *args: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        sched = current()
        assert sched is not None, "an inline check would wait for ever"
        count, self._lock._count, self._lock._owner = self._lock._count, 0, None
        seen = self._notified
        try:
            if timeout is None:
                sched.wait_for(lambda: self._notified != seen)
            else:
                sched._hand_on(sched.running)
        finally:
            me = sched.running
            if me is not None and me.process.alive:
                sched.wait_for(lambda: self._lock._owner is None)
            self._lock._owner, self._lock._count = me, count
        return True

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            self.wait()
        return True

    def notify_all(self) -> None:
        self._notified += 1

    notify = notify_all


class ModelEvent:
    """An event; who waits for it lets others run once, as if the time were up then."""

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout: float | None = None) -> bool:
        sched = current()
        if sched is not None and not self._set:
            sched._hand_on(sched.running)
        return self._set


class ModelThread:
    """A thread of the library's own: an actor of the process that started it."""

    def __init__(
        self,
        target: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self._call = lambda: target(*args, **(kwargs or {}))
        self._name = name
        self._actor: Actor | None = None

    def start(self) -> None:
        sched = current()
        if sched is None:
            self._call()
            return
        assert sched.running is not None
        self._actor = sched.spawn(self._name, sched.running.process, self._call)

    def is_alive(self) -> bool:
        return self._actor is not None and not self._actor.done

    def join(self, timeout: float | None = None) -> None:
        sched, actor = current(), self._actor
        if actor is not None and sched is not None:
            sched.wait_for(lambda: actor.done)


ModelThreading = types.SimpleNamespace(
    RLock=ModelRLock,
    Lock=ModelRLock,
    Condition=ModelCondition,
    Thread=ModelThread,
    Event=ModelEvent,
    current_thread=threading.current_thread,
    main_thread=threading.main_thread,
    get_ident=threading.get_ident,
)
