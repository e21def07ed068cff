"""Wheels that hold the same messages, as far as their rosters say so: nothing is copied from one to the other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from filewheel.disk.directory import Directory, create_directory, open_directory
from filewheel.disk.disk import SYSTEM
from filewheel.roster.roster import Member, Mode, Role, Roster, change_roster, read_roster

SET = "5e7" * 8


def open_wheel(path: Path, salt: str | None = None) -> Directory:
    """Open a wheel's directory, made if it is not there."""
    if not path.exists():
        create_directory(path, salt=salt, now_us=SYSTEM.clock.now_us())
    return open_directory(path, write=True)


def make_set(primary: Path, *backups: Path, epoch: int = 1, mode: Mode = "ship") -> Roster:
    """Write the rosters of a set; return the primary's."""
    opened = {primary: open_wheel(primary)}
    opened |= {path: open_wheel(path, opened[primary].settings.salt) for path in backups}
    members = {p: Member(str(p), d.settings.id, mode, "current") for p, d in opened.items()}
    for path, directory in opened.items():
        role: Role = "primary" if path == primary else "backup"
        others = tuple(m for p, m in members.items() if p != path)
        mine = Roster(SET, epoch, role, str(primary), opened[primary].settings.id, others)
        change_roster(directory, lambda _, mine=mine: mine)
    return roster_of(primary)


def roster_of(path: Path) -> Roster:
    """Return a wheel's roster."""
    roster = read_roster(open_directory(path, write=False).disk, str(path))
    assert roster is not None
    return roster


def alter(path: Path, **fields: object) -> None:
    """Change fields of a wheel's roster."""

    def change(roster: Roster | None) -> Roster:
        assert roster is not None
        return replace(roster, **fields)  # type: ignore[arg-type]

    change_roster(open_directory(path, write=True), change)


def promote(path: Path) -> None:
    """Make a backup the primary, and tell no other wheel."""
    wheel = open_directory(path, write=True).settings.id
    alter(path, role="primary", epoch=roster_of(path).epoch + 1, primary=str(path), primary_wheel=wheel)


def fence(path: Path, by: Path) -> None:
    """Tell a wheel that another one was promoted."""
    new = roster_of(by)
    alter(path, role="fenced", epoch=new.epoch, primary=new.primary, primary_wheel=new.primary_wheel)
