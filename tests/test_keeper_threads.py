"""A keeper that several threads use at once: claiming, settling, waiting and closing, with and without unique keys."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from filewheel import Closed, Keeper, NotClaimed, Settlement, Wheel
from filewheel.disk import locks
from filewheel.firing.reserve import Reserve
from filewheel.format import layout
from filewheel.keys.unique import holding
from filewheel.message import US_PER_S
from tests.support import FakeClock, eventually

KEYED = 120


class Threads:
    """Threads of which the test hears what they raised."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.raised: list[BaseException] = []

    def go(self, act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except BaseException as exc:
                self.raised.append(exc)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def end(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads()
    yield made
    made.end()
    assert not made.raised, made.raised


def before_a_key_is_entered(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have something done whenever this thread, or another that settles, is about to lock the key of a settlement."""
    take_keys = locks.take_keys
    acting = threading.local()

    def take(held: locks.HeldLocks, hashes: Iterable[bytes], wait_s: float) -> frozenset[int]:
        if not getattr(acting, "is_so", False):
            acting.is_so = True
            act()
            acting.is_so = False
        return take_keys(held, hashes, wait_s)

    monkeypatch.setattr(locks, "take_keys", take)


def test_a_claim_beside_a_retry_that_enters_its_key_leaves_that_retry_alone(
    wheel_dir: Path, keeper: Keeper, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        for i in range(3):
            wheel.enqueue(b"%d" % i, key=f"k{i}")
        batch = keeper.claim()
        found: list[int] = []

        def claim() -> None:
            thread = threading.Thread(target=lambda: found.append(len(keeper.claim())))
            thread.start()
            thread.join(120)

        before_a_key_is_entered(monkeypatch, claim)
        moved_to = keeper.settle([Settlement(m.id, "retried", clock.wall_us + US_PER_S) for m in batch])
        assert found == [0]
        assert [wheel.get(key=f"k{i}").id for i in range(3)] == moved_to  # type: ignore[union-attr]


def test_a_retry_of_what_is_cancelled_while_it_enters_its_key_says_so_though_another_thread_claims(
    wheel_dir: Path, keeper: Keeper, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        id_ = wheel.enqueue(b"x", key="k")
        keeper.claim()

        def cancel() -> None:
            assert wheel.cancel(id_)
            thread = threading.Thread(target=keeper.claim)
            thread.start()
            thread.join(120)

        before_a_key_is_entered(monkeypatch, cancel)
        assert keeper.nack(id_, delay=1) is None
        assert wheel.get(key="k") is None


def test_a_close_waits_for_a_retry_that_another_thread_writes(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", key="k")
        (message,) = keeper.claim()
        entered, go_on = threading.Event(), threading.Event()

        def linger() -> None:
            entered.set()
            assert go_on.wait(120)

        before_a_key_is_entered(monkeypatch, linger)
        moved_to: list[object] = []
        threads.go(lambda: moved_to.append(keeper.nack(message, delay=1)))
        assert entered.wait(120)
        closing = threads.go(keeper.close)
        assert eventually(lambda: keeper._settler._tried._gates or not closing.is_alive())
        go_on.set()
        closing.join(120)
        threads.end()
        held = wheel.get(key="k")
        assert held is not None
        assert [held.id] == moved_to


class Late:
    """A lock before which something is done, once."""

    def __init__(self, lock: threading.RLock, act: Callable[[], object]) -> None:  # type: ignore[valid-type]
        self._lock = lock
        self._acts = [act]

    def __enter__(self) -> None:
        if self._acts:
            self._acts.pop()()
        self._lock.acquire()  # type: ignore[attr-defined]

    def __exit__(self, *raised: object) -> None:
        self._lock.release()  # type: ignore[attr-defined]


def test_what_another_thread_acknowledges_just_before_it_is_put_back_is_not_claimed_any_more(
    wheel_dir: Path, keeper: Keeper, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x")
        (message,) = keeper.claim()
        late = Late(keeper._settler._lock, lambda: keeper.ack(message))
        monkeypatch.setattr(keeper._settler, "_lock", late)
        with pytest.raises(NotClaimed):
            keeper.nack(message)
        assert wheel.stats().pending == 0


class ParsedEntries:
    """A lock that says when somebody comes for it."""

    def __init__(self, lock: object, came: Callable[[], None]) -> None:
        self._lock = lock
        self._came = came

    def __enter__(self) -> None:
        self._came()
        self._lock.acquire()  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        self._lock.release()  # type: ignore[attr-defined]


def test_what_two_threads_put_back_at_once_is_written_when_both_calls_have_returned(
    wheel_dir: Path, keeper: Keeper, clock: FakeClock, threads: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue_many([b"x"] * (layout.ID_BUCKETS + 1))
        batch = list(keeper.claim())
        one, other = batch[0], batch[-1]
        assert locks.bucket_of(one.id) == locks.bucket_of(other.id)
        first, has_lock, other_came = threading.current_thread(), threading.Event(), threading.Event()
        take_ids = locks.take_ids

        def taking(held: locks.HeldLocks, ids: Iterable[bytes], wait_s: float) -> frozenset[int]:
            busy = take_ids(held, ids, wait_s)
            if threading.current_thread() is first:
                has_lock.set()
                assert other_came.wait(120)
            else:
                other_came.set()
            return busy

        def came() -> None:
            if threading.current_thread() is not first:
                other_came.set()

        def put_back() -> None:
            assert has_lock.wait(120)
            assert keeper.nack(other, delay=60) is not None

        monkeypatch.setattr(locks, "take_ids", taking)
        monkeypatch.setattr(keeper._settler, "_moving", ParsedEntries(keeper._settler._moving, came))
        thread = threads.go(put_back)
        assert keeper.nack(one, delay=60) is not None
        thread.join(120)
        assert {m.root for m in wheel.list() if m.root} == {one.id, other.id}


def test_a_keeper_that_cannot_write_what_is_left_when_it_closes_has_closed_all_the_same(
    wheel_dir: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(wheel_dir, clock=clock, background=False)
    with Wheel(wheel_dir, clock=clock) as wheel:
        wheel.enqueue(b"x", key="k")
        (message,) = keeper.claim()
        with holding(wheel._keys, ["k"]):
            keeper.nack(message)  # another is busy with its key: it is left for later

        def fails(self: Reserve, act: Callable[[], None]) -> None:
            raise RuntimeError("odd")

        with monkeypatch.context() as patched:
            patched.setattr(Reserve, "spend", fails)
            with pytest.raises(RuntimeError):
                keeper.close()
        with pytest.raises(Closed):
            keeper.claim()
        with Keeper(wheel_dir, wait=False, clock=clock, background=False) as another:
            assert [m.payload for m in another.claim()] == [b"x"]


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "keyed"])
def test_workers_put_back_what_one_thread_claims_until_another_closes_and_nothing_is_lost(
    wheel_dir: Path, threads: Threads, keyed: bool
) -> None:
    keeper = Keeper(wheel_dir)
    with Wheel(wheel_dir, sync="never") as wheel:
        for i in range(KEYED):
            wheel.enqueue(b"%d" % i, key=f"k{i}" if keyed else None)
        done = threading.Semaphore(0)

        def work() -> None:
            chance = random.Random(1)
            for batch in keeper.batches(limit=8):
                for message in batch:
                    try:
                        keeper.nack(message, delay=chance.choice((0, 0.001)))
                    except Closed:
                        return
                    done.release()

        for _ in range(4):
            threads.go(work)
        for _ in range(KEYED * 4):
            assert done.acquire(timeout=120)
        for _ in range(2):
            threads.go(keeper.close)
        threads.end()
        assert sorted(int(m.payload) for m in wheel.list()) == list(range(KEYED))
    with Keeper(wheel_dir, wait=False) as another:
        assert another.ack(another.claim()) == KEYED


def test_the_pipe_of_hints_stays_open_until_the_last_thread_has_done_waiting_at_it(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, threads: Threads
) -> None:
    keeper = Keeper(wheel_dir, background=False)
    wait_hint = keeper._disk.wait_hint
    pipes: list[int] = []
    sleeping = threading.Event()

    def waiting(fd: int | None, timeout_s: float) -> bool:
        assert fd is not None
        pipes.append(fd)
        sleeping.set()
        assert eventually(lambda: keeper._hints._fd is None)  # closing has come as far as it can
        closing.join(120)
        return wait_hint(fd, timeout_s)

    monkeypatch.setattr(keeper._disk, "wait_hint", waiting)
    threads.go(lambda: keeper.wait(due=False))
    assert sleeping.wait(120)
    closing = threads.go(keeper.close)
    threads.end()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(pipes[0])
    with pytest.raises(Closed):
        keeper.wait()


def test_a_loop_over_batches_ends_quietly_when_another_thread_closes_before_it_sleeps(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Keeper(wheel_dir, background=False)
    wait = keeper.wait

    def late() -> bool:
        keeper.close()
        return wait()

    monkeypatch.setattr(keeper, "wait", late)
    assert list(keeper.batches()) == []
