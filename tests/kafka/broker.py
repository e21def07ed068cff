"""Runs a cluster in a process of its own: one for all workers of a test run, or by hand.

    python -m tests.kafka.broker start [--folder DIR] [--nodes 1|3] [--port 29092]     prints the bootstrap list
    python -m tests.kafka.broker stop [--folder DIR]

The folder belongs to that process while `bootstrap` is in it: the file appears when the brokers answer, and goes before
they stop. Invariant: a shared cluster lives exactly as long as a process holds the shared lock on its file `users`,
which the kernel releases however that process ends.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kafka.cluster import START_TIMEOUT_S, BrokerFailed, Cluster
from tests.kafka.jars import Unavailable, find_program

REPO = Path(__file__).parents[2]


def launch(folder: Path, *, nodes: int = 1, port: int | None = None, shared: bool = False) -> str:
    """Start a process that holds a cluster; return the bootstrap list when the brokers answer.

    A shared cluster needs a caller that holds the shared lock on `folder / "users"`, and stops with the last holder.
    Another one stops by `stop`.

    Raises:
        BrokerFailed: the brokers did not start; the text ends with the log.
        Unavailable: this machine cannot run a broker.
    """
    find_program()
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.kafka.broker", "hold", "--folder", str(folder), "--nodes", str(nodes)]
    command += ["--port", str(port)] * (port is not None) + ["--shared"] * shared
    log, pid = folder / "hold.log", folder / "pid"
    pid.unlink(missing_ok=True)
    ended, alive = os.pipe()
    with log.open("wb") as out:
        # No child of this process, which it outlives: a Popen whose process runs on at the end is a warning.
        command = ["setsid", "--fork", *command]
        subprocess.run(
            command, cwd=REPO, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[alive], check=True
        )
    os.close(alive)
    give_up = time.monotonic() + START_TIMEOUT_S
    try:
        while not (folder / "bootstrap").exists():
            if select.select([ended], [], [], 0.05)[0] or time.monotonic() > give_up:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                raise BrokerFailed(f"no broker in {folder}; {log} says:\n{log.read_text()}")
    finally:
        os.close(ended)
    return (folder / "bootstrap").read_text()


def hold(folder: Path, nodes: int, port: int | None, shared: bool) -> None:
    """Run a cluster until the last user is gone, or until SIGTERM; then stop it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    (folder / "pid").write_text(str(os.getpid()))
    cluster = Cluster(folder, nodes, port=port).start()
    aside = folder / "bootstrap.new"
    aside.write_text(cluster.bootstrap)
    aside.rename(folder / "bootstrap")
    with (folder / "users").open("a") as users:
        if shared:
            fcntl.flock(users, fcntl.LOCK_EX)
        else:
            signal.sigwait({signal.SIGTERM, signal.SIGINT})
        (folder / "bootstrap").unlink()
    cluster.stop()
    if shared:
        cluster.wipe()


def stop(folder: Path) -> None:
    """Stop the cluster that was started by hand in a folder; its data stays for the next start."""
    if not (folder / "bootstrap").exists():
        raise BrokerFailed(f"no cluster runs in {folder}: start one with python -m tests.kafka.broker start")
    pid = int((folder / "pid").read_text())
    os.kill(pid, signal.SIGTERM)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.05)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.kafka.broker", description="A Kafka cluster on loopback.")
    parser.add_argument("verb", choices=["start", "stop", "wipe", "hold"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / f"filewheel-kafka-{os.getuid()}")
    parser.add_argument("--nodes", type=int, choices=[1, 3], default=1)
    parser.add_argument("--port", type=int, help="the first of two ports for each node; default for start: 29092")
    parser.add_argument("--shared", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        if given.verb == "hold":
            hold(given.folder, given.nodes, given.port, given.shared)
        elif given.verb == "start":
            print(launch(given.folder, nodes=given.nodes, port=given.port or 29_092))
        elif given.verb == "stop":
            stop(given.folder)
        elif (given.folder / "bootstrap").exists():
            raise BrokerFailed(f"a cluster runs in {given.folder}: stop it with python -m tests.kafka.broker stop")
        else:
            shutil.rmtree(given.folder)
    except (BrokerFailed, Unavailable) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
