"""The far end of a connection in this process: what a relay, a slow line and a kill do to it, without a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import NoWheel
from filewheel.tools.copy_server import CopyServer

HOST = "far.example"


def url_of(path: Path) -> str:
    """Return the URL of a directory that stands for one on another machine."""
    return f"ssh://{HOST}{path}"


class Line:
    """All connections to the far machine, and what happens to them."""

    def __init__(self, env: Env = SYSTEM) -> None:
        self.env = env
        self.peers: list[LocalPeer] = []
        self.answers = self.messages = 0
        """Round trips, and all messages."""
        self.cut_at: int | None = None
        """The number of the message with which the connection is lost: the far end is killed."""
        self.is_cut = False
        """Nobody can connect."""

    def connect(self, url: str) -> LocalPeer:
        """Stands for the class that starts ssh."""
        if self.is_cut:
            raise NoWheel("ssh cannot connect, or lost the connection", path=url)
        peer = LocalPeer(self, url.removeprefix(f"ssh://{HOST}"))
        self.peers.append(peer)
        return peer

    def settle(self) -> None:
        """Kill the far ends of all connections."""
        for peer in self.peers:
            peer.close()
        self.peers.clear()


class LocalPeer:
    """One connection; the far end answers in the call that sends."""

    def __init__(self, line: Line, path: str) -> None:
        self._line = line
        self.server: CopyServer | None = CopyServer(path, env=line.env)
        self._answers: list[bytes] = []
        self.on_message: Callable[[bytes], None] = lambda message: None

    def send(self, data: bytes, wait_s: float) -> None:
        """Give the far end some messages."""
        line = self._line
        while data:
            size = int.from_bytes(data[:4], "big")
            message, data = data[4 : 4 + size], data[4 + size :]
            line.messages += 1
            if line.cut_at is not None and line.messages >= line.cut_at:
                line.cut_at = None
                self.close()
            if self.server is None:
                raise NoWheel("the connection was lost")
            answer = self.server.handle(message)
            if answer is not None:
                line.answers += 1
                self._answers.append(answer[4:])

    def receive(self, wait_s: float) -> bytes:
        """Return the next answer."""
        if not self._answers:
            raise NoWheel("the far end does not answer")
        return self._answers.pop(0)

    def close(self) -> None:
        """End the far end, as a kill does: what it has written stays."""
        if self.server is not None:
            self.server.close()
            self.server = None
