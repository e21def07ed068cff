"""Campaign: a wheel under load, its bucket on a real S3 server, and kills of the replicator and of the server.

Producers and a keeper work; `filewheel replicate` is killed at random moments and started again; so is the server, or
it is stopped and goes on. The primary's note says until when the bucket had everything. Then a wheel is restored: what
was confirmed before that time and not acknowledged is pending in it, nothing is that was acknowledged before, and
`verify` finds nothing. In the end, with all in order, both wheels are the same.

The server is `versitygw`: `go install github.com/versity/versitygw/cmd/versitygw@latest`.
`python -m tests.crash.buckets NUMBER...` plays rounds.
Invariant: when a round ends, none of its processes lives.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from filewheel import Keeper, Wheel, add_backup, restore, set_status
from filewheel.disk.directory import open_directory, opened
from filewheel.roster.far import read_note
from filewheel.tools.diff import differences
from filewheel.tools.verify import verify
from tests.support import eventually

SERVER = "versitygw"
KEY, SECRET, BUCKET = "campaign", "campaign-secret", "jobs"
ROUND_S = 12.0
REPO = Path(__file__).parents[2]


def missing() -> str | None:
    """Return what this machine lacks, or None."""
    if shutil.which(SERVER) is None:
        return f"no {SERVER} on the PATH: go install github.com/versity/versitygw/cmd/versitygw@latest"
    try:
        import obstore  # noqa: F401
    except ImportError:
        return "the extra `objects` is not installed"
    return None


def now_us() -> int:
    return time.time_ns() // 1000


class Server:
    """An S3 server with a directory behind it."""

    def __init__(self, base: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._root = base / "s3"
        (self._root / BUCKET).mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        command = [SERVER, "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{self.port}", "posix"]
        self._process = subprocess.Popen(
            [*command, str(self._root)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        eventually(answers)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def use(self) -> str:
        """Point this process and those that it starts at the server; return the URL of the bucket."""
        os.environ |= {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        return f"s3://{BUCKET}/wheel"


class Round:
    """One round."""

    def __init__(self, number: int, base: Path) -> None:
        self.rng, self.base = random.Random(f"buckets {number}"), base
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.primary = base / "primary"
        Wheel.create(self.primary).close()
        self.server = Server(base)
        self.url = self.server.use()
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self.enqueued: dict[bytes, int] = {}
        """Id → when it was confirmed."""
        self.began: dict[bytes, int] = {}
        """Id → when its acknowledgement began."""
        self.acked: dict[bytes, int] = {}
        """Id → when that returned."""
        self._replicator: subprocess.Popen[bytes] | None = None

    def replicate(self) -> None:
        command = [sys.executable, "-m", "cli", "-C", str(self.primary), "-q", "replicate"]
        self._replicator = subprocess.Popen(
            command, cwd=REPO, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self._replicator is not None:
            self._replicator.kill()
            self._replicator.wait()

    # -- load --------------------------------------------------------------------------------------------------

    def produce(self) -> None:
        rng = random.Random(self.rng.random())
        with Wheel(self.primary) as wheel:
            while not self._ends.is_set():
                found = wheel.enqueue_many(
                    [b"x" * rng.randrange(200)] * rng.randrange(1, 5), delay=rng.choice((0, 1, 3, 900))
                )
                with self._lock:
                    self.enqueued |= {bytes(id_): now_us() for id_ in found}
                time.sleep(rng.random() * 0.05)

    def fire(self) -> None:
        rng = random.Random(self.rng.random())
        while not self._ends.is_set():
            with Keeper(self.primary, wait=True) as keeper:
                end = time.monotonic() + rng.uniform(1, 4)
                while time.monotonic() < end and not self._ends.is_set():
                    batch = keeper.claim(20)
                    if not batch:
                        keeper.wait(0.05)
                        continue
                    ids = [bytes(id_) for id_ in batch.ids]
                    with self._lock:
                        self.began |= dict.fromkeys(ids, now_us())
                    keeper.ack(batch)
                    with self._lock:
                        self.acked |= dict.fromkeys(ids, now_us())

    # -- what is done to it ------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let them work, and be killed; compare what is restored."""
        add_backup(self.primary, self.url)
        self.replicate()
        threads = [threading.Thread(target=act) for act in (self.produce, self.produce, self.fire)]
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + ROUND_S
            while time.monotonic() < end:
                time.sleep(self.rng.uniform(0.3, 1.5))
                self.rng.choice((self.kill_replicator, self.kill_server, self.stop_server, self.look, self.look))()
        finally:
            self._ends.set()
            for thread in threads:
                thread.join()
        eventually(self.in_step, timeout_s=150)
        self.look()
        done = restore(self.url, self.base / "last")
        with Wheel(self.primary) as ours, Wheel(done.path) as theirs:
            left = list(differences(ours, theirs))
            if left:
                self.wrong.append(f"at the end they differ: {left[:3]}")
        self.counts["objects"] += done.objects

    def in_step(self) -> bool:
        status = set_status(self.primary)
        assert status is not None
        one = status.members[0]
        return one.reachable and one.member.state == "current" and one.lag_bytes == 0

    def kill_replicator(self) -> None:
        self.kill()
        self.counts["kills of the replicator"] += 1
        time.sleep(self.rng.uniform(0, 0.5))
        self.replicate()

    def kill_server(self) -> None:
        self.server.signal(signal.SIGKILL)
        self.counts["kills of the server"] += 1
        time.sleep(self.rng.uniform(0, 2))
        self.server.start()

    def stop_server(self) -> None:
        self.server.signal(signal.SIGSTOP)
        self.counts["stops of the server"] += 1
        time.sleep(self.rng.uniform(0.1, 3))
        self.server.signal(signal.SIGCONT)

    def look(self) -> None:
        """Restore what is in the bucket, and compare it with what callers were told."""
        with opened(self.primary) as here:
            status = set_status(self.primary)
            assert status is not None
            note = read_note(here.disk, status.members[0].member.wheel)
        if not note.in_step_us:
            return
        path = self.base / f"restored-{self.counts['restores']}"
        done = restore(self.url, path)
        self.counts["restores"] += 1
        found = verify(open_directory(path, write=False))
        if found.damage:
            self.wrong.append(f"verify of {done}: {found.damage[0]}")
        with Wheel(path) as wheel:
            pending = {bytes(m.id) for m in wheel.list()}
        at_us = note.in_step_us
        with self._lock:
            lost = {i for i, us in self.enqueued.items() if us < at_us and i not in self.began} - pending
            back = pending & {i for i, us in self.acked.items() if us < at_us}
        if lost or back:
            self.wrong.append(f"{len(lost)} lost, {len(back)} back, in object {done.number}")
        shutil.rmtree(path)

    def close(self) -> None:
        self.kill()
        self.counts["messages"] = len(self.enqueued)
        self.server.signal(signal.SIGKILL)


def play(number: int) -> Round:
    """Play a round."""
    with tempfile.TemporaryDirectory(prefix="buckets-") as base:
        one = Round(number, Path(base))
        try:
            one.play()
        finally:
            one.close()
        return one


def main() -> int:
    """Play rounds, and print what was counted."""
    reason = missing()
    if reason:
        print(f"skipped: {reason}")
        return 0
    bad, total = 0, Counter[str]()
    for number in map(int, sys.argv[1:] or ["1"]):
        one = play(number)
        total.update(one.counts)
        for text in one.wrong:
            bad += 1
            print("VIOLATION", number, text, flush=True)
    print(dict(total), bad, "violations")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
