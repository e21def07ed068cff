"""The programs of docs/examples, run for real: as processes, with a web server of their own, and killed."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from filewheel import Wheel
from tests.cli.support import finish, start, stopped
from tests.conftest import assert_whole
from tests.support import REPO, eventually

EXAMPLES = REPO / "docs" / "examples"


def example(name: str, *args: object, cwd: Path, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *map(str, args)]
    wheel = cwd / name.replace(".py", ".wheel")
    return start(command=command, cwd=cwd, env={"FILEWHEEL": str(wheel), **env})


def line_of(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints; it is killed if none comes."""
    assert process.stdout is not None
    guard = threading.Timer(30, process.kill)
    guard.start()
    line = process.stdout.readline().rstrip("\n")
    guard.cancel()
    assert line, process.communicate()
    return line


# -- reminders ------------------------------------------------------------------------------------------------


def ask(method: str, url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=20) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


def test_a_reminder_is_sent_and_one_that_was_deleted_is_not(tmp_path: Path) -> None:
    with stopped(example("reminders.py", 0, cwd=tmp_path)) as app:
        url = line_of(app)
        status, made = ask("POST", url, {"key": "soon", "text": "soon", "in_s": 0.2})
        assert status == 201
        assert line_of(app) == f"remind soon ({made['id']})"

        far = {"key": "a dentist", "text": "at ten", "at": "2099-01-01T10:00:00+01:00"}
        assert ask("POST", url, far)[0] == 201
        assert ask("POST", url, far)[0] == 409
        listed = (200, [{"key": "a dentist", "text": "at ten", "due": "2099-01-01T09:00:00+00:00"}])
        eventually(lambda: ask("GET", url) == listed)  # the first is listed until its end is written
        assert ask("DELETE", url + "/a%20dentist") == (200, {"cancelled": "stopped"})
        assert ask("DELETE", url + "/a%20dentist") == (404, {"cancelled": "not found"})
        assert ask("DELETE", url) == (404, {"cancelled": "not found"})
        assert ask("GET", url) == (200, [])
        app.send_signal(signal.SIGTERM)
        assert finish(app).code == 0
    assert_whole(tmp_path / "reminders.wheel")


@pytest.mark.parametrize(
    "wish",
    [
        {"text": "no key", "in_s": 1},
        {"key": "k", "text": "no time"},
        {"key": "k", "text": "naive", "at": "2099-01-01T10:00:00"},
        {"key": "k", "text": "no number", "in_s": "soon"},
        {"key": "", "text": "empty key", "in_s": 1},
        ["no object"],
    ],
    ids=str,
)
def test_a_wish_that_makes_no_sense_is_refused_and_schedules_nothing(wish: Any, reminders: tuple[str, Path]) -> None:
    url, _ = reminders
    assert ask("POST", url, wish)[0] == 400
    assert ask("GET", url) == (200, [])


@pytest.fixture(scope="module")
def reminders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    directory = tmp_path_factory.mktemp("reminders")
    with stopped(example("reminders.py", 0, cwd=directory)) as app:
        yield line_of(app), directory


def test_a_web_app_that_is_killed_sends_after_its_restart_what_it_had_promised(tmp_path: Path) -> None:
    with stopped(example("reminders.py", 0, cwd=tmp_path)) as app:
        status, made = ask("POST", line_of(app), {"key": "k", "text": "promised", "in_s": 1})
        assert status == 201
        app.kill()
    with stopped(example("reminders.py", 0, cwd=tmp_path)) as app:
        line_of(app)
        assert line_of(app) == f"remind promised ({made['id']})"


def test_of_two_web_apps_on_one_wheel_the_other_sends_when_the_first_is_killed(tmp_path: Path) -> None:
    with stopped(example("reminders.py", 0, cwd=tmp_path)) as first:
        soon = ask("POST", line_of(first), {"key": "soon", "text": "soon", "in_s": 0})[1]
        assert line_of(first) == f"remind soon ({soon['id']})"  # so this one is the keeper
        with stopped(example("reminders.py", 0, cwd=tmp_path)) as second:
            made = ask("POST", line_of(second), {"key": "later", "text": "later", "in_s": 0.5})[1]
            first.kill()
            assert line_of(second) == f"remind later ({made['id']})"


# -- webhooks -------------------------------------------------------------------------------------------------


class Receiver:
    """A web server that answers as it was told, and tells of each request."""

    def __init__(self) -> None:
        self.requests: queue.Queue[tuple[str, str, str]] = queue.Queue()
        """(path, idempotency key, body)"""
        self.answers: dict[str, list[tuple[int, dict[str, str]]]] = {}
        """path → the answers to come; then 200"""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.requests.put((self.path, self.headers["Idempotency-Key"], body))
                answers = outer.answers.get(self.path)
                code, headers = answers.pop(0) if answers else (200, {})
                self.send_response(code)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def webhooks(tmp_path: Path, *args: object) -> list[str]:
    done = finish(example("webhooks.py", *args, cwd=tmp_path))
    assert done.code == 0, done
    return done.lines


def test_a_webhook_that_fails_twice_arrives_at_the_third_attempt_with_one_idempotency_key(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answers["/shop"] = [(500, {}), (503, {"Retry-After": "0"})]
    (id_,) = webhooks(tmp_path, "send", receiver.url + "/shop", "order-7", '{"paid": true}')
    assert webhooks(tmp_path, "send", receiver.url + "/shop", "order-7", '{"paid": true}') == [id_]
    with stopped(example("webhooks.py", "work", cwd=tmp_path, WEBHOOKS_DELAY_S="0.05")) as worker:
        assert [line_of(worker).split()[0] for _ in range(3)] == ["retried", "retried", "acknowledged"]
        worker.send_signal(signal.SIGTERM)
        assert finish(worker).code == 0
    seen = [receiver.requests.get(timeout=120) for _ in range(3)]
    assert seen == [("/shop", id_, '{"paid": true}')] * 3
    assert receiver.requests.empty()
    with Wheel(tmp_path / "webhooks.wheel") as wheel:
        assert not wheel.stats().pending
        assert not wheel.stats().dead


def test_a_webhook_that_is_refused_is_a_dead_letter_at_once_and_arrives_when_it_is_revived(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answers["/gone"] = [(410, {})]
    webhooks(tmp_path, "send", receiver.url + "/gone", "order-8", "{}")
    with stopped(example("webhooks.py", "work", cwd=tmp_path)) as worker:
        assert line_of(worker).startswith("dead ")
        (dead,) = webhooks(tmp_path, "dead")
        assert dead.endswith(" event:order-8 410: a retry would be refused too")
        assert receiver.requests.get(timeout=120)[0] == "/gone"
        webhooks(tmp_path, "revive", dead.split()[0])
        assert line_of(worker).startswith("acknowledged ")
        assert receiver.requests.get(timeout=120)[0] == "/gone"
    assert webhooks(tmp_path, "dead") == []


def test_a_webhook_that_is_sent_elsewhere_or_to_no_url_is_a_dead_letter_and_not_taken_for_delivered(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.answers["/old"] = [(302, {"Location": receiver.url + "/new"})]
    webhooks(tmp_path, "send", receiver.url + "/old", "moved", "{}")
    webhooks(tmp_path, "send", "no-url", "wrong", "{}")
    with stopped(example("webhooks.py", "work", cwd=tmp_path)) as worker:
        assert [line_of(worker).split()[0] for _ in range(2)] == ["dead", "dead"]
    moved, wrong = sorted(webhooks(tmp_path, "dead"), key=lambda line: line.split()[1])
    assert moved.endswith(" event:moved 302: a retry would be refused too")
    assert " event:wrong ValueError: unknown url type" in wrong
    assert receiver.requests.qsize() == 1


def test_a_webhook_whose_receiver_is_not_there_is_tried_as_often_as_it_may_and_is_dead(tmp_path: Path) -> None:
    webhooks(tmp_path, "send", "http://127.0.0.1:1/", "order-9", "{}")
    with stopped(example("webhooks.py", "work", cwd=tmp_path, WEBHOOKS_DELAY_S="0")) as worker:
        assert [line_of(worker).split()[0] for _ in range(19)] == ["retried"] * 18 + ["dead"]
    (dead,) = webhooks(tmp_path, "dead")
    assert "refused" in dead
    assert dead.endswith("(after 19 attempts)")


# -- the nightly report ---------------------------------------------------------------------------------------


def test_a_report_is_made_now_by_three_steps_and_the_next_one_waits_for_the_night(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "web.log").write_text("a\nb\n")
    done = finish(example("nightly.py", "--now", cwd=tmp_path))
    assert done.code == 0, done
    assert done.lines[-1] == "3 steps were done"
    (report,) = (tmp_path / "reports").iterdir()
    assert report.read_text() == f"Report of {report.stem}\n\n       2 web.log\n"
    with Wheel(tmp_path / "nightly.wheel") as wheel:
        (waits,) = wheel.list()
        assert (waits.topic, waits.due.minute, waits.due.hour in (0, 1)) == ("collect", 0, True)  # two in Berlin
    assert_whole(tmp_path / "nightly.wheel")


def test_a_step_that_fails_is_tried_again_and_the_steps_before_it_are_not(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("in the way")
    done = finish(example("nightly.py", "--now", cwd=tmp_path))
    assert done.code == 0, done
    with Wheel(tmp_path / "nightly.wheel") as wheel:
        assert [(m.topic, m.attempt) for m in wheel.list()] == [("publish", 1), ("collect", 0)]


# -- idle server -------------------------------------------------------------------------------------------------


def test_a_connection_that_says_nothing_is_closed_and_one_that_talks_is_not(tmp_path: Path) -> None:
    with stopped(example("idle_server.py", "serve", 0, "--idle", 1, cwd=tmp_path)) as server:
        address = ("127.0.0.1", int(line_of(server).removeprefix("port ").partition(",")[0]))
        # A test that was itself held up for a second begins again: then the server may close both.
        while (pause_s := talk_until_the_idle_one_is_closed(address)) is not None:
            assert pause_s >= 0.4


def talk_until_the_idle_one_is_closed(address: tuple[str, int]) -> float | None:
    """Return the longest pause if the server closed the connection that talks, too."""
    with (
        socket.create_connection(address, timeout=60) as idle,
        socket.create_connection(address, timeout=60) as talking,
    ):
        idle.settimeout(0.01)
        longest, before = 0.0, time.monotonic()
        while True:
            try:
                talking.sendall(b"ping")
                answer = talking.recv(4)
            except ConnectionError:
                answer = b""
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
            if not answer:
                return longest
            try:
                assert idle.recv(1) == b""
                return None
            except TimeoutError:
                continue


def test_all_simulated_connections_idle_out(tmp_path: Path) -> None:
    command = ("simulate", 1000, "--idle", 0.2, "--requests", 2000)
    done = finish(example("idle_server.py", *command, cwd=tmp_path))
    assert done.code == 0, done
    assert done.lines[-1].startswith("1000 closed after 0.2 s without a byte")


def fires(process: subprocess.Popen[str], wheel: Path) -> bool:
    """Whether this process is the one that fires."""
    if not (wheel / "wheel.json").exists():
        return False
    with Wheel(wheel) as opened:
        return opened.stats().keeper_pid == process.pid


def test_a_report_that_is_asked_for_while_another_process_fires_is_made_by_that_one(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    with stopped(example("nightly.py", cwd=tmp_path)) as keeper:
        eventually(lambda: fires(keeper, tmp_path / "nightly.wheel"))
        assert finish(example("nightly.py", "--now", cwd=tmp_path)).code == 0
        assert line_of(keeper).startswith("published reports/")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_an_example_is_short_and_says_how_it_is_used(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 120
    assert text.startswith('"""')
    assert f"python {path.name}" in text.split('"""')[1]
