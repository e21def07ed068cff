"""`work --reload`: run `work` in a child process, and start another one when a source file has changed.

For development. This process imports nothing of the program, so no source, however wrong, can end it. It looks at the
times and sizes of the Python files below the present directory. A change ends the child as SIGTERM does: running calls
end, and its processes with it. A child that fails is started again after the next change. The kernel kills the child
when this process is killed.
Invariants: at most one child runs; it is in a process group of its own, so each signal reaches it once; it ends when
this process does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import cache_from_source

from .failure import Failure
from .signals import Abort, Quit, Stop

log = logging.getLogger("filewheel.work")

_LOOK_S = 0.25
_LOOK_SHARE = 20
"""A look takes at most one part in so many of the time."""
_FILES_MAX = 20_000
_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages"})
_STOP_S = 30.0
_LATE_S = 10.0
"""A child that has not ended so long after its time to stop is killed."""
_NAMES_SHOWN = 3

Files = dict[str, tuple[int, int]]
"""Path → time of the last change, size."""


class Sources:
    """The Python files below a folder, without hidden folders and installed packages."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.took_s = 0.0
        """How long the last look took."""
        self._known = self._look()

    def __len__(self) -> int:
        return len(self._known)

    def changed(self) -> list[str]:
        """Return the files that were changed, made or removed since the last call, once they stay as they are."""
        now = self._look()
        if now == self._known:
            return []
        before, last = self._known, None
        while now != last:  # an editor may still write
            time.sleep(_LOOK_S)
            last, now = now, self._look()
        self._known = now
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))

    def _look(self) -> Files:
        begin = time.monotonic()
        found: Files = {}
        for folder, names, files in os.walk(self.folder):
            names[:] = [name for name in names if not (name.startswith(".") or name in _LEFT_OUT)]
            if "pyvenv.cfg" in files:
                names.clear()
                continue
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    with contextlib.suppress(OSError):  # it was removed a moment ago
                        info = os.stat(path)
                        found[path] = (info.st_mtime_ns, info.st_size)
        if len(found) > _FILES_MAX:
            raise Failure(
                "usage", f"there are more than {_FILES_MAX:,} Python files below {self.folder} to watch",
                hint="run it in the directory of the program",
            )  # fmt: skip
        self.took_s = time.monotonic() - begin
        return found


def work_again_and_again(argv: Sequence[str], stop_s: float | None) -> int:
    """Run `work` with these arguments until a signal, or until it ends by itself without an error.

    Returns the exit code.
    """
    sources = Sources(os.getcwd())
    child: subprocess.Popen[bytes] | None = None
    with Stop((signal.SIGINT, signal.SIGTERM)) as stop:
        try:
            log.info("watching %d Python files below %s", len(sources), sources.folder)
            told: list[int] = []

            def tell() -> None:
                if child is not None and child.pid not in told:
                    told.append(child.pid)
                    _send(child, signal.SIGTERM)

            stop.wakes(tell)
            while not stop.asked:
                child = _start(argv)
                if stop.asked:  # the signal came before there was a child to pass it to
                    tell()
                code = _watch(child, sources, stop, _STOP_S if stop_s is None else stop_s)
                if stop.asked and code == -signal.SIGTERM:  # it had not come so far that it handles the signal
                    return 0
                if code is not None and (code == 0 or stop.asked):
                    return code if code >= 0 else 128 - code
                child = None
                if code is not None:
                    log.error("it ended with exit code %d; it starts again when a source file changes", code)
                    _wait_for_change(sources, stop)
        except Quit:
            pass
        except Abort:  # the second signal
            if child is not None:
                _send(child, signal.SIGTERM)
                _end(child, _LATE_S)
        finally:
            if child is not None and child.poll() is None:
                _end(child, _LATE_S)
    return 0


def _start(argv: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", __package__, *argv, "--child-of", str(os.getpid())]
    return subprocess.Popen(command, process_group=0)


def _watch(child: subprocess.Popen[bytes], sources: Sources, stop: Stop, stop_s: float) -> int | None:
    """Wait until the child ends, and return its exit code; None when it was ended because of a change."""
    while True:
        try:
            return child.wait(max(_LOOK_S, _LOOK_SHARE * sources.took_s))
        except subprocess.TimeoutExpired:
            pass
        if not stop.asked and (changed := sources.changed()) and not stop.asked:
            _tell(changed, sources.folder)
            _send(child, signal.SIGTERM)
            _end(child, stop_s + _LATE_S)
            _forget_compiled(changed)
            return child.returncode if stop.asked else None


def _wait_for_change(sources: Sources, stop: Stop) -> None:
    while not stop.asked:
        if changed := sources.changed():
            _tell(changed, sources.folder)
            _forget_compiled(changed)
            return
        time.sleep(max(_LOOK_S, _LOOK_SHARE * sources.took_s))


def _forget_compiled(changed: Sequence[str]) -> None:
    """Remove what Python has compiled of these files.

    It goes by the second and the size of a source, so it would run the old code of one that was changed twice in a
    second. No child runs that writes it again.
    """
    for path in changed:
        try:
            os.unlink(cache_from_source(path))
        except FileNotFoundError:
            pass
        except OSError as exc:
            log.warning("%s: what was compiled of it cannot be removed, and may be run: %s", path, exc)


def _tell(changed: Sequence[str], folder: str) -> None:
    shown = ", ".join(os.path.relpath(path, folder) for path in changed[:_NAMES_SHOWN])
    more = f" and {len(changed) - _NAMES_SHOWN} more" if len(changed) > _NAMES_SHOWN else ""
    log.info("changed: %s%s; starting again", shown, more)


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)


def _end(child: subprocess.Popen[bytes], within_s: float) -> None:
    """Wait for a child that was asked to end; kill it when it takes longer than this."""
    try:
        child.wait(within_s)
    except subprocess.TimeoutExpired:
        log.error("process %d did not end in time; it is killed", child.pid)
        child.kill()
        child.wait()
