"""The list of mutants fits the marks in the source."""

from __future__ import annotations

import ast
import builtins
import fcntl
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash import mutate
from tests.crash.mutant import REPO, SEARCHED
from tests.crash.mutants import MUTANTS
from tests.crash.operations import DROP, NEVER, Misfit, Operation, becomes, gives, unguarded, without


def names_in(tree: ast.AST) -> Iterator[str]:
    """The plain names of a tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def attributes_in(tree: ast.AST) -> Iterator[str]:
    """The names behind a dot, and those of arguments and functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.keyword | ast.arg) and node.arg:
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def bound_in(tree: ast.AST) -> set[str]:
    """The names that a tree assigns, and those of arguments in it."""
    assigned = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return assigned | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}


def test_each_mutant_fits_the_statements_that_have_its_marks_and_gives_python() -> None:
    wrong = []
    for mutant in MUTANTS:
        lines = {mutate.marks()[name].line for name in mutate.names_of(mutant)}
        try:
            for path in mutate.files_of(mutant):
                tree = mutate.mutated(mutant, path)
                changed = [s for s in tree.body if any(s.lineno <= line <= (s.end_lineno or 0) for line in lines)]
                compile(ast.Module(changed, []), str(path), "exec", dont_inherit=True)
        except (AssertionError, SyntaxError, TypeError, ValueError) as exc:
            wrong.append(f"{mutant.name}: {exc!r}")
    assert wrong == []


def test_each_name_that_a_mutant_brings_along_is_a_name_of_its_module_or_an_attribute_of_the_library() -> None:
    """A rename that passes by the text of a mutant must not look like a kill."""
    library = {path: ast.parse(path.read_text()) for path in mutate.PACKAGE.rglob("*.py")}
    attributes = {name for tree in library.values() for name in attributes_in(tree)}
    attributes |= set(dir(dict) + dir(list) + dir(fcntl))
    unknown = []
    for mutant in MUTANTS:
        brought = {n: _parsed(op) for n, op in zip(mutate.names_of(mutant), mutant.operations, strict=True) if op.text}
        own = {name for tree in brought.values() for name in bound_in(tree)} | set(dir(builtins))
        for mark, tree in brought.items():
            names = set(names_in(library[mutate.marks()[mark].path]))
            unknown += [f"{mark}: {name}" for name in set(names_in(tree)) - names - own]
            unknown += [f"{mark}: .{name}" for name in set(attributes_in(tree)) - attributes]
    assert unknown == []


def _parsed(operation: Operation) -> ast.Module:
    return ast.parse(f"{operation.text} pass" if operation.text.endswith(":") else operation.text)


def test_each_mark_has_a_mutant() -> None:
    assert sorted(mutate.marks()) == sorted(name for m in MUTANTS for name in mutate.names_of(m))


def test_names_are_used_once_and_killers_are_known() -> None:
    assert len({m.name for m in MUTANTS}) == len(MUTANTS)
    assert not [m.name for m in MUTANTS if not m.killer.startswith((*SEARCHED, "tests/"))]


@functools.cache
def functions_of(path: Path) -> set[str]:
    """The names of the tests of a file; none when there is no such file."""
    body = ast.parse(path.read_text()).body if path.is_file() else []
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name for name in functions if name.startswith("test_")}


def is_there(killer: str) -> bool:
    """Whether the test, script, race or workload of a killer exists; the parameters of a test are not looked at."""
    from tests.model.directed import SCRIPTS
    from tests.model.exhaustive import COUNT
    from tests.model.races import RACES

    kind, _, rest = killer.partition(" ")
    if killer.startswith("tests/"):
        path, _, name = killer.partition("[")[0].partition("::")
        return name in functions_of(REPO / path)
    if kind == "play":
        return rest in SCRIPTS
    if kind == "race":
        name, _, number = rest.partition(" ")
        return name in RACES and number.isdecimal()
    return rest.isdecimal() and (kind != "word" or int(rest) < COUNT)


def test_each_killer_is_there() -> None:
    """The error for a script that is not there would count as a kill."""
    assert [f"{m.name}: {m.killer}" for m in MUTANTS if not is_there(m.killer)] == []


@pytest.mark.parametrize(
    "killer",
    [
        "tests/crash/test_mutants.py::test_that_was_renamed",
        "tests/crash/test_mutants.py::is_there",
        "tests/crash/test_mutants.py",
        "tests/test_no_such_file.py::test_each_killer_is_there",
        "play no-such-script",
        "race no_such_race 1",
        "race cancel",
        "word 1000000000",
        "seed",
    ],
)
def test_a_killer_that_is_not_there_is_found_out(killer: str) -> None:
    assert not is_there(killer)


def test_each_parameter_that_a_killer_names_is_one_of_its_test() -> None:
    """One collection of these tests alone: their parameters are known only when they are imported."""
    named = sorted({m.killer for m in MUTANTS if m.killer.startswith("tests/") and m.killer.endswith("]")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *named]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or done.stdout


def test_a_mark_names_the_innermost_statement_on_its_line_or_on_the_next_line_of_code() -> None:
    source = "def f():\n    # mutant: a\n    if x:\n        return g(  # mutant: b\n            1\n        )\n"
    tree = ast.parse(source)
    assert isinstance(mutate.marked(tree, 3), ast.If)
    assert isinstance(mutate.marked(tree, 4), ast.Return)
    assert mutate.marked(tree, 6) is mutate.marked(tree, 4)
    assert isinstance(mutate.marked(tree, 1), ast.FunctionDef)


def test_a_line_may_have_several_marks_beside_those_above_it(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text("# mutant: a\n\n# a comment\nif x:  # why  # mutant: b c\n    y = 1\n")
    assert [(name, place.line) for name, place in mutate.marks_of(path)] == [("a", 4), ("b", 4), ("c", 4)]


def test_a_mark_on_no_statement_is_stale() -> None:
    with pytest.raises(mutate.Stale):
        mutate.marked(ast.parse("if x:\n    y = 1\nelse:\n    y = 2\n"), 3)


@pytest.mark.parametrize(
    ("source", "operation", "after"),
    [
        ("f()", DROP, "pass"),
        ("if a and b: c()", NEVER, "if False: c()"),
        ("x = a if b else c", NEVER, "x = c"),
        ("if a and b or c: d()", without(2), "if a and b: d()"),
        ("x = a - b", without(2), "x = a"),
        ("with a, b: c()", unguarded(), "c()"),
        ("with a, b: c()", unguarded(1), "with b: c()"),
        ("if a: b()\nelse: c()", becomes("if d:"), "if d: b()\nelse: c()"),
    ],
)
def test_an_operation_changes_its_statement(source: str, operation: Operation, after: str) -> None:
    tree = ast.parse(source)
    operation.apply(tree, tree.body[0])
    assert ast.dump(tree) == ast.dump(ast.parse(after))


@pytest.mark.parametrize(("source", "operation"), [("f()", NEVER), ("x = a", without(1)), ("f()", gives("1: 2"))])
def test_an_operation_that_does_not_fit_is_an_error(source: str, operation: Operation) -> None:
    tree = ast.parse(source)
    with pytest.raises(Misfit):
        operation.apply(tree, tree.body[0])
