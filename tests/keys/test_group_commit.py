"""Threads that enqueue messages with keys at once share a commit, and each is told what came of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from filewheel import Damaged, FilewheelError, KeyHeld, MessageId, Reentered, Wheel
from filewheel.keys.index import LockedKeys
from tests.support import eventually


class Gate:
    """Stops the first call that is about to enter keys in the index, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered: list[list[str]] = []
        """The keys of each entry into the index."""
        self.reached, self.opened = threading.Event(), threading.Event()
        self.fail: Callable[[list[str]], BaseException | None] = lambda keys: None
        real = LockedKeys.note

        def note(hold: LockedKeys, pairs, own=None, **how: bool) -> None:  # type: ignore[no-untyped-def]
            pairs = list(pairs)
            self.entered.append([key for key, _ in pairs])
            if len(self.entered) == 1:
                self.reached.set()
                assert self.opened.wait(60)
            error = self.fail(self.entered[-1])
            if error is not None:
                raise error
            real(hold, pairs, own, **how)

        monkeypatch.setattr(LockedKeys, "note", note)

    def at_once(self, wheel: Wheel, *calls: Callable[[], object]) -> list[Future[object]]:
        """Run the first call alone until it enters its key, then have the others wait in their order; open."""
        with ThreadPoolExecutor(len(calls)) as pool:
            futures = [pool.submit(calls[0])]
            assert self.reached.wait(60)
            for n, call in enumerate(calls[1:], start=1):
                futures.append(pool.submit(call))
                eventually(lambda n=n: len(wheel._group._waiting) == n)
            self.opened.set()
        return futures


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def enqueuing(wheel: Wheel, key: str, on_conflict: str = "reject") -> Callable[[], MessageId]:
    return lambda: wheel.enqueue(key.encode(), delay=60, key=key, on_conflict=on_conflict)  # type: ignore[arg-type]


def test_threads_that_enqueue_with_keys_while_another_writes_are_written_together(wheel: Wheel, gate: Gate) -> None:
    done = gate.at_once(wheel, *[enqueuing(wheel, f"k{n}") for n in range(8)])
    assert gate.entered == [["k0"], [f"k{n}" for n in range(1, 8)]]
    assert wheel._writer().appender.number == 2
    ids = [future.result() for future in done]
    assert [m.id if (m := wheel.get(key=f"k{n}")) else None for n in range(8)] == ids


def test_of_threads_that_want_one_key_each_is_told_its_own_outcome(wheel: Wheel, gate: Gate) -> None:
    done = gate.at_once(
        wheel,
        enqueuing(wheel, "other"),
        enqueuing(wheel, "one"),
        enqueuing(wheel, "one"),
        enqueuing(wheel, "one", "keep"),
        enqueuing(wheel, "one", "replace"),
    )
    first = done[1].result()
    refused = done[2].exception()
    assert isinstance(refused, KeyHeld)
    assert refused.id == first
    assert done[3].result() == first
    assert {m.id for m in wheel.list()} == {done[0].result(), done[4].result()}


def test_a_batch_that_is_all_or_none_is_not_mixed_with_what_other_threads_enqueue(wheel: Wheel, gate: Gate) -> None:
    done = gate.at_once(
        wheel,
        enqueuing(wheel, "first"),
        lambda: wheel.enqueue_many([b"a", b"b"], delay=60, keys=["a", "first"]),
        enqueuing(wheel, "single"),
    )
    refused = done[1].exception()
    assert isinstance(refused, KeyHeld)
    assert refused.held == {"first": done[0].result()}
    assert {m.id for m in wheel.list()} == {done[0].result(), done[2].result()}


def test_an_error_that_one_key_brings_is_told_to_its_thread_and_the_others_are_enqueued(
    wheel: Wheel, gate: Gate
) -> None:
    gate.fail = lambda keys: Damaged("too long") if "bad" in keys else None
    done = gate.at_once(wheel, *[enqueuing(wheel, key) for key in ("first", "one", "bad", "two")])
    assert isinstance(done[2].exception(), Damaged)
    assert {m.id for m in wheel.list()} == {done[n].result() for n in (0, 1, 3)}


def test_when_the_thread_that_writes_for_others_is_interrupted_they_are_told_and_the_next_writes(
    wheel: Wheel, gate: Gate
) -> None:
    gate.fail = lambda keys: KeyboardInterrupt() if keys == ["one", "two"] else None
    done = gate.at_once(wheel, *[enqueuing(wheel, key) for key in ("first", "one", "two")])
    errors = {type(future.exception()) for future in done[1:]}
    assert errors == {KeyboardInterrupt, FilewheelError}
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(enqueuing(wheel, "one")).result(60) in {m.id for m in wheel.list()}


def test_a_call_that_a_destructor_makes_inside_of_another_of_its_thread_is_refused(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = []
    real = LockedKeys.note

    def note(hold: LockedKeys, pairs, own=None, **how: bool) -> None:  # type: ignore[no-untyped-def]
        try:
            wheel.enqueue(b"inner", key="inner")
        except Reentered as exc:
            errors.append(exc)
        real(hold, pairs, own, **how)

    monkeypatch.setattr(LockedKeys, "note", note)
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(enqueuing(wheel, "outer")).result(60)
    assert len(errors) == 1
    assert [m.id for m in wheel.list()] == [made]


def test_threads_with_keys_of_their_own_and_with_one_in_common_leave_one_message_for_each_key(wheel: Wheel) -> None:
    def work(thread: int) -> None:
        for n in range(20):
            wheel.enqueue(b"own", delay=60, key=f"{thread}-{n}")
            wheel.enqueue(b"common", delay=60, key=f"common-{n % 3}", on_conflict="replace")
            wheel.enqueue_many([b"m"] * 2, delay=60, keys=[f"{thread}-{n}-a", f"{thread}-{n}-b"])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    payloads = [m.payload for m in wheel.list(limit=1000)]
    assert (payloads.count(b"own"), payloads.count(b"common"), payloads.count(b"m")) == (120, 3, 240)
