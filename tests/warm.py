"""The command `filewheel` for scripts, without its start-up: a process that has imported it forks for each call.

Pages and help have hundreds of commands; nine tenths of the time of one is imports. `warm` starts the server below and
yields a script `filewheel` that sends arguments, directory, environment and open files to it, and ends as the forked
process did. Verbs that run on, or are told to stop by a signal, are started as processes of their own. `program_of`
makes of it a script that runs the Python program on its stdin in the same way.
Invariant: what a script sees of a command (output, exit code, signal) is what a process of its own shows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Sequence

from cli.main import VERBS, main
from tests.support import REPO

OWN = ("run", "work", "replicate", "promote", "serve", "top", "demo", "kafka", "doctor", "copy-server")
"""Verbs that are processes of their own: they run on, start others, or say what process they are."""
ENDS = ("--once", "--until-empty")
"""With one of these options such a verb ends by itself, and is forked too."""

CLIENT = """#!{python} -IS
import marshal, posix, sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket
arguments = sys.argv[1:]
if any(verb in {own!r} for verb in arguments) and not any(option in {ends!r} for option in arguments):
    posix.environ[b"PYTHONPATH"] = {repo!r}
    posix.execve({python!r}, [{python!r}, "-W", "error", "-m", "cli", *arguments], posix.environ)
call = marshal.dumps((arguments, posix.getcwd(), posix.environ))
server = socket(AF_UNIX, SOCK_STREAM)
server.connect({address!r})
files = b"".join(n.to_bytes(4, sys.byteorder) for n in range(3))
server.sendmsg([len(call).to_bytes(4, "big")], [(SOL_SOCKET, SCM_RIGHTS, files)])
server.sendall(call)
ended = int(server.recv(16) or b"70")
if ended < 0:
    posix.kill(posix.getpid(), -ended)
posix._exit(ended)
"""
PROGRAM = ".program"
"""The argument of a call that is a Python program on stdin."""


def program_of(script: str) -> str:
    """Return the script that runs the program on its stdin, as `python -` does, from the script of `warm`."""
    if not script.startswith("#!/bin/sh"):
        return script.replace("sys.argv[1:]", repr([PROGRAM]), 1)
    return f"#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -W error -\n"


@contextlib.contextmanager
def warm(own: Sequence[str] = OWN) -> Iterator[str]:
    """Run the server; the text of a script that calls it. Where the system has no pidfd, one that starts Python.

    The verbs `own` are processes of their own.
    """
    if not hasattr(os, "pidfd_open"):
        yield f'#!/bin/sh\nPYTHONPATH={REPO} exec {sys.executable} -W error -m cli "$@"\n'
        return
    with tempfile.TemporaryDirectory(prefix="filewheel-warm-") as directory:
        address = os.path.join(directory, "socket")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FILEWHEEL")}
        server = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.warm", address],
            cwd=REPO, env={**environment, "PYTHONPATH": str(REPO)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        with server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield CLIENT.format(
                python=sys.executable, own=tuple(own), ends=ENDS, repo=os.fsencode(REPO), address=address
            )  # fmt: skip
            assert server.stdin is not None
            server.stdin.close()  # it ends


def serve(address: str) -> bool:
    """Fork for each call until stdin ends. Returns True in a forked process, which is to run the command."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    waits = select.poll()
    waits.register(listener, select.POLLIN)
    waits.register(0, select.POLLIN)
    running: dict[int, tuple[int, int, socket.socket]] = {}
    """pidfd or connection → (pid, pidfd, connection)"""
    print("ready", flush=True)
    while True:
        for fd, _ in waits.poll():
            if fd == 0:
                for pid, _, _ in running.values():
                    os.kill(pid, signal.SIGKILL)
                listener.close()
                return False
            if fd == listener.fileno():
                connection, _ = listener.accept()
                pid = os.fork()
                if pid == 0:
                    become(connection)
                    for one in (listener, connection, *(call[2] for call in running.values())):
                        one.detach()
                    os.closerange(3, max(running, default=0) + 16)
                    return True
                call = (pid, os.pidfd_open(pid), connection)
                for one in (call[1], connection.fileno()):
                    running[one] = call
                waits.register(call[1], select.POLLIN)
                waits.register(connection, select.POLLHUP)  # the script was killed
            elif fd in running:
                pid, pidfd, connection = running[fd]
                if fd != pidfd:
                    os.kill(pid, signal.SIGKILL)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                for one in (pidfd, connection.fileno()):
                    waits.unregister(one)
                    del running[one]
                os.close(pidfd)
                connection.close()


def become(connection: socket.socket) -> None:
    """Take over arguments, directory, environment and files of a call."""
    length, files, _, _ = socket.recv_fds(connection, 4, 3)
    with connection.makefile("rb") as data:
        arguments, directory, environment = marshal.loads(data.read(int.from_bytes(length, "big")))
    for n, fd in enumerate(files):
        os.dup2(fd, n)
    os.chdir(directory)
    os.environb.clear()
    os.environb.update(environment)
    time.tzset()
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    sys.argv[1:] = arguments


if __name__ == "__main__":
    for name in VERBS:
        if name in ("run", "work") or name not in OWN:
            importlib.import_module(f"cli.commands.{name}")
    for name in ("filewheel.aio.wheel", "filewheel.scheduling.aio"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    sys.path[0] = ""
    if serve(sys.argv[1]):
        if sys.argv[1:] == [PROGRAM]:
            sys.argv[:] = ["-"]
            own = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(compile(sys.stdin.read(), "<stdin>", "exec"), vars(own))
        else:
            main()
