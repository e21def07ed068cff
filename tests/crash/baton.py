"""Threads that take turns: one runs at a time, and the next one does where that one would sleep.

So a service with threads makes the same calls in the same order each time, and each of them can be failed. A thread
that is started runs for the first time when it gets its turn; who waits for an event, or for a thread, gives the turn
away.
Invariant: only the thread that has the turn runs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import filewheel.sets.peers
import filewheel.sets.replicator
from filewheel import env
from filewheel.disk.threads import started


class Baton:
    """Whose turn it is. Made by the thread that has it first."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._order: list[object] = [threading.current_thread()]

    def pass_on(self) -> None:
        """Let every other thread have its turn, and come back."""
        me = threading.current_thread()
        with self._changed:
            self._order.append(self._order.pop(0))
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._order[0] is me)

    def runs(self, thread: object) -> bool:
        """Tell whether a thread was started and has not ended."""
        return thread in self._order

    def start(self, thread: threading.Thread) -> threading.Thread:
        """Start a thread, which waits for its turn. Raises OSError."""
        run = thread.run

        def take_turns() -> None:
            with self._changed:
                self._changed.wait_for(lambda: self._order[0] is thread)
            try:
                run()
            finally:
                with self._changed:
                    self._order.remove(thread)
                    self._changed.notify_all()

        thread.run = take_turns  # type: ignore[method-assign]
        self._order.append(thread)
        try:
            return started(thread)
        except OSError:
            self._order.remove(thread)
            raise

    def join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        """Wait until a thread has ended."""
        while self.runs(thread):
            self.pass_on()


@contextlib.contextmanager
def in_turns(on_sleep: Callable[[], None]) -> Iterator[None]:
    """Let the threads of a replicator take turns with the calling one; `on_sleep` is called before that one sleeps."""
    baton, caller = Baton(), threading.current_thread()
    is_told = False

    class Event(env.Event):
        def wait(self, timeout_s: float | None = None) -> bool:
            nonlocal is_told
            if threading.current_thread() is caller and not is_told:
                is_told = True  # what it does may sleep as well
                try:
                    on_sleep()
                finally:
                    is_told = False
            baton.pass_on()
            return self.is_set()

    module: Any = filewheel.sets.replicator
    service = module._Service
    patches: list[tuple[Any, str, Any]] = [
        (module, "Event", Event),
        (filewheel.sets.peers, "Event", Event),
        (module, "started", baton.start),
        (service, "join", lambda thread, timeout=None: baton.join(thread)),
        (service, "is_alive", lambda thread: baton.runs(thread)),
    ]
    before = [(target, name, target.__dict__.get(name)) for target, name, _ in patches]
    try:
        for target, name, value in patches:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in before:
            if value is None:
                delattr(target, name)
            else:
                setattr(target, name, value)
