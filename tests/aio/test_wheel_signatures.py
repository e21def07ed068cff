"""The asyncio classes take the options of the blocking ones, and show them to help() and to completion."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from filewheel import AsyncKeeper, AsyncScheduler, AsyncWheel, Keeper, Scheduler, Wheel

SAME = [
    (AsyncWheel, Wheel, "enqueue enqueue_many cancel cancel_many clear reschedule update get peek next_due list"),
    (AsyncWheel, Wheel, "revive dead stats flush running history kill"),
    (AsyncWheel, Wheel, "schedule schedule_many edit_schedule unschedule schedules"),
    (AsyncKeeper, Keeper, "claim ack nack bury settle begin"),
    (AsyncScheduler, Scheduler, "on every enqueue cancel schedule unschedule schedules drain prometheus on_event"),
    (AsyncScheduler, Scheduler, "stalled_s list get reschedule cancel_all result"),
]


@pytest.mark.parametrize(
    ("ours", "blocking", "name"), [(ours, blocking, name) for ours, blocking, names in SAME for name in names.split()]
)
def test_an_async_method_shows_the_options_of_the_blocking_one(ours: type, blocking: type, name: str) -> None:
    mine, other = (inspect.signature(getattr(cls, name)).parameters for cls in (ours, blocking))
    assert [(p.name, p.default, p.kind) for p in mine.values()] == [(p.name, p.default, p.kind) for p in other.values()]
    assert inspect.getdoc(getattr(ours, name))


def test_an_option_that_no_handler_has_is_refused_with_the_name_of_the_method(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"AsyncScheduler\.on\(\) got an unexpected .*'retyr'. Try: retry="):
        AsyncScheduler(tmp_path / "w").on(retyr=3)  # type: ignore[call-overload]
