"""A mirror that comes into the set while handles are open: from `current` on it has what their calls returned from."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from filewheel import DiskError, Fenced, Keeper, TooFewCopies, Wheel
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.message import US_PER_S
from filewheel.roster.fence import LOOK_US
from filewheel.roster.roster import Mode
from filewheel.sets.promote import promote
from tests.sets.support import Pair, fire
from tests.support import FaultyDisk

LONG_S = 500.0


class Stop:
    """Stops a handle once, before a call of its disk; `meanwhile` is what others do until it goes on."""

    def __init__(self, at: int, meanwhile: Callable[[], object]) -> None:
        self.left = at
        self.meanwhile = meanwhile
        self.is_over = False

    def disk(self, path: str) -> FaultyDisk:
        """Open a disk of that handle."""
        return FaultyDisk(path, self._call)

    def _call(self, kind: str, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.is_over = True
            self.meanwhile()


def a_pair(where: Path, n: int, mode: Mode) -> Pair:
    """Make the n-th pair of a test."""
    path = where / str(n)
    path.mkdir()
    return Pair(path, mode=mode)


def come_in(pair: Pair) -> None:
    """Serve the mirror until it counts as in step, and no moment longer."""
    for _ in range(200):
        if pair.member().state == "current":
            return
        pair.tick()
    raise AssertionError(f"the mirror is {pair.member().state}")


def lose_primary(pair: Pair) -> Keeper:
    """Lose the primary and the replicator, and promote the mirror; return its keeper."""
    pair.kill()
    pair.primary.rename(pair.primary.with_name("lost"))
    promote(str(pair.backup), env=SYSTEM.using(clock=pair.clock), wait_s=0)
    return Keeper(pair.backup, wait=False, background=False, clock=pair.clock)


def enqueue(pair: Pair, count: int, delay: float = 0) -> list[bytes]:
    """Enqueue messages by a producer of their own."""
    with pair.wheel() as wheel:
        return [bytes(i) for i in wheel.enqueue_many([b"%d" % n for n in range(count)], delay=delay)]


@pytest.mark.parametrize("pair", ["mirror"], indirect=True)
def test_what_a_keeper_that_does_not_claim_acknowledges_is_in_a_mirror_that_became_current(pair: Pair) -> None:
    enqueue(pair, 3)
    with pair.keeper() as keeper:
        first, second, third = keeper.claim()
        pair.tick()
        keeper.ack(first)  # the mirror is joining
        come_in(pair)
        keeper.ack(second)
        assert pair.pending(pair.backup) == {bytes(third.id)}
        with lose_primary(pair) as successor:
            assert [bytes(m.id) for m in successor.claim()] == [bytes(third.id)]


@pytest.mark.parametrize("pair", ["mirror"], indirect=True)
def test_what_it_acknowledged_before_it_heard_of_the_mirror_is_there_when_the_mirror_is_current(pair: Pair) -> None:
    ids = enqueue(pair, 40)
    with pair.keeper() as keeper:
        claimed = list(keeper.claim())
        acked = 0
        while pair.member().state != "current":
            pair.tick()
            if acked < len(ids):
                keeper.ack(claimed[acked])
                acked += 1
        assert acked > 12  # also while it was matching
        with lose_primary(pair) as successor:
            assert [bytes(m.id) for m in successor.claim()] == ids[acked:]


def _ack(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    keeper.ack(ids[0])
    return set(ids[1:])


def _ack_batch(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    keeper.ack(ids[:2], sync="always")
    return set(ids[2:])


def _nack(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    new = keeper.nack(ids[0], delay=LONG_S)
    assert new is not None
    return {*ids[1:], bytes(new)}


def _cancel(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    assert wheel.cancel(ids[0])
    return set(ids[1:])


def _reschedule(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    return {*ids[1:], bytes(wheel.reschedule(ids[0], delay=LONG_S))}


def _enqueue(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    return {*ids, bytes(wheel.enqueue(b"one", delay=LONG_S, sync="always"))}


def _enqueue_many(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    return {*ids, *(bytes(i) for i in wheel.enqueue_many([b"a", b"b"], delay=LONG_S))}


def _enqueue_keyed(pair: Pair, keeper: Keeper, wheel: Wheel, ids: list[bytes]) -> set[bytes]:
    return {*ids, bytes(wheel.enqueue(b"keyed", delay=LONG_S, key="k"))}


CALLS = [_ack_batch, _nack, _cancel, _reschedule, _enqueue_many, _enqueue_keyed]


@pytest.mark.parametrize(
    ("call", "is_new"), [(_ack, True), (_ack, False), (_enqueue, True), (_enqueue, False), *((c, False) for c in CALLS)]
)
def test_wherever_a_call_was_stopped_while_a_mirror_came_in_what_it_did_is_in_the_mirror_when_it_returns(
    tmp_path: Path, call: Callable[..., set[bytes]], is_new: bool
) -> None:
    at = 0
    is_over = True
    while is_over:
        at += 1
        pair = a_pair(tmp_path, at, "mirror")
        stop = Stop(0, lambda pair=pair: come_in(pair))  # type: ignore[misc]
        ids = enqueue(pair, 3)
        with (
            Keeper(
                pair.primary, wait=False, background=False, clock=pair.clock, env=SYSTEM.using(disk=stop.disk)
            ) as keeper,
            Wheel(pair.primary, sync="never", clock=pair.clock, env=SYSTEM.using(disk=stop.disk)) as wheel,
        ):
            assert len(keeper.claim()) == 3
            if not is_new:  # its journal has a segment already, and its look is a moment old
                ids += [bytes(i) for i in wheel.enqueue_many([b"x"], delay=LONG_S)]
            stop.left = at
            expected = call(pair, keeper, wheel, ids)
            is_over = stop.is_over
            if not is_over:
                come_in(pair)
            assert pair.pending(pair.backup) == expected, (at, pair.differences())
            pair.assert_equal()
        pair.close()
        pair.verify()
    assert at > 2


@pytest.mark.parametrize("call", [_cancel, _enqueue])
def test_a_call_that_was_stopped_through_a_promotion_returns_only_if_what_it_did_is_in_the_new_primary(
    tmp_path: Path, call: Callable[..., set[bytes]]
) -> None:
    at = refused = 0
    is_over = True
    while is_over:
        at += 1
        pair = a_pair(tmp_path, at, "ship")

        def go(pair: Pair = pair) -> None:
            promote(str(pair.backup), env=SYSTEM.using(clock=pair.clock), wait_s=0)
            pair.clock.advance(1)  # its producers are given a quarter of a second

        stop = Stop(0, go)
        with Wheel(pair.primary, sync="never", clock=pair.clock, env=SYSTEM.using(disk=stop.disk)) as wheel:
            ids = [bytes(i) for i in wheel.enqueue_many([b"x"] * 3, delay=LONG_S)]
            pair.settle(1)
            pair.close()
            stop.left = at
            try:
                expected = call(pair, None, wheel, ids)
            except Fenced:  # it may be there
                expected = pair.pending(pair.backup)
                assert expected >= set(ids[1:])
                refused += 1
            is_over = stop.is_over
        if is_over:
            assert pair.pending(pair.backup) == expected, at
        pair.verify()
    assert at > 2
    assert refused


def test_an_enqueue_that_a_mirror_which_came_in_meanwhile_does_not_take_is_not_confirmed(tmp_path: Path) -> None:
    pair = Pair(tmp_path, mode="mirror")
    stop = Stop(0, lambda: come_in(pair))

    def fail(kind: str, name: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def disk(path: str) -> OsDisk:
        return FaultyDisk(path, fail) if path == str(pair.backup) else stop.disk(path)

    with Wheel(pair.primary, sync="always", clock=pair.clock, env=SYSTEM.using(disk=disk)) as wheel:
        wheel.enqueue(b"first", delay=LONG_S)
        stop.left = 1
        with pytest.raises(TooFewCopies, match="it was written, and is not confirmed"):
            wheel.enqueue(b"second", delay=LONG_S)
        with pytest.raises(TooFewCopies, match="nothing of this call was written"):
            wheel.enqueue(b"third", delay=LONG_S)
    pair.settle(1)
    pair.assert_equal()
    pair.close()
    pair.verify()


def test_a_mirror_that_cannot_be_opened_by_a_keeper_that_acknowledges_keeps_nothing_from_being_acknowledged(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, mode="mirror")
    enqueue(pair, 2)

    def fail(kind: str, name: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def disk(path: str) -> OsDisk:
        return FaultyDisk(path, fail) if path == str(pair.backup) else OsDisk(path)

    with Keeper(pair.primary, wait=False, background=False, clock=pair.clock, env=SYSTEM.using(disk=disk)) as keeper:
        claimed = list(keeper.claim())
        come_in(pair)
        assert keeper.ack(claimed[:1]) == 1
        assert pair.pending(pair.primary) == {bytes(claimed[1].id)}
        pair.settle(1)  # the link writes it for the keeper
        assert pair.pending(pair.backup) == {bytes(claimed[1].id)}
        assert fire(pair, keeper) == []
    pair.close()
    pair.verify()


def test_a_keeper_whose_roster_cannot_be_looked_at_acknowledges_and_claims_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path, mode="mirror")
    enqueue(pair, 2)
    is_broken = False

    def fail(kind: str, name: str) -> None:
        if is_broken and name == "roster.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    with Keeper(
        pair.primary,
        wait=False,
        background=False,
        clock=pair.clock,
        env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)),
    ) as keeper:
        claimed = keeper.claim()
        pair.clock.advance(2 * LOOK_US / US_PER_S)
        is_broken = True
        assert keeper.ack(claimed) == 2
        with pytest.raises(DiskError, match="roster"):
            keeper.claim()
        is_broken = False
        assert not keeper.claim()
    assert pair.pending(pair.primary) == set()
    pair.verify()
