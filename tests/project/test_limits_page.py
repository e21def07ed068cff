"""docs/limits.md: each number of the page is that of the code."""

from __future__ import annotations

import re

import pytest

from filewheel.format import limits, pauses, settings
from filewheel.live import acts, pages, wheel_view
from filewheel.live.web import stream
from filewheel.message import _ATTEMPTS_KEPT, _DETAILS_BYTES, DETAILS_BYTES_MAX, OWN_BYTES_MAX, US_PER_S
from filewheel.metrics.metrics import HANDLERS_MAX
from filewheel.roster.roster import MEMBERS_MAX
from filewheel.runs.history import KEPT
from filewheel.schedules import definition, expression
from filewheel.scheduling import job, results
from filewheel.scheduling.runners import pool
from filewheel.values import DEPTH_MAX
from tests.support import REPO

_ROWS = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", (REPO / "docs/limits.md").read_text(), re.MULTILINE))


def _kib(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


@pytest.mark.parametrize(
    ("item", "numbers"),
    [
        ("payload", [_kib(settings.PAYLOAD_BYTES_MAX_DEFAULT), _kib(settings.PAYLOAD_BYTES_LIMIT)]),
        ("topic", [f"{limits.TOPIC_BYTES_MAX} bytes"]),
        ("unique key", [f"{limits.KEY_BYTES_MAX} bytes"]),
        ("headers", [f"{limits.HEADERS_MAX},", _kib(limits.HEADERS_BYTES_MAX)]),
        ("filewheel's own headers", [_kib(OWN_BYTES_MAX)]),
        ("attempts that a message keeps", [f"the last {_ATTEMPTS_KEPT}"]),
        ("stderr or traceback of an attempt", [_kib(DETAILS_BYTES_MAX), _kib(_DETAILS_BYTES)]),
        ("arguments", [f"{DEPTH_MAX} deep"]),
        ("result of a call", [_kib(results.RESULT_BYTES_MAX)]),
        ("what one call enqueues in its transaction", [_kib(job.BYTES_MAX)]),
        ("name of a schedule", [f"{definition.NAME_BYTES_MAX} bytes"]),
        ("count of a schedule", [f"{definition.COUNT_MAX:,}"]),
        ("cron expression", [f"{expression._LENGTH_MAX:,} characters"]),
        ("start of a worker process, with its imports", [f"{pool.START_LIMIT_US // US_PER_S} s"]),
        ("handlers with metrics of their own", [f"{HANDLERS_MAX:,}"]),
        ("pauses", [f"{pauses.PAUSES_MAX} topics", f"{pauses.WHY_MAX} characters"]),
        ("history", [f"{KEPT:,} ends"]),
        ("backups of a set", [f"{MEMBERS_MAX}"]),
        ("page of a list", [f"{pages.PAGE_MAX} messages", f"{pages.SCAN_S} s"]),
        ("one act of the page or of `top`", [f"{acts.IDS_MAX:,} messages"]),
        ("history that is shown", [f"{wheel_view.HISTORY_MAX} ends"]),
        ("live streams", [f"{stream.STREAMS_MAX}"]),
    ],
)
def test_a_limit_of_the_page_is_that_of_the_code(item: str, numbers: list[str]) -> None:
    for number in numbers:
        assert number in _ROWS[item]
