"""The public API as text: names with signatures, verbs with options, exit codes, JSON keys, metrics, headers.

`python -m tests.api --write` writes data/api.txt after a change that docs/stability.md allows; tests/test_api.py
compares. A signature is written from its parameters, not by `inspect`, whose text differs between versions of Python.
Invariant: the same code gives the same text on each machine and each supported Python.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from cli.failure import _CODES, MEANING
from cli.main import cli
from filewheel import Scheduler, Wheel, add_backup
from filewheel.message import PREFIX
from filewheel.metrics import Metrics
from tests.cli.support import finish, invoke, start
from tests.support import REPO

PLACE = REPO / "data" / "api.txt"
MODULES = (
    "filewheel", "filewheel.message", "filewheel.timespec", "filewheel.metrics", "filewheel.scheduling.cron",
    "filewheel.scheduling.events", "filewheel.testing", "filewheel.timers", "filewheel.tools", "filewheel.tools.verify",
    "filewheel.tools.repair", "filewheel.tools.dump", "filewheel.tools.diff", "filewheel.live.health",
    "filewheel.bridges.prometheus", "filewheel.bridges.otel", "filewheel.kafka",
)  # fmt: skip
"""What a program may import. One that needs an extra is left out where that is missing."""
BY_BUILD = {"LoopWheel": {"call_at", "call_later"}}
"""Methods that are in C or in Python, by the build; tests/timers call both."""
FREE = {"headers", "topics", "libraries", "kwargs"}
"""JSON objects whose keys are a user's, or those of a machine."""


def public(module: Any) -> list[str]:
    """Return the public names of a module: its `__all__`, or what it defines itself."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    names = [n for n in vars(module) if not n.startswith("_")]
    own = [n for n in names if getattr(getattr(module, n), "__module__", None) == module.__name__]
    constants = [n for n in names if isinstance(getattr(module, n), (int, str, bytes, float)) and n.isupper()]
    return sorted({*own, *constants})


def lines_of(module: str) -> Iterator[str]:
    """Yield the lines of a module."""
    loaded = importlib.import_module(module)
    for name in public(loaded):
        value = getattr(loaded, name)
        if inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value) and not hasattr(value, "__origin__"):
            yield f"{name}{signature(value)}"
        elif name in ("__version__", "COMPILED"):
            yield name
        else:
            yield f"{name} = {shown(value)}"


def _class(name: str, cls: type) -> Iterator[str]:
    bases = [b.__name__ for b in cls.__bases__ if b is not object and not b.__name__.startswith("_")]
    if name == "LoopTimeout":  # in C or in Python, by the build
        yield f"class {name}"
        return
    yield f"class {name}({', '.join(bases)})" if bases else f"class {name}"
    if issubclass(cls, enum.Enum):
        yield from (f"  {one.name} = {shown(one.value)}" for one in cls)
    elif not issubclass(cls, BaseException):
        yield f"  {name}{signature(cls)}"
    elif isinstance(kind := getattr(cls, "kind", None), str):
        yield f"  kind = {kind!r}"
    for member in sorted(_members(cls) - BY_BUILD.get(name, set())):
        value = inspect.getattr_static(cls, member)
        if isinstance(value, property):
            yield f"  .{member} (property)"
        elif isinstance(value, (classmethod, staticmethod)):
            yield f"  .{member}{signature(value.__func__)} ({type(value).__name__})"
        elif inspect.isfunction(value):
            is_async = inspect.iscoroutinefunction(value)
            yield f"  {'async ' if is_async else ''}.{member}{signature(value)}"
    if dataclasses.is_dataclass(cls):
        yield from (f"  .{f.name}: {f.type}" for f in dataclasses.fields(cls) if not f.name.startswith("_"))


def _members(cls: type) -> set[str]:
    """Return the public members that the library gives a class."""
    ours = [c for c in cls.__mro__ if c.__module__.startswith("filewheel")]
    return {name for c in ours for name in vars(c) if not name.startswith("_")}


def signature(value: Callable[..., Any]) -> str:
    """Return the signature of a call, or (...) where it has none that can be read."""
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return "(...)"
    words: list[str] = []
    was_star = False
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not was_star:
            words.append("*")
            was_star = True
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        was_star = was_star or one.kind is one.VAR_POSITIONAL
        text = star + one.name
        if one.annotation is not one.empty:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {shown(one.default)}"
        words.append(text)
    result = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    return f"({', '.join(words)}){result}"


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)


def shown(value: Any) -> str:
    """Return a default or a constant as text, the same everywhere."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value) or inspect.isfunction(value) or inspect.isbuiltin(value):
        return str(value.__name__)
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(shown, value))) + "}"
    text = repr(value)
    return f"<{type(value).__name__}>" if " at 0x" in text or "<object" in text else text


# -- the command ----------------------------------------------------------------------------------------------


def verbs(command: click.Command = cli, path: str = "filewheel") -> Iterator[str]:
    """Yield a line for each verb: its arguments and options."""
    words = []
    for param in command.params:
        if isinstance(param, click.Argument):
            words.append((param.metavar or param.name or "").upper())
        elif isinstance(param, click.Option) and not (param.hidden and path != "filewheel"):
            words.append("/".join([*param.opts, *param.secondary_opts]))
    yield " ".join([path, *words])
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            if not inner.hidden:
                yield from verbs(inner, f"{path} {name}")


def keys_in(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each key of a JSON value: "checks[].name"."""
    if isinstance(value, dict) and path.rpartition(".")[2] not in FREE:
        for key, inner in value.items():
            at = f"{path}.{key}" if path else key
            yield at
            yield from keys_in(inner, at)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_in(inner, f"{path}[]")


def sample(where: Path) -> Path:
    """Make a wheel with a bit of everything that has JSON of its own."""
    path = where / "wheel"
    Wheel.create(path).close()
    scheduler = Scheduler(path)
    scheduler.schedule("report", 3600, "report", ["all"])
    scheduler.enqueue("mail", ["ann"], delay=3600)
    scheduler.stop()
    with Wheel(path) as wheel:
        wheel.enqueue(b"\xff", delay=3600, topic="t", key="k", headers={"h": "v"})
        wheel.pause(topic="paused", why="because")
        wheel.enqueue(b"dies", topic="t")
    finish(start("-C", path, "run", "--once", "--raw", "--retries", "0", "--", "false"))
    add_backup(path, where / "backup", mode="ship")
    return path


def json_keys() -> Iterator[str]:
    """Yield the keys of what each verb prints about the sample."""
    with tempfile.TemporaryDirectory() as directory:
        path = sample(Path(directory))
        with Wheel(path) as wheel:
            id_ = str(next(m for m in wheel.list(topic="t")).id)
            dead = str(next(wheel.dead()).id)
        for words in (
            "init -C {new}", "stats", "inspect", "inspect list", "inspect {id}", "inspect {dead}", "inspect schedules",
            "dead list", "health", "doctor --no-measure --verify", "history", "top",
            "pause --topic p --json", "resume --topic p --json", "schedule list", "backup list", "when 1h",
            "enqueue --in 1h --json x",
            "reschedule {id} --in 2h --json",
            "cancel --all --topic t --yes --json", "kill --json {dead}",
        ):  # fmt: skip
            args = words.format(id=id_, dead=dead, new=Path(directory) / "new").split()
            result = invoke("-C", path, *args)
            found = {key for record in result.json for key in keys_in(record)}
            if result.code not in (0, 3, 4, 20, 24) or (not found and words.split()[0] != "kill"):
                raise AssertionError(f"{words}: {result}")
            verb = " ".join(w for w in words.split() if w[0] not in "-{0123456789x" and w != "t")
            yield from (f"{verb}: {key}" for key in sorted(found))


def families() -> Iterator[str]:
    """Yield each metric with its kind: of a wheel in a set, and of a process."""
    with tempfile.TemporaryDirectory() as directory:
        text = invoke("-C", sample(Path(directory)), "metrics").out
    metrics = Metrics()
    metrics.reserve(["h"])
    kinds = re.compile(r"^# TYPE (\w+) (\w+)$", re.MULTILINE)
    yield from sorted({f"{name} {kind}" for name, kind in kinds.findall(text + metrics.text())})


def variables() -> list[str]:
    """Return the variables of the environment that the code reads or sets."""
    texts = [p.read_text(encoding="utf-8") for package in ("filewheel", "cli") for p in (REPO / package).rglob("*.py")]
    return sorted({name for text in texts for name in re.findall(r"\"(FILEWHEEL(?:_[A-Z_]+)?)\"", text)})


def headers() -> list[str]:
    """Return the headers that have a meaning."""
    found = importlib.import_module("filewheel.message")
    values = [v for n, v in vars(found).items() if n.isupper() and isinstance(v, str)]
    return sorted({v for v in values if v.startswith(PREFIX) and v != PREFIX})


def sections() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of the snapshot."""
    for module in MODULES:
        try:
            yield f"module {module}", list(lines_of(module))
        except ImportError:
            continue
    yield "command line", list(verbs())
    yield "exit codes", [f"{code} {kind}" for kind, code in sorted(_CODES.items(), key=lambda pair: (pair[1], pair[0]))]
    yield "exit codes that the help lists", list(map(str, MEANING))
    yield "JSON keys", list(json_keys())
    yield "metrics", list(families())
    yield "headers", headers()
    yield "environment", variables()


def parse(text: str) -> dict[str, list[str]]:
    """Read a snapshot."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("== "):
            found[line[3:]] = current = []
        elif line:
            current.append(line)
    return found


def main(args: list[str]) -> int:
    """Print the snapshot, or write it."""
    text = "\n".join("\n".join([f"== {name}", *lines, ""]) for name, lines in sections())
    if args == ["--write"]:
        missing = [m for m in MODULES if f"== module {m}\n" not in text]
        if missing:
            print(f"not written: {', '.join(missing)} cannot be imported here", file=sys.stderr)
            return 1
        PLACE.write_text(text, encoding="utf-8")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
