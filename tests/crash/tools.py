"""Campaign: wheels with several damages at once, and whether verify, repair, dump and stats say the same of them.

A round takes one population (population.py) and spoils copies of it in one to four places: bits, ranges of zeros,
files cut off or removed, ranges copied over others or put between. All tools look at the same bytes, and commands that
read judge them by their exit codes; then the wheel is repaired, and they look again. What a damaged wheel may deliver
is judged by flip.py: here only whether the tools agree.
Invariant: what a round does is given by its number alone.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator
from functools import lru_cache

from cli.failure import DAMAGED
from cli.main import cli
from cli.show.output import Output
from filewheel import Wheel
from filewheel.disk.directory import Directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.errors import Damaged, FilewheelError, NoWheel
from filewheel.lookup.snapshot import Filter, Snapshot
from filewheel.lookup.stats import stats_of
from filewheel.message import ID_END
from filewheel.tools.repair import plan, repair
from filewheel.tools.verify import verify
from tests.crash.campaign import Campaign, Tally
from tests.crash.flip import listening
from tests.crash.judge import Said
from tests.crash.memory import MemoryDisk
from tests.crash.population import Population, populate
from tests.model.world import ModelClock
from tests.support import timed

CASES = 40
POPULATIONS = 25
_SPARES = {"wheel.json.copy"}
"""Read by nobody but verify while the other is whole."""

_population = lru_cache(maxsize=2)(populate)


def spoil(population: Population, rng: random.Random) -> tuple[MemoryDisk, str]:
    """Return a disk with the population, damaged in one to four places, and what was done."""
    files = dict(population.image.files)
    removed: set[str] = set()
    done = []
    for _ in range(rng.randrange(1, 5)):
        name = rng.choice(sorted(n for n, data in files.items() if data and n not in removed and n != "keeper.lock"))
        data = bytearray(files[name])
        at = rng.randrange(len(data))
        size = rng.choice([1, 8, 72, 200, 512])
        how = rng.choice(["flip", "zero", "cut", "remove", "copy", "insert"])
        if how == "flip":
            data[at] ^= 1 << rng.randrange(8)
        elif how == "zero":
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif how == "cut":
            del data[at:]
        elif how == "copy":
            source = rng.randrange(len(data))
            piece = data[source : source + size]
            data[at : at + len(piece)] = piece
        elif how == "insert":
            data[at:at] = rng.randbytes(size)
        else:
            removed.add(name)
        files[name] = bytes(data)
        done.append(f"{how} {name} at {at} for {size}")
    changes = {n: d for n, d in files.items() if d != population.image.files[n] and n not in removed}
    disk = MemoryDisk(population.image, changes)
    disk.let_go()
    for name in removed:
        disk.unlink(name)
    return disk, f"population {population.number}: {', '.join(done)}"


def look(directory: Directory, clock: ModelClock) -> tuple[dict[str, bool], dict[bytes, bytes]]:
    """Return which tools find damage, and what waits."""
    with Snapshot(directory) as snapshot:
        pending = {bytes(m.id): m.payload for m in snapshot.messages(Filter(hi=ID_END))}
        dumped = bool(snapshot.problems())
    with Snapshot(directory) as snapshot:
        counted = bool(stats_of(directory, snapshot).damaged)
    names = {f.name for f in verify(directory).damage} - _SPARES
    planned = {f.name for f in plan(directory).found} - _SPARES
    return {"verify": bool(names), "repair": bool(planned), "dump": dumped, "stats": counted}, pending


class _InMemory(Output):
    """An invocation of the command line on a disk in memory."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__()
        self._disk = disk

    @contextlib.contextmanager
    def wheel(self) -> Iterator[Wheel]:
        with Wheel("memory.wheel", env=SYSTEM.using(disk=lambda path: self._disk)) as wheel:
            yield wheel

    def directory(self, *, write: bool = False) -> Directory:
        return open_directory("memory.wheel", write=write, env=SYSTEM.using(disk=lambda path: self._disk))


COMMANDS = ["stats", "inspect", "inspect list", "inspect list --dead", "inspect schedules"]


def exits(disk: MemoryDisk) -> dict[str, int]:
    """Return the exit code of each command that judges."""
    found = {}
    for command in COMMANDS:
        silent = io.StringIO()
        with contextlib.redirect_stdout(silent), contextlib.redirect_stderr(silent):
            try:
                cli.main(command.split(), obj=_InMemory(disk))
            except SystemExit as exc:
                found[command] = int(exc.code or 0)
    return found


def agree(codes: dict[str, int], damaged: bool) -> bool:
    """Tell whether each command ends as a dump of the whole wheel does, or with 0 where it did not read the damage.

    The two lists have read all of it between them; `inspect` has read what the first has, and the headers of the rest.
    """
    halves = {codes["inspect list"], codes["inspect list --dead"]}
    whole = DAMAGED if damaged else 0
    return max(halves) == whole and set(codes.values()) <= {0, whole} and codes["inspect"] >= codes["inspect list"]


def play(number: int, tally: Tally, said: Said) -> None:
    """Spoil copies of one population, and compare the tools."""
    said.records.clear()
    population = _population(number % POPULATIONS)
    clock = ModelClock(population.now_us)
    rng = random.Random(f"tools {number}")
    for _ in range(CASES):
        disk, how = spoil(population, rng)
        tally.count("wheels that tools compared")

        def opened(disk: MemoryDisk = disk) -> Directory:
            return open_directory("memory.wheel", write=True, env=SYSTEM.using(disk=lambda path: disk))

        try:
            directory = opened()
        except (Damaged, NoWheel):
            tally.count("of them without settings")
            continue
        try:
            found, pending = look(directory, clock)
            agreed = found["verify"] == found["repair"] == found["dump"] and found["stats"] <= found["verify"]
            tally.check(agreed, f"{how}: {found}")
            codes = exits(disk)
            tally.check(agree(codes, found["dump"]), f"{how}: {codes}")
            tally.count("of them damaged", found["verify"])
            repair(timed(directory, clock))
            after, left = look(opened(), clock)
            tally.check(not any(after.values()), f"{how}: repaired, and yet {after}")
            lost = pending.keys() - left.keys()
            # A file that was cut off in zeros has them again when a deal writes behind: what waited there is back.
            new = left.items() - pending.items() - population.told.items()
            tally.check(not lost and not new, f"{how}: a repair loses {sorted(lost)} and adds {sorted(new)}")
        except FilewheelError as exc:
            tally.violation(f"{how}: {exc!r}")


CAMPAIGN = Campaign(
    name="tools",
    title="several damages at once: verify, repair, dump and stats agree",
    play=play,
    share=0.03,
    targets={"wheels that tools compared": 10_000},
    rig=listening,
    short=1,
)
