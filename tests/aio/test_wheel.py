"""AsyncWheel: who shares a commit, what a cancellation means, and that the loop never waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import random
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from filewheel import (
    AsyncWheel,
    BadArgument,
    Closed,
    MessageId,
    NotFound,
    NoWheel,
    OtherLoop,
    Poisoned,
    TooLarge,
    Wheel,
    WheelExists,
    WheelFull,
)
from filewheel.disk.disk import SYSTEM
from tests.aio.support import Gate, LoopFactory, Watch, our_threads, run_in, turns
from tests.support import FakeClock, FaultyDisk, eventually, open_below, run

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> LoopFactory | None:
    if request.param == "asyncio":
        return None
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    factory: LoopFactory = uvloop.new_event_loop
    return factory


@pytest.fixture
def play(loop: LoopFactory | None) -> Run:
    """Runs a coroutine in a loop of each kind; no thread may be left."""

    def playing(main: Coroutine[Any, Any, Any]) -> Any:
        result = run_in(loop, main)
        assert our_threads() == []
        return result

    return playing


def pending(path: Path) -> dict[MessageId, bytes]:
    with Wheel(path) as wheel:
        return {m.id: m.payload for m in wheel.list()}


# -- commits -------------------------------------------------------------------------------------------------


def test_ten_thousand_tasks_share_a_flush_and_a_thread(wheel_dir: Path, play: Run) -> None:
    watch = Watch()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=watch)) as wheel:
            before = watch.flushes
            ids = await asyncio.gather(*(wheel.enqueue(b"%d" % i, delay=60) for i in range(10_000)))
            assert watch.flushes - before == 1  # all of them began in one turn of the loop
            assert our_threads() == ["filewheel-aio"]
        assert pending(wheel_dir) == {id_: b"%d" % i for i, id_ in enumerate(ids)}

    play(main())


def test_more_than_may_wait_are_all_written_in_batches_of_that_size(wheel_dir: Path, play: Run) -> None:
    watch = Watch()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, waiting_max=10, env=SYSTEM.using(disk=watch)) as wheel:
            await wheel.enqueue(b"first", delay=60)
            before = watch.flushes
            ids = await asyncio.gather(*(wheel.enqueue(b"%d" % i, delay=60) for i in range(200)))
            assert len(set(ids)) == 200
            assert 20 <= watch.flushes - before <= 24

    play(main())


def test_messages_of_other_sync_do_not_wait_for_a_flush(wheel_dir: Path, play: Run) -> None:
    watch = Watch()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=watch)) as wheel:
            await wheel.enqueue(b"opens the journal", sync="never")
            before = watch.flushes
            await asyncio.gather(*(wheel.enqueue(b"", sync="never") for _ in range(50)))
            assert watch.flushes == before
            await asyncio.gather(*(wheel.enqueue(b"", sync=s) for s in ("never", "always", 3600, "always") * 5))
            assert watch.flushes == before + 1
            await wheel.enqueue(b"", sync="never")
            await wheel.flush()
            assert watch.flushes == before + 2

    play(main())


def test_a_batch_larger_than_a_frame_is_written_as_several(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            ids = await asyncio.gather(*(wheel.enqueue(b"%d" % i * 500_000, delay=60) for i in range(10, 40)))
        kept = pending(wheel_dir)
        assert [kept[id_][:2] for id_ in ids] == [b"%d" % i for i in range(10, 40)]

    play(main())


def test_a_wrong_argument_fails_its_own_call_only(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            got = await asyncio.gather(
                wheel.enqueue(b"good", delay=60),
                wheel.enqueue("text", delay=60),  # type: ignore[arg-type]
                wheel.enqueue(b"x" * (2 << 20)),
                wheel.enqueue(b"", delay=1, at=1),
                wheel.enqueue(b"", topic=7),  # type: ignore[arg-type]
                wheel.enqueue(b"", headers={"a": 1}),  # type: ignore[dict-item]
                wheel.enqueue(b"", sync="sometimes"),  # type: ignore[arg-type]
                wheel.enqueue(b"", delay=float("nan")),
                wheel.enqueue(b"also good", at=4e9, topic="t", headers={"a": "b"}),
                return_exceptions=True,
            )
            assert [type(g) for g in got[1:8]] == [BadArgument, TooLarge, *[BadArgument] * 5]
            assert pending(wheel_dir) == {got[0]: b"good", got[8]: b"also good"}
            message = await wheel.get(got[8])
            assert message is not None
            assert (message.due_us, message.topic, message.headers) == (4_000_000_000_000_000, "t", {"a": "b"})

    play(main())


def test_an_unknown_option_fails_its_call_and_gives_its_room_back(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir, waiting_max=1) as wheel:
            for _ in range(3):
                with pytest.raises(TypeError, match="nonsense"):
                    await wheel.enqueue(b"", nonsense=1)
            await wheel.enqueue(b"works", delay=60)

    play(main())


def test_a_full_disk_is_told_to_each_and_later_calls_work(wheel_dir: Path, play: Run) -> None:
    full = False

    def fail(kind: str, name: str) -> None:
        if full and kind == "pwrite" and name.startswith("journal/"):
            raise OSError(errno.ENOSPC, "full")

    async def main() -> None:
        nonlocal full
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))) as wheel:
            first = await wheel.enqueue(b"before", delay=60)
            full = True
            errors = await asyncio.gather(*(wheel.enqueue(b"") for _ in range(5)), return_exceptions=True)
            full = False
            assert [type(e) for e in errors] == [WheelFull] * 5
            assert len({id(e) for e in errors}) == 5
            last = await wheel.enqueue(b"after", delay=60)
        assert pending(wheel_dir) == {first: b"before", last: b"after"}

    play(main())


def test_a_flush_that_fails_is_told_to_those_who_waited_for_it_only(wheel_dir: Path, play: Run) -> None:
    broken = False

    def fail(kind: str, name: str) -> None:
        if broken and kind == "fdatasync":
            raise OSError(errno.EIO, "broken")

    async def main() -> None:
        nonlocal broken
        wheel = await AsyncWheel(wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail))).open()
        await wheel.enqueue(b"before", delay=60)
        broken = True
        calls = [wheel.enqueue(b"", delay=60, sync=s) for s in ("always", "never", "always")]
        got = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(g) for g in got] == [Poisoned, MessageId, Poisoned]
        with pytest.raises(Poisoned):
            await wheel.enqueue(b"")
        await wheel.close()

    play(main())


# -- cancellation --------------------------------------------------------------------------------------------


def test_a_cancelled_enqueue_is_withdrawn_while_it_gathers_and_enqueued_once_the_thread_has_it(
    wheel_dir: Path, play: Run
) -> None:
    gate = Gate()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=gate)) as wheel:
            gate.open.clear()
            taken = asyncio.create_task(wheel.enqueue(b"taken", delay=60))
            await gate.reach()
            gathers = asyncio.create_task(wheel.enqueue(b"gathers", delay=60))
            stays = asyncio.create_task(wheel.enqueue(b"stays", delay=60))
            await turns()
            taken.cancel()
            gathers.cancel()
            gate.open.set()
            assert await stays
            for task in (taken, gathers):
                with pytest.raises(asyncio.CancelledError):
                    await task
        assert sorted(pending(wheel_dir).values()) == [b"stays", b"taken"]

    play(main())


def test_any_other_call_that_is_cancelled_before_the_thread_comes_to_it_is_not_made(wheel_dir: Path, play: Run) -> None:
    gate = Gate()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, env=SYSTEM.using(disk=gate)) as wheel:
            id_ = await wheel.enqueue(b"stays", delay=60)
            await gate.reach()
            gate.open.clear()
            busy = asyncio.create_task(wheel.enqueue(b"busy", delay=60))
            await gate.reach()
            calls = [asyncio.create_task(c) for c in (wheel.cancel(id_), wheel.enqueue_many([b"many"], delay=60))]
            await turns()
            for call in calls:
                call.cancel()
            await turns()
            gate.open.set()
            await busy
        assert sorted(pending(wheel_dir).values()) == [b"busy", b"stays"]

    play(main())


def test_one_that_waits_for_room_can_be_cancelled_and_the_next_in_line_gets_its_turn(
    wheel_dir: Path, play: Run
) -> None:
    gate = Gate()

    async def main() -> None:
        async with AsyncWheel(wheel_dir, waiting_max=2, env=SYSTEM.using(disk=gate)) as wheel:
            gate.open.clear()
            tasks = [asyncio.create_task(wheel.enqueue(b"%d" % i, delay=60)) for i in range(8)]
            await gate.reach()
            await turns()
            for i in (2, 3, 5):
                tasks[i].cancel()
            gate.open.set()
            got = await asyncio.gather(*tasks, return_exceptions=True)
            assert [i for i, g in enumerate(got) if isinstance(g, asyncio.CancelledError)] == [2, 3, 5]
            await asyncio.gather(*(wheel.enqueue(b"x", delay=60) for _ in range(5)))  # no room was lost
        assert sorted(pending(wheel_dir).values()) == [b"0", b"1", b"4", b"6", b"7", *[b"x"] * 5]

    play(main())


@pytest.mark.parametrize("seed", range(4))
def test_in_a_storm_of_cancellations_nothing_that_returned_is_lost(wheel_dir: Path, play: Run, seed: int) -> None:
    """What returned is there; what is there was asked for; what was cancelled is there once at most."""
    chance = random.Random(seed)
    failing = chance.random() < 0.5

    def fail(kind: str, name: str) -> None:
        if failing and kind == "pwrite" and name.startswith("journal/") and chance.random() < 0.1:
            raise OSError(errno.ENOSPC, "full")

    async def main() -> None:
        options: dict[str, Any] = {"waiting_max": chance.choice([1, 7, 1000])}
        async with AsyncWheel(
            wheel_dir, env=SYSTEM.using(disk=lambda path: FaultyDisk(path, fail)), **options
        ) as wheel:
            tasks: list[asyncio.Task[MessageId]] = []
            for i in range(400):
                sync: Any = chance.choice(["always", "never"])
                tasks.append(asyncio.create_task(wheel.enqueue(b"%d" % i, delay=60, sync=sync)))
                if chance.random() < 0.2:
                    await turns(chance.randrange(3))
                if chance.random() < 0.1:
                    await asyncio.sleep(0.001)
                if chance.random() < 0.6:
                    chance.choice(tasks).cancel()
            got = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(g) for g in got} <= {MessageId, asyncio.CancelledError, WheelFull}
            assert failing or await wheel.enqueue(b"still works", delay=-1)
        kept = pending(wheel_dir)
        returned = {g: b"%d" % i for i, g in enumerate(got) if isinstance(g, MessageId)}
        assert returned.items() <= kept.items()
        cancelled = {b"%d" % i for i, g in enumerate(got) if isinstance(g, asyncio.CancelledError)}
        others = [p for id_, p in kept.items() if id_ not in returned and p != b"still works"]
        assert len(others) == len(set(others))
        assert set(others) <= cancelled

    play(main())


# -- the other calls -----------------------------------------------------------------------------------------


def test_every_call_does_what_the_wheels_own_does(tmp_path: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel.create(tmp_path / "w", slots=60, sync="never") as wheel:
            ids = await wheel.enqueue_many([b"a", b"b", b"c"], delay=[60, 70, 80], topic="t")
            assert [m.payload for m in await wheel.peek(2)] == [b"a", b"b"]
            new = await wheel.reschedule(ids[2], delay=30)
            assert [m.payload async for m in wheel.list(topic="t")] == [b"c", b"a", b"b"]
            assert await wheel.cancel(str(ids[0]))
            assert not await wheel.cancel(ids[0])
            assert await wheel.cancel_many([ids[0], ids[1]]) == {ids[1]}
            assert await wheel.get(ids[1]) is None
            with pytest.raises(NotFound):
                await wheel.reschedule(ids[1], delay=1)
            with pytest.raises(BadArgument):
                await wheel.get("nonsense")
            found = await wheel.get(new)
            assert found is not None
            assert found.payload == b"c"
            assert (await wheel.stats()).pending == 1
        with pytest.raises(WheelExists):
            await AsyncWheel.create(tmp_path / "w").open()
        async with AsyncWheel.create(tmp_path / "w", exist_ok=True) as wheel:
            assert (await wheel.stats()).pending == 1
        with pytest.raises(NoWheel):
            await AsyncWheel(tmp_path / "nothing").open()

    play(main())


def test_no_call_touches_the_disk_in_the_thread_of_the_loop(tmp_path: Path, play: Run) -> None:
    watch = Watch()

    async def main() -> None:
        async with AsyncWheel.create(tmp_path / "w", env=SYSTEM.using(disk=watch)) as wheel:
            id_ = await wheel.enqueue(b"x", delay=60)
            await wheel.enqueue_many([b"y"] * 600, delay=60)
            await wheel.get(id_)
            id_ = await wheel.reschedule(id_, delay=0)
            await wheel.cancel(id_)
            await wheel.peek()
            await wheel.stats()
            await wheel.flush()
            async for _ in wheel.list():
                break
            await wheel.enqueue_many([b"z"] * 5)
            async for _ in wheel.due(wait=False):
                pass
            await wheel.enqueue_many([b"z"] * 3)
            async for _ in wheel.due(limit=2):
                break
        async with AsyncWheel(tmp_path / "w", env=SYSTEM.using(disk=watch)) as wheel, wheel.keeper() as keeper:
            await wheel.enqueue_many([b"1", b"2", b"3", b"4"])
            batch = await keeper.claim()
            await keeper.ack(batch[0])
            await keeper.nack(batch[1], delay=1)
            await keeper.bury(batch[2], reason="r")
            await keeper.ack(batch, sync="always")
            await wheel.enqueue(b"5", delay=0.05)
            assert [m.payload for m in await keeper.claim(wait=True)] == [b"5"]

    play(main())
    # due() publishes that a message begins, and looks at the mark of cancels: bytes of a file that are in memory.
    assert set(watch.in_loop) == {"pread", "pwrite"}
    assert sum(watch.counts.values()) > 100
    assert watch.threads["wait_hint"] == {"filewheel-aio-due"}


def test_a_list_that_is_left_early_keeps_no_file_open(wheel_dir: Path, play: Run) -> None:
    def files() -> int:
        return len(open_below(wheel_dir))

    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"x"] * 1000, delay=60)
            await wheel.peek()
            before = files()
            for _ in range(5):
                async with contextlib.aclosing(wheel.list()) as listed:
                    async for _ in listed:
                        break
            await wheel.peek()
            assert files() == before
            listed = wheel.list()
            assert (await anext(listed)).payload == b"x"
        with pytest.raises(Closed):
            async for _ in listed:
                pass

    play(main())


def test_a_list_from_memory_ends_well_whether_it_is_read_to_its_end_or_not(
    wheel_dir: Path, play: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            await wheel.enqueue_many([b"x"] * 500, delay=60)
            assert len([m async for m in wheel.list(limit=3)]) == 3
            listed = wheel.list()
            assert (await anext(listed)).payload == b"x"

    play(main())
    assert not caplog.records


# -- life ----------------------------------------------------------------------------------------------------


def test_closing_writes_what_gathers_and_flushes_and_may_be_done_twice(wheel_dir: Path, play: Run) -> None:
    watch = Watch()

    async def main() -> None:
        wheel = await AsyncWheel(wheel_dir, env=SYSTEM.using(disk=watch)).open()
        await wheel.enqueue(b"0", delay=60, sync="never")
        tasks = [asyncio.create_task(wheel.enqueue(b"%d" % i, delay=60, sync="never")) for i in (1, 2, 3)]
        await asyncio.sleep(0)
        before = watch.flushes
        await asyncio.gather(wheel.close(), wheel.close())
        await wheel.close()
        assert watch.flushes > before
        assert our_threads() == []
        assert len(set(await asyncio.gather(*tasks))) == 3
        assert sorted(pending(wheel_dir).values()) == [b"0", b"1", b"2", b"3"]
        for call in (wheel.enqueue(b""), wheel.get(b"x" * 16), wheel.open(), wheel.flush(), anext(wheel.due())):
            with pytest.raises(Closed):
                await call

    play(main())


def test_whoever_waits_for_room_when_the_wheel_closes_is_told(wheel_dir: Path, play: Run) -> None:
    gate = Gate()

    async def main() -> None:
        wheel = await AsyncWheel(wheel_dir, waiting_max=1, env=SYSTEM.using(disk=gate)).open()
        gate.open.clear()
        tasks = [asyncio.create_task(wheel.enqueue(b"%d" % i, delay=60)) for i in range(3)]
        await gate.reach()
        closing = asyncio.create_task(wheel.close())
        await turns()
        gate.open.set()
        await closing
        got = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(g) for g in got] == [MessageId, Closed, Closed]
        assert list(pending(wheel_dir).values()) == [b"0"]

    play(main())


def test_a_close_that_is_cancelled_still_closes(wheel_dir: Path, play: Run) -> None:
    gate = Gate()

    async def main() -> None:
        wheel = await AsyncWheel(wheel_dir, env=SYSTEM.using(disk=gate)).open()
        await wheel.enqueue(b"x", delay=60, sync="never")
        await anext(wheel.list())
        keeper = await wheel.keeper().open()
        gate.open.clear()
        closing = asyncio.create_task(wheel.close())
        await gate.reach()
        for _ in range(3):
            closing.cancel()
            await turns()
        assert not closing.done()
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert our_threads() == []
        assert not keeper.is_open

    play(main())


def test_an_open_that_is_cancelled_leaves_nothing(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        for delay in (0, 1, 2, 5):
            opening = asyncio.create_task(AsyncWheel(wheel_dir).open())
            await turns(delay)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
            assert our_threads() == []

    play(main())


def test_a_wheel_that_is_not_open_says_so(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        wheel = AsyncWheel(wheel_dir)
        with pytest.raises(Closed, match="async with AsyncWheel"):
            await wheel.enqueue(b"")
        await wheel.close()
        with pytest.raises(BadArgument):
            AsyncWheel(wheel_dir, waiting_max=0)

    play(main())


def test_another_loop_is_told_that_it_is_another(wheel_dir: Path, loop: LoopFactory | None) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        wheel = runner.run(AsyncWheel(wheel_dir).open())
        with asyncio.Runner(loop_factory=loop) as other:
            for call in (wheel.enqueue(b""), wheel.get(b"x" * 16), wheel.close(), anext(wheel.due())):
                with pytest.raises(OtherLoop, match="opened in another event loop"):
                    other.run(call)
        runner.run(wheel.enqueue(b"works", delay=60))
        runner.run(wheel.close())


def test_a_child_of_a_fork_is_told_and_closes_nothing(wheel_dir: Path) -> None:
    out = run(
        """
        import asyncio, os, sys, warnings
        from filewheel import AsyncWheel, Forked

        async def child(wheel):
            try:
                await wheel.enqueue(b"")
            except Forked as exc:
                print("told", flush=True)
            await wheel.close()

        async def main():
            async with AsyncWheel(sys.argv[1]) as wheel:
                await wheel.enqueue(b"1", delay=60)
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
                if pid == 0:
                    try:
                        asyncio.run(child(wheel))
                    finally:
                        os._exit(0)
                os.waitpid(pid, 0)
                await wheel.enqueue(b"2", delay=60)

        asyncio.run(main())
        """,
        wheel_dir,
    )
    assert out == "told\n"
    assert sorted(pending(wheel_dir).values()) == [b"1", b"2"]


def test_one_that_was_never_closed_warns_and_its_thread_ends(wheel_dir: Path, loop: LoopFactory | None) -> None:
    async def main() -> None:
        wheel = await AsyncWheel(wheel_dir).open()
        await wheel.enqueue(b"x", delay=60, sync="never")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_in(loop, main())
        gc.collect()
    assert any("unclosed <AsyncWheel" in str(w.message) for w in caught)
    eventually(lambda: our_threads() == [])
    assert list(pending(wheel_dir).values()) == [b"x"]


def test_an_async_wheel_takes_an_open_wheel_over_with_its_options_and_closes_it(
    wheel_dir: Path, clock: FakeClock, play: Run
) -> None:
    blocking = Wheel(wheel_dir, sync="never", clock=clock)

    async def main() -> None:
        async with AsyncWheel(blocking, waiting_max=2) as wheel:
            ids = await asyncio.gather(*(wheel.enqueue(b"x", delay=n) for n in range(5)))
            assert blocking.get(ids[0]) == await wheel.get(ids[0])
            clock.advance(10)
            async with wheel.due(wait=False) as due:
                assert {m.id async for m in due} == set(ids)
        with pytest.raises(Closed):
            blocking.enqueue(b"x")
        with pytest.raises(Closed):
            await AsyncWheel(blocking).open()
        for wrong in ({"sync": "never"}, {"force": True}, {"clock": clock}):
            with pytest.raises(BadArgument, match="has its options"):
                AsyncWheel(blocking, **wrong)  # type: ignore[arg-type]

    play(main())


def test_reads_and_writes_go_on_while_a_purge_waits_for_another_program(wheel_dir: Path, play: Run) -> None:
    async def main() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            purge = asyncio.create_task(wheel.purge(timeout_s=60))
            assert await eventually_in_loop(lambda: (wheel_dir / "purged").exists())
            id_ = await wheel.enqueue(b"x", delay=60)
            assert await wheel.get(id_) is not None
            assert not purge.done()
            other.close()
            assert await purge

    async def eventually_in_loop(is_so: Callable[[], bool]) -> bool:
        while not is_so():
            await asyncio.sleep(0.01)
        return True

    other = Wheel(wheel_dir)
    other.cancel(other.enqueue(b"gone", delay=60))
    play(main())
