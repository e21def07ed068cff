"""A node of the delay service for the campaign on three brokers: a short session, a clock that is off, little memory.

`python -m tests.crash.kafka_node JSON`. SIGTERM ends it as it ends `filewheel kafka run`. Invariant: beside the session
and the clock it is the service that users run.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import resource
import signal
import sys
import threading
from typing import Any

ADDRESS_SPACE_BYTES = 4 << 30
"""Threads and their stacks included. A leak ends the node, and not the machine."""


def main() -> int:
    """Run it until SIGTERM."""
    order = json.loads(sys.argv[1])
    faulthandler.register(signal.SIGUSR2)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    _shift_clock(order["clock_us"])
    from filewheel.kafka import NodeSettings, Policy, delay_service

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    settings = NodeSettings(
        exactly_once=order["exactly_once"], standby=order["standby"], session_s=order["session_s"], unit=order["unit"]
    )
    service = delay_service(
        {"bootstrap.servers": order["bootstrap"], "log_level": 3}, Policy(order["topic"]), order["data"],
        group=f"{order['topic']}.group", node=order["node"], settings=settings,
    )  # fmt: skip
    # A signal may come in the middle of a lock of the service: another thread stops it.
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: asked.set())

    def stop() -> None:
        asked.wait()
        service.stop()

    threading.Thread(target=stop, daemon=True).start()
    service.run()
    return 0


def _shift_clock(off_us: int) -> None:
    """Let this process believe another time: its wall clock only, durations stay true."""
    from filewheel.env import SystemClock

    true = SystemClock.now_us

    def now_us(self: Any) -> int:
        return true(self) + off_us

    SystemClock.now_us = now_us  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
