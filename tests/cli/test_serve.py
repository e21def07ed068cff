"""`serve`: where it listens, who may act, and how it ends."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from filewheel import Wheel
from tests.cli.support import Fw, Terminal, finish, start, stopped
from tests.live.web_support import TOKEN


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Return the line that says where it listens."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    found: dict[str, Any] = json.loads(line)
    return found


def get(url: str, token: str = "") -> Any:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_cleanly_with_a_stream_open(fw: Fw, number: int) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("under nohup a hang-up is ignored, here and by what is started here")
    with stopped(fw.start("serve", "--listen", "127.0.0.1:0", "--open")) as process:
        url, _, _ = told(process)["url"].partition("#")
        assert get(f"{url}api/live")["wheel"] == str(fw.wheel)
        with urllib.request.urlopen(f"{url}api/events", timeout=60) as events:
            assert events.readline() == b"event: live\n"
            process.send_signal(number)
            assert finish(process).code == 0
            while events.readline():
                pass


def test_a_signal_that_another_thread_gets_ends_it(fw: Fw) -> None:
    with stopped(fw.start("serve", "--listen", "127.0.0.1:0")) as process:
        told(process)
        others = [int(name) for name in os.listdir(f"/proc/{process.pid}/task") if int(name) != process.pid]
        sys_tgkill = {"x86_64": 234, "aarch64": 131}[os.uname().machine]
        assert ctypes.CDLL(None, use_errno=True).syscall(sys_tgkill, process.pid, others[0], signal.SIGTERM) == 0
        assert finish(process).code == 0


def test_other_users_of_the_machine_read_nothing_unless_it_is_open(fw: Fw) -> None:
    for options, said in (((), "who has the token, read-only"), (("--open",), "all users of this machine, read-only")):
        with stopped(fw.start("serve", "--listen", "127.0.0.1:0", *options)) as process:
            found = told(process)
            assert found["acts"] is False
            url, _, token = found["url"].partition("#token=")
            assert get(f"{url}api/live", token)["stats"]["pending"] == 0
            if options:
                assert get(f"{url}api/live")["stats"]["pending"] == 0
            else:
                with pytest.raises(urllib.error.HTTPError, match="401"):
                    get(f"{url}api/live")
            process.send_signal(signal.SIGTERM)
            assert finish(process).err.startswith(f"serving {fw.wheel} to {said}")


def test_a_token_that_is_made_up_is_in_the_link_and_another_each_time(fw: Fw) -> None:
    tokens = set()
    for _ in range(2):
        with stopped(fw.start("serve", "--listen", "127.0.0.1:0")) as process:
            url, _, token = told(process)["url"].partition("#token=")
            assert len(token) >= 32
            assert get(f"{url}api/access", token)["token"] is True
            assert get(f"{url}api/access", token[:-1] + "!")["token"] is False
            tokens.add(token)
            process.send_signal(signal.SIGTERM)
            finish(process)
    assert len(tokens) == 2


def test_a_token_from_the_environment_or_a_file_is_not_printed_and_not_on_the_command_line(
    fw: Fw, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    for options, env in (((), {"FILEWHEEL_TOKEN": TOKEN}), (("--token-file", file), {})):
        with stopped(fw.start("serve", "--listen", "127.0.0.1:0", "--act", *options, env=env)) as process:
            found = told(process)
            assert found["acts"] is True
            assert get(f"{found['url']}api/access", TOKEN)["token"] is True
            assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
            process.send_signal(signal.SIGTERM)
            ended = finish(process)
            assert TOKEN not in json.dumps(found) + ended.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "0.0.0.0:0", "--open"], "other machines"),
        (["--listen", "nowhere"], "no address"),
        (["--token-file", "missing"], "cannot be read"),
    ],
)
def test_what_is_not_allowed_is_refused_at_once(fw: Fw, options: list[str], said: str) -> None:
    result = fw("serve", *options, code=2)
    assert said in result.err
    assert "Try:" in result.err


def test_a_file_that_others_can_read_is_no_token(fw: Fw, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o644)
    assert "chmod 600" in fw("serve", "--token-file", file, code=2).err
    file.chmod(0o600)
    file.write_text("short")
    assert "16 to 1024 characters" in fw("serve", "--token-file", file, "--listen", "127.0.0.1:0", code=2).err


def test_an_outside_address_with_a_token_is_served_and_asks_for_it(fw: Fw) -> None:
    env = {"FILEWHEEL_TOKEN": TOKEN}
    with stopped(fw.start("serve", "--listen", "0.0.0.0:0", env=env)) as process:
        url = told(process)["url"]
        assert get(f"{url}api/live", TOKEN)["stats"]["pending"] == 0
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            get(f"{url}api/live")
        refused.value.close()


def test_a_missing_wheel_is_named_and_served_when_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "later.wheel"
    with stopped(start("-C", path, "serve", "--listen", "127.0.0.1:0", "--open")) as process:
        url, _, _ = told(process)["url"].partition("#")
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            get(f"{url}api/live")
        refused.value.close()
        Wheel.create(path).close()
        assert get(f"{url}api/live")["stats"]["pending"] == 0
        process.send_signal(signal.SIGTERM)
        assert "no such directory" in finish(process).err


def test_on_a_terminal_the_link_is_a_line(fw: Fw) -> None:
    terminal = Terminal("-C", fw.wheel, "serve", "--listen", "127.0.0.1:0")
    terminal.wait_for("Ctrl-C ends it")
    assert terminal.text.startswith("http://127.0.0.1:")
    terminal.process.send_signal(signal.SIGINT)
    ended = terminal.finish()
    assert ended.code == 0
    assert "Traceback" not in ended.out


def test_without_the_extra_it_names_it(fw: Fw, tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('No module named uvicorn', name='uvicorn')\n")
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()])}
    found = subprocess.run(
        [sys.executable, "-m", "cli", "-C", str(fw.wheel), "serve"], env={**os.environ, **env}, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "filewheel[web]" in found.stderr
