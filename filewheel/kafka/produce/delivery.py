"""What becomes of a record that was sent: its place in the delay topic, or an error.

Invariant: a Delivery ends exactly once, and no caller can cancel it: the record is on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from filewheel.checks import check_done, check_function
from filewheel.env import Event
from filewheel.errors import FilewheelError, anew


@dataclass(frozen=True, slots=True)
class Delivered:
    """A record that all in-sync replicas of the delay topic have."""

    topic: str
    """The delay topic."""
    partition: int
    offset: int

    @property
    def id(self) -> str:
        """The header `filewheel-id` of the record that goes to the target."""
        return f"{self.topic}-{self.partition}-{self.offset}"


class Delivery(Future[Delivered]):
    """The future of one send. `result` raises the error of the tree."""

    is_seen = False
    """Whether the caller asked how it ended."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = Event()
        super().add_done_callback(lambda _: self._ended.set())
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[Future[Delivered]], object]) -> None:
        """Call a plain function with this future once it has ended. Raises BadArgument for a coroutine function."""
        check_function("a callback", fn)
        super().add_done_callback(lambda future: check_done("a callback", fn(future)))

    def result(self, timeout: float | None = None) -> Delivered:
        """Return the place of the record; wait for it at most `timeout` seconds. Raises TimeoutError, ClusterError."""
        error = self.exception(timeout)
        if error is not None:
            raise anew(error)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error of the send, or None; wait for it at most `timeout` seconds. Raises TimeoutError."""
        self.is_seen = True
        self._ended.wait(timeout)  # Ctrl-C in the wait of a Future loses its lock
        return super().exception(0)


def delivered(topic: str, answer: tuple[int, int] | FilewheelError) -> Delivered | FilewheelError:
    """Return the answer of a sender as a value."""
    return answer if isinstance(answer, FilewheelError) else Delivered(topic, *answer)
