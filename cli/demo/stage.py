"""The processes of the demo: producers and keepers, and the records that they write.

They are the real commands: a producer is `filewheel enqueue --batch` (or producer.py, which survives the loss of its
wheel), a keeper is `filewheel run` with its stdout appended to a file outside the wheel. Only those files prove the
fired messages, not the wheel.
Invariant: no process outlives its Stage.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filewheel import Wheel

from ..failure import Failure

PATIENCE_S = 20.0
CONFIRMED = "producer.jsonl"
_ROOT = (__package__ or "").partition(".")[0]
_HERE = Path(__file__).resolve().parents[1]


def samples() -> dict[str, list[dict[str, Any]]]:
    """Read the sample messages: name → rows for `enqueue --batch`."""
    checkout = _HERE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "data" / "samples").is_dir():
        files: list[Any] = list((checkout / "data" / "samples").iterdir())
    else:
        files = list((importlib.resources.files(_ROOT) / "samples").iterdir())
    found = {}
    for file in sorted(files, key=lambda f: str(f.name)):
        if file.name.endswith(".jsonl"):
            lines = file.read_text(encoding="utf-8").splitlines()
            found[file.name.removesuffix(".jsonl")] = [json.loads(line) for line in lines]
    return found


@dataclass
class KeeperProcess:
    """A `filewheel run`, and its output so far."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    read: int = 0
    fired: list[tuple[str, float]] = field(default_factory=list)
    """(id, late_ms) in the order of firing."""
    latest: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=16))
    """Its last lines."""
    times: list[float] = field(default_factory=list)
    """The time of each firing, in seconds since the epoch."""

    @property
    def first_at(self) -> float | None:
        """The time of its first firing, or None."""
        return self.times[0] if self.times else None

    @property
    def last_at(self) -> float | None:
        """The time of its last firing."""
        return self.times[-1] if self.times else None

    def follow(self) -> int:
        """Read its new complete lines; return the number of messages."""
        lines, self.read = read_lines_from(self.log, self.read)
        for fields in lines:
            self.fired.append((fields["id"], fields["late_ms"]))
            if "due_us" in fields:
                self.times.append(fields["due_us"] / 1e6 + fields["late_ms"] / 1e3)
        self.latest.extend(lines)
        return len(lines)


def read_lines_from(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Read the complete lines of JSON after an offset; return them, and the offset after them."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read()
    whole = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], offset + len(whole)


class DemoStage:
    """The demo's processes, in their own directory. A context manager that ends them all."""

    def __init__(self, where: Path, wheel: Path) -> None:
        self._where = where
        self.wheel = wheel
        self.keepers: list[KeeperProcess] = []
        self._producers: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._others: list[subprocess.Popen[bytes]] = []
        self._env = {**os.environ, "PYTHONPATH": _python_path()}
        self._env.pop("FILEWHEEL", None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in [k.process for k in self.keepers] + [p for p, _ in self._producers] + self._others:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _start(
        self, args: list[str], stdin: Path | None, stdout: Path, *, wheel: Path | None = None, module: str = ""
    ) -> subprocess.Popen[bytes]:
        if module:
            command = [sys.executable, "-m", f"{_ROOT}.{module}", *args]
        else:
            command = [sys.executable, "-m", _ROOT, "-C", str(wheel or self.wheel), *args]
        with (
            open(stdin or os.devnull, "rb") as source,
            open(stdout, "ab") as target,
            open(self._where / "stderr.txt", "ab") as talk,
        ):
            # In the stage's empty directory: `-m` searches the current directory first.
            return subprocess.Popen(
                command, stdin=source, stdout=target, stderr=talk, env=self._env, cwd=self._where,
                start_new_session=True,
            )  # fmt: skip

    def keeper(self, wheel: Path | None = None) -> KeeperProcess:
        """Start a keeper; the first one of a wheel fires, the others stand by."""
        name = f"keeper-{len(self.keepers) + 1}"
        log = self._where / f"{name}.jsonl"
        log.touch()
        keeper = KeeperProcess(name, self._start(["run"], None, log, wheel=wheel), log)
        self.keepers.append(keeper)
        return keeper

    def is_keeper(self, keeper: KeeperProcess, wheel: Path | None = None) -> bool:
        """Return whether a process is the keeper of a wheel."""
        with Wheel(wheel or self.wheel) as opened:
            return opened.stats().keeper_pid == keeper.process.pid

    def await_keeper(self, keeper: KeeperProcess, wheel: Path | None = None) -> None:
        """Wait until a process is the keeper. Raises Failure when it ends, or takes too long."""
        end = time.monotonic() + PATIENCE_S
        while not self.is_keeper(keeper, wheel):
            if keeper.process.poll() is not None or time.monotonic() > end:
                raise Failure("failed", f"{keeper.name} did not start: {self.talk() or 'no reason given'}")
            time.sleep(0.005)

    def producer(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Start a producer that enqueues these rows and ends."""
        source = self._where / f"{name}-{len(self._producers)}.in.jsonl"
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        target = source.with_suffix(".ids")
        self._producers.append((self._start(["enqueue", "--batch", "-q"], source, target), target))

    def other(self, name: str, args: list[str], wheel: Path) -> subprocess.Popen[bytes]:
        """Start another command; `written(name)` has its output."""
        process = self._start(args, None, self._where / f"{name}.jsonl", wheel=wheel)
        self._others.append(process)
        return process

    def written(self, name: str) -> list[dict[str, Any]]:
        """Return the output of another command so far."""
        return read_lines_from(self._where / f"{name}.jsonl", 0)[0]

    def steady_producer(self, rows: list[dict[str, Any]], rate: float, wheels: list[Path]) -> None:
        """Start the producer that outlives a wheel; it records confirmed messages in the file CONFIRMED."""
        source, target = self._where / "producer.in.jsonl", self._where / CONFIRMED
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        args = [str(rate), *map(str, wheels)]
        self._producers.append((self._start(args, source, target, module="demo.producer"), target))

    def producing(self) -> bool:
        """Return whether a producer still runs."""
        return any(process.poll() is None for process, _ in self._producers)

    def enqueued(self) -> list[str]:
        """Return the ids that the producers printed: the confirmed messages."""
        ids: list[str] = []
        for process, target in self._producers:
            if process.wait():
                raise Failure("failed", f"a producer failed: {self.talk()}")
            ids += target.read_text(encoding="ascii").split()
        return ids

    @property
    def producers(self) -> int:
        """The number of producers so far."""
        return len(self._producers)

    def talk(self) -> str:
        """Return the stderr of the processes."""
        with contextlib.suppress(OSError):
            return (self._where / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip()
        return ""


def kill(keeper: KeeperProcess) -> None:
    """Kill a keeper with SIGKILL."""
    keeper.process.send_signal(signal.SIGKILL)
    keeper.process.wait()


def _python_path() -> str:
    """Return a PYTHONPATH that finds this package from anywhere, installed or not."""
    parts = [os.environ.get("PYTHONPATH", "")]
    if (_HERE.parent / _ROOT / "__main__.py").is_file():
        parts.insert(0, str(_HERE.parent))
    return os.pathsep.join(part for part in parts if part)
