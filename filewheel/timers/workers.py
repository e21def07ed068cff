"""The threads of a timer: daemons, so that pending timers do not hold the interpreter.

At the interpreter's exit they are ended first: a call that runs then runs to its end, as in concurrent.futures, and
what is pending is given up.
Invariant: after `join`, none of the threads runs, unless one of them called it.
"""

from __future__ import annotations

import atexit
import errno
import threading
import weakref
from collections.abc import Callable

from filewheel.errors import DiskError
from filewheel.timers.steady import OwnerProcess

_ALL: weakref.WeakSet[Workers] = weakref.WeakSet()


class Workers:
    """The threads of one timer. They keep its shared state alive, and never the object that the user holds."""

    def __init__(self, name: str, end: Callable[[], object]) -> None:
        """`end` tells the threads to end, without waiting and without running what is pending."""
        self._name = name
        self._end = end
        self._owner = OwnerProcess(name)
        self._threads: list[threading.Thread] = []
        _ALL.add(self)

    def __len__(self) -> int:
        """Return how many threads were started."""
        return len(self._threads)

    def start(self, target: Callable[[], object]) -> None:
        """Start a thread. Raises DiskError when the system refuses it."""
        thread = threading.Thread(target=target, name=f"filewheel-{self._name}-{len(self._threads) + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as exc:
            raise DiskError(
                f"no thread can be started for this timer: {exc}",
                errno=errno.EAGAIN,
                hint="raise `ulimit -u`, or the container's task limit",
            ) from exc
        self._threads.append(thread)

    def join(self) -> None:
        """Wait until the threads have ended. One of them does not wait: two would wait for each other."""
        if threading.current_thread() not in self._threads:
            for thread in list(self._threads):
                thread.join()

    def _end_at_exit(self) -> None:
        if self._owner.is_here:
            self._end()
            self.join()


@atexit.register
def _end_all() -> None:
    for workers in list(_ALL):
        workers._end_at_exit()
