"""What a reader of the documentation gets wrong once is refused with a word, and not done by halves."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from filewheel import AsyncScheduler, BadArgument, Scheduler, Wheel
from filewheel.disk.disk import SYSTEM
from tests.support import FaultyDisk
from tests.support_wheel import StillClock


def test_options_above_a_schedule_are_refused_because_they_would_be_lost(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w")
    with pytest.raises(BadArgument, match="write @scheduler.every above @scheduler.on"):

        @scheduler.on("report", timeout_s=5)
        @scheduler.every(60)
        def report() -> None: ...


@pytest.mark.parametrize("kind", [Scheduler, AsyncScheduler])
def test_an_option_that_on_does_not_have_is_refused_by_the_name_that_was_called_with_the_nearest(
    tmp_path: Path, kind: type[Scheduler | AsyncScheduler]
) -> None:
    scheduler = kind(tmp_path / "w")
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.on\(\) got .* 'retries'\. Try: retry=$"):
        scheduler.on(retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="'zzz'$"):
        scheduler.on("name", zzz=3)  # type: ignore[call-overload]


def test_what_a_function_has_as_attributes_does_not_change_its_handler(tmp_path: Path) -> None:
    called: list[str] = []

    def work() -> None:
        called.append("work")

    work.name = work._name = "another"  # type: ignore[attr-defined]
    scheduler = Scheduler(tmp_path / "w", clock=StillClock())
    handler = scheduler.on("work")(work)
    handler.enqueue()
    assert (scheduler.drain(), called) == (1, ["work"])
    scheduler.stop()


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_a_handler_that_stops_its_own_scheduler_hangs_nothing_and_is_acknowledged(tmp_path: Path, where: str) -> None:
    scheduler = Scheduler(tmp_path / "w")

    @scheduler.on("thread")
    def thread() -> None:
        scheduler.stop()

    @scheduler.on("loop")
    async def loop() -> None:
        scheduler.stop()

    scheduler.enqueue(where)
    running = threading.Thread(target=scheduler.run)
    running.start()
    running.join(timeout=120)
    assert not running.is_alive()
    assert not list(scheduler.wheel.list())
    scheduler.stop()


def test_a_call_by_name_of_a_handler_that_is_known_is_as_one_through_the_handler(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=StillClock())

    @scheduler.on("poll", skip_late_s=5, coalesce=True)
    def poll(what: str) -> None: ...

    by_name = scheduler.enqueue("poll", ["x"])
    through = poll.enqueue("x")
    assert scheduler.wheel.get(by_name).headers == scheduler.wheel.get(through).headers
    own = scheduler.enqueue("poll", ["x"], skip_late_s=60)
    assert scheduler.wheel.get(own).headers["filewheel.skip_late_s"] == "60.0"
    with pytest.raises(BadArgument, match="poll.*too many positional arguments"):
        scheduler.enqueue(poll, ["x", "y"])
    scheduler.stop()


def test_a_schedule_with_arguments_that_its_function_does_not_take_is_refused(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w", clock=StillClock())

    @scheduler.on("poll")
    def poll(what: str) -> None: ...

    with pytest.raises(BadArgument, match="missing a required argument: 'what'"):
        scheduler.every(60)(poll)
    with pytest.raises(BadArgument, match="unexpected keyword argument 'where'"):
        scheduler.schedule("p", 60, "poll", ["x"], {"where": "y"})
    assert scheduler.drain() == 0
    assert not scheduler.wheel.stats().pending
    scheduler.stop()


def test_a_scheduler_with_a_sync_of_its_own_flushes_by_that_on_a_wheel_that_has_another(tmp_path: Path) -> None:
    flushes: list[str] = []

    def note(what: str, name: str) -> None:
        if what == "fdatasync" and name.startswith("journal/"):
            flushes.append(name)

    Wheel.create(tmp_path / "w", sync="always").close()
    scheduler = Scheduler(tmp_path / "w", sync="never", env=SYSTEM.using(disk=lambda path: FaultyDisk(path, note)))
    scheduler.enqueue("work")  # its journal is made, which flushes
    flushes.clear()
    scheduler.enqueue("work")
    assert not flushes
    scheduler.stop()


def test_every_without_parentheses_and_a_delay_in_words_name_what_is_meant(tmp_path: Path) -> None:
    scheduler = Scheduler(tmp_path / "w")
    with pytest.raises(BadArgument, match=r"every takes a time .*@every\(60\)"):
        scheduler.every(lambda: None)  # type: ignore[arg-type,type-var]

    @scheduler.on("mail")
    def mail() -> None: ...

    with pytest.raises(BadArgument, match=r"timedelta\(minutes=5\)"):
        mail.after("5m")  # type: ignore[arg-type]
