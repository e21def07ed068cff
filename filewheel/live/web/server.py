"""Serves the page with uvicorn, on a thread of its own, until it is stopped.

Owns one socket and one thread; it owns no signal. The streams end with it.
Invariant: it listens before `Server(...)` returns, and nothing of it runs after `stop` returned.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from filewheel.checks import address_of
from filewheel.errors import BadArgument
from filewheel.live.web.access import Access
from filewheel.live.web.app import WebPage
from filewheel.live.wheel_view import WheelView

CONNECTIONS_MAX = 128
REQUEST_S = 10.0
"""So long a client may take to send a request."""
STOP_S = 5
_BACKLOG = 128


class _Connection(H11Protocol):
    """Closes after REQUEST_S without a whole request; earlier when others need its place."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self.loop.call_later(REQUEST_S, self._look)
        if len(self.connections) >= CONNECTIONS_MAX:
            waiting = [one for one in self.connections if isinstance(one, _Connection) and one.waits]
            oldest = min(waiting, key=lambda one: one._waits_since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def waits(self) -> bool:
        """Whether the client has not sent a whole request."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def on_response_complete(self) -> None:
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        left_s = self._waits_since + REQUEST_S - self.loop.time() if self.waits else REQUEST_S
        if left_s <= 0:
            self.transport.abort()
        else:
            self.loop.call_later(left_s, self._look)


class _Uvicorn(uvicorn.Server):
    """Ends the streams before it waits for the last answers."""

    def __init__(self, config: uvicorn.Config, page: WebPage) -> None:
        super().__init__(config)
        self._page = page

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._page.streams.end()
        await super().shutdown(sockets)


class Server:
    """One page that listens. Use it in a `with`, or stop it."""

    def __init__(
        self,
        view: WheelView,
        address: str = "127.0.0.1:8642",
        *,
        token: str | None = None,
        names: tuple[str, ...] = (),
        is_open: bool = False,
        acts: bool = True,
    ) -> None:
        """Listen; port 0 takes a free one (`port` says which).

        Raises BadArgument: the address cannot be used, or may not be without a token (see Access).
        """
        host, port = address_of(address)
        access = Access(host, token=token, names=names, is_open=is_open, acts=acts)
        self._page = WebPage(view, access)
        self._socket = _bound(host, port)
        self.host: str = host
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._page,
            lifespan="off",
            ws="none",
            http=_Connection,
            loop="asyncio",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=round(REQUEST_S),
            timeout_graceful_shutdown=STOP_S,
            proxy_headers=False,
        )
        self._server = _Uvicorn(config, self._page)
        self._thread = threading.Thread(target=self._run, name="filewheel-web", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where it answers."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def stop(self) -> None:
        """End the streams, answer what was asked, and close. Stopping twice is fine."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self._page.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises BadArgument."""
    try:
        kind, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(kind, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(where)
            found.listen(_BACKLOG)
        except BaseException:
            found.close()
            raise
    except OSError as exc:
        raise BadArgument(
            f"cannot listen at {host}:{port}: {exc.strerror or exc}", hint="choose another --listen address"
        ) from exc
    return found
