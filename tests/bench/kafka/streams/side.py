"""Starts DelayStreams.java. Its jars are fetched once by Maven into the user's cache, and checked as the broker's are.

Invariant: the folder `jars` in the cache holds exactly the files of jars.sha256.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.bench.kafka.rig import Names
from tests.bench.kafka.side import Server
from tests.bench.store import Missing
from tests.kafka.jars import Unavailable, check, exclusive, find_program

HERE = Path(__file__).parent
FETCH_TIMEOUT_S = 300


@dataclass(frozen=True)
class Streams:
    """A process of DelayStreams."""

    key: str
    title: str
    guarantee: str
    measures: frozenset[str] | None = None

    def start(self, bootstrap: str, names: Names, folder: Path, node: str) -> Server:
        """Start a process. Raises Missing without Java, Maven or network."""
        jars = fetched()
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            find_program().java, "-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{jars}/*",
            str(HERE / "DelayStreams.java"), bootstrap, names.delay, str(folder / node), self.guarantee,
        ]  # fmt: skip
        return Server(command, folder / f"{node}.log")


def fetched() -> Path:
    """Return the folder of the jars. Raises Missing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "filewheel" / "streams-4.4.0"
    cache.mkdir(parents=True, exist_ok=True)
    jars = cache / "jars"
    with exclusive(cache / "lock"):
        if not jars.exists():
            _fetch(jars)
    return jars


def _fetch(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing("mvn, which fetches Kafka Streams, is not there")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as scratch:
        folder = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        command = [maven, "-B", "-q", "-f", str(HERE / "pom.xml"), *goal]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
            find_program()
        except (subprocess.TimeoutExpired, Unavailable) as error:
            raise Missing(f"Kafka Streams was not fetched: {error}") from error
        if done.returncode:
            raise Missing(f"mvn could not fetch Kafka Streams (no network?): {done.stdout[:300]}")
        lines = (HERE / "jars.sha256").read_text().splitlines()
        check(folder, {name: digest for digest, name in (line.split() for line in lines)})
        folder.rename(jars)
