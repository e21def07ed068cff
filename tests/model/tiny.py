"""The library with everything so small that a short history meets all its edges, and locks that the model knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import filewheel.changes
import filewheel.disk.ballast
import filewheel.disk.begun
import filewheel.disk.hint
import filewheel.firing.housekeeper
import filewheel.firing.reserve
import filewheel.firing.settler
import filewheel.journal.appender
import filewheel.keeper
import filewheel.keys.index
import filewheel.keys.upkeep
import filewheel.laps.deal
import filewheel.laps.lap_writer
import filewheel.laps.slot
import filewheel.laps.store
import filewheel.laps.tidy
import filewheel.lookup.finder
import filewheel.lookup.index
from filewheel.journal.journal import Journal
from filewheel.laps.deal import Deal
from filewheel.laps.window import Budget
from tests.model.sched import ModelCondition, ModelThreading

SLOTS = 60


@contextlib.contextmanager
def tiny(
    segment_bytes: int = 1200, fill_bytes: int = 400, chunk_records: int = 12, ballast_bytes: int = 0
) -> Iterator[None]:
    """Make segments, fills, chunks and the ballast small, for as long as the context lasts."""
    patches: list[tuple[Any, str, Any]] = []

    def patch(target: Any, name: str, value: Any) -> None:
        patches.append((target, name, getattr(target, name)))
        setattr(target, name, value)

    def defaults(function: Any, **values: Any) -> None:
        patch(function, "__kwdefaults__", {**function.__kwdefaults__, **values})

    defaults(Journal.__init__, segment_bytes=segment_bytes, fill_bytes=fill_bytes)
    defaults(Deal.__init__, chunk_records=chunk_records)
    patch(filewheel.disk.ballast, "BALLAST_BYTES", ballast_bytes)
    patch(filewheel.disk.ballast, "_BALLAST_BYTES_MIN", 1)
    patch(filewheel.firing.housekeeper, "ROOM_BYTES", 600)
    patch(filewheel.firing.housekeeper, "_SHORT_CHUNKS", (1300, 400, 0))
    patch(filewheel.laps.deal, "ROOM_BYTES", 600)
    patch(filewheel.laps.store, "LOCK_TEST_US", 3)  # the model's steady clock counts looks at it
    patch(filewheel.laps.slot, "FRAME_BYTES", 400)
    patch(filewheel.laps.deal, "_BLOCK_BYTES", 40)
    patch(filewheel.laps.deal, "ANEW_BYTES", 600)
    patch(filewheel.laps.lap_writer, "_ANEW_BUDGET", Budget(records=5, bytes=600))
    patch(filewheel.laps.tidy, "TIDY_SEGMENTS", 6)
    patch(filewheel.lookup.index, "RUN_RECORDS", 3)
    patch(filewheel.lookup.index, "IDS_MAX", 12)
    patch(filewheel.lookup.finder, "_FEW", 1)
    patch(filewheel.keys.index, "REMEMBERED_BYTES", 400)
    patch(filewheel.keys.upkeep, "LISTED_MAX", 4)
    patch(filewheel.keys.upkeep, "HELD_BYTES", 64)
    for module in (
        filewheel.journal.appender,
        filewheel.disk.begun,
        filewheel.disk.hint,
        filewheel.lookup.finder,
        filewheel.keys.index,
        filewheel.keeper,
        filewheel.laps.store,
        filewheel.firing.settler,
        filewheel.laps.tidy,
        filewheel.changes,
    ):
        patch(module, "threading", ModelThreading)
        if hasattr(module, "Condition"):
            patch(module, "Condition", ModelCondition)
    try:
        yield
    finally:
        for target, name, value in reversed(patches):
            setattr(target, name, value)
