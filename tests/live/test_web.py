"""The page over HTTP: what it answers, what it refuses, and that nothing of it goes on without limit."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument, Keeper, Scheduler, Wheel
from filewheel.live import pages
from filewheel.live.acts import IDS_MAX
from filewheel.live.message_fields import PAYLOAD_SHOWN
from filewheel.live.wheel_view import WheelView
from filewheel.message import ARGS
from tests.cli.support import Fw
from tests.live.web_support import TOKEN, Client, Events, page
from tests.support import eventually, open_files
from tests.support_set import make_set

from filewheel.live.web import Server, server, stream  # isort: skip
from filewheel.live.web.app import BODY_BYTES_MAX  # isort: skip


@pytest.fixture
def filled(wheel_dir: Path) -> Path:
    with Wheel(wheel_dir) as wheel:
        wheel.enqueue_many([b"hello"] * 120, delay=[60 + n for n in range(120)], topic="mail")
        wheel.enqueue(b"report", delay=3000, topic="report", key="weekly")
    return wheel_dir


def test_each_view_has_its_json(filled: Path) -> None:
    scheduler = Scheduler(filled)
    scheduler.schedule("nightly", 3600, "report")
    scheduler.stop()
    with page(filled) as client:
        live = client.get("/api/live")
        assert live["stats"]["pending"] == 122
        assert sum(live["turning"]["counts"]) == pytest.approx(60, abs=2)
        assert sum(client.get("/api/ahead")["hour"]["counts"]) == pytest.approx(122, abs=1)
        assert [s["name"] for s in client.get("/api/schedules")["schedules"]] == ["nightly"]
        topics = {t["topic"]: t["pending"] for t in client.get("/api/topics")["topics"]}
        assert topics == {"mail": 120, "report": 2}
        assert client.get("/api/backups") == {"set": None}
        assert client.get("/api/access") == {"acts": False, "token": False, "reads": True}
        metrics = client.ask("/metrics")
        assert f'filewheel_pending{{wheel="{filled}"}} 122' in metrics.body.decode()
        assert metrics.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_pages_follow_each_other_to_the_end(filled: Path) -> None:
    with page(filled) as client:
        ids, after = [], ""
        while True:
            found = client.get(f"/api/messages?limit=50&after={after}")
            ids += [m["id"] for m in found["messages"]]
            after = found["next"]
            if after is None:
                break
        with Wheel(filled) as wheel:
            assert ids == [str(m.id) for m in wheel.list()]


def test_a_search_finds_by_id_by_key_and_by_topic(filled: Path) -> None:
    with page(filled) as client, Wheel(filled) as wheel:
        (message,) = wheel.list(topic="report")
        for find in (str(message.id), str(message.id).lower(), "weekly"):
            found = client.get(f"/api/messages?find={find}")
            assert found["exact"]["id"] == str(message.id)
            assert not found["messages"]
        found = client.get("/api/messages?find=rep*")
        assert found["exact"] is None
        assert [m["id"] for m in found["messages"]] == [str(message.id)]
        assert client.get("/api/messages?find=nothing")["messages"] == []
        gone = wheel.enqueue(b"x", delay=9)
        wheel.cancel(gone)
        assert client.get(f"/api/messages?find={gone}")["messages"] == []
        missing = client.ask(f"/api/messages/{gone}")
        assert missing.status == 404
        assert missing.json["error"] == "not-found"
        nowhere = client.ask("/api/nope")
        assert (nowhere.status, nowhere.json["error"]) == (404, "not-found")


@pytest.mark.parametrize(
    "query",
    [
        "limit=0", "limit=201", "limit=many", "after=x", "from=yesterday-ish", "nothing=1", f"find={'x' * 2000}",
        "limit=-5", "until=99999-01-01",
    ],
)  # fmt: skip
def test_a_wrong_query_is_an_error_with_a_reason(filled: Path, query: str) -> None:
    with page(filled) as client:
        found = client.ask(f"/api/messages?{query}")
        assert found.status == 400
        assert found.json["error"] == "usage"
        assert found.json["message"]


def test_every_answer_forbids_what_is_foreign(filled: Path) -> None:
    with page(filled, token=TOKEN) as client:
        answers = [
            client.ask(path)
            for path in (
                "/",
                "/static/page.js",
                "/api/live",
                "/nothing",
                "/static/nothing",
                "/metrics",
                "/api/messages/x",
            )
        ]
        answers += [client.ask("/", Host="evil.example"), client.ask("/api/acts/cancel", "POST", {})]
        for found in answers:
            policy = found.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert found.headers["x-content-type-options"] == "nosniff"
            assert found.headers["cache-control"] == "no-store"
            assert "set-cookie" not in found.headers
            assert not any(name.startswith("access-control") for name in found.headers)


def test_the_page_asks_for_nothing_outside(filled: Path) -> None:
    with page(filled) as client:
        html = client.ask("/").body.decode()
        assert "http:" not in html
        assert "https:" not in html
        for name in (
            "page.js",
            "views.js",
            "wheel.js",
            "charts.js",
            "api.js",
            "acts.js",
            "dom.js",
            "page.css",
            "icon.svg",
        ):
            found = client.ask(f"/static/{name}")
            assert found.status == 200
            text = found.body.decode().replace("http://www.w3.org/2000/svg", "")
            assert "http://" not in text
            assert "https://" not in text
            assert "innerHTML" not in text
            assert "eval(" not in text
        for name in ("..%2fapp.py", "%2e%2e/app.py", "app.py", ".", ""):
            assert client.ask(f"/static/{name}").status == 404


def test_healthz_answers_by_the_rule_of_filewheel_health(filled: Path) -> None:
    with page(filled) as client, Wheel(filled) as wheel:
        found = client.ask("/healthz")
        assert (found.status, found.json["kind"]) == (503, "no-keeper")
        assert {check["name"] for check in found.json["checks"]} >= {"files", "keeper", "lag", "room"}
        assert client.ask("/healthz?keeper=0").status == 200
        wheel.enqueue(b"late", delay=-300)
        found = client.ask("/healthz?keeper=0")
        assert (found.status, found.json["kind"]) == (503, "late")
        assert client.ask("/healthz?keeper=0&max_lag=900").status == 200
        for wrong in ("max_lag=x", "max_lag=-1", "nothing=1"):
            assert client.ask(f"/healthz?{wrong}").status == 400
        filled.rename(filled.with_name("away"))
        found = client.ask("/healthz")
        assert (found.status, found.json["kind"], found.json["healthy"]) == (503, "no-wheel", False)
        filled.with_name("away").rename(filled)
    with Keeper(filled, background=False) as keeper, page(filled) as client:
        keeper.ack(keeper.claim())
        assert client.ask("/healthz").status == 200


def test_health_without_the_token_is_only_the_verdict(filled: Path) -> None:
    with page(filled, token=TOKEN, is_open=False) as client:
        assert client.ask("/healthz").json == {"healthy": False, "kind": "no-keeper"}
        assert "checks" in client.ask("/healthz", token=TOKEN).json


def test_what_runs_and_how_it_ended_is_shown(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir) as keeper, page(wheel_dir) as client:
        first, second = wheel.enqueue(b"a", topic="mail"), wheel.enqueue(b"b", topic="report")
        messages = list(eventually(keeper.claim))
        messages += list(eventually(keeper.claim)) if len(messages) < 2 else []
        eventually(lambda: client.get("/api/live")["running"]["running"] == 2)
        assert {run["topic"] for run in client.get("/api/running")["runs"]} == {"mail", "report"}
        assert client.get(f"/api/messages/{first}")["state"] == "running"
        by_topic = {message.topic: message for message in messages}
        keeper.ack(by_topic["mail"])
        keeper.bury(by_topic["report"], reason="it <i>failed</i>")
        ended = eventually(lambda: len(found := client.get("/api/history")["history"]) == 2 and found)
        assert {one["topic"]: one["outcome"] for one in ended} == {"mail": "acked", "report": "dead"}
        assert [one["topic"] for one in client.get("/api/history?failed=1")["history"]] == ["report"]
        assert [one["topic"] for one in client.get("/api/history?topic=m*&limit=5")["history"]] == ["mail"]
        assert [one["id"] for one in client.get(f"/api/history?id={second}")["history"]] == [str(second)]
        gone = client.get(f"/api/messages/{first}")
        assert gone["message"] is None
        assert [one["outcome"] for one in gone["history"]] == ["acked"]
        rates = eventually(lambda: client.get("/api/live")["rates"])
        assert rates["source"] == "history"
        assert rates["per_s"]["acknowledged"] == pytest.approx(1 / 60)
        for wrong in ("limit=501", "limit=0", "id=x", "nothing=1"):
            assert client.ask(f"/api/history?{wrong}").status == 400


# -- acts -------------------------------------------------------------------------------------------------------


def test_without_a_token_nothing_can_be_changed(filled: Path) -> None:
    with page(filled) as client, Wheel(filled) as wheel:
        (message,) = wheel.list(topic="report")
        for token in ("", TOKEN):
            found = client.act("cancel", message.id, token=token, confirm=True)
            assert found.status == 403
            assert found.json["error"] == "read-only"
        for method in ("PUT", "DELETE", "PATCH", "POST"):
            assert client.ask(f"/api/messages/{message.id}", method).status in (403, 405)
        assert wheel.get(message.id) is not None


def test_an_act_needs_the_token_is_proposed_first_and_done_when_confirmed(filled: Path) -> None:
    with page(filled, token=TOKEN) as client, Wheel(filled) as wheel:
        (message,) = wheel.list(topic="report")
        assert client.act("cancel", message.id, token="", confirm=True).status == 401
        assert client.act("cancel", message.id, token="wrong-token-wrong-token", confirm=True).status == 401
        for fields in ({}, {"confirm": False}, {"confirm": "true"}, {"confirm": 1}):
            found = client.act("cancel", message.id, **fields)
            assert found.json["proposal"]["question"] == "Cancel 1 message?"
        assert wheel.get(message.id) is not None
        done = client.act("cancel", message.id, confirm=True)
        assert done.json["done"]["done"] == {str(message.id): "stopped"}
        assert wheel.get(message.id) is None
        assert client.get("/api/live")["stats"]["pending"] == 120


def test_a_request_from_another_site_changes_nothing_though_it_has_the_token(filled: Path) -> None:
    with page(filled, token=TOKEN) as client, Wheel(filled) as wheel:
        ids = [str(m.id) for m in wheel.list()]
        body = {"ids": ids, "confirm": True}
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
            found = client.ask("/api/acts/cancel", "POST", body, TOKEN, **headers)
            assert (found.status, found.json["error"]) == (403, "wrong-origin")
        found = client.ask("/api/acts/cancel", "POST", body, TOKEN, Host="evil.example:8642")
        assert (found.status, found.json["error"]) == (421, "wrong-host")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert client.ask("/api/acts/cancel", "POST", body, TOKEN, Content_Type=kind).status == 400
        assert wheel.stats().pending == 121


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"5", b'{"ids": "x"}', b'{"ids": [5]}', b'{"ids": ["x"]}', b'{"ids": []}', b"\xff\xfe",
        b'{"ids": ["00000000000000000000000000"], "delay_s": "soon"}', b"[" * 60_000, b"x" * (BODY_BYTES_MAX + 1),
        json.dumps({"ids": ["0" * 20 + f"{n:06}" for n in range(IDS_MAX + 1)]}).encode(),
    ],
    ids=range(13),
)  # fmt: skip
def test_a_wrong_act_is_an_error_and_changes_nothing(filled: Path, body: bytes) -> None:
    with page(filled, token=TOKEN) as client:
        for verb in ("cancel", "revive", "explode"):
            found = client.ask(f"/api/acts/{verb}", "POST", body, TOKEN)
            assert found.status == 400
            assert found.json["error"] == "usage"
        assert client.get("/api/live")["stats"]["pending"] == 121


def test_a_body_over_the_limit_is_refused_and_changes_nothing(filled: Path) -> None:
    with page(filled, token=TOKEN) as client, Wheel(filled) as wheel:
        (message,) = wheel.list(topic="report")
        found = client.act("cancel", message.id, confirm=True, more="x" * BODY_BYTES_MAX)
        assert found.status == 400
        assert wheel.get(message.id) is not None


def test_a_dead_letter_is_revived(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        wheel.enqueue(b"x")
        for message in keeper.claim():
            keeper.bury(message, reason="it <b>failed</b>")
        with page(wheel_dir, token=TOKEN) as client:
            (dead,) = client.get("/api/messages?dead=1")["messages"]
            assert dead["reason"] == "it <b>failed</b>"
            assert client.act("revive", dead["id"], confirm=True).json["done"]["text"] == "1 revived"
            assert client.get("/api/messages?dead=1")["messages"] == []
            assert len(client.get("/api/messages")["messages"]) == 1


def test_an_act_in_a_backup_is_refused_with_the_way_out(tmp_path: Path) -> None:
    primary, backup = tmp_path / "a.wheel", tmp_path / "b.wheel"
    with Wheel.create(backup) as wheel:
        id_ = wheel.enqueue(b"x", delay=60)
    make_set(primary, backup)
    with page(backup, token=TOKEN) as client:
        assert client.get("/api/backups")["set"]["role"] == "backup"
        found = client.act("cancel", id_, confirm=True)
        assert found.status == 409
        assert found.json["error"] == "fenced"
        assert found.json["hint"]
        assert client.get("/api/messages")["messages"]


# -- hostile and large content ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload",
    [
        b"\xff\xfe\x00", b"\x92\x91\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\x80", b"\x92" + b"\x91" * 1010 + b"\x01\x80",
        b"\x92\x91\xcf" + b"\xff" * 8 + b"\x80",
    ],
    ids=["no text", "NaN", "nested", "huge"],
)  # fmt: skip
def test_any_payload_is_json_that_a_browser_reads(wheel_dir: Path, payload: bytes) -> None:
    with Wheel(wheel_dir) as wheel:
        plain = wheel.enqueue(payload, delay=60)
        call = wheel.enqueue(payload, delay=60, topic="mail", headers={ARGS: "msgpack"})
    refuse: Any = lambda text: pytest.fail(f"{text} is no JSON of a browser")  # noqa: E731
    with page(wheel_dir) as client:
        for path in ("/api/messages", f"/api/messages/{plain}", f"/api/messages/{call}", f"/api/messages?find={call}"):
            found = client.ask(path)
            assert found.status == 200
            json.loads(found.body, parse_constant=refuse)


def test_a_long_payload_is_shown_in_part(wheel_dir: Path) -> None:
    body = b"<script>" * 20_000
    with Wheel(wheel_dir) as wheel:
        ids = [wheel.enqueue(body, delay=60), wheel.enqueue(body, delay=60, headers={ARGS: "msgpack"})]
        edge = wheel.enqueue(b"x" * PAYLOAD_SHOWN, delay=60)
    with page(wheel_dir) as client:
        for id_ in ids:
            message = client.get(f"/api/messages/{id_}")["message"]
            assert message["payload_cut"] is True
            assert message["size"] == len(body)
            assert message["payload"] == body[:PAYLOAD_SHOWN].decode()
        assert client.get(f"/api/messages/{edge}")["message"]["payload_cut"] is False
        rows = client.ask("/api/messages")
        assert len(rows.body) < 5000


# -- limits, and the end ------------------------------------------------------------------------------------------


def test_events_come_each_second_and_say_what_has_changed(filled: Path) -> None:
    with page(filled) as client:
        events = Events(client)
        name, live = events.next()
        assert (name, live["stats"]["pending"]) == ("live", 121)
        assert events.next()[0] == "ahead"
        with Wheel(filled) as wheel:
            wheel.enqueue(b"one more", delay=60)
        eventually(lambda: events.next()[1].get("stats", {}).get("pending") == 122)
        events.close()


def test_a_stream_goes_on_over_a_wheel_that_is_gone_and_comes_back(filled: Path) -> None:
    with page(filled) as client:
        events = Events(client)
        assert events.next()[0] == "live"
        filled.rename(filled.with_name("away"))
        found = eventually(lambda: (event := events.next())[0] == "trouble" and event)
        assert found[1]["error"] == "no-wheel"
        assert found[1]["hint"]
        assert client.ask("/api/live").status == 503
        filled.with_name("away").rename(filled)
        eventually(lambda: events.next()[0] == "live")
        events.close()


def test_one_stream_too_many_is_refused_until_another_is_left(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STREAMS_MAX", 2)
    with page(filled) as client:
        first, second = Events(client), Events(client)
        assert first.next()[0] == second.next()[0] == "live"
        refused = Events(client)
        refused.close()
        assert refused.response.status == 503
        first.close()

        def is_let_in() -> bool:
            third = Events(client)
            status = third.response.status
            third.close()
            return status == 200

        eventually(is_let_in)
        second.close()


def test_too_many_requests_at_once_are_told_to_come_back(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from filewheel.live.web import reads

    monkeypatch.setattr(reads, "WAITING_MAX", 3)
    goes_on = threading.Event()
    slow = WheelView.page

    def page_of(self: WheelView, query: pages.Query) -> pages.Page:
        assert goes_on.wait(60)
        return slow(self, query)

    monkeypatch.setattr(WheelView, "page", page_of)
    with page(filled) as client:
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(client.ask("/api/messages").status)

        waiting = client.server._page._reads
        threads = [threading.Thread(target=ask) for _ in range(8)]
        try:
            for thread in threads[:3]:
                thread.start()
            eventually(lambda: waiting._waiting == 3)
            for thread in threads[3:]:
                thread.start()
            eventually(lambda: len(statuses) == 5 or waiting._waiting > 3)
            assert statuses == [503] * 5
        finally:
            goes_on.set()
            for thread in threads:
                thread.join()
        assert sorted(statuses) == [200] * 3 + [503] * 5


def test_the_server_ends_at_once_with_streams_open_and_leaves_nothing(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = open_files()
    threads = threading.active_count()
    with WheelView(filled) as view:
        serving = Server(view, "127.0.0.1:0", is_open=True)
        client = Client(serving)
        streams = [Events(client) for _ in range(3)]
        for one in streams:
            assert one.next()[0] == "live"
        serving.stop()
        serving.stop()
        for one in streams:
            with pytest.raises(EOFError):
                while True:
                    one.next()
            one.close()
        with pytest.raises(ConnectionRefusedError):
            client.ask("/")
    eventually(lambda: threading.active_count() == threads)
    assert open_files() == before
    assert not caplog.records, "it waited for no stream until its patience ended"


def test_an_address_in_use_is_an_error_that_names_it(filled: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, WheelView(filled) as view:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadArgument, match=address):
            Server(view, address, is_open=True)


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", "203.0.113.9:0"])
def test_a_wrong_address_is_an_error(filled: Path, address: str) -> None:
    with WheelView(filled) as view, pytest.raises(BadArgument):
        Server(view, address, token=TOKEN)


def test_an_open_page_at_an_outside_address_is_refused_before_it_listens(filled: Path) -> None:
    before = open_files()
    with WheelView(filled) as view, pytest.raises(BadArgument, match="other machines"):
        Server(view, "0.0.0.0:0", is_open=True)
    assert open_files() == before


def test_a_server_that_everybody_reaches_answers_only_with_the_token(filled: Path) -> None:
    with page(filled, address="0.0.0.0:0", token=TOKEN, is_open=False) as client:
        assert client.ask("/").status == 200
        for path in ("/api/live", "/api/messages", "/metrics", "/api/events", "/api/topics"):
            found = client.ask(path)
            assert found.status == 401
            assert found.headers["www-authenticate"] == "Bearer"
        assert client.get("/api/live", token=TOKEN)["stats"]["pending"] == 121
        events = Events(client, TOKEN)
        assert events.next()[0] == "live"
        events.close()


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /api/live HT", b"POST /api/acts/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"],
)
def test_two_hundred_requests_that_are_sent_in_part_do_not_close_the_page(filled: Path, sent: bytes) -> None:
    with page(filled) as client, contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection(("127.0.0.1", client.port))).sendall(sent)
        assert client.get("/api/live")["stats"]["pending"] == 121


def test_a_request_that_is_not_sent_in_time_ends_its_connection(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUEST_S", 0.2)
    with page(filled) as client, socket.create_connection(("127.0.0.1", client.port)) as slow:
        slow.sendall(b"GET / HT")
        slow.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(1) == b""


def test_what_is_no_http_is_answered_and_the_page_goes_on(filled: Path) -> None:
    with page(filled) as client:
        for raw in (
            b"\x00\x01\x02\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET /" + b"x" * 100_000,
            b"BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", client.port), timeout=60) as one:
                one.sendall(raw)
                one.shutdown(socket.SHUT_WR)
                while one.recv(65536):
                    pass
        assert client.get("/api/live")["stats"]["pending"] == 121


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_wheel_that_may_not_be_read_says_so(filled: Path) -> None:
    filled.chmod(0)
    try:
        with page(filled) as client:
            found = client.ask("/api/live")
            assert found.status == 503
            assert "Permission denied" in found.json["message"]
    finally:
        filled.chmod(0o700)


def test_the_page_works_below_a_path_of_another_program(filled: Path) -> None:
    import asyncio

    from starlette.applications import Starlette
    from starlette.routing import Mount

    from filewheel.live.web import make_app

    app = Starlette(routes=[Mount("/wheel", make_app(filled))])

    async def ask(path: str) -> tuple[int, bytes]:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        await app(scope, receive, send)
        return sent[0]["status"], b"".join(m.get("body", b"") for m in sent)

    assert asyncio.run(ask("/wheel/"))[0] == 200
    status, body = asyncio.run(ask("/wheel/api/live"))
    assert status == 200
    assert json.loads(body)["stats"]["pending"] == 121
    assert asyncio.run(ask("/wheel/static/page.js"))[0] == 200


def test_a_deal_beside_the_page_changes_no_count(filled: Path) -> None:
    with page(filled) as client:
        before = client.get("/api/live")["stats"]["pending"]
        Fw(filled).deal()
        assert client.get("/api/live")["stats"]["pending"] == before


def test_a_schedule_says_what_pauses_it_and_why_it_waits(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir)
    scheduler.schedule("nightly", 3600, "report")
    scheduler.wheel.reschedule(key="filewheel.every:nightly", delay=0)
    scheduler.drain()  # it has no such handler
    scheduler.wheel.pause(topic="report")
    with page(wheel_dir) as client:
        (shown,) = client.get("/api/schedules")["schedules"]
    assert "no handler is named 'report'" in shown["waits"]
    assert shown["paused_by"] == ["topic report"]
    scheduler.wheel.resume(topic="report")
    scheduler.stop()


def test_a_pause_needs_the_token_and_is_proposed_first(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir, token=TOKEN) as client:
        id_ = wheel.enqueue(b"x", delay=600, topic="mail")
        fields = {"what": "topic", "name": "mail"}
        assert client.ask("/api/acts/pause", "POST", {**fields, "confirm": True}).status == 401
        proposal = client.ask("/api/acts/pause", "POST", fields, TOKEN).json["proposal"]
        assert proposal["needed"] is True
        assert client.get("/api/live")["paused"] == []
        assert not wheel.paused()
        done = client.ask("/api/acts/pause", "POST", {**fields, "confirm": True}, TOKEN).json["done"]
        assert done["text"] == "topic mail is paused"
        (shown,) = client.get("/api/live")["paused"]
        assert (shown["what"], shown["name"]) == ("topic", "mail")
        assert client.get("/api/messages")["messages"][0]["paused_by"] == ["topic mail"]
        assert client.get(f"/api/messages/{id_}")["paused_by"] == ["topic mail"]
        for wrong in ({}, {"what": 5}, {"what": "topic", "name": ["x"]}, {"what": "wheel", "name": "x"}, {"ids": []}):
            for verb in ("pause", "resume"):
                assert client.ask(f"/api/acts/{verb}", "POST", {**wrong, "confirm": True}, TOKEN).status == 400
        assert len(wheel.paused()) == 1
        wheel.resume(everything=True)


def test_a_damaged_list_of_pauses_is_named_and_the_rest_is_shown(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel, page(wheel_dir) as client:
        wheel.enqueue(b"x", delay=-60)
        (wheel_dir / "paused.json").write_text("no")
        live = client.get("/api/live")
        assert live["paused"] is None
        assert "paused" in [trouble["part"] for trouble in live["troubles"]]
        assert live["turning"]["overdue"] == 1
        assert len(client.get("/api/messages")["messages"]) == 1
        (wheel_dir / "paused.json").unlink()
