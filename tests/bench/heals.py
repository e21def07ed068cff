"""How fast a backup is healed, beside a bare copy of the same files: first copy, catching up after days, repair.

`python -m tests.bench.heals DIR OTHER` makes a primary in the one place and its backup in the other. The bare copy
reads the files of the primary that make the difference, writes and flushes them: that is what the disks allow, from
page caches in the same state. It is made before each heal and after it, and the mean of the two counts.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from filewheel import Keeper, Replicator, Wheel, add_backup
from filewheel.disk.disk import SYSTEM
from filewheel.message import US_PER_S

COUNT = 3_000_000
ROUNDS = 3
_BATCH = 10_000
_BLOCK = 4 << 20


class Later:
    """The system's clock, some time later."""

    ahead_us = 0

    def now_us(self) -> int:
        return time.time_ns() // 1000 + self.ahead_us

    def steady_us(self) -> int:
        return time.monotonic_ns() // 1000


@dataclass(frozen=True)
class Healed:
    """One heal, and the bare copy beside it."""

    what: str
    messages: int
    size_bytes: int
    heal_s: float
    copy_s: float

    def __str__(self) -> str:
        rate, bare = (self.size_bytes / s / 1e6 for s in (self.heal_s, self.copy_s))
        return (
            f"{self.what}: {self.messages:,} messages, {self.size_bytes / 1e6:,.0f} MB in {self.heal_s:.2f} s: "
            f"{self.messages / self.heal_s:,.0f} a second, {rate:,.0f} MB/s; a bare copy {bare:,.0f} MB/s; "
            f"ratio {self.copy_s / self.heal_s:.2f}"
        )


def fill(path: Path, clock: Later, count: int, first_s: float) -> None:
    """Enqueue messages of 100 bytes that are due within two hours, and deal them."""
    payload = os.urandom(100)
    with Wheel(path, clock=clock) as wheel:
        for start in range(0, count, _BATCH):
            some = min(_BATCH, count - start)
            wheel.enqueue_many(
                [payload] * some, delay=[first_s + (start + n) % 7200 for n in range(some)], sync="never"
            )
    Keeper(path, background=False, clock=clock).close()


def drain(path: Path, clock: Later) -> int:
    """Fire and acknowledge everything that is due."""
    fired = 0
    with Keeper(path, background=False, clock=clock) as keeper:
        while batch := keeper.claim(_BATCH):
            fired += keeper.ack(batch)
    return fired


def files_of(path: Path) -> list[Path]:
    """Return the files that hold a wheel's messages."""
    return [p for part in ("laps", "journal") for p in sorted((path / part).rglob("*")) if p.is_file()]


def bare_copy(files: list[Path], there: Path) -> float:
    """Copy files, flush them, and return how long that took."""
    there.mkdir()
    start_s = time.perf_counter()
    for n, file in enumerate(files):
        with file.open("rb") as source, (there / str(n)).open("wb") as target:
            while block := source.read(_BLOCK):
                target.write(block)
            target.flush()
            if len(files) <= 16:
                os.fdatasync(target.fileno())
    if len(files) > 16:
        subprocess.run(["sync", "-f", str(there)], check=True)
    took_s = time.perf_counter() - start_s
    shutil.rmtree(there)
    return took_s


def heal(primary: Path, clock: Later) -> float:
    """Bring the backup in step, and return how long it took."""
    start_s = time.perf_counter()
    with Replicator(primary, env=SYSTEM.using(clock=clock)) as replicator:
        (report,) = replicator.once()
    assert not report.error, report.error
    return time.perf_counter() - start_s


def measure(what: str, primary: Path, there: Path, clock: Later, files: list[Path], messages: int) -> Healed:
    """Heal, and copy the files that make the difference; which of the two is first is by turns."""
    size = sum(file.stat().st_size for file in files)
    copy_s = bare_copy(files, there)
    os.sync()
    heal_s = heal(primary, clock)
    os.sync()
    copy_s = (copy_s + bare_copy(files, there)) / 2
    return Healed(what, messages, size, heal_s, copy_s)


def one_round(here: Path, there: Path, count: int) -> list[Healed]:
    """Measure a first copy, the return after days, and a repair."""
    primary, backup, bare = here / "primary.wheel", there / "backup.wheel", there / "bare"
    for path in (primary, backup):
        shutil.rmtree(path, ignore_errors=True)
    clock = Later()
    Wheel.create(primary, clock=clock).close()
    fill(primary, clock, count, 3600)
    add_backup(primary, backup, env=SYSTEM.using(clock=clock))
    found = [measure("first copy", primary, bare, clock, files_of(primary), count)]
    before = files_of(primary)
    clock.ahead_us = 3 * 24 * 3600 * US_PER_S
    drain(primary, clock)
    fill(primary, clock, count, 3600)
    fresh = [file for file in files_of(primary) if file not in before]
    found.append(measure("after three days", primary, bare, clock, fresh, count))
    laps = [file for file in files_of(backup) if file.suffix == ".lap"]
    for file in laps[::2]:
        file.unlink()
    gone = [primary / file.relative_to(backup) for file in laps[::2]]
    found.append(measure("half of its laps lost", primary, bare, clock, gone, count // 2))
    with Wheel(primary, clock=clock) as ours, Wheel(backup, clock=clock) as theirs:
        assert ours.stats().pending == theirs.stats().pending == count
    return found


def main(here: Path, there: Path, count: int = COUNT, rounds: int = ROUNDS) -> None:
    """Measure, and print each round and the medians."""
    all_rounds = [one_round(here, there, count) for _ in range(rounds)]
    for found in all_rounds:
        print(*found, sep="\n", flush=True)
    for same in zip(*all_rounds, strict=True):
        ratio = statistics.median(healed.copy_s / healed.heal_s for healed in same)
        print(f"median of {rounds}, {same[0].what}: {ratio:.2f} of a bare copy's speed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
