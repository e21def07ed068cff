"""Many messages with unique keys at once: one look, one flush of the index, one frame; each is told what came of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from filewheel import AsyncWheel, BadArgument, KeyHeld, MessageId, NotFound, Wheel
from filewheel.message import KEY
from tests.support import open_below


def frames(wheel: Wheel) -> int:
    assert wheel._journal is not None
    return wheel._journal.appender.number


def test_many_keys_take_one_frame(wheel: Wheel) -> None:
    wheel.enqueue(b"first")
    before = frames(wheel)
    ids = wheel.enqueue_many([b"%d" % n for n in range(500)], delay=60, keys=[f"k{n}" for n in range(500)])
    assert frames(wheel) == before + 1
    for n in (0, 250, 499):
        found = wheel.get(key=f"k{n}")
        assert found is not None
        assert (found.id, found.payload, found.headers) == (ids[n], b"%d" % n, {KEY: f"k{n}"})


def test_a_batch_with_a_key_that_is_held_enqueues_nothing_and_says_which_are(wheel: Wheel) -> None:
    one, two = wheel.enqueue(b"1", delay=60, key="one"), wheel.enqueue(b"2", delay=60, key="two")
    with pytest.raises(KeyHeld, match="2 keys of this call are held; nothing was enqueued") as caught:
        wheel.enqueue_many([b"a", b"b", b"c", b"d"], keys=["one", None, "three", "two"])
    assert caught.value.held == {"one": one, "two": two}
    assert sorted(m.id for m in wheel.list()) == [one, two]
    assert wheel.get(key="three") is None


def test_a_batch_that_enqueues_nothing_leaves_no_file_open(wheel_dir: Path, wheel: Wheel) -> None:
    names = [f"k{n}" for n in range(40)]
    wheel.enqueue_many([b"x"] * len(names), delay=60, keys=names)
    before = open_below(wheel_dir)
    with pytest.raises(KeyHeld):
        wheel.enqueue_many([b"y"] * len(names), delay=60, keys=names)
    assert open_below(wheel_dir) == before


def test_a_key_that_is_twice_in_a_batch_is_held_by_the_first(wheel: Wheel) -> None:
    with pytest.raises(KeyHeld) as caught:
        wheel.enqueue_many([b"a", b"b", b"c"], keys=["k", None, "k"])
    assert "messages 0 and 2 of this call (the first is 0) have one key, 'k'; nothing was enqueued" in str(caught.value)
    assert (caught.value.key, caught.value.id, caught.value.held) == ("k", None, {})
    assert list(wheel.list()) == []
    first, second = wheel.enqueue_many([b"a", b"b"], delay=60, keys=["k", "k"], on_conflict="keep")
    assert first == second
    third = wheel.enqueue_many([b"c", b"d", b"e"], delay=60, keys=["k", "k", None], on_conflict="replace")
    assert [(m.id, m.payload) for m in sorted(wheel.list(), key=lambda m: m.payload)] == [
        (third[1], b"d"),
        (third[2], b"e"),
    ]


def test_a_key_that_is_twice_in_a_batch_is_told_after_one_that_a_living_message_holds(wheel: Wheel) -> None:
    one = wheel.enqueue(b"1", delay=60, key="one")
    with pytest.raises(KeyHeld, match=f"held by the message {one}; nothing was enqueued") as caught:
        wheel.enqueue_many([b"a", b"b", b"c"], keys=["k", "k", "one"])
    assert caught.value.held == {"one": one}


def test_messages_that_are_loaded_with_one_key_are_both_named(wheel: Wheel, tmp_path: Path) -> None:
    with Wheel.create(tmp_path / "other") as other:
        one = other.enqueue(b"1", delay=60, key="k")
        (first,) = other.list()
        other.cancel(one)
        two = other.enqueue(b"2", delay=60, key="k")
        (second,) = other.list()
    with pytest.raises(KeyHeld, match=f"the messages {one} and {two} of this call have one key, 'k'; nothing"):
        wheel.add([first, second])


def test_keep_returns_in_their_places_the_messages_that_hold_the_keys(wheel: Wheel) -> None:
    held = wheel.enqueue(b"1", delay=60, key="one")
    ids = wheel.enqueue_many([b"a", b"b"], delay=60, keys=["one", "two"], on_conflict="keep")
    assert ids[0] == held
    assert sorted(m.payload for m in wheel.list()) == [b"1", b"b"]


def test_a_batch_that_is_larger_than_a_frame_keeps_each_replacement_in_one(
    wheel: Wheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("filewheel.keys.unique.BATCH_BYTES", 300)
    keys = [f"k{n}" for n in range(20)]
    old = wheel.enqueue_many([b"old"] * 20, delay=60, keys=keys)
    journal = wheel._writer()
    written: list[tuple[int, int]] = []
    real = journal.write

    def write(records, puts):  # type: ignore[no-untyped-def]
        written.append((len(records), puts))
        return real(records, puts)

    monkeypatch.setattr(journal, "write", write)
    new = wheel.enqueue_many([b"new"] * 20, delay=60, keys=keys, on_conflict="replace")
    assert len(written) > 5
    assert all(records == 2 * puts for records, puts in written)
    assert sorted(m.id for m in wheel.list()) == sorted(new)
    assert not set(old) & set(new)


@pytest.mark.parametrize(
    "options",
    [
        {"keys": ["one"]},
        {"keys": "ab"},
        {"keys": ["one", ""]},
        {"keys": ["one", 5]},
        {"keys": ["one", "two"], "on_conflict": "ignore"},
        {"keys": ["one", "two"], "headers": {KEY: "three"}},
        {"on_conflict": "keep"},
    ],
)
def test_keys_that_make_no_sense_are_refused_and_nothing_is_enqueued(wheel: Wheel, options: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        wheel.enqueue_many([b"a", b"b"], **options)  # type: ignore[arg-type]
    assert list(wheel.list()) == []


def test_many_are_cancelled_by_their_keys_and_ids_at_once(wheel: Wheel) -> None:
    ids = wheel.enqueue_many([b"x"] * 4, delay=60, keys=["a", "b", None, "d"])
    before = frames(wheel)
    assert wheel.cancel_many([ids[2]], keys=["a", "b", "nobody"]) == set(ids[:3])
    assert frames(wheel) == before + 1
    assert [(m.id, m.key) for m in wheel.list()] == [(ids[3], "d")]
    assert wheel.cancel_many(keys=["a"]) == set()
    with pytest.raises(BadArgument):
        wheel.cancel_many(keys="d")


def test_an_update_gives_what_holds_a_key_another_payload_and_makes_none_where_there_is_none(wheel: Wheel) -> None:
    old = wheel.enqueue(b"old", delay=60, topic="t", key="k")
    new = wheel.update(key="k", payload=b"new")
    assert new.due_us == old.due_us
    later = wheel.update(key="k", payload=b"newer", delay=90)
    (found,) = wheel.list()
    assert (found.id, found.payload, found.topic, found.key, found.root) == (later, b"newer", "t", "k", old)
    assert later.due_us - old.due_us == 30_000_000
    assert wheel.cancel(key="k")
    with pytest.raises(NotFound):
        wheel.update(key="k", payload=b"again")
    with pytest.raises(BadArgument):
        wheel.update(key="k", payload="text")  # type: ignore[arg-type]
    assert list(wheel.list()) == []


async def gathered(wheel: AsyncWheel, rows: list[dict[str, object]]) -> list[MessageId | BaseException]:
    return await asyncio.gather(
        *(wheel.enqueue(b"x", delay=60, **row) for row in rows),  # type: ignore[arg-type]
        return_exceptions=True,
    )


def test_tasks_that_enqueue_with_keys_at_once_share_a_commit_and_each_hears_what_came_of_its_own(
    wheel_dir: Path,
) -> None:
    async def body() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            made = await gathered(wheel, [{"key": f"k{n}"} for n in range(200)])
            assert len(set(made)) == 200
            assert frames(wheel._wheel) <= 2
            told = await gathered(
                wheel,
                [{"key": "k1"}, {"key": "k2", "on_conflict": "keep"}, {"key": "k3", "on_conflict": "replace"}, {}],
            )
            assert isinstance(told[0], KeyHeld)
            assert told[0].id == made[1]
            assert told[1] == made[2]
            found = await wheel.get(key="k3")
            assert found is not None
            assert found.id == told[2] != made[3]
            assert isinstance(told[3], MessageId)
            many = await wheel.enqueue_many([b"a", b"b"], delay=60, keys=["a", "k2"], on_conflict="keep")
            assert many[1] == made[2]
            updated = await wheel.update(key="k4", payload=b"new")
            assert await wheel.cancel_many(keys=["k4", "k5"]) == {updated, made[5]}

    asyncio.run(body())
    with Wheel(wheel_dir) as wheel:
        assert wheel.stats().pending == 200


def test_the_header_of_a_printed_message_is_its_key_in_a_loop_too(wheel_dir: Path) -> None:
    async def body() -> None:
        async with AsyncWheel(wheel_dir) as wheel:
            id_ = await wheel.enqueue(b"x", delay=60, headers={KEY: "k"})
            with pytest.raises(KeyHeld):
                await wheel.enqueue(b"x", key="k")
            found = await wheel.get(key="k")
            assert found is not None
            assert found.id == id_

    asyncio.run(body())
