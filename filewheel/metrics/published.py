"""A running scheduler's metrics as a file of its wheel, for readers in other processes, without a server.

The keeper's process writes `metrics.prom` beside the checkpoint: atomically, by rename, and not flushed, because
counters of a dead process are useless after a power cut. The file holds its time and its writer's pid, so a reader
can check whether that process runs: counters and histograms of a dead process are still true, gauges are not.
Invariant: a failure to publish never stops the publisher, and nothing durable depends on the file.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass

from filewheel.disk.directory import Directory
from filewheel.disk.replace import replace_file
from filewheel.errors import Damaged, DiskError, disk_error
from filewheel.format import layout
from filewheel.message import US_PER_S
from filewheel.metrics.metrics import PREFIX, Metrics
from filewheel.metrics.prometheus import GAUGE, Family, gauge, parse, render

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
"""How often changed metrics are published."""
REST_S = 30.0
"""How often unchanged metrics are published, so that readers know that the process runs."""
STALE_S = 90.0
"""The writer of an older file is dead or stuck."""
_BYTES_MAX = 64 << 20
_AT = f"{PREFIX}published_timestamp_seconds"
_PID = f"{PREFIX}published_pid"


@dataclass(frozen=True)
class Published:
    """The last published metrics of a scheduler."""

    families: list[Family]
    at_us: int
    pid: int

    def age_us(self, now_us: int) -> int:
        """Return its age; 0 when its time is in the future."""
        return max(0, now_us - self.at_us)

    def is_stale(self, now_us: int, keeper_pid: int | None) -> bool:
        """Return whether its publisher is dead, stuck, or no longer the keeper."""
        return self.pid != keeper_pid or abs(now_us - self.at_us) > STALE_S * US_PER_S

    def current(self, now_us: int, keeper_pid: int | None) -> list[Family]:
        """Return the valid families: of a stale file no gauges, except its time and pid."""
        if not self.is_stale(now_us, keeper_pid):
            return self.families
        return [f for f in self.families if f.kind != GAUGE or f.name in (_AT, _PID)]


class Publisher:
    """Publishes the metrics of the keeper's process into its wheel. Not thread-safe."""

    def __init__(self, metrics: Metrics, directory: Directory, *, interval_s: float = INTERVAL_S) -> None:
        """Publish nothing yet."""
        self._metrics = metrics
        self._dir = directory
        self._clock = directory.env.clock
        self._interval_us = int(interval_s * US_PER_S)
        self._looked_us: int | None = None
        self._wrote_us = 0
        self._last = ""
        self._failed = False

    def tick(self) -> bool:
        """Publish if an interval has passed; return whether it did. A disk error is logged once and never raised.

        Call it often: it mostly costs one reading of the clock.
        """
        now_us = self._clock.steady_us()
        if self._looked_us is not None and now_us - self._looked_us < self._interval_us:
            return False
        first = self._looked_us is None
        self._looked_us = now_us
        text = self._metrics.text()
        if not first and text == self._last and now_us - self._wrote_us < REST_S * US_PER_S:
            return False
        return self._try(text, now_us)

    def close(self) -> bool:
        """Publish a last time, while this process is still the keeper. A disk error is never raised."""
        return self._try(self._metrics.text(), self._clock.steady_us())

    def _try(self, text: str, now_us: int) -> bool:
        try:
            _write(self._dir, text, self._clock.now_us())
        except DiskError as exc:
            if not self._failed:
                log.warning("the metrics cannot be published; logged once: %s", exc)
            self._failed = True
            return False
        self._failed = False
        self._last, self._wrote_us = text, now_us
        return True


def publish(metrics: Metrics, directory: Directory) -> None:
    """Write the metrics into the wheel now, for `filewheel metrics`. Readers see them at once; not durable.

    Cost: one small file, not flushed. Raises DiskError.
    """
    _write(directory, metrics.text(), directory.env.clock.now_us())


def _write(directory: Directory, text: str, now_us: int) -> None:
    signed = render(
        [
            gauge(_AT, "When this was published, in seconds since the epoch.", now_us / US_PER_S),
            gauge(_PID, "The process that published this.", os.getpid()),
        ]
    )
    disk = directory.disk
    try:
        replace_file(disk, layout.METRICS, layout.METRICS_TMP, (signed + text).encode(), flush=False)
    except OSError as exc:
        with contextlib.suppress(OSError):  # free the space of a partial file
            disk.unlink(layout.METRICS_TMP)
        undone = "the metrics in the wheel are those of before"
        raise disk_error(exc, directory.place(layout.METRICS), undone=undone) from exc


def read_published(directory: Directory) -> Published | None:
    """Return the last published metrics of this wheel, or None. Takes no lock.

    Raises Damaged when the file is not one that filewheel wrote, DiskError when it cannot be read.
    """
    place = directory.place(layout.METRICS)
    disk = directory.disk
    try:
        fd = disk.open(layout.METRICS, "r")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise disk_error(exc, place) from exc
    try:
        data = disk.pread(fd, min(disk.size(fd), _BYTES_MAX), 0)
    except OSError as exc:
        raise disk_error(exc, place) from exc
    finally:
        disk.close(fd)
    try:
        families = parse(data.decode(), place)
        signed = {f.name: f.samples[0].value for f in families if f.name in (_AT, _PID)}
        return Published(families, round(signed[_AT] * US_PER_S), int(signed[_PID]))
    except (UnicodeDecodeError, KeyError, OverflowError, ValueError) as exc:
        # A power cut may leave an empty file or zeros.
        raise Damaged("the file holds no published metrics", path=place, hint="remove it; it is written again") from exc


def together(on_disk: list[Family], published: Published | None, now_us: int, keeper_pid: int | None) -> list[Family]:
    """Return the families of disk and scheduler; of a name that both have, that of the disk, which is newer."""
    if published is None:
        return on_disk
    stale = int(published.is_stale(now_us, keeper_pid))
    found = [
        *on_disk,
        gauge(f"{PREFIX}published_stale", "Whether the publisher of the following metrics is dead or stuck.", stale),
    ]
    names = {f.name for f in found}
    return found + [f for f in published.current(now_us, keeper_pid) if f.name not in names]
