"""Arguments of wheels and keepers that are wrong are refused in the call that was given them; nothing is written."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncKeeper, AsyncWheel, BadArgument, Keeper, Settlement, Wheel

FLAGS: list[Any] = ["no", 1]
COUNTS: list[Any] = ["5", 0, -1, 2.5, True, None]
LIMITS: list[Any] = ["5", -1, 2.5, True]
SYNC: list[Any] = ["zap", -1, 0, True, []]
IDS: list[Any] = [5, "x", b"x", [], True, object()]
KEYS: list[Any] = [5, "", b"x"]
TIMES: list[Any] = ["5", True, [], math.nan]
LISTS: list[Any] = [5, None, "xx", b"xx"]
CREATE: dict[str, list[Any]] = {
    "slots": ["5", 0, True, None, 2.5],
    "sync": [*SYNC, None],
    "payload_bytes_max": ["5", 0, True, None],
    "exist_ok": FLAGS,
    "force": FLAGS,
}
OPEN = {"sync": SYNC, "force": FLAGS}
KEEP: dict[str, list[Any]] = {
    "wait": [*FLAGS, None],
    "on_jump": ["zap", 5, None, []],
    "force": FLAGS,
    "flush_interval_s": ["5", -1, True, None, math.nan],
}
ENQUEUE = {
    "payload": [5, "x", None, []],
    "delay": TIMES,
    "at": TIMES,
    "topic": [5, None, b"x"],
    "headers": [5, "x", {1: 2}],
    "sync": SYNC,
    "key": KEYS,
    "on_conflict": ["zap", 5, "keep"],
}
MANY = {
    "payloads": [*LISTS, ["x"], [5]],
    "delay": [*TIMES[:2], ["5"], [1, 2]],
    "at": [*TIMES[:2], ["x"]],
    "topic": [5, [5], ["a", "b"]],
    "headers": [5, "x", {1: 2}, [5], [{1: 2}]],
    "sync": SYNC,
}
LIST = {"after": TIMES, "before": TIMES, "topic": [5, b"x", []], "limit": LIMITS, "dead": [*FLAGS, None]}
MOVE = {"id_": IDS, "key": KEYS, "delay": TIMES, "at": TIMES, "sync": SYNC}


class Stage:
    """A wheel with one message that waits, and one that is claimed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wheel = Wheel(path)
        self.keeper = Keeper(path)
        self.id = self.wheel.enqueue(b"waits", delay=3600)
        self.wheel.enqueue(b"claimed")
        (self.claimed,) = self.keeper.claim()

    def one(self, given: dict[str, Any]) -> dict[str, Any]:
        """Name the message that waits, unless the arguments name one."""
        return given if {"id_", "key"} & given.keys() else {"id_": self.id, **given}

    def moved(self, given: dict[str, Any]) -> dict[str, Any]:
        """Name it and a time."""
        return self.one(given if {"delay", "at"} & given.keys() else {"delay": 5, **given})


@pytest.fixture
def stage(wheel_dir: Path) -> Iterator[Stage]:
    made = Stage(wheel_dir)
    yield made
    assert made.keeper.ack(made.claimed) == 1
    made.keeper.close()
    assert [m.id for m in made.wheel.list()] == [made.id]
    made.wheel.close()
    assert sorted(wheel_dir.parent.iterdir()) == [wheel_dir]


Calls = dict[str, tuple[Callable[..., Any], dict[str, list[Any]]]]
CALLS: Calls = {
    "Wheel": (lambda s, **given: Wheel(s.path, **given), OPEN),
    "Wheel.create": (lambda s, **given: Wheel.create(s.path.parent / "new", **given), CREATE),
    "enqueue": (lambda s, payload=b"x", **given: s.wheel.enqueue(payload, **given), ENQUEUE),
    "enqueue_many": (lambda s, payloads=(b"x",), **given: s.wheel.enqueue_many(payloads, **given), MANY),
    "add": (lambda s, messages: s.wheel.add(messages), {"messages": [*LISTS, [5]]}),
    "list": (lambda s, **given: s.wheel.list(**given), LIST),
    "peek": (lambda s, count: s.wheel.peek(count), {"count": [*LIMITS, None]}),
    "get": (lambda s, **given: s.wheel.get(**given), {"id_": IDS, "key": KEYS}),
    "histogram": (lambda s, edges: s.wheel.histogram(edges), {"edges": [5, ["x"], None, [2, 1]]}),
    "cancel": (lambda s, **given: s.wheel.cancel(**s.one(given)), {"id_": IDS, "key": KEYS, "sync": SYNC}),
    "cancel_many": (
        lambda s, ids=None, **given: s.wheel.cancel_many([s.id] if "sync" in given else ids, **given),
        {"ids": [*LISTS, [5], ["x"], bytes(16)], "sync": SYNC},
    ),
    "reschedule": (lambda s, **given: s.wheel.reschedule(**s.moved(given)), MOVE),
    "Keeper": (lambda s, **given: Keeper(s.path, **{"wait": False, **given}), KEEP),
    "AsyncKeeper": (lambda s, **given: AsyncKeeper(s.path, **given), KEEP),
    "AsyncWheel": (lambda s, **given: AsyncWheel(s.path, **given), {**OPEN, "waiting_max": COUNTS}),
    "AsyncWheel.create": (
        lambda s, **given: AsyncWheel.create(s.path.parent / "new", **given), {**CREATE, "waiting_max": COUNTS}
    ),
    "claim": (lambda s, limit: s.keeper.claim(limit), {"limit": COUNTS}),
    "batches": (lambda s, limit: next(s.keeper.batches(limit)), {"limit": COUNTS}),
    "wait": (lambda s, timeout_s: s.keeper.wait(timeout_s), {"timeout_s": TIMES}),
    "ack": (
        lambda s, what=None, **given: s.keeper.ack(s.claimed if given else what, **given),
        {"what": [*LISTS[:3], [5]], "sync": SYNC},
    ),
    "nack": (
        lambda s, message=None, **given: s.keeper.nack(s.claimed if given else message, **given),
        {"message": [5, None, "x", []], "delay": TIMES, "sync": SYNC},
    ),
    "bury": (
        lambda s, message=None, **given: s.keeper.bury(s.claimed if given else message, **given),
        {"message": [5, None, "x", []], "reason": [5, None, b"x"], "sync": SYNC},
    ),
    "settle": (
        lambda s, these=None, **given: s.keeper.settle([Settlement(s.claimed.id)] if given else these, **given),
        {"these": [*LISTS, [5]], "sync": SYNC},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "argument"), [(n, a) for n, (_, w) in CALLS.items() for a in w], ids=str)
def test_a_wrong_argument_is_refused_and_nothing_is_written(stage: Stage, name: str, argument: str) -> None:
    call, wrong = CALLS[name]
    for value in wrong[argument]:
        with pytest.raises(BadArgument):
            call(stage, **{argument: value})


ASYNC: Calls = {
    "enqueue": (lambda s, w, payload=b"x", **given: w.enqueue(payload, **given), ENQUEUE),
    "enqueue_many": (lambda s, w, payloads=(b"x",), **given: w.enqueue_many(payloads, **given), MANY),
    "get": (lambda s, w, **given: w.get(**given), {"id_": IDS, "key": KEYS}),
    "peek": (lambda s, w, count: w.peek(count), {"count": [*LIMITS, None]}),
    "cancel": (lambda s, w, **given: w.cancel(**s.one(given)), {"id_": IDS, "key": KEYS, "sync": SYNC}),
    "cancel_many": (lambda s, w, ids: w.cancel_many(ids), {"ids": [*LISTS, [5], ["x"]]}),
    "reschedule": (lambda s, w, **given: w.reschedule(**s.moved(given)), MOVE),
    "list": (lambda s, w, **given: anext(w.list(**given)), LIST),
    "due": (lambda s, w, limit: anext(w.due(limit)), {"limit": COUNTS}),
}


def test_an_async_wheel_refuses_the_same(stage: Stage) -> None:
    async def main() -> None:
        async with AsyncWheel(stage.path) as wheel:
            for call, wrong in ASYNC.values():
                for argument, values in wrong.items():
                    for value in values:
                        with pytest.raises(BadArgument):
                            await call(stage, wheel, **{argument: value})

    asyncio.run(main())


def test_no_more_than_none_is_listed_with_a_limit_of_none(stage: Stage) -> None:
    assert list(stage.wheel.list(limit=0)) == stage.wheel.peek(0) == []


@pytest.mark.parametrize(
    ("argument", "value"), [("clock", 5), ("clock", object()), ("env", 5), ("budget", 5), ("background", "yes")]
)
def test_a_part_of_the_machine_that_is_none_is_named_before_the_wheel_is_opened(
    wheel_dir: Path, argument: str, value: object
) -> None:
    with pytest.raises(BadArgument, match=argument):
        Keeper(wheel_dir, **{argument: value})
    if argument in ("clock", "env"):
        with pytest.raises(BadArgument, match=argument):
            Wheel(wheel_dir, **{argument: value})
    with Keeper(wheel_dir, wait=False):
        pass  # none of them has left a lock
