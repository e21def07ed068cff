"""Runs the library with one of its protections switched off.

A mark in the source, `# mutant: NAME`, stands on the statement that a mutant (tests/crash/mutants/) changes: the
innermost one on that line, or on the next line of code where the mark has a line of its own. A second statement of the
same mutant has the mark NAME.2. `install` changes the syntax tree of the module as it is imported, in this process
only; nothing on disk changes. As a pytest plugin (`-p tests.crash.mutate`) it takes the mutant's name from
FILEWHEEL_MUTANT, before anything of the library is imported; so does any campaign.
A mutant runs the loops in Python: those in C are held to them by tests of their own (tests/native/test_loops.py).
Invariant: a mark that is missing, or there twice, or on no statement, is an error: each mutant changes something.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from tests.crash.mutants import Mutant, by_name
from tests.crash.operations import BLOCKS

PACKAGE = Path(__file__).parents[2] / "filewheel"
VARIABLE = "FILEWHEEL_MUTANT"
IN_C = ("tests/journal/test_writer_pen.py", "tests/laps/test_window.py::test_what_was_dropped_takes_no_memory")
"""Tests of what only the C loops do: a pen writes, and records that were left out keep the frame they came in."""
_MARK = re.compile(r"# mutant: ([^#]+)$")
_STATEMENTS = (ast.stmt, ast.ExceptHandler)


class Stale(AssertionError):
    """A mark is missing, or there twice, or stands on no statement."""


class Place(NamedTuple):
    """The file and the line of a mark."""

    path: Path
    line: int


def module_of(path: Path) -> str:
    """Return the name of the module in a file of the library."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def marks_of(path: Path) -> Iterator[tuple[str, Place]]:
    """Yield the names of the marks in a file, and the lines of code that they are for."""
    waiting: list[str] = []
    for number, line in enumerate(path.read_text().split("\n"), 1):
        found = _MARK.search(line)
        waiting += found[1].split() if found else []
        if waiting and line.strip() and not line.lstrip().startswith("#"):
            yield from ((name, Place(path, number)) for name in waiting)
            waiting.clear()


@functools.cache
def marks() -> dict[str, Place]:
    """Return every mark of the library. Raises Stale for a name that is there twice."""
    found: dict[str, Place] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, place in marks_of(path):
            if name in found:
                raise Stale(f"{name}: {found[name]} and {place}")
            found[name] = place
    return found


def marked(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost statement whose header, or whole text when it has no block, is on a line. Raises Stale."""
    found: ast.AST | None = None
    level: list[ast.AST] = [tree]
    while level:  # down to the line, past all that ends before it: a walk over the whole tree takes ten times as long
        level = [one for node in level for block in BLOCKS for one in getattr(node, block, ()) if _has_line(one, line)]
        for node in level:
            inside = [one for block in BLOCKS for one in getattr(node, block, ())]
            if isinstance(node, _STATEMENTS) and (not inside or line < min(one.lineno for one in inside)):
                found = node
    if found is None:
        raise Stale(f"no statement begins in line {line}")
    return found


def _has_line(node: Any, line: int) -> bool:
    return isinstance(node, ast.match_case) or node.lineno <= line <= node.end_lineno


def names_of(mutant: Mutant) -> list[str]:
    """Return the names of a mutant's marks, one for each operation."""
    return [mutant.name if n == 1 else f"{mutant.name}.{n}" for n in range(1, len(mutant.operations) + 1)]


def files_of(mutant: Mutant) -> list[Path]:
    """Return the files that a mutant changes. Raises Stale."""
    missing = [name for name in names_of(mutant) if name not in marks()]
    if missing:
        raise Stale(f"no mark in the source: # mutant: {' '.join(missing)}")
    return list(dict.fromkeys(marks()[name].path for name in names_of(mutant)))


def mutated(mutant: Mutant, path: Path) -> ast.Module:
    """Return the syntax tree of a file with the mutant's changes of it. Raises Stale, or Misfit (operations.py)."""
    tree = ast.parse(path.read_text())
    changes = [
        (operation, marked(tree, marks()[name].line))
        for name, operation in zip(names_of(mutant), mutant.operations, strict=True)
        if marks()[name].path == path
    ]
    for operation, node in changes:
        operation.apply(tree, node)
    lines = [marks()[name].line for name in names_of(mutant) if marks()[name].path == path]
    for statement in tree.body:  # only where something changed: a walk over the whole file takes longer than to read it
        if not hasattr(statement, "lineno") or any(_has_line(statement, line) for line in lines):
            ast.fix_missing_locations(statement)
    return tree


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that a mutant changes."""

    def __init__(self, mutant: Mutant) -> None:
        self._changed = {module_of(path): (path, mutated(mutant, path)) for path in files_of(mutant)}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._changed:
            return None
        file, tree = self._changed[fullname]
        return importlib.machinery.ModuleSpec(fullname, _Loader(fullname, str(file), tree), origin=str(file))


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a changed module."""

    def __init__(self, fullname: str, path: str, tree: ast.Module) -> None:
        super().__init__(fullname, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec", dont_inherit=True)


def install(name: str) -> Mutant:
    """Switch a protection off, in whatever of the library is imported from now on."""
    loaded = [m for m in sys.modules if m == "filewheel" or m.startswith("filewheel.")]
    if loaded:
        raise AssertionError(f"too late: {loaded[0]} is imported already")
    mutant = by_name(name)
    # In C the loops would be there unchanged. What only C can do is guarded in Python.
    os.environ["FILEWHEEL_PURE"] = "" if mutant.killer.startswith(IN_C) else "1"
    sys.meta_path.insert(0, _Finder(mutant))
    return mutant


if os.environ.get(VARIABLE) and not any(isinstance(f, _Finder) for f in sys.meta_path):
    install(os.environ[VARIABLE])
