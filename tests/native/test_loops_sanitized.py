"""The C sources under the address and undefined-behaviour sanitizers: empty input, and a pen to the end of its room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support import REPO

EDGES = """
import gc
import os
from filewheel.native import _loops as L
from filewheel.native import compiled as speed
assert speed.COMPILED
id_ = bytes(16)
for op in (
    lambda p: p.cut(0, 0), lambda p: p.sort(), lambda p: p.unique(), lambda p: p.keep(0), lambda p: p.ids(),
    lambda p: p.records(), lambda p: p.frames(0, 0, 1, 0, 1, 100), lambda p: p.extend([]), lambda p: p.remove([]),
    lambda p: p.having([]), lambda p: p.find(id_, 0), lambda p: p.full_at(0, 1), lambda p: p.size_bytes(),
):
    op(L.PutTable())
L.pack_puts(id_, 0, [], b"", []), L.pack_drops([], 1), L.sort([]), L.count_seconds([], 0), L.ids_of([]), L.moved([])
L.part(b"", id_, id_), L.plain_messages([], 0, 0, 1), L.crc32(b"", 0), L.read_frames(b"", 0, 0, 0, 1, None, None, 1)
fd = os.open(__file__ + ".data", os.O_RDWR | os.O_CREAT)
L.write_all(fd, b"", 0)
for size in (0, 1, 800, 900, 1000, 30_000, 70_000):
    for room in (0, 71, 200, 1100, 40_000, 100_000):
        pen = L.Pen(fd, id_, 1, 3, 0, 4096, 4096 + room, 0, 0)
        while pen.put(5, 5, b"\\xa0\\x80\\0", bytes(size)) is not None:
            pass
        assert 4096 <= pen.end()[1] <= 4096 + room
L.keep_from_children(fd)
if os.fork() == 0:
    os._exit(0)
assert os.wait()[1] == 0
L.let_children_have(fd)


class Wheel(L.TimeoutWheel):
    now = 0.0
    woken = 0.0
    def __init__(self):
        super().__init__(0.01, lambda: self.now, False, None)
    def _wake(self, when):
        pass
    def _raised(self, callback, timeout, exc):
        assert isinstance(exc, ZeroDivisionError), exc
    def _returned(self, value):
        assert type(value) is int, value
    def _refuse(self, name, value):
        raise ValueError(name)
    def _outside(self, is_start):
        pass

def again(wheel, count):
    held = [wheel.call_later(n / 7, int) for n in range(20)]
    held[3].cancel(), held[3].cancel()
    if count:
        wheel.call_later(0.3, again, wheel, count - 1)
    else:
        1 / 0

wheel = Wheel()
for delay in (-1, 0, 0.005, 0.63, 0.64, 41, 3000, 1e6, 1e9, 1e18, 1e300):
    for arguments in ((), (1,), (1, 2)):
        wheel.call_later(delay, lambda *given: None, *arguments, context=None)
    wheel.call_later(delay, again, wheel, 3)
for _ in range(400):
    gc.collect(0)
    when = wheel._next()
    if when is None or when > 1e12:
        break
    wheel.now = max(wheel.now, when)
    wheel._turn(1.0)
for bad in ((), (1,), ("x", int), (float("nan"), int), (1, 2)):
    try:
        wheel.call_later(*bad)
    except (TypeError, ValueError):
        pass
handle = wheel.call_later(5, wheel._clear)
wheel.call_later(5, int), wheel.call_later(2, len, wheel)
wheel.now += 6
wheel._turn(1.0)
assert len(wheel) == 0, len(wheel)
held = wheel.call_later(1, again, 0), wheel.call_later(70, int)
wheel.call_later(70, wheel.call_later)
wheel.call_later(-1, int, wheel)
del wheel
gc.collect()
assert all(h.cancelled() for h in held)
repr(held), held[0].when(), held[0].cancel()
unmade = L.TimeoutWheel.__new__(L.TimeoutWheel)
for use in (lambda: unmade.call_later(1, int), lambda: unmade._turn(1.0)):
    try:
        use()
    except RuntimeError:
        pass
unmade._next(), unmade._clear(), len(unmade)
print("clean")
"""


def library(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
    return found.strip()


@pytest.mark.skipif(
    shutil.which("gcc") is None or not sys.platform.startswith("linux"), reason="no gcc here: `apt install gcc`"
)
def test_the_c_sources_do_nothing_that_the_sanitizers_know_to_be_wrong(tmp_path: Path) -> None:
    preload = [library("libasan.so"), library("libubsan.so")]
    if not all(map(os.path.isabs, preload)):
        pytest.skip("gcc has no sanitizers here")
    package = tmp_path / "filewheel"
    shutil.copytree(REPO / "filewheel", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    native = package / "native"
    built = native / f"_loops{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-g", "-O1", "-fPIC", "-shared", "-fwrapv", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    include = sysconfig.get_paths()["include"]
    made = subprocess.run(
        ["gcc", *flags, f"-I{include}", *map(str, native.glob("*.c")), "-o", str(built)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "Python.h" in made.stderr:
        pytest.skip("Python's headers are not there")
    assert made.returncode == 0, made.stderr
    (tmp_path / "edges.py").write_text(EDGES)
    environ = {
        **os.environ, "LD_PRELOAD": " ".join(preload), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(tmp_path), "FILEWHEEL_PURE": "",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(tmp_path / "edges.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "clean\n"), done.stderr
