"""The shape of the code: which module may import which, which may touch the disk or the clock, how long they may be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import filewheel

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "filewheel"


def words_in(package: Path) -> list[str]:
    """What a package's docstring draws: its modules, and the packages in it with a slash, in their order."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    return [word for line in re.findall(r"^ {4}(.*)$", text, re.MULTILINE) for word in line.replace("|", " ").split()]


def names_in(package: Path, prefix: str = "") -> Iterator[str]:
    """The modules of a package in the order that its docstring draws; those of a package in it where that stands."""
    for word in words_in(package):
        if word.endswith("/"):
            yield from names_in(package / word, f"{prefix}{word[:-1]}.")
        else:
            yield prefix + word


def modules() -> Iterator[Path]:
    yield from sorted(p for p in LIBRARY.rglob("*.py") if not p.name.startswith("_"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(LIBRARY).with_suffix("").parts)


# Each imports only from modules named before it.
PACKAGES = [word[:-1] for word in words_in(LIBRARY) if word.endswith("/")]
NAMES = list(names_in(LIBRARY))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "filewheel" or node.module.removeprefix("filewheel.") in PACKAGES:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_the_docstring_names_every_module_once() -> None:
    assert sorted(NAMES) == sorted(name_of(p) for p in modules())


@pytest.mark.parametrize("path", list(modules()), ids=name_of)
def test_a_module_imports_only_from_modules_before_it(path: Path) -> None:
    for name in imports(path):
        if name.startswith("filewheel."):
            other = name.removeprefix("filewheel.")
            if (other, path.stem) == ("_loops", "speed"):
                continue  # what was compiled, if it was
            assert NAMES.index(other) < NAMES.index(name_of(path)), f"{path.stem} imports {other}"


def test_only_disk_makes_system_calls_on_files() -> None:
    # directory makes the wheel's directory and checks its owner; mounts, owner and follows look at /proc; forks
    # opens "/" in a child, to put it in the place of descriptors.
    # The pool reads and writes pipes to its processes, never a file: fork, ready ends and half writes are its matter.
    allowed = {
        "disk",
        "pipe",
        "directory",
        "forks",
        "mounts",
        "owner",
        "follows",
        "pool_collector",
        "pool_process",
        "pool_worker",
    }
    calls = re.compile(
        r"\bos\.(open|read|write|p?read|p?write|fsync|fdatasync|rename|replace|unlink|mkdir|stat|listdir)\b"
    )
    for path in modules():
        if path.stem not in allowed:
            assert not calls.search(path.read_text()), path.name
            assert not re.search(r"(?<![\w.])(?<!def )open\(", path.read_text()), path.name


def test_only_clock_reads_the_time() -> None:
    for path in modules():
        if path.stem != "clock":
            assert not re.search(
                r"\btime\.(time|monotonic|time_ns|clock_gettime)|datetime\.now|utcnow", code_of(path)
            ), path


def code_of(path: Path) -> str:
    """A module's code without its strings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize("package", ["filewheel", "cli"])
def test_no_file_and_no_function_is_too_long_to_read(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 480, f"{path.name} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                assert node.end_lineno - node.lineno <= 60, f"{path.name}: {node.name}"


@pytest.mark.parametrize("package", ["filewheel", "cli"])
def test_every_file_says_why_it_exists(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        if path.name != "_version.py":
            assert ast.get_docstring(ast.parse(path.read_text())), path


def test_every_public_function_of_the_library_is_documented() -> None:
    for path in modules():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                members = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
                if any(isinstance(b, ast.Name) and b.id in ("Protocol",) for b in node.bases):
                    continue
                for member in members:
                    # The methods of a disk and of a clock are described by their protocols.
                    if path.stem in ("disk", "clock") or _is_overload(member):
                        continue
                    assert ast.get_docstring(member), f"{path.stem}.{node.name}.{member.name}"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _is_overload(node):
                assert ast.get_docstring(node), f"{path.stem}.{node.name}"


def _is_overload(node: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


def test_exports_are_sorted_and_exactly_what_the_package_offers() -> None:
    assert list(filewheel.__all__) == sorted(filewheel.__all__)
    for name in filewheel.__all__:
        assert hasattr(filewheel, name)
    public = (
        {n for n in vars(filewheel) if not n.startswith("_")} - {p.stem for p in LIBRARY.glob("*.py")} - set(PACKAGES)
    )
    assert public == set(filewheel.__all__) - {"__version__"}


@pytest.mark.parametrize("name", ["appender", "journal"])
def test_whoever_takes_the_lock_of_a_journal_first_takes_back_what_it_has_lent(name: str) -> None:
    taken = [
        node
        for node in ast.walk(ast.parse((LIBRARY / f"{name}.py").read_text()))
        if isinstance(node, ast.With) and ast.unparse(node.items[0]) in ("self.lock", "self.one_call()")
    ]
    assert len(taken) >= 8
    for node in taken:
        assert ast.unparse(node.body[0]) == "self._recall()", f"{name}.py, line {node.lineno}"
