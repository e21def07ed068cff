"""Several that move or cancel one message at once: one does, the others are told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from filewheel import Keeper, Locked, MessageId, NotFound, Wheel
from filewheel.disk import locks
from filewheel.disk.directory import open_directory
from filewheel.format import layout
from filewheel.keys.index import Looked
from tests.support import FakeClock, eventually, spawn

COUNT = 200
AT_ONCE = 4


def moved(wheel: Wheel, id_: MessageId | str) -> bool:
    """Move a message; tell whether it was this call that moved it."""
    try:
        wheel.reschedule(id_, delay=900, sync="never")
    except NotFound:
        return False
    return True


def cancelled(wheel: Wheel, id_: MessageId | str) -> bool:
    """Cancel a message; tell whether it was this call that did."""
    return bool(wheel.cancel(id_, sync="never"))


def race(
    wheels: list[Wheel], ids: list[MessageId], calls: list[Callable[[Wheel, MessageId], bool]]
) -> list[list[bool]]:
    """Make these calls for each id at once, a thread for each; return for each id who says that it was they."""
    barrier = Barrier(len(calls))

    def body(number: int) -> list[bool]:
        won = []
        for id_ in ids:
            barrier.wait()
            won.append(calls[number](wheels[number % len(wheels)], id_))
        return won

    with ThreadPoolExecutor(len(calls)) as pool:
        each = list(pool.map(body, range(len(calls))))
    return [list(row) for row in zip(*each, strict=True)]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("handles", [1, AT_ONCE])
def test_of_several_reschedules_of_a_message_at_once_one_wins_and_the_others_hear_it(
    wheel_dir: Path, handles: int, key: str | None
) -> None:
    count = COUNT if key is None else COUNT // 8
    wheels = [Wheel(wheel_dir) for _ in range(handles)]
    ids = [
        wheels[0].enqueue(b"x", delay=600, sync="never", key=None if key is None else f"{key}{i}") for i in range(count)
    ]
    won = race(wheels, ids, [moved] * AT_ONCE)
    assert [sum(row) for row in won] == [1] * count
    assert wheels[0].stats().pending == count
    for wheel in wheels:
        wheel.close()


@pytest.mark.parametrize("key", [None, "k"])
def test_of_several_cancels_and_a_reschedule_at_once_one_wins(wheel_dir: Path, key: str | None) -> None:
    count = COUNT if key is None else COUNT // 8
    with Wheel(wheel_dir) as wheel, Wheel(wheel_dir) as other:
        ids = [
            wheel.enqueue(b"x", delay=600, sync="never", key=None if key is None else f"{key}{i}") for i in range(count)
        ]
        won = race([wheel, other], ids, [cancelled, cancelled, moved])
        assert [sum(row) for row in won] == [1] * count
        assert wheel.stats().pending == sum(row[2] for row in won)


MOVER = """
import json, sys
from filewheel import NotFound, Wheel
from tests.test_wheel_cancel_at_once import cancelled, moved
with Wheel(sys.argv[1]) as wheel:
    print("up", flush=True)
    ids = json.loads(sys.stdin.readline())
    print(json.dumps([(moved if i % 3 else cancelled)(wheel, id_) for i, id_ in enumerate(ids)]))
"""


def test_of_several_processes_that_move_or_cancel_a_message_at_once_one_wins(wheel_dir: Path) -> None:
    with Wheel(wheel_dir) as wheel:
        ids = [str(wheel.enqueue(b"x", delay=600, sync="never")) for _ in range(600)]
        movers = [spawn(MOVER, wheel_dir, stdin=-1) for _ in range(3)]
        for mover in movers:
            assert mover.stdout is not None
            assert mover.stdout.readline() == "up\n"
        for mover in movers:
            assert mover.stdin is not None
            mover.stdin.write(json.dumps(ids) + "\n")
            mover.stdin.flush()
        won = [json.loads(mover.communicate(timeout=120)[0]) for mover in movers]
        assert [sum(row) for row in zip(*won, strict=True)] == [1] * len(ids)
        assert wheel.stats().pending == 400


def test_what_was_cancelled_between_the_look_at_its_key_and_the_frame_is_not_moved(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Wheel(wheel_dir) as wheel, Wheel(wheel_dir) as other:
        id_ = wheel.enqueue(b"x", delay=600, key="k")
        look = wheel._keys.look

        def late(hashes: Mapping[str, bytes]) -> Looked:
            looked = look(hashes)
            other.cancel(id_)
            return looked

        monkeypatch.setattr(wheel._keys, "look", late)
        with pytest.raises(NotFound):
            wheel.reschedule(key="k", delay=5)
        assert list(wheel.list()) == []
        assert wheel.get(key="k") is None


STOPPED = """
import os, signal, sys
from filewheel import Wheel
from filewheel.changes import Changes
with Wheel(sys.argv[1]) as wheel:
    find = wheel._finder.find
    def stop(ids):
        print("looked", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        return find(ids)
    wheel._finder.find = stop
    wheel.reschedule(sys.argv[2], delay=5)
"""


def test_a_process_that_is_stopped_in_the_middle_of_a_move_holds_up_a_sixteenth_of_the_ids(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "WAIT_S", 0.01)
    with Wheel(wheel_dir) as wheel:
        ids = [wheel.enqueue(b"x", delay=600) for _ in range(layout.ID_BUCKETS)]
        child = spawn(STOPPED, wheel_dir, ids[0])
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "looked\n"
            eventually(lambda: (Path("/proc") / str(child.pid) / "stat").read_text().split()[2] == "T")
            with pytest.raises(Locked, match="does not go on"):
                wheel.cancel(ids[0])
            assert wheel.cancel_many(ids[1:]) == set(ids[1:])
        finally:
            child.kill()
            child.communicate()
        assert wheel.cancel(ids[0])  # the lock went with the process


def test_a_retry_waits_for_who_is_in_the_middle_of_a_cancel_and_the_keeper_does_not(
    wheel_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with Wheel(wheel_dir, clock=clock) as wheel, Keeper(wheel_dir, clock=clock, background=False) as keeper:
        ids = [wheel.enqueue(b"x") for _ in range(layout.ID_BUCKETS)]
        batch = list(keeper.claim())
        keeper._disk.wait_hint = pytest.fail  # type: ignore[method-assign,assignment]
        pending = wheel._finder.pending

        def late(wanted: list[MessageId]) -> set[bytes]:
            found = pending(wanted)
            assert None not in [keeper.nack(m, delay=5) for m in batch]
            assert [keeper.holds(i) for i in ids] == [False] * len(ids)
            return found

        wheel._finder.pending = late  # type: ignore[method-assign,assignment]
        assert wheel.cancel(ids[0])
        wheel._finder.pending = pending  # type: ignore[method-assign]
        assert not keeper.claim()
        assert len(list(wheel.list())) == layout.ID_BUCKETS - 1
        assert {m.root for m in wheel.list()} == set(ids[1:])


def test_the_locks_of_ids_are_no_foreign_files_and_what_else_lies_there_is(wheel_dir: Path) -> None:
    from filewheel.tools.verify import verify

    with Wheel(wheel_dir) as wheel:
        wheel.cancel(wheel.enqueue(b"x", delay=60))
    assert os.listdir(wheel_dir / layout.IDS)
    assert not verify(open_directory(wheel_dir, write=False)).findings
    (wheel_dir / layout.IDS / "notes").touch()
    assert [f.name for f in verify(open_directory(wheel_dir, write=False)).findings] == ["ids/notes"]
