"""A fork in the middle of an import on demand: the child can use a wheel of its own, and does not wait for ever.

Found under gunicorn with --preload, where the program had started its scheduler: one of four first requests hung.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support import REPO

PROGRAM = """
import os, sys, threading
from filewheel import Wheel

assert "portalocker" not in sys.modules
importing, forking = threading.Event(), threading.Event()


class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "portalocker":
            importing.set()
            forking.wait()


def enqueue(key):
    with Wheel(sys.argv[1]) as wheel:
        wheel.enqueue(key.encode(), key=key)


sys.meta_path.insert(0, Slow())
os.register_at_fork(before=forking.set)
thread = threading.Thread(target=enqueue, args=("parent",))
thread.start()
importing.wait()
pid = os.fork()
if pid == 0:
    enqueue("child")
    os._exit(0)
thread.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_child_that_is_forked_while_a_thread_imports_the_locks_can_lock(wheel_dir: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, wheel_dir], env=env, start_new_session=True)
    try:
        assert program.wait(60) == 0
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
