"""A small web server for one node: `/metrics` for Prometheus, `/health` for whatever supervises it.

Owns one socket and its thread. It reads the node and changes nothing; it owns no signal.
Invariant: a slow or wrong client costs at most one thread of CLIENTS_MAX, for at most CLIENT_S; the service goes on.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Protocol, Self

from filewheel.checks import address_of, check_function
from filewheel.errors import BadArgument
from filewheel.kafka.node.health import NodeHealth
from filewheel.metrics.prometheus import Family, render, with_labels

log = logging.getLogger("filewheel.kafka")

CLIENT_S = 5.0
"""How long a client may take for its request, and for the answer."""
CLIENTS_MAX = 8


class Observed(Protocol):
    """What a service tells of itself."""

    def metrics(self) -> list[Family]: ...
    def health(self) -> NodeHealth: ...


class StatusServer:
    """Answers `/metrics` and `/health` until it is closed."""

    def __init__(self, address: str, *, metrics: Callable[[], str], health: Callable[[], NodeHealth]) -> None:
        """Listen; port 0 takes a free one (`port` says which). Raises BadArgument when the address cannot be used."""
        host, port = address_of(address)
        check_function("metrics", metrics)
        check_function("health", health)
        try:
            self._server = _Server(host, port, metrics, health)
        except OSError as exc:
            raise BadArgument(
                f"cannot listen at {host}:{port}: {exc.strerror or exc}", hint="choose another --listen address"
            ) from exc
        self.host = host
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.2,), name="filewheel-kafka-listen", daemon=True
        )
        self._thread.start()

    @classmethod
    def of(cls, service: Observed, address: str, *, labels: Mapping[str, str] | None = None) -> Self:
        """Listen for a service; each sample gets these labels. Raises BadArgument when the address cannot be used."""
        return cls(address, metrics=lambda: render(with_labels(service.metrics(), labels or {})), health=service.health)

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def clients(self) -> int:
        """How many clients are being answered."""
        return self._server.clients

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class _Server(ThreadingMixIn, HTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, metrics: Callable[[], str], health: Callable[[], NodeHealth]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.metrics = metrics
        self.health = health
        self.clients = 0
        self._lock = threading.Lock()
        super().__init__((host, port), _Request)

    def server_bind(self) -> None:
        """Bind without the look-up of the host's name that HTTPServer does."""
        super(HTTPServer, self).server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer on a thread of its own, if there is room; a client too many is hung up on."""
        with self._lock:
            has_room = self.clients < CLIENTS_MAX  # mutant: kafka-clients-without-limit
            self.clients += has_room
        if not has_room:
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one client."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self.clients -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no matter of ours."""
        log.debug("a client of /metrics went away", exc_info=True)


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = CLIENT_S
    server_version = "filewheel"
    sys_version = ""

    def do_GET(self) -> None:  # the name that http.server calls
        """Answer."""
        path = self.path.partition("?")[0]
        try:
            if path == "/metrics":
                self._answer(HTTPStatus.OK, self.server.metrics(), "text/plain; version=0.0.4; charset=utf-8")
            elif path == "/health":
                health = self.server.health()
                status = HTTPStatus.OK if health.is_serving else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, json.dumps(health.as_json()) + "\n", "application/json")
            else:
                self._answer(HTTPStatus.NOT_FOUND, "here are /metrics and /health\n", "text/plain; charset=utf-8")
        except OSError:
            raise
        except Exception:
            log.warning("%s cannot be answered", path, exc_info=True)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "see the log of the node\n", "text/plain; charset=utf-8")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
