"""The runner for handlers in processes: the request to a process of the pool, and its answer.

The process imports the handler by module and name. The request has the message as it is stored; the answer has the
failure, if any, and the messages that the job's transactions enqueued.
Invariant: only plain data crosses; an exception crosses as its class names and text.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import msgpack

from filewheel.env import SYSTEM_CLOCK, Clock
from filewheel.errors import BadArgument
from filewheel.format.record import pack_message, unpack_put
from filewheel.message import MessageId
from filewheel.runs.run import Place
from filewheel.scheduling.arguments import Codec
from filewheel.scheduling.around import Hook, target_of
from filewheel.scheduling.handler import Handler
from filewheel.scheduling.job import Outbox
from filewheel.scheduling.outcome import RETURNED, Kept, Outcome, killed
from filewheel.scheduling.runners.child import resolve
from filewheel.scheduling.runners.loop import time_out
from filewheel.scheduling.runners.pool import Grip, ProcessPool, Recycle, Result
from filewheel.scheduling.runners.runner import Begin, Call, Finish, Runner, run

TARGET = "filewheel.scheduling.runners.processes:serve"


def check_reachable(handler: Handler[..., Any], hooks: Sequence[Hook]) -> None:
    """Raise BadArgument when another process could not import this handler, or a hook around it."""
    codec = handler.sender.codec
    for function in (handler.function, *hooks, *filter(None, (codec.encode, codec.decode))):
        qualname = getattr(function, "__qualname__", "<unknown>")
        if "<" not in qualname:
            continue
        what = f"the hook {qualname}" if function in hooks else qualname
        what = what if function not in (codec.encode, codec.decode) else f"{qualname} of encode= or decode="
        raise BadArgument(
            f"{handler.name!r} cannot run in a process: {what} is not at the top level of a module",
            hint='move it to the top level, or use where="thread"',
        )


def request_of(call: Call, wheel: str) -> bytes:
    """Pack a call for a process."""
    function = call.handler.function
    (message,) = call.messages
    hooks = [target_of(hook) for hook in call.hooks]
    codec = call.handler.sender.codec
    decode = None if codec.decode is None else target_of(codec.decode)
    encode = None if codec.encode is None else target_of(codec.encode)
    packed: bytes = msgpack.packb(
        [
            function.__module__,
            function.__qualname__,
            call.handler.name,
            pack_message(message),
            call.started_us,
            wheel,
            hooks,
            encode,
            decode,
            call.keeps_result,
        ]
    )
    return packed


@functools.cache
def _handler(module: str, qualname: str, name: str, encode: str | None, decode: str | None) -> Handler[..., Any]:
    """In the process: return the handler. It is cached, because making it takes longer than calling it."""
    if module == "__main__":
        # multiprocessing imports the started script under this other name, so that its `main` does not run again.
        module = "__mp_main__" if "__mp_main__" in sys.modules else module
    found: Any = resolve(f"{module}:{qualname}")
    if isinstance(found, Handler):
        return found
    codec = Codec(None if encode is None else resolve(encode), None if decode is None else resolve(decode))
    return Handler.plain(name, found, codec)


def serve(request: bytes) -> bytes:
    """In the process: call the handler, and return the packed outcome."""
    module, qualname, name, put, started_us, wheel, targets, encode, decode, keeps = msgpack.unpackb(request)
    handler = _handler(module, qualname, name, encode, decode)
    hooks = [resolve(target) for target in targets]
    call = Call(handler, [unpack_put(put)], started_us, hooks)
    call.keeps_result = keeps
    (outcome,) = run(call, SYSTEM_CLOCK, wheel) or [RETURNED]
    packed: bytes = msgpack.packb(
        [
            None if outcome.error is None else outcome.to_plain(),
            [pack_message(m) for m in outcome.puts.messages],
            outcome.puts.replaces,
            outcome.result,
        ]
    )
    return packed


class Processes(Runner):
    """Runs calls in a pool of processes, which the first call starts, and which kills one at its time-out."""

    starts_anywhere = True

    def __init__(
        self, count: int, begin: Begin, finish: Finish, clock: Clock, wheel: str, recycle: Recycle | None = None
    ) -> None:
        self._pool = ProcessPool(count, clock=clock, recycle=recycle)
        self._begin = begin
        self._finish = finish
        self._clock = clock
        self._wheel = wheel
        self._running: dict[Call, Grip] = {}
        self._stopping = False

    def start(self, call: Call) -> None:
        """Give a call to a process, or queue it."""
        if self._stopping:
            return
        grip = self._running[call] = Grip()

        def begin() -> bool:
            call.begun_us = self._clock.steady_us()
            return not self._stopping and self._begin(call)

        def done(result: Result) -> None:
            # "closed": the message stays claimed, and is offered again. "not begun": it was cancelled.
            if result.outcome not in ("closed", "not begun"):
                call.outcomes, call.ended_us = outcomes_of_result(call, result), self._clock.steady_us()
                self._finish(call)
            self._running.pop(call, None)

        request = request_of(call, self._wheel)
        function, timeout_s = call.handler.function, call.timeout_s
        imports = (f"{function.__module__}:{function.__qualname__}", *map(target_of, call.hooks))
        self._pool.submit(TARGET, request, timeout_s=timeout_s, done=done, begin=begin, imports=imports, grip=grip)

    def quiet(self) -> None:
        """Begin no more calls: `begin` refuses the queued ones."""
        self._stopping = True

    def busy(self) -> int:
        """Return how many calls run, or wait for a process."""
        return len(self._running)

    def running(self) -> list[tuple[Call, Place]]:
        """Return the calls that a process has begun, and their processes."""
        running = self._running.copy()
        return [(call, Place("process", "", grip.pid)) for call, grip in running.items() if grip.pid is not None]

    def kill(self, call: Call) -> None:
        """Have the pool kill the process of a call."""
        grip = self._running.get(call)
        if grip is not None:
            grip.kill()

    def stop(self) -> None:
        """Kill the processes."""
        self._stopping = True
        self._pool.close(timeout_s=0)


def outcomes_of_result(call: Call, result: Result) -> Sequence[Outcome] | None:
    """Return the outcomes of a call from the pool's result."""
    if result.outcome == "returned":
        failure, packed, replaces, kept = msgpack.unpackb(result.value)
        if failure is not None:
            return [Outcome.of_plain(failure)]
        if not packed and kept is None:
            return None
        puts = Outbox([unpack_put(put) for put in packed], [MessageId(i) for i in replaces])
        return [Outcome(puts=puts, result=None if kept is None else Kept(*kept))]
    if result.outcome == "killed":
        return [killed()]
    if result.outcome == "timed_out":
        return [time_out(call.timeout_s)]
    return [result.failure or Outcome(result.message)]
