"""What a replicator tells while it runs: a line for each change of state, and now and then how far the backups are.

On a terminal the last line says how the backups are and is redrawn; piped, each change and each summary is a line of
JSON. It looks from a thread of its own, because the replicator has the main one.
Invariant: what is told comes from what the library reports, and nothing is told twice in a row.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from types import TracebackType
from typing import Any, Self

from filewheel import FilewheelError, LinkReport, Replicator, SetStatus, set_status
from filewheel.clock import SYSTEM_CLOCK
from filewheel.transfer import iso

from .members import lag_text, member_fields, report_fields, trouble_of, work_text
from .output import Output
from .progress import Progress
from .text import clip, count, safe

log = logging.getLogger("filewheel.replicate")

_LOOK_S = 0.1
_REDRAW_S = 1.0
_STATES = {
    "healing": "is brought up to date",
    "following": "is in step, and followed",
    "unreachable": "cannot be reached",
    "failed": "cannot be written",
}


class Teller:
    """Remembers what was told, and tells what is new."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told: dict[str, tuple[str, str]] = {}

    def look(self, reports: list[LinkReport]) -> None:
        """Tell which backups have come into another state."""
        for report in reports:
            state = report.state, report.error
            if self._told.get(report.wheel) != state:
                self._told[report.wheel] = state
                self._tell(report)
        for wheel in self._told.keys() - {report.wheel for report in reports}:
            del self._told[wheel]

    def _tell(self, report: LinkReport) -> None:
        why = f": {report.error}" if report.error else ""
        work = f" ({work_text(report)})" if report.state == "following" else ""
        level = logging.WARNING if report.state in ("unreachable", "failed") else logging.INFO
        log.log(level, "%s %s%s%s", report.path, _STATES[report.state], work, why)
        if self._out.wants_json:
            self._record({"kind": "state", **report_fields(report)})

    def summary(self, status: SetStatus) -> None:
        """Tell how far every backup is."""
        if self._out.wants_json:
            backups = [member_fields(one) for one in status.members]
            self._record({"kind": "summary", "epoch": status.roster.epoch, "backups": backups})

    def _record(self, fields: dict[str, Any]) -> None:
        self._out.record({"at": iso(SYSTEM_CLOCK.now_us()), **fields})
        self._out.flush()


def status_line(status: SetStatus) -> str:
    """Write how the backups are in a line."""
    troubled = [f"{one.member.path} {trouble}" for one in status.members if (trouble := trouble_of(one))]
    behind = [f"{one.member.path} {lag_text(one)}" for one in status.members if not trouble_of(one)]
    if not status.members:
        return "no backups: `filewheel backup add DIR`"
    good = [text for text in behind if not text.endswith("in step")]
    calm = f"{len(behind) - len(good)} of {count(len(status.members), 'backup')} in step"
    return "; ".join([calm, *good, *troubled])


class Watch:
    """Looks at a replicator while it runs. A context manager."""

    def __init__(self, out: Output, replicator: Replicator, progress: Progress, summary_s: float) -> None:
        self._out = out
        self._replicator = replicator
        self._progress = progress
        self._summary_s = summary_s
        self._teller = Teller(out)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.error: OSError | None = None
        """Why nothing can be told any more: the reader of stdout has gone."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if kind is None and self.error is None:
            self._teller.look(self._replicator.status())

    def _run(self) -> None:
        summed = drawn = time.monotonic()
        while not self._over.wait(_LOOK_S):
            try:
                self._teller.look(self._replicator.status())
                now = time.monotonic()
                if now - summed >= self._summary_s and self._out.wants_json:
                    summed = now
                    self._with_status(self._teller.summary)
                if now - drawn >= _REDRAW_S and self._progress.is_shown:
                    drawn = now
                    self._with_status(self._draw)
            except OSError as exc:
                self.error = exc
                self._replicator.stop()
                return

    def _with_status(self, tell: Any) -> None:
        with contextlib.suppress(FilewheelError):  # the replicator meets it too, and says so
            tell(set_status(self._out.dir))

    def _draw(self, status: SetStatus) -> None:
        self._progress.tell(clip(safe(status_line(status)), self._out.columns - 1))
