"""A deal reads the journals without the lock, while the keeper goes on to read what they gain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.disk.checkpoint import Position
from filewheel.format.frame import Frame
from filewheel.journal.tail import Tail
from filewheel.laps import cut
from filewheel.laps.deal import Deal
from filewheel.laps.store import Store
from tests.support import FakeClock


@pytest.mark.parametrize("delay", [0, 3600], ids=["due", "far"])
def test_what_a_writer_wrote_and_ended_with_while_a_deal_read_its_journal_is_not_removed_with_it(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, delay: int
) -> None:
    clock = FakeClock()
    frames_of = cut.frames_of
    with Keeper(wheel_dir, clock=clock, background=False) as keeper, Wheel(wheel_dir, clock=clock) as looker:
        producer = Wheel(wheel_dir, clock=clock)
        ids = [producer.enqueue(b"before", delay=3600)]

        def beside(store: Store, tail: Tail, start: Position, limit: Position) -> Iterator[tuple[Position, Frame]]:
            yield from frames_of(store, tail, start, limit)
            if len(ids) == 1:
                ids.append(producer.enqueue(b"meanwhile", delay=delay))
                producer.close()
                store.ingest(test_locks=True)  # as a claim does

        monkeypatch.setattr(cut, "frames_of", beside)
        deal = Deal(keeper._store, spread=False).run()
        assert deal.left_bytes
        assert {m.id for m in looker.list()} == set(ids)
        assert not Deal(keeper._store, spread=False).run().left_bytes
        assert {m.id for m in looker.list()} == set(ids)
    assert not list((wheel_dir / "journal").iterdir())
