"""The picture of the play that loses a disk: the pending messages of each disk, the fired ones, and the last events.

Invariant: every figure is read from the wheels and from the records of the processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filewheel import FilewheelError, Wheel

from .. import times
from ..show.output import Output
from ..show.picture import bars
from ..show.text import clip, pad, safe
from ..times import US_PER_S, to_datetime
from .live import Live
from .stage import DemoStage, read_lines_from

BARS = 36
_STEP_US = US_PER_S // 4
_TICKER = 5
_EVENTS = 7


@dataclass
class DiskPanel:
    """A directory that stands for a disk, and the wheel in it."""

    name: str
    wheel: Path
    kind: str
    """Its first role: "primary", "mirrored", "shipped"."""
    role: str = ""
    pending: int | None = None
    counts: list[int] = field(default_factory=list)
    is_lost: bool = False
    _open: Wheel | None = None

    def look(self, speed: float) -> None:
        """Read the role and the pending messages of the wheel."""
        try:
            now_us, step_us = times.now_us(), int(_STEP_US / speed)
            start_us = now_us // step_us * step_us
            if self._open is None:
                self._open = Wheel(self.wheel)
            roster = self._open.roster()
            found = self._open.histogram([to_datetime(start_us + i * step_us) for i in range(BARS + 1)])
        except (FilewheelError, OSError):
            self.is_lost = self.is_lost or self.pending is not None
            self.role, self.pending, self.counts = "", None, []
            self.close()
            return
        self.role = roster.role if roster is not None else "alone"
        self.pending = found.before + sum(found.counts) + found.after
        self.counts = [found.before + found.counts[0], *found.counts[1:]]

    @property
    def says(self) -> str:
        """Describe its pending messages."""
        if self.pending is None:
            return "LOST" if self.is_lost else "empty"
        return f"{self.pending} wait"

    def close(self) -> None:
        """Close the wheel."""
        wheel, self._open = self._open, None
        if wheel is not None:
            with contextlib.suppress(FilewheelError, OSError):  # the lost wheel
                wheel.close()


class Confirmed:
    """The producer's records."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.ids: list[str] = []
        self.times: list[float] = []
        self.copies: list[int] = []
        self.failed: list[str] = []

    def follow(self) -> None:
        """Read its new records."""
        try:
            lines, self._offset = read_lines_from(self._path, self._offset)
        except FileNotFoundError:  # it has not started yet
            return
        for line in lines:
            if "failed" in line:
                self.failed.append(line["failed"])
            else:
                self.ids.append(line["id"])
                self.times.append(line["at"])
                self.copies.append(line["copies"])

    def longest_gap_s(self) -> float:
        """Return the longest time without a confirmation."""
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


class Panel(Live):
    """A row for each disk, and the last messages that fired."""

    def __init__(
        self, out: Output, stage: DemoStage, disks: Sequence[DiskPanel], confirmed: Confirmed, speed: float
    ) -> None:
        super().__init__(out, rows=len(disks) + _TICKER + 7, columns=76, events=_EVENTS)
        self._stage = stage
        self._disks = disks
        self._confirmed = confirmed
        self._speed = speed

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for disk in self._disks:
            disk.close()

    @property
    def pending(self) -> int | None:
        """The number pending in the primary; None without a primary."""
        return next((d.pending for d in self._disks if d.role == "primary"), None)

    def look(self) -> None:
        """Read the wheels and the records."""
        for disk in self._disks:
            disk.look(self._speed)
        for keeper in self._stage.keepers:
            keeper.follow()
        self._confirmed.follow()

    def line(self) -> str:
        """Return the counts."""
        return f"{self._counts()}; {', '.join(f'{d.name} {d.says}' for d in self._disks)}"

    def _counts(self) -> str:
        fired = [id_ for keeper in self._stage.keepers for id_, _ in keeper.fired]
        return f"{len(self._confirmed.ids)} acknowledged, {len(set(fired))} fired, {len(fired) - len(set(fired))} twice"

    def picture(self) -> list[str]:
        """Return the rows, the counts, and the last messages that fired."""
        columns = self._out.columns - 1
        quarter = "a quarter of a second" if self._speed == 1 else f"{250 / self._speed:.0f} ms"
        title = f"The same messages on {len(self._disks)} disks. A column is {quarter}: at the left edge it fires."
        return [
            clip(title, columns),
            "",
            *(self._row(disk) for disk in self._disks),
            "",
            self._out.style(f"  {self._counts()}", bold=True),
            "",
            *self._ticker(columns),
            "",
        ]

    def _row(self, disk: DiskPanel) -> str:
        style = self._out.style
        if disk.pending is None:
            return f"  {disk.name}  {style(disk.says, 'red' if disk.is_lost else None, bold=disk.is_lost)}"
        fires = disk.role == "primary"
        role = "primary" if fires else f"{disk.kind} backup" if disk.role == "backup" else disk.role
        picture = bars(disk.counts, 1, blocks=self._out.blocks)[0]
        edge = style("│" if self._out.blocks else "|", "yellow" if fires else None, bold=fires, dim=not fires)
        shown = style(pad(picture, BARS), "cyan" if fires else None, dim=not fires)
        return f"  {disk.name}  {style(role.ljust(16), bold=fires)}{edge}{shown} {disk.pending:4d} wait"

    def _ticker(self, columns: int) -> list[str]:
        found: list[tuple[float, str]] = []
        for keeper, disk in zip(self._stage.keepers, self._disks, strict=False):
            found += [(f["due_us"], _fired_line(f, disk.name)) for f in list(keeper.latest)[-_TICKER:]]
        lines = [clip(safe(line), columns) for _, line in sorted(found)[-_TICKER:]]
        return lines + [""] * (_TICKER - len(lines))


def _fired_line(fields: dict[str, Any], disk: str) -> str:
    body = clip(fields.get("payload", "(bytes)"), 30)
    return f"  fired  {fields['topic'].ljust(16)}{pad(body, 32)}{fields['late_ms']:7.1f} ms late, from {disk}"
