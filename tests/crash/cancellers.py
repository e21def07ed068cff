"""Those that change their minds in the campaign of cancels: they enqueue, cancel, move and replace, by id and by key.

They do it through a Wheel, an AsyncWheel or a Scheduler, from one thread or several, and fork now and then.
Invariant: a call that ends a message is marked before it is tried, and when it has returned, with what it said.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filewheel.aio.wheel import AsyncWheel
from filewheel.errors import KeyHeld, NotFound
from filewheel.message import ARGS, Message
from filewheel.scheduling.call import pack_call
from filewheel.scheduling.scheduler import Scheduler
from filewheel.values import MSGPACK, unpack_call
from filewheel.wheel import Wheel
from tests.crash.actors import Actor

KEYS = 6
ENDING = 4
"""What has one of so many keys may be ended by key; what has another is moved at most."""
LATER_S = 3600
PROCESSES = 2
NO_MORE = 20
"""So often a producer forks at most, and its children not at all."""
SERIALS_EACH = 4000
TOPICS = ("threads", "limited", "rated", "processes", "many", "loop", "rated-loop")


def serial_of(message: Message) -> int:
    """Return the serial of a message, whether it is a call or not."""
    how = message.headers.get(ARGS)
    return int(message.payload) if how is None else int(unpack_call(message.payload, how)[0][0])


def word(how: Any) -> str:
    """Return the word of what a cancel came to: "stopped", "begun", "maybe begun"."""
    return str(how.value)


class InLoop:
    """The calls of an AsyncWheel, for threads: those that call at once share commits, as tasks do."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._wheel = AsyncWheel(path, sync="never")
        self.open()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._wheel, name)
        return lambda *args, **given: asyncio.run_coroutine_threadsafe(method(*args, **given), self._loop).result()


class Plain(Actor):
    """Enqueues messages, and cancels, moves and replaces its own and those of others."""

    is_call = False
    forks = 0

    def run(self) -> None:
        self.ids: list[tuple[str, int]] = []
        self.numbers = itertools.count(self.serial + self.forks * SERIALS_EACH + 1)  # none comes twice
        if self.forks:
            self.forks = NO_MORE
        self.looks = Wheel(self.path)
        self.wheel: Any = InLoop(self.path) if self.rng.random() < 0.3 else Wheel(self.path, sync="never")
        self.scheduler = Scheduler(self.path, sync="never") if self.is_call else None
        count = 1 if isinstance(self.wheel, Wheel) and self.rng.random() < 0.7 else 3
        if count > 1:
            self.forks = NO_MORE
        threads = [threading.Thread(target=self.go) for _ in range(count - 1)]
        for thread in threads:
            thread.start()
        self.go()
        for thread in threads:
            thread.join()
        self.wheel.close()

    def go(self) -> None:
        """Do one thing after the other until the time is up."""
        acts = [self.enqueue, self.enqueue, self.cancel, self.cancel_many, self.cancel_key, self.reschedule]
        acts += [self.reschedule_key, self.replace, self.update, self.put_many]
        try:
            while self.lasts():
                if self.rng.random() < 0.01 and self.forks < NO_MORE:
                    self.fork()
                else:
                    self.rng.choice(acts)()
                time.sleep(self.rng.random() * 0.008)
        except BaseException:
            self.marks.tell("error", traceback.format_exc())

    def fork(self) -> None:
        """Have a child go on with a handle of its own for a while."""
        self.forks += 1
        if os.fork():
            return
        try:
            self.until = min(self.until, time.monotonic() + 0.2)
            self.run()
        except BaseException:
            self.marks.tell("error", traceback.format_exc())
        finally:
            os._exit(0)

    # -- what is drawn -----------------------------------------------------------------------------------------

    def an_id(self) -> tuple[str, int] | None:
        """Draw a message: one of its own, or one that waits, whoever enqueued it."""
        if self.rng.random() < 0.25:
            found = list(self.looks.list(limit=30))
            if found:
                message = self.rng.choice(found)
                return str(message.id), serial_of(message)
        return self.rng.choice(self.ids[-60:]) if self.ids else None

    def a_key(self, count: int = ENDING) -> str:
        return f"k{self.rng.randrange(count)}"

    def delay(self) -> float:
        return self.rng.choice([0, 0, 0, 0.05, 0.3, LATER_S])

    def payload(self, serial: int) -> bytes:
        return pack_call([serial, PROCESSES], {})[0] if self.is_call else b"%d" % serial

    def topic(self) -> dict[str, Any]:
        return {"topic": self.rng.choice(TOPICS), "headers": {ARGS: MSGPACK}} if self.is_call else {}

    # -- what is enqueued --------------------------------------------------------------------------------------

    def put(self, key: str | None, on_conflict: str) -> None:
        """Enqueue one message; a key that is held is no error."""
        serial, given = next(self.numbers), {"delay": self.delay()}
        if key is not None:
            given |= {"key": key, "on_conflict": on_conflict}
        self.marks.tell("try-put", serial, key)
        since = time.monotonic_ns()
        with contextlib.suppress(KeyHeld):
            if self.scheduler is not None and self.rng.random() < 0.5:
                id_ = str(self.scheduler.enqueue(self.rng.choice(TOPICS), [serial, PROCESSES], **given))
            else:
                id_ = str(self.wheel.enqueue(self.payload(serial), **self.topic(), **given))
            self.came(serial, id_, key, on_conflict, since)

    def came(self, serial: int, id_: str, key: str | None, on_conflict: str, since: int) -> None:
        self.marks.tell("put", serial, id_, key, on_conflict, since=since)
        self.ids.append((id_, serial))

    def enqueue(self) -> None:
        for _ in range(self.rng.choice([1, 3, 8])):
            self.put(self.a_key(KEYS) if self.rng.random() < 0.3 else None, "reject")

    def put_many(self) -> None:
        """Enqueue several in one commit, some of which replace what has their key."""
        keys: list[str | None] = [f"k{n}" if self.rng.random() < 0.5 else None for n in range(ENDING)]
        serials = [next(self.numbers) for _ in keys]
        for serial, key in zip(serials, keys, strict=True):
            self.marks.tell("try-put", serial, key)
            if key is not None:
                self.marks.tell("try-end-key", key)
        since = time.monotonic_ns()
        payloads, delay = [self.payload(s) for s in serials], self.delay()
        made = self.wheel.enqueue_many(payloads, delay=delay, keys=keys, on_conflict="replace", **self.topic())
        for serial, id_, key in zip(serials, made, keys, strict=True):
            self.came(serial, str(id_), key, "reject" if key is None else "replace", since)

    def replace(self) -> None:
        key = self.a_key()
        self.marks.tell("try-end-key", key)
        self.put(key, "replace")

    def update(self) -> None:
        serial, key = next(self.numbers), self.a_key()
        self.marks.tell("try-end-key", key)
        self.marks.tell("try-put", serial, key)
        since = time.monotonic_ns()
        with contextlib.suppress(NotFound):
            id_ = str(self.wheel.update(key=key, payload=self.payload(serial), delay=self.delay()))
            self.came(serial, id_, key, "replace", since)

    # -- what is ended or moved --------------------------------------------------------------------------------

    def cancel(self) -> None:
        drawn = self.an_id()
        if drawn is not None:
            by = self.scheduler if self.scheduler is not None and self.rng.random() < 0.5 else self.wheel
            self.marks.tell("try-cancel", [drawn])
            since = time.monotonic_ns()
            done = by.cancel(drawn[0])
            self.marks.tell("cancel", [drawn], {drawn[0]: word(done)} if done else {}, since=since)

    def cancel_many(self) -> None:
        some = {d[0]: d for d in (self.an_id() for _ in range(6)) if d is not None}
        keys = [self.a_key()] if self.rng.random() < 0.3 else []
        for key in keys:
            self.marks.tell("try-end-key", key)
        self.marks.tell("try-cancel", list(some.values()))
        since = time.monotonic_ns()
        found = self.wheel.cancel_many(some, keys=keys)
        words = {str(id_): word(how) for id_, how in found.outcomes.items() if str(id_) in some}
        self.marks.tell("cancel", list(some.values()), words, since=since)
        for key in keys:
            self.marks.tell("cancel-key", key, since=since)

    def cancel_key(self) -> None:
        key = self.a_key()
        by = self.scheduler if self.scheduler is not None and self.rng.random() < 0.5 else self.wheel
        self.marks.tell("try-end-key", key)
        since = time.monotonic_ns()
        by.cancel(key=key)
        self.marks.tell("cancel-key", key, since=since)

    def reschedule(self) -> None:
        drawn = self.an_id()
        if drawn is not None:
            since = time.monotonic_ns()
            with contextlib.suppress(NotFound, KeyHeld):
                new = str(self.wheel.reschedule(drawn[0], delay=self.delay()))
                self.marks.tell("move", drawn[0], new, drawn[1], since=since)
                self.ids.append((new, drawn[1]))

    def reschedule_key(self) -> None:
        key = self.a_key(KEYS)
        since = time.monotonic_ns()
        with contextlib.suppress(NotFound):
            self.wheel.reschedule(key=key, delay=self.delay())
            self.marks.tell("move-key", key, since=since)


class OfCalls(Plain):
    """The same with calls of handlers."""

    is_call = True
