"""A set of wheels for tests: a primary and its mirrors, on disks of which chosen calls fail, and what was called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from filewheel import Wheel
from filewheel.disk.directory import create_directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.format.frame import Frame, Scanner
from filewheel.roster.roster import Member, Mode, Roster, change_roster, roster_at
from tests.support import FakeClock, FaultyDisk

Fail = Callable[[str, str], None]


class WheelSet:
    """A primary `paths[0]` and its backups."""

    def __init__(self, where: Path, modes: Sequence[Mode] = ("mirror",), **policy: Any) -> None:
        self.paths = [where / f"w{n}" for n in range(len(modes) + 1)]
        self.clock = FakeClock()
        self.events: list[tuple[int, str, str]] = []
        """(which wheel, what call, which file), in the order in which they began."""
        self.fail: dict[int, Fail] = {}
        """For each wheel what is to happen at its calls."""
        ids = []
        for path in self.paths:
            salt = open_directory(self.paths[0], write=False).settings.salt if ids else None
            create_directory(path, salt=salt, now_us=SYSTEM.clock.now_us())
            directory = open_directory(path, write=False)
            ids.append(directory.settings.id)
            directory.disk.release()
        members = tuple(
            Member(str(path), id_, mode, "current")
            for path, id_, mode in zip(self.paths[1:], ids[1:], modes, strict=True)
        )
        roster = Roster("the-set", 1, "primary", str(self.paths[0]), ids[0], members, **policy)
        self.write(0, lambda _: roster)
        for n in range(1, len(self.paths)):
            self.write(n, lambda _: replace(roster, role="backup"))

    def write(self, n: int, change: Callable[[Roster], Roster]) -> None:
        """Change a wheel's roster."""
        directory = open_directory(self.paths[n], write=True)
        change_roster(directory, change)  # type: ignore[arg-type]
        directory.disk.release()

    def roster(self, n: int = 0) -> Roster:
        """Read a wheel's roster."""
        found = roster_at(self.paths[n])
        assert found is not None
        return found

    def disk(self, path: str) -> FaultyDisk:
        """Open one of the set's disks."""
        n = self.paths.index(Path(path))

        def call(kind: str, name: str) -> None:
            self.events.append((n, kind, name))
            if n in self.fail:
                self.fail[n](kind, name)

        return FaultyDisk(path, call)

    def open(self, **options: Any) -> Wheel:
        """Open the primary for a producer, which follows the roster as it is now."""
        wheel = Wheel(self.paths[0], env=SYSTEM.using(disk=self.disk), clock=self.clock, **options)
        self.follow(wheel)
        return wheel

    def follow(self, wheel: Wheel) -> None:
        """Let a producer see the roster as it is now."""
        wheel._writer().follow(self.roster())

    def payloads(self, n: int) -> list[bytes]:
        """Return what waits in a wheel."""
        with Wheel(self.paths[n]) as wheel:
            return sorted(m.payload for m in wheel.list())

    def frames(self, n: int) -> list[Frame]:
        """Return the frames of a wheel's journals."""
        directory = open_directory(self.paths[n], write=False)
        found: list[Frame] = []
        for last in sorted(os.listdir(self.paths[n] / "journal")):
            data = (self.paths[n] / "journal" / last).read_bytes()
            seed = directory.seed(f"journal/{last}")
            scanner = Scanner(lambda size, offset, data=data: data[offset : offset + size], 0, len(data), seed)  # type: ignore[misc]
            found += [f for f in scanner if isinstance(f, Frame)]
        directory.disk.release()
        return found

    def calls(self, kind: str) -> list[int]:
        """Return the wheels whose journals saw this call, in order."""
        return [n for n, what, name in self.events if what == kind and name.startswith("journal/")]


class Hang:
    """A call that does not come back before it is told to."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        self.begun = threading.Event()
        self.over = threading.Event()

    def __call__(self, kind: str, name: str) -> None:
        if kind in self.kinds and "journal" in name and not self.over.is_set():
            self.begun.set()
            self.over.wait(120)


def erring(code: int, *kinds: str, times: int = 1 << 30, name: str = "journal") -> Fail:
    """Return what lets calls of these kinds fail, so many times."""
    left = [times]

    def fail(kind: str, what: str) -> None:
        if kind in kinds and name in what and left[0] > 0:
            left[0] -= 1
            raise OSError(code, os.strerror(code), what)

    return fail
