"""The program of a Kafka broker: fetched once by Maven into the user's cache, and checked against pinned checksums.

The tests need a real broker, and no Python package contains one. This module owns the folder `filewheel/kafka-VERSION`
in the user's cache. Invariant: the folder `jars` there holds exactly the files of jars.sha256, each with its checksum;
it appears by one rename, so a fetch that was interrupted leaves only a temporary folder.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
VERSION = "4.4.0"
FETCH_TIMEOUT_S = 300
OLDEST_JAVA = 17


class Unavailable(Exception):
    """This machine cannot run a broker; the text is the reason, for a skip."""


class WrongJar(Exception):
    """A fetched jar is not the pinned one. This is never skipped."""


@dataclass(frozen=True)
class Program:
    """A broker that can be started: `java` with the class path, and the class-data archive that shortens its start."""

    java: str
    jars: Path
    archive: Path  # does not exist before the first clean stop of a broker


@functools.cache
def find_program() -> Program:
    """Return the broker's program; fetch and check it when the cache does not hold it.

    The first call on a machine downloads about 90 MB. Later calls cost one start of `java -version`.

    Raises:
        Unavailable: there is no Linux, Java, Maven or network.
        WrongJar: what was fetched differs from jars.sha256.
    """
    if not Path("/proc/self/stat").exists() or shutil.which("setpriv") is None:
        raise Unavailable("a broker for tests needs Linux and setpriv, which ends the broker together with the tests")
    java, version = _find_java()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "filewheel" / f"kafka-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    jars = cache / "jars"
    with exclusive(cache / "lock"):
        if not jars.exists():
            _fetch(jars)
        elif _names(jars) != set(pinned()):
            raise WrongJar(f"{jars} does not hold the files of {HERE / 'jars.sha256'}: remove it and run again")
    fingerprint = hashlib.sha256(version.encode() + (HERE / "jars.sha256").read_bytes()).hexdigest()[:16]
    return Program(java, jars, cache / f"classes-{fingerprint}.jsa")


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock on a file; other processes wait for it. The kernel releases it when the process ends."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pinned() -> dict[str, str]:
    """Return the SHA-256 of each jar by its file name."""
    lines = (HERE / "jars.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def check(folder: Path, expected: dict[str, str]) -> None:
    """Check that a folder holds exactly the expected files.

    Raises:
        WrongJar: a file is missing, is not expected, or has another checksum.
    """
    if _names(folder) != set(expected):
        raise WrongJar(f"fetched and pinned jars differ: {sorted(_names(folder) ^ set(expected))}")
    for name, digest in expected.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != digest:
            raise WrongJar(f"{folder / name} has SHA-256 {found}, pinned is {digest}")


def _names(folder: Path) -> set[str]:
    return set(os.listdir(folder))


def _find_java() -> tuple[str, str]:
    java = shutil.which("java")
    if java is None:
        raise Unavailable(f"java is not there: a broker needs version {OLDEST_JAVA} or later")
    version = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(\d+)', version)
    if number is None or int(number[1]) < OLDEST_JAVA:
        raise Unavailable(f"{java} is older than version {OLDEST_JAVA}: {version.splitlines()[:1]}")
    return java, version


def _fetch(jars: Path) -> None:
    """Fetch the jars with Maven, check them, and rename their folder to `jars`."""
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"{jars} does not exist, and mvn, which fetches the broker, is not there")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=jars.parent) as scratch:
        folder = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        command = [maven, "-B", "-q", "-f", str(HERE / "pom.xml"), *goal]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"mvn did not fetch the broker within {FETCH_TIMEOUT_S} s") from error
        if done.returncode:
            first = next((line for line in done.stdout.splitlines() if "ERROR" in line), done.stderr.strip())
            raise Unavailable(f"mvn could not fetch the broker (no network?): {first[:300]}")
        check(folder, pinned())
        folder.rename(jars)
