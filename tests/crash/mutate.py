"""Runs the library with one of its protections switched off.

A mutant is a change of source text (mutants.py). `install` puts it into the module as it is imported, in this process
only; nothing on disk changes. As a pytest plugin (`-p tests.crash.mutate`) it takes the mutant's name from
FILEWHEEL_MUTANT, before anything of the library is imported; so does any campaign.
A mutant runs the loops in Python: those in C are held to them by tests of their own (tests/test_loops.py).
Invariant: a text that does not stand in its module exactly once is an error: a mutant is never silently no mutant.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tests.crash.mutants import Mutant, by_name

PACKAGE = Path(__file__).parents[2] / "filewheel"
VARIABLE = "FILEWHEEL_MUTANT"
IN_C = ("tests/test_pen.py", "tests/test_window.py::test_what_was_dropped_takes_no_memory")
"""Tests of what only the C loops do: a pen writes, and records that were left out keep the frame they came in."""


class Stale(AssertionError):
    """The text that a mutant changes is not there, or there more than once."""


def source_of(module: str) -> Path:
    """Return the file of a module of the library."""
    return PACKAGE.joinpath(*module.split(".")).with_suffix(".py")


def mutated(mutant: Mutant, module: str) -> str:
    """Return a module's source with the mutant's changes of it. Raises Stale."""
    source = source_of(module).read_text()
    for change in mutant.changes:
        if change.module == module:
            if source.count(change.old) != 1:
                raise Stale(f"{mutant.name}: {source.count(change.old)} times in {module}.py: {change.old!r}")
            source = source.replace(change.old, change.new)
    return source


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that a mutant changes."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._modules = {f"filewheel.{c.module}" for c in mutant.changes}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._modules:
            return None
        module = fullname.partition(".")[2]
        loader = _Loader(fullname, str(source_of(module)), mutated(self._mutant, module))
        return importlib.machinery.ModuleSpec(fullname, loader, origin=loader.path)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads changed source."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str):  # type: ignore[no-untyped-def]
        return compile(self._source, self.path, "exec")


def install(name: str) -> Mutant:
    """Switch a protection off, in whatever of the library is imported from now on."""
    loaded = [m for m in sys.modules if m == "filewheel" or m.startswith("filewheel.")]
    if loaded:
        raise AssertionError(f"too late: {loaded[0]} is imported already")
    mutant = by_name(name)
    # In C the loops would be there unchanged. What only C can do is guarded in Python.
    os.environ["FILEWHEEL_PURE"] = "" if mutant.killer.startswith(IN_C) else "1"
    for change in mutant.changes:
        mutated(mutant, change.module)
    sys.meta_path.insert(0, _Finder(mutant))
    return mutant


if os.environ.get(VARIABLE) and not any(isinstance(f, _Finder) for f in sys.meta_path):
    install(os.environ[VARIABLE])
