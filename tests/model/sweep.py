"""A sweep: a script is played, and the power is cut at every one of its disk operations, in every way there is.

Where a moment has more than `limit` possible states (each change of names and each write since the last flush may be
lost, whole, half or zeros), the plain ones and a sample are tried. States that look the same on disk, with the same
promises made, are tried once. Some recoveries are cut again half way, some wheels are run to their end.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.model.crashes import crash_everyhow, digest
from tests.model.history import Checker, Result
from tests.model.stage import Stage
from tests.model.tiny import tiny
from tests.model.world import ModelClock

Script = Callable[[Stage], None]


class Sweep:
    """Plays scripts and judges what every power cut leaves."""

    def __init__(self, seed: int = 1, *, limit: int = 24, deep: float = 0.15, stop: int = 1) -> None:
        self.result = Result(seed)
        self.checker = Checker(seed, self.result)
        self.rng = random.Random(f"sweep {seed}")
        self.limit = limit
        self.deep = deep
        self.stop = stop
        """How many violations are enough."""
        self._seen: set[tuple[bytes, int]] = set()

    def play(self, script: Script, *, before: Script | None = None, name: str = "") -> Result:
        """Play `before` unwatched, then the script with a power cut after every disk operation; then run to the end."""
        with tiny():
            stage = Stage(self.result.seed)
            if before is not None:
                before(stage)
            stage.audience = lambda kind, what: self._cut(stage, f"{name} op {stage.machine.ops} after {kind} {what}")
            script(stage)
            self._cut(stage, f"{name} at the end")
            stage.audience = None
            if not stage.all_cues_given():
                raise AssertionError(f"{name}: the moment never came for {[c[:2] for c in stage._cues]}")
            self._finish(stage, name)
            self.result.ops += stage.machine.ops
        return self.result

    def _cut(self, stage: Stage, context: str) -> None:
        oracle = stage.oracle
        if self._is_enough(stage):
            return
        for machine in crash_everyhow(stage.machine, self.limit, self.rng):
            key = digest(machine), oracle.told
            if key in self._seen:
                continue
            self._seen.add(key)
            self.checker.check_state(machine, oracle, ModelClock(stage.clock.wall_us), context, deep=self.deep)
            if self._is_enough(stage):
                return

    def _is_enough(self, stage: Stage) -> bool:
        self.result.violations = stage.oracle.violations
        return len(self.result.violations) >= self.stop

    def _finish(self, stage: Stage, name: str) -> None:
        """Kill everything without a power cut: everything pending fires, and nothing is left."""
        if self._is_enough(stage):
            return
        stage.kill_all()
        clock = ModelClock(stage.clock.wall_us)
        stage.machine.on_op = stage.machine.before_op = None
        self.checker.check_state(stage.machine, stage.oracle, clock, f"{name} after its end", deep=1.0, again=False)
        self.result.violations = stage.oracle.violations
