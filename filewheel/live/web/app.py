"""The page as an ASGI application: which address answers what.

A program of your own may mount it below a path; `server` runs it alone. All reads go through one WheelView, all acts
through `acts`. A GET changes nothing; an act is a POST with the token, and is only proposed until it says `confirm`.
Invariant: every request passes `Access` before it reaches the wheel, and every answer has the headers of `SECURITY`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import BadArgument, Damaged, FilewheelError, NotFound
from filewheel.format.pauses import Pauses
from filewheel.live.acts import Act, Done, Proposal, perform, propose
from filewheel.live.all_metrics import scrape
from filewheel.live.backups import set_fields
from filewheel.live.health import MAX_LAG_S
from filewheel.live.message_fields import whole_fields
from filewheel.live.overview import ahead_fields, live_fields
from filewheel.live.pages import Query
from filewheel.live.pause_fields import held_fields
from filewheel.live.pausing import PAUSE_VERBS, PauseAct, PauseDone, PauseProposal, perform_pause, propose_pause
from filewheel.live.run_fields import ended_fields, run_fields, running_fields
from filewheel.live.web.access import Access
from filewheel.live.web.answers import SECURITY, answer, error, error_fields, failed, refused
from filewheel.live.web.reads import Reads
from filewheel.live.web.stream import Streams
from filewheel.live.wheel_view import WheelView
from filewheel.message import US_PER_S, MessageId, to_datetime
from filewheel.runs.run import Running
from filewheel.timespec import at_us, parse_time
from filewheel.wheel import Wheel

log = logging.getLogger("filewheel.live.web")

BODY_BYTES_MAX = 1 << 16
"""The largest body of an act."""
TEXT_MAX = 1024
"""The longest parameter."""
_KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OPEN = ("/", "/healthz", "/api/access")
"""What is answered without the token: it holds nothing of the wheel."""


def make_app(
    path: str | os.PathLike[str], *, access: Access | None = None, force: bool = False, env: Env = SYSTEM
) -> ASGIApp:
    """Return the page of the wheel at `path`, to mount in a program of your own or to run with an ASGI server.

    Without `access` it is read-only, and answers only to the names of this machine. Mount it below a path that ends
    with a slash. Raises BadArgument.
    """
    return WebPage(WheelView(path, force=force, env=env), Access(is_open=True) if access is None else access)


async def _no_page(request: Request, exc: Exception) -> Response:
    return failed(404, "not-found", "there is no such page; docs/live.md lists them")


async def _no_method(request: Request, exc: Exception) -> Response:
    return failed(405, "bad-argument", f"this page does not take {request.method}")


class WebPage:
    """The application."""

    def __init__(self, view: WheelView, access: Access) -> None:
        self.view = view
        self._access = access
        self._reads = Reads()
        self.streams = Streams(view, self._reads)
        self._files = _files()
        self._app = Starlette(
            routes=self._routes(), lifespan=self._lifespan, exception_handlers={404: _no_page, 405: _no_method}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, with the headers that protect the page."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in SECURITY.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        where = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        is_open = where in _OPEN or where.startswith("/static/")
        refusal = self._access.refusal(scope["method"], headers, is_shell=is_open)
        try:
            await (self._app if refusal is None else refused(refusal))(scope, receive, protected)
        except Exception:
            log.warning("%s cannot be answered", where, exc_info=True)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()

    def close(self) -> None:
        """End the streams and close the wheel. For the thread of the event loop."""
        self.streams.end()
        self._reads.close()
        self.view.close()

    def _routes(self) -> list[Route]:
        return [
            Route("/", self._index),
            Route("/static/{name}", self._static),
            Route("/api/access", self._show_access),
            Route("/api/live", self._read(lambda request: live_fields(self.view))),
            Route("/api/ahead", self._read(lambda request: ahead_fields(self.view))),
            Route("/api/events", self.streams, methods=["GET"]),
            Route("/api/messages", self._read(self._messages)),
            Route("/api/messages/{id}", self._read(self._message)),
            Route("/api/schedules", self._read(self._schedules)),
            Route("/api/topics", self._read(self._topics)),
            Route("/api/backups", self._read(self._backups)),
            Route("/api/running", self._read(self._running)),
            Route("/api/history", self._read(self._history)),
            Route("/api/acts/{verb}", self._act, methods=["POST"]),
            Route("/metrics", self._metrics),
            Route("/healthz", self._health),
        ]

    # -- the page ------------------------------------------------------------------------------------------------

    async def _index(self, request: Request) -> Response:
        return self._file("index.html")

    async def _static(self, request: Request) -> Response:
        return self._file(request.path_params["name"])

    def _file(self, name: str) -> Response:
        if name not in self._files:
            return failed(404, "not-found", "there is no such file")
        kind = _KINDS[os.path.splitext(name)[1]]
        return Response(self._files[name], media_type=f"{kind}; charset=utf-8")

    async def _show_access(self, request: Request) -> Response:
        has_token = self._access.has_token(request.headers)
        return answer(
            {
                "acts": self._access.may_act,
                "token": has_token,
                "reads": has_token or self._access.reads_freely,
            }
        )

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self, function: Callable[[Request], Mapping[str, Any]]) -> Callable[[Request], Any]:
        """Return an endpoint that answers what a function reads on a thread."""

        async def endpoint(request: Request) -> Response:
            try:
                return answer(await self._reads.run(lambda: function(request)))
            except FilewheelError as exc:
                return error(exc)

        return endpoint

    def _messages(self, request: Request) -> Mapping[str, Any]:
        """Return a page; by an id or a key that `find` names, that message alone."""
        given = _parameters(request, "find", "from", "until", "dead", "after", "limit")
        query = _query(given, self.view.now_us())
        found = given.get("find", "")
        exact = self._exact(found) if found and query.after is None else None
        if exact is not None:
            return {"exact": whole_fields(exact), **_NO_PAGE}
        return {"exact": None, **self.view.page(query).to_json(self.view.now_us(), self._runs(), self._pauses())}

    def _runs(self) -> Running:
        """Return what runs; nothing where that cannot be read, which /api/running says."""
        with contextlib.suppress(Damaged):
            return self.view.running().value
        return Running()

    def _pauses(self) -> Pauses:
        """Return what is paused; nothing where that cannot be read, which /api/live says."""
        with contextlib.suppress(Damaged):
            return self.view.paused()
        return Pauses()

    def _exact(self, text: str) -> Any:
        """Return the message that this id or this key names."""
        with contextlib.suppress(BadArgument):
            return self.view.message(MessageId.parse(text))
        with contextlib.suppress(BadArgument):
            return self.view.message(key=text)
        return None

    def _message(self, request: Request) -> Mapping[str, Any]:
        """Return one message with its state; of one that is not pending, how its attempts ended."""
        id_ = MessageId.parse(request.path_params["id"])
        message = self.view.message(id_)
        past = [ended_fields(ended) for ended in self.view.history(id_=id_, limit=_PAST_MAX)]
        if message is None and not past:
            raise NotFound(f"{id_} is not pending: it fired, was cancelled or moved", path=self.view.path)
        running = self._runs()
        now_us = self.view.now_us()
        run = running.find(id_)
        return {
            "now_us": now_us,
            "message": None if message is None else whole_fields(message),
            "state": None if message is None or message.is_dead else running.pending_state(id_),
            "run": None if run is None else run_fields(run, now_us),
            "history": past,
            **({} if message is None else held_fields(message, self._pauses())),
        }

    def _schedules(self, request: Request) -> Mapping[str, Any]:
        seen = self.view.schedules()
        return seen.value.to_json(self._pauses()) | self._age(seen.at_us, seen.took_us)

    def _topics(self, request: Request) -> Mapping[str, Any]:
        seen = self.view.topics()
        most = sorted(seen.value.items(), key=lambda item: (-item[1], item[0]))
        shown = [{"topic": topic, "pending": number} for topic, number in most[:_TOPICS_MAX]]
        return {"topics": shown, "more": max(0, len(most) - _TOPICS_MAX), **self._age(seen.at_us, seen.took_us)}

    def _backups(self, request: Request) -> Mapping[str, Any]:
        found = self.view.backups().value
        return {"set": None if found is None else set_fields(found)}

    def _running(self, request: Request) -> Mapping[str, Any]:
        return running_fields(self.view.running().value, self.view.now_us(), _RUNS_MAX)

    def _history(self, request: Request) -> Mapping[str, Any]:
        given = _parameters(request, "topic", "failed", "id", "limit")
        found = self.view.history(
            topic=given.get("topic"),
            failed=_flag(given.get("failed")),
            limit=_number(given, "limit", 50),
            id_=MessageId.parse(given["id"]) if "id" in given else None,
        )
        return {"now_us": self.view.now_us(), "history": [ended_fields(ended) for ended in found]}

    def _age(self, at_us: int, took_us: int) -> dict[str, float]:
        now_us = self.view.now_us()
        return {"now_us": now_us, "age_s": max(0, now_us - at_us) / US_PER_S, "took_s": took_us / US_PER_S}

    async def _metrics(self, request: Request) -> Response:
        try:
            text = await self._reads.run(lambda: scrape(self.view))
        except FilewheelError as exc:
            return error(exc)
        return Response(text.encode(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _health(self, request: Request) -> Response:
        """Answer by the rule of `filewheel health`: 200 or 503. Without the token only the verdict."""
        try:
            given = _parameters(request, "max_lag", "keeper", "backups", "max_dead")
            max_lag_s = _number(given, "max_lag", round(MAX_LAG_S))
            needs_keeper = _flag(given.get("keeper", "1"))
            max_dead = _number(given, "max_dead", 0) if "max_dead" in given else None
            health = await self._reads.run(
                lambda: self.view.health(
                    max_lag_s=max_lag_s,
                    needs_keeper=needs_keeper,
                    backups=_flag(given.get("backups")),
                    max_dead=max_dead,
                )
            )
        except FilewheelError as exc:
            fields = error_fields(exc) | {"healthy": False, "kind": exc.kind}
            status = 400 if isinstance(exc, BadArgument) else 503
        else:
            fields, status = health.fields(), 200 if health.is_healthy else 503
        if not (self._access.reads_freely or self._access.has_token(request.headers)):
            fields = {name: fields[name] for name in ("healthy", "kind")}
        return answer(fields, status)

    # -- acting --------------------------------------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        """Propose an act; do it when the body says `"confirm": true`."""
        try:
            fields = await _body(request)
            act = _act_of(request.path_params["verb"], fields)
            if fields.get("confirm") is not True:
                return answer({"proposal": (await self._reads.run(lambda: _propose(self.view.wheel(), act))).to_json()})
            done = await self._reads.run(lambda: _perform(self.view.wheel(), act))
            self.view.forget()
            return answer({"done": done.to_json()})
        except FilewheelError as exc:
            return error(exc)


_TOPICS_MAX = 200
_RUNS_MAX = 200
_PAST_MAX = 20
_NO_PAGE = {"messages": [], "scanned": 0, "next": None, "reached": None, "damaged": 0}


def _files() -> dict[str, bytes]:
    folder = resources.files("filewheel.live.web") / "static"
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if os.path.splitext(entry.name)[1] in _KINDS}


def _parameters(request: Request, *names: str) -> dict[str, str]:
    """Return the parameters of a query. Raises BadArgument for one that is not known or too long."""
    given = {name: value for name, value in request.query_params.multi_items() if value}
    for name, value in given.items():
        if name not in names:
            raise BadArgument(f"no parameter is called {name[:40]!r}", hint=f"one of {', '.join(names)}")
        if len(value) > TEXT_MAX:
            raise BadArgument(f"{name} has more than {TEXT_MAX} characters")
    return given


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(given.get(name, str(default)))
    except ValueError:
        raise BadArgument(f"{name} is a number, not {given[name][:40]!r}") from None


def _flag(text: str | None) -> bool:
    return text in ("1", "true", "yes")


def _query(given: Mapping[str, str], now_us: int) -> Query:
    return Query(
        topic=given.get("find"),
        from_us=_time(given.get("from"), now_us),
        until_us=_time(given.get("until"), now_us),
        dead=_flag(given.get("dead")),
        after=MessageId.parse(given["after"]) if "after" in given else None,
        limit=_number(given, "limit", 50),
    )


def _time(text: str | None, now_us: int) -> int | None:
    return None if text is None else at_us(parse_time(text, to_datetime(now_us)))


async def _body(request: Request) -> dict[str, Any]:
    """Read the JSON object of an act. Raises BadArgument."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise BadArgument("an act is sent as application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise BadArgument(f"the body has more than {BODY_BYTES_MAX:,} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise BadArgument(f"the body is not JSON: {exc}") from None
    if not isinstance(fields, dict):
        raise BadArgument("the body is not a JSON object")
    return fields


def _propose(wheel: Wheel, act: Act | PauseAct) -> Proposal | PauseProposal:
    return propose_pause(wheel, act) if isinstance(act, PauseAct) else propose(wheel, act)


def _perform(wheel: Wheel, act: Act | PauseAct) -> Done | PauseDone:
    return perform_pause(wheel, act) if isinstance(act, PauseAct) else perform(wheel, act)


def _act_of(verb: str, fields: Mapping[str, Any]) -> Act | PauseAct:
    if verb in PAUSE_VERBS:
        given = {name: fields.get(name, "") for name in ("what", "name", "why")}
        for name, value in given.items():
            if not isinstance(value, str):
                raise BadArgument(f"{name} is a text")
        return PauseAct.of(verb, **given)
    ids = fields.get("ids")
    if not isinstance(ids, list) or not all(isinstance(id_, str) for id_ in ids):
        raise BadArgument("ids is a list of message ids")
    return Act.of(verb, ids, fields.get("delay_s", 0))
