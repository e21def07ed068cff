"""The demo that loses a disk: a wheel with backups under load, its directory deleted, a backup promoted.

It runs the real commands and shows them. The report uses the producer's file of confirmed enqueues and the keepers'
files of fired messages.
Invariant: no figure of the report comes from a wheel.
"""

from __future__ import annotations

import itertools
import os
import random
import shlex
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filewheel import Wheel
from filewheel.tools import open_directory
from filewheel.tools.verify import verify

from ..failure import Failure
from ..show.output import Output
from ..show.text import count
from .panel import Confirmed, DiskPanel, Panel
from .proof import Proof, print_proof, prove
from .stage import CONFIRMED, PATIENCE_S, DemoStage, KeeperProcess, samples

_PER_S = 40
_PRODUCE_S = 11.0
_LOSE_S = 5.5
_LATEST_S = 4.5
_FRAME_S = 0.12
_IN_STEP_S = 5.0


@dataclass
class Story:
    """Events that the records do not have."""

    lost_at: float = 0.0
    """When the directory was removed, in seconds since the epoch."""
    promotion: dict[str, Any] | None = None
    old_keeper: int | None = None
    """The exit code of the lost disk's keeper; None while it runs."""
    in_step: bool | None = None
    """Whether the other backups equal the new primary at the end; None when there are none."""


def lose_a_disk(out: Output, where: Path, backups: int, speed: float) -> None:
    """Play in this directory and print the verdict. Raises Failure when the proof fails."""
    kinds = ["primary", "mirrored", *["shipped"] * (backups - 1)]
    disks = [DiskPanel(f"disk-{i}", where / f"disk-{i}" / "jobs.wheel", kind) for i, kind in enumerate(kinds, 1)]
    for disk in disks:
        disk.wheel.parent.mkdir()
    Wheel.create(disks[0].wheel).close()
    if not out.json:
        out.write(
            f"{len(disks)} directories stand for disks. The wheel on disk-1 fires, the others hold the same messages."
        )
        out.write("Then disk-1 is deleted, while messages are enqueued and fire.")
        out.write("")
    confirmed = Confirmed(where / CONFIRMED)
    with DemoStage(where, disks[0].wheel) as stage, Panel(out, stage, disks, confirmed, speed) as panel:
        play = _Play(stage, panel, disks, confirmed, speed)
        play.run()
    proof = prove(confirmed.ids, stage.keepers)
    damage = sum(len(verify(open_directory(str(d.wheel), write=False)).damage) for d in disks[1:])
    verdict = LostDiskResult(proof, play.story, confirmed, stage.keepers, disks, damage)
    verdict.print(out)
    if not verdict.holds:
        raise Failure("failed", "the proof failed", hint="--keep DIR keeps the wheels to be looked at")


class _Play:
    """The acts, one after another."""

    def __init__(
        self, stage: DemoStage, panel: Panel, disks: list[DiskPanel], confirmed: Confirmed, speed: float
    ) -> None:
        self._stage = stage
        self._panel = panel
        self._disks = disks
        self._confirmed = confirmed
        self._speed = speed
        self._steps = 0
        self.story = Story()

    def run(self) -> None:
        """Play all of it."""
        primary, heir = self._disks[:2]
        for disk in self._disks[1:]:
            mode = "--mirror" if disk.kind == "mirrored" else "--ship"
            self._command(primary, ["backup", "add", str(disk.wheel), mode])
        self._start_services(primary)
        self._start_producer()
        self._wait_for_load()
        self._lose(primary)
        self.story.promotion = self._command(heir, ["promote", "--yes"])[-1]
        self._start_services(heir)
        end = time.monotonic() + (_PRODUCE_S + _LATEST_S) / self._speed + 2 * PATIENCE_S
        while self._stage.producing() or self._panel.pending != 0:
            self._wait()
            if time.monotonic() > end:
                raise Failure("failed", f"not everything fired in time: {self._stage.talk() or 'no reason given'}")
        self._panel.tell("everything has fired")
        self._compare(heir)
        self._panel.frame()

    # -- the acts ------------------------------------------------------------------------------------------------

    def _start_services(self, disk: DiskPanel) -> None:
        self._show(disk, ["replicate"])
        self._stage.other(f"replicate-{disk.name}", ["replicate"], disk.wheel)
        self._show(disk, ["run"])
        keeper = self._stage.keeper(disk.wheel)
        end = time.monotonic() + PATIENCE_S
        while not self._stage.is_keeper(keeper, disk.wheel):
            self._wait()
            if keeper.process.poll() is not None or time.monotonic() > end:
                raise Failure("failed", f"the keeper did not start: {self._stage.talk() or 'no reason given'}")
        self._panel.tell(f"process {keeper.process.pid} fires what is due on {disk.name}")

    def _start_producer(self) -> None:
        chance = random.Random(1)  # the same play every time
        every = itertools.cycle([row for rows in samples().values() for row in rows])
        rows = [
            {**row, "in": chance.uniform(0.3, _LATEST_S) / self._speed}
            for row in itertools.islice(every, int(_PER_S * _PRODUCE_S))
        ]
        wheels = [disk.wheel for disk in self._disks]
        self._stage.steady_producer(rows, _PER_S * self._speed, wheels)
        self._panel.tell(f"a producer enqueues {len(rows)} messages, {_PER_S * self._speed:.0f} a second")

    def _wait_for_load(self) -> None:
        """Wait until a good part of the messages is acknowledged."""
        end = time.monotonic() + _LOSE_S / self._speed + PATIENCE_S
        while len(self._confirmed.ids) < _PER_S * _LOSE_S:
            self._wait()
            if time.monotonic() > end:
                raise Failure("failed", f"nothing is acknowledged: {self._stage.talk() or 'no reason given'}")

    def _lose(self, disk: DiskPanel) -> None:
        self._panel.tell(f"rm -rf {disk.name}", "loss")
        end = time.monotonic() + PATIENCE_S
        while disk.wheel.parent.exists():
            # Running processes make files during the removal.
            shutil.rmtree(disk.wheel.parent, ignore_errors=True)
            if time.monotonic() > end:
                raise Failure("failed", f"{disk.wheel.parent} cannot be deleted")
        self.story.lost_at = time.time()
        self._panel.frame()

    def _compare(self, heir: DiskPanel) -> None:
        """Check whether the other backups equal the new primary."""
        self._look_at_old_keeper()
        for other in self._disks[2:]:
            end = time.monotonic() + _IN_STEP_S
            while not (same := self._run(heir, ["diff", str(heir.wheel), str(other.wheel)]) == 0):
                if time.monotonic() > end:
                    break
            self._show(heir, ["diff", str(heir.wheel), str(other.wheel)])
            self.story.in_step = same and self.story.in_step is not False
        self._look_at_old_keeper()

    def _look_at_old_keeper(self) -> None:
        if not self.story.lost_at or self.story.old_keeper is not None:
            return
        old = self._stage.keepers[0].process
        if old.poll() is not None:
            self.story.old_keeper = old.returncode
            self._panel.tell(f"process {old.pid}, whose disk was lost, has stopped (exit code {old.returncode})")

    # -- doing it ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        self._panel.frame()
        self._look_at_old_keeper()
        time.sleep(_FRAME_S)

    def _show(self, disk: DiskPanel, args: list[str]) -> None:
        root = str(disk.wheel.parent.parent) + os.sep
        words = ["filewheel", "-C", str(disk.wheel), *args] if args[0] != "diff" else ["filewheel", *args]
        self._panel.tell(shlex.join(word.removeprefix(root) for word in words), "command")

    def _run(self, disk: DiskPanel, args: list[str]) -> int:
        self._steps += 1
        process = self._stage.other(f"step-{self._steps}", args, disk.wheel)
        while process.poll() is None:
            self._wait()
        return process.returncode

    def _command(self, disk: DiskPanel, args: list[str]) -> list[dict[str, Any]]:
        """Run a command that must succeed; return its output."""
        self._show(disk, args)
        if self._run(disk, args):
            raise Failure("failed", f"`{args[0]}` failed: {self._stage.talk() or 'no reason given'}")
        return self._stage.written(f"step-{self._steps}")


@dataclass
class LostDiskResult:
    """The result from the records."""

    proof: Proof
    story: Story
    confirmed: Confirmed
    keepers: list[KeeperProcess]
    disks: list[DiskPanel]
    damage: int

    @property
    def holds(self) -> bool:
        """Whether no confirmed message is lost, none fired early, and the other backups followed."""
        proof = self.proof
        # A failed enqueue may have been written, and the producer tried it again.
        known = len(proof.unknown) <= len(self.confirmed.failed)
        sound = not self.damage and self.story.in_step is not False
        return bool(proof.enqueued and not proof.missing and not proof.early and known and sound and not self.stray)

    @property
    def silent_s(self) -> float:
        """How long nothing fired: from the last message of the first keeper to the first of the second."""
        last, first = self.keepers[0].last_at, self.keepers[-1].first_at
        return 0.0 if last is None or first is None else max(0.0, first - last)

    @property
    def stray(self) -> int:
        """How many messages the first keeper fired after the first one of the second."""
        old, new = self.keepers[0], self.keepers[-1]
        return sum(at >= new.first_at for at in old.times) if new.first_at is not None else 0

    def print(self, out: Output) -> None:
        """Print it: a table for people, or an object."""
        if out.json:
            out.record(self._fields())
            return
        print_proof(out, "From the records of the producer and of both keepers, which are in no wheel:", self._rows())

    def _rows(self) -> list[tuple[str, str, bool]]:
        proof, copies = self.proof, Counter(self.confirmed.copies)
        before, after = (len({id_ for id_, _ in keeper.fired}) for keeper in (self.keepers[0], self.keepers[-1]))
        held = ", ".join(f"{copies[n]} on {count(n, 'disk')}" for n in sorted(copies, reverse=True))
        failed = len(self.confirmed.failed)
        tried = f"{len(proof.unknown)} of them fired all the same" if proof.unknown else "none of them fired"
        code, stray = self.story.old_keeper, self.stray
        ended = "still runs" if code is None else f"stopped by itself (exit code {code})"
        rows = [
            ("acknowledged", f"{proof.enqueued}: {held}", bool(proof.enqueued)),
            ("fired", f"{proof.fired}: {before} from {self.disks[0].name}, {after} from {self.disks[1].name}", True),
            ("lost", str(len(proof.missing)), not proof.missing),
            ("early", str(proof.early), not proof.early),
            ("twice", f"{proof.twice}" + (", from both disks" if proof.twice else ""), True),
            ("without firing", f"{self.silent_s:.1f} s", True),
            ("without an ack", f"{self.confirmed.longest_gap_s():.1f} s; {failed} attempts failed, {tried}", True),
            ("the old keeper", f"{ended}; after {self.disks[1].name} started it fired {stray}", not stray),
        ]
        if self.story.in_step is not None:
            names = ", ".join(disk.name for disk in self.disks[2:])
            same = f"holds the same as {self.disks[1].name}" if self.story.in_step else "differs from the new primary"
            rows.append((names, same, self.story.in_step))
        rows.append(
            ("the wheels", f"{self.damage} places damaged" if self.damage else "verified, no damage", not self.damage)
        )
        return rows

    def _fields(self) -> dict[str, Any]:
        proof = self.proof
        return {
            "holds": self.holds,
            "backups": len(self.disks) - 1,
            "acknowledged": proof.enqueued,
            "copies": dict(sorted(Counter(self.confirmed.copies).items())),
            "fired": proof.fired,
            "lost": proof.missing,
            "early": proof.early,
            "twice": proof.twice,
            "unconfirmed": len(proof.unknown),
            "failed_attempts": len(self.confirmed.failed),
            "without_firing_s": round(self.silent_s, 3),
            "without_ack_s": round(self.confirmed.longest_gap_s(), 3),
            "promotion": self.story.promotion,
            "stray": self.stray,
            "old_keeper_exit": self.story.old_keeper,
            "in_step": self.story.in_step,
            "damage": self.damage,
        }
