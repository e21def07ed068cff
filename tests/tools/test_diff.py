"""What two wheels do not have in common, also while they are in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from filewheel import Keeper, Wheel
from filewheel.tools.diff import Difference, differences, digests
from tests.support import FakeClock


@pytest.fixture
def pair(tmp_path: Path, clock: FakeClock) -> tuple[Wheel, Wheel]:
    """Two wheels that hold the same forty messages, one dealt into files and one in its journal."""
    first = Wheel.create(tmp_path / "a.wheel", clock=clock, slots=60)
    second = Wheel.create(tmp_path / "b.wheel", clock=clock, slots=3600)
    first.enqueue_many([b"%d" % n for n in range(40)], delay=[n * 20 for n in range(40)], topic="t")
    second.add(list(first.list()))
    with Keeper(first.path, clock=clock, background=False):
        pass
    return first, second


def between(pair: tuple[Wheel, Wheel]) -> list[Difference]:
    return list(differences(*pair))


def test_wheels_with_the_same_messages_do_not_differ_however_they_lie(pair: tuple[Wheel, Wheel]) -> None:
    assert between(pair) == []
    with pair[0].snapshot() as ours, pair[1].snapshot() as theirs:
        assert list(digests(ours)) == list(digests(theirs))


def test_what_only_one_of_them_has_is_named(pair: tuple[Wheel, Wheel]) -> None:
    _, second = pair
    lost = next(second.list(limit=1)).id
    second.cancel(lost)
    extra = second.enqueue(b"extra", delay=300)
    assert between(pair) == [Difference(lost, "only in first"), Difference(extra, "only in second")]


def test_a_message_that_is_not_the_same_in_both_is_named(pair: tuple[Wheel, Wheel]) -> None:
    first, second = pair
    message = first.peek(7)[-1]
    second.cancel(message.id)
    message.payload = b"changed"
    changed = Wheel.create(Path(second.path).parent / "c.wheel")
    changed.add([*[m for m in first.list() if m.id != message.id], message])
    assert between((first, changed)) == [Difference(message.id, "not the same")]
    changed.close()


def test_dead_letters_are_compared_too(pair: tuple[Wheel, Wheel], clock: FakeClock) -> None:
    first, _ = pair
    clock.advance(1)
    with Keeper(first.path, clock=clock, background=False) as keeper:
        (message,) = keeper.claim(1)
        dead = keeper.bury(message, reason="no")
    assert [(d.id, d.kind) for d in between(pair)] == [(message.id, "only in second"), (dead, "only in first")]


def test_what_has_arrived_when_it_is_looked_at_again_is_no_difference(
    pair: tuple[Wheel, Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    first.enqueue(b"on its way", delay=100)
    found = differences(first, second)
    monkeypatch.setattr("filewheel.tools.diff._differences_in", arriving(first, second))
    assert list(found) == []


def arriving(first: Wheel, second: Wheel):  # type: ignore[no-untyped-def]
    """Bring the second wheel up to date just after the first look."""
    from filewheel.tools import diff

    look = diff._differences_in

    def look_and_copy(*args: object) -> list[Difference]:
        found = look(*args)  # type: ignore[arg-type]
        assert found
        second.add(list(first.list()))
        return found

    return look_and_copy
