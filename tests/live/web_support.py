"""A page that listens, and a client that says exactly what a test wants."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")

from filewheel.live.web import Server
from filewheel.live.wheel_view import WheelView

TOKEN = "correct-horse-battery"


@dataclass
class Answer:
    """What a page answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Talks to one page."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = server.port

    def ask(self, path: str, method: str = "GET", body: Any = None, token: str = "", **headers: str) -> Answer:
        """Ask once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            named["Authorization"] = f"Bearer {token}"
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            named.setdefault("Content-Type", "application/json")
        with contextlib.closing(connection):
            connection.request(method, path, data, named)
            found = connection.getresponse()
            return Answer(found.status, {k.lower(): v for k, v in found.getheaders()}, found.read())

    def get(self, path: str, **options: Any) -> Any:
        """Return the JSON of a path."""
        found = self.ask(path, **options)
        assert found.status == 200, found
        return found.json

    def act(self, verb: str, *ids: object, token: str = TOKEN, **fields: Any) -> Answer:
        """Propose or do an act."""
        return self.ask(f"/api/acts/{verb}", "POST", {"ids": [str(id_) for id_ in ids], **fields}, token)


@contextlib.contextmanager
def page(path: Path, **options: Any) -> Iterator[Client]:
    """Serve a wheel at a free port; open, unless it is told otherwise."""
    options.setdefault("is_open", True)
    with WheelView(path) as view, Server(view, options.pop("address", "127.0.0.1:0"), **options) as server:
        yield Client(server)


class Events:
    """An open stream of events."""

    def __init__(self, client: Client, token: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
        self._connection.request("GET", "/api/events", headers={"Authorization": f"Bearer {token}"} if token else {})
        self.response = self._connection.getresponse()

    def next(self) -> tuple[str, Any]:
        """Return the next event; raise EOFError at the end."""
        name = self.response.readline().decode().strip()
        if not name:
            raise EOFError
        data = self.response.readline().decode().strip()
        assert self.response.readline() == b"\n"
        return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))

    def close(self) -> None:
        """Leave."""
        self.response.close()
        self._connection.close()
