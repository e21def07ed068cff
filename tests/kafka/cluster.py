"""Starts real Kafka brokers on loopback for tests that kill, halt or wipe them.

A cluster owns one folder: a subfolder for each node with its settings, data and log. Nodes are broker and controller
in one (KRaft). Invariant: no broker outlives the process that started it. The kernel kills a broker when the thread
that started it ends, so all are started from one thread that lives as long as its process.
"""

from __future__ import annotations

import base64
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kafka.jars import Program, find_program

CLUSTER_ID = "filewheelTestClusterAA"  # 22 characters: base64 of 16 bytes
START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
HEAP = "256m"
_STARTER = ThreadPoolExecutor(1, "kafka-starter")
"""It lives as long as this process: a bound process is killed when the *thread* ends that started it."""

# A killed broker is not admitted again before its session ends, hence the short one; much shorter, and a machine under
# load fences brokers that are well.
SETTINGS = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
default.replication.factor={replicas}
min.insync.replicas={insync}
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={insync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={insync}
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
group.consumer.min.session.timeout.ms=1000
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=500
num.network.threads=2
num.io.threads=4
num.replica.fetchers=1
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=1000
log.retention.check.interval.ms=1000
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""

LOGGING = """\
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
logger.server.name = kafka.server
logger.server.level = INFO
"""


class BrokerFailed(Exception):
    """A broker did not start or stop; the text ends with the last lines of its log."""


class Node:
    """One broker of a cluster: its folder, its two ports, its process."""

    def __init__(
        self, program: Program, number: int, folder: Path, ports: tuple[int, int], java: tuple[str, ...] = ()
    ) -> None:
        self.program, self.number, self.folder = program, number, folder
        self._options = java
        self.port, self.controller = ports
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / "out.log"
        self._log_start = 0  # the size of the log when the process started
        self._new_archive: Path | None = None

    def configure(self, nodes: list[Node], settings: str) -> None:
        """Write the settings, and format the data folder when there is none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replicated = len(nodes) >= 3
        text = SETTINGS.format(
            node=self.number,
            voters=",".join(f"{node.number}@127.0.0.1:{node.controller}" for node in nodes),
            port=self.port,
            controller=self.controller,
            data=self.folder / "data",
            replicas=3 if replicated else 1,
            insync=2 if replicated else 1,
        )
        (self.folder / "server.properties").write_text(text + settings)
        (self.folder / "log4j2.properties").write_text(LOGGING)
        if not (self.folder / "data").exists():
            self._format()

    def start(self) -> None:
        """Start the process; `wait` returns when it answers."""
        assert self.process is None, f"node {self.number} runs already"
        archive = self.program.archive
        if archive.exists():
            shared = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto"]
        else:
            self._new_archive = archive.with_name(f"{archive.name}.{os.getpid()}.{self.number}")
            shared = [f"-XX:ArchiveClassesAtExit={self._new_archive}"]
        options = [f"-Xmx{HEAP}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *shared]
        command = self._java([*options, *self._options], "kafka.Kafka", str(self.folder / "server.properties"))
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn(command, self.log)

    def wait(self) -> None:
        """Return when the broker answers.

        Raises:
            BrokerFailed: the process ended, or did not answer in time.
        """
        give_up = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self.process is None or self.process.poll() is not None or time.monotonic() > give_up:
                raise BrokerFailed(f"node {self.number} did not start; {self.log} ends with:\n{self.tail()}")
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def reap(self) -> None:
        """Return when the process ended; after a clean stop its class-data archive is kept for later starts."""
        if self.process is None:
            return
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BrokerFailed(f"node {self.number} did not stop; {self.log} ends with:\n{self.tail()}") from error
        clean, self.process = self.process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM), None
        if self._new_archive is not None:
            # A kill leaves half an archive or none: only a whole one gets the name.
            if clean and self._new_archive.exists():
                self._new_archive.rename(self.program.archive)
            self._new_archive.unlink(missing_ok=True)
            self._new_archive = None

    def tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:]) if self.log.exists() else ""

    def _answers(self) -> bool:
        # The port opens before the controller admits the broker; this line of the log comes after that.
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            if b"Kafka Server started" not in log.read():
                return False
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _format(self) -> None:
        """Format the data folder as Kafka's own tool does, from a form in the cache: that tool takes a second."""
        form = self.program.archive.with_suffix(".form")
        if not form.exists():
            self._make_form(form)
        shutil.copytree(form, self.folder / "data")
        directory = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        lines = ["version=1", f"node.id={self.number}", f"cluster.id={CLUSTER_ID}", f"directory.id={directory}"]
        (self.folder / "data" / "meta.properties").write_text("\n".join([*lines, ""]))

    def _make_form(self, form: Path) -> None:
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1"]
        arguments = ["format", "-t", CLUSTER_ID, "-c", str(self.folder / "server.properties")]
        command = self._java(options, "kafka.tools.StorageTool", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BrokerFailed(f"the data folder was not formatted: {done.stdout}{done.stderr}")
        (self.folder / "data" / "meta.properties").unlink()
        try:
            (self.folder / "data").rename(form)
        except OSError:  # another file system, or another process was first
            shutil.copytree(self.folder / "data", form, dirs_exist_ok=True)
            shutil.rmtree(self.folder / "data")

    def _java(self, options: list[str], main: str, *arguments: str) -> list[str]:
        logging = f"-Dlog4j2.configurationFile=file:{self.folder / 'log4j2.properties'}"
        return [self.program.java, *options, logging, "-cp", f"{self.program.jars}/*", main, *arguments]


class Cluster:
    """One broker, or three with replication 3 and min.insync.replicas 2. Nodes are numbered from 1.

    A cluster keeps its ports for its life, so that clients find a node again after a kill. `settings` are lines of
    server.properties, `java` options of the virtual machine; both count before the ones here.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 1,
        *,
        port: int | None = None,
        settings: Iterable[str] = (),
        java: Iterable[str] = (),
    ) -> None:
        program = find_program()
        self.folder = folder
        ports = free_ports(2 * nodes) if port is None else list(range(port, port + 2 * nodes))
        options = tuple(java)
        pairs = zip(ports[:nodes], ports[nodes:], strict=True)
        self.nodes = {n: Node(program, n, folder / str(n), pair, options) for n, pair in enumerate(pairs, 1)}
        self._settings = "".join(f"{line}\n" for line in settings)

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as clients take them."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    def start(self, *numbers: int) -> Self:
        """Start the given nodes, or all; return when they answer.

        Raises:
            BrokerFailed: a node did not start; the others are killed.
        """
        chosen = self._chosen(numbers)
        try:
            for node in chosen:
                node.configure(list(self.nodes.values()), self._settings)
                node.start()
            for node in chosen:
                node.wait()
        except BaseException:
            self.kill(*numbers)
            raise
        return self

    def stop(self, *numbers: int) -> None:
        """Stop the given nodes, or all, as an operator does (SIGTERM)."""
        self._end(signal.SIGTERM, numbers)

    def kill(self, *numbers: int) -> None:
        """Kill the given nodes, or all (SIGKILL); what the kernel had taken over is not lost."""
        self._end(signal.SIGKILL, numbers)

    def pause(self, *numbers: int) -> None:
        """Halt the given nodes, or all (SIGSTOP): connections stay, answers do not come."""
        for node in self._chosen(numbers):
            node.signal(signal.SIGSTOP)

    def resume(self, *numbers: int) -> None:
        """Let paused nodes go on."""
        for node in self._chosen(numbers):
            node.signal(signal.SIGCONT)

    def wipe(self, *numbers: int) -> None:
        """Delete the data of stopped nodes; the next start formats them again."""
        for node in self._chosen(numbers):
            assert node.process is None, f"node {node.number} still runs"
            shutil.rmtree(node.folder / "data")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Kill all nodes and delete their data; the logs stay."""
        self.kill()
        self.wipe()

    def _chosen(self, numbers: Iterable[int]) -> list[Node]:
        return [self.nodes[number] for number in numbers] or list(self.nodes.values())

    def _end(self, number: signal.Signals, numbers: Iterable[int]) -> None:
        chosen = self._chosen(numbers)
        for node in chosen:
            node.signal(number)
        for node in chosen:
            node.reap()


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on, below those that the kernel gives to outgoing connections.

    So no client takes the port of a broker that was killed and starts again.
    """
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(10_000 if lowest > 12_000 else 1_024, lowest)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def spawn(command: list[str], log: Path, cwd: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a process that is killed when this one ends, and not before."""

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as out:
            bound = ["setpriv", "--pdeathsig", "KILL", *command]
            # Its own session: Ctrl-C ends the tests, and a test decides when its brokers end.
            return subprocess.Popen(
                bound, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, cwd=cwd
            )

    return _STARTER.submit(start).result()
