"""Processes that are killed (SIGKILL) at any moment: each record goes out once, as long as chunk and marker are one.

The file `sent` stands for Kafka with transactions: a line holds a chunk and its marker, and counts when it is whole.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from filewheel.kafka.partition.marker import Marker
from filewheel.kafka.partition.packing import LogPut
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import RecordOrigin
from filewheel.kafka.records.fate import offset_of
from tests.kafka.parts import check_whole, pending
from tests.support import REPO

KILLS = 7
SHARE = 1_000
RECORDS = (KILLS + 1) * SHARE
BATCH = 100
START_MS = 1_700_000_000_000


def log_from(offset: int, end: int) -> list[LogPut]:
    """Return the next batch of a log that ends at `end`. Its records are overdue, in no order."""
    some = range(offset, min(end, offset + BATCH))
    return [LogPut(n, (START_MS + (n * 7919) % 100_000) * 1000, "target", b"%d" % n, START_MS) for n in some]


def lines_of(path: Path) -> list[dict[str, object]]:
    """Return the whole lines of what was sent."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1] if line.endswith(b"}")]


def marker_of(path: Path) -> Marker:
    lines = lines_of(path)
    return Marker.unpack(str(lines[-1]["marker"]).encode()) if lines else Marker()


def serve(base: Path, end: int) -> None:
    """Take in and fire a log that ends at `end`. Before its real end, wait to be killed."""
    sent = base / "sent"
    fd = os.open(sent, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b"\n")  # what a killed process left is no line
    partition = Partition(base / "3", RecordOrigin("cluster", "delay", 3))
    marker = marker_of(sent)
    partition.apply(marker)
    partition.advance(marker.low)
    while partition.ingested < marker.ingested:  # nothing fires before the log was read as far as it had been
        partition.take_in(log_from(partition.ingested, end))
    turn = 0
    while True:
        turn += 1
        partition.take_in(log_from(partition.ingested, end))
        chunk = partition.next_chunk(70)
        if chunk.ids:
            marker = marker.after_chunk(chunk.ingested, chunk.last_id).with_low(partition.low())
            fields = {"offsets": [offset_of(m.id) for m in chunk.messages], "marker": marker.pack().decode()}
            os.write(fd, json.dumps(fields).encode() + b"\n")
            partition.settle(chunk)
        elif partition.ingested == RECORDS:
            partition.close()
            return
        elif partition.ingested == end:
            time.sleep(0.001)
        if turn % 20 == 0:
            partition.flush()
            partition._keeper._housekeeper.deal_all()


def test_each_record_goes_out_once_though_processes_are_killed(tmp_path: Path) -> None:
    rng = random.Random(3)
    for process in range(KILLS + 1):
        # Each process has records left that no process before it had, so the killer never comes too late.
        end = (process + 1) * SHARE
        before = len(lines_of(tmp_path / "sent"))
        child = subprocess.Popen([sys.executable, "-m", __name__, str(tmp_path), str(end)], cwd=REPO)
        if process < KILLS:
            # From the first line on: most of a process's life is its start.
            while len(lines_of(tmp_path / "sent")) == before:
                assert child.poll() is None
                time.sleep(0.005)
            time.sleep(rng.random() * 0.08)
            child.send_signal(signal.SIGKILL)
        assert child.wait(timeout=240) == (-signal.SIGKILL if process < KILLS else 0)
    fired = [offset for line in lines_of(tmp_path / "sent") for offset in line["offsets"]]  # type: ignore[attr-defined]
    assert len(fired) == len(set(fired)) == RECORDS
    assert pending(tmp_path / "3") == []
    check_whole(tmp_path / "3")


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
