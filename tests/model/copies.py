"""Copies in the crash model: random acts on a primary, ticks in the middle of them and they in the middle of ticks.

Power fails after any call on either disk, or on both; processes are killed; the primary is lost at any call, and the
copy is settled and opened. The oracle knows what had been promised when the last complete tick began: all of that is
pending in the copy, nothing of it that was finished then, and nothing that was never enqueued. After each tick every
file of the copy is a byte prefix of the primary's. `python -m tests.model.copies SEEDS` plays histories. With
`--far` the copy is on another machine: the far end of a connection has that disk, and is cut off at any message.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

import filewheel.sets.copy
import filewheel.sets.remote
import filewheel.sets.source
import filewheel.sets.target
from filewheel.disk.checkpoint import parse_checkpoint
from filewheel.disk.directory import _write, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.env import Env
from filewheel.errors import FilewheelError, NotFound, NoWheel
from filewheel.format import layout
from filewheel.format.settings import Settings
from filewheel.keeper import Keeper
from filewheel.laps.deal import Deal
from filewheel.laps.slot import files_of
from filewheel.laps.window import Budget
from filewheel.message import US_PER_S
from filewheel.roster.roster import Roster, write_roster
from filewheel.sets.copy import Copy
from filewheel.sets.remote import Channel, RemoteDisk, RemoteTarget, open_remote
from filewheel.sets.source import Source
from filewheel.sets.target import DirectoryTarget, Target, replay
from filewheel.tools.verify import verify
from filewheel.wheel import Wheel
from tests.model.machine import Dir
from tests.model.oracle import Oracle
from tests.model.process import Killed
from tests.model.stage import Stage
from tests.model.tiny import SLOTS, tiny
from tests.model.volumes import Process, Volumes
from tests.model.world import ModelClock, make_wheel
from tests.sets.support_far import Line, url_of

A, B = "/m/a.wheel", "/m/b.wheel"
SET = "5e7" * 8
Pending = dict[bytes, tuple[bytes, int]]


class CopyStage(Stage):
    """A primary on one disk, its copy on another, and the process that keeps it in step."""

    def __init__(self, seed: int, *, rate: float, nest: float, is_far: bool = False) -> None:
        self.rng = random.Random(f"copy {seed}")
        self.line = Line() if is_far else None
        self.seed, self.rate, self.nest = seed, rate, nest
        self.clock, self.oracle = ModelClock(), Oracle()
        self.start_us = self.clock.wall_us
        self.audience = None
        self.wheels, self.unflushed = {}, {}
        self.keeper = self.keeper_disk = None
        self.claimed, self._cues, self._at_cue = [], [], False
        self.volumes = Volumes(A, B)
        self.counts: Counter[str] = Counter()
        self.copy: Copy | None = None
        self.copier = Process(self.volumes)
        self.copied: tuple[set[bytes], set[bytes]] = (set(), set())
        """What was promised, and the ids that were finished, when the last complete tick began."""
        self._nested = self._die_in = self._left = 0
        self._in_tick = self._judging = self._dealing = self._acting = False
        self._is_hot = self.rng.random() < 0.5
        self._is_lazy = self.rng.choice((0.22, 0.22, 0.05))
        make_wheel(self.volumes[A], self.clock, self.rng.randbytes)
        self._make_copy()
        self._take_seats()

    @property
    def states(self) -> int:
        """How many states of the disks were looked into."""
        return self.counts["states"]

    @property
    def violations(self) -> list[str]:
        """What went wrong."""
        return self.oracle.violations

    def env(self, process: Process) -> Env:
        return SYSTEM.using(clock=self.clock, disk=process.open, entropy=self.rng.randbytes)

    def _make_copy(self) -> None:
        process = Process(self.volumes)
        primary = open_directory(A, write=False, env=self.env(process))
        theirs = primary.settings
        disk = process.open(B)
        _write(disk, Settings(id=self.rng.randbytes(16).hex(), salt=theirs.salt, slots=theirs.slots), B)
        write_roster(disk, Roster(SET, 1, "backup", A, theirs.id))  # the far end checks it before each tick
        disk.sync_all()
        process.kill()

    def _take_seats(self) -> None:
        self.machine = self.volumes[A]
        for path in (A, B):
            volume = self.volumes[path]
            volume.on_op = lambda kind, name, path=path: self._did(path, kind, name)  # type: ignore[misc]
            volume.before_op = volume.mid_read = lambda kind, name, path=path: self._before(path)  # type: ignore[misc]

    # -- between two calls -----------------------------------------------------------------------------------

    def _before(self, path: str) -> None:
        if self._die_in and path == A and not self._judging and not self._in_tick:
            self._die_in -= 1
            if not self._die_in:
                assert self.keeper_disk is not None
                self.keeper_disk.kill()
                raise Killed
        if self._nested or self._judging or self._left <= 0 or self.rng.random() >= self.nest:
            return
        self._nested += 1
        self._left -= 1
        try:
            if self._in_tick:
                for _ in range(self.rng.choice((1, 1, 1, 2, 4, 12))):
                    self.act()
            elif self._acting:
                self.tick()
        finally:
            self._nested -= 1

    def _did(self, path: str, kind: str, name: str) -> None:
        if not self._judging and self.rng.random() < self.rate and not self.oracle.violations:
            self.judge(f"seed {self.seed} after {kind} {path} {name}{' in a tick' if self._in_tick else ''}")

    # -- acts on the primary ---------------------------------------------------------------------------------

    def act(self) -> None:
        """Do something that producers and keepers do."""
        was, self._acting = self._acting, True
        try:
            with contextlib.suppress(NotFound):
                self._act(self.rng.random())
        finally:
            self._acting = was

    def _act(self, r: float) -> None:
        who = self.rng.choice("pqr")
        ids = list(self.oracle.of_id)[-14:]
        now_s = (self.clock.wall_us - self.start_us) / US_PER_S
        if r < 0.26:
            at = now_s + self.rng.choice((-30, -1, 2, 5, 20, 2 * SLOTS, 4 * SLOTS, 9 * SLOTS)) * self.rng.random()
            if self._is_hot and self.rng.random() < 0.5:
                at = self.rng.choice((3.2, 3.7, 8.1))  # a second that goes, and comes again
            self.put(who, at, durable=self.rng.random() < 0.8)
        elif r < 0.30:
            spans = (self.rng.choice((1, 5, 70, 300)) for _ in range(self.rng.randrange(2, 9)))
            self.put_many(who, *[now_s + span * self.rng.random() for span in spans])
        elif r < 0.36 and ids:
            self.cancel(who, self.rng.choice(ids))
        elif r < 0.41 and ids:
            self.move(who, self.rng.choice(ids), now_s + self.rng.choice((1, 50, 200)))
        elif r < 0.52:
            self.claim(self.rng.randrange(1, 6))
        elif r < 0.70:
            self._settle_one(r)
        elif r < 0.90:
            self._keep_house(r, who)
        else:
            self.clock.advance(self.rng.choice((300_000, 1_000_000, 7_000_000, 40_000_000)))

    def _settle_one(self, r: float) -> None:
        if self.keeper is not None and r >= 0.68:
            self.flush()
        elif self.keeper is not None and self.claimed:
            if r < 0.64:
                self.ack(self.claimed[0], durable=self.rng.random() < 0.5)
            elif r < 0.67:
                self.nack(self.claimed[0], delay=self.rng.choice((0, 5, 100)))
            else:
                self.bury(self.claimed[0])

    def _keep_house(self, r: float, who: str) -> None:
        if r < 0.80:
            self._deal_once()
        elif 0.83 <= r < 0.86:
            self.close(who)
        elif 0.86 <= r < 0.88:
            self.kill(who)
        elif not self._dealing:
            self._dealing = True
            try:
                if r < 0.83:
                    self.look()
                elif r < 0.89:
                    self.kill_keeper()
                else:
                    self.close_keeper()
            finally:
                self._dealing = False

    def _deal_once(self) -> None:
        if self._dealing:
            return
        self._dealing = True
        self.keep()
        try:
            if not self._in_tick and self.rng.random() < 0.35:
                self._die_in = self.rng.randrange(5, 120)
            self.deal(spread=self.rng.random() < 0.9)
        except Killed:
            self.keeper = self.keeper_disk = None
            self.claimed.clear()
        finally:
            self._dealing = False
            self._die_in = 0

    def kill(self, who: str) -> None:
        super().kill(who)
        self.unflushed.pop(who, None)

    # -- ticks -----------------------------------------------------------------------------------------------

    def promised(self) -> tuple[set[bytes], set[bytes]]:
        """Return what has to be pending, and the ids that are finished."""
        told = self.oracle.messages
        promised = {p for p, t in told.items() if t.enqueued and not t.may_be_gone}
        return promised, {i for t in told.values() for i in t.finished}

    def tick(self) -> None:
        """Let the copier do one tick."""
        if self._in_tick:
            return
        self._in_tick = True
        before = self.promised()
        try:
            if self.copy is None:
                self.copier = Process(self.volumes)
                env = self.env(self.copier)
                source = Source(open_directory(A, write=False, env=env))
                self.copy = Copy(source, self._target(env))
            done = self.copy.tick()
            self.counts["ticks"] += 1
            self.counts["gone"] += done.gone
            self.copied = before
            if done.lost:
                self.oracle.violations.append(f"seed {self.seed}: {done.lost} count as lost")
            self._judging = True
            self._check_prefix(self.copy)
        except NoWheel:
            if self.line is None:
                raise
            self.counts["cut off"] += 1
            self.drop_copy()
        finally:
            self._in_tick = self._judging = False

    def _target(self, env: Env) -> DirectoryTarget:
        """Return the target of the copy, perhaps at the far end of a connection that will be lost."""
        if self.line is None:
            return Target(open_directory(B, write=True, env=env))
        self.line.env = env
        far = self.rng.random() < 0.4
        self.line.cut_at = self.line.messages + self.rng.randrange(2, 40) if far else None
        filewheel.sets.remote._SEND_BYTES = self.rng.choice((1, 500, 1 << 18))
        url = url_of(Path(B))
        directory = open_remote(Channel(self.line.connect(url), url), url, env=env)
        assert isinstance(directory.disk, RemoteDisk)
        return RemoteTarget(directory, directory.disk, SET, 1)

    def drop_copy(self) -> None:
        """Kill the copier."""
        if self.line is not None:
            self.line.settle()
        self.copier.kill()
        self.copy = None

    def _data(self, path: str, name: str) -> bytes | None:
        found: object = self.volumes[path].root
        for part in name.split("/"):
            found = found.entries.get(part) if isinstance(found, Dir) else None
        return None if found is None else bytes(found.data)  # type: ignore[attr-defined]

    def _check_prefix(self, copy: Copy) -> None:
        """After a tick each file is a prefix of the primary's, and nothing is there that is not in the tick."""
        raw = self._data(B, layout.CHECKPOINT) or b""
        settings = copy._source.dir.settings
        checkpoint = parse_checkpoint(raw, copy._source.dir.seed, settings.lap_of, B)
        sizes = {file.name: file.end for file in files_of(settings, checkpoint)} | copy._journals
        for name, end in sizes.items():
            ours, theirs = self._data(B, name), self._data(A, name)
            if theirs is None:
                continue  # it is over at the primary since
            if ours is None or ours[:end] != theirs[: len(ours[:end])] or len(ours) + 7 < min(end, len(theirs)):
                self.oracle.violations.append(f"seed {self.seed}: {name} is no prefix, {ours!r}, {theirs!r}"[:500])

    # -- judging ---------------------------------------------------------------------------------------------

    def judge(self, context: str) -> None:
        """Cut the power on both disks, and open the copy."""
        self._judging = True
        state = self.rng.getstate()
        try:
            after = self.volumes.crash(self.rng, self.rng.choice(("", "", "", "all", "none")))
            self.counts["states"] += 1
            for volume in after.of_path.values():
                volume.before_op = volume.mid_read = volume.on_op = None
            process = Process(after)
            there = open_directory(B, write=True, env=SYSTEM.using(disk=process.open))
            replay(there)
            there.disk.unlink(layout.ROSTER)  # as a promotion gives it another role
            process.kill()
            self._check_copy(after, context)
            if self.rng.random() < 0.3 and not self.oracle.violations:
                self._recover(after, context)
        finally:
            self._judging = False
            self.rng.setstate(state)
            self.rng.random()

    def pending(self, volumes: Volumes, path: str) -> Pending:
        """Return what is pending in a wheel, by id."""
        process = Process(volumes)
        env = SYSTEM.using(disk=process.open)
        try:
            with Wheel(path, clock=ModelClock(self.clock.wall_us), env=env) as wheel:
                return {bytes(m.id): (m.payload, m.id.due_us) for m in (*wheel.list(), *wheel.list(dead=True))}
        finally:
            process.kill()

    def _check_copy(self, volumes: Volumes, context: str) -> None:
        try:
            pending = self.pending(volumes, B)
        except (FilewheelError, OSError) as exc:
            self.oracle.violations.append(f"the copy cannot be read: {exc!r} {context}")
            return
        promised, finished = self.copied
        for id_, (payload, _) in pending.items():
            if payload not in self.oracle.messages:
                self.oracle.violations.append(f"the copy invented {payload!r}: {context}")
            if id_ in finished:
                self.oracle.violations.append(f"{payload!r} would fire again, its drop was copied: {context}")
        present = {payload for payload, _ in pending.values()}
        for payload in promised - present:
            if not self.oracle.messages[payload].may_be_gone:
                self.oracle.violations.append(f"{payload!r} is lost, it was copied: {context}")
        process = Process(volumes)
        try:
            env = SYSTEM.using(clock=ModelClock(self.clock.wall_us), disk=process.open)
            found = [f for f in verify(open_directory(B, write=False, env=env)).damage if "key" not in str(f).lower()]
            if found:
                self.oracle.violations.append(f"verify of the copy: {found[0]}: {context}")
        finally:
            process.kill()

    def _recover(self, volumes: Volumes, context: str) -> None:
        """Open it with a keeper that deals twice, and cut the power again: the same messages are pending."""
        self.counts["recoveries"] += 1
        first = self.pending(volumes, B)
        process, rng = Process(volumes), random.Random(f"{self.seed} {self.counts['states']}")
        clock = ModelClock(self.clock.wall_us)
        env = SYSTEM.using(clock=clock, disk=process.open, entropy=rng.randbytes)
        try:
            keeper = Keeper(B, clock=clock, env=env, background=False, budget=Budget(records=16, bytes=4000))
            for _ in range(2):
                Deal(keeper._store, spread=True, finished=keeper._head.finished).run()
        except (FilewheelError, OSError) as exc:
            self.oracle.violations.append(f"the copy does not recover: {exc!r}: {context}")
            return
        finally:
            process.kill()
        second = self.pending(volumes.crash(rng, ""), B)
        if first.keys() != second.keys():
            lost, more = [v[0] for k, v in first.items() if k not in second], second.keys() - first.keys()
            self.oracle.violations.append(f"recovery of the copy lost {lost}, brought back {more}: {context}")

    # -- the history -----------------------------------------------------------------------------------------

    def cut(self) -> None:
        """A power cut on one machine or both, or a kill of all processes; life goes on."""
        which = self.rng.choice((A, B, A + B, "kill"))
        self.kill_all()
        self.drop_copy()
        self.counts["restarts"] += 1
        if which == "kill":
            self.oracle.begins.clear()
            return
        after, kept = self.volumes.crash(self.rng, ""), self.volumes.copy(self.rng)
        for path in (A, B):
            if path not in which:
                after.of_path[path] = kept.of_path[path]
        self.volumes = after
        if A in which:
            self.oracle.power_cut()
        self._take_seats()

    def play(self, steps: int) -> list[str]:
        """Play a history; return its violations."""
        for _ in range(steps):
            if self.oracle.violations:
                return self.oracle.violations
            r = self.rng.random()
            self._left = 4
            if r < self._is_lazy:
                self.tick()
            elif r < self._is_lazy + 0.03:
                self.drop_copy()
            elif r < self._is_lazy + 0.06:
                self.cut()
            else:
                self.act()
        self._left = 0
        for _ in range(2):
            if not self.oracle.violations:
                self.tick()
        self._judging = True
        if not self.oracle.violations:
            first, second = self.pending(self.volumes, A), self.pending(self.volumes, B)
            if first.keys() != second.keys():
                lacks, more = first.keys() - second.keys(), second.keys() - first.keys()
                self.oracle.violations.append(f"seed {self.seed}: at the end the copy lacks {lacks}, has {more}")
            self._check_copy(self.volumes, "at the end")
        return self.oracle.violations


@contextlib.contextmanager
def small(rng: random.Random):  # type: ignore[no-untyped-def]
    """Make the parts and the log of a tick small, and flush file by file or all at once."""
    was = (filewheel.sets.copy.PART_BYTES, filewheel.sets.target.LOG_BYTES_MAX, filewheel.sets.target.SYNC_EACH_MAX)
    filewheel.sets.copy.PART_BYTES = rng.choice((300, 2000, 1 << 20))
    filewheel.sets.target.LOG_BYTES_MAX = rng.choice((500, 3000))
    filewheel.sets.target.SYNC_EACH_MAX = rng.choice((0, 2, 100, 100))
    was_us, filewheel.sets.source.LOCK_TEST_US = filewheel.sets.source.LOCK_TEST_US, 0
    send_bytes = filewheel.sets.remote._SEND_BYTES
    try:
        yield
    finally:
        copy, target = filewheel.sets.copy, filewheel.sets.target
        copy.PART_BYTES, target.LOG_BYTES_MAX, target.SYNC_EACH_MAX = was
        filewheel.sets.source.LOCK_TEST_US = was_us
        filewheel.sets.remote._SEND_BYTES = send_bytes


def history(seed: int, *, rate: float = 0.1, steps: int = 90, is_far: bool = False) -> CopyStage:
    """Play one history."""
    rng = random.Random(f"shape {seed}")
    shape = {
        "segment_bytes": rng.choice((700, 1200, 4000)),
        "fill_bytes": rng.choice((0, 400)),
        "chunk_records": rng.choice((4, 12, 50)),
    }
    with tiny(**shape), small(rng):
        stage = CopyStage(seed, rate=rate, nest=rng.choice((0.004, 0.01, 0.03)), is_far=is_far)
        try:
            stage.play(steps)
        except (AssertionError, KeyError, OSError, FilewheelError) as exc:
            stage.oracle.violations.append(f"seed {seed}: {exc!r} {traceback.format_exc()[-1200:]}")
    return stage


def main() -> int:
    """Play histories, and print what was counted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--far", action="store_true")
    args = parser.parse_args()
    begun, total, bad = time.monotonic(), Counter[str](), 0
    for seed in range(args.first, args.first + args.seeds):
        stage = history(seed, rate=args.rate, is_far=args.far)
        total.update(stage.counts)
        total.update(histories=1, messages=len(stage.oracle.messages))
        for violation in stage.oracle.violations[:1]:
            bad += 1
            print("VIOLATION", seed, violation[:1500], flush=True)
        if bad >= 4 or time.monotonic() - begun > args.seconds:
            break
    print(dict(total), f"{time.monotonic() - begun:.0f} s,", bad, "violations")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
