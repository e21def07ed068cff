"""A process with the shim in it that forks a child for each fault: everything is imported once.

It reads one JSON object a line (which scenario, where, which plan) and answers each with one: how the child ended,
what it said, how many calls it made. Invariant: what a child does touches nothing but its own directory.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import time
from typing import Any

import tests.crash.mutate  # noqa: F401

# isort: split
from tests.crash.actor import Actor
from tests.crash.scenarios import SCENARIOS, tiny
from tests.crash.scheduler_scenarios import SCHEDULER_SCENARIOS, Jobs, hasty
from tests.crash.set_scenarios import SET_SCENARIOS, SetActor, alone
from tests.crash.shim import Plan, Shim

EVERY = SCENARIOS | SET_SCENARIOS | SCHEDULER_SCENARIOS
HANGS_AFTER_S = 20.0


def child(order: dict[str, Any], pipe: int, shim: Shim) -> None:
    """Play the part of a scenario that was ordered. Never returns."""

    def say(mark: dict[str, Any]) -> None:
        os.write(pipe, json.dumps(mark).encode() + b"\n")

    scenario = EVERY[order["scenario"]]
    kind: type[Actor] = SetActor if scenario.is_set else Jobs if scenario.name in SCHEDULER_SCENARIOS else Actor
    path = os.path.join(order["dir"], "jobs.wheel")
    if order["part"] == "prepare":
        actor = kind(path, say, name="p")
        if scenario.prepare is not None:
            scenario.prepare(actor)
        if order["scenario"] != "take-over":
            actor.close()
        say({"op": "prepared", "phase": "end", "ids": [i.hex() for i in actor.ids], "now": actor.clock.now_us()})
    else:
        actor = kind(path, say, ids=order["ids"], now_us=order["now"])
        if isinstance(actor, Jobs):
            actor.draw()
        shim.arm(order["dir"], Plan(*order["plan"]))
        scenario.run(actor)
        actor.close()
        shim.disarm()  # before it is looked which files are open
        actor.end()
        say({"op": "counts", "phase": "end", "counts": shim.counts, "fired": shim.fired})
    os._exit(0)


def play(order: dict[str, Any], shim: Shim) -> dict[str, Any]:
    """Fork a child for an order; return what became of it."""
    get, put = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(get)
            child(order, put, shim)
        finally:
            shim.disarm()
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(70)
    os.close(put)
    said = b""
    begun = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, HANGS_AFTER_S)
    try:
        while data := os.read(get, 1 << 16):
            said += data
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    os.close(get)
    _, status = os.waitpid(pid, 0)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "marks": [json.loads(line) for line in said.splitlines()],
        "hung": time.monotonic() - begun > HANGS_AFTER_S,
    }


def _too_long(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    """Answer orders until there are no more."""
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, _too_long)
    shim = Shim()
    gc.collect()
    gc.freeze()
    with tiny(), alone(), hasty():
        for line in sys.stdin:
            print(json.dumps(play(json.loads(line), shim)), flush=True)


if __name__ == "__main__":
    main()
