"""DelayProducer and AsyncDelayProducer: what they send, and how they fail. Half of the tests need no broker."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from filewheel import BadArgument, Closed, ClusterError, Forked, MissingTopic, NoBroker, OtherLoop, TooLarge
from filewheel.kafka import AsyncDelayProducer, DelayProducer, Policy
from filewheel.kafka.client.group import record_of
from filewheel.kafka.client.quiet_log import QuietLog
from filewheel.kafka.produce.request import Requests
from filewheel.kafka.records.headers import Cancel, Delayed, delayed_of
from filewheel.kafka.records.record import Outgoing, Record
from tests.cli.support import finish, start, stopped
from tests.support import FakeClock

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

NOBODY = "localhost:1"
"""No broker listens there."""
NOW_MS = 1_800_000_000_000
SHORT: dict[str, Any] = {"timeout_s": 0.5}


def requests(**options: Any) -> Requests:
    return Requests("delays", **{"horizon": None, "keyed": False, "clock": FakeClock(NOW_MS * 1000), **options})


def asked(made: Requests, target: Any = "mails", value: Any = b"hello", **more: Any) -> Outgoing:
    none = dict.fromkeys(("delay", "at", "key", "target_key", "target_partition", "headers"))
    return made.record(target, value, **{**none, **more})


def understood(record: Outgoing, policy: Policy | None = None) -> Any:
    """What a node makes of it, if the broker gave it the time of the call."""
    read = Record(0, 0, record.key, record.value, record.headers, NOW_MS)
    return delayed_of(read, policy or Policy("delays"))


# -- records -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("due", "due_ms"),
    [
        ({}, NOW_MS),
        ({"delay": 300}, NOW_MS + 300_000),
        ({"delay": 0.0001}, NOW_MS + 1),
        ({"delay": timedelta(hours=2)}, NOW_MS + 7_200_000),
        ({"at": 1_800_000_060}, NOW_MS + 60_000),
        ({"at": datetime.fromtimestamp(1_800_000_000.0004, UTC)}, NOW_MS + 1),
        ({"at": 5}, 5000),
    ],
)
def test_a_node_reads_the_due_that_the_call_asked_for_and_never_an_earlier_one(
    due: dict[str, Any], due_ms: int
) -> None:
    assert understood(asked(requests(), **due)) == Delayed(due_ms * 1000, "mails")


def test_key_and_partition_of_the_target_and_headers_arrive() -> None:
    record = asked(
        requests(), delay=1, key="k", target_key="ann", target_partition=3, headers={"a": "b", "c": None, "d": b"\xff"}
    )
    assert understood(record) == Delayed((NOW_MS + 1000) * 1000, "mails", b"ann", 3)
    assert record.key == b"k"
    assert list(record.headers)[:3] == [("a", b"b"), ("c", None), ("d", b"\xff")]


def test_the_headers_of_a_received_record_can_be_passed_on() -> None:
    old = [("filewheel-due-ms", b"1"), ("filewheel-fired-ms", b"2"), ("scheduler-target-topic", b"x"), ("mine", b"y"),
           ("filewheel-root", b"r"), ("filewheel-first-due-ms", b"q"), ("scheduler-epoch", b"0")]  # fmt: skip
    record = asked(requests(), delay=60, headers=old)
    assert understood(record) == Delayed((NOW_MS + 60_000) * 1000, "mails")
    assert ("mine", b"y") in record.headers


@pytest.mark.parametrize("name", ["filewheel-due-ms", "scheduler-epoch", "scheduler-target-topic"])
def test_a_header_that_asks_for_a_delay_is_refused_unless_the_service_delivered_it(name: str) -> None:
    with pytest.raises(BadArgument, match=f"the header {name} is set by the arguments. Try: give "):
        asked(requests(), delay=60, headers=[("mine", b"y"), (name, b"5")])
    for stamp in ("filewheel-fired-ms", "filewheel-error"):  # delivered, and a dead letter
        asked(requests(), delay=60, headers=[(name, b"5"), (stamp, b"6")])


def test_a_delay_below_zero_is_refused_because_the_time_that_it_counts_from_is_not_known() -> None:
    with pytest.raises(BadArgument, match="delay is at least 0 seconds, not -5. Try: at="):
        asked(requests(), delay=-5)


def test_a_delay_beyond_the_horizon_is_refused_by_the_sender() -> None:
    made = requests(horizon=timedelta(days=14))
    asked(made, delay=14 * 86400)
    with pytest.raises(BadArgument, match="horizon is 1.2096e\\+06 s"):
        asked(made, delay=14 * 86400 + 1)
    with pytest.raises(BadArgument, match="horizon"):
        asked(made, at=NOW_MS / 1000 + 15 * 86400)


def test_a_cancellation_is_what_a_keyed_node_understands_and_others_have_none() -> None:
    keyed = requests(keyed=True)
    assert understood(keyed.cancellation("k"), Policy("delays", keyed=True)) == Cancel(b"k")
    with pytest.raises(BadArgument, match="no unique keys.*keyed=True"):
        requests().cancellation("k")
    with pytest.raises(BadArgument, match="without a value cancels"):
        asked(keyed, value=None, key="k")
    assert asked(requests(), value=None, key="k").value is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"target": b"mails"}, "target is the name of a topic"),
        ({"target": ""}, "target is the name of a topic"),
        ({"target": "a b"}, "target is the name of a topic"),
        ({"target": "delays"}, "which the service itself reads"),
        ({"target": "delays.cursor"}, "which the service itself reads"),
        ({"target": "delays.dlt"}, "where the service puts what it cannot deliver"),
        ({"target": "__transaction_state"}, "which is the brokers' own"),
        ({"value": "text"}, r"value is bytes, or None.*value.encode\(\)"),
        ({"value": 5}, "value is bytes"),
        ({"delay": "5m"}, "delay is seconds"),
        ({"delay": 1, "at": 5}, "delay or at, not both"),
        ({"at": datetime(2030, 1, 1)}, "no time zone"),
        ({"at": NOW_MS}, "after the year 9999"),
        ({"key": 5}, "key is text or bytes"),
        ({"key": "\ud800"}, "key is .* not valid Unicode"),
        ({"target_key": []}, "target_key is text or bytes"),
        ({"target_partition": -1}, "target_partition is a number from 0"),
        ({"target_partition": True}, "target_partition is a number from 0"),
        ({"headers": 5}, "headers are a dict"),
        ({"headers": "ab"}, "headers are a dict"),
        ({"headers": [("a",)]}, "headers are a dict"),
        ({"headers": {1: "a"}}, "headers are a dict"),
        ({"headers": {"\ud800": "a"}}, "not valid Unicode"),
        ({"headers": {"a": 1}}, "header a is text or bytes"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_sent(given: dict[str, Any], named: str) -> None:
    with pytest.raises(BadArgument, match=named):
        asked(requests(), **given)


@pytest.mark.parametrize("producer", [DelayProducer, AsyncDelayProducer])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"topic": "a b"}, "topic is the name"),
        ({"bootstrap": ""}, "bootstrap is the address"),
        ({"bootstrap": 5}, "bootstrap is the address"),
        ({"horizon": 0}, "horizon is more than 0"),
        ({"horizon": "5m"}, "delay is seconds"),
        ({"keyed": 1}, "keyed is True or False"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"properties": "a=b"}, "properties is a dict"),
    ],
)
def test_wrong_options_of_a_producer_are_named(producer: Any, given: dict[str, Any], named: str) -> None:
    options = {"bootstrap": NOBODY, "topic": "delays", **given}
    with pytest.raises(BadArgument, match=named):
        producer(options.pop("bootstrap"), **options)


def test_arguments_can_be_checked_without_a_client() -> None:
    for producer in (DelayProducer(NOBODY, topic="delays"), AsyncDelayProducer(NOBODY, topic="delays")):
        producer.check("mails", b"", delay=5)
        with pytest.raises(BadArgument):
            producer.check("mails", b"", delay=5, at=5)
        assert producer._handle.opened() is None


def test_a_wrong_setting_of_the_client_is_named_at_the_first_use() -> None:
    with pytest.raises(BadArgument, match='No such configuration property: "nonsense"'):
        DelayProducer(NOBODY, topic="delays", properties={"nonsense": 1}).send("mails", b"")


# -- no broker -----------------------------------------------------------------------------------------------


def test_without_a_broker_a_with_ends_with_an_error_and_few_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, logger="filewheel.kafka"),
        pytest.raises(NoBroker, match="localhost:1.*check the address"),
        DelayProducer(NOBODY, topic="delays", timeout_s=1.5),
    ):
        pytest.fail("there is no broker")
    assert len(caplog.records) < 10


def test_an_unseen_failure_is_raised_by_flush_and_a_seen_one_is_not() -> None:
    producer = DelayProducer(NOBODY, topic="delays", **SHORT)
    producer.send("mails", b"1")
    with pytest.raises(NoBroker, match="did not answer within 0.5 s"):
        producer.flush()
    seen = producer.send("mails", b"2")
    assert isinstance(seen.exception(30), NoBroker)
    assert not seen.cancel()
    producer.flush()
    producer.send("mails", b"3")
    with pytest.raises(NoBroker):
        producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send("mails", b"4")
    with pytest.raises(Closed):
        producer.flush()
    assert not [t for t in threading.enumerate() if t.name == "filewheel-kafka-sender"]


def test_the_error_of_the_body_counts_and_the_other_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    producer = DelayProducer(NOBODY, topic="delays", **SHORT)
    producer.send("mails", b"1")
    with pytest.raises(KeyError):
        try:
            raise KeyError("body")
        except KeyError as exc:
            producer.__exit__(KeyError, exc, None)
            raise
    assert "did not answer" in caplog.text


def test_a_queue_that_stays_full_is_an_error_after_the_time_out() -> None:
    small = {"queue.buffering.max.messages": 2}
    producer = DelayProducer(NOBODY, topic="delays", properties=small, timeout_s=600)
    producer._handle.get().timeout_s = 0.2  # that of the records is longer: no room is made
    for _ in range(2):
        producer.send("mails", b"")
    with pytest.raises(NoBroker, match="queue of unsent records is full"):
        producer.send("mails", b"")
    producer._close_sender()


def test_a_close_answers_what_is_under_way() -> None:
    producer = DelayProducer(NOBODY, topic="delays", timeout_s=600)
    future = producer.send("mails", b"")
    with pytest.raises(NoBroker, match="1 records have no answer"):
        producer.flush(0)
    sender = producer._handle.get()
    producer._close_sender()
    assert isinstance(future.exception(0), ClusterError)
    with pytest.raises(Closed):
        sender.send(Outgoing("delays", None, b""), lambda answer: None)


def test_a_producer_that_another_process_opened_is_refused() -> None:
    producer = DelayProducer(NOBODY, topic="delays", timeout_s=600)
    sender = producer._handle.get()
    producer._handle._pid += 1
    with pytest.raises(Forked, match="after the fork"):
        producer.send("mails", b"")
    producer.close()
    sender.close()


def test_ctrl_c_ends_a_command_that_waits_for_a_broker_and_a_with_whose_records_have_no_answer() -> None:
    words = ("-b", NOBODY, "-t", "delays", "--in", "1", "--target", "mails", "x")
    process = start("kafka", "produce", *words)
    with stopped(process):
        assert process.stderr is not None
        assert "refused" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert finish(process, timeout=120).code == 130
    producer = DelayProducer(NOBODY, topic="delays", timeout_s=600)
    future = producer.send("mails", b"")
    producer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert isinstance(future.exception(0), ClusterError)


FORK = """
import logging, os, sys, warnings
warnings.simplefilter("ignore")
logging.getLogger("filewheel").addHandler(logging.NullHandler())  # a fork while a thread writes to stderr hangs Python
from filewheel import Forked
from filewheel.kafka import DelayProducer
producer = DelayProducer("localhost:1", topic="delays", timeout_s=600)
future = producer.send("mails", b"")
child = os.fork()
if child == 0:
    try:
        producer.send("mails", b"")
    except Forked:
        producer.close()
        sys.exit(7)  # ends as any program: what it has is freed
    sys.exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert not future.done()
os._exit(code)
"""


def test_in_a_forked_child_a_producer_is_refused_and_the_child_ends() -> None:
    process = start(command=[sys.executable, "-c", FORK])
    with stopped(process):
        done = finish(process, timeout=120)
    assert done.code == 7, done.err


FORK_OF_OTHERS = """
import gc, os, sys
import tests.crash.mutate
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from filewheel.kafka.client.trouble import made
for kind, more in ((Consumer, {"group.id": "g"}), (Producer, {"transactional.id": "t"}), (AdminClient, {})):
    one = made(kind, {"bootstrap.servers": "localhost:1", "log_level": 0, **more})
    if kind is Consumer:
        one.subscribe(["delays"])
        one.poll(0.2)
    circle = [one]
    circle.append(circle)  # nobody uses it any more; the parent has not collected it yet
    del one
    del circle
child = os.fork()
if child == 0:
    gc.collect()
    sys.exit(7)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
os._exit(code)
"""


def test_a_child_that_collects_clients_of_its_parent_goes_on() -> None:
    process = start(command=[sys.executable, "-c", FORK_OF_OTHERS])
    with stopped(process):
        done = finish(process, timeout=120)
    assert done.code == 7, done.err


def test_a_line_of_the_client_that_repeats_is_written_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(0)
    log = QuietLog(logging.getLogger("quiet"), clock)
    for n in range(500):
        log.log(logging.WARNING, "%s: connect to port %d failed", "x", n)
    log.log(logging.WARNING, "another")
    assert [r.getMessage() for r in caplog.records] == ["x: connect to port 0 failed", "another"]
    clock.advance(61)
    log.log(logging.WARNING, "x: connect to port 7 failed")
    assert caplog.records[-1].getMessage() == "x: connect to port 7 failed (499 more like this)"


def test_a_trouble_that_usually_passes_is_written_when_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock(0)
    log = QuietLog(logging.getLogger("quiet"), clock)
    text = (
        "[thrd:main]: Failed to acquire idempotence PID from broker %d: Broker: Coordinator load in progress: retrying"
    )
    for _ in range(3):  # three starts, an hour apart
        for n in range(8):
            log.log(logging.WARNING, text, n)
            clock.advance(1)
        clock.advance(3600)
    assert caplog.records == []
    for n in range(12):
        log.log(logging.WARNING, text, n)
        clock.advance(1)
    assert [r.getMessage().endswith("retrying (10 more like this)") for r in caplog.records] == [True]


def test_without_a_broker_the_asynchronous_one_fails_too_and_closes_twice() -> None:
    async def main() -> None:
        producer = AsyncDelayProducer(NOBODY, topic="delays", **SHORT)
        with pytest.raises(NoBroker):
            await producer.send("mails", b"")
        with pytest.raises(NoBroker):
            async with AsyncDelayProducer(NOBODY, topic="delays", **SHORT):
                pytest.fail("there is no broker")
        task = asyncio.ensure_future(producer.send("mails", b""))
        await asyncio.sleep(0)
        task.cancel()
        await producer.close()
        await producer.close()
        with pytest.raises(Closed):
            await producer.send("mails", b"")

    asyncio.run(main())


def test_another_event_loop_is_refused() -> None:
    producer = AsyncDelayProducer(NOBODY, topic="delays", **SHORT)

    async def fails() -> None:
        with pytest.raises(NoBroker):
            await producer.send("mails", b"")

    async def other() -> None:
        with pytest.raises(OtherLoop):
            await producer.send("mails", b"")

    asyncio.run(fails())
    asyncio.run(other())
    sender = producer._handle.end()
    assert sender is not None
    sender.close()


# -- a broker ------------------------------------------------------------------------------------------------


def read_all(bootstrap: str, topic: str, count: int) -> list[Record]:
    """The first records of a topic, once there are as many."""
    from confluent_kafka import Consumer

    from tests.support import eventually

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Record] = []
    eventually(
        lambda: found.extend(record_of(m) for m in consumer.consume(100, 0.2) if not m.error()) or len(found) >= count,
        timeout_s=60,
    )
    consumer.close()
    return found


def test_records_and_their_cancellation_are_in_one_partition_of_the_topic(
    kafka: str, topic: Callable[..., str]
) -> None:
    delays = topic(4, **{"message.timestamp.type": "LogAppendTime"})
    with DelayProducer(kafka, topic=delays, keyed=True) as producer:
        sent = [producer.send("mails", b"%d" % n, delay=60, key=f"k{n}").result(60) for n in range(8)]
        gone = [producer.cancel(f"k{n}").result(60) for n in range(8)]
    assert [one.partition for one in sent] == [one.partition for one in gone]
    assert len({one.partition for one in sent}) > 1
    found = {f"{delays}-{r.partition}-{r.offset}": r for r in read_all(kafka, delays, 16)}
    policy = Policy(delays, keyed=True)
    for n, (one, other) in enumerate(zip(sent, gone, strict=True)):
        record = found[one.id]
        assert record.value == b"%d" % n
        verdict = delayed_of(record, policy)
        assert isinstance(verdict, Delayed)
        assert verdict.due_us == (record.timestamp_ms + 60_000) * 1000
        assert delayed_of(found[other.id], policy) == Cancel(b"k%d" % n)


def test_a_full_queue_makes_the_caller_wait(kafka: str, topic: Callable[..., str]) -> None:
    delays = topic(1)
    small = {"queue.buffering.max.messages": 10}
    with DelayProducer(kafka, topic=delays, properties=small) as producer:
        futures = [producer.send("mails", b"", delay=60) for _ in range(300)]
    assert [future.result(0).offset for future in futures] == list(range(300))

    async def many() -> list[int]:
        async with AsyncDelayProducer(kafka, topic=delays, properties=small) as other:
            sent = await asyncio.gather(*(other.send("mails", b"", delay=60) for _ in range(300)))
            await other.flush()
            return [one.offset for one in sent]

    assert sorted(asyncio.run(many())) == list(range(300, 600))


def test_a_missing_topic_and_a_record_that_is_too_large_are_named(kafka: str, topic: Callable[..., str]) -> None:
    with (
        pytest.raises(MissingTopic, match=f"--bootstrap {kafka} --topic t-absent"),
        DelayProducer(kafka, topic="t-absent"),
    ):
        pytest.fail("there is no such topic")
    small = topic(1, **{"max.message.bytes": 1000})
    with DelayProducer(kafka, topic=small) as producer:
        with pytest.raises(TooLarge, match="takes no record of this size"):
            producer.send("mails", b"x" * 5000).result(60)
        assert producer.send("mails", b"x").result(60).offset == 0
