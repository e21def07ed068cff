"""The shape of the code: which module may import which, which may touch the disk or the clock, how long they may be."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import filewheel

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "filewheel"


def layers_of(package: Path) -> list[list[str]]:
    """Return the folders and files of the line in a package's docstring, a list for each part between two bars."""
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    line = " ".join(re.findall(r"^ {4}(.*)$", text, re.MULTILINE))
    return [part.split() for part in line.split("|")]


def modules() -> Iterator[Path]:
    yield from sorted(p for p in LIBRARY.rglob("*.py") if not p.name.startswith("_"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(LIBRARY).with_suffix("").parts)


LAYERS = layers_of(LIBRARY)
ORDER = [word for layer in LAYERS for word in layer]


def room_of(name: str) -> str:
    """The folder or the file at the top that a module lies in."""
    return name.removeprefix("filewheel.").partition(".")[0]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """A file's syntax tree, parsed once for all tests: they look at it and change nothing."""
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """The modules of the library that a module imports."""
    return tuple(_imports(tree_of(path)))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("filewheel"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if is_module(whole) else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("filewheel"))


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir() or name.endswith("._loops")


def test_the_line_of_folders_names_each_folder_and_each_file_at_the_top_once() -> None:
    files = {p.stem for p in LIBRARY.glob("*.py") if not p.name.startswith("_")}
    folders = {p.parent.name for p in LIBRARY.glob("*/__init__.py")}
    assert sorted(ORDER) == sorted(files | folders)


def test_the_library_has_at_most_thirty_five_entries() -> None:
    assert len([p for p in LIBRARY.iterdir() if p.name != "__pycache__"]) <= 35


def test_a_module_imports_only_from_its_own_folder_and_those_before_it() -> None:
    for path in modules():
        own = room_of(name_of(path))
        for name in imports(path):
            if name == "filewheel":
                assert own in ("bridges", "testing"), f"{path} imports the whole package"
            elif room_of(name) != own:
                assert ORDER.index(room_of(name)) < ORDER.index(own), f"{path} imports {name}"


def test_within_kafka_a_module_imports_only_from_its_own_folder_and_those_before_it() -> None:
    order = [word for layer in layers_of(LIBRARY / "kafka") for word in layer]
    entries = {p.stem for p in (LIBRARY / "kafka").iterdir() if not p.name.startswith("_")}
    assert sorted(order) == sorted(entries)
    for path in modules():
        if name_of(path).startswith("kafka."):
            own = room_of(name_of(path).removeprefix("kafka."))
            for name in imports(path):
                other = room_of(name.removeprefix("filewheel.kafka."))
                assert not name.startswith("filewheel.kafka") or order.index(other) <= order.index(own), (path, name)


def test_no_imports_make_a_circle() -> None:
    wanted = {f"filewheel.{name_of(p)}": set(imports(p)) for p in modules()}
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join([*way, name])
        if name not in done and name in wanted:
            for other in wanted[name]:
                visit(other, (*way, name))
            done.add(name)

    for name in wanted:
        visit(name, ())


def test_only_disk_makes_system_calls_on_files() -> None:
    # directory makes the wheel's directory and checks its owner; boot and keeper_lock look at /proc; forks
    # opens "/" in a child, to put it in the place of descriptors.
    # The pool reads and writes pipes to its processes, never a file: fork, ready ends and half writes are its matter.
    allowed = {
        "disk",
        "descriptors",
        "pipe",
        "directory",
        "forks",
        "keeper_lock",
        "boot",
        "process",
        "child",
    }
    calls = re.compile(
        r"\bos\.(open|read|write|p?read|p?write|fsync|fdatasync|rename|replace|unlink|mkdir|stat|listdir)\b"
    )
    for path in modules():
        if path.stem not in allowed:
            assert not calls.search(path.read_text()), path.name
            assert not re.search(r"(?<![\w.])(?<!def )open\(", path.read_text()), path.name


def test_only_env_reads_the_time() -> None:
    reads = re.compile(r"\btime\.(time|monotonic|time_ns|clock_gettime)|datetime\.now|utcnow")
    # Code without strings and comments is asked for only where the text has such words: to make it is slow.
    hidden = re.compile(r"\btime\s*\.|datetime\s*\.|utcnow")
    for path in modules():
        if path.stem != "env" and hidden.search(path.read_text()):
            assert not reads.search(code_of(path)), path


def code_of(path: Path) -> str:
    """A module's code without its strings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return ast.unparse(tree)


def test_a_class_has_the_attributes_that_it_declares() -> None:
    lacking = []
    for path in modules():
        for cls in (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)):
            bases = {ast.unparse(base).partition("[")[0] for base in cls.bases}
            if cls.decorator_list or bases & {"NamedTuple", "Protocol", "TypedDict", "BaseHTTPRequestHandler"}:
                continue
            stored = {ast.unparse(node) for node in ast.walk(cls) if _is_stored(node)}
            declared = {ast.unparse(n.target) for n in cls.body if isinstance(n, ast.AnnAssign) and n.value is None}
            lacking += [f"{name_of(path)}.{cls.name}: {n}" for n in sorted(declared) if f"self.{n}" not in stored]
    assert not lacking, "a base has what it uses, or takes it as an argument"


def test_a_function_to_be_called_is_given_to_a_constructor_and_not_set_afterwards() -> None:
    stored = [(path, node) for path in modules() for node in ast.walk(tree_of(path)) if _is_stored(node)]
    late = [f"{name_of(path)}: {ast.unparse(node)}" for path, node in stored if ".on_" in ast.unparse(node)]
    # The dispatcher and the keeper of a scheduler on Kafka need each other.
    assert [one for one in late if ": self." not in one] == ["kafka.scheduling.engine: keeper.on_drain"]


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


@pytest.mark.parametrize("package", ["filewheel", "cli"])
def test_no_file_and_no_function_is_too_long_to_read(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        text = path.read_text()
        assert text.count("\n") <= 700, f"{path.name} has {text.count(chr(10))} lines"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.end_lineno is not None:
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                assert node.end_lineno - first.lineno < 60, f"{path.name}: {node.name}"


def test_each_class_has_a_name_of_its_own() -> None:
    paths = [path for package in ("filewheel", "cli") for path in (ROOT / package).rglob("*.py")]
    names = Counter(node.name for path in paths for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef))
    # The Event of env.py is that of `threading`, without its lock; one of a scheduler is something that happened.
    assert {name for name, count in names.items() if count > 1} == {"Event"}


@pytest.mark.parametrize("package", ["filewheel", "cli"])
def test_every_file_says_why_it_exists(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        assert ast.get_docstring(tree_of(path)), path


def test_every_public_function_of_the_library_is_documented() -> None:
    for path in modules():
        tree = tree_of(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                members = [m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")]
                if any(isinstance(b, ast.Name) and b.id in ("Protocol",) for b in node.bases):
                    continue
                for member in members:
                    # The methods of a disk and of a clock are described by their protocols in env.
                    if path.stem in ("disk", "env") or node.name.endswith("Disk") or _is_overload(member):
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
    # pytest puts names with an "@" into modules that a plugin of it belongs to
    public = {n for n in vars(filewheel) if not n.startswith(("_", "@"))} - set(ORDER)
    assert public == set(filewheel.__all__) - {"__version__"}


PUBLIC = (
    "filewheel", "filewheel.metrics", "filewheel.scheduling.cron", "filewheel.timespec", "filewheel.message",
    "filewheel.kafka", "filewheel.timers", "filewheel.testing",
)  # fmt: skip


def test_the_command_line_imports_only_what_a_program_of_a_user_may() -> None:
    for path in (ROOT / "cli").rglob("*.py"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("filewheel")]
                assert set(names) <= {"filewheel"}, f"{path} imports {names}"
            elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("filewheel"):
                module = str(node.module)
                is_public = module in PUBLIC or module.startswith(("filewheel.tools", "filewheel.live"))
                assert is_public, f"{path} imports {module}"
                offered = getattr(importlib.import_module(module), "__all__", None)
                names = [alias.name for alias in node.names]
                assert offered is None or set(names) <= set(offered), f"{path} imports {names} from {module}"
