"""Nodes, producers and workers of the last release beside those of this one, on a real broker.

The other release is the tree of a commit, taken from the history of this checkout.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.support import finish, stopped
from tests.cli.support import start as started
from tests.kafka.reading import read
from tests.support import REPO, eventually, some

LAST = "c16a5873"
"""The last commit of release 0.2.0."""
WAIT_S = 120.0
COMMAND = [sys.executable, "-m", "cli", "kafka"]


def both(first: bool) -> pytest.MarkDecorator:
    """Both modes; by day only the first."""
    modes = some([first, not first], one_of=2)
    return pytest.mark.parametrize("exactly_once", modes, ids=lambda once: "exactly-once" if once else "at-least-once")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The two trees, by name."""
    try:
        packed = subprocess.run(
            ["git", "archive", LAST, "filewheel", "cli"], cwd=REPO, capture_output=True, check=True
        ).stdout  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"the history of the checkout has no commit {LAST}: {exc}")
    old = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(old, filter="data")
    return {"old": old, "new": REPO}


@dataclass
class Two:
    """A delay topic, and the commands of two releases on it."""

    trees: dict[str, Path]
    bootstrap: str
    topic: str
    folder: Path
    options: Sequence[str] = ()

    @property
    def target(self) -> str:
        return f"{self.topic}-target"

    def environment(self, release: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.trees[release])}

    def run(self, release: str, *words: str, topic: str = "", lines: Sequence[str] = ()) -> str:
        """Run a verb to its end."""
        done = subprocess.run(
            [*COMMAND, words[0], "-b", self.bootstrap, "-t", topic or self.topic, *words[1:]],
            cwd=self.trees[release], env=self.environment(release), input="\n".join(lines), capture_output=True,
            text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def produce(self, release: str, *names: str) -> None:
        lines = [json.dumps({"payload": name, "in": n % 4, "target": self.target}) for n, name in enumerate(names)]
        self.run(release, "produce", "--batch", "-", lines=lines)

    @contextmanager
    def node(self, release: str, data: str) -> Iterator[None]:
        """Run a node of a release until the end of the block; SIGTERM ends it."""
        words = ["-b", self.bootstrap, "-t", self.topic, "-d", str(self.folder / data), "--node", data, *self.options]
        log = self.folder / f"{data}.{release}.log"
        with log.open("a") as stderr:
            command = [*COMMAND, "run", *words]
            process = started(
                command=command, cwd=self.trees[release], env={"PYTHONPATH": str(self.trees[release])}, stderr=stderr
            )
        with stopped(process):
            yield
            process.send_signal(signal.SIGTERM)
            assert finish(process, timeout=90).code == 0, log.read_text()
        assert "ERROR" not in log.read_text(), log.read_text()

    def states(self) -> list[tuple[str, str]]:
        return [(r["owner"], r["state"]) for r in map(json.loads, self.status().splitlines())]

    def status(self) -> str:
        done = subprocess.run(
            [*COMMAND, "status", "-b", self.bootstrap, "-t", self.topic],
            cwd=REPO, env=self.environment("new"), capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        return done.stdout

    def topics(self) -> set[str]:
        from confluent_kafka.admin import AdminClient

        return set(AdminClient({"bootstrap.servers": self.bootstrap}).list_topics(timeout=30).topics)

    def wait_for(self, names: Counter[bytes], *, exactly: bool) -> None:
        def seen() -> Counter[bytes]:
            return Counter(message.value() for message in read(self.bootstrap, self.target))

        eventually(lambda: seen().keys() >= names.keys(), timeout_s=WAIT_S)
        if exactly:
            assert seen() == names


@pytest.fixture
def two(kafka: str, trees: dict[str, Path], tmp_path: Path) -> Callable[..., Two]:
    def make(*options: str) -> Two:
        made = Two(trees, kafka, f"t-{uuid.uuid4().hex[:12]}", tmp_path, options)
        made.run("old", "init", "--partitions", "4")
        made.run("new", "init", "--partitions", "1", topic=made.target)
        return made

    return make


@both(True)
def test_nodes_of_two_releases_share_a_group_and_the_newer_goes_on_with_the_data_of_the_older(
    two: Callable[..., Two], exactly_once: bool
) -> None:
    here = two(*["--exactly-once"] * exactly_once)
    sent: Counter[bytes] = Counter()

    def produce(*releases: str) -> None:
        for release in releases:
            names = [f"{release}-{len(sent) + n}" for n in range(20)]
            here.produce(release, *names)
            sent.update(name.encode() for name in names)

    def both_serve(*names: str) -> None:
        wanted = dict.fromkeys(names, 2)
        eventually(lambda: Counter(o for o, s in here.states() if s == "active") == wanted, timeout_s=WAIT_S)

    with here.node("old", "a"):
        produce("old", "new")
        with here.node("new", "b"):
            both_serve("a", "b")
            produce("new", "old")
            here.wait_for(sent, exactly=exactly_once)
            produce("old")
    # Upgraded, beside one that goes back: it reads its partitions from the log.
    with here.node("new", "a"), here.node("old", "back"):
        both_serve("a", "back")
        produce("new", "old")
        here.wait_for(sent, exactly=exactly_once)
    with here.node("new", "back"):
        produce("old")
        here.wait_for(sent, exactly=exactly_once)


APP = """\
import sys, time
from filewheel import Retry
from filewheel.kafka import KafkaScheduler

bootstrap, topic, calls, name, out, once = sys.argv[1:7]
more = {"exactly_once": True, "name": name} if once == "True" else {}
scheduler = KafkaScheduler(bootstrap, topic=topic, calls=calls, session_s=6, **more)

@scheduler.on("work", retry=Retry(limit=2, delay_s=0.2))
def work(n):
    with open(out, "a") as file:
        file.write(f"{name} {n}\\n")
    if n % 5 == 0 and name == "old":
        raise ValueError("the other release does it")

if sys.argv[7:]:
    for n in range(int(sys.argv[7]), int(sys.argv[8])):
        scheduler.enqueue("work", [n], delay=n % 3 / 2)
    scheduler.stop()
else:
    if name == "new":
        scheduler.make_topics(partitions=4)
    scheduler.run()
"""


@both(False)
def test_workers_and_programs_of_two_releases_share_the_calls(
    two: Callable[..., Two], tmp_path: Path, exactly_once: bool
) -> None:
    here = two(*["--exactly-once"] * exactly_once)
    app, out = tmp_path / "app.py", tmp_path / "out"
    app.write_text(APP)
    out.touch()

    def words(release: str, *more: str) -> list[str]:
        calls = f"{here.topic}-calls"
        return [
            sys.executable, str(app), here.bootstrap, here.topic, calls, release, str(out), str(exactly_once), *more
        ]  # fmt: skip

    @contextmanager
    def worker(release: str) -> Iterator[None]:
        process = started(command=words(release), env={"PYTHONPATH": str(here.trees[release])}, cwd=tmp_path)
        with stopped(process):
            yield
            process.send_signal(signal.SIGTERM)
            assert finish(process, timeout=90).code == 0

    def ran() -> dict[str, set[int]]:
        found: dict[str, set[int]] = {"old": set(), "new": set()}
        for line in out.read_text().splitlines():
            name, n = line.split()
            found[name].add(int(n))
        return found

    with here.node("old", "a"), worker("new"):
        eventually(lambda: f"{here.topic}-calls" in here.topics(), timeout_s=WAIT_S)
        with worker("old"):
            for n, release in enumerate(("old", "new")):
                subprocess.run(
                    words(release, str(n * 100), str(n * 100 + 100)), env=here.environment(release), check=True,
                    timeout=WAIT_S,
                )  # fmt: skip
            eventually(lambda: ran()["new"] | ran()["old"] == set(range(200)), timeout_s=WAIT_S)
    assert ran()["old"]
    assert ran()["new"]
