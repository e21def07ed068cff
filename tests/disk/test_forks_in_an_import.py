"""A fork in the middle of an import on demand: the child can use a wheel of its own, and does not wait for ever.

Found under gunicorn with --preload, where the program had started its scheduler: one of four first requests hung.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import REPO

PROGRAM = """
import os, sys, threading
import filewheel

path, module, call = sys.argv[1:]
assert module not in sys.modules
importing, forking = threading.Event(), threading.Event()


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            importing.set()
            forking.wait()


def work(key):
    with filewheel.Wheel(path) as wheel:
        exec(call)


sys.meta_path.insert(0, Slow())
os.register_at_fork(before=forking.set)
thread = threading.Thread(target=work, args=("parent",))
thread.start()
importing.wait()
pid = os.fork()
if pid == 0:
    work("child")
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [
        ("filewheel.sets.pauses", "wheel.pause(topic=key)"),
        ("filewheel.scheduling.scheduler", "filewheel.Scheduler"),
    ],
)
def test_a_child_that_is_forked_while_a_thread_imports_on_demand_can_import(
    wheel_dir: Path, module: str, call: str
) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, wheel_dir, module, call], env=env, start_new_session=True
    )
    try:
        assert program.wait(60) == 0
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
