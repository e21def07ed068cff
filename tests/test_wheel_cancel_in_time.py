"""A cancel says whether it was in time: what a keeper has begun is published, and either of the two sees the other."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from filewheel import Cancelled, DiskError, Keeper, MessageId, Wheel
from filewheel.disk import begun
from filewheel.disk.disk import SYSTEM, OsDisk
from filewheel.format import layout
from filewheel.laps.store import Store
from tests.support import FakeClock, FaultyDisk, spawn

STOPPED, BEGUN, MAYBE, NOT_FOUND = Cancelled


@pytest.fixture
def keeper(wheel_dir: Path) -> Iterator[Keeper]:
    with Keeper(wheel_dir, background=False) as opened:
        yield opened


def test_each_state_of_a_message_has_its_outcome(wheel: Wheel, keeper: Keeper) -> None:
    ids = wheel.enqueue_many([b"%d" % n for n in range(8)])
    assert wheel.cancel(ids[0]) is STOPPED  # not claimed
    keeper.claim(begun=False)
    assert wheel.cancel(ids[1]) is STOPPED  # claimed, and waits
    assert keeper.begin(ids[2]) == set()
    assert wheel.cancel(ids[2]) is BEGUN
    assert keeper.begin(ids[3]) == set()
    keeper.give_back(ids[3])
    assert wheel.cancel(ids[3]) is STOPPED
    keeper.ack(ids[4])
    assert wheel.cancel(ids[4]) is NOT_FOUND
    keeper.begin(ids[5])
    new = keeper.nack(ids[5], delay=60)
    assert new is not None
    assert (wheel.cancel(ids[5]), wheel.cancel(new)) == (NOT_FOUND, STOPPED)
    keeper.bury(ids[6])
    (dead,) = wheel.list(dead=True)
    assert wheel.cancel(dead.id) is STOPPED
    assert wheel.cancel(MessageId(bytes(15) + b"x")) is NOT_FOUND
    assert keeper.begin(ids[1]) == {ids[1]}
    keeper.begin(ids[7])
    assert wheel.cancel(ids[7]) is BEGUN


def test_what_is_claimed_without_a_word_about_its_begin_has_begun(wheel: Wheel, keeper: Keeper) -> None:
    ids = wheel.enqueue_many([b"a", b"b", b"c"])
    (message,) = keeper.claim(1)
    found = wheel.cancel_many([*ids, MessageId(bytes(15) + b"x")])
    assert found == set(ids)
    assert [found.outcome(i) for i in ids] == [BEGUN, STOPPED, STOPPED]
    assert found.outcome(MessageId(bytes(15) + b"x")) is NOT_FOUND
    assert not keeper.claim()
    assert keeper.nack(message) is None


def test_the_outcome_is_true_when_something_was_pending() -> None:
    assert [bool(outcome) for outcome in Cancelled] == [True, True, True, False]


def test_an_outcome_is_its_text_in_json_in_a_comparison_and_in_an_f_string() -> None:
    assert json.dumps([*Cancelled]) == '["stopped", "begun", "maybe begun", "not found"]'
    assert STOPPED == "stopped"
    assert f"{BEGUN}" == str(BEGUN) == "begun"


def test_a_key_and_many_ids_have_the_same_outcomes(wheel: Wheel, keeper: Keeper) -> None:
    ids = wheel.enqueue_many([b"x"] * 40)
    wheel.enqueue(b"keyed", key="k")
    wheel.enqueue(b"other", key="later", delay=60)
    batch = keeper.claim(begun=False)
    keeper.begin([m for m in batch if m.payload == b"keyed"] + [m for m in batch if m.id in ids[:20]])
    assert wheel.cancel(key="k") is BEGUN
    found = wheel.cancel_many(ids, keys=["later"])
    assert [found.outcome(i) for i in ids] == [BEGUN] * 20 + [STOPPED] * 20
    assert len(found) == 41


def test_without_a_keeper_and_after_one_everything_was_stopped_in_time(wheel: Wheel, wheel_dir: Path) -> None:
    ids = wheel.enqueue_many([b"a", b"b", b"c"])
    assert wheel.cancel(ids[0]) is STOPPED
    with Keeper(wheel_dir) as keeper:
        assert len(keeper.claim()) == 2
    assert wheel.cancel(ids[1]) is STOPPED
    with Keeper(wheel_dir) as keeper:  # which has begun nothing of what the one before had
        assert wheel.cancel(ids[2]) is STOPPED
        assert not keeper.claim()


def test_what_a_keeper_that_was_killed_had_begun_counts_as_stopped(wheel: Wheel, wheel_dir: Path) -> None:
    ids = wheel.enqueue_many([b"x", b"y"])
    child = spawn(
        """
        import os, sys, time
        from filewheel import Keeper
        keeper = Keeper(sys.argv[1])
        assert len(keeper.claim()) == 2
        if os.fork() == 0:
            print(os.getpid(), flush=True)  # only now it has closed what it inherited, the lock of the table too
        time.sleep(600)
        """,
        wheel_dir,
    )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert wheel.cancel(ids[0]) is BEGUN
        child.kill()
        child.wait()
        assert wheel.cancel(ids[1]) is STOPPED  # though a child of the dead keeper lives
    finally:
        os.kill(grandchild, signal.SIGKILL)
        child.stdout.close()


class At:
    """Disks of which the step with a number is the one at which something else comes in between, once."""

    def __init__(self) -> None:
        self._left = 0
        self._act: Callable[[], None] = lambda: None

    def __call__(self, kind: str, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()

    def disk(self, path: str) -> FaultyDisk:
        at = self

        class Disk(FaultyDisk):
            def pread(self, fd: int, size: int, offset: int) -> bytes:
                at("pread", "")
                return super().pread(fd, size, offset)

        return Disk(path, self)

    def during(self, step: int, outer: Callable[[], None], within: Callable[[], None]) -> bool:
        """Do one thing, and the other at a step of it; tell whether it had so many steps."""
        self._left, self._act = step, within
        try:
            outer()
            return self._left <= 0
        finally:
            self._left = 0


BEGINS: dict[str, Callable[[Keeper, MessageId], bool]] = {
    "a begin": lambda k, id_: id_ not in k.begin(id_),
    "a claim": lambda k, id_: id_ in k.claim(begun=True).ids,
    "a begin without waiting": lambda k, id_: k.may_begin(id_) or id_ not in k.begin(id_),
}


@pytest.mark.parametrize("way", BEGINS)
@pytest.mark.parametrize("inner", ["begin", "cancel"])
def test_wherever_a_cancel_and_a_begin_interrupt_each_other_nothing_that_was_called_stopped_begins(
    wheel_dir: Path, way: str, inner: str
) -> None:
    """Each step of one is a place for the whole of the other."""
    at = At()
    seen: set[tuple[Cancelled, bool]] = set()
    wheel_disk, keeper_disk = (OsDisk, at.disk) if inner == "cancel" else (at.disk, OsDisk)
    with (
        Wheel(wheel_dir, env=SYSTEM.using(disk=wheel_disk)) as wheel,
        Keeper(wheel_dir, background=False, env=SYSTEM.using(disk=keeper_disk)) as keeper,
    ):
        for step in range(1, 200):
            id_ = wheel.enqueue(b"x")
            if way != "a claim":
                assert id_ in keeper.claim(begun=False).ids
            outcomes: list[Cancelled] = []
            begins: list[bool] = []

            def begin() -> None:
                begins.append(BEGINS[way](keeper, id_))  # noqa: B023

            def cancel() -> None:
                outcomes.append(wheel.cancel(id_))  # noqa: B023

            if not at.during(step, *((begin, cancel) if inner == "cancel" else (cancel, begin))):
                break
            assert (outcomes, begins) != ([STOPPED], [True]), step
            assert outcomes[0] in (STOPPED, BEGUN)
            seen.add((outcomes[0], begins[0]))
            if keeper.holds(id_):
                keeper.ack(id_)
    assert step > 3
    assert (STOPPED, False) in seen
    assert (BEGUN, True) in seen or inner == "cancel"


@pytest.mark.parametrize("others", [1, 3000])
def test_a_message_that_begins_and_ends_while_it_is_cancelled_is_not_called_stopped(
    wheel_dir: Path, others: int
) -> None:
    """What begins after it must not have taken its slot by the time that the cancel reads the table."""
    at = At()
    seen = set()
    with (
        Wheel(wheel_dir, env=SYSTEM.using(disk=at.disk)) as wheel,
        Wheel(wheel_dir, sync="never") as more,
        Keeper(wheel_dir, background=False) as keeper,
    ):
        for step in range(1, 200):
            id_ = wheel.enqueue(b"x")
            assert id_ in keeper.claim(begun=False).ids
            outcomes: list[Cancelled] = []
            begins: list[bool] = []

            def run() -> None:
                begins.append(not keeper.begin(id_))  # noqa: B023
                if begins[0]:  # noqa: B023
                    keeper.ack(id_)  # noqa: B023
                for _ in range(3):
                    more.enqueue_many([b"other"] * others)
                    keeper.ack(keeper.claim(others))

            if not at.during(step, lambda: outcomes.append(wheel.cancel(id_)), run):  # noqa: B023
                break
            assert (outcomes, begins) != ([STOPPED], [True]), step
            seen.add(outcomes[0])
    assert (MAYBE in seen) == (others > 1)


def test_what_is_in_hand_for_long_stays_published_while_others_come_and_go(wheel: Wheel, keeper: Keeper) -> None:
    first = wheel.enqueue(b"long")
    assert keeper.claim().ids == [first]
    for n in range(40):
        wheel.enqueue_many([b"x"] * (1 + n * 37 % 400), sync="never")
        keeper.ack(keeper.claim())
    assert os.path.getsize(os.path.join(wheel.path, layout.BEGUN)) < 64 << 10
    assert wheel.cancel(first) is BEGUN


def test_a_slot_is_written_again_only_two_sweeps_after_its_message_was_settled(wheel: Wheel) -> None:
    in_hand: set[bytes] = set()
    table = begun.Begun(wheel._dir.disk, in_hand, b"A" * begun.LIFE_BYTES)
    first = [b"first%011d" % n for n in range(begun._SLOTS_MIN)]
    in_hand.update(first)
    table.publish(first)
    in_hand.clear()
    for sweep in range(3):
        assert (first[0] in table._ids) == (sweep < 2)
        some = [b"%d-%014d" % (sweep, n) for n in range(len(table._free) + 1)]
        table.publish(some)
    table.close()


def test_while_the_table_cannot_be_written_a_cancel_says_maybe_and_knows_again_later(wheel_dir: Path) -> None:
    trouble: set[str] = set()

    def fail(kind: str, name: str) -> None:
        if name == layout.BEGUN and kind in trouble:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, env=SYSTEM.using(disk=lambda p: FaultyDisk(p, fail))) as keeper:
        ids = wheel.enqueue_many([b"%d" % n for n in range(6)])
        keeper.claim(begun=False)
        assert keeper.begin(ids[5]) == set()
        trouble.update(["pwrite", "open"])
        assert keeper.begin(ids[0]) == set()
        assert wheel.cancel(ids[1]) is MAYBE
        assert wheel.cancel(ids[0]) is MAYBE
        assert keeper.begin(ids[1]) == {ids[1]}
        assert keeper.begin(ids[2]) == set()
        trouble.clear()
        assert keeper.begin(ids[3]) == set()
        assert [wheel.cancel(i) for i in ids[2:]] == [BEGUN, BEGUN, STOPPED, BEGUN]
        assert keeper.begin(ids[4]) == {ids[4]}


DONE: dict[str, Callable[[Wheel, list[MessageId]], object]] = {
    "cancel": lambda wheel, ids: [wheel.cancel(ids[0])],
    "cancel a key": lambda wheel, ids: [wheel.cancel(key="k")],
    "cancel_many": lambda wheel, ids: list(wheel.cancel_many(ids[:2], keys=["k"]).outcomes.values()),
    "clear": lambda wheel, ids: wheel.clear(topic="t"),
    "unschedule": lambda wheel, ids: wheel.unschedule("s"),
    "schedule": lambda wheel, ids: wheel.schedule("s", "every 2h", b"other"),
    "reschedule": lambda wheel, ids: wheel.reschedule(ids[0], delay=90),
    "reschedule a key": lambda wheel, ids: wheel.reschedule(key="k", delay=90),
    "update": lambda wheel, ids: wheel.update(key="k", payload=b"other"),
    "replace": lambda wheel, ids: wheel.enqueue(b"other", delay=90, key="k", on_conflict="replace"),
    "revive": lambda wheel, ids: wheel.revive(next(wheel.dead()).id, delay=90).failed,
}


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES, errno.ENOSPC])
@pytest.mark.parametrize("kind", ["open", "pwrite"])
@pytest.mark.parametrize("what", DONE)
def test_a_change_whose_mark_fails_is_done_and_raises_nothing(
    wheel_dir: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, what: str, kind: str, code: int
) -> None:
    trouble = False

    def fail(call: str, name: str) -> None:
        if trouble and (call, name) == (kind, layout.BEGUN):
            raise OSError(code, os.strerror(code))

    with Wheel(wheel_dir, clock=clock) as other, Keeper(wheel_dir, clock=clock) as keeper:
        other.enqueue(b"dead")
        keeper.bury(keeper.claim()[0], reason="bad")
    env = SYSTEM.using(clock=clock, disk=lambda p: FaultyDisk(p, fail))
    with Wheel(wheel_dir, env=env) as wheel:
        ids = list(wheel.enqueue_many([b"a", b"b"], delay=60, topic="t"))
        wheel.enqueue(b"c", delay=60, key="k")
        wheel.schedule("s", "every 1h", b"s")
        wheel.cancel(wheel.enqueue(b"first", delay=60))
        before = sorted(m.id for m in wheel.list())
        trouble = True
        answer = DONE[what](wheel, ids)
        trouble = False
        after = sorted(m.id for m in wheel.list())
        assert before != after
        if isinstance(answer, MessageId):
            assert answer in after
        if "cancel" in what and (kind, code) != ("open", errno.ENOSPC):  # then there is no file that a keeper trusts
            assert set(answer) == {MAYBE}  # type: ignore[call-overload]
        if (kind, code) != ("open", errno.ENOSPC):
            assert "a keeper sees the change with its next claim" in caplog.text


@pytest.mark.parametrize("kind", ["open", "pwrite"])
def test_a_keeper_that_publishes_nothing_is_one_of_which_a_cancel_cannot_tell(wheel_dir: Path, kind: str) -> None:
    """A full disk from the start, and a keeper of an older version, of whose file only the mark is there."""

    def fail(what: str, name: str) -> None:
        if (what, name) == (kind, layout.BEGUN):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (wheel_dir / layout.BEGUN).write_bytes(bytes(begun.MARK_BYTES))
    with Wheel(wheel_dir) as wheel:
        ids = wheel.enqueue_many([b"a", b"b"])
        with Keeper(wheel_dir, env=SYSTEM.using(disk=lambda p: FaultyDisk(p, fail))) as keeper:
            assert wheel.cancel(ids[0]) is MAYBE
            (message,) = keeper.claim()
            assert wheel.cancel(message.id) is MAYBE
        assert wheel.cancel(wheel.enqueue(b"c")) is STOPPED


def test_where_the_table_cannot_be_read_a_cancel_is_done_and_says_maybe(wheel_dir: Path, keeper: Keeper) -> None:
    trouble: set[str] = set()

    def fail(kind: str, name: str) -> None:
        if kind in trouble and name == layout.BEGUN:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with Wheel(wheel_dir, env=SYSTEM.using(disk=lambda p: FaultyDisk(p, fail))) as wheel:
        wheel.cancel(wheel.enqueue(b"first"))
        id_ = wheel.enqueue(b"x", delay=60)
        mark = wheel._writer().mark_drops

        def told() -> None:
            mark()
            trouble.add("open")

        wheel._writer().mark_drops = told  # type: ignore[method-assign]
        assert wheel.cancel(id_) is MAYBE
        assert wheel.get(id_) is None


def test_nothing_begins_while_the_look_that_would_find_its_cancel_is_under_way(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        ids = wheel.enqueue_many([b"a", b"b"])
        keeper.claim(begun=False)
        assert keeper.may_begin(ids[0])
        wheel.cancel(ids[1])
        ingest, asked = Store.ingest, []

        def slow(self: Store, **options: bool) -> None:
            asked.append(keeper.may_begin(ids[1]))  # as another thread would, before this look has read anything
            ingest(self, **options)

        monkeypatch.setattr(Store, "ingest", slow)
        assert keeper.begin(ids[1]) == {ids[1]}
        assert asked == [False]


def test_a_look_that_failed_has_begun_nothing_and_the_next_claim_has_the_messages(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir) as wheel, Keeper(wheel_dir, background=False) as keeper:
        ids = wheel.enqueue_many([b"a", b"b"])
        ingest, calls = Store.ingest, []

        def failing(self: Store, **options: bool) -> None:
            calls.append(1)
            if len(calls) == 1:
                ingest(self, **options)
                wheel.cancel(ids[1])  # so that the claim looks again
            elif len(calls) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            else:
                ingest(self, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "ingest", failing)
            with pytest.raises(DiskError):
                keeper.claim()
            assert wheel.cancel(wheel.enqueue(b"c")) is STOPPED
        assert keeper.claim().ids == [ids[0]]
