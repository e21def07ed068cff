"""The table of what a node measures. The metrics, the page on Kafka and the dashboard are made from it.

Invariant: each name stands here once, and nothing is counted or shown that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PREFIX = "filewheel_kafka_"


class Kind(Enum):
    """How a value behaves."""

    COUNTER = "counter"
    """Grows from 0 with the start of the process; its name ends in `_total`."""
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Meter:
    """One thing that is measured."""

    name: str
    """Without PREFIX; `_total` is a part of it, and so is the unit."""
    kind: Kind
    group: str
    """The row of the dashboard."""
    help: str
    label: str = ""
    values: tuple[str, ...] = ()
    """The values that the label can have; empty when they are numbers of partitions."""

    @property
    def full_name(self) -> str:
        """The name that Prometheus sees."""
        return PREFIX + self.name


RECORDS, LATENESS, PARTITIONS, RETENTION, FAILURES = "Records", "Lateness", "Partitions", "Retention", "Failures"
LEVELS = "Levels"
GROUPS = (RECORDS, LATENESS, PARTITIONS, RETENTION, FAILURES, LEVELS)
"""The rows of the dashboard, in their order."""

_C, _H, _G = Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE
_EACH = "partition"
_LEVEL = "level"

METERS = (
    Meter(
        "in_total",
        _C,
        RECORDS,
        "Records taken in, by what becomes of them.",
        "outcome",
        ("delayed", "dead_letter", "rolled", "cancelled"),
    ),
    Meter(
        "out_total",
        _C,
        RECORDS,
        "Records produced and confirmed, by where they went.",
        "outcome",
        ("delivered", "dead_letter", "rolled", "put_back"),
    ),
    Meter("waiting", _G, RECORDS, "Records that wait; absent until they were counted after a take-over.", _EACH),
    Meter("queue_records", _G, RECORDS, "Records that were read and are not in the wheel yet.", _EACH),
    Meter("queue_bytes", _G, RECORDS, "Bytes of those records.", _EACH),
    Meter("lag_records", _G, RECORDS, "Offsets of the log that the wheel has not taken in.", _EACH),
    Meter("ingested_offset", _G, RECORDS, "The offset after the last record that was taken in.", _EACH),
    Meter(
        "lateness_seconds",
        _H,
        LATENESS,
        "From the due of a record to its confirmation by the brokers; of a dead letter, from its timestamp.",
    ),
    Meter("overdue_seconds", _G, LATENESS, "How long the first waiting record has been due.", _EACH),
    Meter("clock_offset_seconds", _G, LATENESS, "This node's clock minus the brokers'; absent when it is not known."),
    Meter(
        "partitions",
        _G,
        PARTITIONS,
        "Partitions of this node, by state.",
        "state",
        ("restoring", "active", "draining", "failed"),
    ),
    Meter("partitions_standby", _G, PARTITIONS, "Partitions of others whose wheels this node keeps ready."),
    Meter("partitions_stalled", _G, PARTITIONS, "Partitions whose last unit failed and is sent again."),
    Meter("partitions_paused", _G, PARTITIONS, "Partitions that are not read because their queue is long."),
    Meter("partitions_disk_full", _G, PARTITIONS, "Partitions that take nothing in because the disk is full."),
    Meter(
        "standby_lag_records", _G, PARTITIONS, "Offsets of the log that the wheel of a standby has not taken in.", _EACH
    ),
    Meter("takeovers_total", _C, PARTITIONS, "Partitions that this node began to fire."),
    Meter("takeover_seconds", _H, PARTITIONS, "From the assignment of a partition until it fires."),
    Meter("lost_total", _C, PARTITIONS, "Partitions that another node may have got without this one giving them up."),
    Meter("low_offset", _G, RETENTION, "Every record before it is done: a lost wheel is rebuilt from here.", _EACH),
    Meter("log_start_offset", _G, RETENTION, "The first offset that the log still holds.", _EACH),
    Meter("margin_records", _G, RETENTION, "low - log start: below 0 a lost wheel cannot be rebuilt.", _EACH),
    Meter(
        "margin_seconds",
        _G,
        RETENTION,
        "How long the log still keeps the record at low; absent when it is kept for ever.",
        _EACH,
    ),
    Meter("retention_seconds", _G, RETENTION, "How long the delay topic keeps a record; absent when for ever."),
    Meter("beyond_retention_total", _C, RETENTION, "Records taken in whose wait is longer than the retention."),
    Meter("skipped_offsets_total", _C, RETENTION, "Offsets that were deleted before they were read."),
    Meter(
        "units_total",
        _C,
        FAILURES,
        "Units sent, by outcome. In transactions refused and failed ones were aborted; fenced: another node owns it.",
        "outcome",
        ("delivered", "refused", "failed", "undecided", "fenced"),
    ),
    Meter(
        "dead_letters_total",
        _C,
        FAILURES,
        "Records that went to the dead-letter topic, by reason.",
        "reason",
        ("no_due", "no_target", "malformed", "horizon", "too_large", "refused"),
    ),
    Meter("client_errors_total", _C, FAILURES, "Troubles that the client reported and mends by itself."),
    Meter("problems", _G, FAILURES, "Reasons that /health gives, by severity.", "severity", ("failing", "warning")),
)
"""All of them, in the order of the page."""

LEVEL_METERS = (
    Meter("level_forwarded_total", _C, LEVELS, "Records forwarded and confirmed; dead letters count too.", _LEVEL),
    Meter("level_read", _G, LEVELS, "Records that were read and are not forwarded; more may wait in the log.", _LEVEL),
    Meter("level_late_seconds", _G, LEVELS, "How late the last unit went out, at worst.", _LEVEL),
    Meter("level_overdue_seconds", _G, LEVELS, "How long the first record that is not forwarded has been due.", _LEVEL),
    Meter("level_partitions", _G, LEVELS, "Partitions that this node forwards.", _LEVEL),
    Meter("level_partitions_stalled", _G, LEVELS, "Partitions whose last unit failed and is sent again.", _LEVEL),
    Meter("level_gaps_total", _C, LEVELS, "How often records were deleted before they were forwarded.", _LEVEL),
)
"""Those of `kafka levels`."""

BY_NAME = {meter.name: meter for meter in METERS}
