"""The threat model of docs/SECURITY.md: each claim has a test that exists; here are those that belong nowhere else."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.child import environment
from filewheel import FilewheelError, Keeper, Message, MessageId, Wheel
from filewheel.disk.directory import open_directory
from filewheel.format.limits import matches
from filewheel.tools.repair import repair
from filewheel.tools.verify import verify
from tests.cli.support import Fw
from tests.support import REPO
from tests.test_wheel_hostile_files import within

PAGE = (REPO / "docs" / "SECURITY.md").read_text(encoding="utf-8")
HOSTILE = ["--help", "; touch pwned", "$(touch pwned)", "`touch pwned`", "-c touch pwned", "../../pwned", "a\nb"]


def enqueue(path: Path) -> None:
    with Wheel(path) as wheel:
        wheel.enqueue(b"x", delay=60, key="k")


def fire(path: Path) -> None:
    with Keeper(path, background=False) as keeper:
        keeper.claim()


DEEDS: list[Callable[[Path], object]] = [
    enqueue,
    fire,
    lambda path: repair(open_directory(path, write=True)),
    lambda path: verify(open_directory(path, write=False)),
]


@pytest.mark.damages
@pytest.mark.parametrize("name", ["journal", "laps", "quarantine", "keys", "ids"])
def test_a_link_in_the_place_of_a_directory_of_the_wheel_is_not_followed(
    wheel_dir: Path, tmp_path: Path, name: str
) -> None:
    enqueue(wheel_dir)
    with Wheel(wheel_dir) as wheel:
        wheel.cancel(wheel.enqueue(b"x", delay=60))
    outside = tmp_path / "outside"
    (wheel_dir / name).rename(outside)
    (outside / "mine").write_text("mine")
    before = {p: (p.lstat().st_mtime_ns, p.read_bytes()) for p in sorted(outside.rglob("*")) if p.is_file()}
    (wheel_dir / name).symlink_to(outside)
    for deed in DEEDS:
        with contextlib.suppress(FilewheelError):
            deed(wheel_dir)
    assert {p: (p.lstat().st_mtime_ns, p.read_bytes()) for p in sorted(outside.rglob("*")) if p.is_file()} == before


def test_no_header_sets_a_variable_outside_of_its_prefix() -> None:
    names = ["PATH", "LD_PRELOAD", "BASH_FUNC_ls%%", "=PATH", "", "\n", "ID", "FILEWHEEL", "../X", "filewheel_id", "ä"]
    message = Message(MessageId.make(0, 0, 0), b"", "topic", dict.fromkeys(names, "evil"))
    base = {b"PATH": b"/bin", b"LD_PRELOAD": b"mine"}
    found = {k.decode(): v.decode() for k, v in environment(message, 0, "/w", base).items()}
    assert (found["PATH"], found["LD_PRELOAD"], found["FILEWHEEL"]) == ("/bin", "mine", "/w")
    evil = {name for name, value in found.items() if value == "evil"}
    assert evil
    assert all(re.fullmatch(r"FILEWHEEL_H_\w*", name, re.ASCII) for name in evil), evil


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_a_message_is_an_argument_or_a_script_of_its_command(fw: Fw, tmp_path: Path, text: str) -> None:
    with Wheel(fw.wheel) as wheel:
        wheel.enqueue(text.encode(), topic=text, headers={text: text}, key=text)
    script = 'test $# -eq 1 && test "$1" = only && cat'
    result = fw.process("run", "--once", "--retries", "0", "--", "sh", "-c", script, "sh", "only", cwd=tmp_path,
                        env={"PYTHONPATH": str(REPO)})  # fmt: skip
    assert result.out == text
    assert not list(tmp_path.rglob("*pwned*"))


def calls_of(path: Path) -> Iterator[str]:
    """Each module that a file imports, and each name that it calls."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Call):
            yield ast.unparse(node.func) + "()"
            yield from (f"{one.arg}={ast.unparse(one.value)}" for one in node.keywords if one.arg == "shell")


def test_no_module_evaluates_text_reads_pickles_or_starts_a_shell() -> None:
    # multiprocessing starts the processes of a pool; what crosses the pipe afterwards is msgpack (runners/child.py).
    forbidden = {
        "pickle", "marshal", "shelve", "dill", "cloudpickle", "yaml", "eval()", "exec()", "compile()", "os.system()",
        "os.popen()", "shell=True", "pickle.loads()", "ctypes.cast()", "commands",
    }  # fmt: skip
    files = [p for package in ("filewheel", "cli") for p in (REPO / package).rglob("*.py")]
    assert len(files) > 200
    found = {(p.name, call) for p in files for call in calls_of(p) if call in forbidden}
    assert not found


def test_a_pattern_of_many_stars_is_compared_at_once() -> None:
    with within(10):
        for topic in ("a" * 255, "ab" * 127):
            assert not matches(topic, "*a" * 120 + "c")
            assert matches(topic, "*a" * 60 + "*")


# -- the page -------------------------------------------------------------------------------------------------


def claims() -> list[tuple[str, str]]:
    """Each claim of the page, and the cell that names its tests."""
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)
    return [(claim, tests) for claim, tests in rows if "tests/" in tests]


def test_each_table_of_claims_has_a_test_in_each_row() -> None:
    tables = re.findall(r"^\| claim \| shown by \|\n\| --- \| --- \|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    assert len(tables) == 3
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) == len(claims()) >= 28


@pytest.mark.parametrize(("claim", "tests"), claims(), ids=lambda value: value[:60])
def test_a_claim_is_shown_by_tests_that_exist(claim: str, tests: str) -> None:
    pairs = re.findall(r"`(tests/[\w/]+\.py):(\w+)`", tests)
    assert len(pairs) == tests.count("`tests/") >= 1
    for file, name in pairs:
        assert name.startswith("test_")
        defined = {
            n.name for n in ast.parse((REPO / file).read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)
        }
        assert name in defined, f"{file}:{name}"
