"""A server that closes idle connections: a time-out for each, on one wheel.

    python idle_server.py serve 8000 --idle 30        an echo server; `nc localhost 8000` is a client
    python idle_server.py simulate 100000             so many connections in memory, and what they cost

What comes in restarts the time-out of its connection: a cancel and a start, both O(1) on a `LoopWheel`. asyncio's own
`call_later` pushes onto a heap, in which the cancelled timer stays.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from typing import Any

from filewheel.timers import LoopTimeout, LoopWheel


class Connection(asyncio.Protocol):
    """Echoes what it gets, and is closed when nothing came for a while."""

    def __init__(self, wheel: LoopWheel, idle_s: float) -> None:
        self.wheel = wheel
        self.idle_s = idle_s
        self.transport: Any = None
        self.timeout: LoopTimeout | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.timeout = self.wheel.call_later(self.idle_s, self.close)

    def data_received(self, data: bytes) -> None:
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = self.wheel.call_later(self.idle_s, self.close)
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None

    def close(self) -> None:
        self.timeout = None
        self.transport.close()


async def serve(port: int, idle_s: float) -> None:
    loop = asyncio.get_running_loop()
    wheel = LoopWheel()
    server = await loop.create_server(lambda: Connection(wheel, idle_s), "127.0.0.1", port)
    print(f"port {server.sockets[0].getsockname()[1]}, idle after {idle_s:g} s", flush=True)
    await server.serve_forever()


class FakeTransport:
    """A client in memory; it knows whether it was closed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.is_closed = False

    def write(self, data: bytes) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True
        self.connection.connection_lost(None)


async def simulate(count: int, idle_s: float, requests: int) -> None:
    """Open connections, send requests on nine of ten, then let all idle out; say what it cost."""
    wheel = LoopWheel()
    transports = []
    begun = time.perf_counter()
    for _ in range(count):
        transports.append(FakeTransport(Connection(wheel, idle_s)))
        transports[-1].connection.connection_made(transports[-1])
    print(f"{len(wheel)} connections, each with a time-out: {(time.perf_counter() - begun) / count * 1e6:.2f} us each")

    busy = transports[: count - count // 10]
    begun = time.perf_counter()
    for number in range(requests):
        random.choice(busy).connection.data_received(b"ping")
        if number % 1000 == 0:
            await asyncio.sleep(0)
    taken = time.perf_counter() - begun
    print(f"{requests} requests, each restarts a time-out: {taken / requests * 1e6:.2f} us each")

    longest, before = 0.0, time.perf_counter()
    while len(wheel):
        await asyncio.sleep(0.001)
        longest, before = max(longest, time.perf_counter() - before), time.perf_counter()
    closed = sum(transport.is_closed for transport in transports)
    print(f"{closed} closed after {idle_s:g} s without a byte; the loop's longest pause was {longest * 1000:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    server = verbs.add_parser("serve")
    server.add_argument("port", type=int)
    server.add_argument("--idle", type=float, default=30.0)
    simulation = verbs.add_parser("simulate")
    simulation.add_argument("connections", type=int)
    simulation.add_argument("--idle", type=float, default=2.0)
    simulation.add_argument("--requests", type=int, default=200_000)
    args = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if args.verb == "serve":
            asyncio.run(serve(args.port, args.idle))
        else:
            asyncio.run(simulate(args.connections, args.idle, args.requests))


if __name__ == "__main__":
    main()
