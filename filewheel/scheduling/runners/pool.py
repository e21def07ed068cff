"""A small pool of processes for handlers that compute: one call at a time in each, and each can be killed alone.

`concurrent.futures.ProcessPoolExecutor` was not enough: one segmentation fault fails every call in it, a running call
cannot be ended at its time-out, and arguments travel by pickle. Here every process has two pipes of its own, and what
travels is bytes. This is the front: it checks arguments, and ties the pool's life to that of the program.
Invariant: for every call that was accepted, `done` is called once, after the call has ended for certain.
"""

from __future__ import annotations

import atexit
import itertools
import math
import multiprocessing
import os
import threading
from multiprocessing.context import ForkServerContext, SpawnContext

import msgpack

from filewheel.clock import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument, Forked, TooLarge
from filewheel.message import US_PER_S
from filewheel.scheduling.runners.pool_collector import Collector
from filewheel.scheduling.runners.pool_frame import BODY_BYTES_MAX, frame
from filewheel.scheduling.runners.pool_member import KILL_AFTER_S, LEAVE_S, Begin, Call, Done
from filewheel.scheduling.runners.pool_worker import BEGIN, preparing

UNKILLABLE_S = 10  # a process that waits for a broken device cannot even be killed; close does not wait for it


class Pool:
    """Runs functions on bytes in other processes."""

    def __init__(
        self,
        processes: int,
        *,
        start_method: str = "spawn",
        init: str | None = None,
        recycle_after: int | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Describe a pool; nothing is started before the first call. Raises BadArgument.

        `start_method` is "spawn", or "forkserver", whose processes start faster. `init` names a function
        ("module:qualname") that each process calls once at its start. `recycle_after` ends a process after so many
        calls and starts another, for handlers that leak.
        """
        if processes < 1:
            raise BadArgument(f"processes is at least 1, not {processes}")
        if recycle_after is not None and recycle_after < 1:
            raise BadArgument(f"recycle_after is at least 1, not {recycle_after}")
        if start_method == "spawn":
            context: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
        elif start_method == "forkserver":
            context = multiprocessing.get_context("forkserver")
        else:
            raise BadArgument(
                f"start_method is 'spawn' or 'forkserver', not {start_method!r}",
                hint="'spawn'; a plain fork would copy the locks that this program's threads hold",
            )
        if init is not None:
            _check_target("init", init)
        self._clock = clock
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._collector = Collector(context, processes, init=init, recycle_after=recycle_after, clock=clock)

    @property
    def free(self) -> int:
        """How many calls would be begun now, or as soon as a process has started, without waiting for another call."""
        return self._collector.free()

    def pids(self) -> list[int]:
        """Return the process ids of the pool's processes."""
        return self._collector.pids()

    def submit(
        self, target: str, request: bytes, *, timeout_s: float | None, done: Done, begin: Begin | None = None
    ) -> None:
        """Run the function "module:qualname" on these bytes in a process; `done` is told how it ended.

        `done` is called in the pool's own thread, once, after the call has ended; it must not wait. With no process
        idle the call is queued. `begin` is asked in any thread when a process can have it, and must not wait either;
        when it says no, the call ends as "not begun". `timeout_s` counts from when a process is given the call; then
        that process is killed.
        Cost: a write to a pipe. Raises BadArgument, TooLarge, Closed, Forked; then `done` is not called.
        """
        _check_target("target", target)
        if not isinstance(request, bytes):
            raise BadArgument(f"a request is bytes, not {type(request).__name__}")
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise BadArgument(f"timeout_s is seconds, more than 0, or None; not {timeout_s}")
        if len(request) + len(target) > BODY_BYTES_MAX - 64:
            raise TooLarge(f"the request has {len(request)} bytes; a process takes less than 1 GiB")
        if os.getpid() != self._pid:
            raise Forked("this pool belongs to the process that made it", hint="make another after the fork")
        if preparing():
            raise BadArgument(
                "a process that this script has started imports the script, and would start processes again",
                hint='put what the script does under `if __name__ == "__main__":`',
            )
        number = next(self._numbers)
        timeout_us = None if timeout_s is None else round(timeout_s * US_PER_S)
        call = Call(number, frame(msgpack.packb([number, target, request]), BEGIN), timeout_us, done, begin)
        if self._collector.accept(call):
            atexit.register(self._close_at_exit)

    def close(self, *, timeout_s: float) -> None:
        """End all processes; on return they are gone and every call has been answered.

        Queued calls end as "closed" at once. Running ones may go on for `timeout_s`; then they are killed, and end as
        "closed" too. May be called again. From within `done` it only begins to close.
        """
        if os.getpid() != self._pid:
            return  # a forked child leaves its parent's processes alone
        thread = self._collector.close_by(self._clock.steady_us() + round(timeout_s * US_PER_S))
        atexit.unregister(self._close_at_exit)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s + LEAVE_S + KILL_AFTER_S + UNKILLABLE_S)

    def _close_at_exit(self) -> None:
        # Before multiprocessing ends its children itself, which this pool would take for deaths.
        self.close(timeout_s=0)


def _check_target(name: str, target: str) -> None:
    module, colon, qualname = target.partition(":")
    if not (module and colon and qualname):
        raise BadArgument(f"{name} is 'module:function', not {target!r}")
