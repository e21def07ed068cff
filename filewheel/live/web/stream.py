"""What changes, sent to a page as it changes: server-sent events over one answer that does not end.

Each second an event `live`, and an event `ahead` when the time ahead was counted again; `trouble` when the wheel cannot
be read, which is no end: the next second looks again. A viewer that is gone, or takes nothing for SEND_S, loses its
place; a page that is hidden closes its stream by itself.
Invariant: at most STREAMS_MAX streams are open, and none outlives the server or LIFE_S.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

from filewheel.env import Clock
from filewheel.errors import FilewheelError
from filewheel.live.overview import ahead_fields, live_fields
from filewheel.live.web.answers import error_fields, failed, to_bytes
from filewheel.live.web.reads import Reads
from filewheel.live.wheel_view import WheelView
from filewheel.message import US_PER_S

STREAMS_MAX = 16
EACH_S = 1.0
SEND_S = 20.0
LIFE_S = 3600.0
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # nginx must not hold it back
]


class Streams:
    """The open streams of one page."""

    def __init__(self, view: WheelView, reads: Reads) -> None:
        self._view = view
        self._reads = reads
        self._ending = asyncio.Event()
        self.open = 0

    def end(self) -> None:
        """End all streams, and every later one. For the thread of the event loop."""
        self._ending.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, until the viewer leaves."""
        if self.open >= STREAMS_MAX:
            refusal = failed(
                503, "busy", f"{STREAMS_MAX} viewers have this page open already", "close another one, and reload"
            )
            await refusal(scope, receive, send)
            return
        self.open += 1
        try:
            await self._answer(receive, send)
        finally:
            self.open -= 1

    async def _answer(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        gone = asyncio.create_task(_gone(receive))
        ending = asyncio.create_task(self._ending.wait())
        try:
            async for event in self._events(gone, ending):
                body = {"type": "http.response.body", "body": event, "more_body": True}
                await asyncio.wait_for(send(body), SEND_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SEND_S)
        except TimeoutError:
            pass  # it takes nothing: leave it
        finally:
            gone.cancel()
            ending.cancel()

    async def _events(self, gone: asyncio.Task[None], ending: asyncio.Task[bool]) -> AsyncIterator[bytes]:
        """Yield events until the viewer has gone, or the server ends."""
        clock: Clock = self._view.clock
        end_us = clock.steady_us() + round(LIFE_S * US_PER_S)
        counted = ""
        while clock.steady_us() < end_us:
            try:
                yield _event("live", await self._reads.run(lambda: live_fields(self._view)))
                ahead = await self._reads.run(lambda: ahead_fields(self._view))
                if ahead["now"] != counted:
                    counted = ahead["now"]
                    yield _event("ahead", ahead)
            except FilewheelError as exc:
                yield _event("trouble", error_fields(exc))
            done, _ = await asyncio.wait((gone, ending), timeout=EACH_S, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return


def _event(name: str, fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_bytes(fields))


async def _gone(receive: Receive) -> None:
    """Return when the viewer has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
