"""Handlers and how they are called: arguments, names, times, what is refused, and when a call counts as done."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from filewheel import BadArgument, Job, Keeper, KeyHeld, Retry, Scheduler, TooLarge, Wheel, current_job
from filewheel.message import ARGS, REASON, to_datetime
from tests.scheduling.stage import counted, dead_letters, waiting
from tests.support import START_US, FakeClock, open_below

NOW = to_datetime(START_US)


@pytest.fixture
def calls(scheduler: Scheduler) -> list[Any]:
    """What the handler "note" was called with."""
    got: list[Any] = []

    @scheduler.on("note")
    def note(*args: Any, **kwargs: Any) -> None:
        got.append((list(args), kwargs))

    return got


def test_a_handler_gets_its_arguments_as_they_were_given(scheduler: Scheduler) -> None:
    got = []

    @scheduler.on()
    def take(when: datetime, raw: bytes, *, nested: dict[str, Any], n: int = 7) -> None:
        got.append((when, raw, nested, n))

    nested = {"a": [1, None, {"b": b"\x00\xff", "c": 1.5}], "ü": NOW}
    take.enqueue(NOW, b"\xff\x00", nested=nested)
    take.enqueue(NOW, b"", nested={}, n=8)
    assert scheduler.drain() == 2
    assert got == [(NOW, b"\xff\x00", nested, 7), (NOW, b"", {}, 8)]
    assert waiting(scheduler.wheel) == []


def test_the_decorated_function_is_called_as_before(scheduler: Scheduler) -> None:
    @scheduler.on("double")
    def twice(n: int) -> int:
        """Double it."""
        return n * 2

    assert twice(21) == 42
    assert (twice.__name__, twice.__doc__, twice.name) == ("twice", "Double it.", "double")
    assert repr(twice) == "<Handler double>"


def test_wrong_arguments_are_refused_when_they_are_enqueued_in_each_way(scheduler: Scheduler) -> None:
    @scheduler.on()
    def mail(to: str, *, subject: str = "") -> None: ...

    ways: list[Any] = [
        mail.enqueue, lambda *a, **k: mail.after(1, *a, **k), lambda *a, **k: mail.at(NOW, *a, **k),
        mail.options(key="k").enqueue,
    ]  # fmt: skip
    for way in ways:
        for args, kwargs in [((), {}), (("a", "b"), {}), (("a",), {"topic": "x"})]:
            with pytest.raises(BadArgument, match=r"mail\(to: 'str', \*, subject"):
                way(*args, **kwargs)
    assert waiting(scheduler.wheel) == []
    assert counted(scheduler) == {}


def test_arguments_that_cannot_be_stored_are_refused_and_nothing_is_enqueued(
    scheduler: Scheduler, calls: list[Any]
) -> None:
    @scheduler.on()
    def pay(to: str, amount: Any = 0, *more: Any) -> None: ...

    for odd in (object(), {1j}, datetime(2027, 1, 1), "\ud800"):
        with pytest.raises(BadArgument, match="^argument 1 cannot be stored"):
            scheduler.enqueue("unknown", [odd])
        with pytest.raises(BadArgument, match="^the argument 'amount' cannot be stored"):
            pay.enqueue("ann", odd)
        with pytest.raises(BadArgument, match=r"^call 1 of this map .*: the argument 'amount' cannot be stored"):
            pay.map([("ann", 1), ("bob", odd)])
        with pytest.raises(BadArgument, match="^argument 3 cannot be stored"):
            pay.enqueue("ann", 1, odd)
    with pytest.raises(TooLarge):
        scheduler.enqueue("note", [bytes(scheduler.wheel.payload_bytes_max)])
    assert waiting(scheduler.wheel) == []


def test_seconds_of_1970_are_a_delay_that_was_given_as_a_time(scheduler: Scheduler, calls: list[Any]) -> None:
    note = scheduler.on("other")(calls.append)
    for wrong in (5, 0, 86_400.5):
        with pytest.raises(BadArgument, match=rf"at\({wrong}, .* is in the year 1970.*did you mean after\({wrong}, "):
            note.at(wrong, 1)
    assert waiting(scheduler.wheel) == []
    note.at(datetime(1970, 1, 2, tzinfo=UTC), 1)  # a datetime is meant
    note.at(1e9, 2)
    assert len(waiting(scheduler.wheel)) == 2


def test_a_payload_that_cannot_be_read_is_a_dead_letter_and_others_go_on(
    scheduler: Scheduler, calls: list[Any]
) -> None:
    no_such_year = b"\x92\x91\xc7\x0c\xff" + bytes(4) + b"\x7f" * 8 + b"\x80"
    payloads = [(b"\xc1", "msgpack"), (no_such_year, "msgpack"), (b"{", "json"), (b"", "pickle")]
    for payload, how in payloads:
        scheduler.wheel.enqueue(payload, topic="note", headers={ARGS: how})
        scheduler.enqueue("note", [how])
    scheduler.drain()
    assert [args[0] for args, _ in calls] == [how for _, how in payloads]
    dead = dead_letters(scheduler)
    assert [m.payload for m in dead] == [payload for payload, _ in payloads]
    assert all("arguments" in m.headers[REASON] for m in dead)
    assert counted(scheduler) == {"enqueued": 4, "fired": 8, "acknowledged": 4, "dead": 4}


def test_arguments_from_a_shell_are_json_and_a_payload_without_a_header_is_given_as_bytes(
    scheduler: Scheduler, calls: list[Any]
) -> None:
    scheduler.wheel.enqueue(b'[["ann", 3], {"x": [1.5, null]}]', topic="note", headers={ARGS: "json"})
    scheduler.wheel.enqueue(b"\x00raw", topic="note")
    scheduler.drain()
    assert calls == [(["ann", 3], {"x": [1.5, None]}), ([b"\x00raw"], {})]


def test_a_program_without_the_handler_enqueues_by_name_for_one_that_has_it(
    wheel_dir: Path, scheduler: Scheduler, calls: list[Any], clock: FakeClock
) -> None:
    with Scheduler(wheel_dir, clock=clock).wheel:
        other = Scheduler(wheel_dir, clock=clock)
        other.enqueue("note", ["a"], {"k": 1})
        other.enqueue("note", delay=5)
        other.stop()
    assert scheduler.drain() == 1
    assert calls == [(["a"], {"k": 1})]


def test_a_call_is_made_when_it_is_due_and_no_earlier(scheduler: Scheduler, calls: list[Any], clock: FakeClock) -> None:
    scheduler.enqueue("note", ["now"])
    scheduler.enqueue("note", ["after"], delay=timedelta(seconds=10))
    scheduler.enqueue("note", ["at"], at=NOW + timedelta(seconds=20))
    scheduler.enqueue("note", ["epoch"], at=START_US / 1e6 + 30)
    scheduler.enqueue("note", ["past"], at=NOW - timedelta(days=1))
    seen = []
    for _ in range(5):
        scheduler.drain()
        seen.append([args[0] for args, _ in calls])
        calls.clear()
        clock.advance(9.999_999 if len(seen) == 1 else 0.000_001 if len(seen) == 2 else 10)
    assert seen == [["past", "now"], [], ["after"], ["at"], ["epoch"]]


@pytest.mark.parametrize(
    "when", [{"delay": 1, "at": NOW}, {"delay": "soon"}, {"at": datetime(2027, 1, 1)}, {"delay": float("nan")}]
)
def test_a_time_that_makes_no_sense_is_refused(scheduler: Scheduler, when: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        scheduler.enqueue("note", **when)


def test_a_handler_knows_its_job(scheduler: Scheduler, clock: FakeClock) -> None:
    jobs: list[Job] = []

    @scheduler.on()
    def look(n: int) -> None:
        jobs.append(current_job())

    id_ = look.options(headers={"tenant": "a"}).after(5, 3)
    clock.advance(7)
    scheduler.drain()
    (job,) = jobs
    assert (job.id, job.fire_id, job.attempt, job.handler) == (id_, id_, 0, "look")
    assert (job.args, job.kwargs, job.headers["tenant"]) == ([3], {}, "a")
    assert (job.due, job.lateness_s) == (NOW + timedelta(seconds=5), 2.0)
    assert repr(job) == f"<Job look {id_} attempt 0>"
    with pytest.raises(BadArgument, match="no job"):
        current_job()


def test_the_fire_id_stays_over_all_attempts_while_the_id_changes(scheduler: Scheduler, clock: FakeClock) -> None:
    jobs: list[Job] = []

    @scheduler.on(retry=Retry(limit=2, delay_s=1, jitter=0))
    def flaky() -> None:
        jobs.append(current_job())
        raise OSError("no")

    id_ = flaky.enqueue()
    for _ in range(3):
        scheduler.drain()
        clock.advance(10)
    assert [j.attempt for j in jobs] == [0, 1, 2]
    assert {j.fire_id for j in jobs} == {id_}
    assert len({j.id for j in jobs}) == 3
    (dead,) = dead_letters(scheduler)
    assert dead.root == id_


def test_a_call_is_acknowledged_only_when_its_handler_has_returned(
    wheel_dir: Path, scheduler: Scheduler, clock: FakeClock
) -> None:
    while_it_ran = []

    @scheduler.on()
    def look() -> None:
        while_it_ran.append([m.id for m in scheduler.wheel.list()])

    id_ = look.enqueue()
    scheduler.drain()
    assert while_it_ran == [[id_]]
    assert waiting(scheduler.wheel) == []


def test_what_a_dead_program_was_calling_is_offered_again_by_the_next(
    wheel_dir: Path, scheduler: Scheduler, clock: FakeClock
) -> None:
    tried = []

    @scheduler.on()
    def crash(n: int) -> None:
        tried.append((current_job().attempt, n))
        if len(tried) == 2:
            raise KeyboardInterrupt

    for n in range(3):
        crash.enqueue(n)
    with pytest.raises(KeyboardInterrupt):
        scheduler.drain()
    assert tried == [(0, 0), (0, 1)]
    scheduler.drain()
    # the first had returned, and is not called again
    assert tried == [(0, 0), (0, 1), (0, 1), (0, 2)]


def test_importing_a_module_that_defines_a_scheduler_opens_nothing(tmp_path: Path) -> None:
    before = open_below(tmp_path)
    made = Scheduler(tmp_path / "none.wheel")

    @made.on("x", where="thread", retry=Retry(limit=1), timeout_s=3)
    def handler() -> None: ...

    made.every(60)(handler)
    made.stop()
    assert os.listdir(tmp_path) == []
    assert open_below(tmp_path) == before
    assert repr(made) == f"<Scheduler {tmp_path}/none.wheel>"


def test_the_wheel_is_made_by_the_first_enqueue(tmp_path: Path) -> None:
    made = Scheduler(tmp_path / "new.wheel")
    made.enqueue("x", delay=60)
    made.stop()
    with Wheel(tmp_path / "new.wheel") as wheel:
        assert [m.topic for m in wheel.list()] == ["x"]


def test_sync_holds_also_for_a_wheel_that_is_there_already(wheel_dir: Path) -> None:
    made = Scheduler(wheel_dir, sync="never")
    assert made.wheel._sync == "never"
    made.stop()
    again = Scheduler(wheel_dir)
    assert again.wheel._sync == "always"
    again.stop()


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"processes": True}, {"in_flight": 1.5}, {"catch_up_per_s": 0}, {"catch_up_per_s": float("inf")},
     {"unknown": "drop"}],
    ids=repr,
)  # fmt: skip
def test_a_scheduler_with_limits_that_make_no_sense_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match=next(iter(wrong))):
        Scheduler(tmp_path / "x", **wrong)


def test_two_functions_of_one_name_are_refused_and_the_same_one_again_is_not(scheduler: Scheduler) -> None:
    def first() -> None: ...

    def second() -> None: ...

    scheduler.on("x")(first)
    scheduler.on("x")(first)
    with pytest.raises(BadArgument, match="two handlers are named 'x'.*first.*second"):
        scheduler.on("x")(second)
    for name in ("", "x" * 300):
        with pytest.raises(BadArgument):
            scheduler.on(name)(first)
    with pytest.raises(BadArgument, match="write @scheduler.on"):
        scheduler.on(first)  # type: ignore[arg-type]


def test_a_function_runs_where_it_can(scheduler: Scheduler) -> None:
    async def coroutine() -> None: ...

    def plain() -> None: ...

    for function, where in ((coroutine, "thread"), (coroutine, "process"), (plain, "loop")):
        with pytest.raises(BadArgument, match="cannot run in"):
            scheduler.on("x", where=where)(function)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="not at the top level of a module"):
        scheduler.on("x", where="process")(plain)
    assert scheduler.on("c")(coroutine).terms.where == "loop"


def test_cancelled_by_id_or_key_a_call_is_not_made(scheduler: Scheduler, calls: list[Any], clock: FakeClock) -> None:
    by_id = scheduler.enqueue("note", ["id"], delay=5)
    scheduler.enqueue("note", ["key"], delay=5, key="k")
    assert scheduler.cancel(by_id)
    assert scheduler.cancel(key="k")
    assert not scheduler.cancel(by_id)
    for wrong in ({}, {"id_": by_id, "key": "k"}):
        with pytest.raises(BadArgument, match="an id or a key"):
            scheduler.cancel(**wrong)  # type: ignore[arg-type]
    clock.advance(10)
    assert scheduler.drain() == 0
    assert calls == []
    assert counted(scheduler) == {"enqueued": 2, "cancelled": 2}


def test_drain_is_refused_while_another_is_the_keeper(scheduler: Scheduler, wheel_dir: Path) -> None:
    from filewheel import Locked

    with Keeper(wheel_dir), pytest.raises(Locked):
        scheduler.drain()


def test_a_deadline_or_lateness_that_a_handler_defines_holds_for_what_is_enqueued_through_it(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    got = []

    @scheduler.on("strict", skip_late_s=2)
    def strict(n: int) -> None:
        got.append(n)

    strict.enqueue(1)
    strict.options(skip_late_s=60).enqueue(2)
    strict.options(deadline=NOW + timedelta(seconds=4)).enqueue(3)
    clock.advance(5)
    scheduler.drain()
    assert got == [2]
    assert len(dead_letters(scheduler)) == 2


def test_the_defaults_of_a_handler_hold_also_for_what_is_enqueued_by_its_name(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    got: list[int] = []
    strict = scheduler.on("strict", skip_late_s=2, coalesce="c")(got.append)
    scheduler.enqueue("strict", [1])
    scheduler.enqueue(strict, [2], skip_late_s=60)
    scheduler.enqueue(strict, [3], skip_late_s=60)
    clock.advance(5)
    scheduler.drain()
    assert got == [2]
    assert counted(scheduler) == {"enqueued": 3, "skipped": 1, "fired": 1, "acknowledged": 1, "coalesced": 1}


def test_drain_calls_everything_of_every_kind_that_is_due_and_leaves_what_is_not(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    got: list[str] = []

    @scheduler.on(concurrency=1, timeout_s=5)
    def plain(n: int) -> None:
        with current_job().transaction():
            scheduler.enqueue("coroutine", [n])
        got.append(f"plain {n}")

    @scheduler.on(rate_per_s=100)
    async def coroutine(n: int) -> None:
        got.append(f"coroutine {n}")

    @scheduler.on(batch=2)
    def many(jobs: list[Job]) -> None:
        got.append(f"many {[job.args[0] for job in jobs]}")

    @scheduler.on(retry=Retry(limit=1, delay_s=0, jitter=0))
    def broken() -> None:
        got.append(f"broken {current_job().attempt}")
        raise ValueError

    @scheduler.every(60)
    def tick() -> None:
        got.append("tick")

    scheduler.drain()  # plants the tick
    for n in range(3):
        plain.options(key=f"k{n}").enqueue(n)
        scheduler.enqueue("many", [n])
    broken.enqueue()
    plain.after(3600, 9)
    scheduler.enqueue("unknown")
    clock.advance(60)
    scheduler.drain()
    assert sorted(got) == [
        "broken 0", "broken 1", "coroutine 0", "coroutine 1", "coroutine 2", "many [0, 1]", "many [2]",
        "plain 0", "plain 1", "plain 2", "tick",
    ]  # fmt: skip
    assert [m.topic for m in waiting(scheduler.wheel)] == ["tick", "unknown", "plain"]
    assert [m.topic for m in dead_letters(scheduler)] == ["broken"]
    assert scheduler.drain() == 0


def test_a_key_lets_in_one_call_until_it_is_done_dead_or_cancelled(scheduler: Scheduler, clock: FakeClock) -> None:
    got: list[int] = []

    @scheduler.on(retry=Retry(limit=1, delay_s=60, jitter=0))
    def one(n: int) -> None:
        got.append(n)
        if n == 1 and current_job().attempt == 0:
            raise ValueError

    id_ = one.options(key="k").enqueue(1)
    with pytest.raises(KeyHeld):
        one.options(key="k").enqueue(2)
    assert one.options(key="k", on_conflict="keep").enqueue(2) == id_
    scheduler.drain()
    with pytest.raises(KeyHeld):  # it waits for its retry
        one.options(key="k").enqueue(2)
    clock.advance(60)
    scheduler.drain()
    one.options(key="k").after(5, 3)
    one.options(key="k", on_conflict="replace").enqueue(4)
    clock.advance(10)
    scheduler.drain()
    assert got == [1, 1, 4]
    assert waiting(scheduler.wheel) == []
