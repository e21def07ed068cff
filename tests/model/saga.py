"""Sagas: what becomes of a set of wheels through several lives, disasters and promotions, and what is left at the end.

Each round is a life (producers, a keeper, a replicator, kills among them), perhaps with a disaster or a promotion in
its middle; then an aftermath: a kill or a power cut of everything, a promotion and a rejoin that are cut short and
repeated, and links until all is in step. After the last round everything fires, and nothing may be left anywhere.

`run_saga(seed, mode=, backups=, ...)` plays one; `python -m tests.model.saga SEED [MODE [BACKUPS [WHAT]]]` shows it
again. several.py has the world; set_history.py the histories of one life that are crashed aside at every operation.
Invariant: everything that is drawn comes from the seed.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any, Literal

from filewheel.disk.disk import SYSTEM
from filewheel.errors import FilewheelError, NotFound
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.roster.fence import Fence
from filewheel.roster.roster import Mode, OnFailure, read_roster
from tests.model.history import BROKEN, Result
from tests.model.life import actors_of, fire_all, mode_of
from tests.model.process import Killed
from tests.model.several import SetWorld, tiny_set
from tests.model.tiny import SLOTS
from tests.model.volumes import CONDITIONS, Condition, Process, Volumes

What = Literal["quiet", "kills", "cut", "planned", "rm", "loss", "away", "strike"]
WHATS: tuple[What, ...] = ("quiet", "kills", "cut", "planned", "rm", "loss", "away", "strike")
"""What happens in a round; "loss" and "rm" take a disk away for good, after "strike" and "away" it comes back."""

ROUNDS = 3
SETTLE_TURNS = 600
STUCK_TURNS = 12
STEPS_RIVALS = 80


class Saga:
    """One saga. Make it, call `play` once."""

    def __init__(self, seed: int, world: SetWorld, what: What | None) -> None:
        self.seed = seed
        self.world = world
        self.what = what
        self.rng = random.Random(f"saga {seed}")
        self.result = Result(seed)
        self.round = 0
        self.is_over = False
        self.said = ""
        """What happens in this round, for the reports."""

    def play(self) -> Result:
        world = self.world
        for self.round in range(ROUNDS):
            what = self.what if self.what is not None and self.round < 2 else self.rng.choice(WHATS[:5])
            if len(self.there()) < 2:
                what = "kills"
            self.said = f"{what} in round {self.round}"
            self.life(what)
            if not world.oracle.violations:
                self.aftermath(what)
            if world.oracle.violations or self.is_over:
                break
        if not world.oracle.violations and not self.is_over:
            self.finish()
        self.result.ops += len(world.volumes.log)
        self.result.switches = world.switches
        self.result.violations = [f"{v} (seed {self.seed}, {self.said})" for v in world.oracle.violations]
        return self.result

    def there(self) -> list[str]:
        """Return the wheels whose disk was not lost for good."""
        return [p for p, v in self.world.volumes.of_path.items() if v.condition != "deleted"]

    # -- a life ----------------------------------------------------------------------------------------------

    def life(self, what: What) -> None:
        world = self.world
        world.steps, world.steps_max = 0, world.steps_long
        world.ids = world.ids[-8:]
        world.may_be_fenced = what == "planned"
        actors, beside = actors_of(world), Process(world.volumes)
        processes = [process for _, process, _ in actors]
        aside: Callable[[Process], None] | None = None
        if what == "planned":
            aside = self.promote_amid
        elif what == "rm":
            aside = self.remove
        elif what in ("loss", "away", "strike"):
            aside = lambda p: self.strike(p, what)  # noqa: E731
        elif what == "kills":
            aside = lambda p: self.reap(p, processes)  # noqa: E731
        if aside is not None:
            actors.append(("aside", beside, lambda: aside(beside)))
        world.run(*actors)
        for process in (*processes, beside):
            process.kill()
        world.may_be_fenced = world.oracle.is_lossy = False

    def until(self, process: Process, at: int) -> None:
        looker = process.open(self.there()[-1])
        while self.world.steps < at:
            looker.wait_hint(None, 0)

    def reap(self, process: Process, victims: list[Process]) -> None:
        """Kill some of the processes, each at a moment of its own."""
        for at in sorted(self.rng.randrange(self.world.steps_max) for _ in range(self.rng.randrange(1, 4))):
            self.until(process, at)
            self.rng.choice(victims).kill()

    def strike(self, process: Process, what: What) -> None:
        """Let a disaster befall one disk at a random moment."""
        self.until(process, self.rng.randrange(self.world.steps_max))
        condition: Condition = "deleted" if what == "loss" else "unmounted"
        if what == "strike":
            condition = self.rng.choice(CONDITIONS[2:])
        path = self.rng.choice(self.there())
        self.said += f", {path} {condition}"
        # A keeper in the middle of a claim does not see any more what was cancelled just before.
        self.world.oracle.is_lossy = path == self.world.primary and condition == "deleted"
        self.world.strike(path, condition)

    def remove(self, process: Process) -> None:
        """Delete one wheel file by file, as `rm -rf` does, in any order."""
        world = self.world
        self.until(process, self.rng.randrange(world.steps_max * 3 // 4))
        path = self.rng.choice(self.there())
        self.said += f", {path} deleted file by file"
        disk = process.open(path)
        world.struck = path
        # Who reads a wheel that is half there may miss a drop, and fires again.
        world.oracle.is_lossy = path == world.primary
        order = self.rng.randrange(3)

        def remove(name: str) -> None:
            try:
                found = disk.listdir(name)
            except NotADirectoryError:
                disk.unlink(name)
                return
            if order == 2:
                self.rng.shuffle(found)
            for last in found[:: -1 if order == 1 else 1]:
                with contextlib.suppress(FileNotFoundError):
                    remove(f"{name}/{last}" if name else last)
            if name:
                with contextlib.suppress(OSError):
                    disk.rmdir(name)

        for _ in range(3):  # what others made meanwhile
            remove("")
        world.volumes[path].befall("deleted")

    def promote_amid(self, process: Process) -> None:
        """Promote a backup while everything runs."""
        world = self.world
        self.until(process, self.rng.randrange(world.steps_max // 2))
        ready = world.promotable(world.volumes)
        if not ready:
            return
        target = self.rng.choice(ready)
        self.said += f", {target} promoted"
        # What is acknowledged from here on may be in flight.
        world.settling = True
        try:
            self.promote_in(process, target)
        except FilewheelError as exc:
            world.oracle.violations.append(f"{target} cannot be promoted: {exc}")
        finally:
            world.settling = False
        world.primary = target

    def promote_in(self, process: Process, target: str) -> Any:
        from filewheel.sets.promote import promote

        world = self.world
        done = promote(
            target, wait_s=0.1, env=SYSTEM.using(clock=world.hasty, disk=process.open, entropy=world.rng.randbytes)
        )
        self.result.states += 1
        return done

    # -- an aftermath ----------------------------------------------------------------------------------------

    def aftermath(self, what: What) -> None:
        world = self.world
        if what == "cut":
            self.cut()
        struck, away = world.struck, False
        if struck is not None:
            away = world.volumes[struck].condition != "deleted"
            world.on_struck(struck)
        self.check_alone()
        is_free = struck is None and self.rng.random() < 0.4 and world.promotable(world.volumes)
        if struck == world.primary or is_free:
            old = world.primary
            if not self.promote(with_old=struck is None):
                self.is_over = True  # a backup that missed too much does not take the place of its primary
                return
            if struck is not None:
                self.check_survivors(f"{old} lost")
            self.check_alone()
        if away and struck is not None:
            world.volumes[struck].befall("well")
        world.struck = None
        self.take_out()
        self.rejoin_all()
        self.settle()
        self.check_whole()

    def cut(self) -> None:
        world = self.world
        after = world.volumes.crash(self.rng)
        self.result.ops += len(world.volumes.log)
        world.volumes = after
        world.boot += 1
        world.oracle.power_cut()

    def cut_short(self, body: Callable[[Process], None], name: str) -> None:
        """Do something, killed at a random operation a few times before that."""
        world = self.world
        for _ in range(self.rng.randrange(3)):
            process = Process(world.volumes)
            world.volumes.on_op = self.killer(process, self.rng.randrange(60))
            try:
                world.run((name, process, lambda p=process: body(p)))
            except Killed:
                pass
            finally:
                world.volumes.on_op = None
                process.kill()
            self.result.states += 1
            self.check_alone()
            if self.rng.random() < 0.3:
                self.cut()
        world.act(name, body)

    def promote(self, *, with_old: bool) -> bool:
        world = self.world
        ready = world.promotable(world.volumes)
        if not ready:
            world.oracle.violations.append("no backup may be promoted")
            return False
        target = self.rng.choice(ready)
        if len(ready) > 1 and self.rng.random() < 0.5:
            target = self.rivals(ready) or target
        self.said += f", {target} promoted"
        self.cut_short(lambda p: self.promote_in(p, target), "promote")
        world.primary = target
        if not with_old:
            world.on_lost()
        return True

    def rivals(self, targets: list[str]) -> str | None:
        """Promote several wheels at once, one of them killed perhaps; return the one that is the primary then."""
        world = self.world
        processes = [Process(world.volumes) for _ in targets]

        def body(process: Process, target: str) -> None:
            with contextlib.suppress(FilewheelError):  # it has given way
                self.promote_in(process, target)

        actors = [(f"promote {t}", p, lambda p=p, t=t: body(p, t)) for p, t in zip(processes, targets, strict=True)]  # type: ignore[misc]
        if self.rng.random() < 0.5:
            world.volumes.on_op = self.killer(processes[0], self.rng.randrange(STEPS_RIVALS))
        world.run(*actors)
        world.volumes.on_op = None
        for process in processes:
            process.kill()
        self.said += f", {' and '.join(targets)} at once"
        self.check_alone()
        first = [t for t in targets if self.roster(t).role == "primary"]
        # One that was killed, or gave way to one that was, is promoted anew.
        ready = first or [t for t in targets if self.roster(t).role in ("promoting", "backup")]
        return ready[0] if ready else None

    def killer(self, process: Process, left: int) -> Callable[[str, str, str], None]:
        """Return what kills a process at a disk operation to come."""

        def count(path: str, kind: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                process.kill()

        return count

    def take_out(self) -> None:
        """Take wheels out of the set that are gone for good."""
        from filewheel.sets.members import remove_backup

        world = self.world
        for path in world.volumes.of_path.keys() - set(self.there()):
            with contextlib.suppress(NotFound):
                world.act(
                    "remove", lambda p, path=path: remove_backup(world.primary, path, env=SYSTEM.using(disk=p.open))
                )  # type: ignore[misc]

    def rejoin_all(self) -> None:
        """Let every wheel rejoin that was fenced."""
        from filewheel.sets.rejoin import rejoin

        world = self.world
        for path in self.there():
            if path == world.primary:
                continue
            roster = self.roster(path)
            assert roster is not None
            if roster.role in ("fenced", "primary", "promoting"):
                self.said += f", {path} rejoins"
                self.cut_short(
                    lambda p, path=path: rejoin(  # type: ignore[misc]
                        path, env=SYSTEM.using(clock=world.hasty, disk=p.open, entropy=world.rng.randbytes), force=True
                    ),
                    "rejoin",
                )

    def roster(self, path: str) -> Any:
        process = Process(self.world.volumes)
        try:
            return read_roster(process.open(path), path)
        finally:
            process.kill()

    def settle(self) -> None:
        """Serve all links until they are in step, killed among it now and then."""
        world = self.world
        if len(self.there()) < 2:
            return
        for _ in range(self.rng.randrange(2)):
            process = Process(world.volumes)
            world.steps, world.steps_max = 0, self.rng.randrange(1, 20)
            world.run(("replicator", process, lambda p=process: self.serve(p, STUCK_TURNS)))  # type: ignore[misc]
            process.kill()
        world.act("replicator", lambda p: self.serve(p, SETTLE_TURNS) or self.stuck())

    def stuck(self) -> None:
        self.world.oracle.violations.append(f"not in step after {SETTLE_TURNS} turns")

    def serve(self, process: Process, turns: int) -> bool:
        links: dict[str, Any] = {}
        in_step = 0
        for _ in range(turns):
            in_step = in_step + 1 if self.world.turn(process, links) else 0
            if in_step > 5:
                break
            self.world.clock.advance(US_PER_S // 5)
        if turns == STUCK_TURNS:
            for link in links.values():
                link.abandon()
            return False
        for link in links.values():
            link.catch_up(lambda: self.world.clock.advance(US_PER_S // 5))
        for link in links.values():
            link.close()
        return in_step > 5

    # -- judging ---------------------------------------------------------------------------------------------

    def check_alone(self) -> None:
        """Of the wheels that see each other at most one may fire."""
        world = self.world
        volumes: Volumes = world.volumes.copy(self.rng)
        firing = []
        for path in self.there():
            if not volumes[path].is_there:
                continue
            from filewheel.disk.directory import open_directory

            process = Process(volumes)
            with contextlib.suppress(FilewheelError, OSError):
                Fence(open_directory(path, write=True, env=SYSTEM.using(disk=process.open))).check_may_fire(0)
                firing.append(path)
            process.kill()
        if len(firing) > 1:
            world.oracle.violations.append(f"{' and '.join(firing)} may both fire")
        self.result.states += 1

    def check_survivors(self, context: str) -> None:
        world = self.world
        held = {p: f for p in self.there() if (f := world.pending(world.volumes, p)) is not None and p != world.struck}
        world.oracle.check_survivors(held, 1, context)

    def check_whole(self) -> None:
        """When all is in step the primary holds what was promised, the others the same, and none holds what is done."""
        world = self.world
        if world.oracle.violations:
            return
        pending = world.pending(world.volumes, world.primary)
        if pending is None:
            world.oracle.violations.append(f"{world.primary} cannot be read")
            return
        world.oracle.check_pending(pending, "in step")
        world.check_equal("in step")
        self.check_alone()

    def finish(self) -> None:
        """Everything fires; then nothing is left."""
        world = self.world
        world.act("drain", self.drain)
        if world.oracle.violations:
            return
        for _ in range(3):
            world.clock.advance(SLOTS * 3 * US_PER_S)
            self.settle()
            world.act("keeper", lambda p: world.open_keeper(p).close())
        self.settle()
        world.check_equal("after everything has fired")
        for path in self.there():
            self.check_empty(path)

    def drain(self, process: Process) -> None:
        world, oracle = self.world, self.world.oracle
        keeper = world.open_keeper(process)
        fired = fire_all(world, keeper)
        for payload, told in oracle.messages.items():
            if told.enqueued and not told.may_be_gone and payload not in fired:
                oracle.violations.append(f"{payload!r} never fired")
        self.result.fired = sum(t.fired for t in oracle.messages.values())
        keeper.close()

    def check_empty(self, path: str) -> None:
        """Nothing is left of messages in a wheel in which nothing waits."""
        disk = Process(self.world.volumes).open(path)
        left = [f"{layout.LAPS}/{n}" for n in disk.listdir(layout.LAPS)]
        with contextlib.suppress(FileNotFoundError):
            left += [f"{layout.JOURNAL}/{n}" for n in disk.listdir(layout.JOURNAL)]
        if left:
            self.world.oracle.violations.append(f"{path} has {left} left over")


def run_saga(
    seed: int,
    *,
    mode: Mode = "mirror",
    backups: int = 1,
    on_failure: OnFailure = "stale",
    copies: int = 0,
    what: What | None = None,
) -> Result:
    """Play one saga; an error in the library is a violation too."""
    with tiny_set() as boots:
        world = SetWorld(seed, mode=mode, backups=backups, on_failure=on_failure, copies=copies)
        boots.append(lambda: f"boot {world.boot}")
        saga = Saga(seed, world, what)
        try:
            return saga.play()
        except BROKEN as exc:
            saga.result.violations = [*world.oracle.violations, f"seed {seed}, {saga.said}: {exc!r}"]
            return saga.result


if __name__ == "__main__":
    given = dict(zip(("seed", "mode", "backups", "what"), sys.argv[1:], strict=False))
    what_ = next((w for w in WHATS if w == given.get("what")), None)
    shown = run_saga(
        int(given["seed"]), mode=mode_of(given.get("mode")), backups=int(given.get("backups", 1)), what=what_
    )
    raise SystemExit(shown.show())
