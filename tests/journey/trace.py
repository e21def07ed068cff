"""Counts the functions of the library that run between two lines of a program, in all of its threads.

A step is measured in calls, not in time: calls are what Python pays for, and what a reader follows. Functions count
each time they are entered, generators each time they go on. Bodies of modules and classes do not count, nor do
comprehensions, which are functions in some versions of Python only.
Invariant: the same code, called in the same way, gives the same counts on each machine.
"""

from __future__ import annotations

import inspect
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

from tests.support import REPO

LIBRARY = REPO / "filewheel"
_INLINE = ("<listcomp>", "<setcomp>", "<dictcomp>")


@dataclass(frozen=True)
class Function:
    """A function of the library: its file, below `filewheel/`, its name and its first line."""

    file: str
    name: str
    line: int


@dataclass(frozen=True)
class Call:
    """A function that was entered, and how many of the library it was called through."""

    function: Function
    depth: int


@dataclass(frozen=True)
class Row:
    """What a step takes: calls, functions that ran, files that they are in, and the lines of these files."""

    calls: int
    functions: int
    files: int
    lines: int


@dataclass
class Trace:
    """The calls between `with` and its end. Threads that began before are not traced."""

    calls: list[Call] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._known: dict[CodeType, Function | None] = {}
        self._depths: dict[int, list[bool]] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        stack = self._depths.setdefault(threading.get_ident(), [])
        if event == "call":
            code = frame.f_code
            if code not in self._known:
                self._known[code] = _function_of(code)
            function = self._known[code]
            if function is not None:
                self.calls.append(Call(function, sum(stack)))
            stack.append(function is not None)
        elif event == "return" and stack:
            stack.pop()


def _function_of(code: CodeType) -> Function | None:
    """Return the function of the library that this code is; None for any other code."""
    path = Path(code.co_filename)
    if not path.is_relative_to(LIBRARY) or not code.co_flags & inspect.CO_OPTIMIZED or code.co_name in _INLINE:
        return None
    return Function(str(path.relative_to(LIBRARY)), code.co_qualname, code.co_firstlineno)


def row_of(calls: list[Call]) -> Row:
    """Return the figures of these calls."""
    functions = {call.function for call in calls}
    files = {function.file for function in functions}
    lines = sum((LIBRARY / file).read_text(encoding="utf-8").count("\n") for file in files)
    return Row(len(calls), len(functions), len(files), lines)
