"""A server process that a peer needs: started for one cell, listening where nobody else does, stopped again."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.store import Missing, Store


class Server:
    """One server process, reached over a unix socket: the quickest way that both servers offer."""

    def __init__(self, program: str) -> None:
        found = shutil.which(program)
        if found is None:
            raise Missing(f"{program} is not installed")
        self.program = found
        # A socket's path is at most 107 bytes, and the store's directory may be deep.
        self._home = Path(tempfile.mkdtemp(prefix="fwb-"))
        self.socket_path = str(self._home / "s")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    def start(self, *args: str) -> None:
        """Start it, and return when it answers connections."""
        log = self._home / "log"
        with log.open("wb") as out:
            self._process = subprocess.Popen([self.program, *args], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        end = time.monotonic() + 600  # a Redis with ten million in its log takes its time
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(self.socket_path)
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.002)
        raise Missing(f"{self.program} does not start: {log.read_text()[-300:]}")

    def stop(self) -> None:
        """Stop it as its users do, with SIGTERM."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait(120)
        shutil.rmtree(self._home, ignore_errors=True)


class Served(Store):
    """A store that is a server: one process for this directory, found by its sessions through a file in it."""

    def __init__(self, directory: Path, setting: str) -> None:
        super().__init__(directory, setting)
        self._address = directory / "server.address"
        self._server: Server | None = None

    def serve(self, server: Server, *args: str) -> None:
        """Start the server, and leave its address for sessions."""
        server.start(*args)
        self._server = server
        self._address.write_text(server.socket_path)

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def pids(self) -> list[int]:
        return [] if self._server is None else [self._server.pid]
