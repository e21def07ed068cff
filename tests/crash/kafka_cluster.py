"""Campaign: the delay service on three real brokers and three nodes, while both are killed, halted and wiped.

A round plays four services side by side on the same brokers, because the brokers cost more than the nodes. Each has
topics, three nodes and a fate of its own. For some seconds records are produced, one thread torments the brokers (one
at a time: min.insync.replicas is 2 of 3), and one for each service its nodes. Then all brokers and nodes run, and what
was confirmed must arrive. Two services promise exactly once; one of these, and one of the others, has standbys.
A node's clock may be off, so early is what came earlier than the largest error of a clock in its service allows.
On a violation the logs of nodes and brokers, the markers and the records are kept in a folder that the text names.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import subprocess
import tempfile
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.crash.kafka_cast import Load, Node, Seen, Sent, read_all
from tests.kafka.cluster import BrokerFailed, Cluster
from tests.kafka.jars import Unavailable, find_program

SERVICES = 4
"""Side by side in a round."""
TORMENT_S = 14.0
DRAIN_S = 100.0
RATE = 150
LONGEST_MS = 8_000
PARTITIONS = 6
NODES = 3
ANSWER_S = 60.0
CLOCKS_US = (0, 0, 0, -2_000_000, -300_000, 300_000, 2_000_000)
"""Errors of clocks; most are right."""
STAMPS_MS = 5
"""How far the broker's stamp may be before the node's time: they are rounded apart."""


@dataclass
class Service:
    """One service of a round under way."""

    number: int
    cluster: Cluster
    folder: Path
    tally: Tally
    topic: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:8]}")
    nodes: list[Node] = field(default_factory=list)
    ahead_us: int = 0
    """The largest lead of a clock in this service."""
    story: list[str] = field(default_factory=list)
    sent: Sent = field(default_factory=Sent)

    @property
    def exactly_once(self) -> bool:
        """Whether it promises exactly once."""
        return self.number % 2 == 1

    @property
    def has_standbys(self) -> bool:
        """Whether each node keeps a wheel of each partition."""
        return self.number // 2 % 2 == 1

    @property
    def target(self) -> str:
        """The topic that all records go to."""
        return f"{self.topic}-target"

    def tell(self, what: str) -> None:
        """Note what was done."""
        self.story.append(f"{time.time():.3f} {what}")


def play(number: int, tally: Tally, cluster: Cluster) -> None:
    """Play one round."""
    folder = Path(tempfile.mkdtemp(prefix=f"filewheel-kafka-cluster-{number}-"))
    first = number * SERVICES
    services = [
        Service(n, cluster, folder / str(n), Tally(tally.campaign, number)) for n in range(first, first + SERVICES)
    ]
    random_of = {service.number: random.Random(service.number) for service in services}
    try:
        for service in services:
            _make_topics(service)
            _make_nodes(service, random_of[service.number])
        _torment(services, random_of, random.Random(-1 - number))
        _each(services, _judge)
    finally:
        for service in services:
            for node in service.nodes:
                node.kill()
            if service.tally.violations:
                _keep(service)
            else:
                shutil.rmtree(service.folder, ignore_errors=True)
            _delete_topics(service)
            tally.count("services")
            tally.add(service.tally)
        with contextlib.suppress(OSError):  # a violation's folder stays
            folder.rmdir()


def _make_nodes(service: Service, rng: random.Random) -> None:
    service.folder.mkdir()
    order = {
        "bootstrap": service.cluster.bootstrap, "topic": service.topic, "exactly_once": service.exactly_once,
        "standby": "all" if service.has_standbys else "none", "unit": rng.choice([5, 50, 1000]),
    }  # fmt: skip
    service.nodes = [Node(order, service.folder, f"node-{n}") for n in range(NODES)]


def _each(services: list[Service], call: Callable[[Service], None]) -> None:
    """Do something to all services at once. An error is a violation of its service, whose folder is kept."""

    def guarded(service: Service) -> None:
        try:
            call(service)
        except Exception:
            service.tally.violation(traceback.format_exc())

    with ThreadPoolExecutor(len(services)) as pool:
        list(pool.map(guarded, services))


# -- the torment ---------------------------------------------------------------------------------------------------


def _torment(services: list[Service], random_of: Mapping[int, random.Random], rng: random.Random) -> None:
    """Produce while brokers and nodes are ill-treated; on return all of them run."""
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        brokers = pool.submit(_torment_brokers, services, rng, ended)
        try:
            _each(services, lambda service: _torment_nodes(service, random_of[service.number]))
        finally:
            ended.set()
        brokers.result()


def _torment_nodes(service: Service, rng: random.Random) -> None:
    """Produce to one service while its nodes are ill-treated; on return all that were not killed run."""
    for node in service.nodes:
        node.start()
    load = Load(service.cluster.bootstrap, service.topic, service.target, PARTITIONS, rng.randrange(1 << 30))
    service.sent = load.sent
    begun = time.monotonic()
    next_blow = begun + rng.uniform(1, 3)
    sent = 0
    while (now := time.monotonic()) < begun + TORMENT_S:
        while sent < (now - begun) * RATE:
            load.put(LONGEST_MS)
            sent += 1
        if now > next_blow:
            _blow(service, rng)
            next_blow = time.monotonic() + rng.uniform(0.3, 3)
        load.serve(0.01)
    load.end()
    for node in service.nodes:
        node.resume()
    service.tally.count("records", len(load.sent.confirmed))


def _blow(service: Service, rng: random.Random) -> None:
    """Do something to one node."""
    node = rng.choice(service.nodes)
    if not node.runs:
        node.kill()
        node.clock_us = rng.choice(CLOCKS_US)
        service.ahead_us = max(service.ahead_us, node.clock_us)
        service.tell(f"start {node.name}, clock {node.clock_us}")
        node.start()
        return
    if node.is_halted:
        service.tell(f"resume {node.name}")
        node.resume()
        return
    blow = rng.choice(["kills", "kills", "wiped disks", "halts", "halts", "stops"])
    service.tell(f"{blow} {node.name}")
    service.tally.count(blow)
    if blow == "halts":
        node.halt()
    elif blow == "stops":
        _stop(service, node)
    else:
        node.kill()
        if blow == "wiped disks":
            shutil.rmtree(node.data, ignore_errors=True)


def _stop(service: Service, node: Node) -> None:
    """Stop a node as an operator does: it has to end by itself, and well, if it had begun to serve."""
    try:
        code = node.stop()
    except subprocess.TimeoutExpired:
        service.tally.violation(f"{node.name} does not stop after SIGTERM; the end of its log says where it stands")
        node.tell_stacks()
        node.kill()
        return
    if code not in (0, -15, 1):  # -15: it was still starting; 1: a broker was away
        service.tally.violation(f"{node.name} ended with {code} after SIGTERM")


def _torment_brokers(services: list[Service], rng: random.Random, ended: threading.Event) -> None:
    """Kill or halt one broker after the other; on return all of them run."""
    cluster = services[0].cluster

    def tell(what: str) -> None:
        for service in services:
            service.tell(what)

    while not ended.wait(rng.uniform(1, 6)):
        number = rng.choice(list(cluster.nodes))
        if rng.random() < 0.5:
            tell(f"halt broker {number}")
            services[0].tally.count("halted brokers")
            cluster.pause(number)
            ended.wait(rng.uniform(0.5, 6))
            cluster.resume(number)
            tell(f"resume broker {number}")
        else:
            tell(f"kill broker {number}")
            services[0].tally.count("killed brokers")
            cluster.kill(number)
            ended.wait(rng.uniform(0, 3))
            cluster.start(number)
            tell(f"broker {number} runs")


# -- the verdict ---------------------------------------------------------------------------------------------------


def _judge(service: Service) -> None:
    """Wait until what was confirmed has arrived, stop the nodes, and compare."""
    sent = service.sent
    give_up = time.monotonic() + DRAIN_S
    arrived = 0
    while True:
        for node in service.nodes:
            if not node.runs:  # what a supervisor does
                node.kill()
                node.clock_us = 0
                node.start()
        with contextlib.suppress(TimeoutError):
            numbers = _numbers(read_all(service.cluster.bootstrap, service.target, PARTITIONS)).keys()
            if sent.confirmed <= numbers:
                break
            if len(numbers) > arrived:  # slow is not lost
                arrived, give_up = len(numbers), time.monotonic() + DRAIN_S
        if time.monotonic() > give_up:
            break
        time.sleep(0.5)
    for node in service.nodes:
        _stop(service, node)
    seen = read_all(service.cluster.bootstrap, service.target, PARTITIONS)
    verdict(service.tally, sent, seen, exactly_once=service.exactly_once, ahead_ms=service.ahead_us // 1000)


def verdict(tally: Tally, sent: Sent, seen: list[Seen], *, exactly_once: bool, ahead_ms: int) -> None:
    """Compare what was confirmed with what a reader of the target sees."""
    numbers = _numbers(seen)
    lost = sorted(sent.confirmed - numbers.keys())
    twice = sorted(number for number, count in numbers.items() if count > 1)
    strange = sorted(numbers.keys() - sent.due_ms.keys())
    early = sorted(
        n for record in seen if (n := int(record.value or b"-1")) in sent.due_ms
        and record.at_ms + ahead_ms + STAMPS_MS < sent.due_ms[n]
    )  # fmt: skip
    tally.count("arrived", len(numbers))
    tally.check(not lost, f"{len(lost)} confirmed records are lost: {lost[:10]}")
    tally.check(not strange, f"{len(strange)} records nobody sent: {strange[:10]}")
    tally.check(not early, f"{len(early)} records are early: {early[:10]}")
    if exactly_once:
        tally.check(not twice, f"{len(twice)} records came twice to a read_committed reader: {twice[:10]}")
    else:
        tally.count("doubled at least once", len(twice))


def _numbers(seen: list[Seen]) -> Counter[int]:
    return Counter(int(record.value or b"-1") for record in seen)


def _keep(service: Service) -> None:
    """Keep what explains a violation."""
    folder = service.folder
    (folder / "story").write_text("\n".join(service.story) + "\n")
    for suffix in ("", "-target", ".cursor", ".dlt"):
        with contextlib.suppress(Exception), (folder / f"records{suffix}.jsonl").open("w") as out:
            partitions = 1 if suffix == ".dlt" else PARTITIONS
            for record in read_all(service.cluster.bootstrap, service.topic + suffix, partitions, "read_uncommitted"):
                out.write(json.dumps(asdict(record), default=lambda value: value.decode("utf-8", "replace")) + "\n")
    for number, node in service.cluster.nodes.items():
        shutil.copy(node.log, folder / f"broker-{number}.log")
    service.tally.violations[-1].text += f"\nlogs, markers and records are in {folder}"


# -- the rig -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def three_brokers() -> Iterator[Cluster]:
    """Run three brokers for all rounds of a process."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-kafka-brokers-"))
    try:
        with Cluster(folder, 3) as cluster:
            if not find_program().archive.exists():  # only a clean stop leaves it, and here all are killed
                cluster.stop(1)
                cluster.start(1)
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _admin(service: Service) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": service.cluster.bootstrap, "log_level": 0})


def _make_topics(service: Service) -> None:
    """Make the topics of a service, once all brokers run."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    from filewheel.kafka import Policy, make_topics

    stopped = [number for number, node in service.cluster.nodes.items() if node.process is None]
    if stopped:
        service.cluster.start(*stopped)
    make_topics({"bootstrap.servers": service.cluster.bootstrap}, Policy(service.topic), partitions=PARTITIONS)
    new = NewTopic(service.target, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    admin = _admin(service)
    for done in admin.create_topics([new], operation_timeout=ANSWER_S).values():
        done.result(ANSWER_S)


def _delete_topics(service: Service) -> None:
    """Delete the topics of a service; what is left of them costs nothing but room."""
    names = [service.topic + suffix for suffix in ("", ".cursor", ".dlt", "-target")]
    admin = _admin(service)
    with contextlib.suppress(Exception):
        for done in admin.delete_topics(names, operation_timeout=ANSWER_S).values():
            done.result(ANSWER_S)


def missing() -> str | None:
    """Say why no broker can run here."""
    try:
        import confluent_kafka  # noqa: F401

        find_program()
    except (ImportError, Unavailable, BrokerFailed) as exc:
        return f"no brokers: {exc}"
    return None


CAMPAIGN = Campaign(
    name="kafka-cluster",
    title="three brokers and three nodes: kill -9 and SIGSTOP of both, wiped disks, rebalances, clocks that are off",
    play=play,
    share=0.05,
    targets={"records": 50_000, "services": 25},
    rig=three_brokers,
    missing=missing,
    short=0,
    jobs_max=1,
)
