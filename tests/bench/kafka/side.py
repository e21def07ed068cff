"""One side of the comparison: a way to delay records, run as processes beside the broker.

Invariant: no process of a side outlives the measure that started it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.bench.cell import cpu_s, memory_mib
from tests.bench.kafka.rig import Failed, Names
from tests.kafka.cluster import free_ports

REPO = Path(__file__).parents[3]
WAIT_S = 120.0
LOOK_S = 0.05


class Server:
    """One process of a side, which says how far it is."""

    def __init__(self, command: list[str], log: Path, look: Callable[[], Mapping[str, float]] | None = None) -> None:
        self._out = log.open("ab")
        self._begin = self._out.tell()  # what an earlier process wrote says nothing of this one
        self.log = log
        self._look = look or self._last_line
        self.process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], cwd=REPO, stdin=subprocess.DEVNULL,
            stdout=self._out, stderr=self._out, start_new_session=True,
        )  # fmt: skip

    def figures(self) -> Mapping[str, float]:
        """Return `taken`, `fired` and `active` (partitions that are served); empty before it answers."""
        if self.process.poll() is not None:
            raise Failed(f"a service ended with {self.process.returncode}; {self.log} ends with:\n{self.tail()}")
        return self._look()

    def wait(self, reached: Callable[[Mapping[str, float]], bool], wait_s: float = WAIT_S) -> float:
        """Return when the figures are as wanted, and the monotonic time of that. Raises Failed."""
        give_up = time.monotonic() + wait_s
        figures: Mapping[str, float] = {}
        while time.monotonic() < give_up:
            figures = self.figures()
            if figures and reached(figures):
                return time.monotonic()
            time.sleep(LOOK_S)
        raise Failed(f"after {wait_s:g} s a service is at {dict(figures)}; {self.log} ends with:\n{self.tail()}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it."""
        self.process.send_signal(number)

    def memory_mib(self) -> float:
        """Return its resident memory."""
        return memory_mib([self.process.pid])

    def cpu_s(self) -> float:
        """Return the processor time that it has used."""
        return cpu_s([self.process.pid])

    def end(self) -> None:
        """Kill it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._out.close()

    def tail(self) -> str:
        """Return the last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-8:])

    def _last_line(self) -> Mapping[str, float]:
        """Read `FIGURES taken=1 fired=2` from the end of the log: what a process without /metrics prints."""
        size = self.log.stat().st_size
        with self.log.open("rb") as log:
            log.seek(max(size - 4096, self._begin))
            lines = log.read().decode(errors="replace").splitlines()
        for line in reversed(lines[:-1]):
            if line.startswith("FIGURES "):
                return {name: float(value) for name, _, value in (word.partition("=") for word in line.split()[1:])}
        return {}


class Side(Protocol):
    """A way to delay records."""

    @property
    def key(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def measures(self) -> frozenset[str] | None:
        """The measures that it takes part in; None: all."""

    def start(self, bootstrap: str, names: Names, folder: Path, node: str) -> Server:
        """Start one process of the service; `folder` keeps what it keeps on disk."""


@dataclass(frozen=True)
class Filewheel:
    """A node of `filewheel kafka run`."""

    key: str
    title: str
    flags: tuple[str, ...] = ()
    measures: frozenset[str] | None = None

    def start(self, bootstrap: str, names: Names, folder: Path, node: str) -> Server:
        """Start a node."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "cli", "kafka", "run", "-b", bootstrap, "-t", names.delay, "-d", str(folder / node),
            "--node", node, "--listen", address, *self.flags,
        ]  # fmt: skip
        return Server(command, folder / f"{node}.log", lambda: _scraped(address))


@dataclass(frozen=True)
class PutBack:
    """A process of putback.py."""

    key: str
    title: str
    measures: frozenset[str] | None = None

    def start(self, bootstrap: str, names: Names, folder: Path, node: str) -> Server:
        """Start a process."""
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.bench.kafka.putback", bootstrap, names.delay]
        return Server(command, folder / f"{node}.log")


@dataclass(frozen=True)
class Levels:
    """A node of `filewheel kafka levels`: a topic for each delay, and no wheel."""

    key: str
    title: str
    levels: str
    measures: frozenset[str] | None = None

    def start(self, bootstrap: str, names: Names, folder: Path, node: str) -> Server:
        """Start a node."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable, "-m", "cli", "kafka", "levels", "-b", bootstrap, "-t", names.delay,
            "--levels", names.levels, "--node", node, "--listen", address,
        ]  # fmt: skip
        return Server(command, folder / f"{node}.log", lambda: _scraped(address))


def _scraped(address: str) -> Mapping[str, float]:
    """Return what /metrics says; nothing before it answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found = {"taken": 0.0, "fired": 0.0, "active": 0.0, "ingested": 0.0}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("filewheel_kafka_in_total"):
            found["taken"] += float(value)
        elif name.startswith("filewheel_kafka_out_total"):
            found["fired"] += float(value)
        elif name.startswith("filewheel_kafka_ingested_offset"):
            found["ingested"] += float(value)
        elif name.startswith("filewheel_kafka_level_forwarded_total"):
            found["fired"] += float(value)
        elif name.startswith("filewheel_kafka_level_partitions{") or (
            name.startswith("filewheel_kafka_partitions{") and 'state="active"' in name
        ):
            found["active"] = float(value)  # each level has as many
    return found
