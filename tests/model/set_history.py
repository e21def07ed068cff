"""Histories of a set of wheels: one life, crashed aside all along, then a disaster's aftermath and a promotion.

`python -m tests.model.set_history SEED [MODE [BACKUPS [DISASTER]]]` shows one again. several.py has the world and its
oracle. Invariant: everything that is drawn comes from the seed.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from filewheel.disk.disk import SYSTEM
from filewheel.message import US_PER_S
from filewheel.roster.roster import Mode, OnFailure
from tests.model.history import BROKEN, Result
from tests.model.life import actors_of, fire_all, mode_of
from tests.model.sched import paused
from tests.model.several import NAMES, STEPS, SetWorld, tiny_set
from tests.model.volumes import CONDITIONS, Condition, Process

QUIET_TURNS = 400
"""So many turns of its links a set gets to come in step when nothing else happens."""


class SetHistory:
    """One history of a set: one life, crashed aside all along, then a disaster's aftermath and a promotion."""

    def __init__(self, seed: int, world: SetWorld, *, disaster: Condition | None, crash_rate: float) -> None:
        self.seed = seed
        self.world = world
        self.disaster = disaster
        self.crash_rate = crash_rate
        self.rng = random.Random(f"set history {seed}")
        self.result = Result(seed)

    def play(self) -> Result:
        world = self.world
        actors, befallen = actors_of(world), Process(world.volumes)
        if self.disaster is not None:
            actors.append(("disaster", befallen, lambda: self.befall(befallen)))
        world.volumes.on_op = self.on_op
        world.run(*actors)
        world.volumes.on_op = None
        self.result.ops = len(world.volumes.log)
        self.result.switches = world.switches
        if not world.oracle.violations:
            self.end()
        self.result.violations = world.oracle.violations
        return self.result

    def befall(self, process: Process) -> None:
        """Strike one disk at a random moment."""
        at, path = self.rng.randrange(STEPS), self.rng.choice(list(self.world.volumes.of_path))
        looker = process.open(self.world.primary)
        while self.world.steps < at:
            looker.wait_hint(None, 0)
        assert self.disaster is not None
        self.world.strike(path, self.disaster)
        process.kill()

    def on_op(self, path: str, kind: str, name: str) -> None:
        world = self.world
        if self.rng.random() >= self.crash_rate or world.oracle.violations or world.struck is not None:
            return
        context = f"seed {self.seed} op {len(world.volumes.log)} after {kind} {path} {name}"
        with paused():
            # A disaster that comes on top of a power cut is one more, so loss is tried with both.
            self.result.states += 2
            world.check_cut(world.volumes.crash(self.rng), f"power cut, {context}")
            how = self.rng.choice(["all", ""])
            lost = self.rng.choice(list(world.volumes.of_path))
            world.check_loss(world.volumes.crash(self.rng, how), lost, f"{'kill' if how else 'power cut'}, {context}")

    def end(self) -> None:
        """Bring a whole set in step; promote where the primary was struck; then everything fires."""
        world = self.world
        if world.struck is None:
            world.act("replicator", self.settle)
            world.check_equal(f"seed {self.seed} at the end")
            if self.rng.random() < 0.5:
                return
        if world.struck in (None, world.primary):
            self.promote()
        if not world.oracle.violations:
            world.act("drain", self.drain)

    def settle(self, process: Process) -> None:
        links: dict[str, Any] = {}
        in_step = 0
        for _ in range(QUIET_TURNS):
            in_step = in_step + 1 if self.world.turn(process, links) else 0
            if in_step > 3:  # a frame with drops waits for the pass after the one that met it
                break
            self.world.clock.advance(US_PER_S // 5)
        else:
            self.world.oracle.violations.append(f"seed {self.seed}: not in step after {QUIET_TURNS} turns")
        for link in links.values():
            link.close()

    def promote(self) -> None:
        from filewheel.sets.promote import promote

        world = self.world
        ready = world.promotable(world.volumes)
        if not ready:
            world.oracle.violations.append(f"seed {self.seed}: no backup may be promoted after {self.disaster}")
            return
        target = ready[0]

        def body(process: Process) -> None:
            promote(
                target, wait_s=0.1, env=SYSTEM.using(clock=world.clock, disk=process.open, entropy=world.rng.randbytes)
            )

        promoting, time = Process(world.volumes), Process(world.volumes)

        def whole() -> None:
            body(promoting)
            promoting.kill()

        def passes() -> None:
            looker = time.open(target)
            while promoting.alive:  # what only one wheel has is looked at twice, a second apart
                world.clock.advance(US_PER_S // 50)
                looker.wait_hint(None, 0)

        world.run(("promote", promoting, whole), ("time", time, passes))
        world.primary = target
        if world.mode == "ship":  # what it acknowledged and had not shipped may fire again
            for told in world.oracle.messages.values():
                told.acked.clear()
                told.finished.clear()
            world.oracle.cancelled.clear()

    def drain(self, process: Process) -> None:
        """Fire and acknowledge everything: what was promised and has not fired does so."""
        world, oracle = self.world, self.world.oracle
        keeper = world.open_keeper(process)
        fired = fire_all(world, keeper)
        least = 1 if world.primary == NAMES[0] else 2
        for payload, told in oracle.messages.items():
            if told.enqueued and not told.may_be_gone and oracle.copies[payload] >= least and payload not in fired:
                oracle.violations.append(
                    f"seed {self.seed}: {payload!r} was enqueued with {oracle.copies[payload]} copies and never fired"
                )
        self.result.fired = sum(t.fired for t in oracle.messages.values())


def run_set(
    seed: int,
    *,
    mode: Mode = "mirror",
    backups: int = 1,
    on_failure: OnFailure = "stale",
    disaster: Condition | None = None,
    crash_rate: float = 0.1,
) -> Result:
    """Play one history of a set; an error in the library is a violation too."""
    with tiny_set():
        world = SetWorld(seed, mode=mode, backups=backups, on_failure=on_failure)
        history = SetHistory(seed, world, disaster=disaster, crash_rate=crash_rate)
        try:
            return history.play()
        except BROKEN as exc:
            history.result.violations = [*world.oracle.violations, f"seed {seed}: {exc!r}"]
            return history.result


if __name__ == "__main__":
    given = dict(zip(("seed", "mode", "backups", "disaster"), sys.argv[1:], strict=False))
    disaster_ = next((c for c in CONDITIONS if c == given.get("disaster")), None)
    shown = run_set(
        int(given["seed"]), mode=mode_of(given.get("mode")), backups=int(given.get("backups", 1)), disaster=disaster_
    )
    raise SystemExit(shown.show())
