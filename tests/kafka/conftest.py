"""Fixtures with a real Kafka broker: one shared by all workers of a run, or clusters of a test's own.

A test that uses one is skipped, with the reason, where this machine cannot run a broker. FILEWHEEL_KAFKA=host:port
names a broker that runs already; then only clusters of a test's own are started.
"""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.broker import launch
from tests.kafka.cluster import Cluster
from tests.kafka.jars import Unavailable, exclusive, find_program
from tests.kafka.nodes import Nodes
from tests.kafka.secured import SETTINGS, Secured

ANSWER_TIMEOUT_S = 30.0


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "kafka"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def can_run_kafka(run_folder: Path) -> None:
    """Skip where no broker can run. The first worker finds out; a fetch without a network can take minutes."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed: pip install 'filewheel[kafka]'")
    with exclusive(run_folder / "start.lock"):
        reason = run_folder / "unavailable"
        if not reason.exists():
            try:
                find_program()
            except Unavailable as error:
                reason.write_text(str(error))
        if reason.exists():
            pytest.skip(reason.read_text())


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, run_folder: Path) -> Iterator[str]:
    """The bootstrap list of a broker that all tests share: do not stop it, use topics and groups of fresh names."""
    given = os.environ.get("FILEWHEEL_KAFKA")
    if given:
        pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
        yield given
        return
    request.getfixturevalue("can_run_kafka")
    with exclusive(run_folder / "start.lock"):
        # A broker that lost its last user ends for good, so each start has a folder of its own.
        runs = sorted(run_folder.glob("run-*"))
        users = (runs[-1] / "users").open("a") if runs else None
        if users is not None:
            fcntl.flock(users, fcntl.LOCK_SH)
        if users is None or not (runs[-1] / "bootstrap").exists():
            folder = run_folder / f"run-{len(runs):03}"
            folder.mkdir()
            users = (folder / "users").open("a")
            fcntl.flock(users, fcntl.LOCK_SH)
            bootstrap = launch(folder, shared=True)
        else:
            bootstrap = (runs[-1] / "bootstrap").read_text()
    with users:
        yield bootstrap


@pytest.fixture
def topic(kafka: str) -> Iterator[Callable[..., str]]:
    """Make topics with fresh names, `topic(partitions=1, **{"cleanup.policy": "compact"})`; deleted at the end."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka})
    made: list[str] = []

    def make(partitions: int = 1, *, suffix: str = "", **config: Any) -> str:
        made.append(make_topic(admin, f"t-{uuid.uuid4().hex[:12]}{suffix}", partitions, config=config))
        return made[-1]

    yield make
    if made:
        for done in admin.delete_topics(made, operation_timeout=ANSWER_TIMEOUT_S).values():
            done.result(ANSWER_TIMEOUT_S)


@pytest.fixture(autouse=True, scope="module")
def clients_are_gone() -> Iterator[None]:
    """Free the clients that a test left in a circle: freed in the child of a fork, they end it with SIGSEGV."""
    yield
    gc.collect()


@pytest.fixture
def cluster(can_run_kafka: None, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start clusters of the test's own, `cluster(nodes=1)`, which it may kill; killed and deleted at the end."""
    made: list[Cluster] = []

    def make(nodes: int = 1, **options: Any) -> Cluster:
        made.append(Cluster(tmp_path / f"kafka-{len(made)}", nodes, **options))
        return made[-1].start()

    yield make
    for each in made:
        each.kill()
        each.wipe()


def make_topic(admin: Any, name: str, partitions: int = 1, *, replicas: int = -1, config: Any = None) -> str:
    """Make a topic and return its name when it is there."""
    from confluent_kafka.admin import NewTopic

    new = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=config or {})
    for done in admin.create_topics([new], operation_timeout=ANSWER_TIMEOUT_S).values():
        done.result(ANSWER_TIMEOUT_S)
    return name


@pytest.fixture
def nodes(tmp_path: Path, cluster: Any) -> Nodes:
    """Nodes on the cluster in memory of the test's file, which is its own fixture `cluster`."""
    return Nodes(tmp_path, cluster)


@pytest.fixture(scope="session")
def secured(can_run_kafka: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A broker with users and rules: one for each worker of a run."""
    with Cluster(tmp_path_factory.mktemp("secured"), settings=SETTINGS) as cluster:
        yield Secured(cluster.bootstrap)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 34 MiB: a little more than one segment of a journal."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=34m,mode=0700", "tmpfs", mount]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)
