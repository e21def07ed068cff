"""The random schedule: producers, faults, rebalances and the clock, between any two steps of the nodes; and the judge.

Invariant: all choices come from the seed, so a seed is a schedule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from filewheel.errors import FilewheelError
from tests.kafka.model.cluster import Cluster, Violation
from tests.kafka.model.node import Node
from tests.kafka.model.shortcut import Shortcut

STEPS = 400
NODES = 3
FULL_EVERY = 8
"""In one of so many schedules the disks are full now and then."""
SETTLING = 30_000
"""Steps after which everything must have gone out, once nothing fails any more."""


class World:
    """One schedule."""

    def __init__(self, seed: int, *, exactly_once: bool | None = None, shortcut: Shortcut | None = None) -> None:
        self.rng = random.Random(seed)
        self.exactly_once = bool(seed % 2) if exactly_once is None else exactly_once
        self.cluster = Cluster()
        self.is_keyed = self.rng.random() < 0.5
        self.has_standbys = self.rng.random() < 0.6
        self.lateness = self.rng.choice((0.1, 0.5, 0.9))
        self.now = self.cluster.latest = 1000
        self.nodes = [
            Node(name, self.cluster, self.rng, exactly_once=self.exactly_once, shortcut=shortcut)
            for name in "abc"[:NODES]
        ]
        for node in self.nodes:
            node.fault = self.rng.choice((0.0, 0.2, 0.4))
            node.refusals = self.rng.choice((0.0, 0.0, 0.1)) if not self.is_keyed else 0.0
            node.fullness = 0.3 if seed % FULL_EVERY == FULL_EVERY - 1 and not self.is_keyed else 0.0
        self.owner: Node | None = None
        self.untold: list[Node] = []
        """Nodes that lost the partition, and do not know it."""
        self.events: Counter[str] = Counter()
        weights = self._weights()
        self._faults = list(weights)
        self._weights_of = [weights[fault] for fault in self._faults]

    def _weights(self) -> dict[Callable[[], None], float]:
        choose = self.rng.choice
        return {
            self._produce: choose((2.0, 6.0)),
            self._flood: choose((0.0, 0.5)),
            self._tick: 4.0,
            self._give: choose((0.5, 2.0)),
            self._tell: choose((0.5, 3.0)),
            self._crash: choose((0.0, 0.5, 1.5)),
            self._restart: 2.0,
            self._pause: choose((0.0, 0.7)),
            self._go_on: 1.5,
            self._arrive: 1.0,
            self._complete: 1.0,
            self._truncate: 0.5,
            self._time_out: choose((0.0, 0.3)),
        }

    # -- the schedule ------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Play the schedule; return what happened. Raises Violation, or an error of the library."""
        for _ in range(STEPS):
            if self.rng.random() < 0.6:
                self._step()
            else:
                self.rng.choices(self._faults, self._weights_of)[0]()
        self._settle()
        self._judge()
        return self.events

    def _step(self) -> None:
        """Let one task of one node go one step further."""
        able = [node for node in self.nodes if node.is_up and not node.is_paused and node.tasks]
        if able:
            node = self.rng.choice(able)
            task = self.rng.choice(node.tasks)
            node.now = self.now
            node.is_member_owner = node is self.owner
            if next(task, self) is self and task in node.tasks:
                node.tasks.remove(task)
            if node.role == "none" and node is not self.owner:
                self._leave(node)

    def _leave(self, node: Node) -> None:
        """Do what a node does that owns nothing."""
        if node in self.untold:
            self.untold.remove(node)
        if self.has_standbys:
            node.stand_by()

    # -- producers and the clock -------------------------------------------------------------------------------

    def _produce(self) -> None:
        late = self.rng.random() < self.lateness
        due = self.now + (self.rng.randint(-8, 0) if late else self.rng.randint(1, self.rng.choice((12, 12, 90))))
        key = self.rng.choice("xyz") if self.is_keyed and self.rng.random() < 0.7 else None
        is_tombstone = key is not None and self.rng.random() < 0.3
        self.cluster.append(due, key, is_tombstone, self.rng.random() < 0.2)

    def _flood(self) -> None:
        due = self.now - self.rng.randint(0, 8)
        for _ in range(self.rng.randint(3, 12)):
            self.cluster.append(due - self.rng.randint(0, 1), None, False, False)
        self.events["flood"] += 1

    def _tick(self) -> None:
        self.now += self.rng.choice((1, 1, 1, 3, -2))
        self.cluster.latest = max(self.cluster.latest, self.now)

    # -- the group ---------------------------------------------------------------------------------------------

    def _give(self) -> None:
        """Assign the partition to a node, after the old owner drained or without it."""
        up = [node for node in self.nodes if node.is_up]
        if not up:
            return
        old, new = self.owner, self.rng.choice(up)
        if old is not None and old is not new and old.is_up:
            if not old.is_paused and self.rng.random() < 0.4:
                old.drain()
                for _ in range(40):
                    for task in list(old.tasks):
                        next(task, None)
                    if old.role != "owner":
                        break
                self.events["drained"] += 1
            if old.role == "owner":
                self.untold.append(old)
        self.owner = new
        if new in self.untold:
            self.untold.remove(new)
            if self.rng.random() < 0.5:
                return  # it never hears that it was not the owner for a while
        if old is not new or new.role != "owner":
            new.is_paused = False
            new.own()
            self.events["assigned"] += 1
        if old is not None and old is not new and old.role == "none":
            self._leave(old)

    def _tell(self) -> None:
        """Let a node learn that it lost the partition."""
        able = [node for node in self.untold if not node.is_paused]
        if able:
            node = self.rng.choice(able)
            node.lose()
            self._leave(node)
            self.events["told"] += 1

    # -- faults ------------------------------------------------------------------------------------------------

    def _crash(self) -> None:
        node = self.rng.choice(self.nodes)
        if node.is_up:
            how = self.rng.choice(("kill", "cut", "lost"))
            node.crash(how)
            if node in self.untold:
                self.untold.remove(node)
            self.events["disk lost" if how == "lost" else how] += 1

    def _restart(self) -> None:
        down = [node for node in self.nodes if not node.is_up]
        if down:
            node = self.rng.choice(down)
            node.start()
            if node is self.owner:
                node.own()
            elif self.has_standbys:
                node.stand_by()

    def _pause(self) -> None:
        self.rng.choice(self.nodes).is_paused = True
        self.events["pause"] += 1

    def _go_on(self) -> None:
        self.rng.choice(self.nodes).is_paused = False

    def _arrive(self) -> None:
        self.events["commit arrives late"] += self.cluster.late is not None
        self.cluster.arrive()

    def _complete(self) -> None:
        self.cluster.complete()

    def _truncate(self) -> None:
        self.cluster.truncate()

    def _time_out(self) -> None:
        self.cluster.time_out()

    # -- the end -----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing fails any more: one node owns the partition, the others know it, and the clock goes on."""
        for node in self.nodes:
            node.fault = node.refusals = 0.0
            node.unit = 30
            node.is_paused = False
            if not node.is_up:
                node.start()
        while self.untold:
            self._tell()
        owner = self.rng.choice(self.nodes)
        if owner is not self.owner or owner.role != "owner":
            if self.owner is not None:
                self.owner.lose()
            self.owner = owner
            owner.own()
        for node in self.nodes:
            if node is not owner:
                node.lose()
        self.has_standbys = False
        for _ in range(SETTLING):
            if self.now <= self.cluster.last_due:
                self.now = self.cluster.latest = max(self.cluster.latest, self.cluster.last_due) + 1
            self._step()
            if owner.can_fire and owner.ingested >= self.cluster.end and not owner.wheel.pending():
                return
        raise Violation(f"{len(owner.wheel.pending())} records still wait at the end")

    def _judge(self) -> None:
        """Raise Violation unless each record went out that was not cancelled, and once where that is promised."""
        for rec in self.cluster.log.values():
            count = self.cluster.produced[rec.offset]
            if not count and not rec.is_tombstone and rec.offset not in self.cluster.cancelled_by:
                raise Violation(f"the record at {rec.offset} is lost")
            if count and rec.is_tombstone:
                raise Violation(f"the tombstone at {rec.offset} went out")
            self.events["records"] += 1
            self.events["twice"] += count > 1


def play(seed: int, *, exactly_once: bool | None = None, shortcut: Shortcut | None = None) -> Counter[str]:
    """Play the schedule of a seed: at least once if it is even, exactly once if odd.

    Raises Violation, which names the seed.
    """
    world = World(seed, exactly_once=exactly_once, shortcut=shortcut)
    try:
        return world.run()
    except (Violation, FilewheelError) as exc:
        mode = "exactly once" if world.exactly_once else "at least once"
        raise Violation(f"seed {seed} ({mode}): {exc}") from exc
