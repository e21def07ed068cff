"""A process beside a cell's own: one producer of several, one at a rate or after a trace, a watched consumer."""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from tests.bench.cell import cpu_s, memory_mib
from tests.bench.load import US, Load, timed
from tests.bench.stores import BY_KEY
from tests.bench.trace import SPEED, events


def main() -> None:
    """Do what the order on the command line says."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    {"singles": singles, "steady": steady, "trace": trace, "open": opened}[order["task"]](order)


def ready() -> str:
    """Say so, and wait for the word."""
    print("ready", flush=True)
    return sys.stdin.readline()


def singles(order: dict[str, Any]) -> None:
    """Enqueue one after the other."""
    load = Load(order["seed"] + order["number"])
    payloads, dues = load.payloads(50_000), load.dues_us(50_000)
    session = BY_KEY[order["peer"]].store(Path(order["directory"])).session()
    session.enqueue(payloads[0], dues[0])
    ready()
    done, _ = timed(lambda i: session.enqueue(payloads[i % 50_000], dues[i % 50_000]), order["seconds"])
    print(done, flush=True)
    session.close()


def steady(order: dict[str, Any]) -> None:
    """Enqueue at a rate, each due a little later: every millisecond what the time has come for."""
    payloads = Load(order["seed"]).payloads(1000)
    session = BY_KEY[order["peer"]].store(Path(order["directory"])).session()
    lead_us = int(order["lead_s"] * US)
    ready()
    start = time.monotonic()
    sent = 0
    while (passed := time.monotonic() - start) < order["seconds"]:
        some = min(int(passed * order["rate"]) - sent, 1000)
        due_us = time.time_ns() // 1000 + lead_us
        if some == 1:
            session.enqueue(payloads[sent % 1000], due_us)
        elif some > 1:
            session.enqueue_many(payloads[:some], range(due_us, due_us + some))
        sent += max(0, some)
        time.sleep(0.001)
    session.close()
    print(sent, flush=True)


def trace(order: dict[str, Any]) -> None:
    """Walk the trace at its speed: every millisecond enqueue and cancel what the time has come for; note when."""
    enqueues, cancels = events(order["seed"], order["start_s"], order["end_s"])
    scale, shift = US / SPEED, order["start_s"]
    at_us = [int((e.at_s - shift) * scale) for e in enqueues]
    cancel_us = [int((c.at_s - shift) * scale) for c in cancels]
    dues = array("q", (int((e.due_s - shift) * scale) for e in enqueues))
    cancelled = array("q", bytes(8 * len(enqueues)))
    filler = Load(order["seed"]).payloads(1)[0][4:]
    directory = Path(order["directory"])
    session = BY_KEY[order["peer"]].store(directory).session()
    start_us = int(ready())
    spent = time.process_time()
    handles: list[tuple[Sequence[Any], int]] = []
    behind_us = sent = taken = 0
    while sent < len(enqueues) or taken < len(cancels):
        passed_us = time.time_ns() // 1000 - start_us
        end = min(bisect_right(at_us, passed_us, sent), sent + 1000)
        if end > sent:
            behind_us = max(behind_us, passed_us - at_us[sent])
            payloads = [n.to_bytes(4, "big") + filler for n in range(sent, end)]
            some = session.enqueue_many(payloads, [start_us + d for d in dues[sent:end]])
            handles += [(some, i) for i in range(end - sent)]
            sent = end
        end = bisect_right(cancel_us, passed_us, taken)
        numbers = list(takewhile(lambda n: n < sent, (c.number for c in cancels[taken:end])))  # noqa: B023
        if numbers:
            session.cancel_many([handles[n][0][handles[n][1]] for n in numbers])
            returned_us = time.time_ns() // 1000
            for n in numbers:
                cancelled[n] = returned_us
            taken += len(numbers)
        time.sleep(0.001)
    spent = time.process_time() - spent
    session.close()
    (directory / "dues").write_bytes(array("q", (start_us + d for d in dues)).tobytes())
    (directory / "cancels").write_bytes(cancelled.tobytes())
    print(json.dumps({"behind_ms": behind_us / 1000, "cpu_s": spent}), flush=True)


def opened(order: dict[str, Any]) -> None:
    """Open a consumer, let it fire one message, and then wait as it does; tell what that took."""
    store = BY_KEY[order["peer"]].store(Path(order["directory"]))
    begun = time.perf_counter()
    store.start(consume=True)
    session = store.session()
    session.enqueue(b"first", time.time_ns() // 1000)
    while not len(batch := session.claim(1)):
        session.wait(0.01)
    session.ack(batch)
    open_s = time.perf_counter() - begun
    pids = [os.getpid(), *store.pids()]
    time.sleep(0.5)
    spent, start = cpu_s(pids), time.monotonic()
    while (left := order["watch_s"] - (time.monotonic() - start)) > 0:
        session.ack(session.claim(1000))
        session.wait(min(left, 0.5))
    cpu = (cpu_s(pids) - spent) / (time.monotonic() - start)
    files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
    print(json.dumps({"open_s": open_s, "rss_mib": memory_mib(pids), "files": files, "cpu": cpu}), flush=True)
    session.close()
    store.stop()


if __name__ == "__main__":
    main()
