"""A process beside a cell's own: a producer among several, a producer at a rate, a consumer that is opened and watched."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.bench.cell import cpu_s, memory_mib
from tests.bench.load import US, Load, timed
from tests.bench.stores import BY_KEY


def main() -> None:
    """Do what the order on the command line says."""
    order: dict[str, Any] = json.loads(sys.argv[1])
    {"singles": singles, "steady": steady, "open": opened}[order["task"]](order)


def ready() -> None:
    """Say so, and wait for the word."""
    print("ready", flush=True)
    sys.stdin.readline()


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
