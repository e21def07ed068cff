"""What backups cost: how far a shipped one is behind, the replicator's processor time, the first copy, a mirror.

`python -m tests.bench.sets DIR OTHER` makes a primary in the one place and a backup in the other, best on two disks.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from filewheel import MessageId, Replicator, Wheel, add_backup

RATES = (100, 1000, 5000)
SECONDS = 6.0
FIRST_COPY = 1_000_000
_SERVE = """
import signal, sys
from filewheel import Replicator
replicator = Replicator(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: replicator.stop())
replicator.run()
"""


def processor_s(pid: int) -> float:
    """Return how much processor time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def lags_at(wheel: Wheel, backup: Wheel, rate: int, seconds: float) -> tuple[list[float], int]:
    """Enqueue at a rate; return how long twenty of them a second took to be in the backup, and how many there were."""
    sent: list[tuple[MessageId, float]] = []
    lags: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while sent or not over.is_set():
            if sent and backup.get(sent[0][0]) is not None:
                lags.append(time.time() - sent.pop(0)[1])
            else:
                time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.time()
    count = 0
    while time.time() < start + seconds:
        id_ = wheel.enqueue(b"x" * 100, delay=3600, sync="never")
        count += 1
        if count % max(1, rate // 20) == 0:
            sent.append((id_, time.time()))
        time.sleep(max(0.0, start + count / rate - time.time()))
    over.set()
    watcher.join()
    return sorted(lags), count


def following(primary: Path, backup: Path, *, seconds: float = SECONDS) -> None:
    """Print how a replicator in a process of its own does beside a producer."""
    Wheel.create(primary).close()
    add_backup(primary, backup)
    with Replicator(primary) as replicator:
        replicator.once()
    process = subprocess.Popen([sys.executable, "-c", _SERVE, str(primary)])
    try:
        time.sleep(2)
        used_s = processor_s(process.pid)
        time.sleep(seconds)
        print(f"idle: {(processor_s(process.pid) - used_s) / seconds:.1%} of a processor")
        with Wheel(primary) as wheel, Wheel(backup) as there:
            for rate in RATES:
                used_s = processor_s(process.pid)
                lags, count = lags_at(wheel, there, rate, seconds)
                each_us = (processor_s(process.pid) - used_s) / count * 1e6
                half, most = lags[len(lags) // 2] * 1e3, lags[int(len(lags) * 0.99)] * 1e3
                print(f"{rate:,} a second: behind {half:.0f} ms (p50), {most:.0f} ms (p99); {each_us:.0f} µs a message")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def first_copy(primary: Path, backup: Path, *, count: int = FIRST_COPY) -> None:
    """Print how fast a backup is filled."""
    with Wheel.create(primary) as wheel:
        for start in range(0, count, 10_000):
            delays = [60.0 + (start + n) % 7200 for n in range(min(10_000, count - start))]
            wheel.enqueue_many([b"x" * 100] * len(delays), delay=delays, sync="never")
    add_backup(primary, backup)
    start_s = time.perf_counter()
    with Replicator(primary) as replicator:
        (report,) = replicator.once()
    took_s = time.perf_counter() - start_s
    assert report.state == "following", report
    start_s = time.perf_counter()
    subprocess.run(["cp", "-a", primary, backup.with_name("cp")], check=True)
    subprocess.run(["sync", "-f", backup.with_name("cp")], check=True)
    plain_s = time.perf_counter() - start_s
    print(f"first copy of {count:,}: {took_s:.2f} s; `cp -a` and `sync -f`: {plain_s:.2f} s")


def mirrored(primary: Path, backup: Path, *, seconds: float = 3.0) -> None:
    """Print how many messages a second are enqueued, each durable in the primary and in a mirror."""
    Wheel.create(primary).close()
    add_backup(primary, backup, mode="mirror")
    with Replicator(primary) as replicator:
        replicator.once()
    for count in (1, 8):
        with Wheel(primary) as wheel:
            print(f"mirrored, {count} threads: {_rate(wheel, count, seconds):,.0f} a second")


def _rate(wheel: Wheel, threads: int, seconds: float) -> float:
    sent = [0] * threads
    end_s = time.perf_counter() + seconds

    def send(n: int) -> None:
        while time.perf_counter() < end_s:
            assert wheel.enqueue_many([b"x" * 100], delay=3600).copies == 2
            sent[n] += 1

    senders = [threading.Thread(target=send, args=(n,)) for n in range(threads)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    return sum(sent) / seconds


def main(here: Path, there: Path) -> None:
    """Measure, and print."""
    following(here / "following.wheel", there / "following.wheel")
    first_copy(here / "copied.wheel", there / "copied.wheel")
    mirrored(here / "mirrored.wheel", there / "mirrored.wheel")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
