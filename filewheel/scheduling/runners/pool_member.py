"""What the pool remembers of a process: its state, its call, and what to do when its deadline passes.

Invariant: a member has a call exactly while it is busy, or doomed while it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from filewheel.message import US_PER_S
from filewheel.scheduling.runners.pool_process import PoolProcess
from filewheel.scheduling.runners.pool_result import Result
from filewheel.scheduling.runners.pool_worker import PIPE_LOST

LEAVE_S = 5  # for what a process does when it ends by itself
KILL_AFTER_S = 1  # from the signal that can be caught to the one that cannot
GIVEN_MAX = 3  # a call that processes ended before beginning is given to another so often
REST_US = 1 << 62  # a time that does not come

Done = Callable[[Result], None]
Begin = Callable[[], bool]


class State(Enum):
    """What a process of the pool is doing."""

    STARTING = 1
    IDLE = 2
    BUSY = 3
    LEAVING = 4  # its pipe was closed; it ends by itself
    DOOMED = 5  # it was sent a signal


@dataclass(slots=True, eq=False)
class Call:
    """A call that was submitted."""

    number: int
    frame: bytes
    timeout_us: int | None
    done: Done
    begin: Begin | None = None
    given: int = 0

    def may_begin(self) -> bool:
        """Ask whether a process may have it; once: a process that died before it began it is not asked about."""
        begin, self.begin = self.begin, None
        return begin is None or begin()


@dataclass(slots=True, eq=False)
class Member:
    """A process and what it is doing."""

    process: PoolProcess
    deadline_us: int
    state: State = State.STARTING
    ready: bool = False
    call: Call | None = None
    answered: int = 0
    verdict: Result | None = None  # of its call, once it is doomed
    why: str = ""  # why it did not become ready, if that is known

    def give(self, call: Call, now_us: int) -> bool:
        """Give it a call; return whether all of it was written. Raises OSError when it has just ended."""
        sent = self.process.send(call.frame)
        call.given += 1
        self.state, self.call = State.BUSY, call
        self.deadline_us = REST_US if call.timeout_us is None else now_us + call.timeout_us
        return sent

    def let_leave(self, now_us: int) -> None:
        """Let it end by itself."""
        self.state = State.LEAVING
        self.deadline_us = now_us + LEAVE_S * US_PER_S
        self.process.dismiss()

    def doom(self, now_us: int, verdict: Result | None = None) -> None:
        """Begin to kill it; what becomes of its call is decided, and told when it has ended."""
        self.state, self.verdict = State.DOOMED, verdict
        self.deadline_us = now_us + KILL_AFTER_S * US_PER_S
        self.process.terminate()

    def fate_of_call(self, status: str) -> Result | None:
        """Return how the call of a process that has ended did; None when it was never begun and another may have it."""
        assert self.call is not None
        if self.verdict is not None:
            return Result(self.verdict.outcome, message=self.verdict.message, exit_status=status)
        if self.call.given < GIVEN_MAX and self.process.never_began():
            return None
        return Result("died", message=end_text(status), exit_status=status)


def end_text(status: str) -> str:
    """Return an exit status as a sentence."""
    if status == str(PIPE_LOST):
        return "its process lost the pipe to the pool; did the function close, or read, descriptors not its own?"
    if status == "SIGKILL":
        return "its process ended by SIGKILL: somebody's, or the kernel's because memory ran out"
    if status.startswith(("SIG", "signal")):
        return f"its process ended by {status}"
    return f"its process ended with exit code {status}"
