"""Every other place that takes a function refuses one that does nothing when it is called."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from filewheel import AsyncWheel, BadArgument, Keeper, Metrics, Wheel
from filewheel.kafka import Delivery, StatusServer
from filewheel.sets.replicator import Replicator
from filewheel.tools.dump import dump


async def coroutine(*args: object) -> None: ...


def generator(*args: object) -> Iterator[None]:
    yield


async def async_generator(*args: object) -> AsyncIterator[None]:
    yield


def dumped(path: Path, function: Any) -> None:
    with Wheel(path) as wheel:
        list(dump(wheel, function))


PLACES: dict[str, Callable[[Path, Any], object]] = {
    "Keeper.on_flush": lambda path, function: Keeper(path, on_flush=function),
    "Keeper.on_dead_dropped": lambda path, function: Keeper(path, on_dead_dropped=function),
    "Wheel.on_flush": lambda path, function: Wheel(path, on_flush=function),
    "AsyncWheel.on_flush": lambda path, function: AsyncWheel(path, on_flush=function),
    "Metrics.gauge": lambda path, function: Metrics().gauge("x", "X.", function),
    "dump": dumped,
    "Replicator": lambda path, function: Replicator(path, on_change=function),
    "Listener metrics": lambda path, function: StatusServer("127.0.0.1:0", metrics=function, health=lambda: None),  # type: ignore[arg-type,return-value]
    "Listener health": lambda path, function: StatusServer("127.0.0.1:0", metrics=str, health=function),
    "Delivery": lambda path, function: Delivery().add_done_callback(function),
}


@pytest.mark.parametrize("function", [coroutine, generator, async_generator])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_a_function_that_does_nothing_when_it_is_called_is_refused(
    wheel_dir: Path, place: Callable[[Path, Any], object], function: Any
) -> None:
    with pytest.raises(BadArgument, match="is a plain function, and .* returns a "):
        place(wheel_dir, function)


@pytest.mark.filterwarnings("error")
def test_a_gauge_that_hands_a_coroutine_back_has_no_value_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    metrics.gauge("x", "X.", lambda: coroutine())  # type: ignore[arg-type,return-value]
    assert metrics.read("x") is None
    assert "the gauge filewheel_x cannot be read" in caplog.text


@pytest.mark.filterwarnings("error")
def test_a_callback_of_a_delivery_that_hands_a_coroutine_back_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    delivery = Delivery()
    delivery.add_done_callback(lambda _: coroutine())
    delivery.set_exception(ValueError())
    assert "exception calling callback" in caplog.text
