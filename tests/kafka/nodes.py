"""Nodes on a cluster in memory that a test starts and kills by name; the fixture `nodes` is in conftest.py.

Invariant: a node that is started again has the disk that it had.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel.kafka.node.settings import NodeSettings
from tests.kafka.fake import Cluster
from tests.kafka.folder import Folder
from tests.kafka.hands import Hands
from tests.support import FakeClock

BOTH = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


class Nodes:
    """The nodes of one test: each has a disk of its own, all have one clock."""

    def __init__(self, path: Path, cluster: Cluster) -> None:
        self.path = path
        self.cluster = cluster
        self.clock = FakeClock(cluster.now_ms * 1000)
        self.folders: dict[str, Folder] = {}

    def start(self, name: str, *, exactly_once: bool = False, settings: NodeSettings | None = None) -> Hands:
        """Start a node on the disk that it had."""
        folder = self.folders.setdefault(name, Folder(self.path / name, self.clock))
        return Hands(
            self.cluster, clock=self.clock, disk=folder, name=name, exactly_once=exactly_once, settings=settings
        )

    def kill(self, node: Hands) -> None:
        """Kill a node; the group finds out at once."""
        node.crash()
        self.cluster.expire(node.node.source)  # type: ignore[arg-type]
