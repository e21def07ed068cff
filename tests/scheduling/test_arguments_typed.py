"""Arguments with types: a handler gets what its annotations say, and the program's own types through its own pair."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NewType
from uuid import UUID

import pytest

from filewheel import AsyncScheduler, BadArgument, Retry, Scheduler, current_job
from filewheel.scheduling.arguments import Parameters, Unfit
from filewheel.testing import FakeClock
from tests.cli.support import Fw
from tests.scheduling import codec_targets as targets
from tests.scheduling.codec_targets import Colour, Money, Point, decode, encode
from tests.scheduling.runners.test_threads import until
from tests.scheduling.stage import dead_letters

ID = UUID(int=5)
Shade = NewType("Shade", Colour)


@dataclass
class Bill:
    """Money that is owed."""

    amount: Decimal
    due: date | None = None


def test_a_handler_gets_the_types_that_were_enqueued(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.on()
    def job(id_: UUID, price: Decimal, day: date, wait: timedelta, colour: Colour, point: Point) -> None:
        seen.append((id_, price, day, wait, colour, point))

    given = (ID, Decimal("1.10"), date(2027, 1, 1), timedelta(seconds=1.5), Colour.RED, Point(1, Colour.RED, ("a",)))
    job.enqueue(*given)
    scheduler.drain()
    assert seen == [given]


@pytest.mark.parametrize(
    ("hint", "stored", "found"),
    [
        (Colour, "red", Colour.RED),
        (Colour, None, None),
        (Shade, "red", Colour.RED),
        (Colour | None, "red", Colour.RED),
        (int | Colour, 5, 5),
        (int | Colour, "red", Colour.RED),
        (str | Colour, "red", "red"),
        (list[Colour], ["red", "red"], [Colour.RED] * 2),
        (Sequence[Colour], ["red"], [Colour.RED]),
        (list[list[Colour]], [["red"]], [[Colour.RED]]),
        (list, ["red"], ["red"]),
        (list[int], ["red"], ["red"]),
        (tuple, [1, 2], (1, 2)),
        (tuple[Colour, ...], ["red"], (Colour.RED,)),
        (tuple[int, Colour], [1, "red"], (1, Colour.RED)),
        (set[Colour], ["red", "red"], {Colour.RED}),
        (frozenset, [1, 1], frozenset({1})),
        (dict[str, Colour], {"a": "red"}, {"a": Colour.RED}),
        (dict[Colour, int], {"red": 1}, {Colour.RED: 1}),
        (Mapping[str, Point], {"a": {"x": 1}}, {"a": Point(1)}),
        (Point, {"x": 1, "inner": {"x": 2, "tags": ["t"]}}, Point(1, inner=Point(2, tags=("t",)))),
        (Point, None, None),
        (Point | Colour, {"x": 1}, Point(1)),
        (int, "no number", "no number"),
        (UUID, str(ID), ID),
        (UUID, ID, ID),
        (UUID, None, None),
        (Decimal, "9.5", Decimal("9.5")),
        (Decimal, 9.1, Decimal("9.1")),
        (Decimal, 9, Decimal(9)),
        (date, "2027-01-31", date(2027, 1, 31)),
        (time, "09:30", time(9, 30)),
        (datetime, "2027-01-31T09:30+01:00", datetime(2027, 1, 31, 8, 30, tzinfo=UTC)),
        (timedelta, "1h30m", timedelta(minutes=90)),
        (timedelta, 90.5, timedelta(seconds=90.5)),
        (list[UUID], [str(ID)], [ID]),
        (dict[UUID, Decimal], {str(ID): "1"}, {ID: Decimal(1)}),
        (UUID | None, str(ID), ID),
        (str | UUID, str(ID), str(ID)),
        (UUID | date, "2027-01-31", date(2027, 1, 31)),
        (datetime | date, "2027-01-31", date(2027, 1, 31)),
        (Point | UUID, str(ID), ID),
        (Point | UUID, ID, ID),
        (Any, {"x": 1}, {"x": 1}),
    ],
)
def test_an_annotation_says_what_a_stored_value_becomes(hint: Any, stored: Any, found: Any) -> None:
    def function(a: int, value: Any, *rest: Any, **more: Any) -> None: ...

    function.__annotations__ = {"value": hint, "rest": hint, "more": hint}
    convert = Parameters(function, None).convert
    assert convert([1, stored], {}) == ([1, found], {})
    assert convert([1], {"value": stored}) == ([1], {"value": found})
    assert convert([1, stored, stored, stored], {"x": stored}) == ([1, found, found, found], {"x": found})
    assert type(convert([1, stored], {})[0][1]) is type(found)


@pytest.mark.parametrize(
    ("hint", "stored", "said"),
    [
        (Colour, "blue", "'blue' is not a valid Colour"),
        (Point, {"x": 1, "z": 2}, "Point has no field 'z'"),
        (Point, {}, "missing 1 required positional argument: 'x'"),
        (tuple[int, int], [1], "zip"),
        (Point | Colour, {"z": 1}, "Point has no field 'z'"),
        (UUID, "6f96", "'6f96' is not a UUID"),
        (UUID, 5, "5 is not a UUID"),
        (Decimal, "nine", "'nine' is not a Decimal"),
        (Decimal, True, "True is not a Decimal"),
        (date, "31.1.2027", "is not a date, such as"),
        (time, "9 o'clock", "is not a time of day"),
        (datetime, "2027-01-31T09:30", "is not a datetime with its zone"),
        (datetime, "9999-12-31T23:59:59-12:00", "is not a datetime with its zone"),
        (timedelta, "1 month", "is not a duration"),
        (timedelta, 1e300, "is not a duration"),
        (Point | UUID, "6f96", "'6f96' is not a UUID"),
        (Bill, {"amount": "nine"}, "Bill.amount: 'nine' is not a Decimal"),
        (list[Bill], [{"amount": []}], "Bill.amount: .* is not a Decimal"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_its_parameter(hint: Any, stored: Any, said: str) -> None:
    def function(value: Any) -> None: ...

    function.__annotations__ = {"value": hint}
    with pytest.raises(Unfit, match=f"the argument 'value' cannot be decoded: .*{said}"):
        Parameters(function, None).convert([stored], {})


def test_annotations_that_cannot_be_read_leave_the_arguments_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    def function(a: Colour, b: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037

    assert Parameters(function, None).convert(["red", 1], {}) == (["red", 1], {})
    assert "the annotations of" in caplog.text


def test_an_argument_that_does_not_fit_fails_the_attempt_with_a_clear_text(
    scheduler: Scheduler, clock: FakeClock
) -> None:
    @scheduler.on(retry=Retry(limit=1, delay_s=1, jitter=0))
    def job(point: Point) -> None: ...

    scheduler.enqueue("job", [{"y": 1}])
    scheduler.drain()
    clock.advance(1)
    scheduler.drain()
    (letter,) = dead_letters(scheduler)
    assert letter.reason == "the argument 'point' cannot be decoded: Unfit: Point has no field 'y' (after 2 attempts)"
    assert len(letter.attempts) == 2


def test_the_programs_own_types_come_through_its_own_pair(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel_dir, clock=clock, encode=encode, decode=decode)
    seen: list[Any] = []

    @scheduler.on()
    def pay(money: Money, note: str = "") -> None:
        seen.append((money, note, current_job().args))

    @scheduler.on()
    async def later(money: Money) -> None:
        seen.append(money)

    pay.enqueue(Money(5), note="x")
    later.enqueue(Money(6))
    scheduler.enqueue("pay", [Money(7)])
    scheduler.drain()
    assert seen == [(Money(5), "x", [Money(5)]), Money(6), (Money(7), "", [Money(7)])]
    (message,) = [m for m in [scheduler.wheel.get(pay.after(60, Money(8)))] if m is not None]
    assert message.args == [{"cents": 8}]
    with pytest.raises(BadArgument, match="encode= cannot store .*: TypeError: only money"):
        pay.enqueue(object())  # type: ignore[arg-type]
    scheduler.stop()


def test_a_schedule_stores_its_arguments_in_the_same_way(wheel_dir: Path, clock: FakeClock) -> None:
    scheduler = Scheduler(wheel_dir, clock=clock, encode=encode, decode=decode)
    seen: list[Any] = []

    @scheduler.every(60, args=[Money(1), ID])
    def pay(money: Money, id_: UUID) -> None:
        seen.append((money, id_))

    scheduler.drain()
    clock.advance(120)
    scheduler.drain()
    scheduler.schedule("more", 60, "pay", [Money(2), ID])
    clock.advance(60)
    scheduler.drain()
    assert (Money(1), ID) in seen
    assert (Money(2), ID) in seen
    scheduler.stop()


def test_an_error_of_decode_is_a_failure_that_is_retried(wheel_dir: Path, clock: FakeClock) -> None:
    broken = [True]

    def picky(value: Any, annotation: Any) -> Any:
        if broken:
            raise KeyError("old")
        return value

    scheduler = Scheduler(wheel_dir, clock=clock, decode=picky)
    seen = []

    @scheduler.on(retry=Retry(limit=1, delay_s=1, jitter=0))
    def job(a: int) -> None:
        seen.append(a)

    job.enqueue(1)
    scheduler.drain()
    assert seen == []
    broken.clear()
    clock.advance(1)
    scheduler.drain()
    assert seen == [1]
    scheduler.stop()


def test_in_a_process_they_come_back_too(wheel_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FILEWHEEL_TEST_WHEEL", str(wheel_dir))
    scheduler = Scheduler(wheel_dir, processes=1, encode=encode, decode=decode)
    note = scheduler.on("note", where="process")(targets.note.function)
    done = until(scheduler, "acknowledged")
    out = tmp_path / "out"
    note.enqueue(str(out), ID, Point(1, tags=("a",)), Money(5))
    with scheduler:
        done()
    assert json.loads(out.read_text()) == ["UUID", True, True]
    scheduler.stop()


def test_a_pair_that_no_process_can_import_is_refused(wheel_dir: Path) -> None:
    scheduler = Scheduler(wheel_dir, decode=lambda value, annotation: value)
    with pytest.raises(BadArgument, match="of encode= or decode= is not at the top level"):
        scheduler.on("note", where="process")(targets.note.function)


@pytest.mark.parametrize("name", ["encode", "decode"])
def test_what_is_no_function_is_refused(tmp_path: Path, name: str) -> None:
    for make in (Scheduler, AsyncScheduler):
        with pytest.raises(BadArgument, match=f"{name} is a function"):
            make(tmp_path / "w", **{name: 5})  # type: ignore[arg-type]


def test_the_shell_gives_a_dataclass_as_an_object_and_an_enum_as_its_value(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.on()
    def job(point: Point, colour: Colour) -> None:
        seen.append((point, colour))

    Fw(Path(scheduler.path))("enqueue", "--in", "0", "--topic", "job", "--args", '[{"x": 3, "tags": ["a"]}, "red"]')
    with Scheduler(scheduler.path) as live:
        live.on("job")(job.function)
        done = until(live, "acknowledged")
        done()
    assert seen == [(Point(3, tags=("a",)), Colour.RED)]
    live.stop()


def test_the_shell_gives_a_uuid_and_a_decimal_as_text_also_within_a_dataclass(scheduler: Scheduler) -> None:
    seen: list[Any] = []

    @scheduler.on(retry=Retry(limit=0))
    def invoice(order: UUID, bill: Bill) -> None:
        seen.append((order, bill))

    fw = Fw(Path(scheduler.path))
    for order, amount in (str(ID), "9.5"), (str(ID), "nine"):
        arguments = json.dumps([order, {"amount": amount, "due": "2027-01-31"}])
        fw("enqueue", "--at", "@1000", "--topic", "invoice", "--args", arguments)
    scheduler.drain()
    assert seen == [(ID, Bill(Decimal("9.5"), date(2027, 1, 31)))]
    (letter,) = dead_letters(scheduler)
    assert letter.reason is not None
    assert letter.reason.startswith("the argument 'bill' cannot be decoded: Unfit: Bill.amount: 'nine' is not a Dec")


def test_inspect_shows_them_as_python_writes_them_and_as_text_in_json(scheduler: Scheduler) -> None:
    @scheduler.on()
    def job(*args: Any) -> None: ...

    id_ = job.after(60, ID, Decimal("1.5"), date(2027, 1, 2), timedelta(seconds=90), Point(1))
    fw = Fw(Path(scheduler.path))
    text = fw("inspect", "--no-json", str(id_)).out
    assert f"job(UUID('{ID}'), Decimal('1.5'), datetime.date(2027, 1, 2), datetime.timedelta(seconds=90), " in text
    (shown,) = fw("inspect", str(id_)).json
    assert shown["args"] == [str(ID), "1.5", "2027-01-02", 90.0, {"x": 1, "colour": "red", "tags": [], "inner": None}]
