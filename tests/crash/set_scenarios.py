"""The scenarios of the sweep with several wheels: mirrored enqueues, a replicator, promotions, rejoins, members.

A roster holds absolute paths, so a set is prepared where it is played (fault.py moves it away and copies it back).
Time passes by itself here: each look at the steady clock is a fifth of a second later, so that whatever waits for
time is done after so many looks. What waits for other processes, of which there are none, does not wait.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import filewheel.roster.fence
import filewheel.sets.peers
from filewheel import (
    BadArgument,
    FilewheelError,
    Replicator,
    Wheel,
    add_backup,
    promote,
    rejoin,
    remove_backup,
    set_status,
)
from filewheel.disk.disk import SYSTEM
from filewheel.tools.diff import differences
from tests.crash.actor import Actor
from tests.crash.baton import in_turns
from tests.crash.scenarios import Scenario
from tests.support import FakeClock

PRIMARY, MIRROR, SHIPPED = NAMES = ("jobs.wheel", "b.wheel", "c.wheel")
_STEP_US = 200_000
_TURNS = 4
_TURNS_MAX = 48


class PassingClock(FakeClock):
    """A clock of which the steady one goes on by itself."""

    def steady_us(self) -> int:
        self.run_us += _STEP_US
        return self.run_us


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait for nobody: no other process is there that has to see something, or to let go."""
    patches: list[tuple[Any, str, Any]] = [
        (filewheel.roster.fence, "_FENCE_S", 0.0),
        (filewheel.sets.peers, "_PAUSE_S", 0.0005),
    ]
    before = [(target, name, getattr(target, name)) for target, name, _ in patches]
    try:
        for target, name, value in patches:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in before:
            setattr(target, name, value)


class SetActor(Actor):
    """One process that does all that is done to a set. Its `path` is the wheel that it takes for the primary."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clock = PassingClock(self.clock.now_us())
        self.place = os.path.dirname(self.path)

    def at(self, name: str) -> str:
        """Return the path of a wheel."""
        return os.path.join(self.place, name)

    def _raised(self, op: str, exc: FilewheelError, given: dict[str, Any]) -> None:
        super()._raised(op, exc, given)
        self.clock.run_us += 2_000_000  # what is tried again after a while is tried again

    def use(self, name: str) -> None:
        """Go where the primary is."""
        self.close()
        self.path = self.at(name)

    def add(self, name: str, **options: Any) -> None:  # type: ignore[override]
        """Add a backup to the set."""
        self.do(
            "add", lambda _: void(add_backup(self.path, self.at(name), env=SYSTEM.using(clock=self.clock), **options))
        )

    def remove(self, name: str) -> None:
        """Take a backup out of the set."""
        self.do("remove", lambda _: void(remove_backup(self.path, self.at(name), env=SYSTEM.using(clock=self.clock))))

    def replicate(self, name: str = PRIMARY) -> None:
        """Bring every backup in step."""

        def call(given: dict[str, Any]) -> None:
            replicate(self.at(name), self.clock, self.entropy)

        self.do("replicate", call)

    def serve(self, *turns: Callable[[], None]) -> None:
        """Run the replicator until every backup is in step; at each turn of its own that is given, do that first."""
        left = list(turns)

        def call(given: dict[str, Any]) -> None:
            count = 0

            def on_sleep() -> None:
                nonlocal count
                count += 1
                if left and count % _TURNS == 0:
                    left.pop(0)()
                reports = replicator.status()
                done = not left and bool(reports) and all(r.state == "following" and not r.error for r in reports)
                if (done and count > (len(turns) + 1) * _TURNS) or count > _TURNS_MAX:
                    replicator.stop()

            with in_turns(on_sleep):
                replicator = Replicator(
                    self.path, interval_s=0.001, env=SYSTEM.using(clock=self.clock, entropy=self.entropy)
                )
                replicator.run()
            failed = [f"{r.path}: {r.state}: {r.error}" for r in replicator.status() if r.state != "following"]
            if failed:
                raise FilewheelError("; ".join(failed))

        self.do("serve", call)

    def promote(self, name: str) -> None:
        """Promote a wheel, and go there."""

        def call(given: dict[str, Any]) -> dict[str, Any]:
            done = promote(self.at(name), wait_s=0.05, env=SYSTEM.using(clock=self.clock, entropy=self.entropy))
            return {"caught_up": done.caught_up, "notes": done.notes, "unreachable": done.unreachable}

        if self.do("promote", call) is not None:
            self.use(name)

    def rejoin(self, name: str) -> None:
        """Make a fenced wheel a backup again; after an error one that is a backup already is as good."""
        tried = False

        def call(given: dict[str, Any]) -> None:
            nonlocal tried
            try:
                rejoin(self.at(name), env=SYSTEM.using(clock=self.clock, entropy=self.entropy))
            except BadArgument as exc:
                if not tried or "is a backup already" not in exc.what:
                    raise
            finally:
                tried = True

        self.do("rejoin", call)


def void(result: object) -> None:
    """Forget a result."""


def replicate(path: str, clock: FakeClock, entropy: Callable[[int], bytes] | None = None) -> None:
    """Bring every backup of a set in step. Raises FilewheelError when one of them cannot be."""
    env = SYSTEM.using(clock=clock) if entropy is None else SYSTEM.using(clock=clock, entropy=entropy)
    with Replicator(path, interval_s=0.001, env=env) as replicator:
        reports = replicator.once()
    failed = [f"{r.path}: {r.error}" for r in reports if r.error]
    if failed:
        raise FilewheelError("; ".join(failed))


# -- preparing ------------------------------------------------------------------------------------------------------


def trio(actor: SetActor) -> None:
    """A primary with a mirror and a shipped backup, both in step, and messages that lie everywhere."""
    actor.create()
    actor.enqueue(0, 1, 30, 70, 400)
    actor.add(MIRROR, mode="mirror")
    actor.add(SHIPPED)
    actor.replicate()
    actor.keep_house(seconds=31)
    actor.close()
    actor.enqueue(-40, 2, 75, 410)
    actor.replicate()


def behind(actor: SetActor) -> None:
    """The same, and what nobody has shipped yet: messages, cancels, acknowledgements."""
    trio(actor)
    actor.enqueue(3, 80, 420)
    actor.cancel(actor.ids[3], actor.ids[9])
    fired = actor.claim()
    actor.ack(*fired[:2], sync="always")
    actor.close()


def away(actor: SetActor) -> None:
    """Two backups that are stale: each has lost a file."""
    behind(actor)
    for name in (MIRROR, SHIPPED):
        laps = actor.at(f"{name}/laps")
        os.unlink(os.path.join(laps, sorted(n for n in os.listdir(laps) if n.endswith(".lap"))[0]))


def split(actor: SetActor) -> None:
    """Two primaries: one was promoted while the other was out of sight, and that one went on alone."""
    actor.create()
    actor.enqueue(0, 1, 30, 70, 400)
    for name in (MIRROR, SHIPPED):
        actor.add(name)
    actor.replicate()
    actor.enqueue(3, 80)
    actor.cancel(actor.ids[3])
    actor.ack(*actor.claim(), sync="always")
    actor.close()
    os.rename(actor.at(PRIMARY), actor.at("away"))
    actor.promote(MIRROR)
    actor.enqueue(4, 90)
    actor.close()
    for name in (MIRROR, SHIPPED):
        os.rename(actor.at(name), actor.at(f"{name} away"))
    os.rename(actor.at("away"), actor.at(PRIMARY))
    actor.use(PRIMARY)
    actor.enqueue(5, 410)
    actor.cancel(actor.ids[4])
    actor.close()
    for name in (MIRROR, SHIPPED):
        os.rename(actor.at(f"{name} away"), actor.at(name))


def bare(actor: SetActor) -> None:
    """A wheel that stands alone, with messages."""
    actor.create()
    actor.enqueue(0, 1, 70, 400)


# -- running --------------------------------------------------------------------------------------------------------


def mirrored(actor: SetActor) -> None:
    """Enqueue, cancel, move and fire with a mirror."""
    actor.enqueue(1, 60)
    actor.enqueue(*range(6), size=60)
    actor.cancel(actor.ids[2], sync="never")
    actor.reschedule(actor.ids[5], 90)
    fired = actor.claim()
    actor.ack(*fired, sync="always")


def follow(actor: SetActor) -> None:
    """Replicate, with nothing to do the second time."""
    actor.replicate()
    actor.enqueue(7)
    actor.replicate(SHIPPED)


def serve(actor: SetActor) -> None:
    """Run the replicator, and use the primary meanwhile."""
    actor.serve(
        lambda: actor.enqueue(7),
        lambda: actor.cancel(actor.ids[5]),
        lambda: actor.ack(*actor.claim(), sync="always"),
        lambda: actor.keep_house(seconds=31),
    )


def go_after(actor: SetActor) -> None:
    """Run the replicator while another wheel is promoted, which it goes on from."""
    actor.serve(lambda: actor.promote(MIRROR), lambda: actor.rejoin(PRIMARY), lambda: actor.enqueue(2))


def promote_mirror(actor: SetActor) -> None:
    """Promote the mirror, and use it."""
    actor.promote(MIRROR)
    actor.enqueue(2)
    actor.ack(*actor.claim(), sync="always")


def promote_shipped(actor: SetActor) -> None:
    """Promote a backup that is behind, then the primary of before again."""
    actor.promote(SHIPPED)
    actor.enqueue(2)


def come_back(actor: SetActor) -> None:
    """Rejoin, and bring all in step."""
    actor.rejoin(PRIMARY)
    actor.replicate(MIRROR)


def members(actor: SetActor) -> None:
    """Add backups, fill them, take one out."""
    actor.add(MIRROR, mode="mirror", on_failure="stale")
    actor.enqueue(5)
    actor.add(SHIPPED)
    actor.replicate()
    actor.remove(SHIPPED)


def look(actor: SetActor) -> None:
    """Look how the set is, and what its wheels do not have in common."""
    for name in NAMES:
        actor.do("status", lambda _, name=name: void(set_status(actor.at(name), env=SYSTEM.using(clock=actor.clock))))

    def differ(given: dict[str, Any]) -> None:
        with Wheel(actor.path, clock=actor.clock) as one, Wheel(actor.at(SHIPPED), clock=actor.clock) as other:
            for _ in differences(one, other):
                pass

    actor.do("diff", differ)


SET_SCENARIOS = {
    s.name: s
    for s in (
        Scenario("mirrored", mirrored, trio, is_set=True),
        Scenario("replicate", follow, behind, is_set=True),
        Scenario("serve", serve, behind, is_set=True),
        Scenario("serve-heal", serve, away, is_set=True, damages=True),
        Scenario("serve-promoted", go_after, behind, is_set=True),
        Scenario("heal", follow, away, is_set=True, damages=True),
        Scenario("promote", promote_mirror, behind, is_set=True),
        Scenario("promote-shipped", promote_shipped, behind, is_set=True),
        Scenario("rejoin", come_back, split, is_set=True),
        Scenario("members", members, bare, is_set=True),
        Scenario("look", look, behind, is_set=True),
    )
}
