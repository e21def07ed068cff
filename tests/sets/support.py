"""A set of a primary and a backup in two directories, and a clock that moves when told to: no threads, no waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from filewheel import Keeper, MessageId, Wheel
from filewheel.disk.directory import open_directory, opened
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.env import DiskFactory
from filewheel.errors import NoWheel
from filewheel.message import US_PER_S
from filewheel.roster.roster import Member, Mode, Roster, read_roster
from filewheel.sets.compare import Comparison
from filewheel.sets.forks import names_of, read_forks
from filewheel.sets.link import Link
from filewheel.sets.members import add_backup
from filewheel.tools.diff import Difference, differences
from filewheel.tools.verify import verify
from tests.sets.support_far import url_of
from tests.support import FakeClock

PAUSE_S = 0.02


class Pair:
    """A primary, its backup and the link between them, driven by hand."""

    def __init__(self, path: Path, *, mode: Mode = "ship", slots: int = 60, is_far: bool = False) -> None:
        self.mode = mode
        self.clock = FakeClock()
        self.clock.run_us = 10 * US_PER_S
        self.primary = path / "primary.wheel"
        self.backup = path / "backup.wheel"
        self.disk: DiskFactory = OsDisk
        Wheel.create(self.primary, slots=slots, clock=self.clock).close()
        where = url_of(self.backup) if is_far else self.backup
        add_backup(self.primary, where, mode=mode, env=SYSTEM.using(clock=self.clock))
        self.link: Link | None = None
        self.told: list[tuple[int, int]] = []
        self.damaged: list[Path] = []
        """The wheels that a test damaged: these are not verified."""

    def wheel(self) -> Wheel:
        """Open the primary as a producer."""
        return Wheel(self.primary, sync="never", clock=self.clock)

    def keeper(self) -> Keeper:
        """Open the primary's keeper."""
        return Keeper(self.primary, wait=False, background=False, clock=self.clock)

    def roster(self) -> Roster:
        """Return the primary's roster."""
        roster = read_roster(open_directory(self.primary, write=False).disk, str(self.primary))
        if roster is None:
            raise NoWheel("its roster has gone", path=str(self.primary))
        return roster

    def member(self) -> Member:
        """Return the backup as the primary sees it."""
        return self.roster().members[0]

    def open(self) -> Link:
        """Open a link."""
        self.link = Link(
            str(self.primary),
            self.member(),
            env=SYSTEM.using(clock=self.clock, disk=self.disk),
            progress=lambda path, done, total: self.told.append((done, total)),
        )
        return self.link

    def kill(self) -> None:
        """End the link as a kill does: nothing is dealt, and nothing written down."""
        assert self.link is not None
        self.link.abandon()
        self.link = None

    def close(self) -> None:
        """End the link in order."""
        if self.link is not None:
            self.link.close()
            self.link = None

    def tick(self, times: int = 1, pause_s: float = PAUSE_S) -> Link:
        """Let time pass and the link go on."""
        link = self.link or self.open()
        for _ in range(times):
            self.clock.advance(pause_s)
            link.tick()
        return link

    def settle(self, seconds: float = 8.0) -> Link:
        """Go on until nothing more is to be expected: every wait that the link knows has passed."""
        self.tick(5)
        for _ in range(round(seconds / 0.25)):
            self.tick(pause_s=0.25)
        return self.tick(3)

    def differences(self) -> list[Difference]:
        """Return what the two wheels do not have in common."""
        with Wheel(self.primary) as ours, Wheel(self.backup) as theirs:
            return list(differences(ours, theirs))

    def assert_equal(self) -> None:
        """Assert that both wheels hold the same, and that neither holds nothing by mistake."""
        assert self.differences() == []

    def pending(self, path: Path) -> set[bytes]:
        """Return the ids that wait in a wheel, dead letters left out."""
        with Wheel(path) as wheel:
            return {bytes(m.id) for m in wheel.list()}

    def verify(self) -> None:
        """Assert that neither wheel is damaged."""
        for path in (self.primary, self.backup):
            if path not in self.damaged and (path / "wheel.json").exists():
                report = verify(open_directory(path, write=False))
                assert not report.damage, report.damage
        if not self.damaged and self.primary.exists() and self.backup.exists():
            assert_prefix(self.primary, self.backup, self.mode)


def assert_prefix(primary: Path, copy: Path, mode: Mode) -> None:
    """Assert that what counts of each file of a copy is a byte prefix of the primary's, where both are of one line."""
    with opened(primary) as ours, opened(copy) as theirs:
        if names_of(read_forks(ours)) == names_of(read_forks(theirs)):
            assert list(Comparison(ours, theirs, mode).mismatches()) == []


def fire(pair: Pair, keeper: Keeper, act: Callable[[Keeper, MessageId], object] | None = None) -> list[MessageId]:
    """Claim what is due, and acknowledge it or do something else with each; return what was claimed."""
    fired = []
    while batch := keeper.claim(10_000):
        if act is None:
            fired += [MessageId(i) for i in batch.ids]
            keeper.ack(batch)
        else:
            for message in batch:
                fired.append(message.id)
                act(keeper, message.id)
    return fired
