"""The applications of docs/web-frameworks.md, under the servers that it names: who fires, and who takes over."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from filewheel import Wheel
from tests.conftest import assert_whole
from tests.support import REPO, eventually, some

PAGE = REPO / "docs" / "web-frameworks.md"
BLOCK = re.compile(r"^```py\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(BLOCK.findall(PAGE.read_text()))
SAID = re.compile(r"process (\d+) reminds (ann|bob|\w+)")  # two threads may print on one line


class Connection(http.client.HTTPConnection):
    """HTTP through a socket in a file, so that no port is guessed."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass
class Server:
    """A web server with the application of the page, and what its handlers printed."""

    folder: Path
    wheel: Path
    process: subprocess.Popen[bytes] | None = None
    seen: set[int] = field(default_factory=set)

    def start(self, *command: str, **env: str) -> None:
        env = {**os.environ, "FILEWHEEL": str(self.wheel), "PYTHONPATH": f"{REPO}:{self.folder}", **env}
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=self.folder, start_new_session=True, env=env, stdout=out, stderr=err,
            )  # fmt: skip
        eventually(lambda: self.ask("GET", "/health"), 120)

    def ask(self, method: str, path: str) -> Any:
        """Return the answer to a request; None when nobody answers it now."""
        connection = Connection(self.folder / "socket")
        try:
            connection.request(method, path)
            response = connection.getresponse()
            body = response.read()
            return json.loads(body) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def states(self, count: int) -> dict[int, str]:
        """Return the states of so many workers, by their pids."""
        found: dict[int, str] = {}

        def look() -> bool:
            for _ in range(10):
                answer = self.ask("GET", "/health")
                if answer is not None:
                    found[answer["pid"]] = answer["state"]
            return len(found) >= count and "starting" not in found.values()

        eventually(look, 120)
        return found

    def reminds(self, name: str, method: str = "POST") -> int:
        """Ask for a reminder now, and return which process gave it."""
        eventually(lambda: self.ask(method, f"/reminders/{name}?in_s=0") is not None, 120)

        def giver() -> int | None:
            given = [int(pid) for pid, who in SAID.findall((self.folder / "out").read_text()) if who == name]
            return given[0] if given else None

        return int(eventually(giver, 120))

    def stop(self) -> None:
        process = self.process
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def server(wheel_dir: Path, tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "site"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    made = Server(folder, wheel_dir)
    yield made
    made.stop()
    assert_whole(wheel_dir)


def gunicorn(*options: str, app: str = "flask_app:app") -> list[str]:
    return ["gunicorn", "--workers", "2", "--bind", "unix:socket", *options, app]


def test_the_page_has_every_file_that_the_servers_need() -> None:
    assert set(FILES) == {
        "fastapi_app.py", "flask_app.py", "gunicorn.conf.py", "jobs.py", "urls.py", "settings.py", "worker.py",
    }  # fmt: skip


def test_under_uvicorn_one_of_two_workers_fires_and_the_other_takes_over_when_it_is_killed(server: Server) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    server.start("uvicorn", "--workers", "2", "--uds", "socket", "fastapi_app:app")
    assert sorted(server.states(2).values()) == ["firing", "standby"]
    first = server.reminds("ann")
    assert server.states(2)[first] == "firing"
    os.kill(first, signal.SIGKILL)
    assert server.reminds("bob") != first
    assert eventually(lambda: server.ask("POST", "/reminders/cleo"))
    assert eventually(lambda: server.ask("DELETE", "/reminders/cleo")) == {"outcome": "stopped"}


@pytest.mark.parametrize(
    "options", some([["--preload"], []], one_of=2), ids=lambda options: "".join(options) or "forked"
)
def test_under_gunicorn_with_a_start_in_each_worker_one_fires_and_another_takes_over(
    server: Server, options: list[str]
) -> None:
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    server.start(*gunicorn(*options))
    assert sorted(server.states(2).values()) == ["firing", "standby"]
    first = server.reminds("ann")
    assert server.process is not None
    assert first != server.process.pid
    os.kill(first, signal.SIGKILL)
    assert server.reminds("bob") not in (first, server.process.pid)


@pytest.mark.parametrize("preload", some([True, False], one_of=2))
def test_a_start_at_the_import_fires_in_a_worker_or_with_preload_in_the_master(server: Server, preload: bool) -> None:
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    (server.folder / "gunicorn.conf.py").write_text("")
    with (server.folder / "flask_app.py").open("a") as module:
        module.write("\nscheduler.start()\n")
    server.start(*gunicorn(*(["--preload"] if preload else [])))
    states = sorted(server.states(2).values())
    assert states == (["stopped", "stopped"] if preload else ["firing", "standby"])
    assert server.process is not None
    assert (server.reminds("ann") == server.process.pid) == preload


def test_where_nothing_was_started_a_service_of_its_own_fires(server: Server) -> None:
    pytest.importorskip("flask")
    pytest.importorskip("gunicorn")
    (server.folder / "gunicorn.conf.py").write_text("")
    server.start(*gunicorn())
    assert set(server.states(2).values()) == {"stopped"}
    assert server.ask("POST", "/reminders/ann?in_s=0") is not None
    with Wheel(server.wheel) as wheel:
        assert [message.topic for message in wheel.list()] == ["remind"]
        assert not wheel.has_keeper()
    worker = Server(server.folder, server.wheel)
    with (server.folder / "out").open("ab") as out:
        worker.process = subprocess.Popen(
            [sys.executable, "-m", "cli", "work", "flask_app:scheduler"], cwd=server.folder, stdout=out,
            start_new_session=True,
            env={**os.environ, "FILEWHEEL": str(server.wheel), "PYTHONPATH": f"{REPO}:{server.folder}"},
        )  # fmt: skip
    try:
        assert server.reminds("bob") == worker.process.pid
    finally:
        worker.stop()


def test_under_gunicorn_a_django_site_enqueues_after_the_commit_and_one_worker_fires(server: Server) -> None:
    pytest.importorskip("django")
    pytest.importorskip("gunicorn")
    (server.folder / "gunicorn.conf.py").write_text(FILES["gunicorn.conf.py"].replace("flask_app", "jobs"))
    (server.folder / "wsgi.py").write_text(
        "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
    )
    server.start(*gunicorn(app="wsgi:application"), DJANGO_SETTINGS_MODULE="settings")
    assert sorted(server.states(2).values()) == ["firing", "standby"]
    first = server.reminds("ann", "GET")
    os.kill(first, signal.SIGKILL)
    assert server.reminds("bob", "GET") != first


def test_the_worker_of_a_django_site_runs_as_a_service_of_its_own(server: Server) -> None:
    pytest.importorskip("django")
    command = [sys.executable, "-m", "cli", "-C", str(server.wheel)]
    env = {
        **os.environ, "FILEWHEEL": str(server.wheel), "PYTHONPATH": f"{REPO}:{server.folder}",
        "DJANGO_SETTINGS_MODULE": "settings",
    }  # fmt: skip
    enqueue = [*command, "enqueue", "--in", "0", "--topic", "remind", "--args", '["ann"]']
    subprocess.run(enqueue, env=env, check=True, stdout=subprocess.DEVNULL)
    work = [*command, "work", "worker:scheduler", "--once"]
    done = subprocess.run(work, env=env, cwd=server.folder, check=True, capture_output=True, text=True)
    assert SAID.search(done.stdout)
