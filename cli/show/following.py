"""The output of a running replicator: a line for each change of state, and a summary from time to time.

On a terminal the last line shows the state of the backups and is redrawn; piped, each change and each summary is a line
of JSON. It runs in a separate thread, because the replicator has the main one.
Invariant: every line comes from a report of the library, and no line comes twice in a row.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from filewheel import FilewheelError, LinkReport, SetStatus, set_status
from filewheel.tools.dump import iso

from .. import times
from .members import lag_text, member_fields, report_fields, trouble_of, work_text
from .output import Output
from .progress import ProgressLine
from .text import clip, count, safe

log = logging.getLogger("filewheel.replicate")

_LOOK_S = 0.1
_REDRAW_S = 1.0
_STATES = {
    "copying": "is brought up to date",
    "following": "is in step, and followed",
    "unreachable": "cannot be reached",
    "failed": "cannot be written",
}


class Teller:
    """Reports changes; any thread may call it."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._told: dict[str, tuple[str, str]] = {}
        self.error: OSError | None = None
        """Set when the reader of stdout has closed it."""
        self.on_error: Callable[[], object] = lambda: None

    def tell(self, report: LinkReport) -> None:
        """Report that the state of a backup has changed."""
        with self._lock:
            state = report.state, report.error
            if self._told.get(report.wheel) == state:
                return
            self._told[report.wheel] = state
            if not report.error:  # otherwise the library has logged it
                work = work_text(report, nothing="") if report.state == "following" else ""
                log.info("%s %s%s", report.path, _STATES[report.state], work and f" ({work})")
            self._record({"kind": "state", **report_fields(report)})

    def summary(self, status: SetStatus) -> None:
        """Report how far each backup is behind."""
        backups = [member_fields(one) for one in status.members]
        with self._lock:
            self._record({"kind": "summary", "epoch": status.roster.epoch, "backups": backups})

    def _record(self, fields: dict[str, Any]) -> None:
        if not self._out.wants_json or self.error is not None:
            return
        try:
            self._out.record({"at": iso(times.now_us()), **fields})
            self._out.flush()
        except OSError as exc:
            self.error = exc
            self.on_error()


def status_line(status: SetStatus) -> str:
    """Write the state of the backups in a line."""
    troubled = [f"{one.member.path} {trouble}" for one in status.members if (trouble := trouble_of(one))]
    behind = [f"{one.member.path} {lag_text(one)}" for one in status.members if not trouble_of(one)]
    if not status.members:
        return "no backups: `filewheel backup add DIR`"
    good = [text for text in behind if not text.endswith("in step")]
    calm = f"{len(behind) - len(good)} of {count(len(status.members), 'backup')} in step"
    return "; ".join([calm, *good, *troubled])


class Watch:
    """Polls the set while a replicator runs. A context manager."""

    def __init__(self, out: Output, teller: Teller, progress: ProgressLine, summary_s: float) -> None:
        self._out = out
        self._teller = teller
        self._progress = progress
        self._summary_s = summary_s if out.wants_json else None
        self._over = threading.Lock()
        """Free at the end. A lock, because Ctrl-C breaks an event of Python's."""
        self._over.acquire()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.release()
        self._thread.join()

    def _run(self) -> None:
        summed = drawn = time.monotonic()
        while not self._over.acquire(timeout=_LOOK_S):
            now = time.monotonic()
            if self._summary_s is not None and now - summed >= self._summary_s:
                summed = now
                self._with_status(self._teller.summary)
            if self._progress.is_shown and now - drawn >= _REDRAW_S:
                drawn = now
                self._with_status(self._draw)

    def _with_status(self, tell: Callable[[SetStatus], object]) -> None:
        # The replicator reports the same errors.
        with contextlib.suppress(FilewheelError, OSError):
            status = set_status(self._out.dir)
            if status is not None:
                tell(status)

    def _draw(self, status: SetStatus) -> None:
        self._progress.tell(clip(safe(status_line(status)), self._out.columns - 1))
