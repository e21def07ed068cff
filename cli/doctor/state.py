"""The state of a wheel: settings, counts, health, its set, damage. Each part is read by itself.

Invariant: no payload, header, topic, key, or name of a schedule or a pause is in it, and nothing is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from filewheel import Damaged, FilewheelError, Wheel, set_status
from filewheel.live.health import check_health
from filewheel.live.stats_fields import stats_fields
from filewheel.tools import Directory, open_directory
from filewheel.tools.verify import Report
from filewheel.tools.verify import verify as verify_directory

from ..failure import Failure, failure_of
from .place import hidden

_DAMAGED_MAX = 20
_SAID = ("role", "files", "keeper", "alive", "lag", "room")
"""Health checks whose text holds nothing that a user named; the text of a pause does."""


class DoctorState:
    """The parts that were read, and the failures of those that could not be."""

    def __init__(self, path: str, *, verify: bool) -> None:
        self._path = path
        self.failures: list[Failure] = []
        self.fields: dict[str, Any] = {
            "settings": self._part(self._settings),
            "stats": self._part(self._stats),
            "running": self._part(self._running),
            "health": self._part(self._health),
            "set": self._part(self._set),
            "verify": self._part(self._verified) if verify else None,
        }
        stats, report = self.fields["stats"], self.fields["verify"]
        if (stats and stats["damaged"]) or (report and report["damage"]) or self._has_damaged_check:
            self.failures.append(Failure("damaged", "the wheel is damaged", hint="`filewheel verify` names each place"))
        self.fields["troubles"] = self._troubles()

    @property
    def _has_damaged_check(self) -> bool:
        return any(check["kind"] == "damaged" for check in self.fields["health"] or ())

    def _part(self, read: Callable[[], dict[str, Any] | list[Any] | None]) -> Any:
        try:
            return read()
        except (FilewheelError, OSError) as exc:
            failure = failure_of(exc)
            if isinstance(exc, Damaged):
                failure = Failure(failure.kind, f"{exc.path or self._path}: {plain(exc.what)}", hint=failure.hint)
            self.failures.append(failure)
            return None

    def _troubles(self) -> list[dict[str, Any]]:
        """Return each failure once: a missing wheel fails every part."""
        seen = {(f.kind, f.message): f for f in self.failures}
        return [
            {"error": f.kind, "code": f.code, "message": hidden(f.message), "hint": hidden(f.hint) if f.hint else None}
            for f in seen.values()
        ]

    def _settings(self) -> dict[str, Any]:
        with _directory(self._path) as directory:
            known = directory.settings
            return {
                "format": known.format, "lap_s": known.slots, "sync": known.sync,
                "payload_bytes_max": known.payload_bytes_max, "created": known.created,
                "notes": [hidden(note) for note in directory.notes],
            }  # fmt: skip

    def _stats(self) -> dict[str, Any]:
        with Wheel(self._path, force=True) as wheel:
            stats = wheel.stats()
        fields = stats_fields(stats)
        del fields["paused"]
        return fields | {"pauses": None if stats.paused is None else len(stats.paused.entries)}

    def _running(self) -> dict[str, Any]:
        with Wheel(self._path, force=True) as wheel:
            running = wheel.running()
        return {"claimed": running.claimed, "begun": running.begun}

    def _health(self) -> list[dict[str, Any]]:
        found = check_health(self._path, force=True)
        return [
            {"name": c.name, "kind": c.kind or None, "text": hidden(c.text) if c.name in _SAID else None}
            for c in found.checks
        ]

    def _set(self) -> dict[str, Any] | None:
        status = set_status(self._path)
        if status is None:
            return None
        # The roster alone says what a member was when it was last reached.
        states = Counter(
            f"{one.member.mode}, {one.member.state if one.reachable else 'unreachable'}" for one in status.members
        )
        return {"role": status.roster.role, "epoch": status.roster.epoch, "backups": dict(states)}

    def _verified(self) -> dict[str, Any]:
        with _directory(self._path) as directory:
            return _summary(verify_directory(directory))


@contextmanager
def _directory(path: str) -> Iterator[Directory]:
    directory = open_directory(path, write=False, force=True)
    try:
        yield directory
    finally:
        directory.disk.release()


def plain(what: str) -> str:
    """Return what is wrong with a file, without the value that was found there: it may be a part of a message."""
    return re.split(r": | \(", what, maxsplit=1)[0]


def _summary(report: Report) -> dict[str, Any]:
    """Return what a verification found. Only notes name keys, so they are only counted."""
    damage = report.damage
    return {
        "bytes": report.bytes,
        "files": report.files,
        "notes": len(report.findings) - len(damage),
        "damage": len(damage),
        "places": [{"file": f.name, "offset": f.offset, "what": plain(f.what)} for f in damage[:_DAMAGED_MAX]],
    }
