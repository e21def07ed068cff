"""The wheels of a node on a real disk, with the rules of the service: for tests that move a node by hand.

Invariant: after `crash` the files are as a killed process leaves them, and nothing in memory is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from filewheel.kafka.node.upkeep import NeedsUpkeep
from filewheel.kafka.partition.partition import Partition
from filewheel.kafka.partition.position import RecordOrigin
from filewheel.kafka.records.options import Policy
from tests.kafka.fake import Cluster
from tests.kafka.parts import env_at, killed
from tests.support import FakeClock


@dataclass
class Folder:
    """The data of one machine, by partition."""

    path: Path
    clock: FakeClock
    policy: Policy = Policy("delay")  # noqa: RUF009  (it never changes)
    topic_id: str = "one"
    options: str = ""
    """The digest of the policy."""
    wheel: type[Partition] = Partition
    wheels: dict[int, Partition] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = self.policy.digest

    def at(self, partition: int) -> Path:
        """Return where the wheel of a partition is."""
        return self.path / self.policy.topic / str(partition)

    def open(self, partition: int, on_work: Callable[[NeedsUpkeep], None]) -> Partition:
        """Open a wheel, or make it."""
        source = RecordOrigin("fake", self.policy.topic, partition, self.topic_id, self.options)
        wheel = self.wheel(
            self.at(partition), source, keyed=self.policy.keyed, on_work=on_work, env=env_at(self.clock)
        )  # fmt: skip
        self.wheels[partition] = wheel
        return wheel

    def crash(self, position: int | None = None) -> None:
        """Leave the wheels as a killed process does."""
        assert position is None, "a real wheel knows its position"
        for wheel in self.wheels.values():
            if not wheel._is_closed:
                killed(wheel)
        self.wheels.clear()


def put(
    cluster: Cluster,
    name: bytes,
    *,
    after_ms: int = 0,
    partition: int = 0,
    target: str = "target",
    key: bytes | None = None,
) -> int:
    """Produce a record that asks for a delay; return its offset."""
    due = b"%d" % (cluster.now_ms + after_ms)
    headers = [("filewheel-due-ms", due), ("scheduler-target-topic", target.encode())]
    return cluster.put(name, partition=partition, key=key, headers=headers)
