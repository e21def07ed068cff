"""How one node of the delay service runs. What records mean is in options.py; this changes no result, only its cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of a node. The nodes of a group need the same `exactly_once`."""

    exactly_once: bool = False
    """Produce each unit with its marker in one transaction; readers of the targets then need read_committed."""
    standby: Literal["none", "all"] = "none"
    """With "all", this node also keeps a wheel of each partition that it does not own."""
    on_gap: Literal["stop", "skip"] = "stop"
    """What to do when the log no longer holds the next record: stop the partition, or go on with the first that is
    left and count the loss."""
    accept_options: bool = False
    """Serve a topic that was served with other options. What went out from the marker's `low` on goes out again."""
    unit: int = 1000
    """The most messages of one unit; at least once, as many may be produced twice after a crash."""
    poll: int = 1000
    """The most records of one poll."""
    queue: int = 20_000
    """Records of one partition that wait to be taken in; reading pauses above it, and later fetches them again."""
    queue_bytes: int = 16 << 20
    """Their bytes; reading also pauses above it."""
    clock_ahead_max_s: float = 5.0
    """Nothing fires while this node's clock is ahead of the brokers' by more; 0: whatever the clock says."""
    drain_s: float = 5.0
    """How long a revoked partition may finish its unit."""
    session_s: float = 10.0
    """The session time-out of the group: a silent node loses its partitions after it. A fenced node waits as long."""
    restores: int = 4
    """Partitions that are restored side by side."""
