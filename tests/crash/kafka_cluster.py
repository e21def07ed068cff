"""Campaign: the delay service on three real brokers and three nodes, while both are killed, halted and wiped.

A round has topics of its own. For some seconds records are produced, one thread torments the brokers (one at a time:
min.insync.replicas is 2 of 3), and another the nodes. Then all brokers and nodes run, and what was confirmed must
arrive. Even rounds promise at least once, odd ones exactly once; every other pair of rounds has standbys.
A node's clock may be off, so early is what came earlier than the largest error of a clock in its round allows.
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
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.campaign import Campaign, Tally
from tests.crash.kafka_cast import Load, Node, Seen, Sent, read_all
from tests.kafka.cluster import BrokerFailed, Cluster
from tests.kafka.jars import Unavailable, find_program

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
class Round:
    """One round under way."""

    number: int
    cluster: Cluster
    folder: Path
    tally: Tally
    topic: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex[:8]}")
    nodes: list[Node] = field(default_factory=list)
    ahead_us: int = 0
    """The largest lead of a clock in this round."""
    story: list[str] = field(default_factory=list)

    @property
    def exactly_once(self) -> bool:
        """Whether this round promises exactly once."""
        return self.number % 2 == 1

    @property
    def target(self) -> str:
        """The topic that all records go to."""
        return f"{self.topic}-target"

    def tell(self, what: str) -> None:
        """Note what was done."""
        self.story.append(f"{time.time():.3f} {what}")


def play(number: int, tally: Tally, cluster: Cluster) -> None:
    """Play one round."""
    rng = random.Random(number)
    folder = Path(tempfile.mkdtemp(prefix=f"filewheel-kafka-cluster-{number}-"))
    round_ = Round(number, cluster, folder, tally)
    before = len(tally.violations)
    try:
        _make_topics(round_)
        order = {
            "bootstrap": cluster.bootstrap, "topic": round_.topic, "exactly_once": round_.exactly_once,
            "standby": "all" if number // 2 % 2 else "none", "unit": rng.choice([5, 50, 1000]),
        }  # fmt: skip
        round_.nodes = [Node(order, folder, f"node-{n}") for n in range(NODES)]
        sent = _torment(round_, rng)
        _judge(round_, sent)
    finally:
        for node in round_.nodes:
            node.kill()
        if len(tally.violations) > before:
            _keep(round_)
        else:
            shutil.rmtree(folder)
        _delete_topics(round_)


# -- the torment ---------------------------------------------------------------------------------------------------


def _torment(round_: Round, rng: random.Random) -> Sent:
    """Produce while brokers and nodes are ill-treated; return what was sent, with all of them running."""
    for node in round_.nodes:
        node.start()
    load = Load(round_.cluster.bootstrap, round_.topic, round_.target, PARTITIONS, rng.randrange(1 << 30))
    ended = threading.Event()
    failures: list[BaseException] = []
    seed = rng.randrange(1 << 30)

    def brokers() -> None:
        try:
            _torment_brokers(round_, random.Random(seed), ended)
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=brokers)
    thread.start()
    begun = time.monotonic()
    next_blow = begun + rng.uniform(1, 3)
    sent = 0
    try:
        while (now := time.monotonic()) < begun + TORMENT_S:
            while sent < (now - begun) * RATE:
                load.put(LONGEST_MS)
                sent += 1
            if now > next_blow:
                _blow(round_, rng)
                next_blow = time.monotonic() + rng.uniform(0.3, 3)
            load.serve(0.01)
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]
    load.end()
    for node in round_.nodes:
        node.resume()
    round_.tally.count("records", len(load.sent.confirmed))
    return load.sent


def _blow(round_: Round, rng: random.Random) -> None:
    """Do something to one node."""
    node = rng.choice(round_.nodes)
    if not node.runs:
        node.kill()
        node.clock_us = rng.choice(CLOCKS_US)
        round_.ahead_us = max(round_.ahead_us, node.clock_us)
        round_.tell(f"start {node.name}, clock {node.clock_us}")
        node.start()
        return
    if node.is_halted:
        round_.tell(f"resume {node.name}")
        node.resume()
        return
    blow = rng.choice(["kills", "kills", "wiped disks", "halts", "halts", "stops"])
    round_.tell(f"{blow} {node.name}")
    round_.tally.count(blow)
    if blow == "halts":
        node.halt()
    elif blow == "stops":
        _stop(round_, node)
    else:
        node.kill()
        if blow == "wiped disks":
            shutil.rmtree(node.data, ignore_errors=True)


def _stop(round_: Round, node: Node) -> None:
    """Stop a node as an operator does: it has to end by itself, and well, if it had begun to serve."""
    try:
        code = node.stop()
    except subprocess.TimeoutExpired:
        round_.tally.violation(f"{node.name} does not stop after SIGTERM")
        node.kill()
        return
    if code not in (0, -15, 1):  # -15: it was still starting; 1: a broker was away
        round_.tally.violation(f"{node.name} ended with {code} after SIGTERM")


def _torment_brokers(round_: Round, rng: random.Random, ended: threading.Event) -> None:
    """Kill or halt one broker after the other; on return all of them run."""
    cluster = round_.cluster
    while not ended.wait(rng.uniform(1, 6)):
        number = rng.choice(list(cluster.nodes))
        if rng.random() < 0.5:
            round_.tell(f"halt broker {number}")
            round_.tally.count("halted brokers")
            cluster.pause(number)
            ended.wait(rng.uniform(0.5, 6))
            cluster.resume(number)
            round_.tell(f"resume broker {number}")
        else:
            round_.tell(f"kill broker {number}")
            round_.tally.count("killed brokers")
            cluster.kill(number)
            ended.wait(rng.uniform(0, 3))
            cluster.start(number)
            round_.tell(f"broker {number} runs")


# -- the verdict ---------------------------------------------------------------------------------------------------


def _judge(round_: Round, sent: Sent) -> None:
    """Wait until what was confirmed has arrived, stop the nodes, and compare."""
    give_up = time.monotonic() + DRAIN_S
    while True:
        for node in round_.nodes:
            if not node.runs:  # what a supervisor does
                node.kill()
                node.clock_us = 0
                node.start()
        with contextlib.suppress(TimeoutError):
            seen = read_all(round_.cluster.bootstrap, round_.target, PARTITIONS)
            if sent.confirmed <= _numbers(seen).keys() or time.monotonic() > give_up:
                break
        if time.monotonic() > give_up + DRAIN_S:
            raise TimeoutError("the target cannot be read")
        time.sleep(0.5)
    for node in round_.nodes:
        _stop(round_, node)
    seen = read_all(round_.cluster.bootstrap, round_.target, PARTITIONS)
    verdict(round_.tally, sent, seen, exactly_once=round_.exactly_once, ahead_ms=round_.ahead_us // 1000)


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


def _keep(round_: Round) -> None:
    """Keep what explains a violation."""
    folder = round_.folder
    (folder / "story").write_text("\n".join(round_.story) + "\n")
    for suffix in ("", "-target", ".cursor", ".dlt"):
        with contextlib.suppress(Exception), (folder / f"records{suffix}.jsonl").open("w") as out:
            partitions = 1 if suffix == ".dlt" else PARTITIONS
            for record in read_all(round_.cluster.bootstrap, round_.topic + suffix, partitions, "read_uncommitted"):
                out.write(json.dumps(asdict(record), default=lambda value: value.decode("utf-8", "replace")) + "\n")
    for number, node in round_.cluster.nodes.items():
        shutil.copy(node.log, folder / f"broker-{number}.log")
    round_.tally.violations[-1].text += f"\nlogs, markers and records are in {folder}"


# -- the rig -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def three_brokers() -> Iterator[Cluster]:
    """Run three brokers for all rounds of a process."""
    folder = Path(tempfile.mkdtemp(prefix="filewheel-kafka-brokers-"))
    try:
        with Cluster(folder, 3) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _admin(round_: Round) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": round_.cluster.bootstrap, "log_level": 0})


def _make_topics(round_: Round) -> None:
    """Make the topics of a round, once all brokers run."""
    from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

    from filewheel.kafka import Policy, make_topics

    stopped = [number for number, node in round_.cluster.nodes.items() if node.process is None]
    if stopped:
        round_.cluster.start(*stopped)
    make_topics({"bootstrap.servers": round_.cluster.bootstrap}, Policy(round_.topic), partitions=PARTITIONS)
    new = NewTopic(round_.target, PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    admin = _admin(round_)
    for done in admin.create_topics([new], operation_timeout=ANSWER_S).values():
        done.result(ANSWER_S)


def _delete_topics(round_: Round) -> None:
    """Delete the topics of a round; what is left of them costs nothing but room."""
    names = [round_.topic + suffix for suffix in ("", ".cursor", ".dlt", "-target")]
    admin = _admin(round_)
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
    targets={"records": 50_000},
    rig=three_brokers,
    missing=missing,
    short=0,
    jobs_max=1,
)
