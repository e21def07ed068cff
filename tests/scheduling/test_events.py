"""Events: who is told what, what a failing subscriber changes (nothing), and what a log record holds."""

from __future__ import annotations

import dataclasses
import logging
import threading

import pytest

from filewheel import BadArgument
from filewheel.message import MessageId
from filewheel.scheduling.events import KINDS, Event, Events
from tests.support_wheel import NOW_US, StillClock, an_id


@pytest.fixture
def events() -> Events:
    return Events(StillClock())


def test_a_subscriber_gets_the_whole_event(events: Events) -> None:
    told: list[Event] = []
    events.subscribe(told.append)
    id_ = an_id(1_800_000_000)
    events.emit("retried", "mail", id_, attempt=2, due_us=5, seconds=0.5, error="boom", headers={"to": "ann"})
    assert told == [Event("retried", NOW_US, "mail", id_, 2, 5, 0.5, "boom", {"to": "ann"})]
    with pytest.raises(dataclasses.FrozenInstanceError):
        told[0].kind = "fired"  # type: ignore[misc]


def test_subscribers_get_the_kinds_that_they_asked_for_in_the_order_in_which_they_came(events: Events) -> None:
    told: list[str] = []
    events.subscribe(lambda e: told.append(f"all {e.kind}"))
    events.subscribe(lambda e: told.append(f"dead {e.kind}"), kinds=["dead", "dead", "timed_out"])
    for kind in ("fired", "dead", "timed_out"):
        events.emit(kind)
    assert told == ["all fired", "all dead", "dead dead", "all timed_out", "dead timed_out"]


def test_an_unsubscribed_callback_is_not_called_and_others_still_are(events: Events) -> None:
    told: list[str] = []

    def callback(event: Event) -> None:
        told.append(event.kind)

    first, second = events.subscribe(callback), events.subscribe(callback)
    first()
    first()
    events.emit("fired")
    assert told == ["fired"]
    second()
    events.emit("fired")
    assert told == ["fired"]
    assert not any(events.wants(kind) for kind in KINDS)


def test_nothing_is_built_for_what_nobody_wants() -> None:
    class Clock(StillClock):
        def now_us(self) -> int:
            raise AssertionError("an event was built")

    events = Events(Clock())
    events.subscribe(print, kinds=["dead"])
    events.emit("fired", "mail")
    assert events.wants("dead")
    assert not events.wants("fired")


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1)])
def test_a_subscriber_that_raises_is_logged_once_and_stops_nobody(
    events: Events, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    told: list[Event] = []

    def bad(_: Event) -> None:
        raise error

    events.subscribe(bad)
    events.subscribe(told.append)
    with caplog.at_level(logging.ERROR, "filewheel.scheduling.events"):
        for _ in range(3):
            events.emit("fired")
    assert len(told) == 3
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_ctrl_c_gets_out_of_a_subscriber(events: Events) -> None:
    def interrupted(_: Event) -> None:
        raise KeyboardInterrupt

    events.subscribe(interrupted)
    with pytest.raises(KeyboardInterrupt):
        events.emit("fired")


def test_a_kind_that_does_not_exist_is_refused_with_those_that_do(events: Events) -> None:
    with pytest.raises(BadArgument, match="'firred'.*fired"):
        events.emit("firred")
    with pytest.raises(BadArgument, match="'firred'"):
        events.subscribe(print, kinds=["fired", "firred"])
    with pytest.raises(BadArgument, match="not one str"):
        events.subscribe(print, kinds="fired")
    assert not events.wants("fired")


def test_a_subscriber_may_unsubscribe_and_subscribe_while_it_is_told(events: Events) -> None:
    told: list[str] = []
    ends = []

    def once(event: Event) -> None:
        told.append(event.kind)
        ends[0]()
        events.subscribe(lambda e: told.append(f"later {e.kind}"))

    ends.append(events.subscribe(once))
    events.emit("fired")
    events.emit("dead")
    assert told == ["fired", "later dead"]


def test_subscribing_from_many_threads_loses_no_subscription(events: Events) -> None:
    told: list[Event] = []
    threads = [threading.Thread(target=events.subscribe, args=(told.append,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events.emit("fired")
    assert len(told) == 20


def test_an_event_can_be_the_extra_of_a_log_record(caplog: pytest.LogCaptureFixture) -> None:
    id_ = MessageId.make(1, 2, 3)
    event = Event("dead", 1, "mail", id_, 4, 5, 0.5, "boom")
    with caplog.at_level(logging.INFO, "app"):
        logging.getLogger("app").info("died", extra=event.extra())
    (record,) = caplog.records
    assert {key: vars(record)[key] for key in event.extra()} == {
        "event": "dead", "handler": "mail", "message_id": str(id_), "attempt": 4, "due_us": 5, "seconds": 0.5,
        "error": "boom", "outcome": "",
    }  # fmt: skip


def test_a_program_that_configures_no_logging_still_sees_what_went_wrong() -> None:
    import subprocess
    import sys

    from tests.cli.support import environment

    code = "import logging, filewheel; logging.getLogger('filewheel.scheduling.x').error('heard')"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "heard\n")
