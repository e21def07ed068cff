"""Group commit for messages with keys: concurrent threads share one lookup, one flush of the index and one frame.

One thread leads. It writes for all waiting threads, releases them, and passes the lead to the first one that arrived
since. Each then waits for the flush of the frame by itself, which the journal shares. The main thread takes no part:
Ctrl-C and signal handlers can interrupt it anywhere, and other threads would lose their results.
Invariant: while a call waits, a thread leads that will write it or make it the leader.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from filewheel.disk.threads import reentered
from filewheel.env import Event
from filewheel.errors import FilewheelError, KeyHeld, Locked, anew
from filewheel.journal.journal import BATCH_BYTES, Journal
from filewheel.keys.index import Keys
from filewheel.keys.unique import Ask, put_all
from filewheel.message import MessageId

Made = tuple[list[MessageId | KeyHeld | Locked], int | None]
"""The result of `unique.put_all`."""


class _Call:
    """The messages of one call, until its result is known."""

    def __init__(self, asks: Sequence[Ask], durable: bool, all_or_none: bool) -> None:
        self.asks = asks
        self.durable = durable
        self.all_or_none = all_or_none
        self.bytes = sum(len(ask.rest) for ask in asks)
        self.leads = False
        self.made: Made | None = None
        self.error: Exception | None = None
        self.gate = Event()
        """Set when the call was written, or leads."""

    @property
    def is_done(self) -> bool:
        return self.made is not None or self.error is not None


class GroupCommit:
    """Writes messages with keys into one journal. Thread-safe."""

    def __init__(self, keys: Keys, path: str) -> None:
        self._keys = keys
        self._path = path
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._is_led = False
        self._inside: set[int] = set()
        """The threads inside a call: a destructor may start a second call within one."""

    def put(
        self, journal: Journal, asks: Sequence[Ask], now_us: int, *, durable: bool, all_or_none: bool = False
    ) -> Made:
        """Write messages as `unique.put_all` does, together with those of other threads.

        Raises the errors of `put_all` for these messages, and Reentered.
        """
        me = threading.get_ident()
        if me == threading.main_thread().ident:
            return put_all(
                self._keys, journal, asks, now_us=now_us, path=self._path, durable=durable, all_or_none=all_or_none
            )
        if me in self._inside:
            raise reentered(self._path)
        call = _Call(asks, durable, all_or_none)
        self._inside.add(me)
        try:
            with self._lock:
                self._waiting.append(call)
                call.leads = not self._is_led
                self._is_led = True
            if not call.leads:
                while not call.gate.is_set():
                    call.gate.wait()
            if not call.is_done:
                self._write(self._take(call), journal, now_us)
        finally:
            self._leave(call)
            self._inside.discard(me)
        if call.error is not None:
            raise anew(call.error)
        assert call.made is not None
        return call.made

    def _take(self, call: _Call) -> list[_Call]:
        """Take the waiting calls to be written with this one, up to one frame. A call that is all or none is alone."""
        with self._lock:
            taken = [call]
            size = call.bytes
            for other in self._waiting:
                # mutant: key-group-mixed
                if other is call or other.all_or_none or call.all_or_none or size + other.bytes > BATCH_BYTES:
                    continue
                taken.append(other)  # mutant: key-group-apart
                size += other.bytes
            self._waiting = [other for other in self._waiting if other not in taken]
        return taken

    def _write(self, calls: Sequence[_Call], journal: Journal, now_us: int) -> None:
        """Write calls, and release the threads that wait for them."""
        try:
            try:
                self._write_some(calls, journal, now_us)
            except Exception as exc:
                if len(calls) == 1:
                    calls[0].error = anew(exc)  # without the frames of this thread
                    return
                # A bad file of keys fails only the calls that need it.
                for call in calls:
                    try:  # mutant: key-group-fails
                        self._write_some([call], journal, now_us)
                    except Exception as own:
                        call.error = anew(own)
        finally:
            for call in calls:
                if not call.is_done:
                    call.error = _unknown(self._path)  # mutant: key-group-untold
                call.gate.set()

    def _write_some(self, calls: Sequence[_Call], journal: Journal, now_us: int) -> None:
        asks = [ask for call in calls for ask in call.asks]
        made, ticket = put_all(
            self._keys,
            journal,
            asks,
            now_us=now_us,
            path=self._path,
            durable=any(call.durable for call in calls),
            all_or_none=calls[0].all_or_none,
        )
        at = 0
        for call in calls:
            call.made = made[at : at + len(call.asks)], ticket
            at += len(call.asks)

    def _leave(self, call: _Call) -> None:
        """End a call, also after an error; if it led, pass the lead on."""
        with self._lock:
            if call in self._waiting:
                self._waiting.remove(call)
            if not call.leads:
                return
            self._is_led = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].gate.set()


def _unknown(path: str) -> FilewheelError:
    return FilewheelError(
        "the thread that wrote for this one was interrupted; this message may be enqueued or not",
        path=path,
        hint='enqueue it again with on_conflict="keep"',
    )
