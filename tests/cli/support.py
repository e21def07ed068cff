"""The command line for tests: in this process, as a process of its own, and on a terminal."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import inspect
import json
import os
import pty
import select
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from cli.main import cli
from filewheel.disk.directory import open_directory
from filewheel.laps.tidy import tidy
from tests.support import REPO
from tests.warm import warm

# What a shell might have set, and would change what is printed.
_NEUTRAL = {"FILEWHEEL": None, "NO_COLOR": None, "COLUMNS": None, "LINES": None, "FORCE_COLOR": None}


@dataclass
class Result:
    """How an invocation ended."""

    code: int
    out: str
    err: str
    raw: bytes = b""

    @property
    def lines(self) -> list[str]:
        """The lines of stdout."""
        return self.out.splitlines()

    @property
    def json(self) -> list[dict[str, Any]]:
        """The lines of stdout as objects."""
        return [json.loads(line) for line in self.lines]

    @property
    def error(self) -> dict[str, Any]:
        """The last line of stderr as an object."""
        found = json.loads(self.err.splitlines()[-1])
        assert isinstance(found, dict)
        return found


def invoke(*args: object, stdin: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """Run the command line in this process, piped."""
    options: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**options).invoke(cli, [str(a) for a in args], input=stdin, env={**_NEUTRAL, **(env or {})})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Result(result.exit_code, result.stdout_bytes.decode("utf-8", "replace"), result.stderr, result.stdout_bytes)


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a process of its own."""
    found = {k: v for k, v in os.environ.items() if k not in _NEUTRAL}
    return {**found, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "", "TERM": "xterm", **more}


@functools.cache
def _forking() -> str:
    """Return a script that forks the command line from a process that has imported it, until this process ends."""
    open_until = contextlib.ExitStack()
    atexit.register(open_until.close)
    folder = open_until.enter_context(tempfile.TemporaryDirectory(prefix="filewheel-warm-"))
    script = Path(folder) / "filewheel"
    script.write_text(open_until.enter_context(warm(own=())))
    script.chmod(0o755)
    return str(script)


def forked(*args: object, env: dict[str, str] | None = None) -> list[str] | None:
    """Return the command for a process that is waited for, and gets no signal; None if it has to start by itself."""
    of_interpreter = any(name.startswith(("PYTHON", "LC_", "LANG")) for name in env or ())
    return None if of_interpreter else [_forking(), *map(str, args)]


def start(
    *args: object,
    command: list[str] | None = None,
    cwd: Path = REPO,
    env: dict[str, str] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start the command line, or another command, as a process."""
    command = command or [sys.executable, "-W", "error", "-m", "cli", *map(str, args)]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environment(**(env or {})), text=True, **{**pipes, **options})


def finish(process: subprocess.Popen[str], stdin: str | None = None, timeout: float = 120) -> Result:
    """Wait for a process, and return how it ended."""
    try:
        out, err = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Result(process.returncode, out or "", err or "")


class Fw:
    """The command line with one wheel."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel

    def __call__(self, *args: object, stdin: str | bytes | None = None, code: int = 0, **env: str) -> Result:
        """Run in this process, and expect an exit code."""
        result = invoke("-C", self.wheel, *args, stdin=stdin, env=env)
        assert result.code == code, result
        return result

    def start(self, *args: object, **options: Any) -> subprocess.Popen[str]:
        """Start as a process."""
        return start("-C", self.wheel, *args, **options)

    def process(self, *args: object, stdin: str | None = None, code: int = 0, **options: Any) -> Result:
        """Run as a process, and expect an exit code."""
        if stdin is not None:
            options["stdin"] = subprocess.PIPE
        if "command" not in options:
            options["command"] = forked("-C", self.wheel, *args, env=options.get("env"))
        result = finish(self.start(*args, **options), stdin)
        assert result.code == code, result
        return result

    def enqueue(self, *args: object, stdin: str | bytes | None = None) -> list[str]:
        """Enqueue and return the ids."""
        return self("enqueue", *args, stdin=stdin).lines

    def deal(self) -> None:
        """Bring what the journals hold into laps and slots."""
        assert tidy(open_directory(self.wheel, write=True))

    def pending(self) -> list[dict[str, Any]]:
        """Return what is pending."""
        return self("inspect", "list").json

    def dead(self) -> list[dict[str, Any]]:
        """Return the dead letters."""
        return self("inspect", "list", "--dead").json


class Terminal:
    """A process on a terminal of its own."""

    def __init__(
        self,
        *args: object,
        command: list[str] | None = None,
        columns: int = 80,
        rows: int = 40,
        env: dict[str, str] | None = None,
        stdin: int | None = None,
    ) -> None:
        """`stdin`, as Popen takes it, is where the process reads from instead of the terminal."""
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.text = ""
        try:
            self.process = start(
                *args, command=command, env=env, stdin=theirs if stdin is None else stdin,
                stdout=theirs, stderr=theirs, start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(theirs)

    def _read(self, timeout: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], timeout)
        data = b""
        if ready:
            with contextlib.suppress(OSError):  # the other end is closed
                data = os.read(self._fd, 65536)
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data) or not ready

    def wait_for(self, text: str, timeout: float = 120, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until this was printed; do something ten times a second until then."""
        end = time.monotonic() + timeout
        while text not in self.text:
            assert time.monotonic() < end, self.text
            meanwhile()
            assert self._read(0.1), self.text

    def type(self, text: str) -> None:
        """Type something."""
        os.write(self._fd, text.encode())

    def finish(self, timeout: float = 120) -> Result:
        """Wait for the end, and return everything that was printed."""
        end = time.monotonic() + timeout
        while self._read(0.1):
            if time.monotonic() > end:
                self.process.kill()
                break
        code = self.process.wait(timeout=60)
        os.close(self._fd)
        return Result(code, self.text, "")


@contextlib.contextmanager
def stopped(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Make sure that a process has ended when this is left, and every other that would write into its pipes."""
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        # A command of `run` is in a session of its own and outlives it: the end of the pipes would wait for it.
        # Again until there is none: a shell may start its next command between the look and its end.
        while writers := _writers(process):
            for pid in writers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.communicate()


def _writers(process: subprocess.Popen[str]) -> set[int]:
    """Return the other processes that have what this one writes into open for writing."""
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None and not stream.closed]
    pipes = {os.readlink(f"/proc/self/fd/{stream.fileno()}") for stream in streams}
    found = set()
    for fd in Path("/proc").glob("[0-9]*/fd/*") if pipes else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            pid = int(fd.parts[2])
            if pid != os.getpid() and os.readlink(fd) in pipes and fd.lstat().st_mode & stat.S_IWUSR:
                found.add(pid)
    return found


def on_terminal(*args: object, **options: Any) -> Result:
    """Run on a terminal."""
    if "command" not in options:
        options["command"] = forked(*args, env=options.get("env"))
    return Terminal(*args, **options).finish()
