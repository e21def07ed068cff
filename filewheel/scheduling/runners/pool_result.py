"""What became of a call that was given to the pool.

An exception does not travel as an object: that would need pickle, and the parent to import what the handler imports.
What travels is the names of its classes, so that `retry only on these` can be decided without the object.
Invariant: every field is plain data, bounded in size but for the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["returned", "raised", "died", "timed_out", "closed", "not begun"]

MESSAGE_CHARS_MAX = 4_000
TRACEBACK_CHARS_MAX = 16_000


@dataclass(frozen=True, slots=True)
class Result:
    """How one call ended."""

    outcome: Outcome
    value: bytes = b""
    """Of "returned": what the function returned."""
    names: tuple[str, ...] = ()
    """Of "raised": the exception's class and its bases, as `module.Class`, without `object`."""
    message: str = ""
    """Of "raised": the text of the exception. Of the others but "returned": what happened, as a sentence."""
    traceback: str = ""
    """Of "raised": the traceback in the process; the end of it when it is long."""
    exit_status: str = ""
    """Of a process that ended: a signal's name such as "SIGSEGV", or the exit code such as "3"."""

    def is_a(self, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
        """Return whether the call raised one of these classes, or a class that derives from one."""
        wanted = kinds if isinstance(kinds, tuple) else (kinds,)
        return any(name_of(kind) in self.names for kind in wanted)


def name_of(kind: type) -> str:
    """Return the name of a class that is the same in the parent and in its processes."""
    # In a spawned process the script that was started has this other name, so that its `main` does not run again.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"
