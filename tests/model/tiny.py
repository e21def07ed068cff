"""The library with everything so small that a short history meets all its edges, and locks that the model knows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import filewheel.appender
import filewheel.begun
import filewheel.bell
import filewheel.deal
import filewheel.finder
import filewheel.groupcommit
import filewheel.housekeeper
import filewheel.index
import filewheel.keeper
import filewheel.keys
import filewheel.ledger
import filewheel.replication.graft
import filewheel.replication.laps
import filewheel.settler
import filewheel.slot
import filewheel.tidy
import filewheel.wheel
from filewheel.deal import Deal
from filewheel.journal import Journal
from tests.model.sched import ModelThreading

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
    patch(filewheel.housekeeper, "BALLAST_BYTES", ballast_bytes)
    patch(filewheel.housekeeper, "_BALLAST_BYTES_MIN", 1)
    patch(filewheel.housekeeper, "_ROOM_BYTES", 600)
    patch(filewheel.ledger, "LOCK_TEST_US", 3)  # the model's steady clock counts looks at it
    patch(filewheel.slot, "FRAME_BYTES", 400)
    patch(filewheel.tidy, "TIDY_SEGMENTS", 6)
    patch(filewheel.replication.graft, "STEP_BYTES", 700)
    patch(filewheel.replication.graft, "_WRITE_BYTES", 300)
    patch(filewheel.replication.graft, "_ROOM_BYTES", 600)
    patch(filewheel.replication.laps, "_SMALL_BYTES", 200)
    patch(filewheel.index, "RUN_RECORDS", 3)
    patch(filewheel.finder, "IDS_MAX", 12)
    patch(filewheel.finder, "_FEW", 1)
    patch(filewheel.keys, "LISTED_MAX", 4)
    patch(filewheel.keys, "LISTED_EACH_MAX", 3)
    for module in (
        filewheel.appender,
        filewheel.begun,
        filewheel.bell,
        filewheel.finder,
        filewheel.groupcommit,
        filewheel.keeper,
        filewheel.ledger,
        filewheel.settler,
        filewheel.tidy,
        filewheel.wheel,
    ):
        patch(module, "threading", ModelThreading)
    try:
        yield
    finally:
        for target, name, value in reversed(patches):
            setattr(target, name, value)
