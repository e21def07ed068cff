"""Opens a damaged wheel through the whole product, and compares what it delivers with the truth.

The path is the one that messages take: a keeper opens, recovers, claims what is due with the clock far ahead, and the
dead letters are read back. What was hit has to be named: in quarantine/, in the log, or by `verify`.
Invariant: everything a judge says is a broken promise of docs/guarantees.md, "When things go wrong".
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import FilewheelError
from filewheel.format.record import unpack_put
from filewheel.keeper import Keeper
from filewheel.laps.window import Budget
from filewheel.lookup.snapshot import Filter, Snapshot
from filewheel.lookup.stats import stats_of
from filewheel.message import DEAD_US, ID_END, US_PER_S, Message, id_floor
from filewheel.tools.repair import repair
from filewheel.tools.verify import Report, verify
from filewheel.wheel import Wheel
from tests.crash.memory import MemoryDisk
from tests.crash.population import Population
from tests.crash.truth import Part, Truth, View, writer_of
from tests.model.world import ModelClock
from tests.support import timed

FAR_US = 221_845_392_000 * US_PER_S
"""In the year 9000: everything is due, dead letters never."""
LOOKS = 6
"""So often a keeper looks at the journal of a writer that lives before it gives a gap up."""
EVERYTHING = Budget(1 << 20, 1 << 30)
SPARE = {"checkpoint.old", "wheel.json.copy", "keeper.lock"}
"""Files that are read only when another cannot be."""


class Said(logging.Handler):
    """What the library logged."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@dataclass
class Judge:
    """Judges what becomes of one population, however its bytes are changed."""

    population: Population
    truth: Truth
    said: Said
    rng: random.Random
    wrong: list[str] = field(default_factory=list)

    def judge(self, changes: Mapping[str, bytes], how: str, *, deep: bool) -> list[str]:
        """Open the wheel with some files changed; return what is wrong. `deep` verifies, lists, and deals on."""
        self.wrong = []
        self.said.records.clear()
        view = self.truth.view_of(changes)
        lost = view.hits(self.truth.image, changes)
        expected = view.pending(lost)
        disk = MemoryDisk(self.truth.image, changes)
        try:
            self._keep(disk, view, expected, how)
            named = self._named(disk, changes, view, lost, how)
            if deep or not named:
                report = self._verify(changes, view, lost, how)
                self._is_reported(report, changes, lost, view, how, named=named)
            if deep:
                self._agree(report, changes, how)
                self._list(changes, expected, how)
                self._go_on(changes, expected, how)
                self._repair(changes, expected, how)
        except FilewheelError as exc:
            self._say(f"{exc!r} of a wheel that can be read", how)
        return self.wrong

    def _say(self, what: str, how: str) -> None:
        self.wrong.append(f"population {self.population.number}, {how}: {what}")

    def _open(self, disk: MemoryDisk, now_us: int = FAR_US) -> Keeper:
        return Keeper(
            "memory.wheel",
            clock=ModelClock(now_us),
            env=SYSTEM.using(disk=lambda path: disk, entropy=self.rng.randbytes),
            background=False,
            budget=EVERYTHING,
        )

    def _directory(self, disk: MemoryDisk) -> Directory:
        return open_directory("memory.wheel", write=True, env=SYSTEM.using(disk=lambda path: disk))

    # -- what is delivered -----------------------------------------------------------------------------------

    def _keep(self, disk: MemoryDisk, view: View, expected: list[Message], how: str) -> None:
        live = self.population.live if self.population.live in disk.changes else ""
        got = deliver(self._open(disk), disk, looks=self._looks(disk))
        if got != expected and live:
            # For some looks the keeper takes the gap for a frame that is being written, and does not look behind it:
            # a drop that lies there comes too late for what it would have stopped.
            known = {m.id for m in expected}
            late = {i for part in view.parts.get(live, ()) for i in part.drops} - known
            got = [m for m in got if m.id not in late]
        if got != expected:
            self._compare(got, expected, f"{how}, fired")

    def _looks(self, disk: MemoryDisk) -> int:
        return LOOKS if self.population.live in disk.changes else 0

    def _compare(self, got: list[Message], expected: list[Message], how: str) -> None:
        known = {m.id: m for m in expected}
        for message in got:
            if message.id not in known:
                self._say(f"{message!r} is delivered, and should not be", how)
            elif known.pop(message.id) != message:
                self._say(f"{message!r} is wrong", how)
        for message in known.values():
            self._say(f"{message!r} is lost", how)
        if [m.id for m in got] != sorted(m.id for m in got):
            self._say("out of order, or twice", how)

    # -- what is said ----------------------------------------------------------------------------------------

    def _named(
        self, disk: MemoryDisk, changes: Mapping[str, bytes], view: View, lost: frozenset[Part], how: str
    ) -> bool:
        """Tell whether the keeper has named everything that was hit; say so where it had to and did not."""
        kept = disk.contents("quarantine")
        notes = [json.loads(data) for name, data in kept.items() if name.endswith(".json")]
        for note in notes:
            if f"quarantine/{note['name'].replace('/', '_')}@{note['offset']}.bin" not in kept:
                self._say(f"{note['name']} is noted, but nothing is kept", how)
        if not lost and notes:
            self._say(f"false damage: {notes}", how)
        for part in lost:
            if part.name.startswith("laps/") and not any(
                n["name"] == part.name and n["offset"] < part.end and n["end"] > part.at for n in notes
            ):
                self._say(f"damage to {part.name} at {part.at} is not in quarantine", how)
        proven = view.proven(lost)
        for writer in proven:
            if not any(n["name"].startswith(f"journal/{writer}") for n in notes):
                self._say(f"damage to the journal of {writer} is not in quarantine", how)
        main = changes.keys() & {"checkpoint", "wheel.json"}
        said = len(self.said.records)
        if (view is self.truth.old or "wheel.json" in main) and not said:
            self._say("nothing is logged", how)
        torn = {writer_of(p.name) for p in lost if p.name.startswith("journal/")} - proven
        return not torn and not changes.keys() & SPARE

    def _verify(self, changes: Mapping[str, bytes], view: View, lost: frozenset[Part], how: str) -> Report:
        directory = self._directory(MemoryDisk(self.truth.image, changes))
        return verify(directory)

    def _is_reported(
        self,
        report: Report,
        changes: Mapping[str, bytes],
        lost: frozenset[Part],
        view: View,
        how: str,
        *,
        named: bool,
    ) -> None:
        """Every frame that was lost is in `verify`'s report, unless it was cut off without a trace."""
        for part in lost:
            data = changes[part.name]
            traceless = part.name.startswith("journal/") and not data[part.at :].strip(b"\0")
            spans = [(f.offset, f.end) for f in report.findings if f.name == part.name]
            near = any(low <= part.at + 8 and (high >= part.at or not high) for low, high in spans)
            if not near and not traceless and not (spans and part.name.startswith("journal/")):
                self._say(f"verify does not name {part.name} at {part.at}: {report.findings}", how)
        damaged = {f.name for f in report.damage}
        if view is self.truth.old and "checkpoint" not in damaged:
            self._say("verify does not name the checkpoint", how)
        for name in changes.keys() & {"wheel.json", "wheel.json.copy", "checkpoint.old"}:
            if not any(name in f.name + f.what for f in report.findings) and not self._harmless(name, changes):
                self._say(f"verify does not name {name}", how)
        if not lost and report.damage and not changes.keys() & {"checkpoint", "wheel.json", "wheel.json.copy"}:
            self._say(f"verify finds damage where nothing was hit: {report.damage}", how)

    def _agree(self, report: Report, changes: Mapping[str, bytes], how: str) -> None:
        """Who reads all that messages lie in finds damage when `verify` does; who reads less finds no more."""
        directory = self._directory(MemoryDisk(self.truth.image, changes))
        with Snapshot(directory) as snapshot:
            for _ in snapshot.messages(Filter(hi=ID_END)):
                pass
            dumped = bool(snapshot.problems())
        with Snapshot(directory) as snapshot:
            counted = bool(stats_of(directory, snapshot).damaged)
        damaged = [f for f in report.damage if f.name != "wheel.json.copy"]
        if dumped != bool(damaged) or (counted and not damaged):
            self._say(f"verify finds {damaged}; to a dump it is damaged: {dumped}, to stats: {counted}", how)

    def _harmless(self, name: str, changes: Mapping[str, bytes]) -> bool:
        """Tell whether a spare says the same as before, in spite of the change."""
        return name == "checkpoint.old" and self.truth.spare_is_whole(changes[name])

    # -- what comes after ------------------------------------------------------------------------------------

    def _list(self, changes: Mapping[str, bytes], expected: list[Message], how: str) -> None:
        """A reader sees the same as a keeper."""
        disk = MemoryDisk(self.truth.image, changes)
        with Wheel("memory.wheel", env=SYSTEM.using(disk=lambda path: disk), clock=ModelClock(FAR_US)) as wheel:
            got = [*wheel.list(), *wheel.list(dead=True)]
        if got != expected:
            self._compare(got, expected, f"{how}, listed")

    def _go_on(self, changes: Mapping[str, bytes], expected: list[Message], how: str) -> None:
        """Acknowledge half of it, close (which deals), and open again: the other half is there."""
        disk = MemoryDisk(self.truth.image, changes)
        keeper = self._open(disk)
        fired = deliver(keeper, disk, looks=self._looks(disk))
        done = {m.id for m in fired[::2] if not m.is_dead}
        keeper.ack(sorted(done))
        keeper.close()
        again = self._open(disk)
        self._compare(deliver(again, disk), [m for m in expected if m.id not in done], f"{how}, after a deal")

    def _repair(self, changes: Mapping[str, bytes], expected: list[Message], how: str) -> None:
        """Repaired, it verifies, and holds the same."""
        disk = MemoryDisk(self.truth.image, changes)
        disk.let_go()
        clock = ModelClock(self.population.now_us)
        repair(timed(self._directory(disk), clock))
        damage = verify(self._directory(disk)).damage
        if damage:
            self._say(f"repaired, and yet {damage}", how)
        self._compare(deliver(self._open(disk), disk), expected, f"{how}, repaired")


def deliver(keeper: Keeper, disk: MemoryDisk, *, looks: int = 0) -> list[Message]:
    """Return everything that a keeper hands out, and the dead letters; a writer that lives ends after some looks."""
    got = list(keeper.claim(1 << 20))
    if looks:
        for _ in range(looks):
            got += keeper.claim(1 << 20)
        disk.let_go()
        keeper._clock.advance(US_PER_S)  # type: ignore[attr-defined]
        got += keeper.claim(1 << 20)
        got.sort(key=lambda m: m.id)
    window = keeper._store.window(id_floor(DEAD_US), ID_END, EVERYTHING)
    return got + [unpack_put(put) for put in window.puts]
