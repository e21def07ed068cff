"""A set of wheels on the command line: as a line, a table, JSON, and the progress of a first copy.

Invariant: a wheel without backups costs one look-up of a missing file, and an unreadable part of a set hides no other.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from filewheel import FilewheelError, NoWheel, Roster, Wheel
from filewheel.live.backups import is_read_only as is_read_only
from filewheel.live.backups import member_fields as member_fields
from filewheel.live.backups import set_fields as set_fields
from filewheel.live.backups import set_of, unfollowed
from filewheel.live.backups import state_of as state_of
from filewheel.live.backups import trouble_of as trouble_of

from .output import Output
from .progress import ProgressLine
from .text import count, safe, size, span

if TYPE_CHECKING:  # loaded only where there is a set
    from filewheel import LinkReport, MemberStatus, SetStatus


def roster_of(out: Output) -> Roster | None:
    """Return the roster of the wheel that `-C` names; None when it stands alone. Raises Damaged, OSError."""
    with Wheel(out.dir, force=out.force) as wheel:
        return wheel.roster()


def set_roster_of(out: Output) -> Roster | None:
    """Return the roster as `roster_of`, for a command that needs the wheel's disk."""
    try:
        return roster_of(out)
    except NoWheel as exc:
        exc.hint = "mount its disk, or name another wheel of its set with -C"
        raise


def find_set(out: Output) -> SetStatus | None:
    """Return the set of the wheel that `-C` names; None when it stands alone or, with a warning, cannot be read."""
    try:
        with Wheel(out.dir, force=out.force) as wheel:
            return set_of(wheel)
    except (FilewheelError, OSError) as exc:
        out.warn(f"nothing is known of the backups: {exc}")
        return None


def is_primary(status: SetStatus | None) -> bool:
    """Return whether a wheel may fire: it has no set, or is the primary of its set."""
    return status is None or status.roster.role == "primary"


# -- one backup -----------------------------------------------------------------------------------------------


def lag_text(one: MemberStatus) -> str:
    """Return a backup's lag: "in step", "3 messages behind, 1.2s"."""
    if one.lag_messages is None:
        return "lag unknown"
    if not one.lag_messages and not one.lag_bytes:
        return "in step"
    time = f", {_time(one.lag_s)}" if one.lag_s else ""
    return f"{count(one.lag_messages, 'message')} behind{time}"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else span(round(seconds * 1000) * 1000)


def print_members(out: Output, status: SetStatus) -> None:
    """Print the backups of a set: as JSON lines or a table."""
    if out.wants_json:
        for one in status.members:
            out.record(member_fields(one))
        return
    for one in status.members:
        out.write(out.style(safe(one.member.path), bold=True))
        out.block(_member_text(one), indent=2)


def _member_text(one: MemberStatus) -> str:
    """Describe a backup: "current, mirror; in step; followed by a replicator"."""
    size_ = f" ({size(one.lag_bytes)})" if one.lag_bytes else ""
    follows = "a replicator follows it" if one.following else unfollowed(one)
    why = one.why or one.member.why
    return "; ".join(filter(None, [f"{state_of(one)}, {one.member.mode}", lag_text(one) + size_, follows, why]))


def rules_of(roster: Roster) -> list[str]:
    """Return the rules of the set as sentences."""
    rules = []
    if any(m.mode == "mirror" for m in roster.members):
        held = "The primary and every mirror in use hold"
        if roster.copies:
            held = f"{count(roster.copies, 'wheel')} {'hold' if roster.copies > 1 else 'holds'}"
        rules.append(f"{held} a message before its enqueue returns")
        if roster.on_failure == "stale":
            rules.append("A mirror that fails is marked stale, and is no mirror until it has what it lacks")
        elif not roster.copies:
            rules.append("While a mirror fails, enqueues are refused")
    if roster.copies > 1:
        rules.append(f"Enqueues are refused while fewer than {roster.copies} wheels can hold them")
    return rules


# -- the set --------------------------------------------------------------------------------------------------


def set_line(status: SetStatus) -> str:
    """Describe a set in a line: the role of this wheel, and the state of its backups."""
    roster = status.roster
    if roster.role == "backup":
        away = f"; the primary cannot be asked ({status.primary_why})" if status.primary_why else ""
        return f"a backup of {status.primary}, epoch {roster.epoch}{away}"
    if roster.role == "promoting":
        return f"a promotion to epoch {roster.epoch} has started and not ended: `filewheel promote` completes it"
    if roster.role == "fenced":
        if roster.held < roster.epoch:
            return (
                f"fenced: a promotion to epoch {roster.epoch} has started and not ended: `filewheel promote` a backup"
            )
        return f"fenced: {status.primary} is the primary since epoch {roster.epoch}"
    backups = [f"{one.member.path} ({one.member.mode}) {trouble_of(one) or lag_text(one)}" for one in status.members]
    return f"the primary, epoch {roster.epoch}; " + ("; ".join(backups) or "no backups")


# -- a copy that is made --------------------------------------------------------------------------------------


class CopyProgress:
    """The progress of the copies to all backups together; the library calls it from any thread."""

    def __init__(self, progress: ProgressLine) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._parts: dict[str, tuple[int, int]] = {}

    def __call__(self, name: str, done: int, total: int) -> None:
        with self._lock:
            self._parts[name] = done, max(done, total)
            self._progress.total = sum(whole for _, whole in self._parts.values())
            self._progress.at(sum(part for part, _ in self._parts.values()))


def report_fields(report: LinkReport) -> dict[str, Any]:
    """Return the JSON fields of a replicator's report about one backup."""
    return {
        "path": report.path,
        "wheel": report.wheel,
        "mode": report.mode,
        "state": report.state,
        "copied_bytes": report.copied_bytes,
        "healed": report.healed,
        "returned": report.returned,
        "error": report.error,
    }


def work_text(report: LinkReport, nothing: str = "nothing to do") -> str:
    """Return the work done for one backup: "12 KiB copied, 3 damaged frames written again"."""
    parts = [
        f"{size(report.copied_bytes)} copied" if report.copied_bytes else "",
        f"{count(report.healed, 'damaged frame')} written again" if report.healed else "",
        f"{count(report.returned, 'message')} given back to the primary" if report.returned else "",
    ]
    return ", ".join(part for part in parts if part) or nothing
